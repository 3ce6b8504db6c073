"""Configurations as text for tests."""

from collections.abc import Mapping
from pathlib import Path

from scheduler.config.context import Facts
from scheduler.config.load import load_source
from scheduler.config.problems import ConfigInvalid, Problem
from scheduler.config.settings import Loaded
from scheduler.config.source import Source

OWNED = {
    "llamacpp": {"--port": "", "--host": "", "-m": "model", "--model": "model", "--cache-ram": "footprint.kv_max"},
    "vllm": {
        "--port": "",
        "--tensor-parallel-size": "devices.count",
        "--gpu-memory-utilization": "footprint",
        "CUDA_VISIBLE_DEVICES": "devices.ids",
    },
}


def facts(environ: Mapping[str, str] | None = None, euid: int = 1000) -> Facts:
    """What the daemon would know: the engines there are, some flags of llama.cpp and vLLM."""
    return Facts(
        owned_flags=OWNED, known_engines=("llamacpp", "command", "vllm", "attached"), environ=environ or {}, home=Path("/home/u"), euid=euid
    )


def load_text(text: str, path: str = "/etc/hotseat/hotseat.yaml", environ: Mapping[str, str] | None = None, euid: int = 1000) -> Loaded:
    """The configuration in ``text``, as if it stood at ``path``."""
    return load_source(Source(Path(path), text), facts(environ, euid))


def problems_of(text: str, environ: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    """What is wrong with ``text``; () = nothing."""
    try:
        load_text(text, environ=environ)
    except ConfigInvalid as error:
        return error.problems
    return ()
