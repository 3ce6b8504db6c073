"""Answers that the scheduler cuts: a model has to leave its seat, and its last requests do not end by themselves."""

import asyncio
from types import TracebackType
from typing import Self

from scheduler.domain.lease import Outcome
from scheduler.gateway.leases import HeldLease
from scheduler.orchestrator.readiness import Usage
from scheduler.telemetry.tasks import spawn
from scheduler.upstream.pool import Exchange

#: Most requests are over by then; only longer ones pay for a task that watches.
GRACE_S = 0.25
_WHY = "it was put away, its device was lost, or the daemon ends, and the answer did not end in time"


class CutWatch:
    """Context around an exchange: when the grant's ``cut`` is set, breaks it off and releases the lease at once.

    The lease does not wait for the error event: the client may be the one that does not read.
    """

    def __init__(self, lease: HeldLease, exchange: Exchange, endpoint: str) -> None:
        self._lease = lease
        self._exchange = exchange
        self._endpoint = endpoint
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._lease.grant.cut is not None:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._start, self._lease.grant.cut)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self, cut: asyncio.Event) -> None:
        self._task = spawn(self._watch(cut), "gateway/cut")

    async def _watch(self, cut: asyncio.Event) -> None:
        await cut.wait()
        self._exchange.cut(_WHY)
        self._lease.finish(Outcome.ABORTED, Usage(endpoint=self._endpoint, status=502))
