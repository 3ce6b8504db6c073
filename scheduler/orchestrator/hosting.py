"""Host memory as a ledger: copies of sleepers, who may make one, and what they were measured to take."""

from collections.abc import Sequence
from dataclasses import replace

from scheduler.domain.device import HostSample
from scheduler.domain.ids import DeviceId, ModelName, holder_of
from scheduler.domain.instance import GOAL_STOPPED, Goal, Instance, Phase, goal_asleep
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.measuring import teach
from scheduler.orchestrator.state import HOST_MARGIN_BYTES, State
from scheduler.orchestrator.view import on_host
from scheduler.planner.evict import Leave

#: What an operator can do where copies find no room.
FIX = "stop a sleeper that keeps its copy there, or raise host.sleep_memory"


_BLIND_FIX = "see `hotseat logs` for what keeps the daemon from reading /proc"


def fix_of(state: State) -> str:
    """What helps where copies find no room."""
    return _BLIND_FIX if state.host_is_stale() else FIX


def host_bytes_asleep(state: State, instance: Instance, level: int | None) -> int:
    """Host bytes it claims once it left for ``level``: a copy stays until the process ends; on the host's own memory none is made."""
    if level is None or on_host(state, instance):
        return instance.claim.host_bytes
    return max(instance.claim.host_bytes, state.facts_of(instance.model).footprint.host_copy(level))


def has_host_room(state: State, instance: Instance, host_bytes: int) -> bool:
    """Whether it may claim so much host memory: by the ledger, and by what the machine has left."""
    more = host_bytes - instance.claim.host_bytes
    return more <= 0 or more <= state.host_room()


def deepest_goal(state: State, instance: Instance, wanted: int | None) -> tuple[Goal, Reason]:
    """Where an instance goes for whose copy the host has no room: to a deeper level that needs less, else it is stopped."""
    need = host_bytes_asleep(state, instance, wanted)
    text = _no_room(state, instance.model, wanted, need, need - instance.claim.host_bytes, state.host_claimed())
    for level in state.facts_of(instance.model).usable_levels():
        if level > (wanted or 0) and has_host_room(state, instance, host_bytes_asleep(state, instance, level)):
            return goal_asleep(level), Reason(Code.SLEEP_FAILED, f"{text}: level {level} instead", fix_of(state))
    return GOAL_STOPPED, Reason(Code.SLEEP_FAILED, f"{text}: {instead_of_sleep(state, instance.model)}", fix_of(state))


def instead_of_sleep(state: State, model: ModelName) -> str:
    """What becomes of an engine that cannot sleep, in words."""
    return "let go, since its process is not hotseat's to end" if state.facts_of(model).attached else "stopped instead"


def why_no_sleep(state: State, instance: Instance, level: int) -> Reason | None:
    """Why an attached engine, which can go nowhere else, is not asked to sleep: the host has no room for its copy at any level."""
    if not state.facts_of(instance.model).attached or has_host_room(state, instance, host_bytes_asleep(state, instance, level)):
        return None
    goal, _ = deepest_goal(state, instance, level)
    need = host_bytes_asleep(state, instance, level)
    text = _no_room(state, instance.model, level, need, need - instance.claim.host_bytes, state.host_claimed())
    return Reason(Code.SLEEP_FAILED, text, fix_of(state)) if goal == GOAL_STOPPED else None


def why_deeper(state: State, leaves: Sequence[Leave]) -> tuple[str, ...]:
    """A sentence for each victim that goes deeper than it would, had the host room for every copy."""
    found = []
    for leave in leaves:
        others = [other for other in leaves if other is not leave]
        taken = sum(other.exit.host_delta_bytes for other in others)
        short = [
            way for way in leave.seat.exits if way.regret < leave.exit.regret and way.host_delta_bytes > max(0, state.host_room() - taken)
        ]
        wanting = [other for other in others if other.exit.host_delta_bytes > 0]
        if short:
            more = short[0].host_delta_bytes
            need = leave.seat.claim.host_bytes + more
            found.append(_no_room(state, leave.seat.model, short[0].goal.level, need, more, state.host_claimed() + taken))
        elif wanting and leave.exit.host_delta_bytes < 0 and taken > state.host_room():
            names = ", ".join(other.seat.model for other in wanting)
            copies = f"{human_bytes(-leave.exit.host_delta_bytes)} of host memory for {names}"
            need = sum(other.exit.host_delta_bytes for other in wanting)
            limit = f"{human_bytes(state.host_claimed())} of {human_bytes(state.host_limit_bytes)} are held"
            found.append(f"{leave.seat.model} gives back {copies}, whose copy needs {human_bytes(need)}: {limit}")
    return tuple(found)


