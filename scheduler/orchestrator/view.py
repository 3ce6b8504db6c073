"""The reducer's state as the planner sees it."""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.device import DeviceInfo, DeviceSample, Health
from scheduler.domain.ids import DeviceId, InstanceId, ModelName, instance_id
from scheduler.domain.instance import EMPTY_PHASES, GOAL_STOPPED, GROWING_PHASES, SHRINKING_PHASES, Instance, Phase, goal_asleep
from scheduler.domain.learned import GROWTH
from scheduler.domain.model import ModelClass, ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_seconds
from scheduler.orchestrator.state import State
from scheduler.planner.feasible import fits_alone, most_bytes
from scheduler.planner.gangs import gangs, is_gang
from scheduler.planner.inputs import Availability, DeviceView, Exit, HostView, Picture, Seat, Target
from scheduler.planner.turns import gate_before, turn_length

#: What a second of waiting is worth by class; the ratios matter, not the numbers.
WEIGHT = {ModelClass.INTERACTIVE: 1.0, ModelClass.STANDARD: 0.5, ModelClass.BATCH: 0.1}
#: Recency of use as the chance to be asked again soon: 1 / (1 + idle / 3 min), scheduling.md section 5.
RECENCY_S = 180.0


def picture(state: State, beneficiary: ModelName | None = None) -> Picture:
    """Devices, seats and who may leave for ``beneficiary``."""
    return Scene(state).picture(beneficiary)


