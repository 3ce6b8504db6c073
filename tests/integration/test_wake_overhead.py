"""The benchmark of wakes runs, and takes nothing for a wake that is none. What it measures is for its record, not for a test."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.wake_overhead import CROWD, Sent, part

ROOT = Path(__file__).resolve().parents[2]
SENT = Sent("wake-1", 10.0, 10.2)


def entry(path: str, arrived_s: float, answered_s: float, ident: str = "") -> dict[str, Any]:
    return {"path": path, "arrived_s": arrived_s, "answered_s": answered_s, "headers": {"x-request-id": ident}}


WOKEN = [
    entry("/sleep", 9.0, 9.1),
    entry("/wake_up", 10.01, 10.06),
    entry("/v1/completions", 10.07, 10.08),
    entry("/v1/chat/completions", 10.1, 10.11, "wake-1"),
    entry("/health", 10.15, 10.16),
]


def test_a_wake_is_taken_apart() -> None:
    wake = part(SENT, WOKEN)
    assert wake.arrival_to_call == pytest.approx(10)
    assert wake.engine == pytest.approx(60)
    assert wake.between == pytest.approx(10)
    assert wake.reply_to_byte == pytest.approx(120)
    assert wake.overhead == pytest.approx(130)
    assert wake.total == pytest.approx(200)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        pytest.param([WOKEN[0], *WOKEN[3:]], r"was asked \[\]", id="no wake"),
        pytest.param([*WOKEN[:2], *WOKEN[1:]], "wake_up', '/wake_up'", id="two wakes"),
        pytest.param([entry("/health", 10.0, 10.01), *WOKEN[1:]], "/health", id="something else came first"),
        pytest.param([entry("/wake_up", 10.01, 10.3), *WOKEN[2:]], "before it was awake", id="served while it was waking"),
    ],
)
def test_what_is_no_wake_is_no_figure(log: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        part(SENT, log)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the NVML stand-in needs gcc")
async def test_it_measures_a_real_daemon() -> None:
    words = [sys.executable, "-m", "benchmarks.wake_overhead", "--quick", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert out, err.decode()
    figures = json.loads(out)
    assert figures["wakes"] == 20
    assert figures["crowd"] == {"requests_at_once": CROWD, "wakes_each": [1]}
    ours, script = figures["hotseat_ms"], figures["script_ms"]
    slept_ms = figures["engine_wakes_in_s"] * 1e3
    assert min(ours["engine"]["p50"], script["engine"]["p50"]) >= slept_ms
    for name in ("arrival_to_call", "reply_to_byte"):
        assert 0 < ours[name]["p50"] <= ours[name]["max"] < ours["total"]["max"]
    assert process.returncode == (0 if ours["overhead"]["p99"] <= figures["limit_ms"] else 1)
