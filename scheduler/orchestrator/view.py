"""The reducer's state as the planner sees it."""

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.device import DeviceInfo, DeviceSample, Health
from scheduler.domain.ids import DeviceId, ModelName, instance_id
from scheduler.domain.instance import GOAL_STOPPED, GROWING_PHASES, SHRINKING_PHASES, Instance, Phase, goal_asleep
from scheduler.domain.learned import GROWTH
from scheduler.domain.model import ModelClass, ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_seconds
from scheduler.orchestrator.state import State
from scheduler.planner.feasible import most_bytes
from scheduler.planner.inputs import Availability, DeviceView, Exit, HostView, Picture, Seat, Target
from scheduler.planner.turns import latest_gate_s, turn_length

#: What a second of waiting is worth by class; the ratios matter, not the numbers.
WEIGHT = {ModelClass.INTERACTIVE: 1.0, ModelClass.STANDARD: 0.5, ModelClass.BATCH: 0.1}
#: Recency of use as the chance to be asked again soon: 1 / (1 + idle / 3 min), scheduling.md section 5.
RECENCY_S = 180.0


def picture(state: State, beneficiary: ModelName | None = None) -> Picture:
    """Devices, seats and who may leave for ``beneficiary``."""
    return Picture(
        now_s=state.now_s,
        devices={d: _device(state, info) for d, info in state.devices.items()},
        seats=tuple(_seat(state, i, beneficiary) for i in state.instances.values() if i.claim.device_bytes or i.claim.host_bytes),
        host=HostView(limit_bytes=state.host_limit_bytes, claimed_bytes=state.host_claimed()),
        blocked_devices=state.owned_devices() | {d for i in state.instances.values() if restless(i) for d in i.devices},
    )


def target(state: State, model: ModelName) -> Target:
    """What it takes to bring ``model`` awake from where it is."""
    iid = instance_id(model)
    instance = state.instances.get(iid) or Instance(id=iid)
    footprint = state.facts_of(model).footprint
    if instance.phase is Phase.ASLEEP:
        sets: tuple[tuple[DeviceId, ...], ...] = () if lost_devices(state, instance) else (instance.devices,)
        need = max(footprint.seated_bytes(), max(instance.claim.device_bytes.values(), default=0))
    else:
        sets = device_sets(state, state.models[model])
        need = footprint.launch_bytes()
    need = _without_allowance(state, footprint, sets, need)
    return Target(instance=iid, model=model, sets=sets, need_bytes=need, own_claim=instance.claim, own_measured=state.measured_of(iid))


def _without_allowance(state: State, footprint: Footprint, sets: tuple[tuple[DeviceId, ...], ...], need: int) -> int:
    """Room for growth beyond what was measured yields where a device is too small for both: what ran there once fits again."""
    largest = max((min(most_bytes(state.devices[d]) for d in devices) for devices in sets), default=0)
    return max(largest, int(need / GROWTH)) if footprint.source is Source.MEASURED and need > largest else need


def lost_devices(state: State, instance: Instance) -> tuple[DeviceId, ...]:
    """Devices it sits on that this daemon does not know: they were removed or renamed between two daemons."""
    return tuple(d for d in instance.devices if d not in state.devices)


def device_sets(state: State, spec: ModelSpec) -> tuple[tuple[DeviceId, ...], ...]:
    """Device sets a model may be started on: kinds in order of preference, then the emptiest first."""
    kinds = (spec.devices.kind,) if spec.devices.kind else state.facts_of(spec.name).kinds
    allowed = [d for d in state.devices.values() if _allowed(d, spec, kinds)]
    allowed.sort(key=lambda d: (kinds.index(d.kind), -(d.usable_bytes - state.claimed_on(d.id)), d.index, d.id))
    return tuple((d.id,) for d in allowed)


def _allowed(device: DeviceInfo, spec: ModelSpec, kinds: tuple[str, ...]) -> bool:
    if device.kind not in kinds or device.capacity_bytes < spec.devices.min_memory_bytes:
        return False
    return not spec.devices.ids or device.id in spec.devices.ids


