"""What operators see of NVIDIA cards: a real daemon and a real doctor, through the real pynvml, on a machine made of files."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import gpu_world
from tests.support.gpu_world import GpuWorld, gpu, link, mig, proc
from tests.support.nvml.build import environment
from tests.support.real import RealDaemon

GIB = 1 << 30
SECTION = {"headroom": "1GiB", "override": {"gpu1": {"use": False}, "gpu3": {"headroom": "25%"}}}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuWorld:
    """Four cards: two linked, one in parts, one for one process at a time; somebody else computes on the first."""
    world = GpuWorld(tmp_path / "world")
    for name, value in environment(world.folder).items():
        monkeypatch.setenv(name, value)
    world.write(
        gpu_world.driver(version="570.86.15"),
        gpu(0, name="NVIDIA L4", persistence=1, compute_mode=0, temp=61, numa=0),
        gpu(1, name="NVIDIA L4", persistence=0, compute_mode=0),
        gpu(2, name="NVIDIA A100-SXM4-80GB", total=80 * GIB, mig=1, persistence=1, compute_mode=0),
        mig(2, 0, total=40 * GIB),
        gpu(3, name="NVIDIA L4", persistence=1, compute_mode=3),
        link(0, 0, 1),
        link(1, 0, 0),
        proc(0, os.getpid(), 2 * GIB),
    )
    return world


@pytest.fixture
async def daemon(world: GpuWorld, tmp_path: Path) -> AsyncIterator[RealDaemon]:
    daemon = RealDaemon(tmp_path, {}, {})
    daemon.settings["devices"] = SECTION
    await daemon.start()
    yield daemon
    await daemon.stop()


async def test_every_card_is_listed_with_the_reason_why_it_is_no_seat(daemon: RealDaemon) -> None:
    listed = {device["id"]: device for device in (await daemon.get("/control/v1/devices"))["items"]}
    assert {name: (device["allocatable"], device["why_not"]) for name, device in listed.items()} == {
        "gpu0": (True, None),
        "gpu1": (False, "devices.override says use: false"),
        "gpu2": (False, "MIG is on: its instances are the devices"),
        "gpu2m0": (True, None),
        "gpu3": (True, None),
    }
    assert {name: device["headroom_bytes"] for name, device in listed.items()} == dict.fromkeys(listed, GIB) | {"gpu3": 6 * GIB}
    assert (listed["gpu2m0"]["parent"], listed["gpu3"]["max_processes"]) == ("gpu2", 1)
    shown = (await daemon.status())["devices"]
    at = {"sampled_at": None}  # the next sample may have come in between
    assert [device | at for device in shown] == [device | at for device in listed.values()]


async def test_the_table_and_the_card(daemon: RealDaemon) -> None:
    code, out, err = await daemon.cli("devices")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if not line.startswith(("!", " "))}
    assert list(rows) == ["ID", "gpu0", "gpu1", "gpu2", "gpu2m0", "gpu3"]
    assert "2.0/24.0     2.0     0.0" in rows["gpu0"]
    assert rows["gpu1"].endswith("no seat: devices.override says use: false")
    _, card, _ = await daemon.cli("devices", "show", "gpu0")
    lines = [" ".join(line.split()) for line in card.splitlines()]
    assert lines[0] == "gpu0 NVIDIA L4 ok"
    assert f"pid {os.getpid()} 2.0 GiB {Path('/proc/self/comm').read_text().strip()}" in lines
    assert "headroom 1.0 GiB kept free by configuration" in lines
    assert "links same NVLink island as gpu1" in lines
    assert any(line.startswith("modes driver 570.86.15") for line in lines)


async def test_a_card_that_falls_off_the_bus_is_seen_as_lost_with_its_remedy(daemon: RealDaemon, world: GpuWorld) -> None:
    world.set_error("*", 3, gpu_world.GPU_IS_LOST)
    lost = await daemon.until_device("gpu3", health="lost")
    assert lost["trouble"]
    assert lost["fix"]
    assert (lost["used_bytes"], lost["free_bytes"], lost["total_bytes"]) == (None, None, 24 * GIB)
    degraded = {item["code"]: item for item in (await daemon.status())["degraded"]}
    assert degraded["device_lost"]["subject"] == "gpu3"
    _, out, _ = await daemon.cli("devices")
    assert out.startswith("! gpu3 lost")
    world.clear_errors()
    await daemon.until_device("gpu3", health="ok", trouble=None)


async def doctor(folder: Path) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """`hotseat doctor --json` in a process of its own, with the daemon of that folder or without. All it has to say are findings."""
    words = [sys.executable, "-P", "-m", "scheduler.cli.main", "doctor", "--json", "--state-dir", str(folder)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(50):
        out, err = await process.communicate()
    assert err == b""
    found: dict[str, list[dict[str, str]]] = {}
    for finding in json.loads(out)["findings"]:
        found.setdefault(finding["name"], []).append(finding)
    return process.returncode or 0, found


async def test_the_doctor_examines_each_card(world: GpuWorld, tmp_path: Path) -> None:
    code, found = await doctor(tmp_path)
    assert code == 0
    assert found["pynvml"][0]["text"].startswith("nvidia-ml-py ")
    assert (found["driver"][0]["state"], found["driver"][0]["text"]) == ("ok", "NVIDIA 570.86.15, 4 cards")
    states = {finding["text"].partition(":")[0]: (finding["state"], finding["fix"]) for finding in found["card"]}
    assert {name: state for name, (state, _) in states.items()} == {
        "gpu0": "ok",
        "gpu1": "warn",
        "gpu2": "ok",
        "gpu2m0": "ok",
        "gpu3": "warn",
    }
    assert "nvidia-persistenced" in states["gpu1"][1]
    assert "-c DEFAULT" in states["gpu3"][1]


async def test_the_doctor_calls_cards_as_the_daemon_does_while_one_does_not_answer(daemon: RealDaemon, world: GpuWorld) -> None:
    world.set_error("*", 0, gpu_world.GPU_IS_LOST)
    await daemon.until_device("gpu0", health="lost")
    code, found = await doctor(daemon.state_dir)
    assert code == 1
    [silent] = [finding for finding in found["card"] if finding["state"] == "fail"]
    assert "does not answer" in silent["text"]
    assert "dmesg" in silent["fix"]
    # Found in this order they would be gpu0, gpu1, gpu2.
    assert {f["text"].partition(":")[0] for f in found["card"] if f is not silent} == {"gpu1", "gpu2", "gpu2m0", "gpu3"}


async def test_the_doctor_knows_a_library_that_does_not_match_the_kernel_module(world: GpuWorld, tmp_path: Path) -> None:
    world.set_error("InitWithFlags", "*", gpu_world.VERSION_MISMATCH)
    code, found = await doctor(tmp_path)
    assert code == 1
    [finding] = found["driver"]
    assert finding["state"] == "fail"
    assert "different versions" in finding["text"]
    assert "reboot" in finding["fix"]


async def test_the_doctor_on_a_machine_whose_driver_is_not_loaded(world: GpuWorld, tmp_path: Path) -> None:
    world.set_error("InitWithFlags", "*", gpu_world.DRIVER_NOT_LOADED)
    code, found = await doctor(tmp_path)
    assert (code, [finding["state"] for finding in found["driver"]]) == (0, ["ok"])
    assert "card" not in found
