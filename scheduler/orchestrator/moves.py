"""Moves: opened by a decision, advanced on every pass, closed when every step is at its goal or cannot get there.

Level-triggered: ``advance`` looks at where each instance is, never at what was sent before.
"""

from collections.abc import Sequence
from dataclasses import replace

from scheduler.domain.ids import ActionId, CauseId, DeviceId, InstanceId, ModelName, MoveId
from scheduler.domain.instance import (
    EMPTY_PHASES,
    GOAL_AWAKE,
    GOAL_STOPPED,
    DrainCancelled,
    DrainIntended,
    Forced,
    Goal,
    Instance,
    Phase,
)
from scheduler.domain.plan import Move, MoveState, Step, StepKind
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_seconds
from scheduler.orchestrator import lifecycle
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.effects import CutLeases, FinishAction, Measure, SaveMove, Stop
from scheduler.orchestrator.hosting import has_host_room, host_bytes_asleep, loads_before, why_no_sleep
from scheduler.orchestrator.measuring import measured_since
from scheduler.orchestrator.state import FORCE_GRACE_S, Wish
from scheduler.orchestrator.view import grows_beside, may_sit, picture, restless, target
from scheduler.planner.evict import why_blocked
from scheduler.planner.feasible import admits_growth, gap_on

#: How long a grow waits for measured room after all shrinks are through, before the move is given up with an alarm.
SETTLE_S = 10.0
#: How long a sleep waits for the first measurement of its engine awake, without which nobody can tell what it has freed.
MEASURE_S = 5.0


def open_move(
    ctx: Context,
    *,
    steps: tuple[Step, ...],
    devices: frozenset[DeviceId],
    cause: CauseId,
    reason: Reason,
    beneficiary: ModelName | None = None,
    force: bool = False,
    action: ActionId | None = None,
) -> Move:
    """Open a move; it owns its devices from now on."""
    move = Move(
        id=MoveId(ctx.state.next.move),
        devices=devices,
        steps=steps,
        cause=cause,
        created_s=ctx.now_s,
        beneficiary=beneficiary,
        force=force,
        action=action,
        reason=reason,
    )
    ctx.state.next.move += 1
    ctx.state.moves[move.id] = move
    ctx.emit(SaveMove(move=move))
    return move


def advance(ctx: Context) -> bool:
    """Push every open move as far as it goes now; True when one of them ended."""
    ended = False
    for move in list(ctx.state.moves.values()):
        ended |= _advance_one(ctx, move)
    return ended


def _advance_one(ctx: Context, move: Move) -> bool:
    shrinks = [s for s in move.steps if s.kind is StepKind.SHRINK]
    grows = [s for s in move.steps if s.kind is StepKind.GROW]
    if _abandoned(ctx, move):
        return _wind_up(ctx, move, shrinks, grows)
    if move.id not in ctx.state.begun:  # a restart's victim is its own beneficiary: once it grows, it has left
        arrived = [_shrink(ctx, move, step) for step in shrinks]  # all of them, side by side
        if not all(arrived):
            return False
    for step in grows:
        verdict = _grow(ctx, move, step)
        if verdict is None:
            return False
        if verdict is not MoveState.DONE:
            return close(ctx, ctx.state.moves[move.id], verdict)
    return close(ctx, move, MoveState.DONE)


def close(ctx: Context, move: Move, state: MoveState, message: str = "") -> bool:
    """End a move and tell the operator's action behind it."""
    ended = replace(move, state=state)
    ctx.state.moves.pop(move.id, None)
    ctx.state.settle_until.pop(move.id, None)
    ctx.state.begun.discard(move.id)
    ctx.emit(SaveMove(move=ended))
    if move.action is not None:
        ok = state is MoveState.DONE and _is_where_asked(ctx, move)
        text = message or _outcome(ctx, move, ok)
        code, fix = ("", "") if ok else (_code(ctx, move), ctx.instance(move.steps[-1].instance).reason.fix)
        ctx.emit(FinishAction(action=move.action, ok=ok, code=code, message=text, fix=fix))
    return True


