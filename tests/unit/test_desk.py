"""The front of the scheduler by itself: what it counts when leases end."""

from collections.abc import Iterator

import pytest

from scheduler.domain.ids import CauseId, HoldId, InstanceId, LeaseId, ModelName
from scheduler.domain.lease import Lease, Outcome
from scheduler.orchestrator.desk import Listeners, ReadinessDesk
from scheduler.orchestrator.effects import CutLeases, GrantLease
from scheduler.orchestrator.readiness import Usage, Want
from scheduler.orchestrator.state import State
from scheduler.ports.engine import Endpoint
from scheduler.simulator.virtual_time import VirtualClock

pytestmark = pytest.mark.virtual_time
MODEL, STOP, LATER = ModelName("a"), CauseId("action:a1"), CauseId("action:a2")


class Seat:
    """As much of a supervisor as a grant needs."""

    def endpoint(self) -> Endpoint:
        return Endpoint(base_url="http://127.0.0.1:1", served_model="a")


class Front:
    """A desk, and who was told of cut requests."""

    def __init__(self, clock: VirtualClock) -> None:
        self.cuts: list[tuple[CauseId, int]] = []
        self.desk = ReadinessDesk(State(), clock, Listeners(cut=lambda cause, count: self.cuts.append((cause, count))))
        self._numbers: Iterator[int] = iter(range(1, 100))

    def lease(self) -> LeaseId:
        """A granted request."""
        number = next(self._numbers)
        self.desk.ask(Want(model=MODEL, arrived_s=0.0, deadline_s=9.0))
        lease = Lease(
            id=LeaseId(number), hold=HoldId(number), model=MODEL, instance=InstanceId("a#0"), granted_s=0.0, waited_s=0.0, woke=False
        )
        self.desk.granted(GrantLease(hold=HoldId(number), lease=lease, launch=1), Seat())  # type: ignore[arg-type]
        return lease.id


async def test_only_requests_that_were_cut_short_are_counted_and_once(virtual_clock: VirtualClock) -> None:
    front = Front(virtual_clock)
    whole, aborted, lost, left, untouched = (front.lease() for _ in range(5))
    front.desk.cut(CutLeases(leases=(whole, aborted, lost, left), cause=STOP))
    front.desk.cut(CutLeases(leases=(aborted, LeaseId(99)), cause=LATER))
    assert front.cuts == []  # an answer may still end by itself
    front.desk.release(whole, Outcome.OK, Usage(endpoint="e", status=200))
    front.desk.release(left, Outcome.CLIENT_GONE, None)
    front.desk.release(untouched, Outcome.ABORTED, None)
    assert front.cuts == []
    for lease in (aborted, lost, aborted):
        front.desk.release(lease, Outcome.ABORTED if lease == aborted else Outcome.ENGINE_LOST, None)
    assert front.cuts == [(STOP, 1), (STOP, 1)]


async def test_a_request_that_goes_on_with_another_lease_counts_there(virtual_clock: VirtualClock) -> None:
    front = Front(virtual_clock)
    front.desk.release(front.lease(), Outcome.ENGINE_LOST, Usage(endpoint="e", status=502, again=True))
    front.desk.release(front.lease(), Outcome.OK, Usage(endpoint="e", status=200))
    assert [(row.counts.requests, row.counts.errors) for row in front.desk.usage.take()] == [(1, 0)]
