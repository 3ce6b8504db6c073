"""What is done without a request behind it: operators' actions, changed and removed models, idle time, over-full devices."""

from collections.abc import Sequence

from scheduler.domain.device import DeviceSample
from scheduler.domain.errors import Conflict
from scheduler.domain.ids import ACTION_CAUSE, ActionId, CauseId, DeviceId, HoldId, InstanceId, ModelName, instance_id
from scheduler.domain.instance import (
    EMPTY_PHASES,
    GOAL_STOPPED,
    ConfigChanged,
    Goal,
    GoalChanged,
    Instance,
    Phase,
    Reset,
    goal_asleep,
)
from scheduler.domain.learned import Learned
from scheduler.domain.lease import Hold
from scheduler.domain.plan import Step
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator import lifecycle, moves
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.effects import FinishAction
from scheduler.orchestrator.events import Asked, ModelsChanged
from scheduler.orchestrator.hosting import why_no_sleep
from scheduler.orchestrator.state import ModelFacts, Wish
from scheduler.orchestrator.view import grows_beside, last_used, picture
from scheduler.planner.inputs import Availability, Exit, Seat

#: How long the second half of a restart waits for its seat.
RESTART_PATIENCE_S = 3600.0

# --- operators --------------------------------------------------------------------------------------------------


def on_asked(ctx: Context, event: Asked) -> None:
    """An operator's wake, sleep, stop or restart."""
    spec = ctx.state.models.get(event.model)
    if spec is None:
        _finish(ctx, event.action, False, "model_not_found", f"no model named {event.model!r}")
        return
    iid = instance_id(event.model)
    if spec.always_awake and event.verb in ("sleep", "stop") and not ctx.state.closing:
        text = f"{event.model} is configured awake: always and would come back at once"
        _finish(
            ctx, event.action, False, "conflict", text, f"set awake: auto for {event.model} in the configuration and restart the daemon"
        )
        return
    if not spec.enabled and event.verb in ("wake", "restart"):
        fix = f"set enabled: true for {event.model} in the configuration and restart the daemon"
        _finish(ctx, event.action, False, "model_disabled", f"{event.model} is disabled", fix)
        return
    if ctx.state.facts_of(event.model).attached and event.verb in ("stop", "restart") and not ctx.state.closing:
        text = f"{event.model} is attached: its process is not hotseat's to end"
        _finish(ctx, event.action, False, "conflict", text, f"hotseat sleep {event.model}, or end it where it was started")
        return
    match event.verb:
        case "wake":
            _ask_wake(ctx, iid, event)
        case "sleep":
            _ask_sleep(ctx, iid, event)
        case "stop":
            _ask_stop(ctx, iid, event)
        case "restart":
            _ask_restart(ctx, iid, event)
        case _:
            _finish(ctx, event.action, False, "invalid", f"unknown action {event.verb!r}")


def _finish(ctx: Context, action: ActionId | None, ok: bool, code: str, message: str, fix: str = "") -> None:
    if action is not None:
        ctx.emit(FinishAction(action=action, ok=ok, code=code, message=message, fix=fix))


def _ask_wake(ctx: Context, iid: InstanceId, event: Asked) -> None:
    instance = ctx.instance(iid)
    if instance.phase is Phase.AWAKE and iid not in ctx.state.wishes:
        _finish(ctx, event.action, True, "", f"{event.model} is awake already")
        return
    if instance.phase in (Phase.BACKOFF, Phase.FAILED):
        ctx.transition(iid, Reset(at_s=ctx.now_s, cause=CauseId(f"{ACTION_CAUSE}{event.action}")))
    _replace_wish(ctx, iid, event)
    _hold_for(ctx, event.model, event.action, event.patience_s, event.by)


def _hold_for(ctx: Context, model: ModelName, action: ActionId, patience_s: float, by: str) -> None:
    """An operator waits in the queue like anybody else, but for the model instead of a lease."""
    hold = Hold(
        id=HoldId(-ctx.state.next.hold),  # below zero: the desk counts upwards
        model=model,
        arrived_s=ctx.now_s,
        deadline_s=ctx.now_s + patience_s,
        limit_s=ctx.now_s + patience_s,
        principal=by,
        action=action,
    )
    ctx.state.next.hold += 1
    ctx.state.holds[hold.id] = hold


