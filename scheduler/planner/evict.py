"""Who leaves so that one model can come: the cheapest set of exits that is proven to be enough before anything is touched."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes
from scheduler.planner.feasible import Gap, admits_growth, can_ever_fit, gap_on, most_bytes
from scheduler.planner.inputs import Availability, Exit, Picture, Seat, Target

#: Search steps after which the best set found so far is taken (keeps a reaction within 2 ms; 12 seats need fewer).
NODE_LIMIT = 2_000


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
    best: tuple[tuple[float, int, int, int], Fits] | None = None
    blocked = []
    for rank, devices in enumerate(possible):
        if any(d in picture.blocked_devices for d in devices):
            blocked.append(NotNow(Reason(Code.WAITING_MOVE, f"another change on {', '.join(devices)} is under way")))
            continue
        if not admits_growth(picture, devices):
            blocked.append(NotNow(Reason(Code.WAITING_MEMORY, f"no fresh measurement of {', '.join(devices)}")))
            continue
        gaps = {d: gap_on(picture, target, d) for d in devices}
        chosen = _cheapest(picture, target, gaps)
        if chosen is None:
            blocked.append(_not_now(picture, target, gaps))
            continue
        fits = Fits(devices, chosen, sum(leave.exit.regret for leave in chosen))
        key = (fits.regret, len(chosen), _surplus(chosen, gaps), rank)
        if best is None or key < best[0]:
            best = (key, fits)
    if best is not None:
        return best[1]
    return min(blocked, key=lambda b: b.retry_at_s if b.retry_at_s is not None else float("inf"))


def _cheapest(picture: Picture, target: Target, gaps: dict[DeviceId, Gap]) -> tuple[Leave, ...] | None:
    short = tuple(d for d, gap in gaps.items() if not gap.closed)
    if not short:
        return ()
    seats = [s for s in picture.seats if s.instance != target.instance and s.availability is not Availability.LOCKED]
    useful = [s for s in seats if any(_helps(e, short) for e in s.exits)]
    useful.sort(key=lambda s: (min(e.regret for e in s.exits), s.last_used_s, s.instance))
    return _Search(picture, gaps, short, useful).run()


def _helps(leaving: Exit, short: Sequence[DeviceId]) -> bool:
    return any(leaving.claim_freed.get(d, 0) > 0 or leaving.measured_freed.get(d, 0) > 0 for d in short)


class _Search:
    """Branch and bound over seats, cheapest first; exact until NODE_LIMIT."""

    def __init__(self, picture: Picture, gaps: dict[DeviceId, Gap], short: tuple[DeviceId, ...], seats: list[Seat]) -> None:
        self._gaps = gaps
        self._short = short
        self._seats = seats
        self._host_room = picture.host.limit_bytes - picture.host.claimed_bytes
        self._best: tuple[tuple[float, int, int], tuple[Leave, ...]] | None = None
        self._nodes = 0
        self._tail = self._most_left()

    def run(self) -> tuple[Leave, ...] | None:
        self._visit(0, (), 0.0, {d: (0, 0) for d in self._short}, 0)
        return self._without_passengers(self._best[1]) if self._best else None

    def _without_passengers(self, taken: tuple[Leave, ...]) -> tuple[Leave, ...]:
        """Nobody leaves for nothing, even when the search was cut short."""
        for leave in sorted(taken, key=lambda x: -x.exit.regret):
            rest = tuple(x for x in taken if x is not leave)
            freed = {d: _sum(_given(x.exit, d) for x in rest) for d in self._short}
            if self._enough(freed) and sum(x.exit.host_delta_bytes for x in rest) <= self._host_room:
                taken = rest
        return taken

    def _most_left(self) -> list[dict[DeviceId, tuple[int, int]]]:
        """Per position, the most that the remaining seats could free: the bound that prunes hopeless branches."""
        tail = [{d: (0, 0) for d in self._short}]
        for seat in reversed(self._seats):
            after = tail[0]
            tail.insert(0, {d: _plus(after[d], _most(seat, d)) for d in self._short})
        return tail

    def _enough(self, freed: dict[DeviceId, tuple[int, int]]) -> bool:
        return all(freed[d][0] >= self._gaps[d].ledger_bytes and freed[d][1] >= self._gaps[d].measured_bytes for d in self._short)

    def _visit(self, at: int, taken: tuple[Leave, ...], regret: float, freed: dict[DeviceId, tuple[int, int]], host: int) -> None:
        self._nodes += 1
        if self._best is not None and (regret, len(taken)) > self._best[0][:2]:
            return
        if self._enough(freed):
            if host <= self._host_room:
                self._offer(taken, regret)
            return
        if at == len(self._seats) or (self._nodes > NODE_LIMIT and self._best is not None):
            return
        if not self._enough({d: _plus(freed[d], self._tail[at][d]) for d in self._short}):
            return
        seat = self._seats[at]
        for leaving in sorted((e for e in seat.exits if _helps(e, self._short)), key=lambda e: e.regret):
            more = {d: _plus(freed[d], _given(leaving, d)) for d in self._short}
            self._visit(at + 1, (*taken, Leave(seat, leaving)), regret + leaving.regret, more, host + leaving.host_delta_bytes)
        self._visit(at + 1, taken, regret, freed, host)

    def _offer(self, taken: tuple[Leave, ...], regret: float) -> None:
        key = (regret, len(taken), _surplus(taken, self._gaps))
        if self._best is None or key < self._best[0]:
            self._best = (key, taken)


def _given(leaving: Exit, device: DeviceId) -> tuple[int, int]:
    return leaving.claim_freed.get(device, 0), leaving.measured_freed.get(device, 0)


def _most(seat: Seat, device: DeviceId) -> tuple[int, int]:
    return (
        max((e.claim_freed.get(device, 0) for e in seat.exits), default=0),
        max((e.measured_freed.get(device, 0) for e in seat.exits), default=0),
    )


def _plus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


def _sum(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    total = (0, 0)
    for pair in pairs:
        total = _plus(total, pair)
    return total


def _surplus(leaves: Sequence[Leave], gaps: dict[DeviceId, Gap]) -> int:
    return sum(sum(leave.exit.claim_freed.get(d, 0) for leave in leaves) - max(0, gap.ledger_bytes) for d, gap in gaps.items())


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
