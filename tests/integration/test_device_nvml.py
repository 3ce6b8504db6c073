"""Device family ``nvidia`` through the real pynvml: who is there, who holds what. The library below it is a stand-in."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.devices.nvml import NvmlDevices
from scheduler.daemon.clock import SystemClock
from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId
from scheduler.domain.units import GIB, MIB
from scheduler.ports.device import DeviceSource
from tests.support.gpu_world import FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, NO_PERMISSION, driver, gpu, link, mig, proc, topo
from tests.support.nvml import build
from tests.support.nvml.rig import GPU0, GPU1, GPU2, NOBODY, A, B, Rig


@pytest.fixture(scope="module")
def library() -> None:
    build.preload()


@pytest.fixture
async def rig(library: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setenv("FAKE_NVML_WORLD", "")  # so that it is taken back
    rig = Rig(tmp_path)
    yield rig
    await rig.devices.close()


# --- inventory ----------------------------------------------------------------------------------------------------------


async def test_inventory_names_cards_with_all_their_facts(rig: Rig) -> None:
    rig.world.write(
        driver(version="580.95.05"),
        gpu(0, uuid="GPU-a", name="NVIDIA H200", total=141 * GIB, reserved=600 * MIB, bus="0000:3b:00.0", numa=1, serial="1650", cc="9.0"),
        gpu(1, uuid="GPU-b", total=24 * GIB, bus="0000:1a:00.0", minor=5, persistence=0, compute_mode=3),
    )
    rig.devices = NvmlDevices(rig.clock, lambda device, size: size // 100 if device == GPU0 else 7, sys=f"{rig.world.folder}/sys")
    source: DeviceSource = rig.devices
    first, second = await source.inventory({})
    assert second == DeviceInfo(
        id=GPU1,
        kind="nvidia",
        name="NVIDIA H200",
        index=1,
        uuid="GPU-a",
        capacity_bytes=141 * GIB,
        reserved_bytes=600 * MIB,
        headroom_bytes=7,
        islands=("nvlink:0000:3b:00.0", "pcie:0000:3b:00.0", "numa:0000:3b:00.0", "host"),
        pci="0000:3b:00.0",
        numa_node=1,
        facts=(
            ("driver", "580.95.05"),
            ("compute capability", "9.0"),
            ("compute mode", "default"),
            ("persistence", "on"),
            ("serial", "1650"),
            ("node", "/dev/nvidia0"),
        ),
    )
    assert (first.id, first.uuid, first.pci, first.numa_node) == (GPU0, "GPU-b", "0000:1a:00.0", None), "in order of the bus"
    assert first.headroom_bytes == 24 * GIB // 100
    assert dict(first.facts)["node"] == "/dev/nvidia5"
    assert dict(first.facts)["persistence"] == "off"
    assert (source.kind, source.generation, rig.devices.trouble) == ("nvidia", 0, "")


async def test_ids_stay_with_the_uuid_whatever_the_order_is(rig: Rig) -> None:
    """devices.md 5.3 row 7: another index order after a reboot must not exchange the cards."""
    rig.world.write(gpu(0, uuid="GPU-a", bus="0000:10:00.0"), gpu(1, uuid="GPU-b", bus="0000:20:00.0"))
    await rig.inventory()
    assert rig.known == {"GPU-a": GPU0, "GPU-b": GPU1}
    await rig.devices.close()
    rig.world.write(
        gpu(0, uuid="GPU-b", bus="0000:05:00.0", used=GIB),
        gpu(1, uuid="GPU-c", bus="0000:07:00.0"),
        gpu(2, uuid="GPU-a", bus="0000:10:00.0"),
    )
    rig.devices = rig.fresh()
    found = await rig.inventory()
    assert {device: (info.uuid, info.index) for device, info in found.items()} == {
        GPU1: ("GPU-b", 0),
        GPU2: ("GPU-c", 1),
        GPU0: ("GPU-a", 2),
    }
    assert {device: (pin.index, pin.by_uuid) for device, pin in rig.devices.pins().items()} == {
        GPU1: (0, False),
        GPU2: (1, False),
        GPU0: (2, False),
    }
    samples = await rig.sample()
    assert (samples[GPU1].used_bytes, samples[GPU0].used_bytes) == (GIB, 0)
    await rig.devices.close()
    rig.world.write(gpu(0, uuid="GPU-d"))
    rig.devices = rig.fresh()
    assert list(await rig.inventory()) == ["gpu3"], "those that are away keep their numbers"


async def test_what_the_daemon_remembers_beats_what_only_we_remember(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-b"))
    await rig.devices.inventory({})
    found = await rig.devices.inventory({"GPU-b": GPU0, "cpu:cpu0": DeviceId("gpu-like")})
    assert {info.uuid: info.id for info in found} == {"GPU-b": GPU0, "GPU-a": GPU1}


async def test_pins_are_of_this_very_pass_in_order_of_the_bus(rig: Rig) -> None:
    """NVML's own order need not be that of the bus; CUDA_DEVICE_ORDER=PCI_BUS_ID is."""
    rig.world.write(
        gpu(0, uuid="GPU-a", bus="0000:90:00.0"),
        gpu(1, uuid="GPU-b", bus="0000:20:00.0", used=GIB),
        gpu(2, uuid="GPU-c", bus="0001:10:00.0"),
    )
    await rig.inventory()
    ids = dict(rig.known)
    assert {pin.uuid: pin.index for pin in rig.devices.pins().values()} == {"GPU-b": 0, "GPU-a": 1, "GPU-c": 2}
    rig.world.set(1, bus="0000:95:00.0")
    samples = await rig.sample()
    assert {uuid: samples[device].used_bytes for uuid, device in ids.items()} == {"GPU-a": 0, "GPU-b": GIB, "GPU-c": 0}
    assert {pin.uuid: pin.index for pin in rig.devices.pins().values()} == {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    assert ids == rig.known


async def test_a_card_that_comes_later_and_one_that_leaves(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-b"))
    await rig.inventory()
    await rig.sample()
    assert rig.devices.generation == 0
    rig.world.add(gpu(2, uuid="GPU-c"))
    assert set(await rig.sample()) == {GPU0, GPU1}, "not before it was announced"
    assert rig.devices.generation == 1
    assert set(await rig.inventory()) == {GPU0, GPU1, GPU2}
    rig.world.write(gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-c"))
    samples = await rig.sample({GPU1: {A: {1}}})
    assert (samples[GPU1].health, samples[GPU1].own, samples[GPU2].health) == (Health.MISSING, {A: 0}, Health.OK)
    assert rig.devices.generation == 2
    assert set(await rig.inventory()) == {GPU0, GPU2}
    assert set(await rig.sample()) == {GPU0, GPU2}
    assert rig.devices.generation == 2


async def test_compute_modes_bound_the_processes(rig: Rig) -> None:
    rig.world.write(gpu(0, compute_mode=3), gpu(1, compute_mode=2), gpu(2))
    found = await rig.inventory()
    assert [(info.max_processes, info.allocatable) for info in found.values()] == [(1, True), (None, False), (None, True)]
    assert "PROHIBITED" in found[GPU1].why_not
    assert "nvidia-smi -i 0000:11:00.0 -c DEFAULT" in found[GPU1].why_not
    rig.world.set(1, compute_mode=0)
    await rig.sample()
    assert rig.devices.generation == 0, "modes are looked at now and then"
    rig.clock.now += 10
    await rig.sample()
    assert rig.devices.generation == 1
    assert (await rig.inventory())[GPU1].allocatable


async def test_a_card_that_may_not_be_opened_leaves_the_others(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A container sees the count of all cards, and opens its own."""
    rig.world.write(gpu(0, uuid="GPU-a"), gpu(1, uuid="GPU-b"), gpu(2, uuid="GPU-c"))
    rig.world.set_error("DeviceGetHandleByIndex_v2", 0, NO_PERMISSION)
    assert {info.uuid for info in (await rig.inventory()).values()} == {"GPU-b", "GPU-c"}
    assert [pin.index for pin in rig.devices.pins().values()] == [0, 1], "CUDA does not count what it cannot open"
    await rig.sample()
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "no permission" in text] == [
        "an NVIDIA card does not answer: DeviceGetHandleByIndex of index 0: no permission (NVML error 4)"
    ]
    assert rig.devices.problems == (told[0],)


# --- links --------------------------------------------------------------------------------------------------------------


def islands(found: dict[str, DeviceInfo], level: int) -> list[set[str]]:
    groups: dict[str, set[str]] = {}
    for device, info in found.items():
        groups.setdefault(info.islands[level], set()).add(device)
    return list(groups.values())


@pytest.mark.parametrize("switched", [True, False])
async def test_nvlink_joins_four_cards(rig: Rig, switched: bool) -> None:
    cards = [gpu(index, numa=index // 2) for index in range(4)]
    ring = [link(index, number, "switch" if switched else (index + 1 - 2 * number) % 4) for index in range(4) for number in (0, 1)]
    rig.world.write(*cards, *ring)
    found = await rig.inventory()
    assert islands(found, 0) == [{"gpu0", "gpu1", "gpu2", "gpu3"}]
    assert islands(found, 1) == [{"gpu0"}, {"gpu1"}, {"gpu2"}, {"gpu3"}]
    assert islands(found, 2) == [{"gpu0", "gpu1"}, {"gpu2", "gpu3"}]
    assert [info.numa_node for info in found.values()] == [0, 0, 1, 1]


async def test_nvlink_bridges_join_pairs_and_links_that_are_down_none(rig: Rig) -> None:
    cards = [gpu(index) for index in range(6)]
    pairs = [link(a, 2, b) for a, b in ((0, 2), (2, 0), (1, 3), (3, 1))]
    rig.world.write(*cards, *pairs, link(4, 0, 5, state=0), link(5, 0, 4, state=0))
    assert islands(await rig.inventory(), 0) == [{"gpu0", "gpu2"}, {"gpu1", "gpu3"}, {"gpu4"}, {"gpu5"}]


async def test_links_that_come_up_with_the_driver_are_seen(rig: Rig) -> None:
    """NVSwitches are set up by a service of their own, after the driver."""
    rig.world.write(gpu(0), gpu(1), link(0, 0, "switch", state=0), link(1, 0, "switch", state=0))
    assert islands(await rig.inventory(), 0) == [{"gpu0"}, {"gpu1"}]
    rig.world.write(gpu(0), gpu(1), link(0, 0, "switch"), link(1, 0, "switch"), driver(epoch=1))
    await rig.sample()
    assert rig.devices.generation == 1
    assert islands(await rig.inventory(), 0) == [{"gpu0", "gpu1"}]


async def test_cards_without_nvlink_are_joined_by_their_root(rig: Rig) -> None:
    rig.world.write(*(gpu(index, numa=0 if index < 3 else 1) for index in range(4)), topo(0, 1, 30), topo(2, 3, 10))
    found = await rig.inventory()
    assert islands(found, 0) == [{"gpu0"}, {"gpu1"}, {"gpu2"}, {"gpu3"}]
    assert islands(found, 1) == [{"gpu0", "gpu1"}, {"gpu2", "gpu3"}]
    assert islands(found, 3) == [{"gpu0", "gpu1", "gpu2", "gpu3"}]


async def test_numa_node_comes_from_the_driver_where_sysfs_does_not_say(rig: Rig) -> None:
    rig.world.write(gpu(0, numa=3), gpu(1), gpu(2, affinity=0b11))
    rig.devices = NvmlDevices(rig.clock, sys=f"{rig.world.folder}/nowhere")
    assert [info.numa_node for info in (await rig.inventory()).values()] == [3, None, None]


# --- memory -------------------------------------------------------------------------------------------------------------


async def test_reserved_memory_is_nobodys_use(rig: Rig) -> None:
    """devices.md 5.3 row 20: 308 MiB reserved by the driver are not 308 MiB used."""
    rig.world.write(gpu(0, total=24 * GIB, reserved=308 * MIB))
    assert (await rig.inventory())[GPU0].reserved_bytes == 308 * MIB
    sample = await rig.one()
    assert (sample.used_bytes, sample.free_bytes, sample.foreign_bytes) == (0, 24 * GIB - 308 * MIB, 0)
    assert sample.source == "nvml_v2"


async def test_old_driver_counts_reserved_memory_as_used(rig: Rig) -> None:
    rig.world.write(gpu(0, total=24 * GIB, reserved=308 * MIB))
    rig.world.set_error("DeviceGetMemoryInfo_v2", "*", FUNCTION_NOT_FOUND)
    assert (await rig.inventory())[GPU0].reserved_bytes == 0
    sample = await rig.one()
    assert (sample.used_bytes, sample.free_bytes, sample.source) == (308 * MIB, 24 * GIB - 308 * MIB, "nvml_v1")


async def test_reserved_noise_is_no_news(rig: Rig) -> None:
    rig.world.write(gpu(0, reserved=300 * MIB))
    await rig.inventory()
    for reserved, generation in ((310 * MIB, 0), (400 * MIB, 1)):
        rig.world.set(0, reserved=reserved)
        rig.clock.now += 10
        await rig.sample()
        assert rig.devices.generation == generation


async def test_foreign_is_what_our_processes_do_not_explain(rig: Rig) -> None:
    """devices.md 5.3 row 1: a card filled by somebody else has no room, whatever is declared."""
    rig.world.write(gpu(0, total=80 * GIB, used=256 * MIB), gpu(1, total=80 * GIB))
    rig.world.add(proc(0, NOBODY, 60 * GIB), proc(0, NOBODY + 1, 10 * GIB), proc(0, NOBODY + 2, 5 * GIB), proc(1, NOBODY + 1, GIB))
    await rig.inventory()
    samples = await rig.sample({GPU0: {A: {NOBODY + 1, NOBODY + 9}, B: set()}, GPU1: {}})
    first = samples[GPU0]
    assert first.own == {A: 10 * GIB, B: 0}
    assert (first.used_bytes, first.free_bytes) == (75 * GIB + 256 * MIB, 5 * GIB - 256 * MIB)
    assert first.foreign_bytes == 65 * GIB + 256 * MIB, "unaccounted bytes are nobody's of ours"
    assert [(stranger.pid, stranger.used_bytes) for stranger in first.strangers] == [(NOBODY, 60 * GIB), (NOBODY + 2, 5 * GIB)]
    assert samples[GPU1].foreign_bytes == GIB
    assert samples[GPU1].strangers == (), "it is ours, though not asked for there"
    assert not first.estimated


async def test_strangers_have_names_where_this_system_knows_them(rig: Rig) -> None:
    """R14: a process id without an entry in /proc is of another namespace, and foreign."""
    rig.world.write(gpu(0), proc(0, NOBODY, GIB), proc(0, os.getpid(), 2 * GIB))
    await rig.inventory()
    sample = await rig.one()
    assert {stranger.pid: stranger.name for stranger in sample.strangers} == {
        NOBODY: "",
        os.getpid(): Path("/proc/self/comm").read_text().strip(),
    }
    assert sample.foreign_bytes == 3 * GIB


async def test_process_in_several_lists_counts_once(rig: Rig) -> None:
    rig.world.write(gpu(0), proc(0, NOBODY, 2 * GIB, kind="CG"), proc(0, NOBODY + 1, GIB, kind="M"), proc(0, NOBODY + 2, GIB, kind="G"))
    await rig.inventory()
    assert (await rig.one({A: {NOBODY, NOBODY + 1}})).own == {A: 3 * GIB}, "all processes of an engine"
    sample = await rig.one({A: {NOBODY}, B: {NOBODY + 1}})
    assert sample.own == {A: 2 * GIB, B: GIB}
    assert (sample.foreign_bytes, [stranger.pid for stranger in sample.strangers]) == (GIB, [NOBODY + 2])


@pytest.mark.parametrize("order", [(1, None, 3), (3, 1, None), (None, 3, 1)])
async def test_the_larger_number_counts_where_lists_differ(rig: Rig, order: tuple[int | None, ...]) -> None:
    told = [None if each is None else each * GIB for each in order]
    rig.world.write(gpu(0, used=3 * GIB), *(proc(0, NOBODY, held, kind=kind, held=0) for held, kind in zip(told, "CGM", strict=True)))
    await rig.inventory()
    sample = await rig.one({A: {NOBODY}})
    assert (sample.own, sample.foreign_bytes, sample.estimated) == ({A: 3 * GIB}, 0, False)


async def test_growth_during_the_reading_does_not_look_foreign(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a"))
    await rig.inventory()
    rig.world.allocate(os.getpid(), {"GPU-a": 2 * GIB})
    assert (await rig.one({A: {os.getpid()}})).own == {A: 2 * GIB}

    async def done(function: str, count: int) -> None:
        while rig.devices.timings()[function].count < count:
            await asyncio.sleep(0.001)

    counts = {name: timing.count for name, timing in rig.devices.timings().items()}
    rig.world.set_delay("DeviceGetComputeRunningProcesses_v3", 0, 60_000)
    sampling = asyncio.ensure_future(rig.one({A: {os.getpid()}}))
    await done("DeviceGetMemoryInfo", counts["DeviceGetMemoryInfo"] + 1)
    rig.world.edit(lambda lines: [*(line for line in lines if "delay" not in line), "delay DeviceGetMemoryInfo_v2 0 60000"])
    await done("DeviceGetComputeRunningProcesses_v3", counts["DeviceGetComputeRunningProcesses_v3"] + 1)
    rig.world.allocate(os.getpid(), {"GPU-a": 12 * GIB})
    rig.world.clear_delays()
    sample = await sampling
    assert (sample.own, sample.foreign_bytes, sample.used_bytes) == ({A: 2 * GIB}, 0, 12 * GIB)
    sample = await rig.one({A: {os.getpid()}})
    assert (sample.own, sample.foreign_bytes) == ({A: 12 * GIB}, 0)


async def test_real_process_is_measured_while_it_lives(rig: Rig) -> None:
    rig.world.write(gpu(0, uuid="GPU-a"))
    await rig.inventory()
    engine = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    assert engine.stdin is not None
    rig.world.allocate(engine.pid, {"GPU-a": 6 * GIB})
    assert (await rig.one({A: {engine.pid}})).own == {A: 6 * GIB}
    rig.world.allocate(engine.pid, {"GPU-a": GIB})
    assert (await rig.one({A: {engine.pid}})).own == {A: GIB}
    engine.stdin.close()
    engine.wait()
    sample = await rig.one({A: {engine.pid}})
    assert (sample.own, sample.used_bytes) == ({A: 0}, 0)


async def test_list_that_grew_meanwhile_is_asked_for_again(rig: Rig) -> None:
    """devices.md 5.3 row 21: a burst of starts must not lose the processes."""
    rig.world.write(gpu(0), proc(0, NOBODY, GIB))
    await rig.inventory()
    # The binding answers the first refusal itself with a larger array; two more in a row reach us.
    rig.world.set_error("DeviceGetComputeRunningProcesses_v3", 0, INSUFFICIENT_SIZE, times=4)
    sample = await rig.one({A: {NOBODY}})
    assert (sample.own, sample.estimated) == ({A: GIB}, False)
    rig.world.clear_errors()
    rig.world.set_error("DeviceGetComputeRunningProcesses_v3", 0, INSUFFICIENT_SIZE)
    sample = await rig.one({A: {NOBODY}})
    assert (sample.own, sample.estimated) == ({A: GIB}, True), "for ever: as a driver without the list"


async def test_processes_not_supported_are_followed_by_what_moves(rig: Rig) -> None:
    """devices.md 5.3 row 22: no list at all, so the device's own bytes tell."""
    rig.world.write(gpu(0, total=80 * GIB, used=GIB))
    rig.world.set_error("DeviceGetComputeRunningProcesses_v3", "*", FUNCTION_NOT_FOUND)
    await rig.inventory()
    assert (await rig.one({A: set()})).foreign_bytes == GIB
    await rig.one({A: {NOBODY}}, moving=[A])
    rig.world.set(0, used=21 * GIB)
    sample = await rig.one({A: {NOBODY}}, moving=[A])
    assert (sample.own, sample.foreign_bytes, sample.estimated) == ({A: 20 * GIB}, GIB, True)
    rig.world.set(0, used=24 * GIB)
    sample = await rig.one({A: {NOBODY}})
    assert (sample.own, sample.foreign_bytes) == ({A: 20 * GIB}, 4 * GIB), "who does not move did not grow"
    rig.world.set(0, used=5 * GIB)
    sample = await rig.one({A: {NOBODY}}, moving=[A])
    assert (sample.own, sample.foreign_bytes) == ({A: GIB}, 4 * GIB)


async def test_without_any_list_small_engines_count_as_well(rig: Rig) -> None:
    """An empty list means an empty device; no list means nothing."""
    rig.world.write(gpu(0))
    rig.world.set_error("DeviceGetComputeRunningProcesses_v3", "*", FUNCTION_NOT_FOUND)
    await rig.inventory()
    await rig.one({A: {NOBODY}}, moving=[A])
    rig.world.set(0, used=600 * MIB)
    sample = await rig.one({A: {NOBODY}}, moving=[A])
    assert (sample.own, sample.foreign_bytes, sample.estimated) == ({A: 600 * MIB}, 0, True)


async def test_what_moves_on_one_card_says_nothing_of_another(rig: Rig) -> None:
    rig.world.write(gpu(0), gpu(1))
    rig.world.set_error("DeviceGetComputeRunningProcesses_v3", "*", FUNCTION_NOT_FOUND)
    await rig.inventory()
    groups = {GPU0: {A: {NOBODY}}, GPU1: {B: {NOBODY + 1}}}
    await rig.sample(groups, moving=[A, B])
    rig.world.set(0, used=9 * GIB)
    await rig.sample(groups, moving=[A, B])
    rig.world.set(1, used=4 * GIB)
    samples = await rig.sample(groups, moving=[A, B])
    assert (samples[GPU0].own, samples[GPU1].own) == ({A: 9 * GIB}, {B: 4 * GIB})
    assert [sample.foreign_bytes for sample in samples.values()] == [0, 0]


@pytest.mark.parametrize("hide", [1, 2])
async def test_bytes_that_the_driver_does_not_tell(rig: Rig, hide: int) -> None:
    """devices.md 5.3 row 21: used=na under WDDM, in containers, by some drivers."""
    rig.world.write(gpu(0, uuid="GPU-a", hide=hide))
    await rig.inventory()
    pid = os.getpid()
    assert (await rig.one({A: {pid}}, moving=[A])).own == {A: 0}
    rig.world.allocate(pid, {"GPU-a": 9 * GIB})
    sample = await rig.one({A: {pid}}, moving=[A])
    assert (sample.own, sample.foreign_bytes, sample.estimated) == ({A: 9 * GIB}, 0, True)
    rig.world.allocate(pid, {"GPU-a": 2 * GIB})
    assert (await rig.one({A: {pid}}, moving=[A])).own == {A: 2 * GIB}
    rig.world.release(pid)
    assert (await rig.one({A: set()})).own == {A: 0}


async def test_memory_not_supported_is_host_memory(rig: Rig, tmp_path: Path) -> None:
    """devices.md 5.3 row 23: on a GB10 the memory of the GPU is the host's; the device is never dropped."""
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc" / "meminfo"
    meminfo.write_text(f"MemTotal: {120 * 1024 * 1024} kB\nMemFree: 5 kB\nMemAvailable: {100 * 1024 * 1024} kB\n")
    rig.world.write(gpu(0, unified=1, name="NVIDIA GB10"), proc(0, NOBODY, 12 * GIB))
    rig.devices = NvmlDevices(rig.clock, lambda _device, _size: GIB, proc=str(tmp_path / "proc"))
    info = (await rig.inventory())[GPU0]
    assert (info.host_memory, info.capacity_bytes, info.reserved_bytes, info.headroom_bytes) == (True, 120 * GIB, 0, 8 * GIB)
    assert dict(info.facts)["memory"] == "shared with the host"
    sample = await rig.one({A: {NOBODY}})
    assert (sample.used_bytes, sample.free_bytes, sample.source) == (20 * GIB, 100 * GIB, "meminfo")
    assert (sample.own, sample.foreign_bytes) == ({A: 12 * GIB}, 8 * GIB)
    meminfo.write_text("nothing\n")
    assert await rig.sample() == {}, "stale, not a guess"


async def test_coherent_memory_need_not_drop(rig: Rig) -> None:
    rig.world.write(gpu(0, numa_memory=2), gpu(1))
    found = await rig.inventory()
    assert [info.memory_drop_visible for info in found.values()] == [False, True]
    assert dict(found[GPU0].facts)["memory"] == "coherent with the host"


async def test_coherent_memory_that_stays_with_the_driver_is_nobody_elses(rig: Rig) -> None:
    """R13: pages of an engine that has ended stay; the next one takes them. Else it would wait for room for ever."""
    rig.world.write(gpu(0, numa_memory=2), proc(0, NOBODY, 16 * GIB), proc(0, NOBODY + 1, 2 * GIB))
    await rig.inventory()
    first = await rig.one({A: {NOBODY}})
    assert (first.own, first.foreign_bytes) == ({A: 16 * GIB}, 2 * GIB)
    rig.world.write(gpu(0, numa_memory=2, used=16 * GIB), proc(0, NOBODY + 1, 2 * GIB))
    ended = await rig.one({A: set()})
    assert (ended.own, ended.foreign_bytes) == ({A: 0}, 2 * GIB)
    assert ended.free_bytes == first.free_bytes + 16 * GIB
    assert ended.used_bytes > 16 * GIB


async def test_coherent_memory_is_not_free_where_the_driver_lists_nobody(rig: Rig) -> None:
    rig.world.write(gpu(0, numa_memory=2, used=16 * GIB))
    await rig.inventory()
    sample = await rig.one()
    assert sample.foreign_bytes >= 16 * GIB
    assert sample.free_bytes <= 8 * GIB


async def test_sensors_are_told_where_there_are_any(rig: Rig) -> None:
    rig.world.write(gpu(0, util=37, power=412_500, energy=7_200_000, temp=66, throttle=0x1 | 0x4 | 0x40), gpu(1))
    await rig.inventory()
    first, second = (await rig.sample()).values()
    assert (first.utilization_ratio, first.power_w, first.energy_j, first.temperature_c) == (0.37, 412.5, 7200.0, 66.0)
    assert first.throttle == ("power cap", "hardware thermal limit")
    assert (second.utilization_ratio, second.power_w, second.energy_j, second.temperature_c) == (None, None, None, None)
    assert second.throttle == ()
    rig.world.set(0, util=38)
    asked = rig.devices.timings()["DeviceGetPowerUsage"].count
    assert [(await rig.one()).utilization_ratio for _ in range(5)] == [0.37, 0.37, 0.37, 0.38, 0.38], "a second is fast enough"
    assert rig.devices.timings()["DeviceGetPowerUsage"].count == asked + 2
    rig.world.set_error("DeviceGetCurrentClocksEventReasons", "*", FUNCTION_NOT_FOUND)
    rig.clock.now += 1
    assert (await rig.one()).throttle == ("power cap", "hardware thermal limit"), "by its older name"
    rig.world.set_error("DeviceGetPowerUsage", 0, 999)
    rig.clock.now += 1
    sample = await rig.one()
    assert (sample.health, sample.power_w) == (Health.OK, None), "a broken sensor is not a broken card"


# --- MIG ----------------------------------------------------------------------------------------------------------------


async def test_mig_instances_are_devices_and_pinned_by_uuid(rig: Rig) -> None:
    """devices.md 5.3 row 8: a MIG instance is a device of its own, addressed by its UUID only."""
    rig.world.write(
        gpu(0, uuid="GPU-a", mig=1, total=80 * GIB, power=300_000),
        mig(0, 0, uuid="MIG-x", name="MIG 3g.40gb", total=40 * GIB, gi=1),
        mig(0, 3, uuid="MIG-y", total=20 * GIB, gi=5),
        gpu(1, uuid="GPU-b"),
        proc("0.0", NOBODY, 3 * GIB),
    )
    found = await rig.inventory()
    assert {device: (info.parent, info.allocatable, info.capacity_bytes // GIB) for device, info in found.items()} == {
        "gpu0": (None, False, 80),
        "gpu0m0": ("gpu0", True, 40),
        "gpu0m1": ("gpu0", True, 20),
        "gpu1": (None, True, 24),
    }
    assert found["gpu0m0"].name == "MIG 3g.40gb"
    assert found["gpu0m0"].islands == (), "a process uses one instance only"
    assert "MIG is on" in found[GPU0].why_not
    assert {device: (pin.uuid, pin.by_uuid) for device, pin in rig.devices.pins().items()} == {
        "gpu0": ("GPU-a", True),
        "gpu0m0": ("MIG-x", True),
        "gpu0m1": ("MIG-y", True),
        "gpu1": ("GPU-b", True),
    }
    samples = await rig.sample({DeviceId("gpu0m0"): {A: {NOBODY}}})
    assert (samples["gpu0m0"].own, samples["gpu0m0"].foreign_bytes) == ({A: 3 * GIB}, 0)
    assert samples["gpu0m1"].used_bytes == 0
    assert (samples["gpu0"].used_bytes, samples["gpu0"].foreign_bytes, samples["gpu0"].power_w) == (3 * GIB, 0, 300.0)


async def test_rebuilt_mig_instances_are_new_devices(rig: Rig) -> None:
    card = gpu(0, uuid="GPU-a", mig=1)
    rig.world.write(card, mig(0, 0, uuid="MIG-x"), mig(0, 1, uuid="MIG-y"), gpu(1, uuid="GPU-b"))
    await rig.inventory()
    assert set(await rig.sample()) == {"gpu0", "gpu0m0", "gpu0m1", "gpu1"}
    rig.world.write(card, mig(0, 0, uuid="MIG-z"), mig(0, 1, uuid="MIG-y"), gpu(1, uuid="GPU-b"))
    samples = await rig.sample({DeviceId("gpu0m0"): {A: {NOBODY}}})
    assert (samples["gpu0m0"].health, samples["gpu0m0"].own) == (Health.MISSING, {A: 0})
    assert {device for device, sample in samples.items() if sample.health is Health.OK} == {"gpu0", "gpu0m1", "gpu1"}
    assert rig.devices.generation == 1
    found = await rig.inventory()
    assert {device: info.uuid for device, info in found.items()} == {
        "gpu0": "GPU-a",
        "gpu0m2": "MIG-z",
        "gpu0m1": "MIG-y",
        "gpu1": "GPU-b",
    }
    rig.world.write(gpu(0, uuid="GPU-a", mig=0), gpu(1, uuid="GPU-b"))
    await rig.sample()
    assert rig.devices.generation == 2, "MIG was turned off"
    found = await rig.inventory()
    assert found[GPU0].allocatable
    assert set(found) == {"gpu0", "gpu1"}


# --- the boundary -------------------------------------------------------------------------------------------------------


async def test_calls_are_timed(rig: Rig) -> None:
    rig.world.write(gpu(0))
    rig.devices = NvmlDevices(SystemClock(), sys=f"{rig.world.folder}/sys")
    await rig.inventory()
    before = rig.devices.timings()["DeviceGetMemoryInfo"]
    for _ in range(3):
        await rig.sample()
    after = rig.devices.timings()["DeviceGetMemoryInfo"]
    assert after.count == before.count + 6, "two looks a sample"
    assert 0 < after.p50_s <= after.p99_s < 1


async def test_inventory_says_once_that_there_is_no_driver(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert await rig.devices.inventory({"GPU-a": GPU0, "cpu:cpu0": DeviceId("cpu0")}) == []
    assert rig.devices.trouble == "the NVIDIA driver is not loaded"
    assert "modprobe" in rig.devices.fix
    for _ in range(3):
        await rig.sample()
    assert rig.devices.timings()["Init"].count == 1, "not asked for at every sample"
    rig.clock.now += 60
    await rig.sample()
    assert rig.devices.timings()["Init"].count == 2
    assert [record.getMessage() for record in caplog.records if record.name.startswith("adapters")] == ["the NVIDIA driver is not loaded"]