def _why_sleepless(ctx: Context, model: ModelName) -> str:
    """Why it can only be stopped."""
    spec, facts = ctx.state.models[model], ctx.state.facts_of(model)
    if facts.levels:
        tried = " and ".join(map(str, facts.levels))
        return f"level {tried} did not work with this version of the engine {spec.engine} and these flags"
    if spec.levels is None:
        return f"the engine {spec.engine} has none with these flags"
    wanted = " and ".join(map(str, spec.levels))
    return f"levels names {wanted}, which the engine {spec.engine} does not have with these flags" if wanted else "levels is []"


def _ask_sleep(ctx: Context, iid: InstanceId, event: Asked) -> None:
    instance = ctx.instance(iid)
    levels = ctx.state.facts_of(event.model).usable_levels()
    if not levels:
        text = f"{event.model} has no sleep level that works: {_why_sleepless(ctx, event.model)}"
        _finish(ctx, event.action, False, "sleep_unsupported", text, f"hotseat stop {event.model}")
        return
    level = event.level if event.level is not None else levels[0]
    if level not in levels:
        text = f"{event.model} cannot sleep at level {level}; it has {', '.join(map(str, levels))}"
        _finish(ctx, event.action, False, "sleep_unsupported", text, f"hotseat sleep {event.model} --level {levels[0]}")
        return
    if instance.phase is Phase.ASLEEP:
        _sleeps_already(ctx, instance, event)
        return
    if instance.phase in EMPTY_PHASES:
        _finish(ctx, event.action, True, "", f"{event.model} is {instance.phase.value} already")
        return
    if instance.phase not in (Phase.AWAKE, Phase.DRAINING):
        text = f"{event.model} is {instance.phase.value.replace('_', ' ')}"
        _finish(ctx, event.action, False, "conflict", text, f"wait until it is awake, or hotseat stop {event.model}")
        return
    no_room = why_no_sleep(ctx.state, instance, level)
    if no_room is not None:
        _finish(ctx, event.action, False, no_room.code.value, no_room.text, no_room.fix)
        return
    _end_wakes(ctx, event)
    _wish(ctx, iid, goal_asleep(level), event, restart=False)


def _sleeps_already(ctx: Context, instance: Instance, event: Asked) -> None:
    """There is no way from one level to another but through awake, and that is the operator's to decide."""
    text = f"{event.model} is asleep at level {instance.level} already"
    if event.level in (None, instance.level):
        _finish(ctx, event.action, True, "", text)
        return
    fix = f"hotseat wake {event.model}, then hotseat sleep {event.model} --level {event.level}"
    _finish(ctx, event.action, False, "conflict", f"{text}, and has to be woken for level {event.level}", fix)


def _ask_stop(ctx: Context, iid: InstanceId, event: Asked) -> None:
    instance = ctx.instance(iid)
    cause = CauseId(f"{ACTION_CAUSE}{event.action}")
    _end_wakes(ctx, event)
    if instance.phase is Phase.BACKOFF:
        ctx.transition(iid, GoalChanged(at_s=ctx.now_s, cause=cause, reason=Reason(Code.ASKED, f"stopped by {event.by}")))
    if ctx.instance(iid).phase in EMPTY_PHASES:
        _finish(ctx, event.action, True, "", f"{event.model} is {ctx.instance(iid).phase.value} already")
        return
    _wish(ctx, iid, GOAL_STOPPED, event, restart=False)
    if event.force and instance.phase is Phase.DRAINING:
        moves.cut(ctx, iid, cause)


def _end_wakes(ctx: Context, event: Asked) -> None:
    """An operator's last word counts: who asked for it to wake is told, and no kept turn brings it back; requests wait on."""
    for hold in ctx.state.holds_of(event.model):
        if hold.action is not None:
            ctx.refuse(hold.id, Conflict(f"replaced by a later {event.verb}", code="conflict"))
    ctx.state.facts_of(event.model).turn_kept_until_s = 0.0


def _ask_restart(ctx: Context, iid: InstanceId, event: Asked) -> None:
    facts = ctx.state.facts_of(event.model)
    facts.learned = facts.learned.tried_again()
    if ctx.instance(iid).phase in EMPTY_PHASES:
        _ask_wake(ctx, iid, event)
        return
    _wish(ctx, iid, GOAL_STOPPED, event, restart=True)


