"""Holds and leases: a request is held until its model is awake, then leased to one instance."""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.domain.ids import ActionId, HoldId, InstanceId, LeaseId, ModelName
from scheduler.domain.model import ModelClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Somebody waits for ``model``. Times are monotonic seconds.

    ``deadline_s`` is when it is refused; a cold start that is under way may extend it up to ``limit_s``, the caller's
    own patience. A hold with ``action`` set comes from an operator's wake: it wants the model awake, not a lease.
    """

    id: HoldId
    model: ModelName
    arrived_s: float
    deadline_s: float
    limit_s: float
    model_class: ModelClass = ModelClass.INTERACTIVE
    principal: str = "local"
    action: ActionId | None = None
    second_try: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One request in flight on an instance; it keeps that instance awake until released."""

    id: LeaseId
    hold: HoldId
    model: ModelName
    instance: InstanceId
    granted_s: float
    waited_s: float
    woke: bool  # the request waited for a wake or a start
    model_class: ModelClass = ModelClass.INTERACTIVE
    principal: str = "local"


class Outcome(StrEnum):
    """How a lease ended."""

    OK = "ok"
    CLIENT_GONE = "client_gone"
    ENGINE_ERROR = "engine_error"  # the engine answered with an error of its own
    ENGINE_LOST = "engine_lost"  # connection refused, reset, or cut before the end
    ABORTED = "aborted"  # the engine cut the answer short (finish_reason abort)
