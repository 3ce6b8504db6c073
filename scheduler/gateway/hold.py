"""Waiting for a lease."""

from scheduler.gateway.answer import Answer
from scheduler.orchestrator.readiness import Grant, Standing, Ticket


async def hold(ticket: Ticket, answer: Answer) -> Grant:
    """Wait until the ticket is granted, with comments to a client that wants them.

    However the wait ends without a grant (refused, client gone, daemon stopping), the place in the queue is given up.
    """
    grant: Grant | None = None
    try:
        grant = await answer.patiently(ticket.granted, lambda: waiting_comment(ticket.standing()))
    finally:
        if grant is None:
            ticket.cancel()
    return grant


def waiting_comment(standing: Standing) -> str:
    """``waiting position=2 eta=4.1s``."""
    eta = "unknown" if standing.eta_s is None else f"{max(0.0, standing.eta_s):.1f}s"
    return f"waiting position={standing.position} eta={eta}"
