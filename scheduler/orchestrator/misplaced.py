"""Instances that sit where they cannot stay: on a device that is gone or faulty, or one that became too small to wake on."""

from scheduler.domain.ids import CauseId, ModelName, instance_id
from scheduler.domain.instance import GOAL_STOPPED, Instance, Phase
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator import lifecycle, moves
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.view import blocked, fits_elsewhere, grows_beside, lost_devices

_CAUSE = CauseId("rule:device_gone")


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
    state = ctx.state
    if not fits_elsewhere(state, model):
        return False
    instance = ctx.instance(instance_id(model))
    text = f"{model} cannot wake on {', '.join(instance.devices)}, which became too small for it: it is stopped and started elsewhere"
    state.hold_reasons[model] = Reason(Code.WAITING_MOVE, text)
    if state.owned_devices().isdisjoint(instance.devices) and not grows_beside(state, instance):
        steps = (moves.shrink_step(instance.id, GOAL_STOPPED),)
        reason = Reason(Code.DOES_NOT_FIT, text)
        moves.open_move(ctx, steps=steps, devices=frozenset(instance.devices), cause=cause, reason=reason, beneficiary=model)
        ctx.tell("move", model, text, cause=cause)
    return True
