"""A disk that does not take rows for a while: what must go on meanwhile, and that everything comes back after it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from scheduler.domain.errors import Temporary
from scheduler.domain.ids import DeviceId, InstanceId
from scheduler.domain.instance import Phase
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import run_virtual
from scheduler.store.instances import recent_launches
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device

pytestmark = pytest.mark.may_block  # how long a callback takes in virtual time says nothing
BIG = Behaviour(awake_bytes=6 * GIB, levels=())  # two of them do not fit together
SMALL = Behaviour(awake_bytes=3 * GIB, levels=())


class Disk:
    """Refuses the units for which ``refuses`` says so; is asked at each of a unit's boundaries, by name."""

    def __init__(self) -> None:
        self.works()
        self.refused: list[str] = []

    def works(self) -> None:
        self.refuses: Callable[[str], bool] = lambda _name: False

    def is_full(self) -> None:
        self.refuses = lambda name: name.startswith("written:")

    def refuses_rows(self, *words: str, stage: str = "written") -> None:
        self.refuses = lambda name: name.startswith(f"{stage}:") and all(word in name for word in words)

    def refuses_once(self, *words: str) -> None:
        self.refuses = lambda name: name.startswith("written:") and all(word in name for word in words) and not self.refused

    def __call__(self, name: str) -> None:
        if self.refuses(name):
            self.refused.append(name)
            raise Temporary("the disk is full", code="store_full", retry_after_s=1.0, fix="make room")


class Stuck:
    """The disk neither takes the rows of ``sim`` nor refuses them until ``goes_on``."""

    def __init__(self, sim: Sim) -> None:
        self._writer = sim.writer
        self._step = sim.writer._step
        self._held = 0
        self._writer._step = self._hold  # type: ignore[method-assign]

    def _hold(self) -> None:
        self._held += 1

    def goes_on(self) -> None:
        self._writer._step = self._step  # type: ignore[method-assign]
        for _ in range(self._held):
            self._step()


def play(
    folder: Path,
    behaviours: Mapping[str, Behaviour],
    script: Callable[[Sim, Disk], Awaitable[None]],
    *,
    models: Mapping[str, ModelSpec] | None = None,
    devices: int = 1,
) -> None:
    """Run ``script`` on a machine with devices of 10 GiB; afterwards the store works and no process lacks a claim."""

    async def main() -> None:
        disk = Disk()
        world = World([device(f"gpu{i}", 10, index=i) for i in range(devices)], dict(behaviours))
        sim = Sim(world, folder, [(models or {}).get(name, spec(name)) for name in behaviours], boundary=disk)
        await sim.start()
        await script(sim, disk)
        assert sim.kernel.state.store_ok, "the disk works again, the store is still degraded"
        assert sim.ledger_matches() == []
        await sim.stop()

    run_virtual(main())


# --- it comes back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
def test_the_store_recovers_when_a_pass_fails_behind_one_that_follows_from_it(tmp_path: Path, turns: int) -> None:
    """Two passes are on their way when the disk is full: a stop, and the opening of a move. The failure of the first ends
    that move; this end is known before the opening has failed too, and must not be written before it."""
    where = {"a": "gpu0", "b": "gpu0", "c": "gpu1"}
    seats = {name: spec(name, devices=DeviceWish(ids=(DeviceId(where[name]),))) for name in where}

    async def script(sim: Sim, disk: Disk) -> None:
        assert [await sim.chat("a"), await sim.chat("c")] == ["ok", "ok"]
        long = asyncio.ensure_future(sim.chat("a", 400.0))
        await asyncio.sleep(300)  # a's turn is over, its answer goes on
        disk.is_full()
        sim.ask("stop", "c")
        for _ in range(turns):
            await asyncio.sleep(0)
        other = asyncio.ensure_future(sim.chat("b"))
        await asyncio.sleep(5)
        disk.works()
        await sim.until(lambda: sim.kernel.state.store_ok, within_s=60)
        assert await sim.chat("c") == "ok"
        assert await long == "ok"
        assert await other in ("ok", "store_unavailable")

    play(tmp_path, dict.fromkeys("abc", BIG), script, models=seats, devices=2)


