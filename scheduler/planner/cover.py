"""The cheapest set of exits that covers what is missing: branch and bound over seats, pure and deterministic.

A seat leaves by at most one of its exits. The sum of what they free must reach every *need* (bytes by the ledger and bytes by
measurement, per short device), and the host memory they take must not exceed what is left there. Lower bounds come from the
fractional relaxation with host memory at a price (:class:`Relaxation`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import gt, sub

from scheduler.planner.inputs import Exit, Seat

#: Rounding of sums of regrets in different orders; ties within it are decided by the number of victims.
_EPSILON = 1e-9
#: Steps of the search for the price of host memory that bounds best.
_PRICE_STEPS = 4


@dataclass(frozen=True, slots=True)
class Way:
    """One exit of one seat, as the search sees it: bytes per need (never more than needed), host bytes, regret."""

    seat: Seat
    exit: Exit
    gains: tuple[int, ...]
    host: int
    regret: float
    freed: int  # bytes by the ledger on the short devices: among equals the least is taken


@dataclass(slots=True)
class Budget:
    """Steps left for one decision, over all device sets: past it the best found so far is taken."""

    steps: int


Key = tuple[float, int, int]  # regret, victims, bytes by the ledger


def is_better(new: Key, old: Key) -> bool:
    """Less regret; within rounding fewer victims, then fewer bytes."""
    if abs(new[0] - old[0]) > _EPSILON:
        return new[0] < old[0]
    return new[1:] < old[1:]


class Relaxation:
    """Lower bounds when seats may leave by parts and a byte of host memory costs ``price`` instead of being bounded."""

    def __init__(self, seats: Sequence[Sequence[Way]], lead: int, price: float) -> None:
        self.price = price
        self.gifts: list[float] = []  # what leaving brings by itself: the price of a sleeper's host copy
        self.ratios: list[float] = []  # least cost of a byte of the leading need
        self._gains: list[int] = []
        self._hosts: list[int] = []
        self._gift_hosts: list[int] = []
        for ways in seats:
            self._add(ways, lead, price)
        self._order = sorted((n for n, gain in enumerate(self._gains) if gain), key=self.ratios.__getitem__)
        self._levels: dict[int, tuple[float, list[int], list[float], list[float]]] = {}

    def _add(self, ways: Sequence[Way], lead: int, price: float) -> None:
        gift, gift_host = 0.0, 0
        for way in ways:
            cost = way.regret + price * way.host
            if cost < gift:
                gift, gift_host = cost, way.host
        ratio, host, most = float("inf"), 0, 0
        for way in ways:
            gain = way.gains[lead]
            if gain:
                each = (way.regret + price * way.host - gift) / gain
                if each < ratio:
                    ratio, host = each, way.host
                most = max(most, gain)
        self.gifts.append(gift)
        self.ratios.append(ratio)
        self._gains.append(most)
        self._hosts.append(host)
        self._gift_hosts.append(gift_host)

    def bound(self, at: int, missing: int) -> float:
        """Least cost of covering ``missing`` bytes of the leading need by seats from ``at`` on (infinite: they cannot)."""
        level = self._levels.get(at) or self._make_level(at)
        gift, gains, costs, ratios = level
        if missing <= 0:
            return gift
        last = bisect_left(gains, missing)
        if last >= len(gains):
            return float("inf")
        return gift + costs[last] + ratios[last] * (missing - (gains[last - 1] if last else 0))

    def host_use(self, missing: int) -> float:
        """Host memory that the relaxed answer takes."""
        use = float(sum(self._gift_hosts))
        for n in self._order:
            part = min(1.0, missing / self._gains[n]) if missing > 0 else 0.0
            use += part * (self._hosts[n] - self._gift_hosts[n])
            missing -= self._gains[n]
        return use

    def _make_level(self, at: int) -> tuple[float, list[int], list[float], list[float]]:
        rest = [n for n in self._order if n >= at]
        ratios = [self.ratios[n] for n in rest]
        gains = list(accumulate(self._gains[n] for n in rest))
        costs = [0.0, *accumulate(self.ratios[n] * self._gains[n] for n in rest)]
        level = (sum(self.gifts[at:]), gains, costs, ratios)
        self._levels[at] = level
        return level


class Cover:
    """One search. ``needs`` are all positive; ``ways`` groups the exits by seat."""

    def __init__(self, needs: Sequence[int], ways: Sequence[Sequence[Way]], host_room: int, budget: Budget) -> None:
        self._needs = tuple(needs)
        self._room = host_room
        self._budget = budget
        self._lead = self._leading_need(ways)
        by_name = sorted(ways, key=lambda w: (w[0].seat.last_used_s, w[0].seat.instance))
        relaxed = self._best_relaxation(by_name)
        order = sorted(range(len(by_name)), key=lambda n: relaxed.ratios[n])
        self._seats = [sorted(by_name[n], key=lambda way: self._rank(way, relaxed.price)) for n in order]
        self._repeats = [n > 0 and _same(w, self._seats[n - 1]) for n, w in enumerate(self._seats)]
        self._relaxed = Relaxation(self._seats, self._lead, relaxed.price)
        self._most, self._least_host = self._reach()
        self.best: tuple[Key, tuple[Way, ...]] | None = None

    def run(self, at_most: float) -> tuple[Key, tuple[Way, ...]] | None:
        """The cheapest cover with a regret of at most ``at_most``; None when there is none."""
        self._limit = at_most
        self._visit(0, (), 0.0, self._needs, 0, False)
        if self._budget.steps <= 0:  # not everything was looked at
            if self.best is None:
                self._take_all()
            if self.best is not None:
                self._exchange(list(self.best[1]))
        return self.best

    # --- preparation ------------------------------------------------------------------------------------------------

    def _leading_need(self, ways: Sequence[Sequence[Way]]) -> int:
        """The need that is hardest to cover leads the bounds."""
        most = [sum(max(way.gains[k] for way in w) for w in ways) or 1 for k in range(len(self._needs))]
        return max(range(len(self._needs)), key=lambda k: self._needs[k] / most[k], default=0)

    def _best_relaxation(self, seats: Sequence[Sequence[Way]]) -> Relaxation:
        """The price of host memory that bounds best: none while there is room for everybody's copy."""
        free = Relaxation(seats, self._lead, 0.0)
        if sum(max(0, *(way.host for way in ways)) for ways in seats) <= self._room:
            return free
        need = self._needs[self._lead]
        found = [free]
        low, high = 0.0, sum(way.regret for ways in seats for way in ways) / (sum(abs(way.host) for ways in seats for way in ways) or 1)
        for _ in range(_PRICE_STEPS):  # too low: too much host memory is used; too high: too little
            tried = Relaxation(seats, self._lead, high if len(found) == 1 else (low + high) / 2)
            found.append(tried)
            if tried.host_use(need) > self._room:
                low, high = tried.price, high if high > tried.price else 4 * high
            else:
                high = tried.price
        return max(found, key=lambda r: r.bound(0, need) - r.price * self._room)

    def _rank(self, way: Way, price: float) -> tuple[float, float]:
        gain = way.gains[self._lead]
        return ((way.regret + price * way.host) / gain if gain else float("inf"), way.regret)

    def _reach(self) -> tuple[list[tuple[int, ...]], list[int]]:
        """Per position: the most bytes per need, and the least host memory, of everybody from there on."""
        most, host = [(0,) * len(self._needs)], [0]
        for ways in reversed(self._seats):
            most.append(tuple(m + max(way.gains[k] for way in ways) for k, m in enumerate(most[-1])))
            host.append(host[-1] + min(0, *(way.host for way in ways)))
        return most[::-1], host[::-1]

    # --- search -----------------------------------------------------------------------------------------------------

    def _visit(self, at: int, taken: tuple[Way, ...], regret: float, missing: tuple[int, ...], host: int, skipped: bool) -> None:
        self._budget.steps -= 1
        covered = max(missing) <= 0
        if covered and host <= self._room:
            self._offer(taken, regret)
            return
        if at == len(self._seats) or self._budget.steps <= 0:
            return
        if host + self._least_host[at] > self._room or any(map(gt, missing, self._most[at])):
            return
        price = self._relaxed.price
        bound = self._relaxed.bound(at, missing[self._lead]) + price * (host - self._room)
        if not self._promising(regret + max(0.0, bound), len(taken) + 1):
            return
        if not (skipped and self._repeats[at]):  # of equals, the earlier one leaves
            for way in self._seats[at]:
                if not covered or way.host < 0:
                    left = tuple(map(sub, missing, way.gains))
                    self._visit(at + 1, (*taken, way), regret + way.regret, left, host + way.host, False)
        self._visit(at + 1, taken, regret, missing, host, True)

    def _promising(self, bound: float, victims: int) -> bool:
        if bound > self._limit + _EPSILON:
            return False
        if self.best is None:
            return True
        best, count, _ = self.best[0]
        return bound < best - _EPSILON or (bound <= best + _EPSILON and victims <= count)

    def _offer(self, taken: tuple[Way, ...], regret: float) -> None:
        if regret > self._limit + _EPSILON:
            return
        key = (regret, len(taken), sum(way.freed for way in taken))
        if self.best is None or is_better(key, self.best[0]):
            self.best = (key, taken)

    def _take_all(self) -> None:
        """The budget is spent before anything was found: everybody leaves as far as possible, then whoever need not stays."""
        taken = tuple(max(w, key=lambda way: (way.gains, -way.host)) for w in self._seats)
        if not self._enough(taken):
            return
        for way in sorted(taken, key=lambda x: (-x.regret, x.seat.instance)):
            rest = tuple(x for x in taken if x is not way)
            if self._enough(rest):
                taken = rest
        self._offer(taken, sum(way.regret for way in taken))

    def _exchange(self, taken: list[Way]) -> None:
        """Give one victim (or its way out) for a cheaper one, as long as that helps."""
        others = sorted((way for ways in self._seats for way in ways), key=lambda way: way.regret)
        for place in sorted(range(len(taken)), key=lambda n: -taken[n].regret):
            rest = taken[:place] + taken[place + 1 :]
            away = {way.seat.instance for way in rest}
            left = [need - sum(way.gains[k] for way in rest) for k, need in enumerate(self._needs)]
            room = self._room - sum(way.host for way in rest)
            for way in others:
                if way.regret >= taken[place].regret:
                    break
                if way.host <= room and way.seat.instance not in away and not any(map(gt, left, way.gains)):
                    taken[place] = way
                    break
        for way in sorted(taken, key=lambda x: -x.regret):
            rest = [x for x in taken if x is not way]
            if self._enough(rest):
                taken = rest
        self._offer(tuple(taken), sum(way.regret for way in taken))

    def _enough(self, ways: Sequence[Way]) -> bool:
        covered = all(sum(way.gains[k] for way in ways) >= need for k, need in enumerate(self._needs))
        return covered and sum(way.host for way in ways) <= self._room


def _same(ways: Sequence[Way], others: Sequence[Way]) -> bool:
    return [(w.gains, w.host, w.regret, w.freed) for w in ways] == [(w.gains, w.host, w.regret, w.freed) for w in others]
