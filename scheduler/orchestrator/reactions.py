"""Demand meets seats: grants, refusals, and the next move (scheduling.md section 4, as a numbered tree).

1 unknown model: 404.  2 over its queue bound: 429.  3 awake and not gated: grant.  4 coming: join.
5 can never fit: 507 at once.  6 placement and victims together, proven sufficient: open a move.  7 else hold, with a reason.
"""

from bisect import bisect_left
from dataclasses import replace

from scheduler.domain.errors import HotseatError, InvariantViolated, NotFound, Permanent, Temporary
from scheduler.domain.ids import ACTION_CAUSE, CauseId, HoldId, LeaseId, ModelName, instance_id
from scheduler.domain.instance import EMPTY_PHASES, GoalChanged, Instance, Phase
from scheduler.domain.lease import Hold, Lease
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator import misplaced, moves
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.effects import FinishAction, GrantLease
from scheduler.orchestrator.estimates import awake_seconds, is_measured, longest_seconds, queue_seconds, retry_after
from scheduler.orchestrator.events import LeaseRequested
from scheduler.orchestrator.hosting import fix_of, loads_before, why_deeper
from scheduler.orchestrator.standstill import Standstill
from scheduler.orchestrator.state import Live
from scheduler.orchestrator.unfit import never_fits, unreadable
from scheduler.orchestrator.view import Scene, enter_seconds, lost_devices, target
from scheduler.planner.check import verify
from scheduler.planner.evict import Fits, Never, NotNow, evict
from scheduler.planner.greedy import PlannerInput, place
from scheduler.planner.turns import order_demands, order_holds

#: Phases in which a model is on its way, or will be decided about shortly: a request joins it.
_COMING = frozenset({Phase.LAUNCHING, Phase.WAKING, Phase.UNKNOWN})
_LEAVING = frozenset({Phase.DRAINING, Phase.FALLING_ASLEEP, Phase.STOPPING})


def on_requested(ctx: Context, event: LeaseRequested) -> None:
    """Steps 1 and 2; the rest of the tree runs for all holds after every event."""
    state, hold = ctx.state, event.hold
    spec = state.models.get(hold.model)
    state.holds[hold.id] = hold
    if spec is None:
        ctx.refuse(hold.id, NotFound(f"no model named {hold.model!r}", code="model_not_found", fix="see `hotseat models ls`"))
    elif not spec.enabled and hold.action is None:
        ctx.refuse(hold.id, _disabled(hold.model))
    elif hold.action is None and len(state.holds.of(hold.model)) > spec.max_queued:
        wait = retry_after(state, hold.model)
        text = f"{spec.max_queued} requests already wait for {hold.model}"
        ctx.refuse(hold.id, Temporary(text, code="queue_full", retry_after_s=wait, fix="retry later, or raise max_queued"))


def grant(ctx: Context) -> None:
    """Step 3: leases for everybody whose model is awake and not gated."""
    for model in list(ctx.state.holds.models()):
        instance = ctx.state.instances.get(instance_id(model))
        if instance is None or instance.phase is not Phase.AWAKE or model not in ctx.state.models:
            continue
        live = ctx.state.live_of(instance.id)
        if live.slow or live.refused or (ctx.state.move_of(instance.id) is not None and _is_leaving(ctx, instance)):
            continue
        if _is_full(ctx, instance) and not ctx.state.demand(model).by_operator:
            ctx.state.hold_reasons[model] = _full(live, model)
            continue
        for hold in order_holds(ctx.state.holds_of(model), live.fairness):
            if not _grant_one(ctx, instance, hold):
                break


def _is_full(ctx: Context, instance: Instance) -> bool:
    spec = ctx.state.models.get(instance.model)
    return spec is not None and spec.max_concurrent is not None and len(ctx.state.live_of(instance.id).leases) >= spec.max_concurrent


def _full(live: Live, model: ModelName) -> Reason:
    return Reason(Code.WAITING_TURN, f"{len(live.leases)} requests run, the limit of {model}")


def _is_leaving(ctx: Context, instance: Instance) -> bool:
    move = ctx.state.move_of(instance.id)
    return move is not None and any(s.instance == instance.id and s.goal.phase is not Phase.AWAKE for s in move.steps)


