"""Knobs of the fake vLLM, and what its version, its flags and its knobs together make of it."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scheduler.domain.units import MIB
from tests.support.behaviour import NO_RELOAD, Behaviour
from tests.support.fake_knobs import Speech, behaviour_from
from tests.support.vllm_argv import LOADERS_THAT_RELOAD, Options

#: What to configure as the engine's program: ``engines.vllm.command``.
COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_vllm.py")))
#: The variable that holds them: JSON, or the path of a file with it.
VARIABLE = "FAKE_VLLM_KNOBS"
NEWEST = "0.33.0"
HEALTHY = Behaviour(
    start_s=0.05,
    awake_bytes=32 * MIB,
    kv_bytes=8 * MIB,
    residue_bytes={1: 6 * MIB, 2: 4 * MIB},
    levels=(1, 2),
    sleep_s=0.02,
    wake_s=0.02,
    reload_s=0.02,
    term_s=0.02,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmKnobs:
    """Everything that a fake vLLM can be told beside its command line."""

    behaviour: Behaviour = HEALTHY
    speech: Speech = field(default_factory=Speech)
    engine_version: str = NEWEST
    dev_mode: bool = True  # False = no such paths, whatever VLLM_SERVER_DEV_MODE says
    weights_bytes: int = 0  # of the whole model; with it awake_bytes = weights / devices + KV cache + residue at level 1
    stale_gauges: bool = True  # while it is paused its gauges stand still
    old_metric_names: bool = False
    workers_outlive: bool = False  # the leader is killed, and its workers keep the memory
    watchdog_s: float = 5.0  # how long the server outlives its workers
    death_unnoticed: bool = False  # workers die, and the server is healthy while its requests hang
    sleep_mode_breaks_start: bool = False  # it starts only without --enable-sleep-mode
    starts_file: str = ""
    says: str = ""

    def to_json(self) -> str:
        """As the value of the variable, or the content of its file."""
        return json.dumps(asdict(self))

    def env(self) -> dict[str, str]:
        """The variable."""
        return {VARIABLE: self.to_json()}


def knobs_from_env(env: Mapping[str, str]) -> VllmKnobs:
    """Knobs from the environment; keys may be left out. Those of the behaviour start from a healthy vLLM."""
    said = env.get(VARIABLE, "{}")
    data: dict[str, Any] = json.loads(said if said.lstrip().startswith("{") else Path(said).read_text(encoding="utf-8"))
    behaviour = data.pop("behaviour", {})
    speech = data.pop("speech", {})
    healthy = asdict(HEALTHY)
    return VllmKnobs(behaviour=behaviour_from({**healthy, **behaviour}), speech=Speech(**speech), **data)


def release(version: str) -> tuple[int, ...]:
    """0.33.0 -> (0, 33, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def since(knobs: VllmKnobs, *wanted: int) -> bool:
    """Whether it is at least that version."""
    return release(knobs.engine_version) >= wanted


def behaviour_of(knobs: VllmKnobs, options: Options, card_bytes: int | None) -> Behaviour:
    """The behaviour after flags and version had their say. ``card_bytes``: of one pretended card, None = there is none."""
    given = knobs.behaviour
    residue = given.residue_bytes.get(1, 0)
    kv = given.kv_bytes if options.kv_bytes is None else options.kv_bytes
    weights = knobs.weights_bytes // options.tensor_parallel
    if weights and options.kv_bytes is None and card_bytes is not None:
        kv = max(0, int(card_bytes * options.utilization) - weights - residue)
    awake = weights + kv + residue if weights else given.awake_bytes
    reloads = options.load_format in LOADERS_THAT_RELOAD
    return replace(
        given,
        awake_bytes=awake,
        kv_bytes=min(kv, max(0, awake - residue)),
        kv_dtype=options.kv_dtype,
        listens_early=False,
        sleep_enabled=given.sleep_enabled and options.sleep_mode,
        wake_needs_room=True,
        reload_error=given.reload_error or ("" if reloads else NO_RELOAD.replace("runai_streamer", options.load_format)),
        rejects_while_paused=given.rejects_while_paused and since(knobs, 0, 33),
        crash_on_request_while_asleep=given.crash_on_request_while_asleep or not since(knobs, 0, 17),
        sleep_while_running_crashes=given.sleep_while_running_crashes or not since(knobs, 0, 17),
        crash_on_partial_wake_request=given.crash_on_partial_wake_request or not since(knobs, 0, 24),
    )
