"""What a family of devices must supply."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from scheduler.domain.device import DeviceInfo, DeviceSample, HostSample, Pin
from scheduler.domain.ids import DeviceId, Holder


class DeviceSource(Protocol):
    """One family of devices (all CPUs, all NVIDIA cards, ...)."""

    @property
    def kind(self) -> str:
        """One of the vocabulary of docs/reference/configuration.md: nvidia amd rngd rbln cpu other."""
        ...

    @property
    def generation(self) -> int:
        """Grows whenever the set of devices, or a static fact of one, changed: ``inventory`` is to be asked again."""
        ...

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        """All devices of this family, in a stable order. Raises Permanent when the family cannot be used at all.

        ``known`` maps uuids to the ids they had before, which they keep whatever their index is now; others get new ones.
        A known device that is not there any more is not in the answer.
        """
        ...

    async def sample(
        self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]], moving: frozenset[Holder] = frozenset()
    ) -> Sequence[DeviceSample]:
        """Measure every device now. ``groups`` names, per device, the process ids of each holder on it.

        Every holder asked for is present in the result's ``own``. Never blocks the event loop. A device that
        cannot be read is left out (it becomes stale by age), or named with its ``health``; it never makes the others fail.
        ``moving`` = holders that take or give back memory now: bytes whose owner cannot be told are theirs.
        """
        ...

    def pins(self) -> Mapping[DeviceId, Pin]:
        """How to address each device at this moment, as of the last look; empty when there is nothing to pin."""
        ...


class HostSource(Protocol):
    """The machine's own memory, where sleepers keep their copies."""

    async def sample(self, groups: Mapping[Holder, frozenset[int]]) -> HostSample | None:
        """Measure now, every holder asked for; None while it cannot be measured. Never blocks the event loop."""
        ...
