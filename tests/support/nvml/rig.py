"""The device family ``nvidia`` on a made-up machine, in this process."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from adapters.devices.nvml import NvmlDevices
from scheduler.domain.device import DeviceInfo, DeviceSample
from scheduler.domain.ids import DeviceId, Holder
from tests.support.gpu_world import GpuWorld

GPU0, GPU1, GPU2 = DeviceId("gpu0"), DeviceId("gpu1"), DeviceId("gpu2")
A, B = Holder("a#0"), Holder("b#0")
#: Not of this machine: beyond the largest process id Linux gives.
NOBODY = 5_000_000

Pids = Mapping[Holder, Iterable[int]]


class Ticks:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def wall(self) -> float:
        """Seconds."""
        return 0.0


class Rig:
    """World, clock and devices; ``build.preload`` comes first. ``known`` is what the daemon would remember of earlier inventories."""

    def __init__(self, folder: Path) -> None:
        self.world = GpuWorld(folder / "world")
        os.environ["FAKE_NVML_WORLD"] = self.world.folder  # a fixture takes it back
        self.clock = Ticks()
        self.known: dict[str, DeviceId] = {}
        self.devices = self.fresh()

    def fresh(self, **settings: float) -> NvmlDevices:
        """Another daemon on the same machine."""
        return NvmlDevices(self.clock, sys=f"{self.world.folder}/sys", **settings)  # type: ignore[arg-type]

    async def inventory(self) -> dict[str, DeviceInfo]:
        """By id."""
        found = await self.devices.inventory(self.known)
        self.known.update({info.uuid: info.id for info in found})
        return {info.id: info for info in found}

    async def sample(self, groups: Mapping[DeviceId, Pids] | None = None, moving: Iterable[Holder] = ()) -> dict[str, DeviceSample]:
        """By id; 0.25 s pass before each."""
        self.clock.now += 0.25
        asked = {device: {holder: frozenset(pids) for holder, pids in each.items()} for device, each in (groups or {}).items()}
        return {sample.device: sample for sample in await self.devices.sample(asked, frozenset(moving))}

    async def one(self, pids: Pids | None = None, moving: Iterable[Holder] = ()) -> DeviceSample:
        """Of gpu0."""
        return (await self.sample({GPU0: pids or {}}, moving))[GPU0]
