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
from scheduler.simulator.virtual_time import VirtualClock, run_virtual
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


class Story:
    """One history: a script, a crash at each of the given boundaries (counted from the last boot), then the rest of life."""

    def __init__(self, folder: Path, template: Path, crash_at: tuple[int, ...], *, short: bool) -> None:
        self.world = make_world()
        shutil.copy(template, folder / "state.db")
        self.sim = Sim(self.world, folder, MODELS, boundary=self.boundary)
        self.crash_at = list(crash_at)
        self.passed: list[str] = []
        self.recovery = 0  # boundaries that the last recovery passed before it came to rest
        self.died = asyncio.Event()
        self.thin = short or len(crash_at) > 1
        self.script = [self.first_half] if short else [self.first_half, self.second_half]

    def boundary(self, name: str) -> None:
        """Count, and die at the chosen one: nothing of this daemon acts on the world any more."""
        if self.died.is_set():
            raise asyncio.CancelledError
        if self.thin and name.startswith("before:"):
            return  # in pairs, dying before a row is written and before it is committed are the same
        self.passed.append(name)
        if self.crash_at and len(self.passed) == self.crash_at[0]:
            self.crash_at.pop(0)
            self.died.set()
            self.world.crash()
            if name.split(":")[0] in ("before", "written", "committed"):
                raise Crashed(name)
            raise asyncio.CancelledError

    async def live(self) -> None:
        """Until the script is through; after a crash the new daemon first comes to rest; in the end everybody is served."""
        while True:
            self.passed.clear()
            self.died.clear()
            if await self.until_death(self.boot()):
                continue
            self.recovery = len(self.passed)
            while self.script and not await self.until_death(self.script[0]()):
                self.script.pop(0)
            if not self.died.is_set() and not await self.until_death(self.everybody()):
                break
        await self.sim.until(self.at_rest, within_s=120)
        self.judge()
        self.died.set()  # what is left is the end of the test, not of the story
        await self.bury()

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
        await self.sim.until(self.at_rest, within_s=120)

    async def bury(self) -> None:
        if hasattr(self.sim, "kernel"):
            await self.sim.kernel.crash()
        self.sim.database.close()

    async def first_half(self) -> None:
        assert list(await asyncio.gather(self.sim.chat("a"), self.sim.chat("c"))) == ["ok", "ok"]
        assert await self.sim.chat("b") == "ok"

    async def second_half(self) -> None:
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
            assert process.request is not None
            assert int(process.request.token.split(":")[1]) in rows, process
        assert self.sim.ledger_matches() == []
        assert not self.world.overflows, self.world.overflows
        assert not self.world.misdirected, self.world.misdirected


def tell(folder: Path, template: Path, crash_at: tuple[int, ...], *, short: bool = False) -> Story:
    """Live one story to its end."""
    folder.mkdir(parents=True, exist_ok=True)

    async def main() -> Story:
        asyncio.get_running_loop().set_exception_handler(report)
        story = Story(folder, template, crash_at, short=short)
        await story.live()
        return story

    try:
        return run_virtual(main())
    except BaseException as error:
        error.add_note(f"crashes at boundaries {crash_at}, short={short}")
        raise


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


def test_without_a_crash(tmp_path: Path, template: Path) -> None:
    story = tell(tmp_path, template, ())
    assert len(story.passed) > 80
    assert not story.world.happened("killed")


PARTS = 8
pytestmark = [pytest.mark.timeout(300), pytest.mark.may_block]  # how long a callback takes in virtual time says nothing


@pytest.mark.parametrize("part", range(PARTS))
def test_one_crash_at_every_boundary(tmp_path: Path, template: Path, part: int) -> None:
    stories = 0
    for at in itertools.count(part + 1, PARTS):
        if tell(tmp_path / str(at), template, (at,)).crash_at:
            break  # this boundary was never reached
        stories += 1
    assert stories > 80 // PARTS


@pytest.mark.parametrize("part", range(PARTS))
def test_a_second_crash_at_every_boundary_of_every_recovery(tmp_path: Path, template: Path, part: int) -> None:
    """Every pair of crashes: the second one strikes while the first is being recovered from."""
    pairs = 0
    for first in itertools.count(part + 1, PARTS):
        alone = tell(tmp_path / str(first), template, (first,), short=True)
        if alone.crash_at:
            break
        for second in range(1, alone.recovery + 1):
            assert not tell(tmp_path / f"{first}-{second}", template, (first, second), short=True).crash_at
            shutil.rmtree(tmp_path / f"{first}-{second}")
            pairs += 1
    assert pairs > 200 // PARTS


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_crashes_of_the_whole_script(tmp_path: Path, template: Path, part: int) -> None:
    for first in itertools.count(part + 1, PARTS):
        if tell(tmp_path / f"{first}-none", template, (first, 10**9)).crash_at[0] != 10**9:
            break
        for second in itertools.count(1):
            story = tell(tmp_path / f"{first}-{second}", template, (first, second))
            shutil.rmtree(tmp_path / f"{first}-{second}")
            if story.crash_at:
                break
