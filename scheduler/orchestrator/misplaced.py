"""Instances that sit where they cannot stay: on a device that is gone or faulty, or where they cannot wake.

A sleeper cannot wake where the device became too small for it, and not soon where others use what it would need.
"""

from dataclasses import replace

from scheduler.domain.ids import CauseId, ModelName, instance_id
from scheduler.domain.instance import GOAL_STOPPED, Instance, Phase
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator import lifecycle, moves
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.view import Scene, blocked, enter_seconds, fits_elsewhere, grows_beside, lost_devices, start_target
from scheduler.planner.evict import Fits, NotNow, evict
from scheduler.planner.inputs import Availability

_CAUSE = CauseId("rule:device_gone")

#: Seconds that a request waits for memory which others use beside a sleeper, before the sleeper is started elsewhere: a stranger
#: may be leaving, and what one of ours gave back may not be seen free yet.
CROWDED_S = 5.0
#: Seconds for which a model that is to be awake always has slept, before it is started elsewhere: nobody waits for it yet.
CROWDED_ALWAYS_S = 60.0


def leave_lost_devices(ctx: Context) -> None:
    """Stop what sits on a device that this daemon does not know, or that is faulty: whoever wants the model starts it on another one.

    What is in use is drained first, and leaves last: a device belongs to one move at a time, and nobody waits for a drain who
    could leave at once. An operator's wish stays: it ends, or goes on with the second half of a restart, once the
    instance is stopped.
    """
    there = [instance for instance in ctx.state.instances.values() if lost_devices(ctx.state, instance)]
    for instance in sorted(there, key=lambda i: ctx.state.busy(i.id)):
        _leave(ctx, instance)


def _leave(ctx: Context, instance: Instance) -> None:
    reason = _reason(ctx, instance)
    gone = any(d not in ctx.state.devices for d in instance.devices)  # nobody will ever see whether it sleeps there
    if instance.phase in (Phase.LAUNCHING, Phase.WAKING) or (gone and instance.phase is Phase.FALLING_ASLEEP):
        lifecycle.stop_now(ctx, instance.id, reason, _CAUSE)
    elif instance.phase in (Phase.AWAKE, Phase.ASLEEP) and ctx.state.store_ok and _is_free(ctx, instance):
        wish = ctx.state.wishes.get(instance.id)
        moves.open_move(
            ctx,
            steps=(moves.shrink_step(instance.id, GOAL_STOPPED),),
            devices=frozenset(instance.devices),
            cause=wish.cause if wish is not None else _CAUSE,
            reason=reason,
            force=wish is not None and wish.force,
        )
        ctx.tell(reason.code.value, instance.model, f"{instance.model} is stopped: {reason.text}")


def _is_free(ctx: Context, instance: Instance) -> bool:
    return ctx.state.move_of(instance.id) is None and ctx.state.owned_devices().isdisjoint(instance.devices)


def _reason(ctx: Context, instance: Instance) -> Reason:
    lost = lost_devices(ctx.state, instance)
    faulty = [d for d in lost if d in ctx.state.devices]
    if faulty:
        why = blocked(ctx.state.devices[faulty[0]], ctx.state.samples.get(faulty[0]))
        return Reason(Code.DEVICE_LOST, f"it leaves its seat, because {why}", "nothing to do; it is started elsewhere when it is wanted")
    text = f"it sits on {', '.join(lost)}, which is not among the devices any more"
    return Reason(Code.DEVICE_GONE, text, "nothing to do; put the device back into the configuration if it was not meant to go")


def leave_small_device(ctx: Context, model: ModelName, cause: CauseId) -> bool:
    """Stop a sleeper that can never wake where it sits, so that it starts on a device that is large enough; False = it need not."""
    if not fits_elsewhere(ctx.state, model):
        return False
    instance = ctx.instance(instance_id(model))
    text = f"{model} cannot wake on {', '.join(instance.devices)}, which became too small for it: it is stopped and started elsewhere"
    ctx.state.hold_reasons[model] = Reason(Code.WAITING_MOVE, text)
    if _may_stop(ctx, instance):
        _stop(ctx, instance, Reason(Code.DOES_NOT_FIT, text), cause)
    return True


