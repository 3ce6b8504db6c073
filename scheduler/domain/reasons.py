"""Why: every decision and every failure carries a code, a sentence with numbers, and a fix."""

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Reason codes; documented one by one in docs/reference/reasons.md."""

    # the scheduler's own
    NONE = "none"
    ASKED = "asked"  # by an operator
    REQUESTED = "requested"  # by an inference request
    PLANNED = "planned"
    ALWAYS = "always"  # awake: always
    EVICTED = "evicted"
    OVER_COMMITTED = "over_committed"
    SHED = "shed"  # measured memory rose above what is allowed
    SPEC_STALE = "spec_stale"
    REMOVED = "removed"
    DISABLED = "disabled"
    DRAIN_CANCELLED = "drain_cancelled"
    RESTARTED = "daemon_restarted"
    ADOPTED = "adopted"
    IDLE = "idle"
    DEVICE_GONE = "device_gone"  # the configuration does not name it any more
    # held requests
    WAITING_TURN = "waiting_turn"
    WAITING_MEMORY = "waiting_memory"
    WAITING_MOVE = "waiting_move"
    WAITING_RETRY = "waiting_retry"
    WAITING_START = "waiting_start"
    STORE_UNAVAILABLE = "store_unavailable"
    # the machine
    DISK_LOW = "disk_low"
    # failures of engines
    EXECUTABLE_MISSING = "executable_missing"
    MODEL_MISSING = "model_missing"
    MODEL_UNREADABLE = "model_unreadable"
    UNSUPPORTED_ARCHITECTURE = "unsupported_architecture"
    UNKNOWN_FLAG = "unknown_flag"
    DEVICE_OOM = "device_oom"
    KV_TOO_SMALL = "kv_too_small"
    HOST_OOM = "host_oom"
    PORT_TAKEN = "port_taken"
    SHM_SMALL = "shm_small"
    SLEEP_UNSUPPORTED = "sleep_unsupported"
    SLEEP_INEFFECTIVE = "sleep_ineffective"
    SLEEP_FAILED = "sleep_failed"
    WAKE_FAILED = "wake_failed"
    START_STALLED = "start_stalled"
    START_TIMEOUT = "start_timeout"
    DEVICE_LOST = "device_lost"
    DRIVER_MISMATCH = "driver_mismatch"
    EXCLUSIVE_MODE = "exclusive_mode"
    GATED_MODEL = "gated_model"
    OUTPUT_WRONG = "output_wrong"  # it answers, but not what it answered before it slept
    RECYCLED = "recycled"
    CRASHED = "crashed"
    ENGINE_LOST = "engine_lost"  # alive, but does not answer any more
    MEMORY_NOT_FREED = "memory_not_freed"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True)
class Reason:
    """A decision or failure explained: ``text`` is one sentence with numbers, ``fix`` what to do (may be empty)."""

    code: Code
    text: str = ""
    fix: str = ""
    log_line: str = ""  # the decisive line of the engine's log, redacted; empty when there is none


NO_REASON = Reason(Code.NONE)

#: Failures that a retry cannot mend: the operator has to change something first.
PERMANENT: frozenset[Code] = frozenset(
    {
        Code.EXECUTABLE_MISSING,
        Code.MODEL_MISSING,
        Code.MODEL_UNREADABLE,
        Code.UNSUPPORTED_ARCHITECTURE,
        Code.UNKNOWN_FLAG,
        Code.KV_TOO_SMALL,
    }
)