def _no_room(state: State, model: ModelName, level: int | None, need: int, more: int, held: int) -> str:
    """Bytes that its copy needs in all, how many of them are new, and what others hold."""
    limit = state.host_limit_bytes
    text = f"{model} cannot sleep at level {level}: its copy needs {human_bytes(need)} of host memory"
    text = f"{text}, {human_bytes(held)} of {human_bytes(limit)} are held"
    if state.host is not None and state.host_is_stale():
        text = f"{text}, and host memory has not been measured for {human_seconds(state.now_s - state.host.started_at_s)}"
    elif state.host is not None and held + more <= limit:
        text = f"{text}, and only {human_bytes(state.host.available_bytes)} are available on the machine"
    return text


def loads_before(state: State, instance: Instance, devices: tuple[DeviceId, ...]) -> Reason | None:
    """Why a cold start has to wait for others; None = it need not.

    Weights pass through host memory on their way to a device. Starts side by side are as fast as one where there is room for
    all that is read; where there is not, the kernel ends one of them, or another program (vllm#16916). One alone always may.
    """
    if state.host is None or all(state.devices[d].host_memory for d in devices if d in state.devices):
        return None
    loading = [i for i in state.instances.values() if i.phase is Phase.LAUNCHING and i.id != instance.id and not on_host(state, i)]
    if not loading:
        return None
    need = sum(state.facts_of(i.model).footprint.weights_bytes * len(i.devices) for i in loading)
    need += state.facts_of(instance.model).footprint.weights_bytes * len(devices)
    if need <= state.host.available_bytes - HOST_MARGIN_BYTES:
        return None
    names = ", ".join(sorted(i.model for i in loading))
    free = human_bytes(state.host.available_bytes)
    return Reason(Code.WAITING_START, f"loads after {names}: {human_bytes(need)} of weights together, {free} of host memory are available")


def note_host(ctx: Context, sample: HostSample) -> None:
    """Take in one measurement of host memory: the state before a sleep, and the copy that it made."""
    ctx.state.host = sample
    for instance in list(ctx.state.instances.values()):
        held = sample.own.get(holder_of(instance.id))
        if held is None or on_host(ctx.state, instance) or sample.started_at_s < instance.since_s:
            continue
        if instance.phase is Phase.AWAKE:
            ctx.state.live_of(instance.id).host_awake_bytes = held
        elif instance.phase is Phase.ASLEEP:
            _note_copy(ctx, instance, held)


def _note_copy(ctx: Context, instance: Instance, held_bytes: int) -> None:
    """The first look at a sleeper says what its copy takes; what an engine hides from us counts as estimated.

    Pinned memory is part of a process's resident set with some drivers only, so a copy that cannot be seen there is none that
    is not there: a measurement below half of the estimate proves nothing.
    """
    live, level = ctx.state.live_of(instance.id), instance.level or 1
    if live.host_awake_bytes is None:
        return
    before, live.host_awake_bytes = live.host_awake_bytes, None
    copy = held_bytes - before
    footprint = ctx.state.facts_of(instance.model).footprint
    if level in footprint.host_bytes and footprint.host_bytes[level] == 0:
        return
    if instance.claim.host_bytes > live.new_copy_bytes:  # a copy of an earlier sleep stays, and this is what came on top of it
        return
    if copy < footprint.host_copy(level) // 2:
        return
    teach(ctx, instance, lambda learned: learned.with_host(level, copy))
    if copy != instance.claim.host_bytes:
        ctx.set_claim(instance.id, replace(instance.claim, host_bytes=copy))