def _wish(ctx: Context, iid: InstanceId, goal: Goal, event: Asked, *, restart: bool) -> None:
    _replace_wish(ctx, iid, event)
    words = {"sleep": "put to sleep", "stop": "stopped", "restart": "restarted"}[event.verb]
    ctx.state.wishes[iid] = Wish(
        goal=goal,
        cause=CauseId(f"{ACTION_CAUSE}{event.action}"),
        reason=Reason(Code.ASKED, f"{words} by {event.by}"),
        force=event.force,
        action=event.action,
        restart=restart,
    )


def _replace_wish(ctx: Context, iid: InstanceId, event: Asked) -> None:
    old = ctx.state.wishes.pop(iid, None)
    if old is not None:
        _finish(ctx, old.action, False, "conflict", f"replaced by a later {event.verb}")


def grant_wishes(ctx: Context) -> bool:
    """Turn wishes into moves as soon as their devices are free; True when one was."""
    changed = False
    for iid, wish in list(ctx.state.wishes.items()):
        changed |= _grant_wish(ctx, iid, wish)
    return changed


def _grant_wish(ctx: Context, iid: InstanceId, wish: Wish) -> bool:
    state = ctx.state
    instance = ctx.instance(iid)
    if instance.phase in EMPTY_PHASES and not wish.restart:
        del state.wishes[iid]
        _finish(ctx, wish.action, True, "", f"{instance.model} is {instance.phase.value}")
        return True
    if instance.phase in EMPTY_PHASES and wish.action is not None:  # it was stopped on its way up: what is left is a start
        del state.wishes[iid]
        if instance.phase is not Phase.STOPPED:
            ctx.transition(iid, Reset(at_s=ctx.now_s, cause=wish.cause))
        _hold_for(ctx, instance.model, wish.action, RESTART_PATIENCE_S, "local")
        return True
    stoppable = instance.phase in (Phase.LAUNCHING, Phase.WAKING, Phase.UNKNOWN)
    stoppable |= instance.phase is Phase.FALLING_ASLEEP and (wish.force or state.closing)  # on a blind device that has no end
    if grows_beside(state, instance):
        return False  # it serves on meanwhile: a drain that cannot end would only keep its clients waiting
    if stoppable and wish.goal.phase is Phase.STOPPED and wish.action is not None:
        lifecycle.stop_now(ctx, iid, wish.reason, wish.cause)
        return True
    if instance.phase not in (Phase.AWAKE, Phase.ASLEEP) or state.owned_devices() & set(instance.devices):
        return False
    if not state.store_ok and wish.action is None:
        return False
    del state.wishes[iid]
    steps: tuple[Step, ...] = (moves.shrink_step(iid, wish.goal),)
    if wish.restart:
        steps = (*steps, moves.grow_step(iid, instance.devices))
    moves.open_move(
        ctx,
        steps=steps,
        devices=frozenset(instance.devices),
        cause=wish.cause,
        reason=wish.reason,
        force=wish.force,
        action=wish.action,
    )
    return True


# --- the registry -----------------------------------------------------------------------------------------------


def on_models_changed(ctx: Context, event: ModelsChanged) -> None:
    """A new registry: what is running is compared with what it was started with, nothing is cut."""
    state = ctx.state
    before = state.models
    state.models = dict(event.models)
    for name, spec in state.models.items():
        facts = state.facts.setdefault(name, ModelFacts())
        facts.attached = name in event.attached
        facts.levels, facts.kinds = event.levels.get(name, ()), event.kinds.get(name, ())
        facts.guess = event.guesses.get(name, facts.guess)
        if not spec.enabled:
            facts.turn_kept_until_s = 0.0
        if facts.learned.fingerprint not in ("", spec.fingerprint()) or (facts.kinds and facts.learned_kind not in ("", *facts.kinds)):
            facts.learned, facts.archive, facts.learned_kind = Learned(), {}, ""
        old = before.get(name)
        instance = state.instances.get(instance_id(name))
        if old is not None and instance is not None and old.fingerprint() != spec.fingerprint():
            facts.half_open_at_s = None
            if instance.phase in (Phase.BACKOFF, Phase.FAILED) and state.move_of(instance.id) is None:
                ctx.transition(instance.id, ConfigChanged(at_s=ctx.now_s, reason=Reason(Code.SPEC_STALE, "its configuration changed")))


