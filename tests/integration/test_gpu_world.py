"""The stand-in for NVML and its world agree with each other, as seen through the real pynvml."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from scheduler.domain.units import GIB, MIB
from tests.support.gpu_world import GPU_IS_LOST, GpuWorld, gpu, mig, proc
from tests.support.nvml import build

WORLD = Path(__file__).parents[1] / "support" / "gpu_world.py"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuWorld]:
    build.preload()
    monkeypatch.setenv("FAKE_NVML_WORLD", str(tmp_path))
    world = GpuWorld(tmp_path)
    world.write(gpu(0, uuid="GPU-a", total=24 * GIB, reserved=512 * MIB, used=MIB), gpu(1, uuid="GPU-b", total=16 * GIB))
    pynvml.nvmlInit()
    yield world
    pynvml.nvmlShutdown()


def memory(index: int) -> tuple[int, int]:
    """(used, free) of a card."""
    found = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index), pynvml.nvmlMemory_v2)
    return found.used, found.free


def processes(index: int) -> dict[int, int]:
    found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(pynvml.nvmlDeviceGetHandleByIndex(index))
    return {process.pid: process.usedGpuMemory for process in found}


def test_what_a_process_holds_is_measured_while_it_lives(world: GpuWorld) -> None:
    code = "import runpy,sys; w = runpy.run_path(sys.argv[1])['GpuWorld'](sys.argv[2]); import os\n"
    code += "print(w.allocate(os.getpid(), {'GPU-a': 3 << 30, 'GPU-b': 1 << 30}), flush=True); sys.stdin.read()"
    engine = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(WORLD), world.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert engine.stdin is not None
    assert engine.stdout is not None
    assert engine.stdout.readline() == "{}\n"
    assert memory(0) == (3 * GIB + MIB, 24 * GIB - 512 * MIB - 3 * GIB - MIB)
    assert processes(0) == {engine.pid: 3 * GIB}
    assert processes(1) == {engine.pid: GIB}
    assert world.used("GPU-a") == 3 * GIB + MIB
    engine.stdin.close()
    os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
    assert memory(0)[0] == world.used("GPU-a") == MIB, "a zombie holds nothing"
    assert processes(1) == {}
    engine.stdout.close()
    engine.wait()
    assert world.peak() == {"GPU-a": 3 * GIB + MIB, "GPU-b": GIB}


def test_allocation_that_does_not_fit_changes_nothing_and_is_logged(world: GpuWorld) -> None:
    pid = os.getpid()
    world.add(proc(1, 4_000_001, 10 * GIB))
    assert world.allocate(pid, {"GPU-a": 2 * GIB, "GPU-b": 5 * GIB}) == {}
    assert world.allocate(pid, {"GPU-a": 3 * GIB, "GPU-b": 7 * GIB}) == {"GPU-b": GIB}
    assert world.holdings(pid) == {"GPU-a": 2 * GIB, "GPU-b": 5 * GIB}
    assert memory(1) == (15 * GIB, GIB)
    (line,) = world.oom_log()
    assert f"pid={pid} uuid=GPU-b wanted={7 * GIB} free={6 * GIB}" in line
    assert world.allocate(pid, {"GPU-a": world.capacity("GPU-a") - MIB}) == {}, "exactly full"
    assert memory(0)[1] == 0
    world.release(pid)
    world.release(pid)
    assert (memory(0)[0], memory(1)[0]) == (MIB, 10 * GIB)
    with pytest.raises(ValueError, match="GPU-x; there are GPU-a, GPU-b"):
        world.allocate(pid, {"GPU-x": 1})


def test_bytes_linger_after_their_holder(world: GpuWorld) -> None:
    world.linger("old", "GPU-a", 2 * GIB, 3600)
    assert memory(0)[0] == world.used("GPU-a") == 2 * GIB + MIB
    world.linger("old", "GPU-a", 2 * GIB, 0)
    assert memory(0)[0] == world.used("GPU-a") == MIB


def test_parts_of_a_card_are_taken_from_the_card(world: GpuWorld) -> None:
    world.write(gpu(0, uuid="GPU-a", mig=1), mig(0, 2, uuid="MIG-a", total=5 * GIB, used=MIB), proc("0.2", 4_000_001, GIB))
    assert world.allocate(os.getpid(), {"MIG-a": 5 * GIB}) == {"MIG-a": GIB + MIB}
    assert world.allocate(os.getpid(), {"MIG-a": 2 * GIB}) == {}
    assert memory(0)[0] == world.used("GPU-a") == 3 * GIB + MIB
    part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 2)
    assert pynvml.nvmlDeviceGetMemoryInfo(part).used == world.used("MIG-a") == 3 * GIB + MIB


def test_descriptions_are_edited_and_bad_ones_refused(world: GpuWorld) -> None:
    world.set(1, used=GIB, name="NVIDIA H200")
    world.set_error("DeviceGetMemoryInfo_v2", 1, GPU_IS_LOST, times=1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        memory(1)
    assert memory(1)[0] == GIB
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)) == "NVIDIA H200"
    before = world.lines()
    with pytest.raises(ValueError, match="no gpu 7"):
        world.set(7, used=1)
    with pytest.raises(ValueError, match="not a line of a world: 'gqu 1'"):
        world.add("gqu 1")
    assert world.lines() == before
