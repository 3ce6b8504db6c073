"""How long a held request will still wait. Estimates inform people and Retry-After; they never gate a start."""

from scheduler.domain.ids import ModelName, instance_id
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.lease import Hold
from scheduler.domain.reasons import Code
from scheduler.orchestrator.state import State
from scheduler.orchestrator.view import enter_seconds

MOST_RETRY_AFTER_S = 120.0


def eta_seconds(state: State, hold: Hold) -> float | None:
    """Seconds until ``hold`` is expected to be granted; None when it cannot be told: memory of others comes back when it does."""
    why = state.hold_reasons.get(hold.model)
    if why is not None and why.code is Code.WAITING_MEMORY and state.move_of(instance_id(hold.model)) is None:
        return None
    ahead = sum(1 for other in state.holds.of(hold.model) if other < hold.id)
    return awake_seconds(state, hold.model) + queue_seconds(state, hold.model, ahead)


def awake_seconds(state: State, model: ModelName) -> float:
    """Seconds until a model is expected to be awake: the same for all who wait for it."""
    instance = state.instances.get(instance_id(model)) or Instance(id=instance_id(model))
    if instance.phase is Phase.AWAKE:
        return 0.0
    enter = enter_seconds(state, model)
    if instance.phase in (Phase.LAUNCHING, Phase.WAKING):
        elapsed = state.now_s - instance.since_s
        return max(0.5, enter - elapsed)
    if instance.phase is Phase.BACKOFF and instance.retry_at_s is not None:
        return max(0.0, instance.retry_at_s - state.now_s) + enter
    turn = state.blocked_until.get(model)
    if turn is not None:
        return max(0.0, turn - state.now_s) + enter
    move = state.move_of(instance.id)
    leaving = 0.0
    if move is not None:
        for step in move.steps[:-1]:
            leaving = max(leaving, state.facts_of(state.instances[step.instance].model).footprint.leave_seconds(step.goal.level))
    return leaving + enter


def is_measured(state: State, model: ModelName) -> bool:
    """Whether bringing a model awake from where it is was timed before, so that the estimate is more than a guess."""
    instance, learned = state.instances.get(instance_id(model)), state.facts_of(model).learned
    if instance is None or instance.level is None:
        return bool(learned.start_s) or (instance is not None and instance.phase is Phase.AWAKE)
    return bool(learned.wake_s.get(instance.level))


def queue_seconds(state: State, model: ModelName, ahead: int) -> float:
    """Wait behind ``ahead`` others and the model's own concurrency limit."""
    spec = state.models.get(model)
    if spec is None or spec.max_concurrent is None:
        return 0.0
    running = len(state.live_of(instance_id(model)).leases)
    return ((ahead + running) // spec.max_concurrent) * state.facts_of(model).service_s


def longest_seconds(state: State, model: ModelName) -> float | None:
    """Seconds until the last who waits for a model is expected to be granted; None when nobody waits."""
    waiting = len(state.holds.of(model))
    return awake_seconds(state, model) + queue_seconds(state, model, waiting - 1) if waiting else None


def retry_after(state: State, model: ModelName) -> float:
    """Seconds to tell a refused client, within [1, 120]."""
    longest = longest_seconds(state, model)
    return min(MOST_RETRY_AFTER_S, max(1.0, longest if longest is not None else 5.0))
