"""The fake vLLM on the pretended cards of a world folder: what it takes, gives back, and is refused."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.http import CallFailed
from scheduler.domain.units import GIB
from scheduler.ports.engine import Answer
from tests.conformance.variants import wait_until
from tests.support.behaviour import NEVER
from tests.support.gpu_world import GpuWorld, gpu, mig
from tests.support.vllm_knobs import HEALTHY, VllmKnobs
from tests.support.vllm_process import VllmProcess, fake_vllm

SLEEPY = "--enable-sleep-mode"
A, B, C = "GPU-aaaa", "GPU-bbbb", "GPU-cccc"
#: 16 GiB awake, of which 4 are KV cache; 1 GiB asleep.
SIZED = replace(HEALTHY, awake_bytes=16 * GIB, kv_bytes=4 * GIB, residue_bytes={1: GIB, 2: GIB // 2})
#: Less than vLLM's own, so that one can start where something is used.
SMALL = ("--gpu-memory-utilization", "0.1")


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    """Three cards of 24 GiB."""
    made = GpuWorld(tmp_path / "world")
    made.write(gpu(0, uuid=A), gpu(1, uuid=B), gpu(2, uuid=C))
    return made


def sized(**changes: Any) -> VllmKnobs:
    return VllmKnobs(behaviour=replace(SIZED, **changes))


def used(world: GpuWorld) -> list[int]:
    """GiB per card."""
    return [world.used(uuid) // GIB for uuid in (A, B, C)]


def seen(world: GpuWorld, wanted: Callable[[], bool]) -> None:
    wait_until("the cards show it", wanted)


def test_awake_asleep_and_gone(tmp_path: Path, world: GpuWorld) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=sized(), world=world, CUDA_VISIBLE_DEVICES="1") as running:
        (core,) = running.workers()
        assert used(world) == [0, 16, 0]
        assert (world.holdings(core), world.holdings(running.process.pid)) == ({B: 16 * GIB}, {})
        running.said("/sleep?level=1")
        assert used(world) == [0, 1, 0]
        running.said("/wake_up?tags=weights")
        assert used(world) == [0, 12, 0]
        running.said("/wake_up?tags=kv_cache")
        assert used(world) == [0, 16, 0]
        running.said("/sleep?level=2")
        assert world.used(B) == GIB // 2
        running.said("/wake_up")
        running.process.terminate()
        assert running.ended() == 0
        assert used(world) == [0, 0, 0]
    assert world.oom_log() == []
    assert world.peak()[B] == 16 * GIB


def test_the_kv_cache_is_as_large_as_the_flag_says(tmp_path: Path, world: GpuWorld) -> None:
    knobs = replace(sized(), weights_bytes=8 * GIB)
    with fake_vllm(tmp_path, "--kv-cache-memory-bytes", str(3 * GIB), knobs=knobs, world=world, CUDA_VISIBLE_DEVICES="0"):
        assert used(world) == [8 + 3 + 1, 0, 0]
    with fake_vllm(tmp_path, "--gpu-memory-utilization", "0.75", knobs=knobs, world=world, CUDA_VISIBLE_DEVICES="0"):
        assert used(world) == [18, 0, 0]  # what is left of its share
    assert world.oom_log() == []


@pytest.mark.parametrize(
    ("env", "card"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": B}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 2),
        ({}, 0),
    ],
)
def test_which_card_it_takes(tmp_path: Path, world: GpuWorld, env: dict[str, str], card: int) -> None:
    with fake_vllm(tmp_path, world=world, **sized().env(), **env):  # type: ignore[arg-type]
        assert used(world).index(16) == card


def test_an_instance_of_a_card(tmp_path: Path, world: GpuWorld) -> None:
    world.write(gpu(0, uuid=A, mig=1), mig(0, 1, uuid="MIG-1", total=20 * GIB))
    with fake_vllm(tmp_path, knobs=sized(), world=world, CUDA_VISIBLE_DEVICES="MIG-1") as running:
        assert running.state()["devices"] == ["MIG-1"]
        assert world.used("MIG-1") == 16 * GIB


@pytest.mark.parametrize("visible", ["7", "GPU-zzz", "7,0"])
def test_a_card_that_is_not_there(tmp_path: Path, world: GpuWorld, visible: str) -> None:
    with fake_vllm(tmp_path, knobs=sized(), world=world, ready=False, CUDA_VISIBLE_DEVICES=visible) as running:
        assert running.ended() == 1
        assert "No CUDA GPUs are available" in running.lines()


def test_one_worker_per_card_with_a_name_of_its_own(tmp_path: Path, world: GpuWorld) -> None:
    args = (SLEEPY, "--tensor-parallel-size", "2")
    with fake_vllm(tmp_path, *args, knobs=sized(), world=world, CUDA_VISIBLE_DEVICES="0,2") as running:
        core, first, second = running.workers()
        assert used(world) == [16, 0, 16]
        assert (world.holdings(core), world.holdings(first), world.holdings(second)) == ({}, {A: 16 * GIB}, {C: 16 * GIB})
        for pid, name in ((core, "VLLM::EngineCore"), (first, "VLLM::Worker_TP0"), (second, "VLLM::Worker_TP1")):
            assert Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode() == name
            assert not Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0")  # as programs do that rewrite their title
            assert os.getsid(pid) == os.getsid(running.process.pid)
        running.said("/sleep")
        assert used(world) == [1, 0, 1]
        assert running.said("/collective_rpc", {"method": "check_health"}) == {"results": [None, None]}


def test_a_gang_is_placed_whole_or_not_at_all(tmp_path: Path, world: GpuWorld) -> None:
    world.set(1, used=10 * GIB)
    args = ("--tensor-parallel-size", "2", *SMALL)
    with fake_vllm(tmp_path, *args, knobs=sized(), world=world, ready=False, CUDA_VISIBLE_DEVICES="0,1") as running:
        assert running.ended() == 1
        assert "CUDA out of memory" in running.lines()
        assert used(world) == [0, 10, 0]
    assert len(world.oom_log()) == 1


def test_too_little_is_free_for_its_share(tmp_path: Path, world: GpuWorld) -> None:
    world.set(0, used=3 * GIB)
    with fake_vllm(tmp_path, knobs=sized(), world=world, ready=False, CUDA_VISIBLE_DEVICES="0") as running:
        assert running.ended() == 1
        assert "Free memory on device cuda:0 (21.00/24.00 GiB) on startup is less than desired GPU memory" in running.lines()
    assert world.oom_log() == []  # it asked for nothing


def test_a_wake_without_room_answers_500_and_keeps_what_it_got(tmp_path: Path, world: GpuWorld) -> None:
    with fake_vllm(tmp_path, SLEEPY, *SMALL, knobs=sized(), world=world, CUDA_VISIBLE_DEVICES="0") as running:
        running.said("/sleep")
        world.set(0, used=15 * GIB)
        reply = running.post("/wake_up")
        assert reply.status == 500
        assert "CUDA Error: out of memory at " in reply.json()["error"]["message"]
        assert running.get("/is_sleeping").json() == {"is_sleeping": True}
        assert used(world)[0] > 15 + 1
        assert len(world.oom_log()) == 1
        world.set(0, used=0)
        assert running.said("/wake_up") == {"status": "awake", "tags": None}
        assert used(world) == [16, 0, 0]
        assert running.complete()["text"]


@pytest.mark.parametrize(("knob", "left"), [({"free_fraction": 0.0}, 16), ({"free_fraction": 0.6}, 7), ({"sleep_enabled": False}, 16)])
def test_a_sleep_that_frees_less(tmp_path: Path, world: GpuWorld, knob: dict[str, Any], left: int) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=sized(**knob), world=world, CUDA_VISIBLE_DEVICES="0") as running:
        assert running.said("/sleep")["level"] == 1
        assert used(world) == [left, 0, 0]


def test_memory_that_falls_after_the_reply(tmp_path: Path, world: GpuWorld) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=sized(free_delay_s=0.4), world=world, CUDA_VISIBLE_DEVICES="0") as running:
        running.said("/sleep")
        at_once = used(world)[0]
        seen(world, lambda: used(world)[0] == 1)
        assert at_once == 16


def test_the_driver_may_see_it_later_still(tmp_path: Path, world: GpuWorld) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=sized(free_lag_s=0.5), world=world, CUDA_VISIBLE_DEVICES="0") as running:
        running.said("/sleep")
        (core,) = running.workers()
        held, taken = world.holdings(core)[A] // GIB, used(world)[0]
        seen(world, lambda: used(world)[0] == 1)
        assert (held, taken) == (1, 16)


def test_residue_grows(tmp_path: Path, world: GpuWorld) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=sized(residue_growth_bytes=GIB), world=world, CUDA_VISIBLE_DEVICES="0") as running:
        found = []
        for _ in range(3):
            running.said("/sleep")
            found += used(world)[:1]
            running.said("/wake_up")
        assert found == [1, 2, 3]


@pytest.mark.parametrize("outlive", [False, True])
def test_workers_of_a_killed_leader(tmp_path: Path, world: GpuWorld, outlive: bool) -> None:
    knobs = replace(sized(), workers_outlive=outlive)
    with fake_vllm(tmp_path, "-tp", "2", knobs=knobs, world=world, CUDA_VISIBLE_DEVICES="0,1") as running:
        workers = running.workers()
        running.process.send_signal(signal.SIGKILL)
        running.ended()
        if not outlive:
            seen(world, lambda: used(world) == [0, 0, 0])
            return
        os.killpg(running.process.pid, signal.SIGTERM)  # they do not hear it
        assert used(world) == [16, 16, 0]
        os.killpg(running.process.pid, signal.SIGKILL)
        seen(world, lambda: used(world) == [0, 0, 0])
        assert len(workers) == 3


def test_a_worker_that_dies_takes_the_engine_with_it(tmp_path: Path, world: GpuWorld) -> None:
    knobs = replace(sized(), watchdog_s=NEVER)
    with fake_vllm(tmp_path, "-tp", "2", knobs=knobs, world=world, CUDA_VISIBLE_DEVICES="0,1") as running:
        os.kill(running.workers()[1], signal.SIGKILL)
        seen(world, lambda: used(world) == [0, 16, 0])
        wait_until("it notices", lambda: running.get("/health").status == 503)
        reply = running.post("/v1/completions", {"model": "tiny", "prompt": "a"})
        assert reply.json()["error"]["message"].startswith("EngineCore encountered an issue")
    with fake_vllm(tmp_path, knobs=replace(knobs, watchdog_s=0.05), world=world, CUDA_VISIBLE_DEVICES="0") as running:
        os.kill(running.workers()[0], signal.SIGKILL)
        assert running.ended() == 1
        assert "EngineDeadError" in running.lines()


def test_a_worker_that_dies_can_go_unnoticed(tmp_path: Path, world: GpuWorld) -> None:
    knobs = replace(sized(), death_unnoticed=True)
    with fake_vllm(tmp_path, "-tp", "2", knobs=knobs, world=world, CUDA_VISIBLE_DEVICES="0,1") as running:
        for pid in running.workers():
            os.kill(pid, signal.SIGKILL)
        seen(world, lambda: used(world) == [0, 0, 0])
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        wait_until("requests hang", lambda: hangs(running, body))
        assert running.get("/health").status == 200


def hangs(running: VllmProcess, body: dict[str, Any]) -> bool:
    try:
        running.post("/v1/completions", body, timeout_s=0.2)
    except CallFailed as error:
        return error.kind is Answer.SILENT
    return False


def start_two(tmp_path: Path, world: GpuWorld, profiling: str, then: Callable[[VllmProcess, VllmProcess], None]) -> None:
    """A neighbour gives its memory back while the second one starts."""
    slow = sized(awake_bytes=4 * GIB, profiling=profiling, start_s=1.0)
    with fake_vllm(tmp_path, SLEEPY, knobs=sized(), world=world, CUDA_VISIBLE_DEVICES="0") as neighbour:  # noqa: SIM117
        with fake_vllm(tmp_path, *SMALL, knobs=slow, world=world, ready=False, CUDA_VISIBLE_DEVICES="0") as starting:
            seen(world, lambda: used(world)[0] == 20)
            neighbour.said("/sleep")
            then(neighbour, starting)


def test_a_neighbour_that_sleeps_during_a_start_inflates_its_kv_cache(tmp_path: Path, world: GpuWorld) -> None:
    def then(_: VllmProcess, starting: VllmProcess) -> None:
        wait_until("it is ready", starting.is_up)
        assert used(world)[0] == 1 + 4 + 15

    start_two(tmp_path, world, "inflate", then)


def test_a_neighbour_that_sleeps_during_a_start_can_end_it(tmp_path: Path, world: GpuWorld) -> None:
    def then(_: VllmProcess, starting: VllmProcess) -> None:
        assert starting.ended() == 1
        assert "Error in memory profiling" in starting.lines()

    start_two(tmp_path, world, "abort", then)


def test_growth_ends_it_when_the_card_is_full(tmp_path: Path, world: GpuWorld) -> None:
    knobs = sized(growth_bps=float(1 << 40), growth_limit_bytes=20 * GIB)
    with fake_vllm(tmp_path, SLEEPY, knobs=knobs, world=world, ready=False, CUDA_VISIBLE_DEVICES="0") as running:
        assert running.ended() == 1
        assert "CUDA out of memory" in running.lines()
