"""What happens to one instance: starts, exits, sleeps, findings, deadlines, confirmations by measurement."""

from dataclasses import replace

from scheduler.domain.claims import Claim, even_claim
from scheduler.domain.ids import CauseId, DeviceId, InstanceId, LaunchId
from scheduler.domain.instance import (
    GOAL_AWAKE,
    Drained,
    GroupLost,
    HalfOpened,
    Instance,
    LaunchIntended,
    Phase,
    ProbedAsleep,
    ProbedAwake,
    ProbedLaunching,
    ProbeLost,
    Ready,
    RetryDue,
    SleepFailed,
    StopIntended,
    WakeFailed,
    WakeIntended,
    may,
)
from scheduler.domain.launch import LaunchEnd
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator.context import Context, launch_id
from scheduler.orchestrator.effects import EndLaunch, Find, Launch, Measure, SetGolden, SetVersion, Sleep, Stop, Wake, WatchIdle
from scheduler.orchestrator.events import (
    EngineExited,
    EngineReady,
    EngineRefused,
    Found,
    GroupEmpty,
    SleepErrored,
    SleepReturned,
    StartAnswered,
    StartProgressed,
    WakeErrored,
    WakeSent,
)
from scheduler.orchestrator.hosting import deepest_goal, has_host_room, host_bytes_asleep
from scheduler.orchestrator.measuring import all_measured_since, meet, most_residue, seated, teach
from scheduler.orchestrator.view import kv_bytes, target

#: Failures of starts that sleep mode may be the cause of: its allocator crashes on some cards, and takes more on others.
_MAY_BE_SLEEP_MODE = frozenset({Code.CRASHED, Code.DEVICE_OOM})

#: Sleeps in a row without an answer after which an engine that is awake all the same is stopped: whoever needs its room waits.
MOST_UNANSWERED_SLEEPS = 2
#: Seconds, doubled with each look, until a sleeper that holds too much is looked at again.
DOUBT_AGAIN_S = 2.0

_SLEEPLESS = (
    "{0} only starts without sleep mode: it is stopped where it would sleep, until its definition or the engine's version changes; "
    "`hotseat restart {0}` tries it again"
)


# --- intents ----------------------------------------------------------------------------------------------------


def launch(ctx: Context, iid: InstanceId, devices: tuple[DeviceId, ...], reason: Reason, cause: str) -> None:
    """Start an engine process: claim first, then the launch record, then the process."""
    state = ctx.state
    instance = ctx.instance(iid)
    spec = state.models[instance.model]
    facts = state.facts_of(instance.model)
    launch_id = LaunchId(state.next.launch)
    state.next.launch += 1
    need = target(state, instance.model).need_bytes
    kind = {Phase.BACKOFF: RetryDue, Phase.FAILED: HalfOpened}.get(instance.phase, LaunchIntended)
    event = kind(
        at_s=ctx.now_s,
        cause=CauseId(cause),
        reason=reason,
        launch=launch_id,
        devices=devices,
        claim=even_claim(devices, need),
        deadline_s=ctx.now_s + spec.start_timeout_s,
    )
    if instance.phase is Phase.FAILED:
        facts.half_open_at_s = ctx.now_s + state.half_open_s(instance.model)
    sleepless = _is_sleepless(ctx, instance)
    seq = ctx.transition(iid, event, intent=True)
    live = state.live_of(iid)
    live.peak_bytes = live.awake_bytes = 0
    live.learned_run = live.served = live.inherited = live.slow = live.refused = False
    live.watched = True
    live.emptied_at_s = live.exit_reason = live.returned_at_s = None
    live.fingerprint = spec.fingerprint()
    live.launched_at_s = ctx.now_s
    live.first_residue_bytes, live.cycles, live.recycle, live.wake_lacked_room = None, 0, "", False
    kv = kv_bytes(state, instance.model, need)
    live.kv_bytes = kv or 0
    live.sleepless = sleepless
    how = Launch(instance=iid, launch=launch_id, seq=seq, devices=devices, footprint=facts.footprint, claim_bytes=need, kv_bytes=kv)
    ctx.emit(replace(how, sleepless=sleepless))