def _is_where_asked(ctx: Context, move: Move) -> bool:
    """A sleep that went wrong makes room too, but it is not what an operator asked for."""
    phase, asked = ctx.instance(move.steps[-1].instance).phase, move.steps[-1].goal.phase
    return phase in EMPTY_PHASES if asked is Phase.STOPPED else phase is asked


def _code(ctx: Context, move: Move) -> str:
    instance = ctx.instance(move.steps[-1].instance)
    if not ctx.state.store_ok:
        return Code.STORE_UNAVAILABLE.value
    if instance.model not in ctx.state.models:
        return "model_not_found"
    return (Code.MEMORY_NOT_FREED if instance.reason.code is Code.ASKED else instance.reason.code).value


def _outcome(ctx: Context, move: Move, ok: bool) -> str:
    last = ctx.instance(move.steps[-1].instance)
    took = human_seconds(ctx.now_s - move.created_s)
    if last.phase in (Phase.BACKOFF, Phase.FAILED) or (not ok and last.reason.code not in (Code.ASKED, Code.NONE)):
        return f"{last.model} is {last.phase.value}: {last.reason.text}"
    return f"{last.model} is {last.phase.value} after {took}"


# --- shrinking --------------------------------------------------------------------------------------------------


def _shrink(ctx: Context, move: Move, step: Step) -> bool:
    """Bring a victim closer to its goal; True when it is there (or further away than asked)."""
    instance = ctx.instance(step.instance)
    match instance.phase:
        case Phase.STOPPED | Phase.BACKOFF | Phase.FAILED:
            return True
        case Phase.ASLEEP:
            if step.goal.phase is Phase.ASLEEP:
                return True
            if grows_beside(ctx.state, instance):
                return False
            lifecycle.stop_now(ctx, instance.id, move.reason, move.cause)
            return False
        case Phase.AWAKE:
            _begin_drain(ctx, move, step)
            return _shrink(ctx, move, step)
        case Phase.DRAINING:
            if not ctx.state.busy(instance.id):
                # a start that was adopted after a restart belongs to no move
                waits = grows_beside(ctx.state, instance) or _copy_room_comes(ctx, move, instance) or _unmeasured(ctx, instance)
                if not waits:
                    lifecycle.leave(ctx, instance.id, move.reason)
            elif is_forced(ctx, move, instance.id) and instance.deadline_s is not None and ctx.now_s >= instance.deadline_s:
                _force(ctx, instance.id, move)
            return False
        case _:
            return False


def _unmeasured(ctx: Context, instance: Instance) -> bool:
    """Whether it is to sleep and nobody has seen yet what it holds awake; one look is asked for, and waited for a while."""
    live = ctx.state.live_of(instance.id)
    if instance.goal.phase is not Phase.ASLEEP or live.held_bytes or ctx.now_s >= instance.since_s + MEASURE_S:
        return False
    if measured_since(ctx, instance, instance.since_s) is not None:  # it holds nothing that can be measured
        return False
    ctx.emit(Measure(devices=instance.devices))
    return True


def _copy_room_comes(ctx: Context, move: Move, instance: Instance) -> bool:
    """Whether the host has no room for its copy yet, and another one that leaves in the same move gives its own back."""
    if instance.goal.level is None or has_host_room(ctx.state, instance, host_bytes_asleep(ctx.state, instance, instance.goal.level)):
        return False
    others = [ctx.instance(s.instance) for s in move.steps if s.goal.phase is Phase.STOPPED and s.instance != instance.id]
    return any(other.claim.host_bytes for other in others)


def _begin_drain(ctx: Context, move: Move, step: Step) -> None:
    model = ctx.instance(step.instance).model
    spec = ctx.state.models.get(model)
    patience = FORCE_GRACE_S if move.force else (spec.drain_timeout_s if spec is not None else 600.0)
    event = DrainIntended(at_s=ctx.now_s, cause=move.cause, reason=move.reason, goal=step.goal, deadline_s=ctx.now_s + patience)
    ctx.transition(step.instance, event)
    leases = tuple(sorted(ctx.state.live_of(step.instance).leases))
    if move.force and leases:
        ctx.emit(CutLeases(leases=leases, cause=move.cause))
    if leases:
        ctx.tell("draining", model, f"{model} takes no new requests; {len(leases)} in flight will be finished", cause=move.reason.text)


