"""Device family ``nvidia`` from the start of a process: no library, another package of that name, the library found by the linker."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.gpu_world import GpuWorld, gpu
from tests.support.nvml import build

ROOT = Path(__file__).resolve().parents[2]

LOOK = """
import asyncio, json, sys
from adapters.devices.nvml import NvmlDevices
from scheduler.daemon.clock import SystemClock
from scheduler.domain.errors import HotseatError
assert "pynvml" not in sys.modules, "imported before anybody asked for a card"

async def main():
    devices = NvmlDevices(SystemClock())
    answer = {}
    try:
        answer["ids"] = [info.id for info in await devices.inventory({})]
    except HotseatError as error:
        answer |= {"error": error.message, "code": error.code, "fix": error.fix}
    answer["samples"] = [sample.used_bytes for sample in await devices.sample({})]
    answer["trouble"] = devices.trouble
    print(json.dumps(answer))

asyncio.run(main())
"""


def look(environment: dict[str, str], *paths: Path) -> dict[str, object]:
    """What another process finds; ``paths`` come before everything else in its search for modules."""
    kept = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "FAKE_NVML_WORLD")}
    kept["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_library_is_found_by_the_linker(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.write(gpu(0, used=5), gpu(1, used=7))
    assert look(build.environment(tmp_path)) == {"ids": ["gpu0", "gpu1"], "samples": [5, 7], "trouble": ""}


def test_host_without_a_driver_has_no_cards(tmp_path: Path) -> None:
    """An empty library of that name stands for none: this machine may have a real one."""
    (tmp_path / build.LIBRARY).write_bytes(b"")
    answer = look({"LD_LIBRARY_PATH": str(tmp_path)})
    assert answer == {"ids": [], "samples": [], "trouble": "no NVIDIA driver is installed"}


def test_driver_that_is_not_loaded(tmp_path: Path) -> None:
    answer = look({"LD_LIBRARY_PATH": str(build.library().parent)})
    assert answer == {"ids": [], "samples": [], "trouble": "the NVIDIA driver is not loaded"}


def test_another_package_called_pynvml_is_named(tmp_path: Path) -> None:
    """Old ``pynvml`` and ``nvidia-ml-py3`` bring a module of that name, and would hide the right one."""
    GpuWorld(tmp_path / "world").write(gpu(0))
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n")
    answer = look(build.environment(tmp_path / "world"), tmp_path)
    assert answer["code"] == "wrong_pynvml"
    assert f"{tmp_path}/pynvml.py is not the pynvml of nvidia-ml-py" in str(answer["error"])
    assert "pip uninstall -y pynvml nvidia-ml-py3" in str(answer["fix"])
    assert answer["samples"] == []
    (tmp_path / "pynvml.py").write_text("raise ImportError('torn')\n")
    answer = look(build.environment(tmp_path / "world"), tmp_path)
    assert (answer["code"], answer["error"]) == ("wrong_pynvml", "the Python package nvidia-ml-py cannot be imported: torn")


HANG = """
import asyncio
from adapters.devices.nvml import NvmlDevices
from scheduler.daemon.clock import SystemClock

async def main():
    devices = NvmlDevices(SystemClock(), sample_timeout_s=0.05)
    print(await devices.sample({}), await devices.sample({}), flush=True)

asyncio.run(main())
"""


def test_process_ends_though_a_call_hangs(tmp_path: Path) -> None:
    world = GpuWorld(tmp_path)
    world.write(gpu(0))
    world.set_delay("InitWithFlags", "*", 3_600_000)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **build.environment(tmp_path)}
    done = subprocess.run([sys.executable, "-c", HANG], env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[] []\n", "the NVIDIA driver has not answered for 0.1 s\n")
