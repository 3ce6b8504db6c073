"""Durations are learned, so a restart in the middle of a start or a stop must not make them up."""

import asyncio
from pathlib import Path

import pytest

from scheduler.domain.ids import ModelName
from scheduler.domain.instance import Phase
from scheduler.domain.learned import Learned
from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import run_virtual
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device

LONG = Behaviour(awake_bytes=2 * GIB, levels=(), start_s=40.0, term_s=8.0)


async def booted(folder: Path) -> Sim:
    sim = Sim(World([device("gpu0", 10)], {"a": LONG}), folder, [spec("a")])
    await asyncio.sleep(5000.0)  # the machine has been up for a while
    await sim.start()
    return sim


def learned(sim: Sim) -> Learned:
    return sim.kernel.state.facts[ModelName("a")].learned


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_a_start_that_outlives_daemons_is_timed_from_its_beginning(tmp_path: Path, crashes: int) -> None:
    async def main() -> None:
        sim = await booted(tmp_path)
        sim.ask("wake", "a")
        await sim.until(lambda: sim.phase("a") is Phase.LAUNCHING)
        for _ in range(crashes):
            await asyncio.sleep(10.0)
            await sim.restart()
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE)
        assert learned(sim).start_s == pytest.approx((40.0,), abs=3.0)
        await sim.stop()

    run_virtual(main())


def test_a_start_that_nobody_saw_begin_is_not_timed(tmp_path: Path) -> None:
    """Two daemons died one right after the other: the second had not even looked."""

    async def main() -> None:
        sim = await booted(tmp_path)
        sim.ask("wake", "a")
        await sim.until(lambda: sim.phase("a") is Phase.LAUNCHING)
        await sim.restart()
        await sim.restart()
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE)
        assert learned(sim).start_s == ()
        await sim.stop()

    run_virtual(main())


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_a_stop_that_outlives_daemons_is_timed_from_its_beginning(tmp_path: Path, crashes: int) -> None:
    async def main() -> None:
        sim = await booted(tmp_path)
        assert await sim.chat("a") == "ok"
        sim.ask("stop", "a")
        await sim.until(lambda: sim.phase("a") is Phase.STOPPING)
        for _ in range(crashes):
            await asyncio.sleep(2.0)
            await sim.restart()
        await sim.until(lambda: sim.phase("a") is Phase.STOPPED)
        assert learned(sim).stop_s == pytest.approx((8.0,), abs=3.0)
        await sim.stop()

    run_virtual(main())
