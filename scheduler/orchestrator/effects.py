"""What the reducer wants done. Effects are values; the applier and the executor carry them out."""

from dataclasses import dataclass

from scheduler.domain.claims import Footprint
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import ActionId, CauseId, DeviceId, HoldId, InstanceId, LaunchId, LeaseId, ModelName
from scheduler.domain.instance import Instance, Transition
from scheduler.domain.launch import LaunchEnd
from scheduler.domain.learned import Learned
from scheduler.domain.lease import Lease
from scheduler.domain.plan import Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Root of all effects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal(Effect):
    """Write a transition and the row it leads to. ``prior`` set = an intent: on a failed commit it is refused."""

    transition: Transition
    instance: Instance
    prior: Instance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveInstance(Effect):
    """Write the row (its claim changed) without a transition."""

    instance: Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEffect(Effect):
    """Root of what a supervisor does once transition ``seq`` is committed."""

    instance: InstanceId
    launch: LaunchId
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(EngineEffect):
    """Start an engine process; its launch record is committed together with transition ``seq``."""

    devices: tuple[DeviceId, ...]
    footprint: Footprint
    claim_bytes: int = 0  # all that it may take, per device
    kv_bytes: int | None = None  # of it the KV cache; None = the engine sizes it itself
    sleepless: bool = False  # without what sleeping needs: with it, it did not start


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep(EngineEffect):
    """Put the engine to sleep at ``level``."""

    level: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake(EngineEffect):
    """Wake the engine from ``level``."""

    level: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(EngineEffect):
    """End the whole process group: TERM, or KILL. Carried out even when the journal cannot be written."""

    kill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Find(EngineEffect):
    """Find out what the engine is doing; report until told otherwise."""

    started_before: bool  # the launch may still be in progress


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchIdle(EngineEffect):
    """Report when the engine says on two readings that no request runs in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNow(EngineEffect):
    """A request was cut: look at the engine at once instead of at the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLaunch(Effect):
    """Complete a launch record."""

    end: LaunchEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVersion(Effect):
    """Add the engine's version to its launch record."""

    launch: LaunchId
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGolden(Effect):
    """Add what the engine answered after its start to its launch record."""

    launch: LaunchId
    golden: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLease(Effect):
    """Answer a held request."""

    hold: HoldId
    lease: Lease
    launch: LaunchId


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseHold(Effect):
    """End a held request with an error."""

    hold: HoldId
    error: HotseatError


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLeases(Effect):
    """Tell the relay to end these requests with an error event, before the engine is touched. ``cause``: who wants it."""

    leases: tuple[LeaseId, ...]
    cause: CauseId


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMove(Effect):
    """Write a move: when it opens and when it ends."""

    move: Move


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveLearned(Effect):
    """Write what was measured on a model."""

    model: ModelName
    device_kind: str
    learned: Learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure(Effect):
    """Sample soon: somebody waits for bytes on these devices."""

    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell(Effect):
    """One line for the event feed, the log and the metrics."""

    kind: str
    subject: str
    message: str
    data: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishAction(Effect):
    """An operator's action has ended."""

    action: ActionId
    ok: bool
    code: str
    message: str
    fix: str = ""
