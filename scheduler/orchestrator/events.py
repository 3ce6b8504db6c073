"""What the outside tells the reducer. Small and frozen; ``at_s`` is monotonic and comes from whoever saw it."""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.domain.claims import Footprint
from scheduler.domain.device import DeviceInfo, DeviceSample, HostSample
from scheduler.domain.ids import ActionId, HoldId, InstanceId, LaunchId, LeaseId, ModelName
from scheduler.domain.instance import Instance
from scheduler.domain.lease import Hold, Outcome
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Root of all events of the control loop."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Happening):
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequested(Happening):
    """Somebody waits."""

    hold: Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldCancelled(Happening):
    """The client went away before its turn."""

    hold: HoldId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased(Happening):
    """A request ended."""

    lease: LeaseId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Happening):
    """An operator asked: verb is wake, sleep, stop or restart. ``force`` cuts leases."""

    action: ActionId
    verb: str
    model: ModelName
    level: int | None = None
    force: bool = False
    by: str = "local"
    patience_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing(Happening):
    """The daemon is about to end and takes its engines along: from now on nothing is started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromEngine(Happening):
    """Root of what a supervisor reports; a report of another launch than the present one is dropped."""

    instance: InstanceId
    launch: LaunchId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReady(FromEngine):
    """It answered a real probe, after a launch or a wake."""

    version: str = ""
    golden: str = ""  # after a launch: what it answered, to be compared with after each wake


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProgressed(FromEngine):
    """It is not ready yet, but it wrote to its log or read from the disk. (Growing memory is seen in samples.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAnswered(FromEngine):
    """It is not ready, but something on its port answers, and not as an engine that loads does; empty = no longer."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExited(FromEngine):
    """Its leader ended, or it was never started (``reason`` says why)."""

    reason: Reason
    exit_code: int | None = None
    exit_signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEmpty(FromEngine):
    """No process of its group is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepReturned(FromEngine):
    """The engine says that it sleeps, at ``level``."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepErrored(FromEngine):
    """The engine refused to sleep, or answered nonsense."""

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeSent(FromEngine):
    """The engine is being asked to wake: from now on it is its own fault if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeErrored(FromEngine):
    """The engine could not wake."""

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(FromEngine):
    """A finding about an engine in an unknown phase: awake, asleep, launching, or nothing clear yet (None).

    ``golden``: what it answered, where its start was over before anybody had asked it.
    """

    state: str | None
    level: int | None = None
    version: str = ""
    golden: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRefused(FromEngine):
    """It does not accept connections although its process lives; or (``asleep``) it says that it sleeps, and nobody here told it to."""

    asleep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSlow(FromEngine):
    """Its health answer is late (``slow``), or in time again: late ones get no new requests."""

    slow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdle(FromEngine):
    """It says on two readings that no request runs in it (after an adoption)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Happening):
    """Fresh measurements."""

    samples: tuple[DeviceSample, ...]
    host: HostSample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesChanged(Happening):
    """The devices of one family, as they are now; known ones that are not among them are missing."""

    kind: str
    devices: tuple[DeviceInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentRefused(Happening):
    """The intent row ``seq`` could not be committed: nothing was done; back to ``prior``."""

    seq: int
    prior: Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed(Happening):
    """The database does not take rows."""

    code: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecovered(Happening):
    """The database takes rows again and has caught up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsChanged(Happening):
    """The registry after a change: all models, their sleep levels and first guesses."""

    models: Mapping[ModelName, ModelSpec]
    levels: Mapping[ModelName, tuple[int, ...]]
    guesses: Mapping[ModelName, Footprint]
    kinds: Mapping[ModelName, tuple[str, ...]]
    attached: frozenset[ModelName] = frozenset()  # somebody else's engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Complained(Happening):
    """Something to show as degraded until ``code`` is cleared (empty message = cleared)."""

    code: Code
    message: str = ""
    fix: str = ""