def _grant_one(ctx: Context, instance: Instance, hold: Hold) -> bool:
    """Grant one hold; False when the instance is full."""
    state = ctx.state
    live = state.live_of(instance.id)
    if hold.action is not None:
        del state.holds[hold.id]
        text = f"{hold.model} is awake after {human_seconds(ctx.now_s - hold.arrived_s)}"
        ctx.emit(FinishAction(action=hold.action, ok=True, code="", message=text))
        return True
    if _is_full(ctx, instance):
        state.hold_reasons[hold.model] = _full(live, hold.model)
        return False
    if instance.launch is None:
        return False
    del state.holds[hold.id]
    lease = Lease(
        id=LeaseId(state.next.lease),
        hold=hold.id,
        model=hold.model,
        instance=instance.id,
        granted_s=ctx.now_s,
        waited_s=ctx.now_s - hold.arrived_s,
        woke=instance.since_s > hold.arrived_s,
        model_class=hold.model_class,
        principal=hold.principal,
    )
    state.next.lease += 1
    state.leases[lease.id] = lease
    live.leases.add(lease.id)
    live.fairness.grant(hold.principal)
    facts = state.facts_of(hold.model)
    facts.requests += not hold.second_try
    facts.cold_hits += lease.woke
    facts.last_used_s, facts.last_used_wall = ctx.now_s, state.wall
    facts.turn_kept_until_s = 0.0
    ctx.emit(GrantLease(hold=hold.id, lease=lease, launch=instance.launch))
    return True


# --- refusals ---------------------------------------------------------------------------------------------------


def refuse(ctx: Context) -> None:
    """End the holds that cannot be served any more, each with its cause in words."""
    for model in list(ctx.state.holds.models()):
        if _all_may_wait(ctx, model):
            continue
        for hold in ctx.state.holds_of(model):
            error = _verdict(ctx, hold)
            if error is not None:
                ctx.refuse(hold.id, error)


def _all_may_wait(ctx: Context, model: ModelName) -> bool:
    """Whether no hold of a model needs to be looked at: it may come awake, and nobody's deadline is due."""
    state = ctx.state
    spec = state.models.get(model)
    if spec is None or not spec.enabled or not state.store_ok or ctx.now_s >= state.demand(model).deadline_s:
        return False
    instance = state.instances.get(instance_id(model))
    return instance is None or instance.phase not in (Phase.FAILED, Phase.BACKOFF)


def _verdict(ctx: Context, hold: Hold) -> HotseatError | None:
    state = ctx.state
    if hold.model not in state.models:
        return NotFound(f"{hold.model} was removed from the configuration", code="model_not_found")
    if not state.models[hold.model].enabled and hold.action is None:
        return _disabled(hold.model)
    instance = state.instances.get(instance_id(hold.model)) or Instance(id=instance_id(hold.model))
    if instance.phase is Phase.FAILED and not _half_open(ctx, instance):
        return Permanent(f"{hold.model} failed: {instance.reason.text}", code="model_failed", fix=instance.reason.fix)
    if not state.store_ok and instance.phase not in (Phase.AWAKE, Phase.LAUNCHING, Phase.WAKING):
        message, fix, _ = state.degraded.get("store", ("the database does not take rows", "", 0.0))
        text = f"{hold.model} is {instance.phase.value} and cannot be started: {message}"
        return Temporary(text, code="store_unavailable", retry_after_s=10.0, fix=fix)
    if instance.phase is Phase.BACKOFF and instance.retry_at_s is not None and instance.retry_at_s >= hold.deadline_s:
        wait = max(1.0, instance.retry_at_s - ctx.now_s)
        text = f"{hold.model} failed to start ({instance.reason.text}); next try in {human_seconds(wait)}"
        return Temporary(text, code="model_backoff", retry_after_s=min(120.0, wait), fix=instance.reason.fix)
    if ctx.now_s >= hold.deadline_s:
        return _timed_out(ctx, hold, instance)
    return None


def _disabled(model: ModelName) -> Permanent:
    fix = f"set enabled: true for {model} in the configuration and restart the daemon"
    return Permanent(f"{model} is disabled", code="model_disabled", fix=fix)


