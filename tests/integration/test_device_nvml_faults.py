"""Device family ``nvidia`` in trouble: lost cards, faults, drivers that hang, lie, or are exchanged. Through the real pynvml."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.domain.device import DeviceNews, DeviceSample, Health
from scheduler.domain.errors import Permanent, Temporary
from scheduler.domain.ids import DeviceId
from scheduler.domain.units import GIB
from tests.support.gpu_world import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNINITIALIZED,
    UNKNOWN,
    VERSION_MISMATCH,
    driver,
    gpu,
    mig,
    proc,
)
from tests.support.nvml import build
from tests.support.nvml.rig import GPU0, GPU1, GPU2, NOBODY, A, B, Rig

OK, DRAINING, LOST, MISMATCH = Health.OK, Health.DRAINING, Health.LOST, Health.DRIVER_MISMATCH


@pytest.fixture(scope="module")
def library() -> None:
    build.preload()


@pytest.fixture
async def rig(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setenv("FAKE_NVML_WORLD", "")  # so that it is taken back
    rig = Rig(tmp_path)
    rig.world.write(gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-b"), gpu(2, uuid="GPU-c"), proc(1, NOBODY, 3 * GIB))
    yield rig
    rig.world.clear_delays()
    await rig.devices.close()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> "Told":
    caplog.set_level(logging.INFO)
    return Told(caplog)


class Told:
    """What the adapter wrote to the log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def forget(self) -> None:
        """Count from here."""
        self._caplog.clear()

    def count(self, part: str) -> int:
        """Lines that contain this."""
        return sum(part in record.getMessage() for record in self._caplog.records if record.name.startswith("adapters"))


def healths(samples: dict[str, DeviceSample]) -> dict[str, Health]:
    return {device: sample.health for device, sample in samples.items()}


# --- lost cards ---------------------------------------------------------------------------------------------------------


async def test_one_lost_card_of_three_and_back(rig: Rig, told: Told) -> None:
    """devices.md 5.3 row 24: one lost GPU must not take the list with it."""
    await rig.inventory()
    groups = {GPU0: {A: {NOBODY}}, GPU1: {A: {NOBODY}, B: {NOBODY + 1}}}
    assert (await rig.sample(groups))[GPU1].own == {A: 3 * GIB, B: 0}
    rig.world.set_error("*", 1, GPU_IS_LOST)
    samples = await rig.sample(groups)
    assert healths(samples) == {GPU0: OK, GPU1: LOST, GPU2: OK}
    lost = samples[GPU1]
    assert (lost.own, lost.used_bytes, lost.free_bytes, lost.foreign_bytes) == ({A: 0, B: 0}, 0, 0, 0)
    assert "GPU is lost" in lost.trouble
    assert "dmesg | grep -i 0000:11:00.0" in lost.fix
    assert set(rig.devices.pins()) == {GPU0, GPU2}
    assert all(pin.by_uuid for pin in rig.devices.pins().values()), "nobody knows which of them CUDA counts"
    await rig.sample(groups)
    assert told.count("gpu1 (NVIDIA Fake, 0000:11:00.0) is lost") == 1
    assert set(await rig.inventory()) == {GPU0, GPU1, GPU2}, "it is in the machine still"
    rig.world.clear_errors()
    samples = await rig.sample(groups)
    assert healths(samples) == {GPU0: OK, GPU1: OK, GPU2: OK}
    assert [(pin.index, pin.by_uuid) for pin in rig.devices.pins().values()] == [(0, False), (1, False), (2, False)]
    assert samples[GPU1].own == {A: 3 * GIB, B: 0}
    assert samples[GPU1].news == (DeviceNews(kind="returned", message="it answers again"),)
    assert rig.devices.generation == 0, "the set of cards never changed"
    rig.world.event(1, 13)
    assert (await rig.sample(groups))[GPU1].news[0].kind == "xid", "and it is heard again"


