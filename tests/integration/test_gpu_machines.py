"""Machines that are difficult: a daemon stays up on each of them, serves what can be served, and says what is wrong."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.domain.units import GIB
from tests.support import gpu_world
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GpuWorld, gpu, mig, proc
from tests.support.house import until

#: The world's lock may be held by a process that is kept off the CPU.
pytestmark = pytest.mark.may_block
#: No process of this machine: it is larger than any pid.
STRANGER = 4_194_305
IMPATIENT = {"x-hotseat-max-wait": "1"}
MISMATCH = "the NVIDIA library and the kernel module are of different versions"


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    world = GpuWorld(tmp_path / "world")
    cards(world, 1)
    return world


@pytest.fixture
def foreigner() -> Iterator[int]:
    """A process of somebody else; its pid."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    assert process.poll() is None, "it was touched"
    process.kill()
    process.communicate()


async def degraded(daemon: GpuHouse) -> dict[str, str]:
    """Code -> message of what the daemon complains about."""
    return {item["code"]: item["message"] for item in (await daemon.status())["degraded"]}


# --- the driver -----------------------------------------------------------------------------------------------------


async def test_a_driver_mismatch_from_the_start(world: GpuWorld, tmp_path: Path) -> None:
    world.set_error("InitWithFlags", "*", gpu_world.VERSION_MISMATCH)
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a")) as daemon:
        status, text = await daemon.chat("a", headers=IMPATIENT)
        assert (status, MISMATCH in text) == (503, True), text
        assert MISMATCH in (await degraded(daemon))["devices_unreadable"]
        assert "! nvidia devices unreadable" in (await daemon.cli("status"))[1]
        world.clear_errors()
        assert (await daemon.chat("a"))[0] == 200


async def test_a_driver_mismatch_between_two_daemons_stops_no_engine(world: GpuWorld, tmp_path: Path) -> None:
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a") | vllm(tmp_path, world, "b")) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        pid = await daemon.pid("a")
        await daemon.terminate()
        world.set_error("InitWithFlags", "*", gpu_world.VERSION_MISMATCH)
        await daemon.start()
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.pid("a") == pid
        status, text = await daemon.chat("b", headers=IMPATIENT)
        assert (status, MISMATCH in text, daemon.launches("b")) == (503, True, [])
        assert "! gpu0 driver mismatch" in (await daemon.cli("status"))[1]
        world.clear_errors()
        assert (await daemon.chat("b"))[0] == 200


async def test_a_driver_mismatch_while_the_daemon_runs(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path / "world")
    cards(world, 2)
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a") | vllm(tmp_path, world, "b")) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        pid = await daemon.pid("a")
        world.set_error("*", "*", gpu_world.VERSION_MISMATCH)
        await daemon.until_device("gpu1", health="driver_mismatch")
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.pid("a") == pid
        status, text = await daemon.chat("b", headers=IMPATIENT)
        assert (status, MISMATCH in text, daemon.launches("b")) == (503, True, [])
        assert MISMATCH in (await degraded(daemon))["driver_mismatch"]
        told = [event["kind"] for event in await daemon.events()]
        assert ("driver_mismatch" in told, "device_back" in told) == (True, False)
        world.clear_errors()
        assert (await daemon.chat("b"))[0] == 200
        assert await daemon.pid("a") == pid


async def test_no_library_and_no_driver(world: GpuWorld, tmp_path: Path) -> None:
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a"), library=False) as daemon:
        refused, text = await daemon.chat("a")
        assert (refused, "a has no device it may run on" in text) == (507, True)
        status = await daemon.status()
        assert (status["devices"], status["ready"]) == ([], False)
        [why] = status["degraded"]  # a machine without cards is no fault, but here nothing can serve
        assert (why["code"], why["subject"], why["message"]) == ("does_not_fit", "a", "a has no device it may run on: this host has none")
        assert "hotseat doctor" in why["fix"]
        assert (await daemon.cli("devices"))[1].startswith("no devices: no NVIDIA card was found")


# --- odd cards ------------------------------------------------------------------------------------------------------


async def test_a_card_whose_memory_is_the_hosts(world: GpuWorld, tmp_path: Path) -> None:
    world.write(gpu(0, uuid="GPU-0", name="NVIDIA GB10", unified=1))
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a", weights_gib=0.5, kv_gib=0.25)) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        card = await daemon.get("/control/v1/devices/gpu0")
        assert card["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine's own memory"
        assert "from meminfo" in (await daemon.cli("devices", "show", "gpu0"))[1]
        assert (await daemon.act("sleep", "a", level=1))["state"] == "done"
        assert (await daemon.model("a"))["phase"] == "asleep"
        assert (await daemon.status())["host"]["sleep_bytes"] == 0, "no copy is made where there is one memory"
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.model("a"))["counters"]["wakes"] == 1


