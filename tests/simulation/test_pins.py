"""How an engine is told which device is its own, at the moment of its launch."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from scheduler.domain.device import Pin
from scheduler.domain.ids import DeviceId
from scheduler.domain.model import ModelSpec
from scheduler.domain.units import GIB
from scheduler.ports.engine import CommandLine, LaunchPlan
from scheduler.simulator.virtual_time import run_virtual
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device
from tests.support.world_ports import WorldDevices, WorldEngine


@pytest.mark.parametrize(
    ("pins", "told"),
    [
        ({DeviceId("gpu0"): Pin(index=3, uuid="GPU-x")}, ((3,), ("GPU-x",), False)),
        ({}, ((0,), (device("gpu0", 10).uuid,), True)),
    ],
    ids=["by its place of now", "by its uuid while its place is not known"],
)
def test_a_launch_addresses_its_device_as_it_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pins: Mapping[DeviceId, Pin], told: tuple[object, ...]
) -> None:
    plans: list[LaunchPlan] = []
    command = WorldEngine.command

    def noted(self: WorldEngine, model: ModelSpec, plan: LaunchPlan) -> CommandLine:
        plans.append(plan)
        return command(self, model, plan)

    monkeypatch.setattr(WorldDevices, "pins", lambda _self: pins)
    monkeypatch.setattr(WorldEngine, "command", noted)

    async def main() -> None:
        sim = Sim(World([device("gpu0", 10)], {"a": Behaviour(awake_bytes=2 * GIB, levels=())}), tmp_path, [spec("a")])
        await sim.start()
        assert await sim.chat("a") == "ok"
        await sim.stop()

    run_virtual(main())
    (plan,) = plans
    assert (plan.device_index, plan.device_uuid, plan.by_uuid) == told
