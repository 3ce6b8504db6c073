"""vLLMs that start badly, and what they leave behind: a real daemon, real processes, made-up cards."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from scheduler.domain.units import GIB
from tests.support.gpu_house import cards, gpu_house, vllm
from tests.support.gpu_world import GpuWorld
from tests.support.house import alive, until

pytestmark = pytest.mark.may_block  # the test looks through /proc and the database itself


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    world = GpuWorld(tmp_path / "world")
    cards(world, 1)
    return world


def told(entry: dict[str, dict[str, Any]], **knobs: object) -> dict[str, dict[str, Any]]:
    """The same model, whose fake vLLM is told more."""
    [definition] = entry.values()
    definition["env"]["FAKE_VLLM_KNOBS"] = json.dumps(json.loads(definition["env"]["FAKE_VLLM_KNOBS"]) | knobs)
    return entry


async def test_a_card_on_which_sleep_mode_does_not_start(world: GpuWorld, tmp_path: Path) -> None:
    models = told(vllm(tmp_path, world, "a"), sleep_mode_breaks_start=True) | vllm(tmp_path, world, "b")
    async with gpu_house(tmp_path, world, models) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.told(1, "starts_sleepless") == [("starts_sleepless", "a")]
        argvs = [json.loads(row["argv"]) for row in await asyncio.to_thread(daemon.launches, "a")]
        assert ["--enable-sleep-mode" in argv for argv in argvs] == [True, True, False]
        assert (await daemon.chat("b"))[0] == 200
        assert (await daemon.model("a"))["phase"] == "stopped"

        await daemon.terminate()
        await daemon.start()
        assert (await daemon.chat("a"))[0] == 200
        assert "--enable-sleep-mode" not in json.loads((await asyncio.to_thread(daemon.launches, "a"))[-1]["argv"])
        refused = await daemon.act("sleep", "a")
        assert (refused["state"], refused["error"]["code"]) == ("failed", "sleep_unsupported")


async def test_workers_of_a_killed_vllm_do_not_keep_the_card(world: GpuWorld, tmp_path: Path) -> None:
    """Its leader is killed; the worker lives on and holds 16 GiB, which the next model waits for."""
    models = told(vllm(tmp_path, world, "a"), workers_outlive=True) | vllm(tmp_path, world, "b")
    async with gpu_house(tmp_path, world, models) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        workers = await daemon.children("a")
        os.kill(await daemon.pid("a"), signal.SIGKILL)
        await daemon.until("a", "stopped")
        assert not [pid for pid in workers if alive(pid)]
        assert (await daemon.chat("b"))[0] == 200
        assert world.used("GPU-0") == 16 * GIB


async def test_workers_of_a_vllm_that_is_killed_while_it_starts_end_with_it(world: GpuWorld, tmp_path: Path) -> None:
    models = told(vllm(tmp_path, world, "a", knobs={"start_s": 3.0}), workers_outlive=True)
    async with gpu_house(tmp_path, world, models) as daemon:
        asking = asyncio.create_task(daemon.chat("a"))
        await daemon.until("a", "launching")
        leader = (await daemon.until_model("a", lambda m: bool(m["instances"]) and m["instances"][0]["pid"] is not None))["instances"][0][
            "pid"
        ]
        await until(lambda: len(daemon.engine_processes()) > 1)
        workers = daemon.engine_processes() - {leader}
        os.kill(leader, signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in workers))
        assert (await asking)[0] == 200
        assert world.used("GPU-0") == 16 * GIB
        assert len(await asyncio.to_thread(daemon.launches, "a")) == 2


async def test_what_a_vllm_left_behind_while_nobody_looked_is_ended_by_the_next_daemon(world: GpuWorld, tmp_path: Path) -> None:
    models = told(vllm(tmp_path, world, "a"), workers_outlive=True) | vllm(tmp_path, world, "b")
    async with gpu_house(tmp_path, world, models) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        leader = await daemon.pid("a")
        await daemon.kill()
        os.kill(leader, signal.SIGKILL)
        await until(lambda: not alive(leader))
        assert world.used("GPU-0") == 16 * GIB
        await daemon.start()
        assert (await daemon.chat("b"))[0] == 200
        assert world.used("GPU-0") == 16 * GIB


async def test_models_that_are_never_awake_together_are_warned_of_at_the_start(world: GpuWorld, tmp_path: Path) -> None:
    models = vllm(tmp_path, world, "a", awake="always") | vllm(tmp_path, world, "b", awake="always")
    async with gpu_house(tmp_path, world, models, gateway={"on_exit": "stop"}) as daemon:
        await daemon.until_model("a", lambda a: a["phase"] == "awake")
        assert "a and b are configured awake: always and can never be so together: a takes 16.2 GiB" in daemon.output()
        assert "; gpu0 has 24.0 GiB (take awake: always from those" in daemon.output()
        assert (await daemon.model("b"))["phase"] == "stopped"
