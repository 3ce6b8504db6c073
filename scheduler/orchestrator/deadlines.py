"""What happens when a transitional phase runs out of time."""

from dataclasses import replace

from scheduler.domain.instance import (
    Instance,
    KillDue,
    LaunchTimedOut,
    Phase,
    ProbeExhausted,
    SleepIneffective,
    SleepTimedOut,
    WakeTimedOut,
)
from scheduler.domain.launch import LaunchEnd
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator import moves
from scheduler.orchestrator.context import Context, launch_id
from scheduler.orchestrator.effects import CutLeases, EndLaunch, Find, Measure, Stop
from scheduler.orchestrator.hosting import instead_of_sleep
from scheduler.orchestrator.measuring import all_measured_since, teach
from scheduler.orchestrator.state import FORCE_GRACE_S, STALE_PERIODS

#: Seconds of a stop after which it is told that processes do not end.
UNKILLABLE_S = 30.0


def on_deadline(ctx: Context, instance: Instance) -> None:
    """The deadline of a transitional phase has passed."""
    policy = ctx.state.policy
    live = ctx.state.live_of(instance.id)
    soon = ctx.now_s + policy.kill_again_s
    match instance.phase:
        case Phase.LAUNCHING:
            reason = live.exit_reason = _not_ready(ctx, instance)
            ctx.count_failure(instance.id, "launch")
            end = LaunchEnd(launch=launch_id(instance), at=ctx.state.wall, result="failed", reason=reason.code)
            ctx.emit(EndLaunch(end=replace(end, duration_s=ctx.now_s - live.effect_at_s)))
            seq = ctx.transition(instance.id, LaunchTimedOut(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.term_grace_s))
            ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=False))
        case Phase.DRAINING:
            _drain_deadline(ctx, instance)
        case Phase.STOPPING if live.emptied_at_s is not None:
            _alarm_not_freed(ctx, instance)
        case Phase.STOPPING:
            _tell_unkillable(ctx, instance)
            seq = ctx.transition(instance.id, KillDue(at_s=ctx.now_s, deadline_s=soon))
            ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=True))
        case Phase.FALLING_ASLEEP:
            _sleep_deadline(ctx, instance)
        case Phase.WAKING:
            ctx.count_failure(instance.id, "wake")
            live.wake_lacked_room = False
            if live.wake_sent:
                teach(ctx, instance, lambda learned: learned.with_failed_wake(instance.level or 1))
            reason = Reason(Code.WAKE_FAILED, f"{instance.model} did not wake in {human_seconds(ctx.now_s - live.effect_at_s)}")
            event = WakeTimedOut(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.probe_timeout_s)
            seq = ctx.transition(instance.id, event)
            ctx.emit(Find(instance=instance.id, launch=launch_id(instance), seq=seq, started_before=False))
        case Phase.UNKNOWN:
            _probe_deadline(ctx, instance)
        case _:
            pass


def _not_ready(ctx: Context, instance: Instance) -> Reason:
    """A start is out of time: busy to the end, or long since without a sign of life."""
    text = f"{instance.model} was not ready after {human_seconds(ctx.now_s - ctx.state.live_of(instance.id).effect_at_s)}"
    odd = ctx.state.live_of(instance.id).odd_answer
    if odd:
        return Reason(Code.START_TIMEOUT, f"{text}: {odd}", f"correct what the answer names; else look at `hotseat logs {instance.model}`")
    idle_s = ctx.now_s - ctx.state.progressed_at(instance)
    if idle_s < ctx.state.policy.progress_window_s:
        fix = f"look at `hotseat logs {instance.model}`; raise start_timeout if it only needs longer"
        return Reason(Code.START_TIMEOUT, text, fix)
    text = f"{text}; for {human_seconds(idle_s)} it wrote no log line, read nothing from disk and took no memory"
    return Reason(Code.START_STALLED, text, f"look at the end of `hotseat logs {instance.model}` for what it waits for")


