"""Serving in turns when models that do not fit together are all wanted (scheduling.md section 4)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.domain.ids import HoldId, ModelName
from scheduler.domain.lease import Hold

#: Kept between the predicted grant and the caller's deadline, since predictions are only that.
SLACK_RESERVE_S = 2.0
SLACK_RESERVE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Demand:
    """What the holds of one model want together; times are monotonic seconds, infinite when nobody waits."""

    deadline_s: float  # the first to be refused
    patience_s: float  # the shortest wait that was offered, from arrival to deadline
    limit_s: float  # the first caller to lose patience
    rank: int  # of the highest class
    arrived_s: float  # who came first, and when
    first: HoldId
    by_operator: bool  # one of them is an operator's wake


def demand_of(holds: Iterable[Hold]) -> Demand:
    """Sum up the holds of one model."""
    found = list(holds)
    ends = float("inf")
    arrived_s, first = min(((h.arrived_s, h.id) for h in found), default=(ends, HoldId(0)))
    return Demand(
        deadline_s=min((h.deadline_s for h in found), default=ends),
        patience_s=min((h.deadline_s - h.arrived_s for h in found), default=ends),
        limit_s=min((h.limit_s for h in found), default=ends),
        rank=min((h.model_class.rank for h in found), default=0),
        arrived_s=arrived_s,
        first=first,
        by_operator=any(h.action is not None for h in found),
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """How long a busy model keeps its seat against the others: ``length_s``, and whether peaks overlap too much for full turns."""

    length_s: float
    over_committed: bool


def turn_length(contenders: int, switch_s: float, max_wait_s: float, factor: float, min_awake_s: float) -> Turn:
    """A turn lasts ``factor`` x switch seconds (and ``min_awake_s``), unless the others could then not be served in time.

    With n contenders somebody waits (n-1) x (turn + switch); where that exceeds ``max_wait_s`` turns shrink, down to
    nothing but the requests that woke the model.
    """
    full = max(factor * switch_s, min_awake_s)
    others = max(1, contenders - 1)
    if others * (full + switch_s) <= max_wait_s:
        return Turn(full, False)
    shrunk = max(0.0, max_wait_s / others - switch_s)
    return Turn(min(full, shrunk), others * (factor * switch_s + switch_s) > max_wait_s)


def latest_gate_s(holds: Iterable[Hold], switch_s: float, drain_s: float) -> float:
    """The moment at which the seat's new requests must be gated so that the first waiting deadline can still be met."""
    return gate_before(min((h.deadline_s for h in holds), default=float("inf")), switch_s, drain_s)


def gate_before(deadline_s: float, switch_s: float, drain_s: float) -> float:
    """The moment at which the seat's new requests must be gated so that ``deadline_s`` can still be met."""
    return deadline_s - (switch_s + drain_s) * (1 + SLACK_RESERVE_SHARE) - SLACK_RESERVE_S


def order_models(waiting: dict[ModelName, list[Hold]], enter_s: dict[ModelName, float]) -> list[ModelName]:
    """Whose turn is next: least slack first (deadline - wake), then class, then arrival."""
    return order_demands({name: demand_of(holds) for name, holds in waiting.items()}, enter_s)


def order_demands(waiting: Mapping[ModelName, Demand], enter_s: Mapping[ModelName, float]) -> list[ModelName]:
    """Whose turn is next, of models whose holds are summed up already."""

    def key(name: ModelName) -> tuple[float, int, float, HoldId]:
        wants = waiting[name]
        return (wants.deadline_s - enter_s[name], wants.rank, wants.arrived_s, wants.first)

    return sorted(waiting, key=key)


@dataclass(slots=True)
class Fairness:
    """Who of a model's callers is next (start-time fair queueing): everybody's next place, and the place served last.

    A thousand requests of one principal do not stand before the only one of another; who was away gains nothing by it.
    """

    served: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def place_of(self, principal: str) -> int:
        """The place of the next request of ``principal``."""
        return max(self.served, self.places.get(principal, 0))

    def grant(self, principal: str) -> None:
        """Its next request was served."""
        self.served = self.place_of(principal)
        self.places[principal] = self.served + 1
        self.places = {name: place for name, place in self.places.items() if place > self.served}


def order_holds(holds: Iterable[Hold], fairness: Fairness | None = None) -> list[Hold]:
    """Grant order within one model: class, second tries first, then fair among principals, then arrival."""
    fair = fairness or Fairness()
    by_arrival = sorted(holds, key=lambda h: (h.model_class.rank, not h.second_try, h.arrived_s, h.id))
    place: dict[HoldId, int] = {}
    seen: Counter[tuple[int, bool, str]] = Counter()
    for hold in by_arrival:
        key = (hold.model_class.rank, hold.second_try, hold.principal)
        place[hold.id] = fair.place_of(hold.principal) + seen[key]
        seen[key] += 1
    return sorted(by_arrival, key=lambda h: (h.model_class.rank, not h.second_try, place[h.id], h.arrived_s, h.id))