async def test_handle_that_went_bad_is_replaced_within_the_pass(rig: Rig) -> None:
    await rig.inventory()
    rig.world.set_error("DeviceGetMemoryInfo_v2", 1, GPU_IS_LOST, times=1)
    assert healths(await rig.sample()) == {GPU0: OK, GPU1: OK, GPU2: OK}


async def test_lost_while_the_daemon_was_away(rig: Rig, told: Told) -> None:
    """Nobody can tell which card does not answer: its id is not given to another one, and the others work."""
    await rig.inventory()
    await rig.devices.close()
    rig.world.set_error("*", 0, GPU_IS_LOST)
    rig.devices = rig.fresh()
    assert set(await rig.inventory()) == {GPU1, GPU2}
    assert healths(await rig.sample()) == {GPU1: OK, GPU2: OK}
    assert told.count("an NVIDIA card does not answer: DeviceGetHandleByIndex of index 0: GPU is lost") == 1
    rig.world.clear_errors()
    await rig.sample()
    assert rig.devices.generation == 1
    assert (await rig.inventory())[GPU0].uuid == "GPU-a"


async def test_lost_card_takes_its_mig_instances_along(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", mig=1), mig(0, 0, uuid="MIG-x"), gpu(1, uuid="GPU-b"))
    await rig.inventory()
    rig.world.set_error("*", 0, GPU_IS_LOST)
    assert healths(await rig.sample()) == {"gpu0": LOST, "gpu0m0": LOST, "gpu1": OK}
    rig.world.clear_errors()
    assert set(healths(await rig.sample()).values()) == {OK}


@pytest.mark.parametrize("function", ["DeviceGetMigDeviceHandleByIndex", "DeviceGetMaxMigDeviceCount"])
@pytest.mark.parametrize("code", [NO_PERMISSION, UNKNOWN, GPU_IS_LOST])
async def test_instances_that_are_not_listed_are_not_gone(rig: Rig, function: str, code: int) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", mig=1), mig(0, 0, uuid="MIG-x"), mig(0, 1, uuid="MIG-y", used=GIB), gpu(1, uuid="GPU-b"))
    await rig.inventory()
    rig.world.set_error(function, 0, code)
    for _ in range(4):
        samples = await rig.sample()
        assert healths(samples) == {"gpu0": OK, "gpu0m0": OK, "gpu0m1": OK, "gpu1": OK}, "found by their UUIDs"
        assert samples["gpu0m1"].used_bytes == GIB
        assert {pin.uuid: pin.by_uuid for pin in rig.devices.pins().values()} == dict.fromkeys(("GPU-a", "MIG-x", "MIG-y", "GPU-b"), True)
    rig.world.set_error("DeviceGetHandleByUUID", 0, 6)
    assert healths(await rig.sample()) == {"gpu0": OK, "gpu1": OK}, "stale, not missing"
    assert rig.devices.generation == 0
    rig.world.clear_errors()
    assert set(healths(await rig.sample()).values()) == {OK}


async def test_unknown_errors_are_a_bad_moment_before_they_are_a_loss(rig: Rig, told: Told) -> None:
    await rig.inventory()
    rig.world.set_error("DeviceGetMemoryInfo_v2", 1, UNKNOWN)
    assert healths(await rig.sample()) == {GPU0: OK, GPU2: OK}
    assert healths(await rig.sample()) == {GPU0: OK, GPU2: OK}
    assert told.count("gpu1 cannot be measured: DeviceGetMemoryInfo of GPU-b: unknown error (NVML error 999)") == 1
    assert healths(await rig.sample()) == {GPU0: OK, GPU1: LOST, GPU2: OK}
    rig.world.clear_errors()
    assert healths(await rig.sample())[GPU1] is OK
    rig.world.set_error("DeviceGetMemoryInfo_v2", 1, UNKNOWN)
    for _ in range(2):
        assert GPU1 not in await rig.sample(), "counted anew"


async def test_estimates_do_not_outlive_a_loss(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", used=9 * GIB, hide=1), proc(0, NOBODY, None))
    await rig.inventory()
    assert (await rig.one({A: {NOBODY}})).own == {A: 9 * GIB}
    rig.world.set_error("*", 0, GPU_IS_LOST)
    assert (await rig.one({A: {NOBODY}})).health is LOST
    rig.world.clear_errors()
    rig.world.set(0, used=12 * GIB)
    assert (await rig.one({A: {NOBODY}})).own == {A: 12 * GIB}


FUNCTIONS = [
    *sorted(set(re.findall(r"(?:DEVICE|PROC)_CALL\((Device\w+)", build.SOURCE.read_text()))),
    "DeviceGetHandleByIndex_v2",
    "DeviceGetHandleByUUID",
    "DeviceGetMemoryInfo",
    "DeviceGetMemoryInfo_v2",
    "*",
]


@pytest.mark.parametrize("code", [2, 3, 4, 6, 7, 11, 13, 15, 16, 999, 4711])
async def test_no_error_of_one_card_reaches_the_others(rig: Rig, code: int) -> None:
    assert len(FUNCTIONS) > 30
    await rig.inventory()
    for function in FUNCTIONS:
        rig.world.set_error(function, 1, code)
        for pause_s in (0, 10):  # with and without a look at the static facts
            rig.clock.now += pause_s
            samples = await rig.sample({GPU0: {A: {NOBODY}}, GPU1: {A: {NOBODY}}, GPU2: {}})
            assert (samples[GPU0].health, samples[GPU2].health) == (OK, OK), function
            assert GPU1 not in samples or set(samples[GPU1].own) == {A}, function
        newcomer = rig.fresh()
        assert {"GPU-a", "GPU-c"} <= {info.uuid for info in await newcomer.inventory({})}, function
        await newcomer.close()
        rig.world.clear_errors()
    rig.clock.now += 10
    assert set(healths(await rig.sample()).values()) == {OK}


# --- faults -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
async def test_faults_of_programs_are_news_only(rig: Rig, xid: int) -> None:
    await rig.inventory()
    await rig.sample()
    rig.world.event(1, xid)
    sample = (await rig.sample())[GPU1]
    assert (sample.health, sample.trouble, len(sample.news), sample.news[0].kind) == (OK, "", 1, "xid")
    assert f"Xid {xid} (" in sample.news[0].message
    assert (await rig.sample())[GPU1].news == (), "told once"


async def test_faults_of_a_card_drain_it(rig: Rig) -> None:
    await rig.inventory()
    await rig.sample()
    rig.world.event(1, 48)
    rig.world.event(2, 0, kind=0x2)
    groups = {GPU1: {A: {NOBODY}}}
    for _ in range(2):
        samples = await rig.sample(groups)
        assert healths(samples) == {GPU0: OK, GPU1: DRAINING, GPU2: DRAINING}
        assert samples[GPU1].trouble == "it reported Xid 48 (double-bit memory error)"
        assert samples[GPU2].trouble == "it reported Xid 48 (double-bit memory error)", "by its other event"
        assert "nvidia-smi --gpu-reset -i 0000:11:00.0" in samples[GPU1].fix
        assert samples[GPU1].own == {A: 3 * GIB}, "who sits there is measured on"


async def test_cards_are_registered_for_events_once(rig: Rig) -> None:
    await rig.inventory()
    for _ in range(3):
        await rig.sample()
    assert rig.devices.timings()["DeviceRegisterEvents"].count == 3


async def test_events_before_the_start_are_not_heard(rig: Rig) -> None:
    rig.world.event(0, 48)
    await rig.inventory()
    assert (await rig.sample())[GPU0].health is OK


async def test_card_that_fell_off_the_bus_is_lost_until_it_answers_again(rig: Rig) -> None:
    await rig.inventory()
    await rig.sample()
    rig.world.event(1, 79)
    sample = (await rig.sample())[GPU1]
    assert (sample.health, sample.trouble) == (LOST, "it fell off the bus (Xid 79)")
    rig.world.event(1, 79)
    rig.world.set_error("*", 1, GPU_IS_LOST)
    sample = (await rig.sample())[GPU1]
    assert (sample.health, [news.message for news in sample.news]) == (LOST, ["Xid 79 (the card fell off the bus)"])
    assert healths(await rig.sample()) == {GPU0: OK, GPU1: LOST, GPU2: OK}
    rig.clock.now += 60
    assert healths(await rig.sample())[GPU1] is LOST
    rig.world.clear_errors()
    assert healths(await rig.sample())[GPU1] is OK


async def test_fault_of_one_mig_instance_drains_that_one_and_of_the_card_all(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", mig=1), mig(0, 0, uuid="MIG-x", gi=1), mig(0, 1, uuid="MIG-y", gi=2), gpu(1, uuid="GPU-b"))
    await rig.inventory()
    await rig.sample()
    rig.world.event(0, 94, gi=2)
    assert healths(await rig.sample()) == {"gpu0": OK, "gpu0m0": OK, "gpu0m1": DRAINING, "gpu1": OK}
    rig.world.event(0, 74)
    assert healths(await rig.sample()) == {"gpu0": DRAINING, "gpu0m0": DRAINING, "gpu0m1": DRAINING, "gpu1": OK}


async def test_reset_required_frees_nothing_and_keeps_what_holders_had(rig: Rig) -> None:
    await rig.inventory()
    assert (await rig.sample({GPU1: {A: {NOBODY}}}))[GPU1].own == {A: 3 * GIB}
    rig.world.set_error("DeviceGetMemoryInfo_v2", 1, RESET_REQUIRED)
    sample = (await rig.sample({GPU1: {A: {NOBODY}, B: set()}}))[GPU1]
    assert (sample.health, sample.free_bytes, sample.own) == (DRAINING, 0, {A: 3 * GIB, B: 0})
    assert "reset" in sample.trouble
    assert "--gpu-reset" in sample.fix
    assert (await rig.sample({GPU1: {A: set()}}))[GPU1].own == {A: 0}
    rig.world.clear_errors()
    assert healths(await rig.sample())[GPU1] is OK


async def test_worn_memory_drains(rig: Rig) -> None:
    rig.world.write(
        gpu(0, uuid="GPU-a", remap="1,0,1,0"), gpu(1, uuid="GPU-b", remap="4,2,1,1"), gpu(2, uuid="GPU-c", remap="3,0,0,0", ecc=5)
    )
    await rig.inventory()
    samples = await rig.sample()
    assert healths(samples) == {GPU0: DRAINING, GPU1: DRAINING, GPU2: OK}
    assert "next reset" in samples[GPU0].trouble
    assert "must be replaced" in samples[GPU1].trouble
    rig.world.set(2, ecc=7)
    rig.world.set(0, remap="1,0,0,0")
    rig.clock.now += 10
    samples = await rig.sample()
    assert healths(samples) == {GPU0: OK, GPU1: DRAINING, GPU2: DRAINING}
    assert samples[GPU2].trouble == "2 memory errors that could not be corrected"


async def test_worn_memory_of_a_card_drains_its_mig_instances(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", mig=1, remap="1,0,1,0"), mig(0, 0, uuid="MIG-x"), gpu(1, uuid="GPU-b"))
    await rig.inventory()
    samples = await rig.sample()
    assert healths(samples) == {"gpu0": DRAINING, "gpu0m0": DRAINING, "gpu1": OK}
    assert "--gpu-reset -i 0000:10:00.0" in samples["gpu0m0"].fix


async def test_events_that_cannot_be_heard_do_not_stop_the_samples(rig: Rig, told: Told) -> None:
    await rig.inventory()
    rig.world.set_error("EventSetWait_v2", "*", UNKNOWN)
    for _ in range(3):
        assert set(healths(await rig.sample()).values()) == {OK}
    assert told.count("events of NVIDIA cards cannot be heard") == 1
    rig.world.clear_errors()
    await rig.sample()
    rig.world.event(0, 31)
    assert len((await rig.sample())[GPU0].news) == 1


async def test_cards_without_events_are_measured(rig: Rig) -> None:
    rig.world.set_error("EventSetCreate", "*", NOT_SUPPORTED)
    await rig.inventory()
    assert set(healths(await rig.sample()).values()) == {OK}


async def test_a_card_that_cannot_be_listened_to_does_not_silence_the_others(rig: Rig) -> None:
    rig.world.set_error("DeviceRegisterEvents", 0, UNKNOWN)
    await rig.inventory()
    await rig.sample()
    rig.world.event(2, 31)
    assert {device: len(sample.news) for device, sample in (await rig.sample()).items()} == {GPU0: 0, GPU1: 0, GPU2: 1}


# --- lies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (gpu(1, uuid="GPU-b", used=30 * GIB), "30.0 GiB used and 0 MiB free of 24.0 GiB"),
        (gpu(1, uuid="GPU-b", total=0), "the device says that it has no memory"),
        (f"{gpu(1, uuid='GPU-b')}\n{proc(1, NOBODY, 40 * GIB, held=GIB)}", f"process {NOBODY} is said to hold 40.0 GiB of 24.0 GiB"),
    ],
)
async def test_absurd_samples_are_not_believed(rig: Rig, told: Told, lie: str, said: str) -> None:
    await rig.inventory()
    others = [gpu(0, uuid="GPU-a"), gpu(2, uuid="GPU-c")]
    rig.world.write(*others, lie)
    rig.clock.now += 10  # static facts are read anew, and are not believed either
    for _ in range(3):
        assert set(await rig.sample()) == {GPU0, GPU2}
    assert told.count(f"gpu1 is not believed: {said}") == told.count("is not believed") == 1
    assert rig.devices.generation == 0
    rig.world.write(*others, gpu(1, uuid="GPU-b", used=GIB))
    assert (await rig.sample())[GPU1].used_bytes == GIB
    rig.world.write(*others, lie)
    await rig.sample()
    assert told.count("is not believed") == 2, "a new spell"


async def test_memory_that_turns_into_the_hosts_is_not_believed(rig: Rig, told: Told) -> None:
    await rig.inventory()
    rig.world.set_error("DeviceGetMemoryInfo_v2", 1, NOT_SUPPORTED)
    rig.world.set_error("DeviceGetMemoryInfo", 1, NOT_SUPPORTED)
    for _ in range(2):
        assert set(await rig.sample()) == {GPU0, GPU2}
        rig.clock.now += 10
    assert rig.devices.generation == 0
    assert told.count("gpu1 is not believed: its own memory and that of the host are mixed up") == 1


async def test_instance_without_memory_is_never_the_host(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", mig=1), mig(0, 0, uuid="MIG-x"), mig(0, 1, uuid="MIG-y"))
    rig.world.set_error("DeviceGetMemoryInfo_v2", "0.1", NOT_SUPPORTED)
    rig.world.set_error("DeviceGetMemoryInfo", "0.1", NOT_SUPPORTED)
    assert set(await rig.inventory()) == {"gpu0", "gpu0m0"}
    assert rig.devices.problems == ("NVIDIA device MIG-y cannot be used: DeviceGetMemoryInfo of MIG-y: not supported (NVML error 3)",)
    rig.world.clear_errors()
    rig.clock.now += 10
    await rig.sample()
    assert set(await rig.inventory()) == {"gpu0", "gpu0m0", "gpu0m1"}
    assert not rig.devices.problems


async def test_card_that_lies_from_the_start_is_no_device(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a", total=0), gpu(1, uuid="GPU-b"))
    assert set(await rig.inventory()) == {GPU0}
    assert rig.known == {"GPU-b": GPU0}
    assert rig.devices.problems == ("NVIDIA device GPU-a cannot be used: the device says that it has no memory",)


# --- the driver ---------------------------------------------------------------------------------------------------------


async def test_driver_of_another_version_at_the_start(rig: Rig, told: Told) -> None:
    """devices.md 5.3 row 34: packages were upgraded, the old kernel module is still loaded."""
    rig.world.set_error("InitWithFlags", "*", VERSION_MISMATCH)
    known = {"GPU-a": GPU0, "GPU-b": GPU1, "cpu:cpu0": DeviceId("cpu0")}
    with pytest.raises(Permanent, match="different versions") as failure:
        await rig.devices.inventory(known)
    assert failure.value.code == "driver_mismatch"
    assert "reboot" in failure.value.fix
    samples = await rig.sample({GPU0: {A: {NOBODY}}})
    assert healths(samples) == {GPU0: MISMATCH, GPU1: MISMATCH}
    assert samples[GPU0].own == {A: 0}
    assert (samples[GPU0].trouble, samples[GPU0].fix) == (failure.value.message, failure.value.fix)
    rig.clock.now += 60
    await rig.sample()
    assert told.count("different versions") == 1
    rig.world.clear_errors()
    rig.clock.now += 60
    await rig.sample()
    assert rig.devices.generation == 1, "the cards are news"
    assert len(await rig.devices.inventory(known)) == 3
    assert rig.devices.trouble == ""


async def test_driver_of_another_version_later(rig: Rig) -> None:
    """devices.md 5.3 row 34: the upgrade comes while the daemon runs."""
    await rig.inventory()
    assert set(healths(await rig.sample()).values()) == {OK}
    for function in ("DeviceGetHandleByIndex_v2", "*", "*"):
        rig.world.set_error(function, "*", VERSION_MISMATCH)
        samples = await rig.sample()
        assert healths(samples) == {GPU0: MISMATCH, GPU1: MISMATCH, GPU2: MISMATCH}
        assert "different versions" in samples[GPU0].trouble
    assert rig.devices.pins() == {}, "nothing new can start"
    rig.world.clear_errors()
    rig.clock.now += 10
    assert set(healths(await rig.sample()).values()) == {OK}
    assert len(rig.devices.pins()) == 3


async def test_driver_loaded_again_is_initialised_again(rig: Rig) -> None:
    await rig.inventory()
    await rig.sample()
    rig.world.event(0, 48)
    assert (await rig.sample())[GPU0].health is DRAINING
    rig.world.add(driver(epoch=1))
    samples = await rig.sample()
    assert healths(samples) == {GPU0: OK, GPU1: OK, GPU2: OK}, "in the same pass, and the card was set up anew"
    rig.world.event(0, 31)
    assert len((await rig.sample())[GPU0].news) == 1, "events are heard through the new driver"


async def test_driver_loaded_again_in_the_middle_of_a_pass(rig: Rig) -> None:
    await rig.inventory()
    await rig.sample()
    before = rig.devices.timings()["Init"].count
    rig.world.set_error("DeviceGetMemoryInfo_v2", 0, UNINITIALIZED, times=1)
    assert await rig.sample() == {}
    assert set(healths(await rig.sample()).values()) == {OK}
    assert rig.devices.timings()["Init"].count == before + 1


async def test_driver_taken_away_and_back(rig: Rig, told: Told) -> None:
    await rig.inventory()
    rig.world.add(driver(epoch=1))
    rig.world.set_error("InitWithFlags", "*", DRIVER_NOT_LOADED)
    samples = await rig.sample({GPU0: {A: {1}}})
    assert healths(samples) == {GPU0: LOST, GPU1: LOST, GPU2: LOST}
    assert (samples[GPU0].trouble, samples[GPU0].own) == ("the NVIDIA driver is not loaded", {A: 0})
    rig.world.clear_errors()
    rig.clock.now += 10
    assert set(healths(await rig.sample()).values()) == {OK}
    assert told.count("the NVIDIA driver answers again") == 1


async def test_driver_that_comes_after_the_start(rig: Rig) -> None:
    rig.world.set_error("InitWithFlags", "*", DRIVER_NOT_LOADED)
    assert await rig.inventory() == {}
    assert await rig.sample() == {}
    rig.world.clear_errors()
    rig.clock.now += 10
    assert await rig.sample() == {}
    assert rig.devices.generation == 1
    assert set(await rig.inventory()) == {GPU0, GPU1, GPU2}


@pytest.mark.parametrize("code", [NO_PERMISSION, 17, UNKNOWN])
async def test_driver_that_cannot_be_used_is_explained(rig: Rig, code: int) -> None:
    rig.world.set_error("InitWithFlags", "*", code)
    with pytest.raises(Permanent, match=rf"the NVIDIA driver cannot be used: Init: .*NVML error {code}") as failure:
        await rig.inventory()
    assert failure.value.code == "nvml"
    assert "dmesg" in failure.value.fix
    assert await rig.sample() == {}


async def test_driver_that_fails_after_its_init_is_explained(rig: Rig) -> None:
    rig.world.set_error("DeviceGetCount_v2", "*", UNKNOWN)
    with pytest.raises(Permanent, match="DeviceGetCount: unknown error"):
        await rig.inventory()
    assert "DeviceGetCount" in rig.devices.trouble
    rig.world.clear_errors()
    assert len(await rig.inventory()) == 3
    assert rig.devices.trouble == ""


async def test_driver_that_fails_for_all_is_initialised_anew(rig: Rig, told: Told) -> None:
    await rig.inventory()
    before = rig.devices.timings()["Init"].count
    rig.world.set_error("DeviceGetCount_v2", "*", UNKNOWN, times=2)
    for _ in range(2):
        assert await rig.sample() == {}
    assert set(healths(await rig.sample()).values()) == {OK}
    told.forget()
    rig.world.clear_errors()
    rig.world.set_error("DeviceGetCount_v2", "*", UNKNOWN)
    for _ in range(2):
        assert await rig.sample() == {}
    assert rig.devices.timings()["Init"].count == before, "counted anew"
    assert await rig.sample() == {}
    assert told.count("NVIDIA devices cannot be measured: DeviceGetCount: unknown error (NVML error 999)") == 1
    rig.world.clear_errors()
    assert set(healths(await rig.sample()).values()) == {OK}
    assert rig.devices.timings()["Init"].count == before + 1


# --- hanging ------------------------------------------------------------------------------------------------------------


async def test_call_that_hangs_makes_devices_stale_and_nothing_else(rig: Rig, told: Told) -> None:
    await rig.inventory()
    await rig.sample()
    rig.devices._sample_timeout_s = 0.05
    rig.world.event(0, 13)
    rig.world.set_delay("DeviceGetMemoryInfo_v2", 1, 60_000)
    threads = threading.active_count()
    passes = rig.devices.timings()["DeviceGetCount"].count
    for _ in range(3):
        assert await rig.sample() == {}
    rig.devices._inventory_timeout_s = 0.1
    with pytest.raises(Temporary, match=r"has not answered for 0\.1 s") as failure:
        await rig.devices.inventory({})
    assert failure.value.code == "driver_hangs"
    assert threading.active_count() <= threads
    assert told.count("has not answered") == 1
    hanging = rig.devices._reading
    assert hanging is not None
    rig.world.clear_delays()
    await asyncio.to_thread(hanging.result)
    await asyncio.to_thread(rig.devices._thread.submit(lambda: None).result)
    assert rig.devices.timings()["DeviceGetCount"].count == passes + 1, "what came meanwhile did not queue up"
    rig.devices._sample_timeout_s = 30
    samples = await rig.sample()
    assert set(healths(samples).values()) == {OK}
    assert [news.message for news in samples[GPU0].news] == ["Xid 13 (graphics engine exception, a program's fault)"], (
        "not lost with the late answer"
    )
    assert (await rig.sample())[GPU0].news == ()


async def test_loop_goes_on_while_a_call_is_slow(rig: Rig) -> None:
    await rig.inventory()
    rig.world.set_delay("DeviceGetMemoryInfo_v2", 1, 60_000)
    sampling = asyncio.ensure_future(rig.sample())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not sampling.done()
    rig.world.clear_delays()
    assert set(healths(await sampling).values()) == {OK}
