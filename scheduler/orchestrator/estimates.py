"""How long a held request will still wait. Estimates inform people and Retry-After; they never gate a start."""

from scheduler.domain.ids import ModelName, instance_id
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.lease import Hold
from scheduler.orchestrator.state import State
from scheduler.orchestrator.view import enter_seconds

MOST_RETRY_AFTER_S = 120.0


def eta_seconds(state: State, hold: Hold) -> float | None:
    """Seconds until ``hold`` is expected to be granted; None when it cannot be told."""
    instance = state.instances.get(instance_id(hold.model)) or Instance(id=instance_id(hold.model))
    queue = _queue_seconds(state, hold, instance)
    if instance.phase is Phase.AWAKE:
        return queue
    enter = enter_seconds(state, hold.model)
    if instance.phase in (Phase.LAUNCHING, Phase.WAKING):
        elapsed = state.now_s - instance.since_s
        return max(0.5, enter - elapsed) + queue
    if instance.phase is Phase.BACKOFF and instance.retry_at_s is not None:
        return max(0.0, instance.retry_at_s - state.now_s) + enter + queue
    turn = state.blocked_until.get(hold.model)
    if turn is not None:
        return max(0.0, turn - state.now_s) + enter + queue
    move = state.move_of(instance.id)
    leaving = 0.0
    if move is not None:
        for step in move.steps[:-1]:
            leaving = max(leaving, state.facts_of(state.instances[step.instance].model).footprint.leave_seconds(step.goal.level))
    return leaving + enter + queue


def retry_after(state: State, model: ModelName) -> float:
    """Seconds to tell a refused client, within [1, 120]."""
    holds = state.holds_of(model)
    etas = [eta for eta in (eta_seconds(state, h) for h in holds) if eta is not None]
    return min(MOST_RETRY_AFTER_S, max(1.0, max(etas, default=5.0)))


def _queue_seconds(state: State, hold: Hold, instance: Instance) -> float:
    """Wait behind the model's own concurrency limit."""
    spec = state.models.get(hold.model)
    if spec is None or spec.max_concurrent is None:
        return 0.0
    ahead = sum(1 for h in state.holds_of(hold.model) if h.id < hold.id) + len(state.live_of(instance.id).leases)
    return (ahead // spec.max_concurrent) * state.facts_of(hold.model).service_s