def test_a_start_that_could_neither_be_built_nor_written_is_forgotten(tmp_path: Path) -> None:
    """A variable of the environment is gone while the disk is full."""

    async def script(sim: Sim, disk: Disk) -> None:
        def environment(model: ModelSpec, extra: Mapping[str, str], _values: Mapping[str, str]) -> Mapping[str, str]:
            if model.name == "bad":
                raise Temporary("no variable X", code="unknown_placeholder", retry_after_s=1.0)
            return dict(extra)

        object.__setattr__(sim.kernel.parts, "environment", environment)
        disk.is_full()
        bad = asyncio.ensure_future(sim.chat("bad", wait_s=60.0))
        await asyncio.sleep(5)
        disk.works()
        await sim.until(lambda: sim.kernel.state.store_ok, within_s=60)
        assert await sim.chat("b") == "ok"
        await bad

    play(tmp_path, {"bad": SMALL, "b": SMALL}, script)


def test_a_start_whose_row_failed_leaves_no_record(tmp_path: Path) -> None:
    async def script(sim: Sim, disk: Disk) -> None:
        disk.is_full()
        assert await sim.chat("a") == "store_unavailable"
        disk.works()
        await sim.until(lambda: sim.kernel.state.store_ok, within_s=60)
        found = await sim.database.read(lambda conn: recent_launches(conn, InstanceId("a#0"), 10))
        assert found == []
        assert await sim.chat("a") == "ok"

    play(tmp_path, {"a": SMALL}, script)


def test_a_stop_while_the_row_of_the_start_waits_for_a_slow_disk(tmp_path: Path) -> None:
    async def script(sim: Sim, disk: Disk) -> None:
        disk.refuses_rows("LaunchIntended")
        stuck = Stuck(sim)
        asyncio.ensure_future(sim.chat("a", wait_s=60.0))  # noqa: RUF006 - how it ends is not asked
        await sim.until(lambda: sim.phase("a") is Phase.LAUNCHING)
        stop = sim.ask("stop", "a")
        await sim.until(lambda: sim.phase("a") is Phase.STOPPING)
        stuck.goes_on()
        disk.works()
        await sim.until(lambda: sim.kernel.state.store_ok and stop in sim.finished, within_s=60)
        found = await sim.database.read(lambda conn: recent_launches(conn, InstanceId("a#0"), 10))
        assert [end.result if end else "running" for _, end in found] == ["stopped"]
        assert await sim.chat("b") == "ok"

    play(tmp_path, {"a": SMALL, "b": SMALL}, script)


def test_catching_up_row_by_row_survives_a_second_failure(tmp_path: Path) -> None:
    """A confirmation was lost, so the rows are refused together and tried one by one; the disk fails once more meanwhile."""

    async def script(sim: Sim, disk: Disk) -> None:
        assert await sim.chat("a") == "ok"
        disk.refuses_rows("DrainIntended", stage="committed")
        sim.ask("stop", "a")
        await sim.until(lambda: not sim.kernel.state.store_ok)
        asked = 0

        def second(name: str) -> bool:
            nonlocal asked
            asked += name == "written:catch-up"
            return name == "written:catch-up" and asked == 2

        disk.refuses = second
        await sim.until(lambda: sim.kernel.state.store_ok, within_s=60)
        assert asked > 2

    play(tmp_path, {"a": SMALL}, script)


# --- what goes on meanwhile ----------------------------------------------------------------------------------------


def test_one_failed_commit_at_the_restart_kills_no_engine(tmp_path: Path) -> None:
    """The rows that take engines over cannot be written, once: they are looked at all the same."""

    async def script(sim: Sim, disk: Disk) -> None:
        assert [await sim.chat("a"), await sim.chat("b")] == ["ok", "ok"]
        await sim.crash()
        disk.refuses_once("DaemonRestarted")
        await sim.start()
        await asyncio.sleep(120)
        assert disk.refused
        assert not sim.world.happened("killed")
        assert [sim.phase("a"), sim.phase("b")] == [Phase.AWAKE, Phase.AWAKE]

    play(tmp_path, {"a": SMALL, "b": SMALL}, script)


