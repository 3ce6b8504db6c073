"""Calls of the shell that fail with something nobody expected: each costs time, none ends a task that must not end."""

import asyncio
import errno
import inspect
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.domain.ids import InstanceId
from scheduler.domain.instance import Phase
from scheduler.domain.units import GIB
from scheduler.orchestrator.kernel import FLUSH_USAGE_S, PRUNE_S
from scheduler.orchestrator.supervisor import Supervisor
from scheduler.ports.launcher import Owned
from scheduler.simulator.virtual_time import run_virtual
from scheduler.store.connection import Connection
from scheduler.store.instances import recent_launches
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device
from tests.support.world_ports import WorldDevices, WorldEngine, WorldLauncher

pytestmark = pytest.mark.may_block  # how long a callback takes in virtual time says nothing
SMALL = Behaviour(awake_bytes=3 * GIB)


class Fails:
    """Stands before a method of a class: the first ``times`` calls fail as when descriptors run out, the others go through."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, method: str, times: int = 1) -> None:
        self.failed = 0
        self._times = times
        real = getattr(owner, method)

        def now(*args: object, **kwargs: object) -> object:
            self._check()
            return real(*args, **kwargs)

        async def later(*args: object, **kwargs: object) -> object:
            self._check()
            return await real(*args, **kwargs)

        patch.setattr(owner, method, later if inspect.iscoroutinefunction(real) else now)

    def _check(self) -> None:
        if self.failed < self._times:
            self.failed += 1
            raise OSError(errno.EMFILE, "Too many open files")


def play(folder: Path, script: Callable[[Sim], Awaitable[None]]) -> None:
    """Run ``script`` with the models a and b, which fit together."""

    async def main() -> None:
        sim = Sim(World([device("gpu0", 10)], {"a": SMALL, "b": SMALL}), folder, [spec("a"), spec("b")])
        await sim.start()
        await script(sim)
        assert sim.kernel.state.store_ok
        assert sim.ledger_matches() == []
        await sim.stop()

    run_virtual(main())


@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.parametrize(("owner", "method"), [(WorldLauncher, "members"), (WorldDevices, "sample")])
def test_failed_measurements_do_not_end_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, times: int
) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        fails = Fails(monkeypatch, owner, method, times)
        await sim.until(lambda: fails.failed == times)
        assert await sim.chat("b", wait_s=300.0) == "ok"

    play(tmp_path, script)


def test_a_start_that_cannot_be_prepared_is_a_failed_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing a port opens a socket."""

    async def script(sim: Sim) -> None:
        fails = Fails(monkeypatch, WorldLauncher, "free_port")
        assert await sim.chat("a", wait_s=600.0) == "ok"
        assert fails.failed == 1
        found = await sim.database.read(lambda conn: recent_launches(conn, InstanceId("a#0"), 10))
        assert [end.result if end else "running" for _, end in found] == ["ready", "failed"]

    play(tmp_path, script)


def test_an_effect_that_fails_keeps_its_pass_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener of the event feed fails: the move that it was told of is written and carried out."""
    broken: list[Exception] = []

    async def script(sim: Sim) -> None:
        monkeypatch.setattr(sim.kernel.loop, "_broken", broken.append)
        fails = Fails(monkeypatch, type(sim.kernel.desk), "told")
        assert await sim.chat("a", wait_s=60.0) == "ok"
        assert (fails.failed, len(broken)) == (1, 1)

    play(tmp_path, script)


def test_reaping_at_start_spares_what_this_daemon_has_just_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client was waiting at the socket: its model is launched while the processes are still being listed."""
    real = WorldLauncher.owned

    async def owned(self: WorldLauncher, state_uuid: str) -> Sequence[Owned]:
        await asyncio.sleep(0.05)
        return await real(self, state_uuid)

    monkeypatch.setattr(WorldLauncher, "owned", owned)

    async def script(sim: Sim) -> None:
        await asyncio.sleep(0.01)
        assert await sim.chat("a") == "ok"
        assert [tell.message for tell in sim.told if tell.kind == "orphan"] == []

    play(tmp_path, script)