def leave_for_another(ctx: Context, scene: Scene, model: ModelName, home: Fits | NotNow, cause: CauseId) -> bool:
    """Stop a sleeper where a start elsewhere is sooner than its wake at ``home``, both seen in ``scene``; False = it stays.

    It can wake only where it sits. What is in its way there may be memory that others use, which nobody can say the end of, or
    models of ours that are busy.
    """
    instance = ctx.instance(instance_id(model))
    if instance.phase is not Phase.ASLEEP or ctx.state.facts_of(model).attached or not _may_stop(ctx, instance):
        return False
    wait_s = _seconds_at_home(ctx, scene, instance, home)
    there = elsewhere(scene, model, wait_s) if wait_s is not None else None
    if there is None:
        return False
    stop_to_restart(ctx, instance, there, _why_home(home), cause)
    return True


def _seconds_at_home(ctx: Context, scene: Scene, instance: Instance, home: Fits | NotNow) -> float | None:
    """Seconds until a sleeper would be awake where it sits, what others lose by it added; None = soon, or it stays in any case."""
    wake_s = enter_seconds(ctx.state, instance.model)
    if isinstance(home, Fits):
        waits = any(leave.seat.availability is Availability.DRAIN for leave in home.leaves)
        return home.regret + wake_s if waits else None
    if home.reason.code is Code.WAITING_TURN and home.retry_at_s is not None:
        return home.retry_at_s - ctx.now_s + wake_s
    seen = scene.picture(instance.model).devices
    unseen = any(seen[d].free_bytes is None for d in instance.devices)  # nobody knows what is free there, or would see what its stop frees
    return float("inf") if home.reason.code is Code.WAITING_MEMORY and not unseen and _waited(ctx, instance) else None


def elsewhere(scene: Scene, model: ModelName, within_s: float) -> Fits | None:
    """Where a model could be started sooner than in ``within_s``, what others lose by it added, and not on the devices it has.

    Only room counts that is free or held by models that nobody uses. A sleeper is stopped first, which takes its time as well.
    """
    state, instance = scene.state, scene.state.instances[instance_id(model)]
    footprint = state.facts_of(model).footprint
    takes_s = footprint.start_seconds() + (footprint.leave_seconds(None) if instance.phase is Phase.ASLEEP else 0.0)
    if takes_s >= within_s:  # whoever leaves, it is no sooner
        return None
    goal = start_target(state, model, scene.claimed)
    verdict = evict(scene.picture(model), replace(goal, sets=tuple(s for s in goal.sets if s != instance.devices)))
    if not isinstance(verdict, Fits) or any(leave.seat.availability is not Availability.IDLE for leave in verdict.leaves):
        return None
    return verdict if verdict.regret + takes_s < within_s else None


def _why_home(home: Fits | NotNow) -> str:
    """What keeps a sleeper from waking where it sits."""
    if isinstance(home, NotNow):
        return home.reason.text
    busy = [leave.seat.model for leave in home.leaves if leave.seat.availability is Availability.DRAIN]
    return f"{', '.join(busy)} must finish first"


def _waited(ctx: Context, instance: Instance) -> bool:
    """Whether somebody waits for a sleeper, or (nobody waits) it sleeps, long enough for what is in its way to count as lasting."""
    if instance.model in ctx.state.holds.models():
        return ctx.now_s >= ctx.state.demand(instance.model).arrived_s + CROWDED_S
    return ctx.now_s >= instance.since_s + CROWDED_ALWAYS_S


def _may_stop(ctx: Context, instance: Instance) -> bool:
    return ctx.state.owned_devices().isdisjoint(instance.devices) and not grows_beside(ctx.state, instance)


def stop_to_restart(ctx: Context, instance: Instance, there: Fits, why: str, cause: CauseId) -> None:
    """Stop a sleeper that is to be started ``there``; whoever waits for it waits on."""
    here, other = ", ".join(instance.devices), ", ".join(there.devices)
    text = f"{instance.model} is not woken on {here}: {why}; it is stopped, and starts on {other} instead"
    ctx.state.hold_reasons[instance.model] = Reason(Code.WAITING_MOVE, text)
    _stop(ctx, instance, Reason(Code.WAITING_MOVE, text), cause)


def _stop(ctx: Context, instance: Instance, reason: Reason, cause: CauseId) -> None:
    steps = (moves.shrink_step(instance.id, GOAL_STOPPED),)
    moves.open_move(ctx, steps=steps, devices=frozenset(instance.devices), cause=cause, reason=reason, beneficiary=instance.model)
    ctx.tell("move", instance.model, reason.text, cause=cause)
