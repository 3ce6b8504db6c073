"""A lease and its one release, whatever happens in between."""

import asyncio
from types import TracebackType
from typing import Self

from scheduler.domain.lease import Outcome
from scheduler.gateway.errors import CLIENT_CLOSED
from scheduler.orchestrator.readiness import Grant, Readiness, Usage
from scheduler.upstream.errors import EngineLost


class HeldLease:
    """Context that owns a granted lease: exactly one ``release``, at ``finish`` or at the latest on leaving.

    Left without ``finish``: an EngineLost decides the outcome; a cancelled handler or a broken client connection means
    that the client is gone; anything else is a bug of ours and says nothing about the engine.
    """

    __slots__ = ("_endpoint", "_readiness", "_released", "grant")

    def __init__(self, readiness: Readiness, grant: Grant, endpoint: str) -> None:
        self.grant = grant
        self._readiness = readiness
        self._endpoint = endpoint
        self._released = False

    def finish(self, outcome: Outcome, usage: Usage | None) -> None:
        """Release now. Later calls do nothing."""
        if not self._released:
            self._released = True
            self._readiness.release(self.grant.lease, outcome, usage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, EngineLost):
            self.finish(error.outcome, None)
        elif isinstance(error, asyncio.CancelledError | ConnectionError):
            self.finish(Outcome.CLIENT_GONE, Usage(endpoint=self._endpoint, status=CLIENT_CLOSED))
        else:
            self.finish(Outcome.OK, None)
