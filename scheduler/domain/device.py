"""Devices as seats: what they hold, and what was measured on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.domain.ids import DeviceId, Holder
from scheduler.domain.units import MIB


class Health(StrEnum):
    """Health of a device; only ``ok`` ones admit growth."""

    OK = "ok"
    STALE = "stale"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """Static facts. ``capacity_bytes`` is what may be used at all; ``reserved_bytes`` + ``headroom_bytes`` stay empty."""

    id: DeviceId
    kind: str
    name: str
    index: int
    uuid: str
    capacity_bytes: int
    reserved_bytes: int = 0
    headroom_bytes: int = 0
    host_memory: bool = False  # a device whose memory *is* host memory (kind cpu): a level-1 host copy frees nothing

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
class DeviceSample:
    """One measurement. ``started_at_s`` (monotonic) is when the reading began: evidence only for what happened before.

    ``own`` maps each holder whose process set was asked for to its measured bytes (0 = its set is empty);
    ``foreign_bytes`` = used by anybody else, as far as it presses on the capacity.
    """

    device: DeviceId
    started_at_s: float
    used_bytes: int
    free_bytes: int
    foreign_bytes: int = 0
    own: Mapping[Holder, int] = field(default_factory=dict)
    utilization_ratio: float | None = None
    power_w: float | None = None
