"""Where a vLLM sits when nobody says it: on cards when there are any, else on the CPU; and what is believed of it there."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.vllm import Vllm
from scheduler.domain.ids import ModelName
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.domain.units import GIB
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import VERSION_MISMATCH, GpuWorld
from tests.support.pace import pause

pytestmark = pytest.mark.may_block  # the stand-in for the driver's library is compiled first
NAME = "small"
#: A card is found, and a CPU is declared beside it.
BOTH = {"headroom": "0%", "declared": [{"id": "cpu0", "kind": "cpu", "memory": 8 * GIB}]}


async def believed(daemon: GpuHouse) -> int:
    """Estimated bytes awake."""
    found: int = (await daemon.get(f"/control/v1/models/{NAME}"))["memory"]["estimated_bytes"]
    return found


async def test_a_card_that_appears_is_where_it_sits_from_then_on(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path / "world")
    world.write()
    model = vllm(tmp_path, world, NAME, weights_gib=0.1, footprint={})
    spec = ModelSpec(name=ModelName(NAME), engine="vllm", model=model[NAME]["model"])
    on_cpu, on_card = [(await Vllm().estimate(replace(spec, devices=DeviceWish(kind=kind)))).awake_bytes for kind in ("cpu", "nvidia")]
    assert on_cpu != on_card
    async with gpu_house(tmp_path, world, model, devices=BOTH) as daemon:
        assert await believed(daemon) == on_cpu
        assert (await daemon.chat(NAME))[0] == 200
        assert (await daemon.model(NAME))["devices"] == ["cpu0"]
        cards(world, 1)
        async with asyncio.timeout(30):
            while await believed(daemon) != on_card:
                await pause(0.05)
        await daemon.act("restart", NAME)
        assert (await daemon.chat(NAME))[0] == 200
        assert (await daemon.model(NAME))["devices"] == ["gpu0"]


async def test_a_driver_that_cannot_be_used_is_no_reason_to_sit_on_the_cpu(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path / "world")
    cards(world, 1)
    world.set_error("InitWithFlags", "*", VERSION_MISMATCH)
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, NAME, weights_gib=0.1, footprint={}), devices=BOTH) as daemon:
        assert (await daemon.chat(NAME, headers={"x-hotseat-max-wait": "1"}))[0] == 503
        assert daemon.launches(NAME) == []
        world.clear_errors()
        assert (await daemon.chat(NAME))[0] == 200
        assert (await daemon.model(NAME))["devices"] == ["gpu0"]
