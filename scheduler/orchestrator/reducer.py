"""The pure core: one event in, effects out. No I/O, no clock, no randomness, no logging.

``reduce`` is level-triggered: after the event itself it looks at everything once more (deadlines, moves, demand), so that a
lost or late event never leaves something undone for longer than the next one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler.domain.instance import Phase
from scheduler.domain.lease import Outcome
from scheduler.orchestrator import deadlines, detours, devices, hosting, lifecycle, measuring, misplaced, moves, reactions, upkeep
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.effects import CheckNow, Effect
from scheduler.orchestrator.events import (
    Asked,
    Closing,
    Complained,
    DevicesChanged,
    EngineExited,
    EngineIdle,
    EngineReady,
    EngineRefused,
    EngineSlow,
    Found,
    FromEngine,
    GroupEmpty,
    Happening,
    HoldCancelled,
    IntentRefused,
    LeaseReleased,
    LeaseRequested,
    ModelsChanged,
    Sampled,
    SleepErrored,
    SleepReturned,
    StartAnswered,
    StartProgressed,
    StoreFailed,
    StoreRecovered,
    Tick,
    WakeErrored,
    WakeSent,
)
from scheduler.orchestrator.state import State

#: Weight of the newest lease in the mean service time.
SERVICE_WEIGHT = 0.2
#: Passes after which a decision loop must have come to rest; more means two rules undo each other.
MOST_PASSES = 50


def reduce(state: State, event: Happening, wall: float) -> list[Effect]:
    """Apply ``event`` to ``state`` (in place) and return what is to be done, in order."""
    state.now_s = max(state.now_s, event.at_s)
    state.wall = wall
    ctx = Context(state)
    if not (isinstance(event, FromEngine) and state.launch_of(event.instance) != event.launch):
        _HANDLERS[type(event)](ctx, event)
    settle(ctx)
    return ctx.effects


def settle(ctx: Context) -> None:
    """Everything that follows from the state as it is, until nothing changes any more."""
    _deadlines(ctx)
    misplaced.leave_lost_devices(ctx)
    for _ in range(MOST_PASSES):
        changed = moves.advance(ctx)
        reactions.grant(ctx)
        reactions.refuse(ctx)
        reactions.release_backoff(ctx)
        upkeep.forget_removed(ctx)
        changed |= upkeep.grant_wishes(ctx)
        changed |= upkeep.shed(ctx)
        changed |= upkeep.shed_host(ctx)
        changed |= reactions.start_moves(ctx)
        if not changed:
            break
    else:
        raise AssertionError("the reducer does not come to rest")
    reactions.refuse_hopeless(ctx)


def next_deadline(state: State) -> float | None:
    """When the state changes by time alone (monotonic seconds): the control loop's alarm clock."""
    ctx = Context(state)
    times = [state.demand(model).deadline_s for model in state.holds.models()]
    times += [i.deadline_s for i in state.instances.values() if i.deadline_s is not None]
    times += [i.retry_at_s for i in state.instances.values() if i.retry_at_s is not None]
    times += [i.since_s + moves.MEASURE_S for i in state.instances.values() if i.phase is Phase.DRAINING]
    times += list(state.blocked_until.values())
    times += list(state.settle_until.values())
    times += list(state.cooldown.values())
    times += [f.turn_kept_until_s for f in state.facts.values()]
    times += [due for i in state.instances.values() if (due := upkeep.idle_deadline(ctx, i)) is not None]
    return min((t for t in times if t > state.now_s), default=None)  # what is due now was settled just now


# --- handlers ---------------------------------------------------------------------------------------------------


def _deadlines(ctx: Context) -> None:
    for instance in list(ctx.state.instances.values()):
        if instance.deadline_s is not None and ctx.now_s >= instance.deadline_s:
            deadlines.on_deadline(ctx, instance)


def _on_nothing(ctx: Context, event: Tick) -> None:
    """Time has passed; the rest of the pass sees to it."""


def _on_cancelled(ctx: Context, event: HoldCancelled) -> None:
    reactions.cancel(ctx, event.hold)