def _timed_out(ctx: Context, hold: Hold, instance: Instance) -> HotseatError | None:
    """The deadline has passed: a cold start that makes progress extends it up to the caller's patience; else the turn is kept."""
    state = ctx.state
    if instance.phase is Phase.LAUNCHING and hold.limit_s > ctx.now_s and instance.launch_deadline_s is not None:
        stalled_at_s = state.progressed_at(instance) + state.policy.progress_window_s
        extended = min(hold.limit_s, instance.launch_deadline_s + 1.0, stalled_at_s)
        if extended > ctx.now_s:
            state.holds[hold.id] = replace(hold, deadline_s=extended)
            return None
    wait = retry_after(state, hold.model)
    facts = state.facts_of(hold.model)
    facts.turn_kept_until_s = max(facts.turn_kept_until_s, ctx.now_s + wait + state.policy.keep_turn_s)
    why = state.hold_reasons.get(hold.model)
    cause = f": {why.text}" if why is not None and why.text else f": it is {instance.phase.value.replace('_', ' ')}"
    text = f"waited {human_seconds(ctx.now_s - hold.arrived_s)} for {hold.model}{cause}"
    return Temporary(text, code="wait_timeout", retry_after_s=wait, fix="retry: its turn is kept; or raise max_wait")


def refuse_hopeless(ctx: Context) -> None:
    """A wait that is longer than the caller's patience is refused at once, but the demand is recorded and the start goes on.

    Only where a measurement says so: a guess that is too long would refuse everybody who could have been served.
    """
    for model in list(ctx.state.holds.models()):
        if not is_measured(ctx.state, model):
            continue
        longest = longest_seconds(ctx.state, model)
        if longest is not None and ctx.now_s + longest > ctx.state.demand(model).limit_s:
            _refuse_hopeless_of(ctx, model)


def _refuse_hopeless_of(ctx: Context, model: ModelName) -> None:
    start = awake_seconds(ctx.state, model)
    places = sorted(ctx.state.holds.of(model))
    why = ctx.state.hold_reasons.get(model)
    cause = f" ({why.text})" if why is not None and why.text else ""
    for hold in ctx.state.holds_of(model):
        place = bisect_left(places, hold.id)
        eta = start + queue_seconds(ctx.state, model, place)
        if hold.action is not None or ctx.now_s + eta <= hold.limit_s:
            continue
        del places[place]
        wait = min(120.0, max(1.0, eta))
        facts = ctx.state.facts_of(hold.model)
        facts.turn_kept_until_s = max(facts.turn_kept_until_s, ctx.now_s + wait + ctx.state.policy.keep_turn_s)
        left = human_seconds(hold.limit_s - ctx.now_s)
        text = f"{hold.model} needs about {human_seconds(eta)}, the caller waits {left} more{cause}; its turn is kept"
        ctx.refuse(hold.id, Temporary(text, code="model_starting", retry_after_s=wait, fix="retry after the given time"))


# --- the next move ----------------------------------------------------------------------------------------------


def start_moves(ctx: Context) -> bool:
    """Steps 4 to 7 for every model that is wanted; True when a move was opened."""
    state = ctx.state
    if state.closing:
        return False
    opened = False
    still: Standstill | None = None
    state.blocked_until = {}  # looked at anew after every event: a turn may end early
    state.cooldown = {m: t for m, t in state.cooldown.items() if t > ctx.now_s}
    for model in _wanted_in_order(ctx):
        iid = instance_id(model)
        instance = ctx.instance(iid)
        if instance.phase is Phase.AWAKE:
            continue
        if state.move_of(iid) is not None or instance.phase in _COMING:
            state.hold_reasons[model] = _on_its_way(ctx, instance)
            continue
        if lost_devices(state, instance):
            state.hold_reasons[model] = Reason(Code.DEVICE_GONE, f"{model} sits on a device that is gone: it is stopped first")
            continue
        if instance.phase in _LEAVING:
            state.hold_reasons[model] = Reason(Code.WAITING_MOVE, f"{model} is {instance.phase.value.replace('_', ' ')} first")
            continue
        if _may_start(ctx, instance):
            still = still or Standstill(Scene(state))
            verdict = _react(ctx, model, still)
            opened |= state.move_of(iid) is not None
            still = still if isinstance(verdict, NotNow) and state.move_of(iid) is None else None  # else the scene has changed
    return opened | _keep_always_awake(ctx)


