"""The seam between the data plane and the scheduler: hold, lease, release, usage. Nothing else crosses it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scheduler.domain.ids import InstanceId, LeaseId, ModelName
from scheduler.domain.lease import Outcome
from scheduler.domain.model import ModelClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A request that wants a lease. Monotonic seconds; ``arrived_s`` is kept when a request is tried a second time."""

    model: ModelName
    arrived_s: float
    deadline_s: float
    model_class: ModelClass = ModelClass.INTERACTIVE
    principal: str = "local"
    second_try: bool = False  # the first lease's engine died before its first byte


def _unheard() -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease and where to send the request. When ``cut`` is set the request must end now, with an error event.

    ``heard`` is to be called whenever something came from the engine: from one that says nothing, requests are taken away.
    """

    lease: LeaseId
    instance: InstanceId
    base_url: str
    served_model: str
    api_key: str
    waited_s: float
    woke: bool
    cut: asyncio.Event | None = None
    heard: Callable[[], None] = _unheard


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one request used; None = the engine did not say. ``again``: it goes on with another lease and counts there."""

    endpoint: str
    status: int
    again: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a held request stands: ``position`` 1 = next of its model; ``eta_s`` None = unknown."""

    position: int
    eta_s: float | None
    reason: str = ""


class Ticket(Protocol):
    """A request in the hold queue. Exactly one of granted / refused / cancelled ends it."""

    def standing(self) -> Standing:
        """Position and ETA now."""
        ...

    async def granted(self) -> Grant:
        """Wait for the lease.

        Raises HotseatError with a code of the gateway table (wait_timeout, model_failed, does_not_fit, ...);
        Temporary carries retry_after_s. Cancelling the awaiting task does not give up the place: call ``cancel``.
        """
        ...

    def cancel(self) -> None:
        """The client is gone. A lease granted meanwhile is released. Idempotent; no-op after ``granted`` returned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A model as clients see it."""

    name: ModelName
    aliases: tuple[str, ...]
    description: str
    unlisted: bool
    max_wait_s: float | None
    model_class: ModelClass
    created_at: int


class Readiness(Protocol):
    """What the gateway (and the batch runner) may ask of the scheduler."""

    def resolve(self, name: str) -> Listed:
        """The model behind a name or alias. Raises NotFound (model_not_found, with the nearest name)."""
        ...

    def listed(self) -> list[Listed]:
        """All models, in registry order."""
        ...

    def ask(self, want: Want) -> Ticket:
        """Join the hold queue. Raises at once: queue_full, model_disabled, does_not_fit, store_unavailable, ..."""
        ...

    def release(self, lease: LeaseId, outcome: Outcome, usage: Usage | None) -> None:
        """End a lease. Idempotent; never blocks."""
        ...
