"""The named invariants of docs/architecture.md, as far as one daemon's memory can show them. Pure; every check returns sentences.

Used after every event in tests, and at debug level in production. I5 (processes have rows) and I7 (same input, same plan) are
not visible here: they are checked where the processes and the planner are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.domain.claims import Claim
from scheduler.domain.errors import InvariantViolated
from scheduler.domain.ids import ACTION_CAUSE, ActionId, DeviceId, HoldId, InstanceId, holder_of
from scheduler.domain.instance import (
    EMPTY_PHASES,
    GROWING_PHASES,
    SHRINKING_PHASES,
    Drained,
    DrainIntended,
    Forced,
    Instance,
    Phase,
    StopIntended,
)
from scheduler.domain.plan import Move
from scheduler.domain.reasons import Code
from scheduler.orchestrator.effects import Effect, FinishAction, GrantLease, Journal, Launch, RefuseHold, Wake
from scheduler.orchestrator.events import Happening, HoldCancelled, LeaseRequested
from scheduler.orchestrator.reducer import next_deadline
from scheduler.orchestrator.state import State

#: Phases that must end by themselves. Draining is not among them: answers are never cut for others.
_BOUNDED = frozenset({Phase.LAUNCHING, Phase.FALLING_ASLEEP, Phase.WAKING, Phase.STOPPING, Phase.UNKNOWN})
#: Ended holds that a second end is noticed of; a daemon at debug level may run for weeks.
_REMEMBERED_HOLDS = 10_000
_MOVING = GROWING_PHASES | SHRINKING_PHASES


@dataclass(frozen=True, slots=True)
class Before:
    """What a step is compared with: instances and forced moves as they were."""

    instances: Mapping[InstanceId, Instance]
    moves: tuple[Move, ...]

    @classmethod
    def of(cls, state: State) -> "Before":
        """A picture of ``state`` that later steps do not change."""
        return cls(dict(state.instances), tuple(state.moves.values()))


# --- the state by itself ----------------------------------------------------------------------------------------


def check(state: State) -> list[str]:
    """What is wrong with ``state`` as it stands between two events; empty = nothing."""
    found = [sentence for instance in state.instances.values() for sentence in _check_instance(state, instance)]
    found += _check_leases(state)
    found += _check_moves(state)
    found += [f"the wish for {iid} has no instance" for iid in state.wishes if iid not in state.instances]
    found += [f"hold {hold.id} is filed under {key}" for key, hold in state.holds.items() if hold.id != key]
    found += _check_times(state)
    return found


def _check_times(state: State) -> Iterable[str]:
    """Nothing that is due may be left undone: no alarm clock would ring for it again."""
    now = state.now_s
    yield from (
        f"hold {hold.id} for {hold.model} is {now - hold.deadline_s:g} s over its deadline"
        for hold in state.holds.values()
        if hold.deadline_s <= now
    )
    yield from (
        f"{i.id} ({i.phase}) is over its deadline {i.deadline_s:g}"
        for i in state.instances.values()
        if i.deadline_s is not None and i.deadline_s <= now
    )
    due = next_deadline(state)
    if due is not None and due <= now:
        yield f"the next deadline {due:g} is not after now {now:g}: the loop would spin"


def _check_instance(state: State, instance: Instance) -> list[str]:
    who = f"{instance.id} ({instance.phase})"
    found = []
    if instance.phase in EMPTY_PHASES:
        if instance.claim != Claim() or instance.launch is not None or instance.devices:
            found.append(f"{who} holds a claim, a launch or devices without a process")
    else:
        if instance.launch is None or not instance.devices:
            found.append(f"{who} has no launch or no devices")
        if set(instance.claim.device_bytes) != set(instance.devices):
            found.append(f"{who} claims on {sorted(instance.claim.device_bytes)} but sits on {sorted(instance.devices)}")
        found += _check_measured(state, instance, who)
    if (instance.phase in _BOUNDED) and instance.deadline_s is None:
        found.append(f"{who} has no deadline")
    if instance.phase not in _BOUNDED and instance.phase is not Phase.DRAINING and instance.deadline_s is not None:
        found.append(f"{who} is stable but has a deadline")
    if (instance.phase is Phase.BACKOFF) != (instance.retry_at_s is not None):
        found.append(f"{who} and its retry time {instance.retry_at_s} contradict each other")
    if instance.phase in (Phase.ASLEEP, Phase.WAKING) and instance.level is None:
        found.append(f"{who} has no sleep level")
    return found


def _check_measured(state: State, instance: Instance, who: str) -> Iterable[str]:
    """Measured above claim raises the claim at once."""
    for device, measured in state.measured_of(instance.id).items():
        if device in instance.devices and measured > instance.claim.on(device) and _seen_since(state, instance, device):
            yield f"I1: {who} claims {instance.claim.on(device)} bytes on {device} and holds {measured}"


def _seen_since(state: State, instance: Instance, device: DeviceId) -> bool:
    sample = state.samples.get(device)
    return sample is not None and sample.started_at_s >= instance.since_s


def _check_leases(state: State) -> list[str]:
    held = Counter(lease for live in state.live.values() for lease in live.leases)
    found = [f"lease {lease} is held {count} times" for lease, count in held.items() if count > 1]
    if set(held) != set(state.leases):
        found.append(f"leases differ: on instances {sorted(held)}, known {sorted(state.leases)}")
    for lease in state.leases.values():
        instance = state.instances.get(lease.instance)
        if instance is None or not instance.has_process:
            found.append(f"lease {lease.id} is on {lease.instance}, which has no process")
    return found


def _check_moves(state: State) -> list[str]:
    owners = Counter(device for move in state.moves.values() for device in move.devices)
    found = [f"I8: {device} is owned by {count} moves" for device, count in owners.items() if count > 1]
    for move in state.moves.values():
        for step in move.steps:
            instance = state.instances.get(step.instance)
            outside = set(step.devices) | set(instance.devices if instance is not None else ())
            if not outside <= move.devices:
                found.append(f"I8: move {move.id} touches {step.instance} on {sorted(outside - move.devices)} which it does not own")
    found += [
        f"{name} remembers the ended move {key}"
        for name in ("settle_until", "begun")
        for key in getattr(state, name)
        if key not in state.moves
    ]
    return found


# --- one step ---------------------------------------------------------------------------------------------------


def check_step(before: Before, event: Happening, effects: Sequence[Effect], state: State) -> list[str]:
    """What is wrong with the step from ``before`` to ``state``; empty = nothing."""
    grown = {e.instance for e in effects if isinstance(e, Launch | Wake)}
    found = [sentence for iid in grown for sentence in (*_check_room(state, iid), *_check_alone(state, iid))]
    found += _check_claims(before, state, grown)
    for effect in effects:
        if isinstance(effect, Journal):
            found += _check_transition(before, effect, state)
    return [f"{sentence} (after {type(event).__name__} at {event.at_s:g})" for sentence in found]


def _check_room(state: State, iid: InstanceId) -> Iterable[str]:
    """I1: an admitted grow leaves every device within its capacity, by the ledger and on fresh evidence."""
    for device in state.instances[iid].devices:
        if state.fresh_sample(device) is None:
            yield f"I1: {iid} grows on {device} without a fresh measurement"
            continue
        over = state.claimed_on(device) + state.foreign_on(device) - state.devices[device].usable_bytes
        if over > 0:
            yield f"I1: {iid} grows on {device} although {over} bytes are missing"


def _check_alone(state: State, iid: InstanceId) -> Iterable[str]:
    """I2: nobody else grows or shrinks on the devices of a grow that begins."""
    devices = set(state.instances[iid].devices)
    for other in state.instances.values():
        moving = other.phase in _MOVING or (other.phase is Phase.UNKNOWN and other.before in _MOVING)
        if other.id != iid and moving and devices & set(other.devices):
            yield f"I2: {iid} grows beside {other.id}, which is {other.phase}"


def _check_claims(before: Before, state: State, grown: set[InstanceId]) -> Iterable[str]:
    """I1: beside an admitted grow, a claim rises to what was measured, or into room that is there; never further."""
    for instance in state.instances.values():
        if instance.id in grown or instance.id not in before.instances:
            continue
        for device, claimed in instance.claim.device_bytes.items():
            if (
                claimed > _forced_claim(before, state, instance, device)
                and _by_choice(before, state, device) > state.devices[device].usable_bytes
            ):
                yield f"I1: the claim of {instance.id} on {device} rises to {claimed} without room and without a measurement"
    yield from _check_host(before, state)


def _check_host(before: Before, state: State) -> Iterable[str]:
    """I1 on host memory: a sleeper's copy is claimed only where there is room; what exceeds it already may only shrink."""
    total, limit = state.host_claimed(), state.host_limit_bytes
    if total <= limit:
        return
    for instance in state.instances.values():
        old = before.instances.get(instance.id)
        measured = 0 if state.host is None else state.host.own.get(holder_of(instance.id), 0)
        if old is not None and instance.claim.host_bytes > max(old.claim.host_bytes, measured):
            yield f"I1: {instance.id} claims {instance.claim.host_bytes} bytes of host memory, in all {total} of {limit}"


