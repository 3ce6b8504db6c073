"""The launch record: what an engine process was started with. Committed before exec; claims, control calls and adoption read it."""

from dataclasses import dataclass

from scheduler.domain.claims import Footprint
from scheduler.domain.ids import DeviceId, InstanceId, LaunchId
from scheduler.domain.reasons import Code


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """Immutable but for what becomes known later: the process (at the gate), the version (at Ready), the end.

    ``boot_id`` + ``pid`` + ``start_ticks`` identify the process; ``pid`` None = nothing was ever let through the gate.
    ``argv`` is stored whole (redacted only when shown); of the built environment only a hash.
    """

    id: LaunchId
    instance: InstanceId
    engine: str
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # what the adapter added; never secrets
    env_hash: str
    cwd: str
    devices: tuple[DeviceId, ...]
    port: int
    kv_bytes: int | None
    footprint: Footprint
    token: str
    fingerprint: str
    served_model: str
    ready_path: str
    sleep_paths: tuple[tuple[str, float], ...]
    wake_paths: tuple[tuple[str, float], ...]
    log_path: str
    boot_id: str
    created_at: float  # wall clock, POSIX seconds
    pid: int | None = None
    start_ticks: int | None = None
    version: str = ""
    golden: str | None = None  # what it answered after its start, to be compared with after each wake


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd:
    """How a launch ended: ``duration_s`` until Ready or until it failed."""

    launch: LaunchId
    at: float
    result: str  # "ready" (served), "failed", "stopped", "lost"
    exit_code: int | None = None
    exit_signal: int | None = None
    reason: Code = Code.NONE
    log_line: str = ""
    duration_s: float | None = None
