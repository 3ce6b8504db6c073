"""Whatever happens to the daemon, its engines and its disk, in any order and under load: afterwards everybody is served again."""

import asyncio
import json
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.behaviour import Child
from tests.support.fake_knobs import Speech
from tests.support.house import House, fake, house, sleeper
from tests.support.pace import pause
from tests.support.real import MIB

DEVICES = {"cpu0": 256 * MIB, "cpu1": 200 * MIB}
BIG = 120  # of these, one fits on cpu0
ROUNDS = 25
QUICK_TURNS: dict[str, Any] = {"defaults": {"min_awake": "0s"}, "gateway": {"turn_factor": 1}}
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


class Chaos:
    """One history, drawn from a seed."""

    def __init__(self, daemon: House, seed: int) -> None:
        self.daemon = daemon
        self.draw = random.Random(seed)
        self.told: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def client(self, model: str) -> None:
        """Asks without a pause, as long as nobody stops it."""
        while True:
            try:
                status, text = await self.daemon.chat(model, stream=self.draw.random() < 0.5)
            except aiohttp.ClientError:
                await pause(0.1)  # the daemon is away
                continue
            if status == 200:
                self.told["answered"] += 1
                continue
            code = json.loads(text)["error"]["code"]
            if code not in PASSING:
                self.wrong.append(f"{model}: {status} {text}")
            await pause(0.2)

    async def strike(self) -> None:
        """Something happens."""
        blows: tuple[Callable[[], Awaitable[object]], ...] = (
            self.kill_daemon,
            self.kill_both,
            self.end_daemon,
            self.kill_engine,
            self.kill_engine,
            self.operate,
            self.fill_disk,
        )
        await self.draw.choice(blows)()

    async def kill_daemon(self) -> None:
        await self.daemon.kill()
        await self.daemon.start()

    async def kill_both(self) -> None:
        await self.daemon.kill()
        await self.kill_engine()
        await self.daemon.start()

    async def end_daemon(self) -> None:
        assert await self.daemon.terminate() == 0
        await self.daemon.start()

    async def kill_engine(self) -> None:
        """Any process of any engine."""
        pids = sorted(self.daemon.engine_processes())
        if pids:
            try:
                os.kill(self.draw.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                return  # it was just ending

    async def operate(self) -> None:
        verb, model = self.draw.choice(("stop", "restart", "sleep", "wake")), self.draw.choice(sorted(self.daemon.models))
        await self.daemon.act(verb, model, wait_s=self.draw.choice((0, 5)))

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

    async def rest(self) -> None:
        """Nothing happens any more: the disk is seen to be well again, and the same clients are served on and on."""
        async with asyncio.timeout(120):
            while (await self.daemon.status())["degraded"]:
                await pause(0.1)
            before = self.told["answered"]
            while self.told["answered"] < before + 40:
                await pause(0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_everybody_is_served_again(tmp_path: Path, seed: int) -> None:
    async with house(tmp_path, models(), DEVICES, within_s=500, **QUICK_TURNS) as daemon:
        chaos = Chaos(daemon, seed)
        clients = [asyncio.create_task(chaos.client(name)) for name in [*sorted(daemon.models), "plain", "sleepy", "late"]]
        for _ in range(ROUNDS):
            await pause(2 * chaos.draw.random())
            await chaos.strike()
        await chaos.rest()
        for task in clients:
            task.cancel()
        await asyncio.wait(clients)
        assert [task.exception() for task in clients if not task.cancelled()] == []
        assert chaos.wrong == []
        answers = {name: await daemon.chat(name) for name in daemon.models}
        assert {name: text for name, (status, text) in answers.items() if status != 200} == {}
        assert (await daemon.status())["degraded"] == []