def forget_removed(ctx: Context) -> None:
    """Removed and disabled models are drained and stopped; stale ones are stopped when idle and restarted by demand.

    A stale sleeper is not even woken for those who wait: what it takes once awake is not what its model is known to take now.

    The scheduler's own wishes are derived anew in each pass: one whose reason is gone must not be carried out.
    """
    state = ctx.state
    state.wishes = {iid: wish for iid, wish in state.wishes.items() if wish.action is not None}
    for iid, instance in list(state.instances.items()):
        spec = state.models.get(instance.model)
        if instance.phase in EMPTY_PHASES:
            wish = state.wishes.get(iid)
            if spec is None and wish is not None and wish.restart and state.move_of(iid) is None:
                del state.wishes[iid]
                _finish(ctx, wish.action, False, "model_not_found", f"{instance.model} was removed from the configuration")
            continue
        if iid in state.wishes or state.move_of(iid) is not None:
            continue
        why = _why_stale(ctx, instance) if spec is not None else ""
        if spec is None:
            _own_wish(ctx, iid, Reason(Code.REMOVED, "removed from the configuration"))
        elif not spec.enabled:
            _own_wish(ctx, iid, Reason(Code.DISABLED, "disabled"))
        elif why and not state.busy(iid) and (instance.phase is Phase.ASLEEP or not state.wanted(instance.model)):
            _own_wish(ctx, iid, Reason(Code.SPEC_STALE, why))
        elif _to_recycle(ctx, instance) and not state.busy(iid) and not state.wanted(instance.model):
            _own_wish(ctx, iid, Reason(Code.RECYCLED, f"{state.live_of(iid).recycle}: stopped, and started afresh when it is asked for"))
        else:
            _idle_too_long(ctx, instance)


def _why_stale(ctx: Context, instance: Instance) -> str:
    """Why its process is not the one that would be started now; empty = it is, or it moves."""
    spec = ctx.state.models[instance.model]
    started_with = ctx.state.live_of(instance.id).fingerprint
    if instance.phase in (Phase.AWAKE, Phase.ASLEEP) and started_with not in ("", spec.fingerprint()):
        return "its configuration changed: restarted when idle"
    kinds, there = ctx.state.facts_of(instance.model).kinds, ctx.state.devices
    if instance.phase is Phase.ASLEEP and kinds and any(there[d].kind not in kinds for d in instance.devices if d in there):
        return f"it runs on {' or '.join(kinds)} now, and what it takes is known for there: started afresh when it is asked for"
    return ""


def _to_recycle(ctx: Context, instance: Instance) -> bool:
    ours = not ctx.state.facts_of(instance.model).attached  # nobody would start it afresh
    return ours and bool(ctx.state.live_of(instance.id).recycle) and instance.phase in (Phase.AWAKE, Phase.ASLEEP)


def _own_wish(ctx: Context, iid: InstanceId, reason: Reason, goal: Goal = GOAL_STOPPED) -> None:
    ctx.state.wishes[iid] = Wish(goal=goal, cause=CauseId(f"rule:{reason.code.value}"), reason=reason)


def _idle_too_long(ctx: Context, instance: Instance) -> None:
    due = idle_deadline(ctx, instance)
    if due is None or ctx.now_s < due:
        return
    levels, attached = ctx.state.facts_of(instance.model).usable_levels(), ctx.state.facts_of(instance.model).attached
    if attached and (not levels or why_no_sleep(ctx.state, instance, levels[0]) is not None):
        return
    goal = goal_asleep(levels[0]) if levels else GOAL_STOPPED  # a deeper one when it leaves, should the host have no room
    idle = human_seconds(ctx.now_s - last_used(ctx.state, instance))
    _own_wish(ctx, instance.id, Reason(Code.IDLE, f"idle for {idle} (idle_sleep_after)"), goal)


def idle_deadline(ctx: Context, instance: Instance) -> float | None:
    """When an awake, idle instance is to be put away by its operator's rule (monotonic seconds); None = never."""
    spec = ctx.state.models.get(instance.model)
    if spec is None or spec.idle_sleep_after_s is None or spec.always_awake or instance.phase is not Phase.AWAKE:
        return None
    if ctx.state.busy(instance.id) or ctx.state.wanted(instance.model):
        return None
    return max(last_used(ctx.state, instance), instance.since_s) + spec.idle_sleep_after_s


# --- over-full devices ------------------------------------------------------------------------------------------