def _keep_always_awake(ctx: Context) -> bool:
    """Models configured ``awake: always`` that nobody waits for: into room that is free or idle, never at each other's cost."""
    state = ctx.state
    absent = [m for m, s in state.models.items() if s.always_awake and s.enabled and not state.wanted(m)]
    due = [m for m in absent if _is_away(ctx, m) and _may_start(ctx, ctx.instance(instance_id(m)))]
    leaving = {m for m in due if misplaced.leave_small_device(ctx, m, CauseId("plan"))}
    if any(state.move_of(instance_id(m)) is not None for m in leaving):
        return True
    due = [m for m in due if m not in leaving]
    if not due:
        return False
    scene = Scene(state)
    given = PlannerInput(picture=scene.picture(None), targets=tuple(target(state, m) for m in due))
    placement = place(given)
    wrong = verify(placement, given)
    if wrong:
        raise InvariantViolated("; ".join(wrong))
    state.hold_reasons.update(placement.reasons)
    for model, fits in placement.seats.items():
        seat(ctx, model, fits)
    if placement.seats:
        return True  # who else may leave is seen when they are under way
    return any(misplaced.leave_for_another(ctx, scene, m, NotNow(why), CauseId("plan")) for m, why in placement.reasons.items())


def _is_away(ctx: Context, model: ModelName) -> bool:
    instance = ctx.instance(instance_id(model))
    return instance.phase in EMPTY_PHASES | {Phase.ASLEEP} and ctx.state.move_of(instance.id) is None


def _on_its_way(ctx: Context, instance: Instance) -> Reason:
    """What a model that is coming waits for: the first victim that has not left yet, else its own start."""
    move = ctx.state.move_of(instance.id)
    for step in move.steps if move is not None and instance.phase not in _COMING else ():
        other = ctx.instance(step.instance)
        if other.phase in _LEAVING:
            running = len(ctx.state.live_of(other.id).leases)
            doing = f"finishes {running} requests" if running else f"is {other.phase.value.replace('_', ' ')}"
            return Reason(Code.WAITING_TURN, f"waiting for {other.model}, which {doing}")
    if move is not None and instance.phase in EMPTY_PHASES:
        return loads_before(ctx.state, instance, move.steps[-1].devices) or Reason(
            Code.WAITING_START, f"{instance.model} is about to start"
        )
    return Reason(Code.WAITING_START, f"{instance.model} is {instance.phase.value.replace('_', ' ')}")


def _wanted_in_order(ctx: Context) -> list[ModelName]:
    state = ctx.state
    waiting = {m: state.demand(m) for m in state.holds.models()}
    first = order_demands(waiting, {m: enter_seconds(state, m) for m in waiting})
    kept = [m for m, s in state.models.items() if s.enabled and m not in waiting and state.facts_of(m).turn_kept_until_s > ctx.now_s]
    return first + kept


def _may_start(ctx: Context, instance: Instance) -> bool:
    if not ctx.state.store_ok or instance.model in ctx.state.cooldown:
        return False
    if instance.phase is Phase.BACKOFF:
        due = instance.retry_at_s is None or ctx.now_s >= instance.retry_at_s
        if not due:
            text = f"{instance.reason.text}; next try in {human_seconds((instance.retry_at_s or 0.0) - ctx.now_s)}"
            ctx.state.hold_reasons[instance.model] = Reason(Code.WAITING_RETRY, text)
        return due
    return instance.phase is not Phase.FAILED or _half_open(ctx, instance)


def _half_open(ctx: Context, instance: Instance) -> bool:
    due = ctx.state.facts_of(instance.model).half_open_at_s
    return due is None or ctx.now_s >= due


