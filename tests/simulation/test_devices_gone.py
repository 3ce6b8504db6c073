"""A device is renamed or removed in the configuration between two daemons, while a model sits on it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from scheduler.domain.device import DeviceInfo, DeviceSample
from scheduler.domain.ids import DeviceId, Holder, ModelName
from scheduler.domain.instance import Phase
from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import run_virtual
from tests.support.behaviour import NEVER, Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device
from tests.support.world_ports import WorldDevices

pytestmark = pytest.mark.may_block  # how long a callback takes in virtual time says nothing
Script = Callable[[Sim], Awaitable[None]]
BEHAVIOURS = {"a": Behaviour(awake_bytes=6 * GIB, start_s=20.0), "b": Behaviour(awake_bytes=3 * GIB)}


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``forget(name)``: daemons that start from now on do not know the device; the engine on it lives on."""
    inventory, sample = WorldDevices.inventory, WorldDevices.sample
    gone: set[str] = set()

    async def fewer(self: WorldDevices, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        return [info for info in await inventory(self, known) if info.id not in gone]

    async def measured(
        self: WorldDevices, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]], moving: frozenset[Holder] = frozenset()
    ) -> Sequence[DeviceSample]:
        return [s for s in await sample(self, groups, moving) if s.device not in gone]

    monkeypatch.setattr(WorldDevices, "inventory", fewer)
    monkeypatch.setattr(WorldDevices, "sample", measured)
    return gone.add


def play(folder: Path, script: Script, *, devices: int = 2) -> None:
    async def main() -> None:
        world = World([device(f"gpu{i}", 10, index=i) for i in range(devices)], BEHAVIOURS)
        sim = Sim(world, folder, [spec(name) for name in BEHAVIOURS])
        await sim.start()
        await script(sim)
        assert sim.ledger_matches() == []
        assert not world.overflows
        assert not world.misdirected
        await sim.stop()

    run_virtual(main())


async def serve_once(sim: Sim) -> None:
    assert await sim.chat("a") == "ok"
    assert sim.instance("a").devices == ("gpu0",)


async def come_back_without(sim: Sim, forget: Callable[[str], None], name: str = "gpu0") -> None:
    await sim.crash()
    forget(name)
    await sim.start()


def test_a_sleeper_on_a_lost_device_starts_elsewhere_and_nobody_else_notices(tmp_path: Path, forget: Callable[[str], None]) -> None:
    async def script(sim: Sim) -> None:
        await serve_once(sim)
        assert (await sim.act("sleep", "a")).ok
        await come_back_without(sim, forget)
        answers = await asyncio.gather(*(sim.chat(name, wait_s=100.0) for name in ("a", "b")))
        assert answers == ["ok", "ok"]
        assert sim.instance("a").devices == ("gpu1",)
        assert "device_gone" in {t.kind for t in sim.told}

    play(tmp_path, script)


def test_a_model_awake_on_a_lost_device_is_stopped_and_its_operator_told(tmp_path: Path, forget: Callable[[str], None]) -> None:
    async def script(sim: Sim) -> None:
        await serve_once(sim)
        await come_back_without(sim, forget)
        assert (await sim.act("stop", "a")).ok
        assert not sim.world.engines("a")
        assert await sim.chat("a", wait_s=100.0) == "ok"
        assert sim.instance("a").devices == ("gpu1",)

    play(tmp_path, script)


def test_a_model_on_a_lost_device_is_stopped_without_anybody_asking(tmp_path: Path, forget: Callable[[str], None]) -> None:
    async def script(sim: Sim) -> None:
        await serve_once(sim)
        await come_back_without(sim, forget)
        await sim.until(lambda: sim.phase("a") is Phase.STOPPED)
        assert not sim.world.engines("a")

    play(tmp_path, script)


def test_a_start_on_a_lost_device_is_not_waited_for(tmp_path: Path, forget: Callable[[str], None]) -> None:
    async def script(sim: Sim) -> None:
        sim.ask("wake", "a")
        await sim.until(lambda: sim.phase("a") is Phase.LAUNCHING)
        await asyncio.sleep(5.0)
        await come_back_without(sim, forget)
        assert await sim.chat("a", wait_s=100.0) == "ok"
        assert sim.instance("a").devices == ("gpu1",)

    play(tmp_path, script)


@pytest.mark.parametrize("verb", ["restart", "sleep", "wake"])
def test_an_operators_action_on_a_lost_device_ends(tmp_path: Path, forget: Callable[[str], None], verb: str) -> None:
    async def script(sim: Sim) -> None:
        await serve_once(sim)
        await come_back_without(sim, forget)
        await sim.until(lambda: sim.phase("a") is not Phase.UNKNOWN)
        action = sim.ask(verb, "a")
        await sim.until(lambda: action in sim.finished)
        await sim.until(lambda: sim.phase("a") in (Phase.AWAKE, Phase.STOPPED))
        assert "gpu0" not in sim.instance("a").devices
        if verb != "sleep":
            assert sim.finished[action].ok
            assert sim.phase("a") is Phase.AWAKE

    play(tmp_path, script)


def test_a_stop_that_was_under_way_on_a_lost_device_ends(tmp_path: Path, forget: Callable[[str], None]) -> None:
    async def script(sim: Sim) -> None:
        sim.world.behaviours[ModelName("a")] = Behaviour(awake_bytes=6 * GIB, term_s=NEVER)  # ignores TERM
        await serve_once(sim)
        sim.ask("stop", "a")
        await sim.until(lambda: sim.phase("a") is Phase.STOPPING)
        await come_back_without(sim, forget)
        await sim.until(lambda: sim.phase("a") is Phase.STOPPED)

    play(tmp_path, script)


def test_no_device_is_left(tmp_path: Path, forget: Callable[[str], None]) -> None:
    async def script(sim: Sim) -> None:
        await serve_once(sim)
        assert (await sim.act("sleep", "a")).ok
        await come_back_without(sim, forget)
        assert await sim.chat("a", wait_s=50.0) == "does_not_fit"

    play(tmp_path, script, devices=1)