def _forced_claim(before: Before, state: State, instance: Instance, device: DeviceId) -> int:
    old = before.instances.get(instance.id)
    return max(old.claim.on(device) if old is not None else 0, state.measured_of(instance.id).get(device, 0))


def _by_choice(before: Before, state: State, device: DeviceId) -> int:
    """Bytes on a device without what this very step only raised because it was measured."""
    total = state.foreign_on(device)
    for instance in state.instances.values():
        old, claimed = before.instances.get(instance.id), instance.claim.on(device)
        measured = old is not None and old.claim.on(device) < claimed <= _forced_claim(before, state, instance, device)
        total += old.claim.on(device) if measured and old is not None else claimed
    return total


def _check_transition(before: Before, effect: Journal, state: State) -> Iterable[str]:
    line = effect.transition
    iid = line.instance
    if line.source is Phase.DRAINING and line.target in SHRINKING_PHASES:
        left = state.live_of(iid).leases
        if line.event == Drained.__name__ and left:
            yield f"I3: {iid} leaves its drain with {len(left)} leases"
        forced = any(move.force for move in (*before.moves, *state.moves.values()) if any(s.instance == iid for s in move.steps))
        wish = state.wishes.get(iid)
        if line.event == Forced.__name__ and not forced and (wish is None or not wish.force):
            yield f"I3: {iid} is forced, but nobody asked for it"
    if line.event == DrainIntended.__name__ and (line.reason.code is Code.NONE or not line.reason.text):
        yield f"I6: {iid} is drained without a reason"
    asked = line.event == StopIntended.__name__ and line.cause.startswith(ACTION_CAUSE)
    shrinking = line.target in SHRINKING_PHASES and (line.event == Drained.__name__ or asked)
    if shrinking and any(_grows_beside(other, effect.instance) for other in state.instances.values()):
        yield f"I2: {iid} shrinks beside a grow on {', '.join(effect.instance.devices)}"


