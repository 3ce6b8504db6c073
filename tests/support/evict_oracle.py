"""The best answer of ``planner.evict`` by trying everything; slow, short and obviously right."""

import itertools
from collections.abc import Iterator

from scheduler.domain.ids import DeviceId
from scheduler.planner.feasible import Gap, admits_growth, can_ever_fit, gap_on
from scheduler.planner.inputs import Availability, Exit, Picture, Seat, Target

Choice = tuple[tuple[Seat, Exit], ...]


def best(picture: Picture, target: Target) -> tuple[float, int, int] | None:
    """Regret, victims and bytes by the ledger of the best choice on any device set; None when nothing is possible now."""
    found = [cost(choice, gaps) for gaps in _sets(picture, target) for choice in _choices(picture, target, gaps)]
    return min(found, default=None)


def enough(picture: Picture, choice: Choice, gaps: dict[DeviceId, Gap]) -> bool:
    """Whether these exits close every gap, by the ledger and by measurement, within the room for host copies."""
    for device, gap in gaps.items():
        if sum(e.claim_freed.get(device, 0) for _, e in choice) < gap.ledger_bytes:
            return False
        if sum(e.measured_freed.get(device, 0) for _, e in choice) < gap.measured_bytes:
            return False
    host = sum(e.host_delta_bytes for _, e in choice)
    return not choice or host <= picture.host.limit_bytes - picture.host.claimed_bytes


def helps(leaving: Exit, gaps: dict[DeviceId, Gap]) -> bool:
    """Whether an exit frees something that is missing."""
    return any(
        (gap.ledger_bytes > 0 and leaving.claim_freed.get(d, 0) > 0) or (gap.measured_bytes > 0 and leaving.measured_freed.get(d, 0) > 0)
        for d, gap in gaps.items()
    )


def cost(choice: Choice, gaps: dict[DeviceId, Gap]) -> tuple[float, int, int]:
    """What ``evict`` minimises."""
    short = [d for d, gap in gaps.items() if not gap.closed]
    return sum(e.regret for _, e in choice), len(choice), sum(e.claim_freed.get(d, 0) for _, e in choice for d in short)


def _sets(picture: Picture, target: Target) -> Iterator[dict[DeviceId, Gap]]:
    for devices in target.sets:
        blocked = any(d in picture.blocked_devices for d in devices)
        if not blocked and can_ever_fit(picture, target, devices) and admits_growth(picture, devices):
            yield {d: gap_on(picture, target, d) for d in devices}


def _choices(picture: Picture, target: Target, gaps: dict[DeviceId, Gap]) -> Iterator[Choice]:
    """Every sufficient choice of exits."""
    ways: list[list[tuple[Seat, Exit] | None]] = []
    for seat in picture.seats:
        locked = seat.availability is Availability.LOCKED or not picture.blocked_devices.isdisjoint(seat.devices)
        useful = [] if locked or seat.instance == target.instance else [(seat, e) for e in seat.exits if helps(e, gaps)]
        ways.append([None, *useful])
    for taken in itertools.product(*ways):
        choice = tuple(one for one in taken if one is not None)
        if enough(picture, choice, gaps):
            yield choice
