"""Who leaves so that one model can come: the cheapest set of exits that is proven to be enough before anything is touched."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.instance import Phase
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes
from scheduler.planner.cover import Budget, Cover, Key, Way, is_better
from scheduler.planner.feasible import Gap, admits_growth, can_ever_fit, gap_on, most_bytes
from scheduler.planner.inputs import Availability, Exit, Picture, Seat, Target

#: Search steps after which the best set found so far is taken: keeps a reaction within 2 ms at 40 seats. Up to seven seats the
#: answer is exact (tests/property); beyond, benchmarks/evict.py says how much regret the limit costs: 0.2 % while there is host
#: memory for every copy, 5 to 12 % where it is short.
STEP_LIMIT = 200

Found = tuple[Key, tuple[Way, ...]]


@dataclass(frozen=True, slots=True)
class Leave:
    """One victim and how it leaves."""

    seat: Seat
    exit: Exit


@dataclass(frozen=True, slots=True)
class Fits:
    """It fits on ``devices`` once ``leaves`` (possibly none) are through."""

    devices: tuple[DeviceId, ...]
    leaves: tuple[Leave, ...]
    regret: float


@dataclass(frozen=True, slots=True)
class NotNow:
    """Nothing possible now; ``retry_at_s`` when time alone may change that, ``holder`` who is in the way."""

    reason: Reason
    retry_at_s: float | None = None
    holder: ModelName | None = None


@dataclass(frozen=True, slots=True)
class Never:
    """It can never fit."""

    reason: Reason


def evict(picture: Picture, target: Target) -> Fits | NotNow | Never:
    """Choose device set and victims together, least total regret first.

    Ties: fewer victims, then fewer bytes freed beyond need (a big one rather than three small ones, but no more than
    needed), then the order of ``target.sets``. A victim that frees nothing on a short device is never touched.
    """
    possible = [s for s in target.sets if can_ever_fit(picture, target, s)]
    if not possible:
        return Never(_never(picture, target))
    best: tuple[Key, Fits] | None = None
    blocked = []
    left = STEP_LIMIT
    for rank, devices in enumerate(possible):
        if any(d in picture.blocked_devices for d in devices):
            blocked.append(NotNow(Reason(Code.WAITING_MOVE, _who_moves(picture, devices))))
            continue
        if not admits_growth(picture, devices):
            blocked.append(NotNow(Reason(Code.WAITING_MEMORY, why_blocked(picture, devices))))
            continue
        gaps = {d: gap_on(picture, target, d) for d in devices}
        budget = Budget(share := left // (len(possible) - rank))  # what one set does not need is left to the others
        found = _cheapest(picture, target, gaps, best[0][0] if best is not None else float("inf"), budget)
        left -= share - max(0, budget.steps)
        if found is None:
            blocked.append(_not_now(picture, target, gaps))
        elif best is None or is_better(found[0], best[0]):
            best = found[0], Fits(devices, tuple(Leave(way.seat, way.exit) for way in found[1]), found[0][0])
    if best is not None:
        return best[1]
    return min(blocked, key=lambda b: b.retry_at_s if b.retry_at_s is not None else float("inf"))


def _who_moves(picture: Picture, devices: tuple[DeviceId, ...]) -> str:
    moving = [s for s in picture.seats if s.phase not in (Phase.AWAKE, Phase.ASLEEP) and not set(devices).isdisjoint(s.devices)]
    who = ", ".join(f"{s.model} is {s.phase.value.replace('_', ' ')}" for s in moving[:3])
    return f"another change on {', '.join(devices)} is under way" + (f": {who}" if who else "")


def why_blocked(picture: Picture, devices: tuple[DeviceId, ...]) -> str:
    """Why nothing may grow on these devices, whoever leaves."""
    said = [view.blocked for d in devices if (view := picture.devices.get(d)) is not None and view.blocked]
    return "; ".join(said) or f"no fresh measurement of {', '.join(devices)}"


def _cheapest(picture: Picture, target: Target, gaps: dict[DeviceId, Gap], at_most: float, budget: Budget) -> Found | None:
    """The cheapest exits that close the gaps, with a regret of at most ``at_most``."""
    needs = [(d, True, gap.ledger_bytes) for d, gap in gaps.items() if gap.ledger_bytes > 0]
    needs += [(d, False, gap.measured_bytes) for d, gap in gaps.items() if gap.measured_bytes > 0]
    if not needs:
        return (0.0, 0, 0), ()
    short = {d for d, _, _ in needs}
    there = [s for s in picture.seats if s.availability is not Availability.LOCKED and not short.isdisjoint(s.devices)]
    ways = [found for seat in there if _may_leave(picture, target, seat) and (found := _ways(seat, needs))]
    if any(sum(max(way.gains[k] for way in w) for w in ways) < need for k, (_, _, need) in enumerate(needs)):
        budget.steps -= 1  # one look: not even all of them together are enough
        return None
    room = picture.host.limit_bytes - picture.host.claimed_bytes
    return Cover([need for _, _, need in needs], ways, room, budget).run(at_most)


def _may_leave(picture: Picture, target: Target, seat: Seat) -> bool:
    return picture.blocked_devices.isdisjoint(seat.devices) and seat.instance != target.instance


def _ways(seat: Seat, needs: Sequence[tuple[DeviceId, bool, int]]) -> list[Way]:
    """The exits of a seat that help: a victim that frees nothing that is missing is never touched."""
    found = []
    for leaving in seat.exits:
        gains = tuple(max(0, min(need, (leaving.claim_freed if ledger else leaving.measured_freed).get(d, 0))) for d, ledger, need in needs)
        if any(gains):
            freed = sum(leaving.claim_freed.get(d, 0) for d in dict.fromkeys(d for d, _, _ in needs))
            found.append(Way(seat, leaving, gains, leaving.host_delta_bytes, leaving.regret, freed))
    return found


def _never(picture: Picture, target: Target) -> Reason:
    if not target.sets:
        return Reason(
            Code.DOES_NOT_FIT, f"{target.model} has no device it may run on", "check the model's devices against `hotseat status`"
        )
    largest = max((picture.devices[d].info for devices in target.sets for d in devices), key=most_bytes)
    return Reason(
        Code.DOES_NOT_FIT,
        f"{target.model} needs {human_bytes(target.need_bytes)}; {largest.id}, the largest device it may use, "
        f"can give {human_bytes(most_bytes(largest))} of {human_bytes(largest.capacity_bytes)}",
        "use a smaller context or quantisation, or a larger memory budget for the device",
    )


def _not_now(picture: Picture, target: Target, gaps: dict[DeviceId, Gap]) -> NotNow:
    """Name who is in the way: the locked seat on a short device that is free first."""
    short = {d for d, gap in gaps.items() if not gap.closed}
    missing = max(max(gap.ledger_bytes, gap.measured_bytes) for gap in gaps.values())
    in_the_way = [s for s in picture.seats if s.instance != target.instance and short & set(s.devices)]
    locked = [s for s in in_the_way if s.availability is Availability.LOCKED]
    if not locked:
        foreign = sum(picture.devices[d].foreign_bytes for d in short)
        return NotNow(Reason(Code.WAITING_MEMORY, f"{human_bytes(missing)} short; {human_bytes(foreign)} are used by others"))
    first = min(locked, key=lambda s: (s.free_at_s if s.free_at_s is not None else float("inf"), s.instance))
    why = f": {first.why.text}" if first.why is not None else ""
    return NotNow(
        Reason(Code.WAITING_TURN, f"{human_bytes(missing)} short; waiting for {first.model}{why}"),
        first.free_at_s,
        first.model,
    )