def _react(ctx: Context, model: ModelName, still: Standstill) -> Fits | NotNow | Never:
    state = ctx.state
    verdict: Fits | NotNow | Never | None = still.recall(model)
    if verdict is None:
        seen = still.scene.picture(model)
        verdict = evict(seen, target(state, model, still.scene.claimed))
        if isinstance(verdict, NotNow):
            still.note(model, seen, verdict)
        if not isinstance(verdict, Never) and misplaced.leave_for_another(ctx, still.scene, model, verdict, _cause(ctx, model)):
            return verdict
    if isinstance(verdict, Fits):
        seat(ctx, model, verdict)
        return verdict
    if isinstance(verdict, Never) and misplaced.leave_small_device(ctx, model, _cause(ctx, model)):
        return verdict
    if isinstance(verdict, Never) and (unread := unreadable(state, model)) is not None:
        verdict = NotNow(unread)
    if isinstance(verdict, Never):
        verdict = Never(never_fits(state, model) or verdict.reason)
        for hold in state.holds_of(model):
            ctx.refuse(hold.id, Permanent(verdict.reason.text, code="does_not_fit", fix=verdict.reason.fix))
        state.hold_reasons[model] = verdict.reason
        return verdict
    state.hold_reasons[model] = verdict.reason
    if verdict.retry_at_s is not None:
        state.blocked_until[model] = verdict.retry_at_s
    return verdict


def _asked_by(holds: int) -> str:
    """Why a model comes, in words that stay true when it is there."""
    if holds == 0:
        return "its turn was kept for a request that could not wait"
    return "asked for by a request" if holds == 1 else f"asked for by {holds} requests"


def seat(ctx: Context, model: ModelName, fits: Fits) -> None:
    """Open the move that brings ``model`` awake where it was found to fit."""
    state = ctx.state
    holds = state.holds_of(model)
    by_hold = state.wanted(model)
    operator = bool(holds) and all(hold.action is not None for hold in holds)
    cause = _cause(ctx, model)
    away = ", ".join(f"{leave.seat.model} to {str(leave.exit.goal).replace(':', ' ')}" for leave in fits.leaves)
    freed = sum(sum(leave.exit.claim_freed.values()) for leave in fits.leaves)
    code = Code.ASKED if operator else Code.REQUESTED if by_hold else Code.ALWAYS
    why = "asked for by an operator" if operator else _asked_by(len(holds)) if by_hold else "configured awake: always"
    deeper = why_deeper(state, fits.leaves)
    text = f"{model} on {', '.join(fits.devices)}: {why}" + (f"; puts away {away} ({human_bytes(freed)})" if away else "")
    text = "; ".join((text, *deeper))
    steps = tuple(moves.shrink_step(leave.seat.instance, leave.exit.goal) for leave in fits.leaves)
    devices = frozenset(fits.devices) | {d for leave in fits.leaves for d in leave.seat.devices}
    moves.open_move(
        ctx,
        steps=(*steps, moves.grow_step(instance_id(model), fits.devices)),
        devices=devices,
        cause=cause,
        reason=Reason(code, text, fix_of(state) if deeper else ""),
        beneficiary=model,
    )
    ctx.tell("move", model, text, cause=cause)


def _cause(ctx: Context, model: ModelName) -> CauseId:
    """Who is behind a move for ``model``: the first in its queue, a turn that is kept, or nobody in particular."""
    holds = order_holds(ctx.state.holds_of(model))
    if not holds:
        return CauseId("turn" if ctx.state.wanted(model) else "plan")
    return CauseId(f"hold:{holds[0].id}" if holds[0].action is None else f"{ACTION_CAUSE}{holds[0].action}")


def release_backoff(ctx: Context) -> None:
    """A back-off that is over and that nobody waits for ends as stopped."""
    for instance in list(ctx.state.instances.values()):
        if instance.phase is not Phase.BACKOFF or (instance.retry_at_s or 0.0) > ctx.now_s:
            continue
        spec = ctx.state.models.get(instance.model)
        if not ctx.state.wanted(instance.model) and (spec is None or not spec.always_awake) and ctx.state.move_of(instance.id) is None:
            ctx.transition(instance.id, GoalChanged(at_s=ctx.now_s))


def cancel(ctx: Context, hold: HoldId) -> None:
    """A client went away before its turn: no wake for it."""
    ctx.state.holds.pop(hold, None)
