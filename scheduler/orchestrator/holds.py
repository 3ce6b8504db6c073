"""Held requests: by id in order of arrival, and filed by model, so that no decision has to look through all of them."""

from collections.abc import Iterator, KeysView, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass, field

from scheduler.domain.ids import HoldId, ModelName
from scheduler.domain.lease import Hold
from scheduler.planner.turns import Demand, demand_of

NOBODY = demand_of(())


@dataclass(slots=True)
class _Queue:
    holds: dict[HoldId, Hold] = field(default_factory=dict)
    demand: Demand | None = None  # None = to be summed up again


class Holds(MutableMapping[HoldId, Hold]):
    """A dictionary of holds that knows those of each model. Every way to write it keeps both in step."""

    __slots__ = ("_all", "_queues")

    def __init__(self, holds: Mapping[HoldId, Hold] | None = None) -> None:
        self._all: dict[HoldId, Hold] = {}
        self._queues: dict[ModelName, _Queue] = {}
        self.update(holds or {})

    def __getitem__(self, key: HoldId) -> Hold:
        return self._all[key]

    def __setitem__(self, key: HoldId, hold: Hold) -> None:
        before = self._all.get(key)
        if before is not None and before.model != hold.model:
            self._take_out(key, before.model)
        self._all[key] = hold
        queue = self._queues.get(hold.model)
        if queue is None:
            queue = self._queues[hold.model] = _Queue()
        queue.holds[key] = hold
        queue.demand = None

    def __delitem__(self, key: HoldId) -> None:
        self._take_out(key, self._all.pop(key).model)

    def __iter__(self) -> Iterator[HoldId]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def values(self) -> ValuesView[Hold]:
        """All holds, in order of arrival."""
        return self._all.values()

    def models(self) -> KeysView[ModelName]:
        """Models that somebody waits for."""
        return self._queues.keys()

    def of(self, model: ModelName) -> Mapping[HoldId, Hold]:
        """The holds of a model, in order of arrival."""
        queue = self._queues.get(model)
        return queue.holds if queue is not None else {}

    def demand(self, model: ModelName) -> Demand:
        """What its holds want together; summed up once after every change of them."""
        queue = self._queues.get(model)
        if queue is None:
            return NOBODY
        if queue.demand is None:
            queue.demand = demand_of(queue.holds.values())
        return queue.demand

    def _take_out(self, key: HoldId, model: ModelName) -> None:
        queue = self._queues[model]
        del queue.holds[key]
        queue.demand = None
        if not queue.holds:
            del self._queues[model]
