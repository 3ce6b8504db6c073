"""Moves and steps: what will be done, on which devices, in which order, and why."""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.domain.ids import ActionId, CauseId, DeviceId, InstanceId, ModelName, MoveId
from scheduler.domain.instance import Goal
from scheduler.domain.reasons import NO_REASON, Reason


class StepKind(StrEnum):
    """A shrink gives memory back, a grow takes it."""

    SHRINK = "shrink"
    GROW = "grow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Bring one instance to ``goal``. ``devices`` is where a grow of a stopped instance will sit."""

    instance: InstanceId
    goal: Goal
    kind: StepKind
    devices: tuple[DeviceId, ...] = ()


class MoveState(StrEnum):
    """Open until every step is at its goal, or until it cannot be."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Steps that own ``devices`` while open: shrinks first (side by side), then grows, one by one.

    ``beneficiary`` is the model whose demand started it (its going away cancels what has not begun);
    ``force`` cuts leases instead of waiting for them; ``action`` is told the outcome.
    """

    id: MoveId
    devices: frozenset[DeviceId]
    steps: tuple[Step, ...]
    cause: CauseId
    created_s: float
    beneficiary: ModelName | None = None
    force: bool = False
    action: ActionId | None = None
    reason: Reason = NO_REASON
    state: MoveState = MoveState.OPEN