def is_forced(ctx: Context, move: Move | None, iid: InstanceId) -> bool:
    """Whether a drain cuts its leases at its deadline: the move was asked to, or an operator asked for it since."""
    wish = ctx.state.wishes.get(iid)
    return (move is not None and move.force) or (wish is not None and wish.force)


def cut(ctx: Context, iid: InstanceId, cause: CauseId) -> None:
    """An operator will not wait for a drain that is under way: tell the relay, then end it after a moment."""
    leases = tuple(sorted(ctx.state.live_of(iid).leases))
    if leases:
        ctx.emit(CutLeases(leases=leases, cause=cause))
    ctx.set_deadline(iid, ctx.now_s + FORCE_GRACE_S)


def _force(ctx: Context, iid: InstanceId, move: Move) -> None:
    instance = ctx.instance(iid)
    deadline = ctx.now_s + ctx.state.policy.term_grace_s
    seq = ctx.transition(iid, Forced(at_s=ctx.now_s, reason=move.reason, cause=move.cause, deadline_s=deadline), intent=True)
    if instance.launch is not None:
        ctx.emit(Stop(instance=iid, launch=instance.launch, seq=seq, kill=False))


# --- growing ----------------------------------------------------------------------------------------------------


def _grow(ctx: Context, move: Move, step: Step) -> MoveState | None:
    """Bring the beneficiary awake; None = under way."""
    instance = ctx.instance(step.instance)
    match instance.phase:
        case Phase.AWAKE:
            return MoveState.DONE
        case Phase.STOPPED | Phase.BACKOFF | Phase.FAILED | Phase.ASLEEP if move.id in ctx.state.begun:
            return MoveState.FAILED  # it was tried: what to do next is a new decision
        case Phase.STOPPED | Phase.BACKOFF | Phase.FAILED | Phase.ASLEEP:
            return _admit(ctx, move, step)
        case _:
            return None


def _admit(ctx: Context, move: Move, step: Step) -> MoveState | None:
    """Both admission tests on fresh measurements, then the intent; waits a while for bytes that are not seen free yet."""
    instance = ctx.instance(step.instance)
    if instance.model not in ctx.state.models or not ctx.state.store_ok:
        return MoveState.FAILED
    now = picture(ctx.state, instance.model)  # what others use now, not the most of the last minutes
    goal = target(ctx.state, instance.model)
    devices = instance.devices if instance.phase is Phase.ASLEEP else step.devices
    if devices not in goal.sets and not may_sit(ctx.state, ctx.state.models[instance.model], devices):
        return _elsewhere(ctx, move, step)
    if any(restless(i) and i.id != instance.id and set(devices) & set(i.devices) for i in ctx.state.instances.values()):
        return None  # a crash or a finding came between: it ends by its own deadline
    if instance.phase is not Phase.ASLEEP and loads_before(ctx.state, instance, devices) is not None:
        return None  # the start that it waits for ends by its own deadline
    if admits_growth(now, devices) and all(gap_on(now, goal, d).closed for d in devices):
        if instance.phase is Phase.ASLEEP:
            lifecycle.wake(ctx, instance.id, move.reason, move.cause)
        else:
            lifecycle.launch(ctx, instance.id, devices, move.reason, move.cause)
        ctx.state.begun.add(move.id)
        return None
    until = ctx.state.settle_until.setdefault(move.id, ctx.now_s + SETTLE_S)
    if ctx.now_s < until:
        ctx.emit(Measure(devices=devices))
        return None
    why = f"the room for {instance.model} was not seen free within {SETTLE_S:.0f} s"
    if not admits_growth(now, devices):
        why = f"{instance.model} waited {SETTLE_S:.0f} s for its devices: {why_blocked(now, devices)}"
    ctx.tell("memory_not_freed", instance.model, f"not started: {why}")
    ctx.state.cooldown[instance.model] = ctx.now_s + 1.0
    return MoveState.FAILED


