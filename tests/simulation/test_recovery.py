"""A new daemon looks before it acts: what the last one knew, and when, decides nothing about an engine's life."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.domain.ids import ModelName
from scheduler.domain.instance import Phase
from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import run_virtual
from scheduler.store.footprints import load_footprints
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device

pytestmark = pytest.mark.may_block  # how long a callback takes in virtual time says nothing
BIG = Behaviour(awake_bytes=6 * GIB)
SLOW = Behaviour(awake_bytes=6 * GIB, start_s=10.0)


async def booted(folder: Path, behaviour: Behaviour, **model: object) -> Sim:
    sim = Sim(World([device("gpu0", 10)], {"a": behaviour}), folder, [spec("a", **model)])
    await sim.start()
    return sim


@pytest.mark.parametrize("away_s", [1.0, 60.0, 3600.0])
def test_a_row_left_unknown_is_probed_however_long_the_daemon_was_away(tmp_path: Path, away_s: float) -> None:
    """It crashed before the probe of its predecessor's engine was answered."""

    async def main() -> None:
        sim = await booted(tmp_path, BIG)
        assert await sim.chat("a") == "ok"
        await sim.crash()
        await sim.start()
        while sim.phase("a") is not Phase.UNKNOWN or sim.writer._queue:
            await asyncio.sleep(0)
        await sim.crash()
        await asyncio.sleep(away_s)
        await sim.start()
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE, within_s=30)
        assert not sim.world.happened("killed")
        assert len(sim.world.happened("started", "a")) == 1

    run_virtual(main())


def test_a_start_that_ended_well_while_the_daemon_was_away_is_adopted(tmp_path: Path) -> None:
    """Its time is over, but it was ready long before that."""

    async def main() -> None:
        sim = await booted(tmp_path, SLOW, start_timeout_s=60.0)
        sim.ask("wake", "a")
        await sim.until(lambda: sim.phase("a") is Phase.LAUNCHING)
        await asyncio.sleep(5)
        await sim.crash()
        await asyncio.sleep(120)
        await sim.start()
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE, within_s=30)
        assert len(sim.world.happened("started", "a")) == 1

    run_virtual(main())


def test_a_start_that_is_still_not_ready_after_its_time_is_given_up_after_one_look(tmp_path: Path) -> None:
    async def main() -> None:
        sim = await booted(tmp_path, Behaviour(awake_bytes=6 * GIB, start_s=1000.0), start_timeout_s=60.0)
        sim.ask("wake", "a")
        await sim.until(lambda: sim.phase("a") is Phase.LAUNCHING)
        await asyncio.sleep(5)
        await sim.crash()
        await asyncio.sleep(120)
        await sim.start()
        await sim.until(lambda: not sim.world.engines("a"), within_s=60)
        assert sim.instance("a").failures.launch == 1

    run_virtual(main())


def test_what_versions_of_an_engine_have_shown_is_kept_version_by_version(tmp_path: Path) -> None:
    """Version 1 frees nothing when it sleeps: the upgrade is tried, and after the downgrade nobody tries in vain again."""

    async def start_with(sim: Sim, version: str, **knobs: object) -> None:
        sim.world.versions[ModelName("a")] = version
        sim.world.behaviours[ModelName("a")] = replace(BIG, **knobs)  # type: ignore[arg-type]
        assert (await sim.act("restart", "a")).ok

    async def main() -> None:
        sim = await booted(tmp_path, BIG)
        await start_with(sim, "1", sleep_frees_nothing=True)
        assert not (await sim.act("sleep", "a")).ok
        assert (await sim.act("sleep", "a")).code == "sleep_unsupported"
        await start_with(sim, "2")
        assert (await sim.act("sleep", "a")).ok
        await sim.restart()
        await sim.until(lambda: sim.phase("a") is Phase.ASLEEP)
        await start_with(sim, "1", sleep_frees_nothing=True)
        answer = await sim.act("sleep", "a")
        assert (answer.ok, answer.code) == (False, "sleep_unsupported")
        rows = sim.database.read_now(lambda conn: load_footprints(conn, ModelName("a")))
        assert [(row.engine_version, row.runs.denied_levels) for row in rows] == [("2", ()), ("1", (1,))]
        await sim.stop()

    run_virtual(main())


def test_an_adopted_engine_is_known_to_run_with_the_kv_cache_that_it_was_started_with(tmp_path: Path) -> None:
    """Else what it takes would count as taken without one, and the next start would get more KV cache than it claims."""

    async def main() -> None:
        sim = await booted(tmp_path, Behaviour(awake_bytes=6 * GIB, levels=(), kv_bytes=3 * GIB, kv_min_bytes=GIB))
        assert await sim.chat("a") == "ok"
        await asyncio.sleep(5.0)
        await sim.restart()
        await asyncio.sleep(5.0)
        found = sim.kernel.state.facts[ModelName("a")].learned
        assert (found.kv_bytes, found.awake_bytes) == (3 * GIB, (6 * GIB, 6 * GIB))
        await sim.stop()

    run_virtual(main())