def _is_sleepless(ctx: Context, instance: Instance) -> bool:
    """Whether a start is made without what sleeping needs.

    So are the last try of a definition that never started with it, and every start since such a try went well with this version
    of the engine. A command of the operator's own is run as it stands.
    """
    state, spec = ctx.state, ctx.state.models[instance.model]
    facts, failed = state.facts_of(instance.model), instance.failures.launch
    if facts.learned.sleepless == facts.learned.version:
        return True
    if spec.command or not facts.levels or failed == 0 or (facts.learned.start_s and facts.learned.sleepless is None):
        return False
    last = failed >= state.policy.max_launch_failures - 1 and instance.reason.code in _MAY_BE_SLEEP_MODE
    return last or instance.reason.code is Code.SLEEP_UNSUPPORTED


def wake(ctx: Context, iid: InstanceId, reason: Reason, cause: str) -> None:
    """Wake a sleeper: claim the awake footprint first."""
    instance = ctx.instance(iid)
    footprint = ctx.state.facts_of(instance.model).footprint
    level = instance.level or 1
    need = target(ctx.state, instance.model).need_bytes
    claim = Claim({d: max(b, need) for d, b in instance.claim.device_bytes.items()}, instance.claim.host_bytes)
    timeout = _patience(footprint.wake_seconds(level), ctx.state.policy.wake_timeout_s)
    event = WakeIntended(at_s=ctx.now_s, cause=CauseId(cause), reason=reason, claim=claim, deadline_s=ctx.now_s + timeout + 1.0)
    seq = ctx.transition(iid, event, intent=True)
    ctx.state.live_of(iid).wake_sent = False
    ctx.emit(Wake(instance=iid, launch=launch_id(instance), seq=seq, level=level, timeout_s=timeout))


def leave(ctx: Context, iid: InstanceId, reason: Reason) -> None:
    """A drained instance goes where its goal says: asleep, or stopped; stopped also when the host has no room for its copy."""
    instance = ctx.instance(iid)
    policy = ctx.state.policy
    host = host_bytes_asleep(ctx.state, instance, instance.goal.level)
    if not has_host_room(ctx.state, instance, host):  # others took it since this was decided, or nobody looked
        goal, reason = deepest_goal(ctx.state, instance, instance.goal.level)
        instance = ctx.state.instances[iid] = replace(instance, goal=goal)
        host = host_bytes_asleep(ctx.state, instance, goal.level)
        ctx.tell("host_full", instance.model, reason.text)
    if instance.goal.phase is not Phase.ASLEEP or instance.goal.level is None:
        seq = ctx.transition(iid, Drained(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.term_grace_s), intent=True)
        ctx.emit(Stop(instance=iid, launch=launch_id(instance), seq=seq, kill=False))
        return
    level = instance.goal.level
    footprint = ctx.state.facts_of(instance.model).footprint
    timeout = _patience(footprint.leave_seconds(level), policy.sleep_timeout_s)
    ctx.state.instances[iid] = replace(instance, claim=replace(instance.claim, host_bytes=host))
    live = ctx.state.live_of(iid)
    live.new_copy_bytes = host - instance.claim.host_bytes
    live.returned_at_s = live.returned_level = None
    event = Drained(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + timeout + policy.sleep_settle_s)
    seq = ctx.transition(iid, event, intent=True)
    ctx.emit(Sleep(instance=iid, launch=launch_id(instance), seq=seq, level=level, timeout_s=timeout))


def stop_now(ctx: Context, iid: InstanceId, reason: Reason, cause: str, *, kill: bool = False) -> None:
    """Stop what is starting, asleep, waking or unknown, without a drain."""
    instance = ctx.instance(iid)
    wait = ctx.state.policy.kill_again_s if kill else ctx.state.policy.term_grace_s
    event = StopIntended(at_s=ctx.now_s, cause=CauseId(cause), reason=reason, deadline_s=ctx.now_s + wait)
    seq = ctx.transition(iid, event, intent=True)
    ctx.emit(Stop(instance=iid, launch=launch_id(instance), seq=seq, kill=kill))


# --- reports ----------------------------------------------------------------------------------------------------


