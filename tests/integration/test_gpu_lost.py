"""A card falls off the bus under an engine: its requests end with an error, everybody else serves on, the model goes elsewhere."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from scheduler.domain.units import GIB
from tests.support.fake_knobs import Speech
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GPU_IS_LOST, GpuWorld
from tests.support.house import alive, events_of, until

#: The world's lock may be held by a process that is kept off the CPU.
pytestmark = pytest.mark.may_block
#: An answer that outlives the test.
ENDLESS = Speech(tokens=100_000, token_s=0.02)


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    return GpuWorld(tmp_path / "world")


class Stream:
    """A client that reads one endless answer."""

    def __init__(self, daemon: GpuHouse, model: str) -> None:
        self._begun = asyncio.Event()
        self._task = asyncio.create_task(self._read(daemon, model))

    async def _read(self, daemon: GpuHouse, model: str) -> str:
        text = b""
        body = {"model": model, "messages": [], "stream": True, "max_tokens": 100_000}
        async with aiohttp.ClientSession() as client, client.post(f"{daemon.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            async for piece in answer.content.iter_any():
                text += piece
                self._begun.set()
        return text.decode()

    async def begun(self) -> None:
        """The first token has come."""
        await self._begun.wait()

    async def last_event(self) -> dict[str, str]:
        """The error that it ended with."""
        events = events_of(await self._task)
        assert "content" in events[0]["choices"][0]["delta"]
        assert "[DONE]" not in events
        error: dict[str, str] = events[-1]["error"]
        return error


async def test_a_lost_card_takes_its_model_elsewhere(world: GpuWorld, tmp_path: Path) -> None:
    cards(world, 3)
    models = vllm(tmp_path, world, "a", speech=ENDLESS) | vllm(tmp_path, world, "b") | vllm(tmp_path, world, "c")
    async with gpu_house(tmp_path, world, models) as daemon:
        stream = Stream(daemon, "a")
        await stream.begun()
        assert (await daemon.chat("b"))[0] == 200
        [lost], pid, other = (await daemon.model("a"))["devices"], await daemon.pid("a"), await daemon.pid("b")
        world.set_error("*", lost.removeprefix("gpu"), GPU_IS_LOST)
        error = await stream.last_event()
        assert (error["code"], "its device was lost" in error["message"]) == ("engine_lost", True)
        assert (await daemon.chat("b", max_tokens=4))[0] == 200
        assert (await daemon.chat("a", max_tokens=4))[0] == 200
        assert not alive(pid)
        assert await daemon.pid("b") == other
        elsewhere = (await daemon.model("a"))["devices"]
        assert elsewhere not in ([lost], (await daemon.model("b"))["devices"])
        assert world.used(f"GPU-{elsewhere[0].removeprefix('gpu')}") == 16 * GIB
        device = await daemon.get(f"/control/v1/devices/{lost}")
        assert (device["health"], device["claimed_bytes"]) == ("lost", 0)
        assert f"device_lost: {lost} is lost" in (await daemon.cli("story", "a"))[1]
        assert f"! {lost} lost" in (await daemon.cli("status"))[1]
        await until(lambda: [row["end_reason"] for row in daemon.launches("a")] == ["device_lost", "none"])
        world.clear_errors()
        await daemon.until_device(lost, health="ok")
        assert (await daemon.chat("c"))[0] == 200
        assert (await daemon.model("c"))["devices"] == [lost]


async def test_a_gang_with_one_lost_member_frees_the_other_and_waits_for_its_return(world: GpuWorld, tmp_path: Path) -> None:
    cards(world, 2)
    models = vllm(tmp_path, world, "gang", weights_gib=24, speech=ENDLESS, devices={"count": 2}) | vllm(tmp_path, world, "single")
    async with gpu_house(tmp_path, world, models) as daemon:
        stream = Stream(daemon, "gang")
        await stream.begun()
        assert (await daemon.model("gang"))["devices"] == ["gpu0", "gpu1"]
        assert [world.used(f"GPU-{n}") for n in (0, 1)] == [16 * GIB, 16 * GIB]
        world.set_error("*", 1, GPU_IS_LOST)
        assert (await stream.last_event())["code"] == "engine_lost"
        await daemon.until("gang", "stopped")
        healthy = await daemon.get("/control/v1/devices/gpu0")
        assert (healthy["health"], healthy["used_bytes"], healthy["claimed_bytes"]) == ("ok", 0, 0)

        kept = asyncio.create_task(daemon.chat("gang", max_tokens=4))
        await daemon.until_model("gang", lambda gang: gang["held"] == 1)
        assert (await daemon.chat("single"))[0] == 200, "the healthy member is a seat like others"
        assert (await daemon.model("single"))["devices"] == ["gpu0"]
        card = (await daemon.cli("status", "gang"))[1]
        assert "memory      on each of 2 devices " in card
        assert "next        it comes as soon as nothing is in its way" in card
        status, text = await daemon.chat("gang", headers={"x-hotseat-max-wait": "3"})
        assert (status, "gpu1 is lost" in text) == (503, True), text
        assert not kept.done()
        world.clear_errors()
        assert (await kept)[0] == 200
        assert (await daemon.model("gang"))["devices"] == ["gpu0", "gpu1"]
        assert "gang on gpu0, gpu1: asked for by a request; puts away single to" in (await daemon.cli("story", "gang"))[1]
