"""The stock OpenAI client, two majors of it, against a real daemon with real llama.cpp models."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.demo_model import demo_model_path
from tests.support.house import house
from tests.support.real import MIB

CALLS = Path(__file__).parents[1] / "support" / "openai_calls.py"
#: Where `make venv` puts the older major with all it needs.
OPENAI_2 = Path(sys.prefix) / "openai-2"
DIMENSIONS = 640  # of Gemma 3 270M

pytestmark = pytest.mark.real_llamacpp


async def calls(url: str, model: str, path: str) -> dict[str, Any]:
    """The client's calls in a process of its own; ``path`` is searched first for the client."""
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-P", str(CALLS), url, model]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_both_majors_get_what_they_expect(tmp_path: Path) -> None:
    assert OPENAI_2.is_dir(), "the older major of the client is not installed: make venv"
    file = str(await asyncio.to_thread(demo_model_path))
    # A small batch: with pooling, the engine computes the logits of a whole batch at once.
    args = ["-np", "1", "-t", "1", "-b", "64", "-ub", "64", "--embeddings", "--pooling", "mean"]
    models = {
        "small": {"engine": "llamacpp", "model": file, "args": ["-c", "1024", *args], "aliases": ["gpt-4o-mini"]},
        "large": {"engine": "llamacpp", "model": file, "args": ["-c", "2048", *args]},
    }
    async with house(tmp_path, models, {"cpu0": 2048 * MIB}) as daemon:
        new, old = await asyncio.gather(calls(daemon.url, "gpt-4o-mini", ""), calls(daemon.url, "large", str(OPENAI_2)))
        assert [facts["version"].split(".")[0] for facts in (new, old)] == ["3", "2"]
        for facts, asked, model in ((new, "gpt-4o-mini", "small"), (old, "large", "large")):
            assert facts["models"] == ["large", "small"]
            assert facts["one_model"] == asked
            assert facts["chat"]["role"] == "assistant"
            assert facts["chat"]["finish"] in ("length", "stop")
            assert 1 <= facts["chat"]["tokens"] <= 6
            assert facts["chat"]["served_by"] == model
            assert facts["stream"]["finish"] in ("length", "stop")
            assert 1 <= facts["stream"]["pieces"] <= facts["stream"]["tokens"] <= 6
            assert 1 <= facts["completion"]["tokens"] <= 6
            assert facts["embeddings"] == [DIMENSIONS, DIMENSIONS]
            assert (facts["error"]["class"], facts["error"]["code"], facts["error"]["param"]) == (
                "NotFoundError",
                "model_not_found",
                "model",
            )
        assert [len(daemon.launches(name)) for name in models] == [1, 1]