def on_ready(ctx: Context, event: EngineReady) -> None:
    """A launch or a wake ended well."""
    instance = ctx.instance(event.instance)
    if not may(instance, Ready):
        return
    facts = ctx.state.facts_of(instance.model)
    live = ctx.state.live_of(instance.id)
    took = event.at_s - live.effect_at_s
    if instance.phase is Phase.LAUNCHING:
        facts.starts += 1
        tried = live.sleepless and facts.learned.sleepless != facts.learned.version
        meet(ctx, instance, event.version)
        knows = live.watched or bool(facts.learned.start_s) or not facts.levels  # else it may have been made without sleep mode
        if live.launched_at_s is not None and knows:
            teach(ctx, instance, lambda learned: learned.with_start(took))
        if live.watched and (tried or not live.sleepless):
            teach(ctx, instance, lambda learned: learned.with_sleepless(live.sleepless))
        if tried:
            ctx.tell("starts_sleepless", instance.model, _SLEEPLESS.format(instance.model))
        ctx.emit(EndLaunch(end=LaunchEnd(launch=event.launch, at=ctx.state.wall, result="ready", duration_s=took)))
    else:
        facts.wakes += 1
        teach(ctx, instance, lambda learned: learned.with_wake(instance.level or 1, took))
    if event.version:
        ctx.emit(SetVersion(launch=event.launch, version=event.version))
    if event.golden:
        ctx.emit(SetGolden(launch=event.launch, golden=event.golden))
    claim = instance.claim if instance.phase is Phase.WAKING else seated(ctx, instance)
    ctx.transition(instance.id, Ready(at_s=ctx.now_s, claim=claim))
    live.slow = live.refused = live.wake_lacked_room = False
    live.held_bytes = live.seen_bytes = 0
    if instance.phase is Phase.LAUNCHING:
        text = f"{instance.model} is taken in: it runs already" if facts.attached else f"{instance.model} started in {human_seconds(took)}"
        ctx.tell("started", instance.model, text, seconds=round(took, 3))
    else:
        text = f"{instance.model} woke from level {instance.level} in {human_seconds(took)}"
        ctx.tell("woke", instance.model, text, seconds=round(took, 3), level=instance.level or 1)


def on_progress(ctx: Context, event: StartProgressed) -> None:
    """A start does something: whoever waits without a limit of their own goes on waiting."""
    if ctx.instance(event.instance).phase is Phase.LAUNCHING:
        ctx.state.live_of(event.instance).progress_at_s = ctx.now_s


def on_answer(ctx: Context, event: StartAnswered) -> None:
    """Kept for the sentence that is told when the start runs out of time."""
    ctx.state.live_of(event.instance).odd_answer = event.detail


def on_exit(ctx: Context, event: EngineExited) -> None:
    """The leader is gone (or never came): end what is left of its group and count the failure."""
    instance = ctx.instance(event.instance)
    live = ctx.state.live_of(instance.id)
    if not may(instance, GroupLost):
        return
    started = instance.phase is Phase.LAUNCHING or instance.before is Phase.LAUNCHING
    kind = (
        "wake"
        if instance.phase is Phase.WAKING
        else "sleep"
        if instance.phase is Phase.FALLING_ASLEEP
        else "launch"
        if started
        else "crash"
    )
    live.exit_reason = event.reason
    if kind == "wake" and live.wake_sent and event.reason.code not in (Code.DEVICE_OOM, Code.HOST_OOM, Code.ENGINE_LOST):
        teach(ctx, instance, lambda learned: learned.with_failed_wake(instance.level or 1))
    ctx.count_failure(instance.id, kind)
    ctx.emit(
        EndLaunch(
            end=LaunchEnd(
                launch=event.launch,
                at=ctx.state.wall,
                result="failed" if started else "lost",
                exit_code=event.exit_code,
                exit_signal=event.exit_signal,
                reason=event.reason.code,
                log_line=event.reason.log_line,
                duration_s=event.at_s - live.effect_at_s if started else None,
            )
        )
    )
    lose(ctx, instance, event.reason)


def on_group_empty(ctx: Context, event: GroupEmpty) -> None:
    """No process is left: now wait for its bytes to be seen free."""
    live = ctx.state.live_of(event.instance)
    if live.emptied_at_s is None:
        live.emptied_at_s = event.at_s
    ctx.emit(Measure(devices=ctx.instance(event.instance).devices))


def on_sleep_returned(ctx: Context, event: SleepReturned) -> None:
    """The engine says it sleeps: believe it when the bytes are seen free."""
    instance = ctx.instance(event.instance)
    if instance.phase is not Phase.FALLING_ASLEEP:
        return
    if event.level != instance.goal.level:
        reason = Reason(
            Code.SLEEP_FAILED,
            f"asked for level {instance.goal.level}, the engine says level {event.level}",
            "check the engine's version; the model is stopped instead",
        )
        fail_sleep(ctx, instance, reason)
        return
    live = ctx.state.live_of(instance.id)
    live.returned_at_s, live.returned_level = event.at_s, event.level
    ctx.set_deadline(instance.id, ctx.now_s + ctx.state.policy.sleep_settle_s)
    ctx.emit(Measure(devices=instance.devices))


