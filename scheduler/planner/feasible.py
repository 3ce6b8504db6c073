"""Admission: both tests of scheduling.md section 1, the stricter wins."""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId
from scheduler.planner.inputs import Picture, Target


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes missing on one device: by the ledger of claims, and by measured free memory (0 or less = none missing)."""

    ledger_bytes: int
    measured_bytes: int

    @property
    def closed(self) -> bool:
        """Whether nothing is missing."""
        return self.ledger_bytes <= 0 and self.measured_bytes <= 0


def gap_on(picture: Picture, target: Target, device: DeviceId) -> Gap:
    """What is missing on ``device`` for ``target`` to grow there now."""
    view = picture.devices[device]
    others = picture.claimed_on(device) - target.own_claim.on(device)
    ledger = others + target.need_bytes + view.foreign_bytes - target.found_on(device) - view.info.usable_bytes
    if view.info.max_processes == 1:  # EXCLUSIVE_PROCESS: whoever holds a context there, a sleeper too, has to go whole
        ledger = max(ledger, others)
    growth = target.need_bytes - target.own_measured.get(device, 0)
    free = view.free_bytes if view.free_bytes is not None else 0
    return Gap(ledger, growth + view.info.margin_bytes - free)


def can_ever_fit(picture: Picture, target: Target, devices: tuple[DeviceId, ...]) -> bool:
    """Whether it would fit with everything else of ours away (foreign use and free memory do not count)."""
    return all(d in picture.devices for d in devices) and fits_alone(target.need_bytes, (picture.devices[d].info for d in devices))


def fits_alone(need_bytes: int, devices: Iterable[DeviceInfo]) -> bool:
    """Whether ``need_bytes`` on each of these devices are to be had when nobody else of ours sits there."""
    return all(device.capacity_bytes == 0 or need_bytes <= most_bytes(device) for device in devices)  # 0 = nobody knows now


def most_bytes(info: DeviceInfo) -> int:
    """The most that one model may need on an empty device: both tests count, so the margin stays free as well."""
    return info.usable_bytes - info.margin_bytes


def admits_growth(picture: Picture, devices: tuple[DeviceId, ...]) -> bool:
    """Whether every device is known, healthy and freshly measured."""
    views = [picture.devices.get(d) for d in devices]
    return all(v is not None and v.health is Health.OK and v.free_bytes is not None and not v.blocked for v in views)