def _sleep_deadline(ctx: Context, instance: Instance) -> None:
    policy = ctx.state.policy
    live = ctx.state.live_of(instance.id)
    if live.returned_at_s is None:
        ctx.count_failure(instance.id, "sleep")
        live.unanswered_sleeps += 1
        reason = Reason(Code.SLEEP_FAILED, f"{instance.model} did not fall asleep in time")
        seq = ctx.transition(instance.id, SleepTimedOut(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.probe_timeout_s))
        ctx.emit(Find(instance=instance.id, launch=launch_id(instance), seq=seq, started_before=False))
        return
    fresh_s = max(live.returned_at_s, ctx.now_s - STALE_PERIODS * policy.sample_period_s)
    if all_measured_since(ctx, instance, fresh_s) is None:  # stale freezes: what nobody measured is no proof of anything
        live.timed = False
        ctx.set_deadline(instance.id, ctx.now_s + policy.sleep_settle_s)
        ctx.emit(Measure(devices=instance.devices))
        return
    held = max(live.measured.values(), default=0)
    level = live.returned_level or 1
    instead = instead_of_sleep(ctx.state, instance.model)
    reason = Reason(
        Code.SLEEP_INEFFECTIVE,
        f"{instance.model} said it sleeps at level {level} but still holds {human_bytes(held)}: {instead}",
        "check the engine's sleep mode; this level is tried again with another version of the engine or other flags",
    )
    teach(ctx, instance, lambda learned: learned.with_denied(level))
    ctx.count_failure(instance.id, "sleep")
    seq = ctx.transition(instance.id, SleepIneffective(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.term_grace_s))
    ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=False))
    ctx.tell("sleep_ineffective", instance.model, reason.text)


def _probe_deadline(ctx: Context, instance: Instance) -> None:
    fix = f"look at `hotseat logs {instance.model}`; it is started afresh when it is asked for"
    reason = Reason(Code.ENGINE_LOST, f"{instance.model} gave no clear answer: its processes are ended", fix)
    ctx.state.live_of(instance.id).exit_reason = reason
    started = instance.before is Phase.LAUNCHING
    ctx.count_failure(instance.id, "launch" if started else "crash")
    result = "failed" if started else "lost"
    ctx.emit(EndLaunch(end=LaunchEnd(launch=launch_id(instance), at=ctx.state.wall, result=result, reason=reason.code)))
    event = ProbeExhausted(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + ctx.state.policy.kill_again_s)
    seq = ctx.transition(instance.id, event)
    ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=True))


def _drain_deadline(ctx: Context, instance: Instance) -> None:
    """Answers are not cut for others unless the operator chose so: say who holds the drain, once.

    A forced move looks at the deadline itself.
    """
    move = ctx.state.move_of(instance.id)
    if moves.is_forced(ctx, move, instance.id):
        if not ctx.state.busy(instance.id):  # nothing is left to cut: it only waits for a neighbour's start
            ctx.set_deadline(instance.id, None)
        return
    leases = tuple(sorted(ctx.state.live_of(instance.id).leases))
    running = len(leases)
    if move is not None and ctx.state.policy.interrupt:
        ctx.state.moves[move.id] = replace(move, force=True)
        ctx.emit(CutLeases(leases=leases, cause=move.cause))
        ctx.set_deadline(instance.id, ctx.now_s + FORCE_GRACE_S)
        ctx.tell("interrupted", instance.model, f"{running} requests on {instance.model} are cut after its drain_timeout")
        return
    ctx.tell(
        "drain_slow", instance.model, f"{running} requests still run on {instance.model}; hotseat stop {instance.model} --now cuts them"
    )
    ctx.set_deadline(instance.id, None)


def _tell_unkillable(ctx: Context, instance: Instance) -> None:
    """Say once that processes do not end: after several KILLs they hang in the kernel, mostly in a driver."""
    live = ctx.state.live_of(instance.id)
    if not live.alarmed and ctx.now_s - live.effect_at_s >= UNKILLABLE_S:
        live.alarmed = True
        tried = human_seconds(ctx.now_s - live.effect_at_s)
        text = f"{instance.model} has not ended in {tried} although it was killed again and again: its processes hang in the kernel"
        ctx.tell("not_ended", instance.model, f"{text}; see dmesg, a reboot may be needed. Its memory stays claimed")


def _alarm_not_freed(ctx: Context, instance: Instance) -> None:
    live = ctx.state.live_of(instance.id)
    live.timed &= all(ctx.state.fresh_sample(d) is not None for d in instance.devices)  # its end comes while nobody can look
    ctx.set_deadline(instance.id, ctx.now_s + ctx.state.policy.stop_settle_s)
    ctx.emit(Measure(devices=instance.devices))
    if not live.alarmed:
        live.alarmed = True
        blind = [d for d in instance.devices if ctx.state.fresh_sample(d) is None]
        held = human_bytes(sum(live.measured.values()))
        what = (
            f"{', '.join(blind)} cannot be measured, so nobody knows whether their memory is free" if blind else f"{held} are still in use"
        )
        ctx.tell("memory_not_freed", instance.model, f"all processes of {instance.model} ended, but {what}")
