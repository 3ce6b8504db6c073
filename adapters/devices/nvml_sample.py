"""Reading one NVIDIA device: memory, processes, load, power. Blocks; called in the sampler thread only."""

from dataclasses import dataclass
from typing import Any

from adapters.devices.nvml_calls import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    NvmlCalls,
    NvmlError,
)
from adapters.devices.nvml_roll import GLOBAL, Seat
from adapters.procfs.memory import read_host_memory
from scheduler.domain.units import human_bytes

V2, V1, HOST = "nvml_v2", "nvml_v1", "meminfo"

#: How often a list is asked for again because processes started meanwhile.
_MAX_TRIES = 4
_OLD_DRIVER = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, INVALID_ARGUMENT, NOT_SUPPORTED})

#: Bits of the clock event reasons that slow a card down against its will. (Idle and application clocks do not.)
_THROTTLE = (
    (0x04, "power cap"),
    (0x08, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal limit"),
    (0x40, "hardware thermal limit"),
    (0x80, "power brake"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``total`` = ``reserved`` + ``used`` + ``free``; by the old call (v1) what is reserved is part of ``used``."""

    total: int
    reserved: int
    used: int
    free: int
    source: str

    @property
    def absurd(self) -> str:
        """Why this cannot be true; empty when it can."""
        if self.total <= 0:
            return "the device says that it has no memory"
        if self.used > self.total or self.free > self.total:
            return f"{human_bytes(self.used)} used and {human_bytes(self.free)} free of {human_bytes(self.total)}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensors:
    """Load, power and heat; None = the device does not say. ``at_s`` is when they were read."""

    at_s: float
    utilization_ratio: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a device. ``processes`` maps ids to bytes (None: not told); None = the driver lists none."""

    memory: Memory
    settled_used: int  # of two looks at the memory, around the one at the processes, the smaller
    processes: dict[int, int | None] | None
    began_s: float

    @property
    def absurd(self) -> str:
        """Why this cannot be true; empty when it can."""
        for pid, held in (self.processes or {}).items():
            if held is not None and held > self.memory.total:
                return f"process {pid} is said to hold {human_bytes(held)} of {human_bytes(self.memory.total)}"
        return self.memory.absurd


def read_memory(calls: NvmlCalls, seat: Seat, proc: str) -> Memory:
    """Memory by the newest call the driver has; of the host where a card has none of its own. Raises NvmlError or OSError.

    Asked anew each time: what one call refuses costs microseconds, a wrong memory of it would cost more.
    """
    try:
        now = calls.call("DeviceGetMemoryInfo", seat.handle, calls.constant("nvmlMemory_v2"), uuid=seat.uuid)
        return Memory(int(now.total), int(now.reserved), int(now.used), int(now.free), V2)
    except NvmlError as error:
        if error.number not in _OLD_DRIVER:
            raise
    try:
        now = calls.call("DeviceGetMemoryInfo", seat.handle, uuid=seat.uuid)
        return Memory(int(now.total), 0, int(now.used), int(now.free), V1)
    except NvmlError as error:
        if error.number != NOT_SUPPORTED or seat.sub >= 0:
            raise
    # One memory for processors and GPU. What the page cache can give back counts as free.
    try:
        host = read_host_memory(proc)
    except ValueError as error:
        raise OSError(str(error)) from error
    return Memory(host.total_bytes, 0, max(0, host.total_bytes - host.available_bytes), host.available_bytes, HOST)


def read_device(calls: NvmlCalls, seat: Seat, proc: str, began_s: float) -> Reading:
    """Memory and processes of a device. Raises NvmlError when they fail, OSError when the host's memory does.

    Memory is read twice, around the processes: bytes that our own engines take or give back in between must not look
    foreign, and with the smaller of both they never do.
    """
    before = read_memory(calls, seat, proc)
    processes = None if seat.split else read_processes(calls, seat)
    after = read_memory(calls, seat, proc)
    return Reading(memory=after, settled_used=min(before.used, after.used), processes=processes, began_s=began_s)


def read_sensors(calls: NvmlCalls, seat: Seat, at_s: float) -> Sensors:
    """Whatever sensors answer. Raises NvmlError for the whole driver only: a sensor in trouble is not a card in trouble."""

    def ask(function: str, *arguments: object) -> Any:
        try:
            return calls.ask(function, seat.handle, *arguments, uuid=seat.uuid)
        except NvmlError as error:
            if error.number in GLOBAL:
                raise
            return None

    load, power, energy = ask("DeviceGetUtilizationRates"), ask("DeviceGetPowerUsage"), ask("DeviceGetTotalEnergyConsumption")
    temperature, reasons = ask("DeviceGetTemperature", 0), ask("DeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("DeviceGetCurrentClocksThrottleReasons")
    return Sensors(
        at_s=at_s,
        utilization_ratio=None if load is None else min(1.0, load.gpu / 100),
        power_w=None if power is None else power / 1000,
        energy_j=None if energy is None else energy / 1000,
        temperature_c=None if temperature is None else float(temperature),
        throttle=tuple(name for bit, name in _THROTTLE if (reasons or 0) & bit),
    )


def read_processes(calls: NvmlCalls, seat: Seat) -> dict[int, int | None] | None:
    """Bytes by process id over all lists, the larger one where a process is in several; None when the driver has no such list."""
    lists = [_read_list(calls, seat, f"DeviceGet{name}RunningProcesses_v3") for name in ("Compute", "Graphics", "MPSCompute")]
    if lists[0] is None:
        return None
    found: dict[int, int | None] = {}
    for process in (process for each in lists for process in each or ()):
        held = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
        other = found.get(int(process.pid))
        found[int(process.pid)] = other if held is None else held if other is None else max(held, other)
    return found


def _read_list(calls: NvmlCalls, seat: Seat, function: str) -> Any:
    for _ in range(_MAX_TRIES):
        try:
            return calls.ask(function, seat.handle, uuid=seat.uuid)
        except NvmlError as error:
            if error.number != INSUFFICIENT_SIZE:  # more processes started than the binding left room for
                raise
    return None
