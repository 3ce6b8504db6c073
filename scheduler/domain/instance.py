"""The life of one instance: phases, events, the table of what may follow what, and the one function that moves it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from scheduler.domain.claims import NOTHING, Claim
from scheduler.domain.errors import InvariantViolated
from scheduler.domain.ids import CauseId, DeviceId, InstanceId, LaunchId, ModelName, model_of
from scheduler.domain.reasons import NO_REASON, Reason


class Phase(StrEnum):
    """Observed state. Adjectives are stable; -ing forms have an owner task and a deadline."""

    STOPPED = "stopped"
    LAUNCHING = "launching"
    AWAKE = "awake"
    DRAINING = "draining"
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"
    UNKNOWN = "unknown"


#: Phases in which no engine process exists and nothing is claimed.
EMPTY_PHASES = frozenset({Phase.STOPPED, Phase.BACKOFF, Phase.FAILED})
#: Phases in which the engine takes memory.
GROWING_PHASES = frozenset({Phase.LAUNCHING, Phase.WAKING})
#: Phases in which the engine gives memory back.
SHRINKING_PHASES = frozenset({Phase.FALLING_ASLEEP, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Goal:
    """Desired state: awake, asleep at a level, or stopped."""

    phase: Phase
    level: int | None = None

    def __str__(self) -> str:
        return self.phase.value if self.level is None else f"{self.phase.value}:{self.level}"


GOAL_AWAKE = Goal(Phase.AWAKE)
GOAL_STOPPED = Goal(Phase.STOPPED)


def goal_asleep(level: int) -> Goal:
    """Asleep at ``level``."""
    return Goal(Phase.ASLEEP, level)


@dataclass(frozen=True, slots=True)
class Failures:
    """Consecutive failures by kind. ``launch``, ``sleep``, ``wake`` are cleared by Ready, ``crash`` by an answered request."""

    launch: int = 0
    sleep: int = 0
    wake: int = 0
    crash: int = 0

    @property
    def total(self) -> int:
        """All kinds together."""
        return self.launch + self.sleep + self.wake + self.crash


NO_FAILURES = Failures()


# --- events -----------------------------------------------------------------------------------------------------
# ``at_s`` is monotonic. Claims are computed by the caller (domain/claims.py), so that this module only moves phases.


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Root of all events of an instance."""

    at_s: float
    cause: CauseId = CauseId("")
    reason: Reason = NO_REASON


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIntended(Event):
    """An engine process is about to be started on ``devices``; its launch record is committed with this event."""

    launch: LaunchId
    devices: tuple[DeviceId, ...]
    claim: Claim
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDue(LaunchIntended):
    """The back-off is over: one more launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpened(LaunchIntended):
    """One try of a failed model, on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Event):
    """The engine answered a real probe."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTimedOut(Event):
    """Not ready within its start time."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLost(Event):
    """The engine's leader exited, or the engine is beyond saving: end what is left of its group."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopIntended(Event):
    """Stop without draining; ``deadline_s`` is when TERM becomes KILL."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainIntended(Event):
    """No new grants; put away (``goal``) when the last lease ends."""

    goal: Goal
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained(Event):
    """No lease is left."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced(Event):
    """Leases are cut: an operator said so, or the drain deadline passed where cutting is allowed."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCancelled(Event):
    """The beneficiary's demand is gone, or it is seated elsewhere sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepConfirmed(Event):
    """Level echoed and memory fallen."""

    level: int
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepIneffective(Event):
    """The engine said yes and kept the memory."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepFailed(Event):
    """The engine said no."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepTimedOut(Event):
    """No answer in time."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeIntended(Event):
    """A sleeper is about to take its memory again."""

    claim: Claim
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeFailed(Event):
    """The engine could not wake."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeTimedOut(Event):
    """No answer in time."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLost(Event):
    """Evidence that the engine does not answer any more (connection refused): find out."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRestarted(Event):
    """A new daemon knows this row only from the journal: find out."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedAwake(Event):
    """The probe found it serving."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedAsleep(Event):
    """The probe found it asleep."""

    level: int
    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLaunching(Event):
    """The probe found it still starting: the old deadline holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeExhausted(Event):
    """No clear answer within the probe's time."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGone(Event):
    """The process set is empty and its bytes were seen free. ``retry_at_s`` set = it failed and is wanted again."""

    retry_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDue(Event):
    """TERM was not enough: KILL the whole group, again every ``deadline_s``."""

    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalChanged(Event):
    """Nobody wants it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriesExhausted(Event):
    """Too many failures, or one that a retry cannot mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Event):
    """An operator cleared the failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged(Event):
    """The model's definition changed: what failed may work now."""