@pytest.mark.parametrize("hide", [1, 2])
async def test_sleep_and_stop_are_confirmed_where_processes_have_no_numbers(world: GpuWorld, tmp_path: Path, hide: int) -> None:
    cards(world, 1, hide=hide)
    models = vllm(tmp_path, world, "a", knobs={"start_s": 1.5}) | vllm(tmp_path, world, "b")
    async with gpu_house(tmp_path, world, models) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.chat("b"))[0] == 200
        assert (await daemon.model("a"))["phase"] == "asleep"
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.act("stop", "a"))["state"] == "done"
        assert (await daemon.model("a"))["claimed_bytes"] == 0
        assert "sleep_ineffective" not in {event["kind"] for event in await daemon.events()}


async def test_another_order_of_cards_at_the_next_boot(tmp_path: Path) -> None:
    """What was gpu1 keeps its id, and its next engine is told the index that CUDA gives it now."""
    world = GpuWorld(tmp_path / "world")
    world.write(gpu(0, uuid="GPU-x", bus="0000:10:00.0", reserved=0), gpu(1, uuid="GPU-y", bus="0000:20:00.0", reserved=0))
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a", devices={"ids": ["gpu1"]})) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        assert (world.used("GPU-x"), world.used("GPU-y")) == (0, 16 * GIB)
        assert (await daemon.act("stop", "a"))["state"] == "done"
        await daemon.terminate()
        world.write(gpu(0, uuid="GPU-y", bus="0000:05:00.0", reserved=0), gpu(1, uuid="GPU-x", bus="0000:10:00.0", reserved=0))
        await daemon.start()
        listed = {device["id"]: (device["uuid"], device["index"]) for device in (await daemon.status())["devices"]}
        assert listed == {"gpu0": ("GPU-x", 1), "gpu1": ("GPU-y", 0)}
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.model("a"))["devices"] == ["gpu1"]
        assert (world.used("GPU-x"), world.used("GPU-y")) == (0, 16 * GIB)


async def test_mig_instances_are_seats_and_are_built_anew_while_the_daemon_runs(world: GpuWorld, tmp_path: Path) -> None:
    card = gpu(0, uuid="GPU-0", mig=1, total=48 * GIB, reserved=0)
    world.write(card, mig(0, 0, uuid="MIG-x", total=24 * GIB, gi=1), mig(0, 1, uuid="MIG-y", total=12 * GIB, gi=2))
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a")) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.model("a"))["devices"] == ["gpu0m0"]
        assert (world.used("MIG-x"), world.used("GPU-0")) == (16 * GIB, 16 * GIB)
        pid = await daemon.pid("a")
        world.write(card, mig(0, 0, uuid="MIG-z", total=24 * GIB, gi=1), mig(0, 1, uuid="MIG-y", total=12 * GIB, gi=2))
        await daemon.until_model("a", lambda a: a["phase"] == "stopped")
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.pid("a") != pid
        assert (await daemon.model("a"))["devices"] == ["gpu0m2"]
        assert world.used("MIG-z") == 16 * GIB
        assert "device_lost: gpu0m0" in (await daemon.cli("story", "a"))[1], "told by a measurement or by the list, whichever came first"
        assert "! gpu0m0 missing" in (await daemon.cli("devices"))[1]
        assert await daemon.told(1, "device_missing") == [("device_missing", "gpu0m0")], "by both, and once"
        for use in (True, False):
            await daemon.terminate()
            daemon.settings["devices"] = {"headroom": "0%", "override": {"gpu0m0": {"use": use}}}
            await daemon.start()
            code, out, _ = await daemon.cli("devices")
            assert code == 0
            assert ("! gpu0m0 missing" in out) is use, "whoever took it out for good says so once"
            assert ("gpu0m0" in out) is use
            assert not use or "use: false" in out