def _grows_beside(other: Instance, shrinking: Instance) -> bool:
    return other.id != shrinking.id and other.phase in GROWING_PHASES and bool(set(other.devices) & set(shrinking.devices))


# --- every hold ends exactly once -------------------------------------------------------------------------------


@dataclass(slots=True)
class HoldLedger:
    """I4 over a whole run: tell it every step; ``open`` is what still waits."""

    open: set[HoldId] = field(default_factory=set)
    ended: dict[HoldId, str] = field(default_factory=dict)
    actions: dict[ActionId, HoldId] = field(default_factory=dict)

    def note(self, event: Happening, effects: Sequence[Effect], state: State) -> list[str]:
        """Take one step into the books; returns what contradicts them."""
        found: list[str] = []
        for hold in state.holds.values():
            if hold.action is not None and hold.id not in self.ended:
                self.open.add(hold.id)
                self.actions[hold.action] = hold.id
        if isinstance(event, LeaseRequested):
            if event.hold.id in self.open or event.hold.id in self.ended:
                found.append(f"I4: hold {event.hold.id} came twice")
            self.open.add(event.hold.id)
        if isinstance(event, HoldCancelled) and event.hold in self.open:
            found += self._end(event.hold, "cancelled")
        for effect in effects:
            match effect:
                case GrantLease():
                    found += self._end(effect.hold, "granted")
                case RefuseHold():
                    found += self._end(effect.hold, f"refused: {effect.error.code}")
                case FinishAction() if effect.action in self.actions:
                    found += self._end(self.actions.pop(effect.action), "finished")
        if self.open != set(state.holds):
            found.append(f"I4: holds differ: open {sorted(self.open)}, known {sorted(state.holds)}")
        return found

    def _end(self, hold: HoldId, how: str) -> list[str]:
        if hold not in self.open:
            return [f"I4: hold {hold} is {how} after it was {self.ended.get(hold, 'never seen')}"]
        self.open.discard(hold)
        self.ended[hold] = how
        if len(self.ended) > _REMEMBERED_HOLDS:
            del self.ended[next(iter(self.ended))]
        return []


# --- all of it, after every event -------------------------------------------------------------------------------


class Watch:
    """Runs every check on every step: feed it each pass's effects, then the event with the state after it."""

    def __init__(self, state: State) -> None:
        self.ledger = HoldLedger()
        self._before = Before.of(state)
        self._effects: list[Effect] = []

    def effects(self, effects: Sequence[Effect]) -> None:
        """The effects of the pass that ``observe`` is told about next."""
        self._effects += effects

    def observe(self, event: Happening, state: State) -> None:
        """Check the step. Raises InvariantViolated with every sentence that holds against it."""
        found = check(state) + check_step(self._before, event, self._effects, state) + self.ledger.note(event, self._effects, state)
        self._before, self._effects = Before.of(state), []
        if found:
            raise InvariantViolated("; ".join(found))
