"""Engine ``attached``: somebody else's server on a card, measured, put to sleep and woken - never started, never stopped."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from adapters.launchers.ports import PortChooser
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.fake_adapter import requests_seen
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GpuWorld
from tests.support.hf_folders import sized_folder
from tests.support.house import alive
from tests.support.vllm_knobs import COMMAND, VllmKnobs

BEHAVIOUR = Behaviour(start_s=0.2, levels=(1, 2), residue_bytes={1: GIB, 2: GIB}, sleep_s=0.1, wake_s=0.1)


@asynccontextmanager
async def somebodys_vllm(folder: Path, world: GpuWorld, port: int, **knobs: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A vLLM that an operator started by hand on card 0, in a session of its own: 13 GiB awake."""
    model = sized_folder(folder / "theirs", 10 * GIB)
    told = VllmKnobs(behaviour=BEHAVIOUR, weights_bytes=10 * GIB, **knobs)
    env = {**os.environ, **told.env(), "FAKE_NVML_WORLD": world.folder, "VLLM_SERVER_DEV_MODE": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    flags = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "theirs"]
    more = ["--enable-sleep-mode", "--kv-cache-memory-bytes", str(2 * GIB), "--gpu-memory-utilization", "0.5"]
    process = await asyncio.create_subprocess_exec(*COMMAND, *flags, *more, env=env, start_new_session=True)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def theirs(port: int) -> dict[str, dict[str, Any]]:
    return {"theirs": {"engine": "attached", "url": f"http://127.0.0.1:{port}", "devices": {"ids": ["gpu0"]}}}


async def listens(port: int) -> None:
    """Until the engine is there: the daemon finds it by itself, the tests want to know when."""
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


async def has_slept(house: GpuHouse, port: int) -> list[str]:
    return [r["path"] for r in await requests_seen(f"http://127.0.0.1:{port}") if r["path"] in ("/sleep", "/wake_up")]


async def test_it_makes_room_by_sleeping_and_is_never_ended(tmp_path: Path) -> None:
    world, port = GpuWorld(tmp_path / "world"), PortChooser().choose()
    cards(world, 1)
    ours = vllm(tmp_path, world, "ours", weights_gib=12, kv_gib=2)
    async with somebodys_vllm(tmp_path, world, port) as process:
        await listens(port)
        daemon = GpuHouse(tmp_path, world, {**theirs(port), **ours})
        try:
            async with asyncio.timeout(60):
                await daemon.start()
                device = await daemon.until_device("gpu0", foreign_bytes=0)  # found by its port before anybody asked for it
                assert device["used_bytes"] == 13 * GIB
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
                assert (await daemon.act("stop", "ours", now=True))["state"] == "done"
                await daemon.terminate()
            assert alive(process.pid)
            assert world.oom_log() == []
        finally:
            daemon.sweep()


async def test_who_frees_nothing_is_let_go_and_counts_as_foreign(tmp_path: Path) -> None:
    world, port = GpuWorld(tmp_path / "world"), PortChooser().choose()
    cards(world, 1)
    lying = Behaviour(start_s=0.2, levels=(1,), residue_bytes={1: GIB}, sleep_s=0.1, wake_s=0.1, free_fraction=0.0)
    async with somebodys_vllm(tmp_path, world, port) as process:
        await listens(port)
        process.terminate()
        await process.wait()
    model = sized_folder(tmp_path / "liar", 10 * GIB)
    told = VllmKnobs(behaviour=lying, weights_bytes=10 * GIB)
    env = {**os.environ, **told.env(), "FAKE_NVML_WORLD": world.folder, "VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    flags = ["serve", str(model), "--port", str(port), "--host", "127.0.0.1", "--served-model-name", "theirs", "--enable-sleep-mode"]
    size = ["--kv-cache-memory-bytes", str(2 * GIB), "--gpu-memory-utilization", "0.5"]
    liar = await asyncio.create_subprocess_exec(*COMMAND, *flags, *size, env=env, start_new_session=True)
    daemon = GpuHouse(tmp_path, world, theirs(port))
    try:
        await listens(port)
        async with asyncio.timeout(60):
            await daemon.start()
            assert (await daemon.chat("theirs"))[0] == 200
            ended = await daemon.act("sleep", "theirs")
            assert ended["state"] == "failed"
            assert [kind for kind, _ in await daemon.told(1, "sleep_ineffective")] == ["sleep_ineffective"]
            await daemon.until("theirs", "stopped")
            assert alive(liar.pid)
            await daemon.terminate()
    finally:
        daemon.sweep()
        liar.kill()
        await liar.wait()


async def test_one_that_is_not_there_fails_with_a_remedy_and_is_taken_in_when_it_comes(tmp_path: Path) -> None:
    world, port = GpuWorld(tmp_path / "world"), PortChooser().choose()
    cards(world, 1)
    async with gpu_house(tmp_path, world, {}, within_s=60) as daemon:
        assert daemon.process is not None
    daemon = GpuHouse(tmp_path, world, theirs(port))
    try:
        async with asyncio.timeout(60):
            await daemon.start()
            waiting = asyncio.ensure_future(daemon.chat("theirs"))
            await daemon.until("theirs", "backoff")
            found = await daemon.model("theirs")
            assert "nobody listens" in found["error"]["message"]
            assert "hotseat only takes it in" in found["error"]["fix"]
            async with somebodys_vllm(tmp_path, world, port) as process:
                status, _ = await waiting
                assert status == 200
                process.kill()
                await daemon.until("theirs", "stopped", "backoff")
            await daemon.terminate()
    finally:
        daemon.sweep()


def test_the_interpreter_of_the_fake_is_ours() -> None:
    assert COMMAND[0] == sys.executable
