"""Nobody is believed to sleep before its bytes are seen free; whoever keeps them is stopped, and that is remembered."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.domain.units import GIB
from tests.support.gpu_house import GpuHouse, cards, gpu_house, vllm
from tests.support.gpu_world import GpuWorld
from tests.support.house import until

#: The world's lock may be held by a process that is kept off the CPU.
pytestmark = pytest.mark.may_block
#: A start that costs more than a sleep and a wake: else room is made by stops.
SLOW_START = {"start_s": 1.5}


@pytest.fixture
def world(tmp_path: Path) -> GpuWorld:
    world = GpuWorld(tmp_path / "world")
    cards(world, 1)
    return world


async def test_asleep_is_what_a_measurement_says(world: GpuWorld, tmp_path: Path) -> None:
    """The engine answers at once, and gives its memory back a second and a half later."""
    looks: list[tuple[str, int, int]] = []

    async def watch(daemon: GpuHouse) -> None:
        while True:
            before = world.used("GPU-0")
            model = await daemon.model("a")
            looks.append((model["phase"], before, model["claimed_bytes"]))
            await asyncio.sleep(0.02)

    models = vllm(tmp_path, world, "a", knobs={"free_delay_s": 1.5, "sleep_s": 0.0})
    async with gpu_house(tmp_path, world, models) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        watching = asyncio.create_task(watch(daemon))
        assert (await daemon.act("sleep", "a"))["state"] == "done"
        await until(lambda: looks[-1][0] == "asleep")
        watching.cancel()
        assert [used for phase, used, _ in looks if phase == "asleep" and used != GIB] == []
        falling = [(used, claimed) for phase, used, claimed in looks if phase == "falling_asleep"]
        assert (16 * GIB, True) in {(used, claimed >= 16 * GIB) for used, claimed in falling}
        assert looks[-1][:2] == ("asleep", GIB)
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.model("a"))["counters"]["wakes"] == 1


async def test_what_an_action_tells_is_what_was_measured_and_where_it_ended(world: GpuWorld, tmp_path: Path) -> None:
    """A first start claims a third more than it takes; and the host has no room for a copy."""
    models = vllm(tmp_path, world, "a", footprint={})
    async with gpu_house(tmp_path, world, models, host={"sleep_memory": "1GiB"}) as daemon:
        code, out, _ = await daemon.cli("wake", "a")
        assert (code, out.partition(" in ")[0]) == (0, "started a on gpu0")
        await daemon.until_model("a", lambda model: model["claimed_bytes"] < 20 * GIB)  # it was measured
        held = (await daemon.get("/control/v1/models/a"))["memory"]["measured_bytes"]
        code, out, _ = await daemon.cli("sleep", "a", "--level", "1")
        freed = f"{(held - GIB) / GIB:.1f} GiB freed"
        assert code == 0
        assert out.startswith(f"slept a at level 2: {freed} in ")
        assert out.splitlines()[1] == "  not at level 1: hotseat status a says why"
        assert next(e["text"] for e in await daemon.events() if e["kind"] == "asleep").startswith(f"slept a: {freed} in ")
        code, out, _ = await daemon.cli("wake", "a")
        assert (code, out.partition(" in ")[0]) == (0, f"woke a on gpu0: {(held - GIB) / GIB:.1f} GiB")
        code, out, _ = await daemon.cli("sleep", "a", "--level", "2")
        assert len(out.splitlines()) == 1


def knobs_in_file(entry: dict[str, dict[str, Any]], file: Path) -> dict[str, dict[str, Any]]:
    """The same model, which reads its knobs from a file: they may change, as an engine's files do, while its definition stays."""
    [definition] = entry.values()
    file.write_text(definition["env"]["FAKE_VLLM_KNOBS"], encoding="utf-8")
    definition["env"]["FAKE_VLLM_KNOBS"] = str(file)
    return entry


def upgrade(file: Path, version: str, **behaviour: object) -> None:
    """Another version of the engine is installed."""
    knobs = json.loads(file.read_text(encoding="utf-8"))
    knobs["engine_version"] = version
    knobs["behaviour"] |= behaviour
    file.write_text(json.dumps(knobs), encoding="utf-8")


async def make_room(daemon: GpuHouse) -> str:
    """``b`` is asked for, which does not fit beside ``a``: where ``a`` is afterwards."""
    assert (await daemon.chat("a"))[0] == 200
    assert (await daemon.chat("b"))[0] == 200
    phase: str = (await daemon.model("a"))["phase"]
    return phase


async def test_a_sleeper_that_keeps_its_memory_is_stopped_instead(world: GpuWorld, tmp_path: Path) -> None:
    lying = vllm(tmp_path, world, "a", knobs={**SLOW_START, "free_fraction": 0.3}, levels=[1])
    async with gpu_house(tmp_path, world, lying | vllm(tmp_path, world, "b")) as daemon:
        assert await make_room(daemon) == "stopped"
        [told] = await daemon.events("sleep_ineffective")
        assert (told["subject"], told["text"]) == ("a", "a said it sleeps at level 1 but still holds 11.5 GiB: stopped instead")
        assert "sleep_ineffective: a said it sleeps at level 1 but still holds 11.5 GiB" in (await daemon.cli("story", "a"))[1]


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_that_a_sleep_frees_nothing_is_remembered_until_the_engine_is_another_version(world: GpuWorld, tmp_path: Path) -> None:
    file = tmp_path / "knobs.json"
    lying = knobs_in_file(vllm(tmp_path, world, "a", knobs={**SLOW_START, "free_fraction": 0.0}, levels=[1]), file)
    async with gpu_house(tmp_path, world, lying | vllm(tmp_path, world, "b"), within_s=110) as daemon:
        assert await make_room(daemon) == "stopped"
        assert "still holds 16.0 GiB" in (await daemon.events("sleep_ineffective", "a"))[0]["text"]

        await daemon.terminate()
        await daemon.start()
        assert await make_room(daemon) == "stopped"
        refused = await daemon.act("sleep", "a")
        assert (refused["state"], refused["error"]["code"]) == ("failed", "sleep_unsupported")
        assert await daemon.events("asleep", "a") == []
        assert len(await daemon.events("sleep_ineffective")) == 1

        upgrade(file, "0.34.0", free_fraction=1.0)
        assert await make_room(daemon) == "asleep"
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.model("a"))["counters"]["wakes"] == 1
        assert len(await daemon.events("sleep_ineffective")) == 1