async def test_cards_for_one_process_change_hands_by_stop_and_start(world: GpuWorld, tmp_path: Path) -> None:
    """EXCLUSIVE_PROCESS: a sleeper holds a context, and nobody else could start beside it."""
    cards(world, 1, compute_mode=3)
    models = vllm(tmp_path, world, "a", weights_gib=4, knobs={"start_s": 1.5}) | vllm(tmp_path, world, "b", weights_gib=4)
    async with gpu_house(tmp_path, world, models) as daemon:
        for model in "aba":
            assert (await daemon.chat(model))[0] == 200
        counters = {model["name"]: model["counters"] for model in (await daemon.status())["models"]}
        assert {name: (each["starts"], each["sleeps"]) for name, each in counters.items()} == {"a": (2, 0), "b": (1, 0)}
        assert (await daemon.model("b"))["phase"] == "stopped"


# --- others on the cards --------------------------------------------------------------------------------------------


async def test_somebody_takes_the_memory_between_decision_and_start(world: GpuWorld, tmp_path: Path, foreigner: int) -> None:
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a")) as daemon:
        asking = asyncio.create_task(daemon.chat("a"))
        await daemon.until("a", "launching")
        assert world.allocate(foreigner, {"GPU-0": 12 * GIB}) == {}, "the engine was first"
        await daemon.until("a", "backoff", "stopped")
        await daemon.until_device("gpu0", foreign_bytes=12 * GIB)
        status, text = await daemon.chat("a", headers={"x-hotseat-max-wait": "3"})
        assert (status, "12.0 GiB are used by others" in text) == (503, True), text
        assert not asking.done()
        assert len(daemon.launches("a")) == 1, "not tried again where it cannot succeed"
        world.release(foreigner)
        assert (await asking)[0] == 200
        ends = [("failed", "device_oom"), ("ready", "none")]
        await until(lambda: [(row["result"], row["end_reason"]) for row in daemon.launches("a")] == ends)


async def test_a_process_that_grows_puts_an_idle_model_away_and_is_left_alone(world: GpuWorld, tmp_path: Path, foreigner: int) -> None:
    models = vllm(tmp_path, world, "a", knobs={"start_s": 1.5})
    async with gpu_house(tmp_path, world, models, defaults={"min_awake": "0s"}) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        assert world.allocate(foreigner, {"GPU-0": 3 * GIB}) == {}
        await daemon.until_device("gpu0", foreign_bytes=3 * GIB)
        assert (await daemon.model("a"))["phase"] == "awake", "both fit"
        assert world.allocate(foreigner, {"GPU-0": 8 * GIB}) == {}
        await daemon.until("a", "asleep")
        assert "GiB claimed and 8.0 GiB used by others exceed 24.0 GiB" in (await daemon.cli("status"))[1]
        status, text = await daemon.chat("a", headers=IMPATIENT)
        assert (status, "8.0 GiB are used by others" in text) == (503, True), text
        assert world.holdings(foreigner) == {"GPU-0": 8 * GIB}
        world.release(foreigner)
        assert (await daemon.chat("a"))[0] == 200


async def test_a_process_without_an_entry_in_proc(world: GpuWorld, tmp_path: Path) -> None:
    """In another container, say: its bytes are others' bytes."""
    world.add(proc(0, STRANGER, 6 * GIB))
    async with gpu_house(tmp_path, world, vllm(tmp_path, world, "a")) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        card = await daemon.until_device("gpu0", foreign_bytes=6 * GIB)
        assert (card["health"], card["used_bytes"]) == ("ok", 22 * GIB)
        assert f"pid {STRANGER} 6.0 GiB" in " ".join((await daemon.cli("devices", "show", "gpu0"))[1].split())
        world.remove("proc")
        await daemon.until_device("gpu0", foreign_bytes=0)
        assert (await daemon.model("a"))["phase"] == "awake"


async def test_absurd_numbers_of_a_card_change_nothing(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path / "world")
    cards(world, 2)
    models: dict[str, Any] = vllm(tmp_path, world, "a", devices={"ids": ["gpu1"]}) | vllm(tmp_path, world, "b")
    async with gpu_house(tmp_path, world, models) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        pid = await daemon.pid("a")
        world.add(proc(1, STRANGER, 40 * GIB, held=GIB))
        await daemon.until_device("gpu1", health="stale")
        assert "! gpu1 stale" in (await daemon.cli("status"))[1]
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.chat("b"))[0] == 200
        assert (await daemon.model("b"))["devices"] == ["gpu0"]
        assert await daemon.pid("a") == pid
        world.remove("proc")
        await daemon.until_device("gpu1", health="ok")
        assert (await daemon.act("stop", "a"))["state"] == "done"
