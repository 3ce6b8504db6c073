"""Engines that die of a request, or of a sleep, at the wrong moment: they never meet one."""

import asyncio
import random
from pathlib import Path

import pytest

from scheduler.domain.instance import Phase
from scheduler.domain.units import GIB
from tests.simulation.test_flows import play
from tests.support.behaviour import Behaviour, Child
from tests.support.sim import Sim

pytestmark = pytest.mark.may_block

#: As vLLM 0.8 (vllm#15483) and 0.11 (vllm#28714) did.
FRAGILE = Behaviour(awake_bytes=6 * GIB, start_s=3.0, crash_on_request_while_asleep=True, sleep_while_running_crashes=True)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_request_reaches_a_sleeper_and_no_sleep_begins_under_a_request(tmp_path: Path, seed: int) -> None:
    """Requests, operators who put to sleep and wake, clients that leave: at any moment."""

    async def script(sim: Sim) -> None:
        draw = random.Random(seed)
        clients: list[asyncio.Task[str]] = []
        for _ in range(150):
            model = draw.choice("ab")
            what = draw.random()
            if what < 0.6:
                clients.append(asyncio.create_task(sim.chat(model, draw.uniform(0.0, 4.0), tries=1)))
            elif what < 0.8:
                sim.ask(draw.choice(("sleep", "wake")), model)
            elif clients:
                draw.choice(clients).cancel()
            await asyncio.sleep(draw.expovariate(1.0))
        ends = await asyncio.gather(*clients, return_exceptions=True)
        assert {end for end in ends if isinstance(end, str)} == {"ok"}
        assert sim.world.happened("misdirected") == []
        assert sum(sim.world.starts.values()) <= 2  # nobody ever died
        slept = [t for t in sim.told if t.kind == "asleep"]
        assert len(slept) >= 5

    play(tmp_path, {"a": FRAGILE, "b": FRAGILE}, script)


@pytest.mark.parametrize("bytes_seen", [False, True], ids=["before its bytes are seen free", "once it is believed"])
def test_an_engine_that_dies_shortly_after_it_said_that_it_sleeps_is_started_afresh(tmp_path: Path, bytes_seen: bool) -> None:
    """200 to a sleep proves nothing about the next seconds."""

    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        action = sim.ask("sleep", "a")
        live = sim.kernel.state.live_of(sim.instance("a").id)
        await sim.until(lambda: action in sim.finished if bytes_seen else live.returned_at_s is not None)
        assert sim.phase("a") is (Phase.ASLEEP if bytes_seen else Phase.FALLING_ASLEEP)
        sim.world.kill("a")
        await sim.until(lambda: sim.phase("a") is Phase.STOPPED, within_s=30)
        assert await sim.chat("a") == "ok"
        assert sim.world.starts["a"] == 2  # type: ignore[index]

    play(tmp_path, {"a": Behaviour(awake_bytes=6 * GIB, start_s=3.0, free_delay_s=2.0)}, script)


def test_what_a_killed_engine_leaves_behind_is_ended_before_its_room_is_used(tmp_path: Path) -> None:
    """A worker without a parent keeps half of the memory, ignores TERM and lost its token: the next model waits for its bytes."""
    left = Child(share=0.5, outlives=True, ignores_term=True, keeps_token=False)

    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        sim.world.kill("a")
        assert await sim.chat("b") == "ok"
        assert not [p for p in sim.world.processes.values() if p.alive and p.model == "a"]

    play(tmp_path, {"a": Behaviour(awake_bytes=6 * GIB, start_s=3.0, levels=(), children=(left,)), "b": FRAGILE}, script)


def test_an_engine_that_somebody_else_puts_to_sleep_is_woken_before_it_gets_the_next_request(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        process = sim.world.engine("a")
        assert process.life is not None
        process.life.sleep(sim.world.now_s, 1)
        sim.world.poke(process)
        await sim.until(lambda: sim.phase("a") is Phase.ASLEEP, within_s=15)
        assert await sim.chat("a") == "ok"
        assert sim.world.happened("misdirected") == []
        assert len(sim.world.happened("started", "a")) == 1
        assert [line.message for line in sim.told if line.kind == "fell_asleep"] == ["a sleeps, and nobody here told it to"]

    play(tmp_path, {"a": FRAGILE}, script)


def test_a_sleeper_that_somebody_else_wakes_is_known_to_be_awake(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        await sim.act("sleep", "a")
        await asyncio.sleep(10.0)
        process = sim.world.engine("a")
        assert process.life is not None
        process.life.wake(sim.world.now_s)
        sim.world.poke(process)
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE, within_s=15)
        assert sim.instance("a").claim.total_bytes >= 6 * GIB
        assert len(sim.world.happened("started", "a")) == 1

    play(tmp_path, {"a": FRAGILE}, script)