def _on_released(ctx: Context, event: LeaseReleased) -> None:
    state = ctx.state
    lease = state.leases.pop(event.lease, None)
    if lease is None:
        return
    live = state.live_of(lease.instance)
    live.leases.discard(lease.id)
    facts = state.facts_of(lease.model)
    facts.last_used_s, facts.last_used_wall = ctx.now_s, state.wall
    facts.service_s += SERVICE_WEIGHT * ((ctx.now_s - lease.granted_s) - facts.service_s)
    instance = ctx.instance(lease.instance)
    if event.outcome is Outcome.OK:
        live.served = True
        if instance.failures.crash:
            state.instances[instance.id] = replace(instance, failures=replace(instance.failures, crash=0))
    elif event.outcome is Outcome.ENGINE_LOST and instance.phase is Phase.AWAKE and instance.launch is not None:
        live.refused = True  # no new grants until somebody looked
        ctx.emit(CheckNow(instance=instance.id, launch=instance.launch, seq=state.last_seq.get(instance.id, 0)))


def _on_slow(ctx: Context, event: EngineSlow) -> None:
    live = ctx.state.live_of(event.instance)
    live.slow = event.slow
    if not event.slow:
        live.refused = False


def _on_idle(ctx: Context, event: EngineIdle) -> None:
    ctx.state.live_of(event.instance).inherited = False


def _on_sampled(ctx: Context, event: Sampled) -> None:
    for sample in event.samples:
        if sample.device in ctx.state.devices:
            devices.note(ctx, sample)
    devices.leave_dead(ctx)
    for instance in list(ctx.state.instances.values()):
        if instance.has_process:
            measuring.learn(ctx, instance)
            measuring.confirm(ctx, ctx.instance(instance.id))
            lifecycle.doubt_sleep(ctx, ctx.instance(instance.id))
    if event.host is not None:
        hosting.note_host(ctx, event.host)
    detours.reconsider(ctx)


def _on_intent_refused(ctx: Context, event: IntentRefused) -> None:
    """The row was not written, so nothing was done: back to the phase before."""
    state = ctx.state
    iid = event.prior.id
    if state.last_seq.get(iid) == event.seq:
        state.instances[iid] = event.prior
        if event.prior.phase is Phase.DRAINING:
            state.live_of(iid).returned_at_s = None


def _on_store_failed(ctx: Context, event: StoreFailed) -> None:
    ctx.state.store_ok = False
    ctx.state.degraded["store"] = (event.message, event.fix, ctx.state.wall)


def _on_store_recovered(ctx: Context, event: StoreRecovered) -> None:
    ctx.state.store_ok = True
    ctx.state.degraded.pop("store", None)


def _on_closing(ctx: Context, event: Closing) -> None:
    ctx.state.closing = True


def _on_complained(ctx: Context, event: Complained) -> None:
    code = event.code.value
    known = ctx.state.degraded.pop(code, None)
    if event.message:
        ctx.state.degraded[code] = (event.message, event.fix, known[2] if known is not None else ctx.state.wall)
    if known is None and event.message:
        ctx.tell(code, "", event.message)
    if known is not None and not event.message:
        ctx.tell(code, "", f"{code} is over")


_HANDLERS: dict[type[Happening], Callable[[Context, Any], None]] = {
    Tick: _on_nothing,
    LeaseRequested: reactions.on_requested,
    HoldCancelled: _on_cancelled,
    LeaseReleased: _on_released,
    Asked: upkeep.on_asked,
    EngineReady: lifecycle.on_ready,
    StartProgressed: lifecycle.on_progress,
    StartAnswered: lifecycle.on_answer,
    EngineExited: lifecycle.on_exit,
    GroupEmpty: lifecycle.on_group_empty,
    SleepReturned: lifecycle.on_sleep_returned,
    SleepErrored: lifecycle.on_sleep_errored,
    WakeSent: lifecycle.on_wake_sent,
    WakeErrored: lifecycle.on_wake_errored,
    Found: lifecycle.on_found,
    EngineRefused: lifecycle.on_refused,
    EngineSlow: _on_slow,
    EngineIdle: _on_idle,
    Sampled: _on_sampled,
    DevicesChanged: devices.on_devices_changed,
    IntentRefused: _on_intent_refused,
    StoreFailed: _on_store_failed,
    StoreRecovered: _on_store_recovered,
    ModelsChanged: upkeep.on_models_changed,
    Complained: _on_complained,
    Closing: _on_closing,
}
