"""What the operator said about single devices, put over what a family of devices says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scheduler.config.settings import Settings
from scheduler.domain.device import DeviceInfo, DeviceSample, Pin
from scheduler.domain.ids import DeviceId, Holder
from scheduler.ports.device import DeviceSource

WHY_NOT = "devices.override says use: false"


class Overridden:
    """A family of devices of which some are watched, never scheduled. Implements DeviceSource."""

    def __init__(self, source: DeviceSource, settings: Settings) -> None:
        self._source = source
        self._settings = settings

    @property
    def kind(self) -> str:
        """Of the family."""
        return self._source.kind

    @property
    def generation(self) -> int:
        """Of the family."""
        return self._source.generation

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        """See the port. A card that is not to be used takes its MIG instances along."""
        return [self._judged(info) for info in await self._source.inventory(known)]

    def _judged(self, info: DeviceInfo) -> DeviceInfo:
        used = all(self._settings.override_of(device).use for device in (info.id, info.parent) if device is not None)
        return info if used or not info.allocatable else replace(info, allocatable=False, why_not=WHY_NOT)

    async def sample(
        self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]], moving: frozenset[Holder] = frozenset()
    ) -> Sequence[DeviceSample]:
        """See the port."""
        return await self._source.sample(groups, moving)

    def pins(self) -> Mapping[DeviceId, Pin]:
        """See the port."""
        return self._source.pins()
