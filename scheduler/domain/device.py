"""Devices as seats: what they hold, and what was measured on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.domain.ids import DeviceId, Holder
from scheduler.domain.units import MIB


class Health(StrEnum):
    """Health of a device; only ``ok`` ones admit growth."""

    OK = "ok"
    DRAINING = "draining"  # who sits there may stay, nothing new grows there: the device reported a fault
    STALE = "stale"  # no fresh measurement
    LOST = "lost"  # it does not answer any more, or fell off the bus
    MISSING = "missing"  # known from before, not there now
    DRIVER_MISMATCH = "driver_mismatch"  # library and kernel module differ: what runs goes on, nothing new can start


#: Devices in these states have no memory to speak of any more: whoever sits there is gone.
GONE = frozenset({Health.LOST, Health.MISSING})
#: In these, and in no others, a sample's bytes are a measurement.
MEASURED = frozenset({Health.OK, Health.DRAINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Static facts. ``capacity_bytes`` is what may be used at all; ``reserved_bytes`` + ``headroom_bytes`` stay empty.

    ``islands`` name the groups of devices it is linked with, tightest first (NVLink, then the same PCIe root, then the
    host): two devices are linked at level k when their k-th names are equal. ``allocatable`` False = watched, never a
    seat (``why_not`` says why). ``max_processes`` bounds engine processes, sleepers included (EXCLUSIVE_PROCESS: 1).
    """

    id: DeviceId
    kind: str
    name: str
    index: int
    uuid: str
    capacity_bytes: int
    reserved_bytes: int = 0
    headroom_bytes: int = 0
    host_memory: bool = False  # its memory *is* host memory (a CPU, unified memory): a level-1 host copy frees nothing there
    parent: DeviceId | None = None  # the card that a MIG instance is a part of
    islands: tuple[str, ...] = ()
    max_processes: int | None = None
    allocatable: bool = True
    why_not: str = ""
    memory_drop_visible: bool = True  # False: what engines give back may stay with the driver (coherent NUMA memory)
    pci: str = ""
    numa_node: int | None = None
    facts: tuple[tuple[str, str], ...] = ()  # for people: driver, compute capability, modes, ...

    @property
    def usable_bytes(self) -> int:
        """Upper bound for the sum of claims when nobody else is on the device."""
        return self.capacity_bytes - self.reserved_bytes - self.headroom_bytes

    @property
    def margin_bytes(self) -> int:
        """Distance to keep from measured free memory when growing.

        max(512 MiB, 2 %) of scheduling.md section 1, but never more than 1/32 of the device: 512 MiB guards against
        driver-side noise on cards of 16 GiB and more, and would forbid small CPU budgets altogether
        (docs/adr/0003-margin-on-small-devices.md).
        """
        return max(self.capacity_bytes // 50, min(512 * MIB, self.capacity_bytes // 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """How a process is told to use a device: ``index`` in PCI order as of the last look, or its ``uuid`` (MIG always)."""

    index: int
    uuid: str
    by_uuid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A process that is not ours. ``used_bytes`` None = the driver does not say."""

    pid: int
    used_bytes: int | None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNews:
    """Something a device reported since the last sample; ``kind`` for example ``xid``, ``reset``, ``mig``."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """Host memory at one moment: what the machine still has to give, and what each holder's processes keep in memory of their own.

    Mapped files do not count: the kernel takes those pages back when it needs them.
    """

    started_at_s: float
    available_bytes: int
    own: Mapping[Holder, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One measurement. ``started_at_s`` (monotonic) is when the reading began: evidence only for what happened before.

    ``own`` maps each holder whose process set was asked for to its measured bytes (0 = its set is empty);
    ``foreign_bytes`` = used by anybody else, as far as it presses on the capacity. ``estimated``: some processes have no
    number of their own, and the sample says what they hold by what moved on the device. With a ``health`` other than ok
    and draining the byte counts mean nothing (0); ``trouble`` and ``fix`` are for people.
    """

    device: DeviceId
    started_at_s: float
    used_bytes: int
    free_bytes: int
    foreign_bytes: int = 0
    own: Mapping[Holder, int] = field(default_factory=dict)
    utilization_ratio: float | None = None
    power_w: float | None = None
    health: Health = Health.OK
    trouble: str = ""
    fix: str = ""
    estimated: bool = False
    source: str = ""  # where the memory numbers come from: nvml_v2, nvml_v1, meminfo, procfs
    strangers: tuple[Stranger, ...] = ()
    energy_j: float | None = None  # since the driver was loaded
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()
    news: tuple[DeviceNews, ...] = ()
