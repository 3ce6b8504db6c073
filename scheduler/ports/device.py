"""What a family of devices must supply."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.domain.device import DeviceInfo, DeviceSample
from scheduler.domain.ids import DeviceId, Holder


class DeviceSource(Protocol):
    """One family of devices (all CPUs, all NVIDIA cards, ...)."""

    @property
    def kind(self) -> str:
        """One of the vocabulary of docs/reference/configuration.md: nvidia amd rngd rbln cpu other."""
        ...

    async def inventory(self) -> Sequence[DeviceInfo]:
        """All devices of this family, in a stable order. Raises Permanent when the family cannot be used at all."""
        ...

    async def sample(self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]]) -> Sequence[DeviceSample]:
        """Measure every device now. ``groups`` names, per device, the process ids of each holder on it.

        Every holder asked for is present in the result's ``own``. Never blocks the event loop. A device that
        cannot be read is left out (it becomes stale by age); it never makes the others fail.
        """
        ...
