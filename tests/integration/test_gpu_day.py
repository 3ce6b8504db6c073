"""A day of five models of 16 GiB on three cards of 24 GiB: whoever is asked for gets a seat, the others sleep with a residue of 1 GiB."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GpuWorld

#: The world's lock may be held by a process that is kept off the CPU.
pytestmark = pytest.mark.may_block
DAY, NIGHT, ONCE = ("a", "b", "d"), "c", "e"


async def rush(daemon: GpuHouse) -> list[int]:
    """The traffic of a day: three clients talk to each of the day's models; the statuses they got."""

    async def client(model: str) -> list[int]:
        return [(await daemon.chat(model))[0] for _ in range(3)]

    answers = await asyncio.gather(*(client(model) for model in DAY for _ in range(3)))
    return [status for each in answers for status in each]


async def counters(daemon: GpuHouse, name: str) -> dict[str, int]:
    return {model["name"]: model["counters"][name] for model in (await daemon.status())["models"]}


async def victim_of(daemon: GpuHouse, model: str) -> str:
    """Whoever made room for ``model``, as the story of ``model``, the victim's story and the status tell it with one sentence."""
    _, story, _ = await daemon.cli("story", model)
    move = rf"{model} on (gpu\d): asked for by a request; puts away (\w) to asleep 1 \(1\d\.\d GiB\)"
    found = re.search(rf"launching .* requested: ({move})", story)
    assert found is not None, story
    sentence, device, victim = found.groups()
    _, other, _ = await daemon.cli("story", victim)
    steps = [line.split()[1:4] for line in other.splitlines() if sentence in line]
    assert steps == [["awake", "draining", "DrainIntended"], ["draining", "falling_asleep", "Drained"]]
    assert other.splitlines()[-1].split()[1:4] == ["falling_asleep", "asleep", "SleepConfirmed"]
    _, status, _ = await daemon.cli("status")
    rows = {line.split()[0]: line for line in status.splitlines() if line}
    assert f"{model} +1 asleep" in rows[device]
    assert rows[victim].split()[1:4] == ["asleep", "1", device]
    assert sentence in rows[victim]
    assert f"why requested: {sentence}" in " ".join((await daemon.cli("status", victim))[1].split())
    return victim


@pytest.mark.parametrize(
    ("start_s", "wake_s"),
    [
        pytest.param(1.5, 0.3, id="short"),
        pytest.param(6.0, 2.0, id="two seconds to wake", marks=[pytest.mark.slow, pytest.mark.timeout(150)]),
    ],
)
async def test_a_day_of_five_models_on_three_cards(tmp_path: Path, start_s: float, wake_s: float) -> None:
    world = GpuWorld(tmp_path / "world")
    cards(world, 3)
    models: dict[str, Any] = {}
    for name in "abcde":
        models |= vllm(tmp_path, world, name, weights_gib=12, kv_gib=3, knobs={"start_s": start_s, "wake_s": wake_s})
    async with gpu_house(tmp_path, world, models, within_s=140) as daemon:
        assert await rush(daemon) == [200] * 27
        assert (await daemon.chat(NIGHT))[0] == 200
        made_room = {await victim_of(daemon, NIGHT)}
        assert (await daemon.chat(ONCE))[0] == 200
        made_room.add(await victim_of(daemon, ONCE))
        [left] = set(DAY) - made_room
        assert (await daemon.act("sleep", left))["state"] == "done"  # its operator's wish for the night
        assert await counters(daemon, "sleeps") == {**dict.fromkeys(DAY, 1), NIGHT: 0, ONCE: 0}

        assert await rush(daemon) == [200] * 27
        assert await counters(daemon, "wakes") == {**dict.fromkeys(DAY, 1), NIGHT: 0, ONCE: 0}
        assert await counters(daemon, "starts") == dict.fromkeys("abcde", 1)
        assert await counters(daemon, "requests") == {**dict.fromkeys(DAY, 18), NIGHT: 1, ONCE: 1}
        assert all(f"{event['subject']} woke from level 1 in" in event["text"] for event in await daemon.events("woke"))
        phases = {model["name"]: model["phase"] for model in (await daemon.status())["models"]}
        assert phases == {**dict.fromkeys(DAY, "awake"), NIGHT: "asleep", ONCE: "asleep"}
        assert max(world.peak().values()) == 17 << 30