def _elsewhere(ctx: Context, move: Move, step: Step) -> MoveState:
    """It may not sit there any more: whoever wanted it waits on, for a seat where it may."""
    if move.action is not None and step.instance not in ctx.state.wishes:
        ctx.state.wishes[step.instance] = Wish(goal=GOAL_STOPPED, cause=move.cause, reason=move.reason, action=move.action, restart=True)
        ctx.state.moves[move.id] = replace(move, action=None)
    return MoveState.FAILED


# --- giving up --------------------------------------------------------------------------------------------------


def _abandoned(ctx: Context, move: Move) -> bool:
    """Whether the demand behind a move is gone before its grow began, or what is left of it cannot be written down."""
    if not ctx.state.store_ok and move.id not in ctx.state.begun and any(s.goal.phase is not Phase.STOPPED for s in move.steps):
        return True
    if ctx.state.closing and move.id not in ctx.state.begun and any(s.kind is StepKind.GROW for s in move.steps):
        return True
    if _why_kept(ctx, move) is not None:
        return True
    if move.beneficiary is None or ctx.state.wanted(move.beneficiary):
        return False
    spec = ctx.state.models.get(move.beneficiary)
    return spec is None or not spec.always_awake or not spec.enabled


def _why_kept(ctx: Context, move: Move) -> Reason | None:
    """Why an attached engine that was drained cannot leave: the host has no room for its copy any more, and it is not ours to end."""
    for instance in (ctx.instance(s.instance) for s in move.steps if s.goal.phase is Phase.ASLEEP):
        if instance.phase is not Phase.DRAINING or ctx.state.busy(instance.id) or _copy_room_comes(ctx, move, instance):
            continue
        reason = why_no_sleep(ctx.state, instance, instance.goal.level or 1)
        if reason is not None:
            return reason
    return None


def _wind_up(ctx: Context, move: Move, shrinks: list[Step], grows: list[Step]) -> bool:
    """Take back drains; let what is under way finish; begin nothing new."""
    busy = False
    _take_back(ctx, shrinks, _why_kept(ctx, move) or Reason(Code.DRAIN_CANCELLED, _why_not(ctx, move)))
    for step in shrinks:
        busy |= ctx.instance(step.instance).phase in (Phase.STOPPING, Phase.FALLING_ASLEEP, Phase.UNKNOWN)
    for step in grows:
        busy |= ctx.instance(step.instance).phase in (Phase.LAUNCHING, Phase.WAKING, Phase.STOPPING, Phase.UNKNOWN)
    if busy:
        return False
    grown = any(ctx.instance(s.instance).phase is Phase.AWAKE for s in grows)
    return close(ctx, move, MoveState.DONE if grown else MoveState.CANCELLED)


def withdraw(ctx: Context, move: Move, why: str) -> None:
    """End a move that waits for drains and for nothing else: whoever was to leave serves on."""
    _take_back(ctx, move.steps, Reason(Code.DRAIN_CANCELLED, why))
    close(ctx, move, MoveState.CANCELLED)


def _take_back(ctx: Context, steps: Sequence[Step], reason: Reason) -> None:
    for step in steps:
        if ctx.instance(step.instance).phase is Phase.DRAINING:
            ctx.transition(step.instance, DrainCancelled(at_s=ctx.now_s, reason=reason))


def _why_not(ctx: Context, move: Move) -> str:
    if ctx.state.closing:
        return "the daemon ends"
    return f"nobody waits for {move.beneficiary} any more" if ctx.state.store_ok else "the database does not take rows"


def shrink_step(iid: InstanceId, goal: Goal) -> Step:
    """Put an instance away."""
    return Step(instance=iid, goal=goal, kind=StepKind.SHRINK)


def grow_step(iid: InstanceId, devices: tuple[DeviceId, ...]) -> Step:
    """Bring an instance awake on ``devices``."""
    return Step(instance=iid, goal=GOAL_AWAKE, kind=StepKind.GROW, devices=devices)