def _evidence(state: State, device: DeviceId) -> DeviceSample | None:
    """The last sample, if it is fresh and began after the last start or wake on the device was through."""
    sample = state.fresh_sample(device)
    ready = max((i.since_s for i in state.instances.values() if i.phase is Phase.AWAKE and device in i.devices), default=float("-inf"))
    return sample if sample is not None and sample.started_at_s > ready else None


def _device(state: State, info: DeviceInfo) -> DeviceView:
    sample = _evidence(state, info.id)
    return DeviceView(
        info=info,
        health=Health.OK if sample is not None else Health.STALE,
        free_bytes=None if sample is None else sample.free_bytes - info.reserved_bytes - info.headroom_bytes,
        foreign_bytes=state.samples[info.id].foreign_bytes if info.id in state.samples else 0,
    )


def _seat(state: State, instance: Instance, beneficiary: ModelName | None) -> Seat:
    availability, why, free_at = availability_of(state, instance, beneficiary)
    return Seat(
        instance=instance.id,
        model=instance.model,
        phase=instance.phase,
        devices=instance.devices,
        claim=instance.claim,
        availability=availability,
        exits=() if availability is Availability.LOCKED else exits_of(state, instance, availability),
        why=why,
        free_at_s=free_at,
        last_used_s=last_used(state, instance),
    )


def restless(instance: Instance) -> bool:
    """Whether it takes or gives back memory, or may be doing so: nobody else grows on its devices meanwhile (invariant I2)."""
    phase = instance.before if instance.phase is Phase.UNKNOWN else instance.phase
    return phase in GROWING_PHASES or phase in SHRINKING_PHASES


def grows_beside(state: State, instance: Instance) -> bool:
    """Whether somebody else takes memory on its devices, or may be doing so: what it gives back would mislead the other."""
    others = (i for i in state.instances.values() if i.id != instance.id and set(i.devices) & set(instance.devices))
    return any((i.before if i.phase is Phase.UNKNOWN else i.phase) in GROWING_PHASES for i in others)


def last_used(state: State, instance: Instance) -> float:
    """When it last served, or became what it is."""
    used = state.facts_of(instance.model).last_used_s
    return used if used is not None else instance.since_s


def availability_of(state: State, instance: Instance, beneficiary: ModelName | None) -> tuple[Availability, Reason | None, float | None]:
    """Whether an instance may be asked to leave now; if not, why, and when time alone may change that."""
    if instance.phase not in (Phase.AWAKE, Phase.ASLEEP):
        return Availability.LOCKED, Reason(Code.WAITING_MOVE, f"it is {instance.phase.value.replace('_', ' ')}"), None
    if state.owned_devices() & set(instance.devices):
        return Availability.LOCKED, Reason(Code.WAITING_MOVE, "its device is changing hands"), None
    if grows_beside(state, instance):
        return Availability.LOCKED, Reason(Code.WAITING_MOVE, "a start on its device is under way"), None
    if instance.phase is Phase.ASLEEP:
        return Availability.IDLE, None, None
    facts = state.facts_of(instance.model)
    waiting = state.holds_of(instance.model)
    if not state.busy(instance.id) and not waiting:
        if facts.turn_kept_until_s > state.now_s and instance.model != beneficiary:
            return Availability.LOCKED, Reason(Code.WAITING_TURN, "its turn is kept for a client that retries"), facts.turn_kept_until_s
        spec = state.models.get(instance.model)
        if beneficiary is None and spec is not None and spec.always_awake:
            return Availability.LOCKED, Reason(Code.ALWAYS, "it is configured awake: always"), None
        rested = max(last_used(state, instance), instance.since_s) + (spec.min_awake_s if spec is not None else 0.0)
        if beneficiary is None and state.now_s < rested:
            return Availability.LOCKED, Reason(Code.WAITING_TURN, "it was used a moment ago"), rested
        return Availability.IDLE, None, None
    if beneficiary is None:
        return Availability.LOCKED, Reason(Code.WAITING_TURN, "it is serving"), None
    if any(h.arrived_s <= instance.since_s for h in waiting) and not (
        state.live_of(instance.id).slow or state.live_of(instance.id).refused
    ):
        return Availability.LOCKED, Reason(Code.WAITING_TURN, "it serves the requests that woke it first"), None
    ends = turn_end(state, instance, beneficiary)
    if state.now_s >= ends:
        return Availability.DRAIN, None, None
    left = human_seconds(ends - state.now_s)
    return Availability.LOCKED, Reason(Code.WAITING_TURN, f"it is serving, at most {left} until its turn ends"), ends


