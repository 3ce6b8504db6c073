"""What a long start of one model costs requests to another: latency before and during it, in one run, on a real daemon.

Two CPU devices. ``quick`` is awake on the second one. Its latency is measured alone (the baseline), then while ``slow`` takes
``--start`` seconds to start on the first device and, after half of that, ``other`` is started on the second one as well.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.common import machine, percentile, save_record
from scheduler.daemon.clock import SystemClock
from tests.support.real import MIB, RealDaemon

PAUSE_S = 0.02
ENGINE = str(Path(__file__).with_name("stub_engine.py"))


def stub(device: str, start_s: float) -> dict[str, Any]:
    """A model of the stub engine; several of them fit on a device."""
    return {
        "engine": "command",
        "command": [sys.executable, "-I", ENGINE, "--port", "${port}", "--start", str(start_s)],
        "devices": {"ids": [device]},
        "footprint": {"weights": 200 * MIB, "overhead": 0, "kv_min": 0, "kv_max": 0},
        "start_timeout": f"{int(start_s) + 60}s",
        "max_wait": f"{int(start_s) + 60}s",
    }


class Probe:
    """Sends one request after the other to an awake model and keeps the latencies, milliseconds."""

    def __init__(self, daemon: RealDaemon, clock: SystemClock) -> None:
        self._url = f"{daemon.url}/v1/chat/completions"
        self._clock = clock

    async def measure(self, until: asyncio.Event) -> list[float]:
        """Until told to stop; raises on anything but 200."""
        taken = []
        body = {"model": "quick", "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession() as client:
            while not until.is_set():
                begun = self._clock.monotonic()
                async with client.post(self._url, json=body) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise RuntimeError(f"HTTP {answer.status}")
                taken.append((self._clock.monotonic() - begun) * 1000)
                await asyncio.sleep(PAUSE_S)
        return taken


async def run(start_s: float, baseline_s: float) -> dict[str, Any]:
    """One run; figures in milliseconds and seconds."""
    clock = SystemClock()
    models = {"slow": stub("cpu0", start_s), "quick": stub("cpu1", 0.0), "other": stub("cpu1", 0.0)}
    with tempfile.TemporaryDirectory() as folder:
        daemon = RealDaemon(Path(folder), models, {"cpu0": 1024 * MIB, "cpu1": 1024 * MIB})
        daemon.log_level = "info"  # as in production
        await daemon.start()
        try:
            await daemon.chat("quick")
            alone = await _for(Probe(daemon, clock), baseline_s)
            done = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                during = group.create_task(Probe(daemon, clock).measure(done))
                slow = group.create_task(_timed(daemon, "slow", clock))
                await asyncio.sleep(start_s / 2)
                other_s = await _timed(daemon, "other", clock)
                second_move_meanwhile = not slow.done()
                await slow
                done.set()
        finally:
            await daemon.stop()
    return _figures(alone, during.result(), slow.result(), other_s, second_move_meanwhile)


async def _for(probe: Probe, seconds: float) -> list[float]:
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, done.set)
    return await probe.measure(done)


async def _timed(daemon: RealDaemon, model: str, clock: SystemClock) -> float:
    begun = clock.monotonic()
    status, text = await daemon.chat(model)
    if status != 200:
        raise RuntimeError(f"{model}: HTTP {status}: {text}")
    return clock.monotonic() - begun


def _figures(alone: list[float], during: list[float], slow_s: float, other_s: float, meanwhile: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {"machine": machine(), "slow_start_s": round(slow_s, 2), "other_start_s": round(other_s, 2)}
    for share, name in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
        before, now = percentile(alone, share), percentile(during, share)
        figures[name] = {"alone_ms": round(before, 2), "during_ms": round(now, 2), "added_ms": round(now - before, 2)}
    figures |= {"requests_alone": len(alone), "requests_during": len(during), "second_move_meanwhile": meanwhile}
    return figures


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=float, default=60.0, help="seconds the slow model takes to start (default 60)")
    parser.add_argument("--baseline", type=float, default=15.0, help="seconds measured without it (default 15)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    figures = asyncio.run(run(args.start, args.baseline))
    if args.json:
        sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    else:
        for name in ("p50", "p99", "max"):
            row = figures[name]
            line = f"{name:4} alone {row['alone_ms']:8.2f} ms, during {row['during_ms']:8.2f} ms, added {row['added_ms']:8.2f} ms\n"
            sys.stdout.write(line)
        sys.stdout.write(f"a second move ran meanwhile: {figures['second_move_meanwhile']} ({figures['other_start_s']} s)\n")
    save_record("start_isolation", figures, at_s=SystemClock().wall())
    return 0 if figures["p99"]["added_ms"] < 50 and figures["second_move_meanwhile"] else 1


if __name__ == "__main__":
    sys.exit(main())
