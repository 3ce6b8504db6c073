"""The vLLM adapter's own command lines on pretended cards: starts beside sleepers, wakes without room, gangs, instances."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.vllm import Vllm
from scheduler.domain.errors import Temporary
from scheduler.domain.ids import DeviceId
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.engine import Answer, LaunchPlan
from tests.conformance.conftest import until_ready
from tests.conformance.variants import Running, Variant, do, fake_vllm_variant, free_port
from tests.support.behaviour import Behaviour
from tests.support.gpu_world import GpuWorld, gpu, mig
from tests.support.vllm_knobs import HEALTHY, VllmKnobs, knobs_from_env

A, B = "GPU-aaaa", "GPU-bbbb"
CARD = 24 * GIB
SIZED = replace(HEALTHY, awake_bytes=16 * GIB, kv_bytes=4 * GIB, residue_bytes={1: GIB, 2: GIB // 2})


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    """Two cards."""
    made = GpuWorld(tmp_path / "world")
    made.write(gpu(0, uuid=A, total=CARD), gpu(1, uuid=B, total=CARD))
    return made


@pytest.fixture
def placed(world: GpuWorld, tmp_path: Path, tiny_hf: Path) -> "Placed":
    return Placed(world, tmp_path, fake_vllm_variant(tiny_hf))


class Placed:
    """Starts engines with the plan that a daemon would make."""

    def __init__(self, world: GpuWorld, folder: Path, variant: Variant) -> None:
        self.world, self.folder, self.variant = world, folder, variant

    def spec(self, behaviour: Behaviour = SIZED, **knobs: Any) -> ModelSpec:
        env = {**VllmKnobs(behaviour=behaviour, **knobs).env(), "FAKE_NVML_WORLD": self.world.folder}
        return replace(self.variant.spec, env=tuple(env.items()))

    @contextmanager
    def start(self, *index: int, spec: ModelSpec | None = None, ready: bool = True, **plan: Any) -> Iterator[Running]:
        spec = spec or self.spec()
        settings: dict[str, Any] = {
            "device_kind": "nvidia",
            "device_index": index,
            "capacity_bytes": CARD,
            "claim_bytes": spec_bytes(spec),
            "kv_bytes": 4 * GIB,
            **plan,
        }
        devices = tuple(DeviceId(f"gpu{number}") for number in index)
        variant = replace(self.variant, spec=spec)
        with variant.start(self.folder, plan=LaunchPlan(port=free_port(), devices=devices, **settings)) as running:
            if ready:
                until_ready(variant, running)
            yield running

    def used(self) -> list[float]:
        """GiB per card."""
        return [self.world.used(uuid) / GIB for uuid in (A, B)]


def spec_bytes(spec: ModelSpec) -> int:
    """What a daemon that has measured it would claim."""
    return knobs_from_env(dict(spec.env)).behaviour.awake_bytes


def test_a_second_one_starts_beside_a_sleeper(placed: Placed) -> None:
    engine = Vllm()
    with placed.start(0) as first:
        do(engine.sleep(first.endpoint, 1, 10.0))
        with placed.start(0) as second:
            assert placed.used() == [17, 0]
            do(engine.sleep(second.endpoint, 2, 10.0))
            do(engine.wake(first.endpoint, 1, 10.0))
            assert placed.used() == [16.5, 0]
    assert placed.world.oom_log() == []
    assert placed.world.peak()[A] == 17 * GIB


def test_a_second_one_does_not_start_beside_one_that_is_awake(placed: Placed) -> None:
    with placed.start(0), placed.start(0, ready=False) as second:
        reason = Vllm().explain_exit(second.ended(), second.tail())
    assert reason.code is Code.DEVICE_OOM


def test_a_wake_without_room_is_told_as_such_and_leaves_it_asleep(placed: Placed) -> None:
    engine = Vllm()
    with placed.start(0) as running:
        golden = do(engine.warm_up(running.endpoint, 10.0))
        endpoint = replace(running.endpoint, golden=golden)
        for level in (1, 2):
            do(engine.sleep(endpoint, level, 10.0))
            placed.world.set(0, used=15 * GIB)
            with pytest.raises(Temporary) as caught:
                do(engine.wake(endpoint, level, 10.0))
            assert caught.value.code == Code.DEVICE_OOM
            assert do(engine.probe(endpoint, 5.0)).answer is Answer.ASLEEP
            assert placed.used()[0] > 15 + 1  # a part is mapped and stays so
            placed.world.set(0, used=0)
            do(engine.wake(endpoint, level, 10.0))
            assert placed.used() == [16, 0]
    assert len(placed.world.oom_log()) == 2


def test_weights_find_room_and_the_kv_cache_does_not(placed: Placed) -> None:
    engine = Vllm()
    with placed.start(0) as running:
        do(engine.sleep(running.endpoint, 2, 10.0))
        placed.world.set(0, used=10 * GIB)
        with pytest.raises(Temporary) as caught:
            do(engine.wake(running.endpoint, 2, 10.0))
        assert caught.value.code == Code.DEVICE_OOM
        placed.world.set(0, used=0)
        do(engine.wake(running.endpoint, 2, 10.0))
        assert do(engine.probe(running.endpoint, 5.0)).answer is Answer.READY


def test_a_gang_holds_the_same_on_each_of_its_cards(placed: Placed) -> None:
    engine = Vllm()
    with placed.start(0, 1) as running:
        assert placed.used() == [16, 16]
        do(engine.sleep(running.endpoint, 1, 10.0))
        assert placed.used() == [1, 1]
        do(engine.wake(running.endpoint, 1, 10.0))
        assert placed.used() == [16, 16]
        running.process.terminate()
        assert running.ended().code == 0
    assert placed.used() == [0, 0]


def test_an_instance_is_named_by_its_uuid(placed: Placed) -> None:
    placed.world.write(gpu(0, uuid=A, mig=1), mig(0, 1, uuid="MIG-one", total=20 * GIB), gpu(1, uuid=B))
    with placed.start(0, device_uuid=("MIG-one",), by_uuid=True, capacity_bytes=20 * GIB):
        assert placed.world.used("MIG-one") == 16 * GIB


def test_a_card_by_its_index_in_the_order_of_the_bus(placed: Placed) -> None:
    with placed.start(1):
        assert placed.used() == [0, 16]


@pytest.mark.parametrize("knob", ["wedged_after_wake", "dies_on_first_request_after_wake"])
def test_an_engine_that_is_broken_after_its_wake_is_found_by_a_request(placed: Placed, knob: str) -> None:
    engine = Vllm()
    with placed.start(0, spec=placed.spec(replace(SIZED, **{knob: True}))) as running:  # type: ignore[arg-type]
        do(engine.sleep(running.endpoint, 1, 10.0))
        with pytest.raises(Temporary) as caught:
            do(engine.wake(running.endpoint, 1, 1.0))
        assert caught.value.code == Code.WAKE_FAILED


def test_a_stale_prefix_cache_is_reset_and_believed(placed: Placed) -> None:
    engine = Vllm()
    with placed.start(0, spec=placed.spec(replace(SIZED, stale_cache_garbage=True))) as running:
        endpoint = replace(running.endpoint, golden=do(engine.warm_up(running.endpoint, 10.0)))
        do(engine.sleep(endpoint, 1, 10.0))
        do(engine.wake(endpoint, 1, 10.0))


@pytest.mark.parametrize("version", ["0.10.2", "0.16.0", "0.22.1", "0.28.0", "0.32.0", "0.33.0"])
def test_versions_old_and_new_sleep_and_wake(placed: Placed, version: str) -> None:
    engine = Vllm()
    with placed.start(0, spec=placed.spec(engine_version=version)) as running:
        found = do(engine.probe(running.endpoint, 5.0))
        assert found.version == version
        endpoint = replace(running.endpoint, version=version, golden=do(engine.warm_up(running.endpoint, 10.0)))
        for level in (1, 2):
            assert do(engine.sleep(endpoint, level, 10.0)) == level
            assert do(engine.probe(endpoint, 5.0)).answer is Answer.ASLEEP
            do(engine.wake(endpoint, level, 10.0))
            assert do(engine.probe(endpoint, 5.0)).answer is Answer.READY
