"""Blows against a real daemon under load, drawn from a seed; afterwards everybody has to be served again."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import aiohttp

from tests.support.house import House
from tests.support.pace import pause

ROUNDS = 25
QUICK_TURNS: dict[str, Any] = {"defaults": {"min_awake": "0s"}, "gateway": {"turn_factor": 1}}


class Chaos:
    """One history. ``passing`` are the codes that a client may be told while engines and daemons die around it."""

    def __init__(self, daemon: House, seed: int, passing: Collection[str]) -> None:
        self.daemon = daemon
        self.draw = random.Random(seed)
        self.passing = passing
        self.told: Counter[str] = Counter()
        self.wrong: list[str] = []

    def blows(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """What may happen; what is named twice happens twice as often."""
        return (self.kill_daemon, self.end_daemon, self.kill_engine, self.kill_engine, self.operate)

    def is_nonsense(self, text: str) -> bool:
        """Whether a 200 carries what no model says."""
        return False

    async def run(self, further_clients: Sequence[str], most_pause_s: float, rest_s: float) -> None:
        """Strike under load, then see everybody served."""
        clients = [asyncio.create_task(self.client(name)) for name in [*sorted(self.daemon.models), *further_clients]]
        for _ in range(ROUNDS):
            await pause(most_pause_s * self.draw.random())
            blow = self.draw.choice(self.blows())
            self.told[blow.__name__] += 1
            await blow()
        await self.rest(rest_s)
        for task in clients:
            task.cancel()
        await asyncio.wait(clients)
        assert [task.exception() for task in clients if not task.cancelled()] == []
        assert self.wrong == []
        answers = {name: await self.daemon.chat(name) for name in self.daemon.models}
        assert {name: text for name, (status, text) in answers.items() if status != 200} == {}
        assert (await self.daemon.status())["degraded"] == []

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
                if self.is_nonsense(text):
                    self.wrong.append(f"{model}: nonsense {text}")
                continue
            code = json.loads(text)["error"]["code"]
            dying = "EngineCore encountered an issue" in text  # an engine's own words, whose worker was killed
            if code not in self.passing and not dying:
                self.wrong.append(f"{model}: {status} {text}")
            await pause(0.2)

    async def kill_daemon(self) -> None:
        """It is back at once."""
        await self.daemon.kill()
        await self.daemon.start()

    async def end_daemon(self) -> None:
        """In order."""
        assert await self.daemon.terminate() == 0
        await self.daemon.start()

    async def kill_engine(self) -> None:
        """Any process of any engine."""
        pids = sorted(await asyncio.to_thread(self.daemon.engine_processes))
        if pids:
            try:
                os.kill(self.draw.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                return  # it was just ending

    async def operate(self) -> None:
        """An operator asks for something."""
        verb, model = self.draw.choice(("stop", "restart", "sleep", "wake")), self.draw.choice(sorted(self.daemon.models))
        await self.daemon.act(verb, model, wait_s=self.draw.choice((0, 5)))

    async def rest(self, within_s: float) -> None:
        """Nothing happens any more: all is well again, and the same clients are served on and on."""
        async with asyncio.timeout(within_s):
            while (await self.daemon.status())["degraded"]:
                await pause(0.1)
            before = self.told["answered"]
            while self.told["answered"] < before + 40:
                await pause(0.1)