@pytest.mark.parametrize("listener", ["observe", "effects"])
def test_a_listener_that_fails_does_not_end_the_control_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str) -> None:
    broken: list[Exception] = []

    def fail(*_args: object) -> None:
        raise KeyError(listener)

    async def script(sim: Sim) -> None:
        monkeypatch.setattr(sim.kernel.hooks, "broken", broken.append)
        monkeypatch.setattr(sim.kernel.loop, "_broken", broken.append)
        monkeypatch.setattr(sim.kernel.hooks, "effects", fail if listener == "effects" else lambda _effects: None)
        monkeypatch.setattr(sim.kernel.loop, "_observe", fail if listener == "observe" else lambda _event, _state: None)
        assert await sim.chat("a", wait_s=60.0) == "ok"
        assert {type(error) for error in broken} == {KeyError}

    play(tmp_path, script)


CALLS = [
    *((WorldLauncher, name) for name in ("members", "owns_port", "activity", "terminate", "wait_leader", "owned", "spawn")),
    *((WorldEngine, name) for name in ("preflight", "probe", "sleep", "wake", "explain_exit", "running")),
    *((Supervisor, name) for name in ("_sleeper",)),
]


@pytest.mark.parametrize(("owner", "method"), CALLS, ids=[name for _, name in CALLS])
def test_a_whole_life_with_a_call_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
    """Start, sleep, wake, crash of the engine, crash of the daemon, stop: it ends well each time, though one fails twice in each."""

    async def script(sim: Sim) -> None:
        failed = 0

        async def step(doing: Callable[[], Awaitable[object]]) -> object:
            nonlocal failed
            with monkeypatch.context() as patched:
                fails = Fails(patched, owner, method, 2)  # a third start that fails would be the last
                answer = await doing()
                await asyncio.sleep(30)
                failed += fails.failed
            return answer

        async def lose_engine() -> None:
            sim.world.kill("a")
            await sim.until(lambda: sim.phase("a") in (Phase.STOPPED, Phase.BACKOFF))

        async def stop() -> None:
            await sim.act("stop", "a")
            await sim.until(lambda: sim.phase("a") is Phase.STOPPED)

        assert await step(lambda: sim.chat("a", wait_s=900.0)) == "ok"
        await step(lambda: sim.act("sleep", "a"))
        assert await step(lambda: sim.chat("a", wait_s=900.0)) == "ok"
        await step(lose_engine)
        assert await step(lambda: sim.chat("a", wait_s=900.0)) == "ok"
        await step(sim.restart)
        assert await step(lambda: sim.chat("a", wait_s=900.0)) == "ok"
        await step(stop)
        assert not sim.world.engines("a")
        assert failed or method in ("activity", "running")

    play(tmp_path, script)


@pytest.mark.parametrize("times", [1, 3])
def test_orphans_are_ended_although_the_first_looks_for_them_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        await sim.crash()
        with closing(sqlite3.connect(tmp_path / "state.db")) as conn, conn:
            conn.execute("DELETE FROM instances")
        Fails(monkeypatch, WorldLauncher, "owned", times)
        await sim.start()
        await sim.until(lambda: not sim.world.engines("a"), within_s=120)
        assert [tell.kind for tell in sim.told].count("orphan") == 1

    play(tmp_path, script)


@pytest.mark.parametrize(("label", "every_s"), [("usage", FLUSH_USAGE_S), ("prune", PRUNE_S)])
def test_background_work_survives_an_error_of_any_kind(tmp_path: Path, label: str, every_s: float) -> None:
    async def script(sim: Sim) -> None:
        real, failed = sim.writer.submit, 0

        def submit(work: Callable[[Connection], object], name: str) -> "asyncio.Future[object]":
            nonlocal failed
            if name == label and failed < 2:
                failed += 1
                raise OSError(errno.EIO, "Input/output error")
            return real(work, name)

        sim.writer.submit = submit  # type: ignore[method-assign,assignment]
        assert await sim.chat("a") == "ok"
        await asyncio.sleep(2.5 * every_s)
        assert failed == 2
        assert {task.get_name() for task in asyncio.all_tasks()} >= {"kernel/usage", "kernel/prune"}
        await asyncio.sleep(FLUSH_USAGE_S)
        rows = await sim.database.read(lambda conn: conn.exec_driver_sql("SELECT sum(requests) FROM usage_minutes").scalar())
        assert rows == 1

    play(tmp_path, script)
