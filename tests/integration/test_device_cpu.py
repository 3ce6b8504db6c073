"""Device family ``cpu`` against real processes, and its bookkeeping against a made-up machine."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.devices import cpu as cpu_module
from adapters.devices.cpu import CpuBudget, CpuDevices, share_pressure
from adapters.launchers.waiting import wait_readable
from scheduler.domain.device import DeviceSample
from scheduler.domain.errors import Permanent
from scheduler.domain.ids import DeviceId, Holder
from scheduler.domain.units import GIB, MIB
from scheduler.ports.device import DeviceSource
from tests.support.hub import Hub

CPU0, CPU1 = DeviceId("cpu0"), DeviceId("cpu1")
A, B = Holder("a#0"), Holder("b#0")


class Ticks:
    """A clock that a test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 0.0


def budget(name: str = "cpu0", capacity: int = GIB, headroom: int = 0) -> CpuBudget:
    return CpuBudget(id=DeviceId(name), name=f"memory of {name}", capacity_bytes=capacity, headroom_bytes=headroom)


class Actors:
    """Starts actors as children of the test."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.started: list[subprocess.Popen] = []

    async def start(self, name: str) -> int:
        self.started.append(subprocess.Popen(self.hub.argv("serve", name)))
        return await self.hub.pid(name)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
async def actors() -> AsyncIterator[Actors]:
    async with Hub() as hub:
        actors = Actors(hub)
        yield actors
        actors.end()


async def one(devices: CpuDevices, pids: dict[Holder, set[int]]) -> DeviceSample:
    (sample,) = await devices.sample({CPU0: {holder: frozenset(found) for holder, found in pids.items()}})
    return sample


# --- real processes -----------------------------------------------------------------------------------------------------


async def test_memory_is_measured_as_it_comes_and_goes(actors: Actors) -> None:
    devices = CpuDevices([budget()], Ticks())
    pid = await actors.start("engine")
    before = (await one(devices, {A: {pid}})).own[A]
    assert 0 < before < 30 * MIB
    await actors.hub.tell("engine", "touch 200")
    touched = await one(devices, {A: {pid}})
    assert touched.own[A] - before == pytest.approx(200 * MIB, rel=0.1)
    assert touched.used_bytes == touched.own[A] + touched.foreign_bytes
    assert touched.free_bytes == GIB - touched.used_bytes
    await actors.hub.tell("engine", "free")
    assert (await one(devices, {A: {pid}})).own[A] - before < 20 * MIB
    await actors.hub.tell("engine", "touch 200")
    os.kill(pid, signal.SIGKILL)
    await actors.hub.ended("engine")
    actors.end()
    assert (await one(devices, {A: {pid}, B: set()})).own == {A: 0, B: 0}


async def test_pages_shared_by_forked_workers_count_once(actors: Actors) -> None:
    devices = CpuDevices([budget()], Ticks())
    parent = await actors.start("engine")
    await actors.hub.tell("engine", "touch 100")
    alone = (await one(devices, {A: {parent}})).own[A]
    await actors.hub.tell("engine", "fork worker")
    worker = await actors.hub.pid("worker")
    together = await one(devices, {A: {parent, worker}})
    assert together.own[A] == pytest.approx(alone, rel=0.15)
    apart = await one(devices, {A: {parent}, B: {worker}})
    assert apart.own[A] == pytest.approx(apart.own[B], rel=0.2)
    assert apart.own[A] + apart.own[B] == pytest.approx(together.own[A], rel=0.05)


async def test_zombie_and_vanished_and_foreign_numbers_hold_nothing(actors: Actors) -> None:
    devices = CpuDevices([budget()], Ticks())
    parent = await actors.start("engine")
    await actors.hub.tell("engine", "fork worker")
    worker = await actors.hub.pid("worker")
    with pytest.raises(ConnectionError):
        await actors.hub.tell("worker", "exit 0")
    pidfd = os.pidfd_open(worker)
    await wait_readable(pidfd)
    os.close(pidfd)
    sample = await one(devices, {A: {worker}, B: {2**22 + 5}})
    assert sample.own == {A: 0, B: 0}
    assert (await one(devices, {A: {parent}})).own[A] > 0


async def test_every_device_and_every_holder_asked_for_is_in_the_result(actors: Actors) -> None:
    clock = Ticks()
    source: DeviceSource = CpuDevices([budget("cpu0"), budget("cpu1")], clock)
    assert source.kind == "cpu"
    pid = await actors.start("engine")
    clock.now = 250.0
    samples = await source.sample({CPU1: {A: frozenset({pid}), B: frozenset()}, DeviceId("gpu0"): {A: frozenset({1})}})
    assert [(sample.device, set(sample.own), sample.started_at_s) for sample in samples] == [(CPU0, set(), 250.0), (CPU1, {A, B}, 250.0)]
    assert samples[1].own[A] > 0
    assert CpuDevices([], clock).kind == "cpu"
    assert await CpuDevices([], clock).sample({}) == []


async def test_inventory_names_the_budgets_in_order() -> None:
    devices = CpuDevices([budget("cpu1", 2 * GIB, 64 * MIB), budget("cpu0")], Ticks())
    first, second = await devices.inventory({})
    assert (first.id, first.kind, first.index, first.name) == (CPU1, "cpu", 0, "memory of cpu1")
    assert (first.capacity_bytes, first.headroom_bytes, first.reserved_bytes, first.host_memory) == (2 * GIB, 64 * MIB, 0, True)
    assert (second.id, second.index) == (CPU0, 1)
    assert len({first.uuid, second.uuid}) == 2


async def test_budgets_that_the_machine_cannot_keep_are_refused() -> None:
    devices = CpuDevices([budget("cpu0", 1 << 50), budget("cpu1")], Ticks())
    with pytest.raises(Permanent, match=r"cpu0, cpu1.*promise 1048577\.0 GiB, the machine has \d+\.\d GiB") as failure:
        await devices.inventory({})
    assert "lower" in failure.value.fix


# --- a made-up machine --------------------------------------------------------------------------------------------------


class Machine:
    """A /proc in a folder: total and available memory, and processes that hold something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.set_available(1000)

    def set_available(self, mib: int) -> None:
        (self.root / "meminfo").write_text(f"MemTotal: {2000 * 1024} kB\nMemAvailable: {mib * 1024} kB\n")

    def hold(self, pid: int, mib: int) -> None:
        (self.root / str(pid)).mkdir(exist_ok=True)
        (self.root / f"{pid}/smaps_rollup").write_text(f"head\nPss: {mib * 1024} kB\n")
        self.show(pid, "S")

    def count(self, pid: int, anon: int, file: int, shmem: int = 0, swap: int = 0) -> None:
        """The counters, in MiB; without them every sample has to look at the pages."""
        facts = {"RssAnon": anon, "RssFile": file, "RssShmem": shmem, "VmSwap": swap}
        (self.root / f"{pid}/status").write_text("".join(f"{name}:\t{mib * 1024} kB\n" for name, mib in facts.items()))

    def show(self, pid: int, state: str) -> None:
        (self.root / f"{pid}/stat").write_text(f"{pid} (engine) {state} 1 1 1 {'0 ' * 13}1 0 100 {'0 ' * 30}\n")

    def lose_memory(self, pid: int) -> None:
        """What a process looks like that is being taken apart by the kernel."""
        (self.root / f"{pid}/smaps_rollup").unlink()
        (self.root / f"{pid}/statm").write_text("0 0 0 0 0 0 0\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def devices_of(machine: Machine, *capacities_mib: int) -> CpuDevices:
    budgets = [budget(f"cpu{index}", mib * MIB) for index, mib in enumerate(capacities_mib)]
    return CpuDevices(budgets, Ticks(), proc=str(machine.root))


async def test_foreign_is_what_the_machine_cannot_give_any_more(machine: Machine) -> None:
    devices = devices_of(machine, 500)
    machine.hold(7, 200)
    for available, foreign in ((1000, 0), (300, 0), (299, 1), (100, 200), (0, 300)):
        machine.set_available(available)
        sample = await one(devices, {A: {7}})
        assert (sample.own[A], sample.foreign_bytes) == (200 * MIB, foreign * MIB)
        assert (sample.used_bytes, sample.free_bytes) == ((200 + foreign) * MIB, (300 - foreign) * MIB)


async def test_own_use_above_the_budget_is_shown_and_nothing_is_negative(machine: Machine) -> None:
    devices = devices_of(machine, 500)
    machine.hold(7, 800)
    machine.set_available(0)
    sample = await one(devices, {A: {7}})
    assert (sample.used_bytes, sample.free_bytes, sample.foreign_bytes) == (800 * MIB, 0, 0)


async def test_budgets_share_the_pressure_by_their_unused_parts(machine: Machine) -> None:
    devices = devices_of(machine, 500, 800)
    machine.hold(7, 200)
    machine.set_available(880)
    first, second = await devices.sample({CPU0: {A: frozenset({7})}})
    assert (first.foreign_bytes, second.foreign_bytes) == (60 * MIB, 160 * MIB)
    assert first.free_bytes + second.free_bytes == 880 * MIB
    machine.hold(7, 500)
    first, second = await devices.sample({CPU0: {A: frozenset({7})}})
    assert (first.foreign_bytes, first.free_bytes) == (0, 0)
    assert (second.foreign_bytes, second.free_bytes) == (0, 800 * MIB)


async def test_growth_during_the_reading_does_not_look_foreign(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = devices_of(machine, 500)
    machine.set_available(300)

    def read_then_grow(pid: int, proc: str) -> int:
        machine.set_available(200)
        return 200 * MIB

    monkeypatch.setattr(cpu_module, "read_held_bytes", read_then_grow)
    assert (await one(devices, {A: {7}})).foreign_bytes == 0
    assert (await one(devices, {A: {7}})).foreign_bytes == 100 * MIB, "when it stays, it is"


async def test_ending_process_keeps_its_bytes_until_it_is_dead(machine: Machine) -> None:
    devices = devices_of(machine, 500)
    machine.hold(7, 400)
    machine.set_available(100)
    assert (await one(devices, {A: {7}})).foreign_bytes == 0
    machine.lose_memory(7)  # but the machine has not got it back yet
    ending = await one(devices, {A: {7}})
    assert (ending.own[A], ending.foreign_bytes) == (400 * MIB, 0)
    machine.show(7, "Z")
    machine.set_available(500)
    dead = await one(devices, {A: {7}})
    assert (dead.own[A], dead.foreign_bytes, dead.free_bytes) == (0, 0, 500 * MIB)


async def test_utilization_is_the_busy_share_since_the_last_sample(machine: Machine) -> None:
    devices = devices_of(machine, 500)
    shown = []
    for busy, idle in ((100, 100), (130, 110), (130, 110), (130, 210), (120, 220)):
        (machine.root / "stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 0 0 0\n")
        shown.append((await one(devices, {})).utilization_ratio)
    assert shown == [None, 0.75, 0.75, 0.0, 0.0]


async def test_pages_are_looked_at_only_when_the_counters_cannot_tell(machine: Machine) -> None:
    devices = devices_of(machine, 5000)

    async def held(*pids: int) -> int:
        return (await one(devices, {A: set(pids)})).own[A] // MIB

    machine.hold(7, 400)
    machine.count(7, 300, 200)
    assert await held(7) == 400, "the first time"
    machine.hold(7, 1)  # would show a look at the pages
    assert await held(7) == 400
    machine.count(7, 250, 201, swap=10)
    assert await held(7) == 360, "private pages are its own"
    machine.count(7, 260, 201, swap=10)
    assert await held(7) == 370
    machine.count(7, 250, 204, swap=10)
    assert await held(7) == 1, "others may share these"
    machine.hold(7, 500)
    for _ in range(10):
        assert await held(7) == 1
    assert await held(7) == 500, "now and then in any case"
    machine.hold(7, 600)
    machine.hold(8, 50)
    machine.count(8, 1, 1)
    assert await held(7, 8) == 650, "forked processes share private pages"
    machine.hold(7, 700)
    assert await held(7, 8) == 750
    machine.hold(7, 800)
    assert await held(7) == 800, "what it shared with the ended one is its own now"
    machine.hold(7, 700)
    assert await held(7) == 800
    (machine.root / "7/status").unlink()
    assert await held(7) == 700, "a kernel that does not count"


async def test_ending_process_keeps_what_was_inferred_last(machine: Machine) -> None:
    devices = devices_of(machine, 500)
    machine.hold(7, 100)
    machine.count(7, 90, 20)
    await one(devices, {A: {7}})
    machine.count(7, 390, 20)
    assert (await one(devices, {A: {7}})).own[A] == 400 * MIB
    machine.lose_memory(7)
    (machine.root / "7/status").write_text("State:\tR\n")
    machine.set_available(100)
    for _ in range(3):
        ending = await one(devices, {A: {7}})
        assert (ending.own[A], ending.foreign_bytes) == (400 * MIB, 0)


async def test_unreadable_machine_yields_no_sample_and_recovers(machine: Machine) -> None:
    devices = devices_of(machine, 500)
    (machine.root / "meminfo").unlink()
    assert await devices.sample({}) == []
    with pytest.raises(Permanent, match="cannot measure host memory"):
        await devices.inventory({})
    machine.set_available(1000)
    assert len(await devices.sample({})) == 1


@pytest.fixture
def stuck_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[int]]]:
    """Reading a process blocks, as it does on one that is stuck in a driver, until the event is set."""
    unstick, asked = threading.Event(), list[int]()

    def read(pid: int, proc: str) -> int:
        asked.append(pid)
        assert unstick.wait(20)
        return 5

    monkeypatch.setattr(cpu_module, "read_held_bytes", read)
    yield unstick, asked
    unstick.set()


