"""Verifies a placement against the picture it was made for: nothing is carried out on trust."""

from scheduler.domain.ids import DeviceId
from scheduler.planner.greedy import Placement, PlannerInput
from scheduler.planner.inputs import Availability, Target


def verify(placement: Placement, given: PlannerInput) -> list[str]:
    """Sentences about everything that is wrong with ``placement``; empty = it may be carried out."""
    targets = {t.model: t for t in given.targets}
    wrong: list[str] = []
    used: set[DeviceId] = set()
    for model, fits in placement.seats.items():
        target = targets.get(model)
        if target is None:
            wrong.append(f"{model} was not asked for")
            continue
        if fits.devices not in target.sets:
            wrong.append(f"{model} may not sit on {', '.join(fits.devices)}")
        touched = set(fits.devices) | {d for leave in fits.leaves for d in leave.seat.devices}
        if touched & (used | given.picture.blocked_devices):
            wrong.append(f"{model} uses a device that another change owns")
        used |= touched
        wrong += [f"{leave.seat.model} may not leave now" for leave in fits.leaves if leave.seat.availability is Availability.LOCKED]
        wrong += [_short(given, target, d, placement) for d in fits.devices if _bytes_over(given, target, d, placement) > 0]
    return wrong


def _bytes_over(given: PlannerInput, target: Target, device: DeviceId, placement: Placement) -> int:
    view = given.picture.devices[device]
    freed = sum(leave.exit.claim_freed.get(device, 0) for leave in placement.seats[target.model].leaves)
    others = given.picture.claimed_on(device) - target.own_claim.on(device) - freed
    return others + target.need_bytes + view.foreign_bytes - target.found_on(device) - view.info.usable_bytes


def _short(given: PlannerInput, target: Target, device: DeviceId, placement: Placement) -> str:
    return f"{target.model} does not fit on {device}: {_bytes_over(given, target, device, placement)} bytes too much"