def on_sleep_errored(ctx: Context, event: SleepErrored) -> None:
    """The engine refused to sleep: stop it."""
    instance = ctx.instance(event.instance)
    if instance.phase is Phase.FALLING_ASLEEP:
        fail_sleep(ctx, instance, event.reason)


def fail_sleep(ctx: Context, instance: Instance, reason: Reason) -> None:
    """Sleep did not work: stop the engine and remember it."""
    ctx.count_failure(instance.id, "sleep")
    deadline = ctx.now_s + ctx.state.policy.term_grace_s
    seq = ctx.transition(instance.id, SleepFailed(at_s=ctx.now_s, reason=reason, deadline_s=deadline))
    ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=False))
    ctx.tell("sleep_failed", instance.model, reason.text)


def on_wake_sent(ctx: Context, event: WakeSent) -> None:
    """Kept for the case that it does not answer: a wake that never left the daemon says nothing about the engine."""
    ctx.state.live_of(event.instance).wake_sent = True


def on_wake_errored(ctx: Context, event: WakeErrored) -> None:
    """The engine could not wake: look what it is doing now; its claim stays the awake footprint."""
    instance = ctx.instance(event.instance)
    if instance.phase is not Phase.WAKING:
        return
    ctx.count_failure(instance.id, "wake")
    level, live = instance.level or 1, ctx.state.live_of(instance.id)
    if event.reason.code is Code.OUTPUT_WRONG:  # fenced: it must not serve, not even be looked at
        teach(ctx, instance, lambda learned: learned.with_denied(level))
        fence(ctx, instance, event.reason)
        ctx.tell("output_wrong", instance.model, event.reason.text, level=level)
        return
    live.wake_lacked_room = event.reason.code is Code.DEVICE_OOM
    if not live.wake_lacked_room:
        teach(ctx, instance, lambda learned: learned.with_failed_wake(level))
    deadline = ctx.now_s + ctx.state.policy.probe_timeout_s
    seq = ctx.transition(instance.id, WakeFailed(at_s=ctx.now_s, reason=event.reason, deadline_s=deadline))
    ctx.emit(Find(instance=instance.id, launch=launch_id(instance), seq=seq, started_before=False))
    ctx.tell("wake_failed", instance.model, event.reason.text)


def on_refused(ctx: Context, event: EngineRefused) -> None:
    """Alive, but nobody listens, or it sleeps and was not told to: find out."""
    instance = ctx.instance(event.instance)
    if not may(instance, ProbeLost) or (event.asleep and instance.phase is Phase.ASLEEP):
        return
    text = "sleeps, and nobody here told it to" if event.asleep else "does not accept connections although its process lives"
    reason = Reason(Code.ENGINE_LOST, f"{instance.model} {text}")
    if event.asleep:
        ctx.tell("fell_asleep", instance.model, reason.text)
    _look(ctx, instance, reason)


def doubt_sleep(ctx: Context, instance: Instance) -> None:
    """A sleeper that holds more than it may: somebody else woke it, perhaps, or is about to. It is looked at, less and less often.

    What a failed wake left mapped needs no look.
    """
    live = ctx.state.live_of(instance.id)
    if instance.phase is not Phase.ASLEEP or ctx.now_s < live.doubt_at_s or instance.failures.wake:
        return
    held = max((all_measured_since(ctx, instance, instance.since_s) or {}).values(), default=0)
    if held > most_residue(ctx.state, instance, instance.level or 1):
        live.doubts += 1
        live.doubt_at_s = ctx.now_s + DOUBT_AGAIN_S * 2.0**live.doubts
        text = f"{instance.model} is thought to sleep and holds {human_bytes(held)}: it is looked at"
        ctx.tell("sleep_doubted", instance.model, text)
        _look(ctx, instance, Reason(Code.ENGINE_LOST, text))


def _look(ctx: Context, instance: Instance, reason: Reason) -> None:
    deadline = ctx.now_s + ctx.state.policy.probe_timeout_s
    seq = ctx.transition(instance.id, ProbeLost(at_s=ctx.now_s, reason=reason, deadline_s=deadline))
    ctx.emit(Find(instance=instance.id, launch=launch_id(instance), seq=seq, started_before=False))


