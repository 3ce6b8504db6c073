"""A real daemon on a made-up machine with NVIDIA cards: the real pynvml, the stand-in driver, fake vLLMs as real processes."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from adapters.engines.http import post
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.fake_knobs import Speech
from tests.support.gpu_world import GpuWorld, gpu
from tests.support.hf_folders import sized_folder
from tests.support.house import House, lived_in
from tests.support.nvml import build
from tests.support.vllm_knobs import COMMAND, VllmKnobs

#: What a fake vLLM's context and graphs take beside weights and KV cache, and what it keeps asleep.
RESIDUE_BYTES = GIB


def vllm(
    folder: Path,
    world: GpuWorld,
    name: str,
    *,
    weights_gib: float = 12,
    kv_gib: float = 3,
    knobs: Mapping[str, Any] | None = None,
    version: str = "0.33.0",
    speech: Speech | None = None,
    **more: Any,
) -> dict[str, dict[str, Any]]:
    """One entry of ``models``: a fake vLLM that takes weights + KV cache + 1 GiB of its cards; ``knobs`` are fields of Behaviour."""
    model = folder / "models" / name
    if not model.exists():
        sized_folder(model, int(weights_gib * GIB))
    behaviour = Behaviour(
        **{
            "start_s": 0.3,
            "levels": (1, 2),
            "residue_bytes": {1: RESIDUE_BYTES, 2: RESIDUE_BYTES},
            "sleep_s": 0.2,
            "wake_s": 0.2,
            "reload_s": 0.2,
            "term_s": 0.05,
            **(knobs or {}),
        }
    )
    told = VllmKnobs(behaviour=behaviour, engine_version=version, weights_bytes=int(weights_gib * GIB), speech=speech or Speech())
    entry = {
        "engine": "vllm",
        "model": str(model),
        "footprint": {"overhead": "1GiB", "kv_min": f"{kv_gib}GiB", "kv_max": f"{kv_gib}GiB"},
        "env": {**told.env(), "FAKE_NVML_WORLD": world.folder},
        **more,
    }
    return {name: entry}


class GpuHouse(House):
    """A House whose devices are the cards of a world folder."""

    def __init__(
        self, folder: Path, world: GpuWorld, models: Mapping[str, Mapping[str, Any]], *, library: bool = True, **settings: Any
    ) -> None:
        section = settings.pop("devices", {"headroom": "0%"})
        super().__init__(folder, models, {}, **{"engines": {"vllm": {"command": list(COMMAND)}}, **settings})
        self.settings = {"devices": section, "host": {"sleep_memory": "512GiB"}, **self.settings}
        self.program = ("-m", "tests.support.roomy_daemon")
        self.world = world
        self.library = library  # False = no driver is installed

    def environment(self) -> dict[str, str]:
        """The stand-in driver is found as the real one would be."""
        if not self.library:
            return super().environment()
        path = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        return {**super().environment(), **path, **build.environment(self.world.folder)}

    async def turn(self, model: str, **behaviour: Any) -> None:
        """Turn knobs of a model's running engine."""
        await post(self.engine_url(model), "/admin/behaviour", behaviour, timeout_s=5.0)

    def overfull(self) -> list[str]:
        """Cards that were ever fuller than they are large."""
        found = [
            dict(word.split("=", 1) for word in line.split() if "=" in word) for line in self.world.lines() if line[:4] in ("gpu ", "mig ")
        ]
        most = {facts["uuid"]: int(facts.get("total", 24 * GIB)) for facts in found}
        return [f"{uuid}: {peak} of {most[uuid]}" for uuid, peak in self.world.peak().items() if peak > most.get(uuid, peak)]


def cards(world: GpuWorld, count: int, total_gib: float = 24, **facts: Any) -> None:
    """Equal cards GPU-0, GPU-1, ... without anything on them."""
    world.write(*(gpu(n, uuid=f"GPU-{n}", name="RTX 4090", total=int(total_gib * GIB), reserved=0, **facts) for n in range(count)))


@asynccontextmanager
async def gpu_house(
    folder: Path, world: GpuWorld, models: Mapping[str, Mapping[str, Any]], *, within_s: float = 90.0, **settings: Any
) -> AsyncIterator[GpuHouse]:
    """A running daemon. At the end its books are right, it stops everything, nothing was refused memory and no card was overfull."""
    daemon = GpuHouse(folder, world, models, **settings)

    def check() -> None:
        assert world.oom_log() == []
        assert not (full := daemon.overfull()), full

    async with lived_in(daemon, within_s, check):
        yield daemon
