"""The boundary to ``pynvml``: the only importer, every failure as one error of ours, every call timed.

``pynvml`` here is the package ``nvidia-ml-py``. Its own errors cannot be hashed, cannot be compared with others, and
some have no text, so none of them leaves this module. All calls are made in one thread; only ``timings`` is read by others.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from scheduler.domain.errors import Permanent
from scheduler.ports.clock import Clock

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999

#: What the codes mean. Our own words: the binding knows no text for the newest ones.
_MEANINGS = {
    1: "not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "array too small",
    8: "a power cable is missing",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupts of the card do not work",
    12: "library libnvidia-ml.so.1 not found",
    13: "function missing in this driver",
    14: "corrupted infoROM",
    15: "GPU is lost",
    16: "GPU needs a reset",
    17: "the operating system blocked the request",
    18: "library and kernel module are of different driver versions",
    19: "in use",
    20: "out of memory in the driver",
    23: "insufficient resources",
    25: "structure of another version",
    26: "deprecated",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    999: "unknown error",
}

#: These say that a card does not know something, not that it is in trouble.
_SHRUGS = frozenset(
    {INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, 21, 22, 26, 27, 29}
)
_KEPT_DURATIONS = 512


class NvmlError(Permanent):
    """A call failed: ``number`` is NVML's code, ``function`` the one called, ``uuid`` the device (empty: none)."""

    code = "nvml"

    def __init__(self, number: int, function: str, uuid: str = "", detail: str = "") -> None:
        self.number = number
        self.function = function
        self.uuid = uuid
        meaning = detail or _MEANINGS.get(number, "unknown error")
        super().__init__(f"{function}{f' of {uuid}' if uuid else ''}: {meaning} (NVML error {number})")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long calls of one function took: all are counted, the percentiles are of the last 512."""

    count: int
    p50_s: float
    p99_s: float


def load_binding() -> ModuleType:
    """The binding. Raises Permanent when it is missing, or when another package answers to its name."""
    try:
        import pynvml  # here: 8,000 lines that hosts without NVIDIA cards never need
    except ImportError as error:
        text = f"the Python package nvidia-ml-py cannot be imported: {error}"
        raise Permanent(text, code="wrong_pynvml", fix="python -m pip install --force-reinstall nvidia-ml-py") from error
    module: ModuleType = pynvml
    if hasattr(module, "nvmlDeviceGetComputeRunningProcesses_v3") and hasattr(module, "nvmlMemory_v2"):
        return module
    text = f"{getattr(module, '__file__', None) or 'pynvml'} is not the pynvml of nvidia-ml-py (12.560 or later)"
    fix = "python -m pip uninstall -y pynvml nvidia-ml-py3; python -m pip install --force-reinstall nvidia-ml-py"
    raise Permanent(text, code="wrong_pynvml", fix=fix)


class NvmlCalls:
    """Calls by name, without their prefix ``nvml``. Handles are opaque."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._module: ModuleType | None = None
        self._lock = threading.Lock()
        self._durations: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}

    def load(self) -> None:
        """Import the binding, once. Raises Permanent, see :func:`load_binding`."""
        if self._module is None:
            self._module = load_binding()

    def call(self, function: str, *arguments: object, uuid: str = "") -> Any:
        """Call ``nvml<function>``. Raises NvmlError, whatever went wrong."""
        self.load()
        bound = getattr(self._module, f"nvml{function}", None)
        if bound is None:
            raise NvmlError(FUNCTION_NOT_FOUND, function, uuid, "function missing in this version of nvidia-ml-py")
        begun_s = self._clock.monotonic()
        try:
            return bound(*arguments)
        except Exception as error:  # the binding raises five unrelated families of errors
            number = getattr(error, "value", None)
            if isinstance(number, int):
                raise NvmlError(number, function, uuid) from None
            # Broken text in a name, an argument that ctypes refuses: a bug of a driver or ours, but no reason to end.
            raise NvmlError(UNKNOWN, function, uuid, f"{type(error).__name__}: {error}") from error
        finally:
            self._note(function, self._clock.monotonic() - begun_s)

    def ask(self, function: str, *arguments: object, uuid: str = "") -> Any:
        """As :meth:`call`, but None when the card or the driver has no answer to this. Raises NvmlError for real trouble."""
        try:
            return self.call(function, *arguments, uuid=uuid)
        except NvmlError as error:
            if error.number in _SHRUGS:
                return None
            raise

    def constant(self, name: str) -> Any:
        """A constant of the binding."""
        self.load()
        return getattr(self._module, name)

    def timings(self) -> Mapping[str, Timing]:
        """By function; safe to call from any thread."""
        with self._lock:
            kept = {function: (self._counts[function], sorted(durations)) for function, durations in self._durations.items()}
        return {
            function: Timing(count, durations[len(durations) // 2], durations[len(durations) * 99 // 100])
            for function, (count, durations) in kept.items()
        }

    def _note(self, function: str, duration_s: float) -> None:
        with self._lock:
            self._durations.setdefault(function, deque(maxlen=_KEPT_DURATIONS)).append(duration_s)
            self._counts[function] = self._counts.get(function, 0) + 1


def address_of(handle: object) -> int:
    """What identifies a handle: two handles of one device point to the same place."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
