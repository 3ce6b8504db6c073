"""Greedy placement: one model after the other, each where it costs least. The solver comes later behind the same signature."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scheduler.domain.claims import Claim
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.instance import Phase
from scheduler.domain.reasons import Reason
from scheduler.planner.evict import Fits, evict
from scheduler.planner.inputs import Availability, Picture, Seat, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerInput:
    """What is there, and which models should be awake, most important first."""

    picture: Picture
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who goes where (and who leaves for it), and why the others do not go anywhere."""

    seats: Mapping[ModelName, Fits] = field(default_factory=dict)
    reasons: Mapping[ModelName, Reason] = field(default_factory=dict)


def place(given: PlannerInput) -> Placement:
    """Seat the targets in their order; each sees the seats taken and given up by those before it.

    Devices of a target that has been seated are not used for another one: a grow is alone on its devices.
    """
    picture = given.picture
    seats: dict[ModelName, Fits] = {}
    reasons: dict[ModelName, Reason] = {}
    for target in given.targets:
        verdict = evict(picture, target)
        if isinstance(verdict, Fits):
            seats[target.model] = verdict
            picture = _after(picture, target, verdict)
        else:
            reasons[target.model] = verdict.reason
    return Placement(seats=seats, reasons=reasons)


def _after(picture: Picture, target: Target, fits: Fits) -> Picture:
    """The picture once ``fits`` is decided: the leavers locked, the newcomer's claim taken, its devices busy."""
    leaving = {leave.seat.instance for leave in fits.leaves}
    kept = [replace(s, availability=Availability.LOCKED, exits=()) if s.instance in leaving else s for s in picture.seats]
    others = tuple(s for s in kept if s.instance != target.instance)
    devices: frozenset[DeviceId] = frozenset(fits.devices) | {d for leave in fits.leaves for d in leave.seat.devices}
    newcomer = Seat(
        instance=target.instance,
        model=target.model,
        phase=Phase.LAUNCHING,
        devices=fits.devices,
        claim=Claim({d: target.need_bytes for d in fits.devices}, target.own_claim.host_bytes),
        availability=Availability.LOCKED,
    )
    return replace(picture, seats=(*others, newcomer), blocked_devices=picture.blocked_devices | devices)