async def test_stuck_process_makes_the_devices_stale_and_costs_one_thread(
    machine: Machine, stuck_reading: tuple[threading.Event, list[int]]
) -> None:
    unstick, asked = stuck_reading
    devices = CpuDevices([budget()], Ticks(), proc=str(machine.root), timeout_s=0.05)
    assert await devices.sample({CPU0: {A: frozenset({7})}}) == []
    for _ in range(5):
        assert await devices.sample({CPU0: {A: frozenset({8})}}) == []
    assert asked == [7]
    unstick.set()
    while not (samples := await devices.sample({CPU0: {A: frozenset({9})}})):
        await asyncio.to_thread(lambda: None)
    assert samples[0].own == {A: 5}
    assert asked == [7, 9]


# --- the split ----------------------------------------------------------------------------------------------------------

sizes = st.integers(0, 1 << 45)


@given(st.dictionaries(st.sampled_from([DeviceId(f"cpu{index}") for index in range(5)]), sizes), sizes)
def test_pressure_never_leaves_more_free_than_there_is(unused: dict[DeviceId, int], available: int) -> None:
    pressure = share_pressure(unused, available)
    free = {device: unused[device] - pressure[device] for device in unused}
    assert all(0 <= free[device] <= unused[device] for device in unused)
    assert sum(free.values()) <= available
    assert sum(free.values()) >= min(available, sum(unused.values())) - len(unused), "rounding costs less than a byte per device"
    if sum(unused.values()) <= available:
        assert free == unused
