"""Calls of the shell that fail with something nobody expected: each costs time, none ends a task that must not end."""

import errno
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import run_virtual
from tests.support.behaviour import Behaviour
from tests.support.sim import Sim, spec
from tests.support.world import World, device
from tests.support.world_ports import WorldDevices, WorldLauncher

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
