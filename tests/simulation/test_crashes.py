"""The daemon dies at every journal and effect boundary, once and twice, and nothing is lost, doubled or left behind."""

import asyncio
import itertools
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from scheduler.domain.ids import DeviceId
from scheduler.domain.instance import EMPTY_PHASES, Phase
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.domain.units import GIB
from scheduler.orchestrator.events import Happening
from scheduler.orchestrator.invariants import check
from scheduler.orchestrator.state import State
from scheduler.simulator.virtual_time import VirtualClock, VirtualLoop, run_virtual
from scheduler.store.engine import open_database
from scheduler.telemetry.tasks import spawn
from tests.support.behaviour import Behaviour, Child
from tests.support.sim import Crashed, Sim, spec
from tests.support.world import World, device

STABLE = EMPTY_PHASES | {Phase.AWAKE, Phase.ASLEEP}


def make_world() -> World:
    """Two devices; a sleeps, b can only be stopped, c lives elsewhere and has a child that outlives its leader without the token."""
    orphanage = (Child(outlives=True, keeps_token=False),)
    return World(
        [device("gpu0", 10, index=0), device("gpu1", 10, index=1)],
        {
            "a": Behaviour(awake_bytes=6 * GIB),
            "b": Behaviour(awake_bytes=6 * GIB, levels=()),
            "c": Behaviour(awake_bytes=5 * GIB, levels=(), children=orphanage),
        },
    )


def seated(name: str, device_id: str) -> ModelSpec:
    """A model that may only sit there."""
    return spec(name, devices=DeviceWish(ids=(DeviceId(device_id),)))


MODELS = [seated("a", "gpu0"), seated("b", "gpu0"), seated("c", "gpu1")]


def invariants(event: Happening, state: State) -> None:
    """Checked after every event of every daemon."""
    wrong = check(state)
    assert not wrong, (event, wrong)


class Story:
    """One history: a script, a crash at each of the given boundaries (counted from the last boot), then the rest of life."""

    def __init__(self, folder: Path, template: Path | None, crash_at: tuple[int, ...]) -> None:
        self.world = make_world()
        if template is not None:
            shutil.copy(template, folder / "state.db")
        self.sim = Sim(self.world, folder, MODELS, checks=[invariants], boundary=self.boundary)
        self.crash_at = list(crash_at)
        self.passed: list[str] = []
        self.died = asyncio.Event()

    def boundary(self, name: str) -> None:
        """Count, and die at the chosen one: nothing of this daemon acts on the world any more."""
        if self.died.is_set():
            raise asyncio.CancelledError
        self.passed.append(name)
        if self.crash_at and len(self.passed) == self.crash_at[0]:
            self.crash_at.pop(0)
            self.died.set()
            self.world.crash()
            if ":" in name and name.split(":")[0] in ("before", "written", "committed"):
                raise Crashed(name)
            raise asyncio.CancelledError

    async def live(self) -> None:
        """Until the script is through without a crash; then everybody must be served."""
        script = [self.first_half, self.second_half, self.everybody]
        while script:
            self.passed.clear()
            self.died.clear()
            if await self.until_death(self.boot()):
                continue
            while script and not await self.until_death(script[0]()):
                script.pop(0)
        await self.sim.until(self.at_rest, within_s=120)
        self.judge()
        await self.sim.stop()

    async def until_death(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run ``work``; True when the daemon died meanwhile."""
        doing = spawn(work, "script", expected=(Exception,))
        dying = spawn(self.died.wait(), "death")
        await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
        dead = self.died.is_set()
        for task in (doing, dying):
            task.cancel()
        await asyncio.wait([doing, dying])
        if dead:
            await self.bury()
        elif not doing.cancelled():
            doing.result()
        return dead

    async def boot(self) -> None:
        await self.sim.start()

    async def bury(self) -> None:
        if hasattr(self.sim, "kernel"):
            await self.sim.kernel.crash()
        self.sim.database.close()

    async def first_half(self) -> None:
        assert await asyncio.gather(self.sim.chat("a"), self.sim.chat("c")) == ["ok", "ok"]

    async def second_half(self) -> None:
        assert await self.sim.chat("b") == "ok"
        assert (await self.sim.act("stop", "c")).ok
        assert await self.sim.chat("a") == "ok"

    async def everybody(self) -> None:
        answers = await asyncio.gather(*(self.sim.chat(m) for m in "abc"))
        assert answers == ["ok"] * 3, (answers, self.sim.phases())

    def at_rest(self) -> bool:
        return all(i.phase in STABLE for i in self.sim.kernel.state.instances.values())

    def judge(self) -> None:
        """Nothing orphaned, ledger equal to the processes, never over capacity, never a request to a sleeper."""
        rows = {i.launch for i in self.sim.kernel.state.instances.values() if i.has_process}
        for process in self.world.engines():
            assert process.request is not None and int(process.request.token.split(":")[1]) in rows, process
        assert self.sim.ledger_matches() == []
        assert not self.world.overflows, self.world.overflows
        assert not self.world.misdirected, self.world.misdirected


def tell(folder: Path, template: Path | None, crash_at: tuple[int, ...]) -> list[str]:
    """Live one story; returns the boundaries of its last boot."""
    folder.mkdir(parents=True, exist_ok=True)

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.set_exception_handler(report)
        story = Story(folder, template, crash_at)
        await story.live()
        return story.passed

    return run_virtual(main())


def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The crash itself is no news."""
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, migrated once: copying it is faster than making it."""
    folder = tmp_path_factory.mktemp("template")

    async def make() -> None:
        open_database(folder / "state.db", clock=VirtualClock(asyncio.get_running_loop()), mode="inline", state_uuid="sim").close()

    run_virtual(make())
    return folder / "state.db"


def test_no_crash(tmp_path: Path, template: Path) -> None:
    """The script by itself, and how many boundaries it has."""
    assert len(tell(tmp_path, template, ())) > 0


def test_one_crash_at_every_boundary(tmp_path: Path, template: Path) -> None:
    for at in itertools.count(1):
        if not tell(tmp_path / str(at), template, (at,)):
            break