_P = Phase
_STOP = frozenset({_P.STOPPING})
_UNKNOWN = frozenset({_P.UNKNOWN})
_AWAKE = frozenset({_P.AWAKE})
_LAUNCH = frozenset({_P.LAUNCHING})

#: What may follow what: (phase, event) -> possible next phases. The table in docs/architecture.md is generated from it.
TRANSITIONS: Mapping[tuple[Phase, type[Event]], frozenset[Phase]] = {
    (_P.STOPPED, LaunchIntended): _LAUNCH,
    (_P.LAUNCHING, Ready): _AWAKE,
    (_P.LAUNCHING, GroupLost): _STOP,
    (_P.LAUNCHING, LaunchTimedOut): _STOP,
    (_P.LAUNCHING, StopIntended): _STOP,
    (_P.LAUNCHING, DaemonRestarted): _UNKNOWN,
    (_P.AWAKE, DrainIntended): frozenset({_P.DRAINING}),
    (_P.AWAKE, GroupLost): _STOP,
    (_P.AWAKE, ProbeLost): _UNKNOWN,
    (_P.AWAKE, DaemonRestarted): _UNKNOWN,
    (_P.DRAINING, Drained): frozenset({_P.FALLING_ASLEEP, _P.STOPPING}),
    (_P.DRAINING, Forced): _STOP,
    (_P.DRAINING, GroupLost): _STOP,
    (_P.DRAINING, DrainCancelled): _AWAKE,
    (_P.DRAINING, ProbeLost): _UNKNOWN,
    (_P.DRAINING, DaemonRestarted): _UNKNOWN,
    (_P.FALLING_ASLEEP, SleepConfirmed): frozenset({_P.ASLEEP}),
    (_P.FALLING_ASLEEP, SleepIneffective): _STOP,
    (_P.FALLING_ASLEEP, SleepFailed): _STOP,
    (_P.FALLING_ASLEEP, StopIntended): _STOP,
    (_P.FALLING_ASLEEP, GroupLost): _STOP,
    (_P.FALLING_ASLEEP, SleepTimedOut): _UNKNOWN,
    (_P.FALLING_ASLEEP, DaemonRestarted): _UNKNOWN,
    (_P.ASLEEP, WakeIntended): frozenset({_P.WAKING}),
    (_P.ASLEEP, StopIntended): _STOP,
    (_P.ASLEEP, GroupLost): _STOP,
    (_P.ASLEEP, ProbeLost): _UNKNOWN,
    (_P.ASLEEP, DaemonRestarted): _UNKNOWN,
    (_P.WAKING, Ready): _AWAKE,
    (_P.WAKING, WakeFailed): _UNKNOWN,
    (_P.WAKING, WakeTimedOut): _UNKNOWN,
    (_P.WAKING, StopIntended): _STOP,
    (_P.WAKING, GroupLost): _STOP,
    (_P.WAKING, DaemonRestarted): _UNKNOWN,
    (_P.STOPPING, GroupGone): frozenset({_P.STOPPED, _P.BACKOFF}),
    (_P.STOPPING, KillDue): _STOP,
    (_P.BACKOFF, RetryDue): _LAUNCH,
    (_P.BACKOFF, GoalChanged): frozenset({_P.STOPPED}),
    (_P.BACKOFF, Reset): frozenset({_P.STOPPED}),
    (_P.BACKOFF, ConfigChanged): frozenset({_P.STOPPED}),
    (_P.BACKOFF, RetriesExhausted): frozenset({_P.FAILED}),
    (_P.FAILED, HalfOpened): _LAUNCH,
    (_P.FAILED, Reset): frozenset({_P.STOPPED}),
    (_P.FAILED, ConfigChanged): frozenset({_P.STOPPED}),
    (_P.UNKNOWN, ProbedAwake): _AWAKE,
    (_P.UNKNOWN, ProbedAsleep): frozenset({_P.ASLEEP}),
    (_P.UNKNOWN, ProbedLaunching): _LAUNCH,
    (_P.UNKNOWN, ProbeExhausted): _STOP,
    (_P.UNKNOWN, StopIntended): _STOP,
    (_P.UNKNOWN, GroupLost): _STOP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One seat-taker. Times are monotonic seconds of this boot.

    ``level`` is the sleep level while asleep or waking, ``before`` the phase that ``unknown`` came from,
    ``launch_deadline_s`` the end of the start in progress (kept through ``unknown``), ``deadline_s`` the end of the
    present transitional phase.
    """

    id: InstanceId
    phase: Phase = Phase.STOPPED
    level: int | None = None
    goal: Goal = GOAL_STOPPED
    devices: tuple[DeviceId, ...] = ()
    launch: LaunchId | None = None
    claim: Claim = NOTHING
    since_s: float = 0.0
    deadline_s: float | None = None
    launch_deadline_s: float | None = None
    retry_at_s: float | None = None
    before: Phase | None = None
    failures: Failures = field(default=NO_FAILURES)
    cause: CauseId = CauseId("")
    reason: Reason = NO_REASON

    @property
    def model(self) -> ModelName:
        """The model this instance runs."""
        return model_of(self.id)

    @property
    def has_process(self) -> bool:
        """Whether an engine process may exist."""
        return self.phase not in EMPTY_PHASES


def may(instance: Instance, event: type[Event]) -> bool:
    """Whether ``event`` is legal in the present phase."""
    return (instance.phase, event) in TRANSITIONS


def apply(instance: Instance, event: Event) -> Instance:
    """The instance after ``event``. The only place where a phase changes; raises InvariantViolated for an illegal pair."""
    allowed = TRANSITIONS.get((instance.phase, type(event)))
    if allowed is None:
        raise InvariantViolated(f"{instance.id}: {type(event).__name__} is not possible while {instance.phase}")
    target = _target(instance, event, allowed)
    moved = replace(
        instance,
        phase=target,
        since_s=instance.since_s if target is instance.phase else event.at_s,
        deadline_s=getattr(event, "deadline_s", None),
        cause=event.cause or instance.cause,
        reason=event.reason if event.reason is not NO_REASON else instance.reason,
        before=instance.phase if target is Phase.UNKNOWN else None,
        retry_at_s=None,
    )
    return _carry(moved, instance, event)


def _target(instance: Instance, event: Event, allowed: frozenset[Phase]) -> Phase:
    if isinstance(event, Drained):
        return Phase.FALLING_ASLEEP if instance.goal.phase is Phase.ASLEEP else Phase.STOPPING
    if isinstance(event, GroupGone):
        return Phase.STOPPED if event.retry_at_s is None else Phase.BACKOFF
    (target,) = allowed
    return target


def _carry(moved: Instance, old: Instance, event: Event) -> Instance:
    """What each event brings besides the phase."""
    match event:
        case LaunchIntended():  # RetryDue and HalfOpened included
            return replace(
                moved,
                launch=event.launch,
                devices=event.devices,
                claim=event.claim,
                level=None,
                launch_deadline_s=event.deadline_s,
                goal=GOAL_AWAKE,
            )
        case Ready() | ProbedAwake():
            cleared = replace(old.failures, launch=0, sleep=0, wake=0)
            return replace(moved, claim=event.claim, level=None, launch_deadline_s=None, failures=cleared, goal=GOAL_AWAKE)
        case DrainIntended():
            return replace(moved, goal=event.goal)
        case DrainCancelled():
            return replace(moved, goal=GOAL_AWAKE)
        case SleepConfirmed() | ProbedAsleep():
            asleep = goal_asleep(event.level)  # what was found is what is wanted, until somebody wants something else
            return replace(moved, claim=event.claim, level=event.level, launch_deadline_s=None, goal=asleep)
        case WakeIntended():
            return replace(moved, claim=event.claim, goal=GOAL_AWAKE)
        case ProbedLaunching():
            return replace(moved, deadline_s=old.launch_deadline_s)
        case GroupGone():
            goal = moved.goal if event.retry_at_s is not None else GOAL_STOPPED
            empty = replace(moved, claim=NOTHING, devices=(), launch=None, level=None, launch_deadline_s=None)
            return replace(empty, retry_at_s=event.retry_at_s, goal=goal)
        case Reset() | ConfigChanged():
            return replace(moved, failures=NO_FAILURES, goal=GOAL_STOPPED, reason=event.reason)
        case RetriesExhausted() | GoalChanged():
            return replace(moved, goal=GOAL_STOPPED)
        case _:
            return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One line of the story: written to the journal for every change of phase."""

    seq: int
    at: float  # wall clock, POSIX seconds
    instance: InstanceId
    source: Phase
    target: Phase
    event: str
    cause: CauseId
    reason: Reason = NO_REASON
