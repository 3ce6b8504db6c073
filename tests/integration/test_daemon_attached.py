"""Engine ``attached``: somebody else's server on a card, measured, put to sleep and woken - never started, never stopped."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.launchers.ports import PortChooser, find_listeners
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.fake_adapter import requests_seen
from tests.support.gpu_house import GpuHouse, cards, vllm
from tests.support.gpu_world import GpuWorld
from tests.support.hf_folders import sized_folder
from tests.support.house import alive, until
from tests.support.nvml import build
from tests.support.vllm_knobs import COMMAND, VllmKnobs

BEHAVIOUR = Behaviour(start_s=0.2, levels=(1, 2), residue_bytes={1: GIB, 2: GIB}, sleep_s=0.1, wake_s=0.1)


@asynccontextmanager
async def somebodys_vllm(
    folder: Path, world: GpuWorld, port: int, behaviour: Behaviour = BEHAVIOUR, *, same_terminal: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A vLLM that an operator started by hand on card 0, and that listens: 13 GiB awake; in a session of its own or in the daemon's."""
    model = await asyncio.to_thread(sized_folder, folder / "theirs", 10 * GIB)
    told = VllmKnobs(behaviour=behaviour, weights_bytes=10 * GIB)
    env = {**os.environ, **told.env(), "FAKE_NVML_WORLD": world.folder, "VLLM_SERVER_DEV_MODE": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    flags = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "theirs"]
    more = ["--enable-sleep-mode", "--kv-cache-memory-bytes", str(2 * GIB), "--gpu-memory-utilization", "0.5"]
    process = await asyncio.create_subprocess_exec(*COMMAND, *flags, *more, env=env, start_new_session=not same_terminal)
    try:
        await listens(port)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    """One card. The stand-in driver is built here, outside the event loop."""
    build.library()
    made = GpuWorld(tmp_path / "world")
    cards(made, 1)
    return made


def theirs(port: int) -> dict[str, dict[str, Any]]:
    return {"theirs": {"engine": "attached", "url": f"http://127.0.0.1:{port}", "devices": {"ids": ["gpu0"]}}}


async def listens(port: int) -> None:
    """Until the engine is there: the daemon finds it by itself, the tests want to know when."""
    await until(lambda: bool(find_listeners(port)))


async def has_slept(house: GpuHouse, port: int) -> list[str]:
    return [r["path"] for r in await requests_seen(f"http://127.0.0.1:{port}") if r["path"] in ("/sleep", "/wake_up")]


async def test_it_makes_room_by_sleeping_and_is_never_ended(tmp_path: Path, world: GpuWorld) -> None:
    port = PortChooser().choose()
    ours = await asyncio.to_thread(vllm, tmp_path, world, "ours", weights_gib=12, kv_gib=2)
    async with somebodys_vllm(tmp_path, world, port) as process:
        daemon = GpuHouse(tmp_path, world, {**theirs(port), **ours})
        try:
            async with asyncio.timeout(60):
                await daemon.start()
                device = await daemon.until_device("gpu0", foreign_bytes=0)  # found by its port before anybody asked for it
                assert device["used_bytes"] == 13 * GIB
                (claim,) = (await daemon.get("/control/v1/devices/gpu0"))["claims"]
                assert (claim["model"], claim["phase"], claim["claimed_bytes"], claim["used_bytes"]) == ("theirs", "stopped", 0, 13 * GIB)
                assert (await daemon.chat("theirs"))[0] == 200
                found = await daemon.model("theirs")
                assert (found["phase"], found["instances"][0]["pid"]) == ("awake", process.pid)
                assert (await daemon.chat("ours"))[0] == 200
                assert (await daemon.model("theirs"))["phase"] == "asleep"
                assert await has_slept(daemon, port) == ["/sleep"]
                assert (await daemon.chat("theirs"))[0] == 200
                assert await has_slept(daemon, port) == ["/sleep", "/wake_up"]
                refused = await daemon.act("stop", "theirs")
                assert (refused["state"], refused["error"]["code"]) == ("failed", "conflict")
                assert "not hotseat's to end" in refused["error"]["message"]
                card = (await daemon.cli("status", "theirs"))[1]
                assert f"engine      attached  http://127.0.0.1:{port}" in card
                assert "next        hotseat sleep theirs" in card
                assert (await daemon.act("stop", "ours", now=True))["state"] == "done"
                await daemon.terminate()
            assert alive(process.pid)
            assert world.oom_log() == []
        finally:
            daemon.sweep()


async def test_one_that_was_started_from_the_terminal_of_the_daemon_is_taken_in(tmp_path: Path, world: GpuWorld) -> None:
    port = PortChooser().choose()
    daemon = GpuHouse(tmp_path, world, theirs(port))
    async with somebodys_vllm(tmp_path, world, port, same_terminal=True) as process:
        try:
            async with asyncio.timeout(60):
                await daemon.start()
                await daemon.until_device("gpu0", foreign_bytes=0)
                assert (await daemon.chat("theirs"))[0] == 200
                assert (await daemon.act("sleep", "theirs"))["state"] == "done"
                await daemon.until_device("gpu0", used_bytes=GIB)
                await daemon.terminate()
            assert alive(process.pid)
        finally:
            daemon.sweep()


async def test_who_frees_nothing_is_let_go_and_counts_as_foreign(tmp_path: Path, world: GpuWorld) -> None:
    port = PortChooser().choose()
    daemon = GpuHouse(tmp_path, world, theirs(port))
    async with somebodys_vllm(tmp_path, world, port, replace(BEHAVIOUR, free_fraction=0.0)) as process:
        try:
            async with asyncio.timeout(60):
                await daemon.start()
                assert (await daemon.chat("theirs"))[0] == 200
                ended = await daemon.act("sleep", "theirs")
                assert ended["state"] == "failed"
                assert await daemon.told(1, "sleep_ineffective") == [("sleep_ineffective", "theirs")]
                await daemon.until("theirs", "stopped")
                assert alive(process.pid)
                await daemon.terminate()
        finally:
            daemon.sweep()


async def test_one_that_is_not_there_fails_with_a_remedy_and_is_taken_in_when_it_comes(tmp_path: Path, world: GpuWorld) -> None:
    port = PortChooser().choose()
    daemon = GpuHouse(tmp_path, world, theirs(port))
    try:
        async with asyncio.timeout(60):
            await daemon.start()
            waiting = asyncio.ensure_future(daemon.chat("theirs"))
            await daemon.until("theirs", "backoff")
            found = await daemon.model("theirs")
            assert "nobody listens" in found["error"]["message"]
            assert "it is not started here" in found["error"]["fix"]
            async with somebodys_vllm(tmp_path, world, port) as process:
                status, _ = await waiting
                assert status == 200
                process.kill()
                await daemon.until("theirs", "stopped", "backoff")
            await daemon.terminate()
    finally:
        daemon.sweep()
