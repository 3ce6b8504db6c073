"""Cards fall off the bus, engines and daemons die, operators interfere, in any order and under load: no card is ever overfull.

Afterwards everybody is served again.
"""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_knobs import Speech
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GPU_IS_LOST, GpuWorld
from tests.support.pace import pause

CARDS = 3
ROUNDS = 25
QUICK_TURNS: dict[str, Any] = {"defaults": {"min_awake": "0s"}, "gateway": {"turn_factor": 1}}
#: What a client may be told while engines, cards and daemons die around it.
PASSING = {"engine_lost", "model_starting", "wait_timeout", "model_backoff"}


def models(folder: Path, world: GpuWorld) -> dict[str, dict[str, Any]]:
    """Six that never fit together: slow to give memory back, to be woken twice, to be doubted after level 2, and one on two cards."""
    talk = Speech(tokens=4, token_s=0.02)
    slow = {"start_s": 1.0}
    found = vllm(folder, world, "late", knobs={**slow, "free_lag_s": 0.7}, speech=talk)
    found |= vllm(folder, world, "later", knobs={**slow, "free_delay_s": 0.7}, speech=talk)
    found |= vllm(folder, world, "twice", weights_gib=6, knobs={**slow, "wake_errors": 1}, speech=talk)
    found |= vllm(folder, world, "garbage", knobs={**slow, "garbage_levels": (2,)}, levels=[2], speech=talk)
    found |= vllm(folder, world, "plain", weights_gib=6, speech=talk)
    return found | vllm(folder, world, "gang", weights_gib=16, devices={"count": 2}, speech=talk)


class Chaos:
    """One history, drawn from a seed."""

    def __init__(self, daemon: GpuHouse, world: GpuWorld, seed: int) -> None:
        self.daemon = daemon
        self.world = world
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
                if "!" in text.replace("data: [DONE]", "") and '"error"' not in text:
                    self.wrong.append(f"{model}: nonsense {text}")
                continue
            code = json.loads(text)["error"]["code"]
            dying = "EngineCore encountered an issue" in text  # an engine's own words, whose worker was killed
            if code not in PASSING and not dying:
                self.wrong.append(f"{model}: {status} {text}")
            await pause(0.2)

    async def strike(self) -> None:
        """Something happens."""
        blows: tuple[Callable[[], Awaitable[object]], ...] = (
            self.lose_card,
            self.lose_card,
            self.kill_daemon,
            self.end_daemon,
            self.kill_engine,
            self.kill_engine,
            self.operate,
            self.operate,
        )
        blow = self.draw.choice(blows)
        self.told[blow.__name__] += 1
        await blow()

    async def lose_card(self) -> None:
        """For a while."""
        self.world.set_error("*", self.draw.randrange(CARDS), GPU_IS_LOST)
        await pause(3 * self.draw.random())
        if self.draw.random() < 0.3:
            await self.kill_daemon()
        self.world.clear_errors()

    async def kill_daemon(self) -> None:
        await self.daemon.kill()
        await self.daemon.start()

    async def end_daemon(self) -> None:
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
        verb, model = self.draw.choice(("stop", "restart", "sleep", "wake")), self.draw.choice(sorted(self.daemon.models))
        await self.daemon.act(verb, model, wait_s=self.draw.choice((0, 5)))

    async def rest(self) -> None:
        """Nothing happens any more: the same clients are served on and on."""
        async with asyncio.timeout(150):
            while (await self.daemon.status())["degraded"]:
                await pause(0.1)
            before = self.told["answered"]
            while self.told["answered"] < before + 40:
                await pause(0.1)


@pytest.mark.slow
@pytest.mark.may_block
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_card_is_ever_overfull_and_everybody_is_served_again(tmp_path: Path, seed: int) -> None:
    world = GpuWorld(tmp_path / "world")
    cards(world, CARDS)
    async with gpu_house(tmp_path, world, models(tmp_path, world), within_s=500, **QUICK_TURNS) as daemon:
        chaos = Chaos(daemon, world, seed)
        clients = [asyncio.create_task(chaos.client(name)) for name in [*sorted(daemon.models), "late", "plain"]]
        for _ in range(ROUNDS):
            await pause(3 * chaos.draw.random())
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