class Scene:
    """One moment of the state, as far as pictures of it for different beneficiaries have it in common.

    Many models may be wanted at once: what does not depend on which of them is looked at, is looked up once. Valid until the
    state changes.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.claimed = dict.fromkeys(state.devices, 0)  # bytes per device
        self._seated: list[Instance] = []
        self._owned = state.owned_devices()
        self._growing: dict[DeviceId, list[InstanceId]] = {}
        self._settled_s: dict[DeviceId, float] = {}
        self._shared: dict[InstanceId, Seat] = {}
        blocked = set(self._owned)
        for instance in state.instances.values():
            if instance.phase in EMPTY_PHASES:
                continue  # neither a claim nor a device
            if instance.claim.device_bytes or instance.claim.host_bytes:
                self._seated.append(instance)
            if restless(instance):
                blocked.update(instance.devices)
            for device, size in instance.claim.device_bytes.items():
                self.claimed[device] = self.claimed.get(device, 0) + size
            for device in instance.devices:
                if (instance.before if instance.phase is Phase.UNKNOWN else instance.phase) in GROWING_PHASES:
                    self._growing.setdefault(device, []).append(instance.id)
                if instance.phase is Phase.AWAKE or state.live_of(instance.id).wake_lacked_room:
                    self._settled_s[device] = max(instance.since_s, self._settled_s.get(device, instance.since_s))
        self._devices = {d: self._device(info) for d, info in state.devices.items()}
        self._planned = {d: replace(view, foreign_bytes=state.foreign_planned(d)) for d, view in self._devices.items()}
        self._host = HostView(limit_bytes=state.host_claimed() + state.host_room(), claimed_bytes=state.host_claimed())
        self._blocked = frozenset(blocked)

    def picture(self, beneficiary: ModelName | None) -> Picture:
        """What the planner sees when it decides for ``beneficiary``."""
        return Picture(
            now_s=self.state.now_s,
            devices=self._planned if beneficiary is None else self._devices,
            seats=tuple(self._seat(i, beneficiary) for i in self._seated),
            host=self._host,
            blocked_devices=self._blocked,
        )

    def likeness(self) -> tuple[object, ...]:
        """Two scenes with an equal likeness differ in nothing but time, the beneficiary's own demand, and ``services``.

        What only changes how much a victim is missed (when it was last used) is left out: it may change who leaves, not whether
        somebody can.
        """
        samples = tuple(sample.own for sample in self.state.samples.values())
        seats = tuple(self._seat_likeness(i) for i in self._seated)
        return (tuple(self._devices.values()), self._host, self._blocked, len(self.state.holds.models()), samples, seats)

    def _seat_likeness(self, instance: Instance) -> tuple[object, ...]:
        state, model = self.state, instance.model
        facts, live = state.facts_of(model), state.live_of(instance.id)
        waiting = model in state.holds.models()
        woken = waiting and state.demand(model).arrived_s <= instance.since_s
        doing = (state.busy(instance.id), waiting, woken, live.slow or live.refused, facts.turn_kept_until_s)
        return (instance, doing, facts.guess, facts.learned, facts.levels, state.models.get(model))

    def services(self) -> dict[ModelName, float]:
        """Seconds that a request takes on each model that is awake: they change with every answer."""
        return {i.model: self.state.facts_of(i.model).service_s for i in self._seated if i.phase is Phase.AWAKE}

    def _evidence(self, device: DeviceId) -> DeviceSample | None:
        """The last sample, if it is fresh and began after the last start or wake on the device was through, or failed for want of room."""
        sample = self.state.fresh_sample(device)
        return sample if sample is not None and sample.started_at_s > self._settled_s.get(device, float("-inf")) else None

    def _device(self, info: DeviceInfo) -> DeviceView:
        sample, last = self._evidence(info.id), self.state.samples.get(info.id)
        said = last.health if last is not None else Health.STALE
        return DeviceView(
            info=info,
            health=Health.STALE if sample is None and said is Health.OK else said,
            free_bytes=None if sample is None else sample.free_bytes - info.headroom_bytes,
            foreign_bytes=self.state.foreign_on(info.id),
            blocked=blocked(info, last),
        )

    def _seat(self, instance: Instance, beneficiary: ModelName | None) -> Seat:
        if beneficiary is None or instance.model == beneficiary or self._is_serving(instance):
            return self._make_seat(instance, beneficiary)
        seat = self._shared.get(instance.id)
        if seat is None:
            seat = self._shared[instance.id] = self._make_seat(instance, beneficiary)
        return seat

    def _is_serving(self, instance: Instance) -> bool:
        """Whether it depends on who asks if it may be asked to leave."""
        return instance.phase is Phase.AWAKE and (self.state.busy(instance.id) or instance.model in self.state.holds.models())

    def _make_seat(self, instance: Instance, beneficiary: ModelName | None) -> Seat:
        availability, why, free_at = self._availability(instance, beneficiary)
        return Seat(
            instance=instance.id,
            model=instance.model,
            phase=instance.phase,
            devices=instance.devices,
            claim=instance.claim,
            availability=availability,
            exits=() if availability is Availability.LOCKED else exits_of(self.state, instance, availability),
            why=why,
            free_at_s=free_at,
            last_used_s=last_used(self.state, instance),
        )

    def _availability(self, instance: Instance, beneficiary: ModelName | None) -> tuple[Availability, Reason | None, float | None]:
        """Whether an instance may be asked to leave now; if not, why, and when time alone may change that."""
        if instance.phase not in (Phase.AWAKE, Phase.ASLEEP):
            return Availability.LOCKED, Reason(Code.WAITING_MOVE, f"it is {instance.phase.value.replace('_', ' ')}"), None
        if not self._owned.isdisjoint(instance.devices):
            return Availability.LOCKED, Reason(Code.WAITING_MOVE, "its device is changing hands"), None
        if any(other != instance.id for device in instance.devices for other in self._growing.get(device, ())):
            return Availability.LOCKED, Reason(Code.WAITING_MOVE, "a start on its device is under way"), None
        if instance.phase is Phase.ASLEEP:
            return Availability.IDLE, None, None
        if self._is_serving(instance):
            return self._turn(instance, beneficiary)
        return self._rest(instance, beneficiary)

    def _rest(self, instance: Instance, beneficiary: ModelName | None) -> tuple[Availability, Reason | None, float | None]:
        """An awake instance that nobody uses or waits for."""
        state = self.state
        kept_until_s = state.facts_of(instance.model).turn_kept_until_s
        if kept_until_s > state.now_s and instance.model != beneficiary:
            return Availability.LOCKED, Reason(Code.WAITING_TURN, "its turn is kept for a client that retries"), kept_until_s
        spec = state.models.get(instance.model)
        if beneficiary is None and spec is not None and spec.always_awake:
            return Availability.LOCKED, Reason(Code.ALWAYS, "it is configured awake: always"), None
        rested = max(last_used(state, instance), instance.since_s) + (spec.min_awake_s if spec is not None else 0.0)
        if beneficiary is None and state.now_s < rested:
            return Availability.LOCKED, Reason(Code.WAITING_TURN, "it was used a moment ago"), rested
        return Availability.IDLE, None, None

    def _turn(self, instance: Instance, beneficiary: ModelName | None) -> tuple[Availability, Reason | None, float | None]:
        """An awake instance that is in use, or that somebody waits for."""
        state = self.state
        if beneficiary is None:
            return Availability.LOCKED, Reason(Code.WAITING_TURN, "it is serving"), None
        live = state.live_of(instance.id)
        if state.demand(instance.model).arrived_s <= instance.since_s and not (live.slow or live.refused):
            gate = _lock_end(state, instance, beneficiary)
            if state.now_s < gate:
                free_at = gate if isfinite(gate) else None
                return Availability.LOCKED, Reason(Code.WAITING_TURN, "it serves the requests that woke it first"), free_at
        ends = turn_end(state, instance, beneficiary)
        if state.now_s >= ends:
            return Availability.DRAIN, None, None
        left = human_seconds(ends - state.now_s)
        return Availability.LOCKED, Reason(Code.WAITING_TURN, f"it is serving, at most {left} until its turn ends"), ends


def blocked(info: DeviceInfo, sample: DeviceSample | None) -> str:
    """Why nothing may grow on a device, whoever leaves it; empty = it may."""
    if not info.allocatable:
        return f"{info.id} is no seat: {info.why_not}"
    if sample is not None and sample.health not in (Health.OK, Health.STALE):
        return f"{info.id} is {sample.health.value.replace('_', ' ')}" + (f": {sample.trouble}" if sample.trouble else "")
    if info.max_processes is not None and sample is not None and sample.strangers:
        who = ", ".join(f"{s.name or 'process'} {s.pid}" for s in sample.strangers[:3])
        return f"{info.id} takes one process at a time (EXCLUSIVE_PROCESS), and {who} is there"
    return ""


def target(state: State, model: ModelName, claimed: Mapping[DeviceId, int] | None = None) -> Target:
    """What it takes to bring ``model`` awake from where it is; ``claimed`` bytes per device where they are summed up already."""
    instance = state.instances.get(instance_id(model))
    if instance is None or instance.phase is not Phase.ASLEEP:
        return start_target(state, model, claimed)
    footprint = state.facts_of(model).footprint
    sets = () if lost_devices(state, instance) else (instance.devices,)
    return _target(state, model, sets, max(footprint.seated_bytes(), max(instance.claim.device_bytes.values(), default=0)))


def start_target(state: State, model: ModelName, claimed: Mapping[DeviceId, int] | None = None) -> Target:
    """What it takes to start ``model``, wherever it may sit."""
    return _target(state, model, device_sets(state, state.models[model], claimed), state.facts_of(model).footprint.launch_bytes())


def _target(state: State, model: ModelName, sets: tuple[tuple[DeviceId, ...], ...], need: int) -> Target:
    instance = state.instances.get(instance_id(model)) or Instance(id=instance_id(model))
    need = _what_fits(state, state.facts_of(model).footprint, sets, need, starts=instance.phase is not Phase.ASLEEP)
    own = state.measured_of(instance.id)
    return Target(instance=instance.id, model=model, sets=sets, need_bytes=need, own_claim=instance.claim, own_measured=own)


def fits_elsewhere(state: State, model: ModelName) -> bool:
    """Whether a sleeper can never wake where it sits, not even alone there, but could be started on another device."""
    instance = state.instances.get(instance_id(model))
    return (
        instance is not None
        and instance.phase is Phase.ASLEEP
        and not _ever_fits(state, target(state, model))
        and _ever_fits(state, start_target(state, model))
    )


def _ever_fits(state: State, goal: Target) -> bool:
    return any(fits_alone(goal.need_bytes, (state.devices[d] for d in devices)) for devices in goal.sets)


def _what_fits(state: State, footprint: Footprint, sets: tuple[tuple[DeviceId, ...], ...], need: int, *, starts: bool) -> int:
    """Where even an empty device is too small: less KV cache at a start, down to one request of full length, and less to spare for
    what an estimate may have missed: whoever starts there has the device to itself.

    Room for growth beyond what was measured yields before that: what ran there once fits again, also when it grew into the margin.
    """
    largest = _largest(state, sets)
    if need > largest and footprint.source is Source.MEASURED:
        measured = int(need / GROWTH)
        ran_there = any(all(measured <= state.devices[d].usable_bytes for d in devices) for devices in sets)
        need = largest if ran_there else max(largest, measured)
    spare = footprint.kv_bytes - footprint.kv_min_bytes + footprint.caution_bytes() if starts else 0
    return max(largest, need - spare) if need > largest else need


def largest_seat(state: State, model: ModelName) -> int:
    """The most bytes per device that a start of ``model`` may need, with nobody else of ours there."""
    return _largest(state, device_sets(state, state.models[model]))


def _largest(state: State, sets: tuple[tuple[DeviceId, ...], ...]) -> int:
    return max((min(most_bytes(state.devices[d]) for d in devices) for devices in sets), default=0)


def kv_bytes(state: State, model: ModelName, need: int) -> int | None:
    """KV cache per device of a start that may take ``need`` bytes there; None = the engine sizes it itself."""
    footprint = state.facts_of(model).footprint
    if footprint.kv_bytes <= 0:
        return None
    return max(footprint.kv_min_bytes, min(footprint.kv_bytes, footprint.kv_bytes - (footprint.launch_bytes() - need)))


def residue_of(state: State, instance: Instance, level: int) -> int:
    """Device bytes that a sleeper keeps. Where device and host share their memory, level 1 only moves weights within it."""
    footprint = state.facts_of(instance.model).footprint
    known = level in state.facts_of(instance.model).learned.residue_bytes
    if level == 1 and footprint.kv_bytes and not known and on_host(state, instance):
        return max(footprint.residue(level), footprint.awake_bytes - footprint.kv_bytes)
    return footprint.residue(level)


def on_host(state: State, instance: Instance) -> bool:
    """Whether its devices' memory is the host's own: no copy is made there when it sleeps."""
    return all(state.devices[d].host_memory for d in instance.devices if d in state.devices)


def lost_devices(state: State, instance: Instance) -> tuple[DeviceId, ...]:
    """Devices it sits on and may not stay on: unknown to this daemon (removed, renamed, gone), no seat any more, or faulty."""
    return tuple(d for d in instance.devices if d not in state.devices or _is_draining(state, d))


def _is_draining(state: State, device: DeviceId) -> bool:
    sample = state.samples.get(device)
    return not state.devices[device].allocatable or (sample is not None and sample.health is Health.DRAINING)


def device_sets(state: State, spec: ModelSpec, claimed: Mapping[DeviceId, int] | None = None) -> tuple[tuple[DeviceId, ...], ...]:
    """Device sets a model may be started on: kinds in order of preference, then the emptiest first.

    More than one device are a gang: of equal devices, within the tightest link island that has enough of them.
    """
    kinds, allowed = _kinds(state, spec), _allowed_devices(state, spec)
    held = claimed if claimed is not None else {d.id: state.claimed_on(d.id) for d in allowed}
    if spec.devices.count > 1:  # more sets than are looked at: those that are not on the move come first
        owned = state.owned_devices()
        allowed.sort(key=lambda d: (kinds.index(d.kind), d.id in owned, held[d.id] - d.usable_bytes, d.index, d.id))
        return gangs(allowed, spec.devices.count)
    allowed.sort(key=lambda d: (kinds.index(d.kind), held[d.id] - d.usable_bytes, d.index, d.id))
    return tuple((d.id,) for d in allowed)


def may_sit(state: State, spec: ModelSpec, devices: tuple[DeviceId, ...]) -> bool:
    """Whether a model may be started on this very set."""
    allowed = _allowed_devices(state, spec)
    if spec.devices.count > 1:
        return is_gang(devices, allowed, spec.devices.count)
    return len(devices) == 1 and devices[0] in {d.id for d in allowed}


def _kinds(state: State, spec: ModelSpec) -> tuple[str, ...]:
    return (spec.devices.kind,) if spec.devices.kind else state.facts_of(spec.name).kinds


def _allowed_devices(state: State, spec: ModelSpec) -> list[DeviceInfo]:
    kinds = _kinds(state, spec)
    return [d for d in state.devices.values() if _allowed(d, spec, kinds)]


def _allowed(device: DeviceInfo, spec: ModelSpec, kinds: tuple[str, ...]) -> bool:
    if not device.allocatable:
        return False
    if device.kind not in kinds or device.capacity_bytes < spec.devices.min_memory_bytes:
        return False
    return not spec.devices.ids or device.id in spec.devices.ids


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


def turn_end(state: State, busy: Instance, beneficiary: ModelName) -> float:
    """When a busy instance must be gated in favour of ``beneficiary`` (monotonic seconds)."""
    wants = state.demand(beneficiary)
    switch = switch_seconds(state, busy, beneficiary)
    waiting = state.holds.models()
    contenders = len(waiting) + sum(model not in waiting for model in {busy.model, beneficiary})
    spec = state.models.get(busy.model)
    min_awake = spec.min_awake_s if spec is not None else 0.0
    turn = turn_length(contenders, switch, wants.patience_s, state.policy.turn_factor, min_awake)
    gate_by = gate_before(wants.deadline_s, switch, state.facts_of(busy.model).service_s)
    return min(busy.since_s + turn.length_s, gate_by)


def _lock_end(state: State, woken: Instance, beneficiary: ModelName) -> float:
    """Until when an instance may serve those who woke it, who may be many behind a limit: nobody else is postponed past his max_wait.

    Who was too late already when it became awake does not count: gating it at once would help nobody (monotonic seconds).
    """
    switch = switch_seconds(state, woken, beneficiary)
    service = state.facts_of(woken.model).service_s
    gates = (gate_before(hold.deadline_s, switch, service) for hold in state.holds.of(beneficiary).values())
    return min((gate for gate in gates if gate > woken.since_s), default=float("inf"))


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


def drain_seconds(state: State, instance: Instance) -> float:
    """Seconds until a busy instance is through with what it serves: as a request takes on the mean, or as long again as the oldest ran."""
    leases = state.live_of(instance.id).leases
    ran_s = state.now_s - state.leases[min(leases)].granted_s if leases else 0.0
    return max(state.facts_of(instance.model).service_s, ran_s)


def exits_of(state: State, instance: Instance, availability: Availability) -> tuple[Exit, ...]:
    """The ways an instance can leave, each with what it gives back and what it costs."""
    footprint = state.facts_of(instance.model).footprint
    spec = state.models.get(instance.model)
    weight = WEIGHT[spec.model_class] if spec is not None else WEIGHT[ModelClass.BATCH]
    idle = max(0.0, state.now_s - last_used(state, instance))
    wanted = state.wanted(instance.model) or availability is Availability.DRAIN
    chance = 1.0 if wanted else 1.0 / (1.0 + idle / RECENCY_S)
    drain = drain_seconds(state, instance) if availability is Availability.DRAIN else 0.0
    measured = state.measured_of(instance.id)

    def regret(return_s: float, leave_s: float) -> float:
        return chance * return_s * weight + 0.02 * leave_s + drain

    levels = state.facts_of(instance.model).usable_levels() if instance.phase is Phase.AWAKE else ()
    if any(state.devices[d].max_processes == 1 for d in instance.devices if d in state.devices):
        levels = ()  # a sleeper keeps its context, which is all that such a device has
    asleep = [_sleep_exit(state, instance, footprint, n, measured, regret(footprint.wake_seconds(n), 3.0)) for n in levels]
    if state.facts_of(instance.model).attached:
        return tuple(asleep)  # not ours to end
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
    residue = residue_of(state, instance, level)
    host = 0 if on_host(state, instance) else max(0, footprint.host_copy(level) - instance.claim.host_bytes)
    return Exit(
        goal=goal_asleep(level),
        claim_freed={d: max(0, b - residue) for d, b in instance.claim.device_bytes.items()},
        measured_freed={d: max(0, b - residue) for d, b in measured.items()},
        host_delta_bytes=host,
        regret=regret,
    )
