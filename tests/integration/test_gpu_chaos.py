"""Cards fall off the bus, engines and daemons die, operators interfere, in any order and under load: no card is ever overfull.

Afterwards everybody is served again.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.chaos import QUICK_TURNS, Chaos
from tests.support.fake_knobs import Speech
from tests.support.gpu_house import cards, gpu_house, vllm
from tests.support.gpu_world import GPU_IS_LOST, GpuWorld
from tests.support.pace import pause

CARDS = 3
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


class GpuChaos(Chaos):
    """Cards are lost, too."""

    world: GpuWorld

    def blows(self) -> Sequence[Callable[[], Awaitable[object]]]:
        """See the base."""
        return (*super().blows(), self.operate, self.lose_card, self.lose_card)

    def is_nonsense(self, text: str) -> bool:
        """What a woken engine without its weights says."""
        return "!" in text.replace("data: [DONE]", "") and '"error"' not in text

    async def lose_card(self) -> None:
        """For a while."""
        self.world.set_error("*", self.draw.randrange(CARDS), GPU_IS_LOST)
        await pause(3 * self.draw.random())
        if self.draw.random() < 0.3:
            await self.kill_daemon()
        self.world.clear_errors()


@pytest.mark.slow
@pytest.mark.may_block
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_card_is_ever_overfull_and_everybody_is_served_again(tmp_path: Path, seed: int) -> None:
    world = GpuWorld(tmp_path / "world")
    cards(world, CARDS)
    async with gpu_house(tmp_path, world, models(tmp_path, world), within_s=500, **QUICK_TURNS) as daemon:
        chaos = GpuChaos(daemon, seed, PASSING)
        chaos.world = world
        await chaos.run(("late", "plain"), 3.0, 150.0)