def turn_end(state: State, busy: Instance, beneficiary: ModelName) -> float:
    """When a busy instance must be gated in favour of ``beneficiary`` (monotonic seconds)."""
    waiting = state.holds_of(beneficiary)
    switch = switch_seconds(state, busy, beneficiary)
    contenders = {busy.model, beneficiary} | {h.model for h in state.holds.values()}
    patience = min((h.deadline_s - h.arrived_s for h in waiting), default=float("inf"))
    spec = state.models.get(busy.model)
    min_awake = spec.min_awake_s if spec is not None else 0.0
    turn = turn_length(len(contenders), switch, patience, state.policy.turn_factor, min_awake)
    gate_by = latest_gate_s(waiting, switch, state.facts_of(busy.model).service_s)
    return min(busy.since_s + turn.length_s, gate_by)


def switch_seconds(state: State, leaving: Instance, entering: ModelName) -> float:
    """Seconds to put one away and bring the other awake."""
    levels = state.facts_of(leaving.model).usable_levels()
    out = state.facts_of(leaving.model).footprint.leave_seconds(levels[0] if levels else None)
    return out + enter_seconds(state, entering)


def enter_seconds(state: State, model: ModelName) -> float:
    """Seconds to bring a model awake from where it is."""
    footprint = state.facts_of(model).footprint
    instance = state.instances.get(instance_id(model))
    if instance is not None and instance.phase is Phase.AWAKE:
        return 0.0
    if instance is not None and instance.level is not None:
        return footprint.wake_seconds(instance.level)
    return footprint.start_seconds()


def exits_of(state: State, instance: Instance, availability: Availability) -> tuple[Exit, ...]:
    """The ways an instance can leave, each with what it gives back and what it costs."""
    footprint = state.facts_of(instance.model).footprint
    spec = state.models.get(instance.model)
    weight = WEIGHT[spec.model_class] if spec is not None else WEIGHT[ModelClass.BATCH]
    idle = max(0.0, state.now_s - last_used(state, instance))
    wanted = state.wanted(instance.model) or availability is Availability.DRAIN
    chance = 1.0 if wanted else 1.0 / (1.0 + idle / RECENCY_S)
    drain = state.facts_of(instance.model).service_s if availability is Availability.DRAIN else 0.0
    measured = state.measured_of(instance.id)

    def regret(return_s: float, leave_s: float) -> float:
        return chance * return_s * weight + 0.02 * leave_s + drain

    levels = state.facts_of(instance.model).usable_levels() if instance.phase is Phase.AWAKE else ()
    asleep = [_sleep_exit(state, instance, footprint, n, measured, regret(footprint.wake_seconds(n), 3.0)) for n in levels]
    gone = regret(footprint.start_seconds(), footprint.leave_seconds(None))
    return (*asleep, _stop_exit(instance, measured, gone))


def _stop_exit(instance: Instance, measured: dict[DeviceId, int], regret: float) -> Exit:
    return Exit(
        goal=GOAL_STOPPED,
        claim_freed=dict(instance.claim.device_bytes),
        measured_freed=measured,
        host_delta_bytes=-instance.claim.host_bytes,
        regret=regret,
    )


def _sleep_exit(state: State, instance: Instance, footprint: Footprint, level: int, measured: dict[DeviceId, int], regret: float) -> Exit:
    residue = footprint.residue(level)
    on_host = all(state.devices[d].host_memory for d in instance.devices if d in state.devices)
    host = 0 if on_host else max(0, footprint.host_copy(level) - instance.claim.host_bytes)
    return Exit(
        goal=goal_asleep(level),
        claim_freed={d: max(0, b - residue) for d, b in instance.claim.device_bytes.items()},
        measured_freed={d: max(0, b - residue) for d, b in measured.items()},
        host_delta_bytes=host,
        regret=regret,
    )
