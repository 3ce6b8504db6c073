"""A drain that lasts is reconsidered: its beneficiary may be seated elsewhere sooner.

Nobody can say how long a stream will run. The best guess is that it lasts as long again as it has, so a beneficiary waits for it
at most about as long as a start elsewhere takes, once there is room elsewhere. The victim then serves on, its held requests with it.
"""

from scheduler.domain.ids import ModelName, instance_id
from scheduler.domain.instance import EMPTY_PHASES, Instance, Phase
from scheduler.domain.plan import Move
from scheduler.orchestrator import misplaced, moves, reactions
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.view import Scene, drain_seconds, enter_seconds

_AT_REST = EMPTY_PHASES | {Phase.AWAKE, Phase.DRAINING, Phase.ASLEEP}


def reconsider(ctx: Context) -> None:
    """Look at every drain once for each sample: what was busy elsewhere may be idle by now."""
    for move in list(ctx.state.moves.values()):
        if move.beneficiary is not None and _waits_only(ctx, move, move.beneficiary):
            _reconsider(ctx, move, move.beneficiary)


def _waits_only(ctx: Context, move: Move, beneficiary: ModelName) -> bool:
    """Whether the move waits for a drain, and nothing that it began has to be waited for."""
    at_rest = all(ctx.instance(step.instance).phase in _AT_REST for step in move.steps)
    return at_rest and bool(_busy(ctx, move)) and not ctx.state.facts_of(beneficiary).attached


def _busy(ctx: Context, move: Move) -> list[Instance]:
    there = [ctx.instance(step.instance) for step in move.steps]
    return [i for i in there if i.phase is Phase.DRAINING and ctx.state.busy(i.id)]


def _reconsider(ctx: Context, move: Move, model: ModelName) -> None:
    state, instance, busy = ctx.state, ctx.instance(instance_id(model)), _busy(ctx, move)
    stays_s = max(drain_seconds(state, i) for i in busy) + enter_seconds(state, model)
    there = misplaced.elsewhere(Scene(state), model, stays_s)
    if there is None:
        return
    moves.withdraw(ctx, move, f"{model} is started on {', '.join(there.devices)} instead")
    if instance.phase is Phase.ASLEEP:
        why = f"{', '.join(i.model for i in busy)} must finish first, and takes long"
        misplaced.stop_to_restart(ctx, instance, there, why, move.cause)
    else:
        reactions.seat(ctx, model, there)