def shed(ctx: Context) -> bool:
    """Where claims and foreign use exceed a device, put away the idle seat with the least regret; say so when none is idle."""
    state = ctx.state
    opened = False
    for device, info in state.devices.items():
        foreign = state.foreign_on(device)
        excess = state.claimed_on(device) + foreign - info.usable_bytes
        key = f"over_capacity:{device}"
        if excess <= 0 or info.capacity_bytes == 0:  # stale freezes: a size that nobody knows now is exceeded by nobody
            state.degraded.pop(key, None)
            continue
        held, limit = human_bytes(state.claimed_on(device)), human_bytes(info.usable_bytes)
        text = f"{device}: {held} claimed and {human_bytes(foreign)} used by others exceed {limit}; nothing grows there"
        fix = "nothing to do: an idle model is put away; or stop one"
        if foreign:
            fix = f"end the foreign process{_largest_stranger(state.samples.get(device))}, or stop a model"
        if key not in state.degraded:
            ctx.tell("over_capacity", device, text)
        state.degraded[key] = (text, fix, state.degraded[key][2] if key in state.degraded else state.wall)
        if device not in state.owned_devices() and not _leaving(ctx, device):
            opened |= _shed_one(ctx, device, text)
    return opened


def _largest_stranger(sample: DeviceSample | None) -> str:
    """`` 4711 (python, 8.0 GiB)``; empty when the driver tells of nobody."""
    known = [stranger for stranger in (sample.strangers if sample is not None else ()) if stranger.used_bytes]
    if not known:
        return ""
    most = max(known, key=lambda stranger: stranger.used_bytes or 0)
    others = "" if len(known) == 1 else f", the largest of {len(known)}"
    return f" {most.pid} ({most.name or 'name unknown'}, {human_bytes(most.used_bytes or 0)}{others})"


def shed_host(ctx: Context) -> bool:
    """Where copies were measured to take more host memory than they may, the sleeper with the least regret is stopped."""
    state = ctx.state
    excess = state.host_claimed() - state.host_limit_bytes
    if excess <= 0:
        state.degraded.pop("host_over_capacity", None)
        return False
    text = f"copies of sleepers take {human_bytes(state.host_claimed())} of host memory, {human_bytes(state.host_limit_bytes)} are allowed"
    if "host_over_capacity" not in state.degraded:
        ctx.tell("host_over_capacity", "", text)
    since = state.degraded["host_over_capacity"][2] if "host_over_capacity" in state.degraded else state.wall
    state.degraded["host_over_capacity"] = (text, "nothing to do: a sleeper is stopped; or raise host.sleep_memory", since)
    if any(i.claim.host_bytes and i.phase is Phase.STOPPING for i in state.instances.values()):
        return False
    options = [
        (e.regret, seat, e)
        for seat in picture(state).seats
        if seat.availability is Availability.IDLE and seat.claim.host_bytes and state.owned_devices().isdisjoint(seat.devices)
        for e in seat.exits
        if e.goal.phase is Phase.STOPPED
    ]
    return _put_away(ctx, options, text)


def _leaving(ctx: Context, device: DeviceId) -> bool:
    return any(device in i.devices and i.phase in (Phase.STOPPING, Phase.FALLING_ASLEEP) for i in ctx.state.instances.values())


def _shed_one(ctx: Context, device: DeviceId, text: str) -> bool:
    options: list[tuple[float, Seat, Exit]] = []
    for seat in picture(ctx.state).seats:
        if seat.availability is Availability.IDLE and device in seat.devices and not _wakes_again(ctx, seat):
            ways = [e for e in seat.exits if ctx.state.store_ok or e.goal.phase is Phase.STOPPED]  # a stop needs no row before it
            options += [(e.regret, seat, e) for e in ways if e.claim_freed.get(device, 0) > 0]
    return _put_away(ctx, options, text)


def _wakes_again(ctx: Context, seat: Seat) -> bool:
    """Whether a sleeper claims what its wake needed and did not find: room is made for it, and it is woken once more."""
    return ctx.state.wanted(seat.model) and ctx.state.live_of(seat.instance).wake_lacked_room


def _put_away(ctx: Context, options: Sequence[tuple[float, Seat, Exit]], text: str) -> bool:
    if not options:
        return False
    _, seat, leaving = min(options, key=lambda o: (o[0], o[1].instance))
    moves.open_move(
        ctx,
        steps=(moves.shrink_step(seat.instance, leaving.goal),),
        devices=frozenset(seat.devices),
        cause=CauseId("rule:shed"),
        reason=Reason(Code.SHED, text),
    )
    ctx.tell("shed", seat.model, f"{seat.model} is put away: {text}")
    return True
