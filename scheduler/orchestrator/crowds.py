"""Models that are to be awake always, and can never be so together: their sizes against their devices, with nobody else there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler.domain.claims import Source
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes
from scheduler.orchestrator.state import State
from scheduler.orchestrator.view import start_target
from scheduler.planner.feasible import most_bytes
from scheduler.planner.gangs import MOST_GANGS

#: Steps of the search for seats after which nobody is warned: what is not known is not said.
MOST_STEPS = 1000

_FIX = "take awake: always from those that may wait for a request, or use smaller ones: the first that fit are kept awake"


@dataclass(frozen=True, slots=True)
class _Want:
    """A model, the bytes that it takes on each device of a set, and the sets of which it wants one."""

    model: ModelName
    need_bytes: int
    sets: tuple[tuple[DeviceId, ...], ...]

    @property
    def devices(self) -> frozenset[DeviceId]:
        return frozenset(device for devices in self.sets for device in devices)


def crowds(state: State) -> list[Reason]:
    """A reason for each group of models that are configured ``awake: always`` and can never all be awake."""
    always = [name for name, spec in state.models.items() if spec.enabled and spec.always_awake]
    wants = [want for name in always if (want := _want(state, name)) is not None]
    return [_explain(state, crowd) for group in _groups(wants) for crowd in _crowds_in(state, group)]


def _want(state: State, model: ModelName) -> _Want | None:
    """None: it has no device, which it is told by itself, or not all of its devices are known."""
    goal = start_target(state, model)
    if not goal.sets or len(goal.sets) >= MOST_GANGS or any(state.devices[d].capacity_bytes == 0 for s in goal.sets for d in s):
        return None
    return _Want(model, min(goal.need_bytes, state.facts_of(model).footprint.awake_bytes), goal.sets)


def _groups(wants: Sequence[_Want]) -> list[list[_Want]]:
    """Those that may meet on a device, directly or by way of others."""
    groups: list[list[_Want]] = []
    for want in wants:
        met = [group for group in groups if any(not want.devices.isdisjoint(other.devices) for other in group)]
        groups = [group for group in groups if group not in met] + [[*(other for group in met for other in group), want]]
    return groups


def _crowds_in(state: State, group: list[_Want]) -> Iterator[list[_Want]]:
    """Those who are too many together, without anybody in whose absence they would be too many as well."""
    while not _may_fit(state, group):
        crowd = group
        for want in reversed(group):
            rest = [other for other in crowd if other is not want]
            crowd = crowd if _may_fit(state, rest) else rest
        yield crowd
        group = [want for want in group if want not in crowd]


def _may_fit(state: State, group: Sequence[_Want]) -> bool:
    """Whether there is a seat for each of them at the same time; True as well when that would take too long to find out."""
    search = _Search(state, sorted(group, key=lambda want: (-want.need_bytes * len(want.sets[0]), want.model)))
    return search.seats_from(0, {device: state.devices[device].usable_bytes for want in group for device in want.devices})


class _Search:
    """Seats one after the other, the largest first; what led to nothing is not tried again with like devices changed about."""

    def __init__(self, state: State, wants: Sequence[_Want]) -> None:
        self._state = state
        self._wants = wants
        self._left = MOST_STEPS
        self._in_vain: set[tuple[int, tuple[tuple[str, int], ...]]] = set()
        spans = any(len(devices) > 1 for want in wants for devices in want.sets)
        devices = {device for want in wants for device in want.devices}
        self._like = {d: d if spans else self._guests(d) for d in devices}

    def _guests(self, device: DeviceId) -> str:
        """Devices with equal room are alike when the same models may sit there, in the same number."""
        return f"{[device in want.devices for want in self._wants]} {self._state.devices[device].max_processes}"

    def seats_from(self, at: int, room: Mapping[DeviceId, int]) -> bool:
        """Whether all from ``at`` on find a seat in ``room`` (bytes per device)."""
        if at == len(self._wants):
            return True
        key = (at, tuple(sorted((self._like[device], size) for device, size in room.items())))
        if key in self._in_vain:
            return False
        self._left -= 1
        if self._left < 0:
            return True
        want = self._wants[at]
        for devices in want.sets:
            if any(want.need_bytes > min(room[d], most_bytes(self._state.devices[d])) for d in devices):
                continue
            if self.seats_from(at + 1, {**room, **{d: self._after(d, room[d] - want.need_bytes) for d in devices}}):
                return True
        self._in_vain.add(key)
        return False

    def _after(self, device: DeviceId, room: int) -> int:
        return 0 if self._state.devices[device].max_processes == 1 else room


def _explain(state: State, group: Sequence[_Want]) -> Reason:
    names = [want.model for want in group]
    devices = sorted({device for want in group for device in want.devices}, key=list(state.devices).index)
    sizes = ", ".join(f"{want.model} takes {human_bytes(want.need_bytes)}{_remark(state, want)}" for want in group)
    room = ", ".join(f"{device} has {human_bytes(state.devices[device].usable_bytes)}" for device in devices)
    if len(names) == 1:
        return Reason(Code.DOES_NOT_FIT, f"{names[0]} is configured awake: always and can never be: {sizes}; {room}", _FIX)
    who = f"{', '.join(names[:-1])} and {names[-1]}"
    return Reason(Code.DOES_NOT_FIT, f"{who} are configured awake: always and can never be so together: {sizes}; {room}", _FIX)


def _remark(state: State, want: _Want) -> str:
    count, source = len(want.sets[0]), state.facts_of(want.model).footprint.source
    each = f" on each of {count}" if count > 1 else ""
    return each + ("" if source is Source.MEASURED else f" ({source.value})")