def on_found(ctx: Context, event: Found) -> None:
    """A finding about an engine in phase unknown."""
    instance = ctx.instance(event.instance)
    if instance.phase is not Phase.UNKNOWN or event.state is None:
        return
    live = ctx.state.live_of(instance.id)
    restarted = instance.reason.code is Code.RESTARTED
    if event.state == "awake" and instance.before is Phase.WAKING:
        _end_unproven(ctx, instance)
    elif event.state == "awake" and instance.before is Phase.FALLING_ASLEEP and live.unanswered_sleeps >= MOST_UNANSWERED_SLEEPS:
        text = f"it did not fall asleep in time {live.unanswered_sleeps} times in a row: stopped instead"
        stop_now(ctx, instance.id, Reason(Code.SLEEP_FAILED, text), "retry")
        ctx.tell("sleep_failed", instance.model, f"{instance.model}: {text}")
    elif event.state == "awake":
        claim = instance.claim.at_least(ctx.state.measured_of(instance.id))
        reason = Reason(Code.ADOPTED, "found serving after the daemon's restart") if restarted else instance.reason
        seq = ctx.transition(instance.id, ProbedAwake(at_s=ctx.now_s, claim=claim, reason=reason))
        live.slow = live.refused = False
        live.held_bytes = live.seen_bytes = 0
        live.inherited = restarted
        if event.golden:
            ctx.emit(SetGolden(launch=event.launch, golden=event.golden))
        if restarted:
            ctx.emit(WatchIdle(instance=instance.id, launch=event.launch, seq=seq))
            ctx.tell("adopted", instance.model, f"{instance.model} is adopted awake: its engine kept running")
        ctx.state.instances[instance.id] = replace(ctx.instance(instance.id), goal=GOAL_AWAKE)
    elif event.state == "asleep":
        level = event.level or instance.level or instance.goal.level or 1
        reason = Reason(Code.ADOPTED, "found asleep after the daemon's restart") if restarted else instance.reason
        claim = instance.claim.at_least(ctx.state.measured_of(instance.id))  # a failed wake keeps what it mapped: measure first
        ctx.transition(instance.id, ProbedAsleep(at_s=ctx.now_s, level=level, claim=claim, reason=reason))
        ctx.emit(Measure(devices=instance.devices))
        failed = ctx.instance(instance.id).failures.wake
        if failed >= 2 or (failed and live.wake_sent and not live.wake_lacked_room):  # only for want of room it is worth a second try
            times = "" if failed == 1 else f" {failed} times"
            stop_now(ctx, instance.id, Reason(Code.WAKE_FAILED, f"it could not be woken{times}: started afresh"), "retry")
        elif restarted:
            ctx.tell("adopted", instance.model, f"{instance.model} is adopted asleep at level {level}: its engine kept running")
    elif event.state == "launching" and instance.launch_deadline_s is not None:
        ctx.transition(instance.id, ProbedLaunching(at_s=ctx.now_s))
        if live.launched_at_s is not None:  # the same start goes on: it is timed from its beginning
            live.effect_at_s = live.launched_at_s
            ctx.set_since(instance.id, live.launched_at_s)


def _end_unproven(ctx: Context, instance: Instance) -> None:
    """It says that it is awake, but nobody saw its wake end well: its weights may be lost, its answers wrong, or none come."""
    text = "its wake was not seen to end well, so nothing proves what it would answer: started afresh"
    stop_now(ctx, instance.id, Reason(Code.WAKE_FAILED, text), "retry")


# --- small things -----------------------------------------------------------------------------------------------


def fence(ctx: Context, instance: Instance, reason: Reason) -> None:
    """End an engine that lives and must not serve any more; its launch record says why."""
    ctx.state.live_of(instance.id).exit_reason = reason
    ctx.emit(EndLaunch(end=LaunchEnd(launch=launch_id(instance), at=ctx.state.wall, result="lost", reason=reason.code)))
    lose(ctx, instance, reason)


def lose(ctx: Context, instance: Instance, reason: Reason) -> None:
    """End what is left of its group, at once."""
    event = GroupLost(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + ctx.state.policy.kill_again_s)
    seq = ctx.transition(instance.id, event)
    ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=True))


def _patience(expected_s: float, at_least_s: float) -> float:
    """Time limit of a sleep or wake: generous, and longer for big models."""
    return max(at_least_s, 4.0 * expected_s)
