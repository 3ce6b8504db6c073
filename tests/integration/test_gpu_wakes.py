"""Wakes that go wrong: nothing is served by an engine that was not proven well, and whoever waits is served all the same."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest

from scheduler.domain.errors import HotseatError
from scheduler.domain.units import GIB
from tests.support.fake_adapter import requests_seen
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GpuWorld, proc
from tests.support.house import until

#: The world's lock may be held by a process that is kept off the CPU.
pytestmark = pytest.mark.may_block
#: No process of this machine: it is larger than any pid.
STRANGER = 4_194_305
#: A start that costs more than a sleep and a wake: else room is made by stops.
SLOW_START = {"start_s": 1.5}


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    world = GpuWorld(tmp_path / "world")
    cards(world, 1)
    return world


async def calls(daemon: GpuHouse, model: str, path: str) -> int:
    """How often the newest engine of a model was asked for this."""
    return sum(request["path"] == path for request in await requests_seen(daemon.engine_url(model)))


async def put_to_sleep(daemon: GpuHouse, model: str, level: int = 1) -> int:
    """Start it, let it answer, and put it to sleep; its pid."""
    assert (await daemon.chat(model))[0] == 200
    assert (await daemon.act("sleep", model, level=level))["state"] == "done"
    return await daemon.pid(model)


async def refusal(daemon: GpuHouse, level: int) -> str:
    """The code with which a sleep at that level is refused; empty = it was put to sleep."""
    error = (await daemon.act("sleep", "a", level=level))["error"]
    return error["code"] if error is not None else ""


async def test_fifty_requests_to_a_sleeper_are_one_wake(world: GpuWorld, tmp_path: Path) -> None:
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a")) as daemon:
        pid = await put_to_sleep(daemon, "a")
        answers = await asyncio.gather(*(daemon.chat("a") for _ in range(50)))
        assert [status for status, _ in answers] == [200] * 50
        assert await calls(daemon, "a", "/wake_up") == 1
        assert await calls(daemon, "a", "/v1/chat/completions") == 51
        assert (await daemon.model("a"))["counters"] == {"wakes": 1, "sleeps": 1, "starts": 1, "cold_hits": 51, "requests": 51}
        assert await daemon.pid("a") == pid


async def test_a_wake_without_room_is_repeated_once_a_neighbour_has_left(world: GpuWorld, tmp_path: Path) -> None:
    """Somebody takes the room that was seen free while the engine wakes; it keeps half of its memory mapped, as vLLM does."""
    models = vllm(tmp_path, world, "a", knobs={**SLOW_START, "wake_s": 1.0, "wake_errors": 1})
    models |= vllm(tmp_path, world, "b", weights_gib=2, kv_gib=1, knobs=SLOW_START)
    async with gpu_house(tmp_path, world, models) as daemon:
        pid = await put_to_sleep(daemon, "a")
        assert (await daemon.chat("b"))[0] == 200
        asking = [asyncio.create_task(daemon.chat("a")) for _ in range(3)]
        await daemon.until("a", "waking")
        world.add(proc(0, STRANGER, 4 * GIB))
        answers = await asyncio.gather(*asking)
        assert [status for status, _ in answers] == [200] * 3
        assert await calls(daemon, "a", "/wake_up") == 2
        assert await calls(daemon, "a", "/sleep") == 1, "never put back to sleep"
        assert await daemon.pid("a") == pid
        assert (await daemon.model("b"))["phase"] == "asleep"
        story = (await daemon.cli("story", "a"))[1]
        assert "device_oom: there was no room on the device to wake it" in story


async def test_a_wake_that_always_fails_becomes_a_start_and_the_level_is_denied(world: GpuWorld, tmp_path: Path) -> None:
    models = vllm(tmp_path, world, "a", knobs={**SLOW_START, "wake_errors": 1_000_000, "wake_error_text": "internal error"})
    async with gpu_house(tmp_path, world, models) as daemon:
        for _ in range(2):
            pid = await put_to_sleep(daemon, "a")
            answers = await asyncio.gather(*(daemon.chat("a") for _ in range(3)))
            assert [status for status, _ in answers] == [200] * 3
            assert await daemon.pid("a") != pid
        assert await refusal(daemon, 1) == "sleep_unsupported"
        assert await refusal(daemon, 2) == "", "that level has not failed"
        assert "wake_failed: POST /wake_up answered 500" in (await daemon.cli("story", "a"))[1]


async def test_garbage_after_level_2_is_never_served(world: GpuWorld, tmp_path: Path) -> None:
    models = vllm(tmp_path, world, "a", knobs={**SLOW_START, "garbage_levels": (2,)})
    async with gpu_house(tmp_path, world, models) as daemon:
        pid = await put_to_sleep(daemon, "a", level=2)
        status, text = await daemon.chat("a")
        assert (status, "!" in json.loads(text)["choices"][0]["message"]["content"]) == (200, False)
        assert await daemon.pid("a") != pid
        ends = [("lost", "output_wrong"), ("ready", "none")]
        await until(lambda: [(row["result"], row["end_reason"]) for row in daemon.launches("a")] == ends)
        assert "output_wrong: after its wake it answers" in (await daemon.cli("story", "a"))[1]
        assert await refusal(daemon, 2) == "sleep_unsupported"
        pid = await put_to_sleep(daemon, "a", level=1)
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.pid("a") == pid


@pytest.mark.parametrize(
    "knob",
    [
        "first_generation_fails",
        "dies_on_first_request_after_wake",
        pytest.param("wedged_after_wake", marks=[pytest.mark.slow, pytest.mark.timeout(100)]),
    ],
)
async def test_an_engine_that_is_not_well_after_its_wake_serves_nobody(world: GpuWorld, tmp_path: Path, knob: str) -> None:
    """Its first generation is answered 500 and it is gone; or it is gone without an answer; or it is healthy, but requests hang."""
    models = vllm(tmp_path, world, "a", knobs={**SLOW_START, knob: True})
    async with gpu_house(tmp_path, world, models) as daemon:
        pid = await put_to_sleep(daemon, "a", level=2)
        url = daemon.engine_url("a")
        asking = [asyncio.create_task(daemon.chat("a")) for _ in range(3)]
        if knob == "wedged_after_wake":
            await daemon.until("a", "stopping", within_s=60.0)
            with contextlib.suppress(HotseatError):  # it has ended already
                assert [each["path"] for each in await requests_seen(url)].count("/v1/chat/completions") == 1
        answers = await asyncio.gather(*asking)
        assert [status for status, _ in answers] == [200] * 3
        assert await daemon.pid("a") != pid
        assert "WakeFailed" in (await daemon.cli("story", "a"))[1]
        assert (await daemon.model("a"))["counters"]["wakes"] == 0


async def test_after_a_start_that_ended_while_no_daemon_was_there_garbage_is_recognised_all_the_same(
    world: GpuWorld, tmp_path: Path
) -> None:
    """What it answers when it is well is asked at the adoption, where nobody had asked before."""
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a", knobs={**SLOW_START, "garbage_levels": (2,)})) as daemon:
        asking = asyncio.create_task(daemon.chat("a"))
        await daemon.until("a", "launching")
        await until(lambda: any(row["pid"] for row in daemon.launches("a")))
        await daemon.kill()
        with contextlib.suppress(aiohttp.ClientError):
            await asking
        log = Path(daemon.launches("a")[0]["log_path"])
        await until(lambda: "startup complete" in log.read_text())
        await daemon.start()
        await daemon.until("a", "awake")
        pid = await put_to_sleep(daemon, "a", level=2)
        status, text = await daemon.chat("a")
        assert (status, "!" in json.loads(text)["choices"][0]["message"]["content"]) == (200, False)
        assert await daemon.pid("a") != pid


async def test_an_engine_that_woke_while_no_daemon_was_there_is_started_afresh(world: GpuWorld, tmp_path: Path) -> None:
    """Nobody has compared what it says since: at level 2 it may have lost its weights."""
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a", knobs={**SLOW_START, "wake_s": 1.0})) as daemon:
        pid = await put_to_sleep(daemon, "a")
        asking = asyncio.create_task(daemon.chat("a"))
        await daemon.until("a", "waking")
        url = daemon.engine_url("a")
        while "/wake_up" not in [each["path"] for each in await requests_seen(url)]:
            await asyncio.sleep(0.01)
        await daemon.kill()
        with contextlib.suppress(aiohttp.ClientError):
            await asking
        await until(lambda: world.used("GPU-0") == 16 * GIB)
        await daemon.start()
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.pid("a") != pid
        assert "its wake was not seen to end well" in (await daemon.cli("story", "a"))[1]
