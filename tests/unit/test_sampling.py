"""The sampler: one family of devices in trouble keeps no other from being measured."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.domain.device import DeviceInfo, DeviceSample, Pin
from scheduler.domain.ids import DeviceId, Holder
from scheduler.orchestrator.devices import BLIND
from scheduler.orchestrator.events import Happening, Sampled
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.sampling import BLIND_S, Sampler
from scheduler.orchestrator.state import State
from scheduler.ports.device import DeviceSource
from scheduler.simulator.virtual_time import VirtualClock, elapse

pytestmark = pytest.mark.virtual_time


class Family:
    """One device, or a driver that answers nothing."""

    generation = 1

    def __init__(self, clock: VirtualClock, kind: str, *, hangs: bool = False) -> None:
        self.clock, self.kind, self.hangs = clock, kind, hangs

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        raise AssertionError("the kernel asks for that")

    async def sample(
        self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]], moving: frozenset[Holder] = frozenset()
    ) -> Sequence[DeviceSample]:
        now_s = self.clock.monotonic()
        return [] if self.hangs else [DeviceSample(device=DeviceId(f"{self.kind}0"), started_at_s=now_s, used_bytes=0, free_bytes=1)]

    def pins(self) -> Mapping[DeviceId, Pin]:
        return {}


async def test_while_one_family_cannot_be_listed_the_others_are_measured(virtual_clock: VirtualClock) -> None:
    clock = virtual_clock
    cards, ram = Family(clock, "nvidia", hangs=True), Family(clock, "cpu")
    nothing: dict[str, Any] = dict.fromkeys(("launcher", "database", "writer"))
    parts = Parts(
        engines={}, sources=(cards, ram), clock=clock, state_uuid="", log_dir=Path(), environment=lambda _s, added, _v: added, **nothing
    )
    state = State(degraded={f"{BLIND}:nvidia": ("the driver hangs", "", 0.0)})
    said: list[Happening] = []
    asked: list[str] = []

    async def changed(source: DeviceSource) -> None:
        asked.append(source.kind)
        await asyncio.Event().wait()

    sampler = Sampler(state, parts, {}, said.append, changed)
    running = asyncio.create_task(sampler.run())
    await elapse(3 * BLIND_S)
    running.cancel()
    await sampler.close()
    assert asked == ["nvidia"], "once, as long as it does not answer"
    times = [cast(Sampled, event).samples[0].started_at_s for event in said]
    assert len(times) >= 3 * BLIND_S / state.policy.sample_period_s - 1