def test_an_adopted_engine_whose_row_failed_once_is_not_busy_for_ever(tmp_path: Path) -> None:
    async def script(sim: Sim, disk: Disk) -> None:
        assert await sim.chat("a") == "ok"
        await sim.crash()
        disk.refuses_once("ProbedAwake")
        await sim.start()
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE and bool(disk.refused))
        await sim.until(lambda: sim.kernel.state.store_ok)
        assert await sim.chat("b", wait_s=300.0) == "ok"

    play(tmp_path, {"a": BIG, "b": BIG}, script)


def test_an_awake_model_is_looked_at_while_the_store_is_degraded(tmp_path: Path) -> None:
    """It takes no connections for a moment while the disk is full: it must be probed, not given up."""

    async def script(sim: Sim, disk: Disk) -> None:
        assert await sim.chat("a") == "ok"
        disk.is_full()
        assert await sim.chat("b") == "store_unavailable"
        (port,) = [port for port, who in sim.world.listeners.items() if who is not None]
        listener = sim.world.listeners.pop(port)
        await sim.until(lambda: sim.phase("a") is Phase.UNKNOWN)
        sim.world.listeners[port] = listener
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE)
        assert not sim.world.happened("killed", "a")
        assert await sim.chat("a") == "ok"
        disk.works()
        await sim.until(lambda: sim.kernel.state.store_ok)

    play(tmp_path, {"a": SMALL, "b": SMALL}, script)


def test_a_stop_does_not_wait_for_a_stuck_disk(tmp_path: Path) -> None:
    """The disk neither takes the row nor refuses it: killing is always a safe exit."""

    async def script(sim: Sim, _disk: Disk) -> None:
        assert await sim.chat("a") == "ok"
        stuck = Stuck(sim)
        sim.ask("stop", "a", force=True)
        await sim.until(lambda: not sim.world.engines("a"), within_s=60)
        stuck.goes_on()
        await sim.until(lambda: sim.phase("a") is Phase.STOPPED)

    play(tmp_path, {"a": SMALL}, script)


def test_a_sleeper_is_found_again_while_the_row_of_its_wake_waits(tmp_path: Path) -> None:
    """The disk was stuck for longer than a wake may take: the sleeper was looked at meanwhile, and what was found counts."""

    async def script(sim: Sim, _disk: Disk) -> None:
        assert await sim.chat("a") == "ok"
        assert (await sim.act("sleep", "a")).ok
        stuck = Stuck(sim)
        waiting = asyncio.ensure_future(sim.chat("a", wait_s=3000.0))
        await sim.until(lambda: sim.phase("a") is Phase.WAKING)
        await sim.until(lambda: sim.phase("a") is Phase.UNKNOWN)
        await sim.until(lambda: sim.phase("a") is not Phase.UNKNOWN)
        stuck.goes_on()
        assert await waiting == "ok"
        assert len(sim.world.happened("started", "a")) == 1

    play(tmp_path, {"a": Behaviour(awake_bytes=3 * GIB)}, script)


def test_a_process_row_that_fails_is_no_fault_of_the_engine(tmp_path: Path) -> None:
    """The child waits at its gate until its identity is written."""

    async def script(sim: Sim, disk: Disk) -> None:
        disk.refuses_rows("process")
        waiting = asyncio.ensure_future(sim.chat("a", wait_s=120.0))
        await sim.until(lambda: not sim.kernel.state.store_ok)
        await asyncio.sleep(15)
        disk.works()
        assert await waiting == "ok"
        assert sim.instance("a").failures.launch == 0
        assert len(sim.world.happened("spawned", "a")) == 1

    play(tmp_path, {"a": SMALL}, script)


def test_a_stop_ends_a_child_that_waits_for_its_row(tmp_path: Path) -> None:
    async def script(sim: Sim, disk: Disk) -> None:
        disk.refuses_rows("process")
        asyncio.ensure_future(sim.chat("a", wait_s=120.0))  # noqa: RUF006 - how it ends is not asked
        await sim.until(lambda: bool(disk.refused))
        assert (await sim.act("stop", "a")).ok
        assert not sim.world.engines("a")
        disk.works()
        await sim.until(lambda: sim.kernel.state.store_ok)
        assert await sim.chat("a") == "ok"

    play(tmp_path, {"a": SMALL}, script)
