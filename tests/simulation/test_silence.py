"""An engine whose server is well and whose core is not is found by what it answers: nothing."""

import asyncio
from pathlib import Path

import pytest

from scheduler.domain.instance import Phase
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.silence import ANSWER_S, SILENT_S
from tests.simulation.test_flows import play
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world_ports import WorldEngine

pytestmark = pytest.mark.may_block

KNOBS = Behaviour(awake_bytes=6 * GIB, start_s=3.0)


def wedge(sim: Sim) -> None:
    """From now on its health is good, and requests hang."""
    life = sim.world.engine("a").life
    assert life is not None
    life.wedge()


def test_a_wedged_engine_is_ended_and_its_waiters_are_served_by_a_fresh_one(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        wedge(sim)
        begun = asyncio.get_running_loop().time()
        inside = [asyncio.create_task(sim.chat("a", tries=2)) for _ in range(3)]
        async with asyncio.timeout(10 * SILENT_S):
            assert await asyncio.gather(*inside) == ["ok"] * 3
        assert asyncio.get_running_loop().time() - begun >= SILENT_S
        assert sim.world.starts["a"] == 2  # type: ignore[index]
        [told] = [tell for tell in sim.told if tell.kind == "engine_failed"]
        assert "nothing came from it for" in told.message
        assert dict(told.data)["code"] == Code.ENGINE_LOST.value

    play(tmp_path, {"a": KNOBS}, script, models={"a": spec("a", max_wait_s=900.0)})


def test_who_thinks_for_long_and_answers_others_is_left_alone(tmp_path: Path) -> None:
    """One long answer in one piece: nothing comes for it, but our own question is answered."""

    async def script(sim: Sim) -> None:
        assert await sim.chat("a", 20 * SILENT_S, wait_s=600.0) == "ok"
        assert sim.world.starts["a"] == 1  # type: ignore[index]
        assert sim.phase("a") is Phase.AWAKE

    play(tmp_path, {"a": KNOBS}, script)


def test_a_full_engine_in_which_our_question_waits_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one slot and a long answer in it: our question is not answered, but counted among those that wait."""
    asked = 0

    async def never(self: WorldEngine, endpoint: object, timeout_s: float) -> str:
        nonlocal asked
        asked += 1
        process = self._find(endpoint)  # type: ignore[arg-type]
        assert process is not None
        process.running += 1
        try:
            await asyncio.sleep(timeout_s + 1)
        finally:
            process.running -= 1
        raise AssertionError("nobody waits so long")

    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        monkeypatch.setattr(WorldEngine, "warm_up", never)
        assert await sim.chat("a", 3 * (SILENT_S + ANSWER_S), wait_s=600.0) == "ok"
        assert asked >= 2
        assert sim.world.starts["a"] == 1  # type: ignore[index]

    play(tmp_path, {"a": KNOBS}, script)


def test_nobody_is_asked_while_something_comes_or_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    real = WorldEngine.warm_up

    async def counted(self: WorldEngine, endpoint: object, timeout_s: float) -> str:
        asked.append(timeout_s)
        return await real(self, endpoint, timeout_s)  # type: ignore[arg-type]

    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        monkeypatch.setattr(WorldEngine, "warm_up", counted)
        await asyncio.sleep(10 * SILENT_S)  # nobody waits
        long = asyncio.create_task(sim.chat("a", 10 * SILENT_S, wait_s=600.0))
        while not long.done():  # a stream: now and then a token
            await asyncio.sleep(SILENT_S / 2)
            sim.kernel.desk.pulses.hear(sim.instance("a").id)
        assert await long == "ok"
        assert asked == []

    play(tmp_path, {"a": KNOBS}, script)
