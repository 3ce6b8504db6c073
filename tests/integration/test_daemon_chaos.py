"""Whatever happens to the daemon, its engines and its disk, in any order and under load: afterwards everybody is served again."""

import resource
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.behaviour import Child
from tests.support.chaos import QUICK_TURNS, Chaos
from tests.support.fake_knobs import Speech
from tests.support.house import fake, house, sleeper
from tests.support.pace import pause
from tests.support.real import MIB

DEVICES = {"cpu0": 256 * MIB, "cpu1": 200 * MIB}
BIG = 120  # of these, one fits on cpu0
#: What a client may be told while engines and daemons die around it.
PASSING = {"engine_lost", "model_starting", "store_unavailable", "wait_timeout", "model_backoff"}


def models() -> dict[str, dict[str, Any]]:
    """Three that share cpu0, one of which can sleep, and two on cpu1; some with children that are hard to find or to end."""
    slow = {"start_s": 0.3}
    orphan, runaway = Child(outlives=True, keeps_token=False), Child(outlives=True)
    return (
        fake("plain", mib=BIG, knobs=slow, speech=Speech(tokens=4, token_s=0.02))
        | sleeper("sleepy", mib=BIG, knobs=slow, speech=Speech(tokens=4, token_s=0.02))
        | fake("forked", mib=BIG, knobs={**slow, "children": (orphan,)}, speech=Speech(tokens=4, token_s=0.05))
        | fake("late", mib=60, device="cpu1", knobs={"start_s": 0.5, "listens_early": False, "children": (runaway,), "child_session": True})
        | fake("quick", mib=60, device="cpu1", speech=Speech(tokens=10, token_s=0.02))
    )


class DaemonChaos(Chaos):
    """The disk fills up, too."""

    def blows(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """See the base."""
        return (*super().blows(), self.kill_both, self.fill_disk)

    async def kill_both(self) -> None:
        """Daemon and engine at once."""
        await self.daemon.kill()
        await self.kill_engine()
        await self.daemon.start()

    async def fill_disk(self) -> None:
        """For a while; now and then the daemon dies in that state."""
        assert self.daemon.process is not None
        pid = self.daemon.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1024, limits[1]))
        await pause(3 * self.draw.random())
        if self.draw.random() < 0.3:
            await self.kill_daemon()
        else:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_everybody_is_served_again(tmp_path: Path, seed: int) -> None:
    async with house(tmp_path, models(), DEVICES, within_s=500, **QUICK_TURNS) as daemon:
        await DaemonChaos(daemon, seed, PASSING).run(("plain", "sleepy", "late"), 2.0, 120.0)
