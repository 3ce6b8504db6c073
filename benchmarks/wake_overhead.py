"""What hotseat adds to a wake: from the request to the first call to the engine, and from its last reply to the first byte.

A real daemon on a made-up machine with one NVIDIA card, a fake vLLM that sleeps at level 1 and another one awake beside it.
Each wake begins with a request (a stream) to the sleeper. The clock of all processes is one, so:

    arrival to call     the client begins to connect -> the engine has its first call (/wake_up)
    reply to byte       the engine's last reply before it serves -> the client has its first byte; the answer itself is in it
    overhead            both together: the bar is on its 99th percentile
    engine              the engine's own time for the calls of its wake
    between             hotseat's time from one of these calls to the next

The baseline of the same run is a script that knows its engine: it calls /wake_up and then sends the same request. The two take
turns, wake by wake. Last, fifty clients at once ask a sleeper.

    python -m benchmarks.wake_overhead [--wakes 500] [--crowds 10] [--quick] [--json] [--save]
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adapters.engines.http import post
from benchmarks.common import percentile, save_record
from scheduler.daemon.clock import SystemClock
from scheduler.domain.units import GIB
from tests.support.fake_adapter import requests_seen
from tests.support.gpu_house import GpuHouse, cards, vllm
from tests.support.gpu_world import GpuWorld
from tests.support.vllm_knobs import HEALTHY, VllmKnobs
from tests.support.vllm_process import NAME as BARE
from tests.support.vllm_process import VllmProcess, fake_vllm

LIMIT_MS = 50.0
WAKE_S = 0.05
CROWD = 50
#: An engine is started afresh after so many wakes; the daemon would do it by itself after 200.
WAKES_PER_START = 100
SLEEPER, NEIGHBOUR = "sleeper", "neighbour"
SLEEP_S = 0.01
KNOBS = {"wake_s": WAKE_S, "sleep_s": SLEEP_S}
CONTROL_CALL_S = 30.0
#: A run that takes longer than this is stuck.
PATIENCE_S, PATIENCE_PER_WAKE_S = 180.0, 3.0
_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))

clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of a client; seconds on the common clock."""

    ident: str
    sent_s: float
    first_byte_s: float


@dataclass(frozen=True, slots=True)
class Wake:
    """The parts of one wake, milliseconds."""

    arrival_to_call: float
    reply_to_byte: float
    engine: float
    between: float
    total: float

    @property
    def overhead(self) -> float:
        """What hotseat adds."""
        return self.arrival_to_call + self.reply_to_byte


async def ask(url: str, model: str, ident: str) -> Sent:
    """One chat request as a stream, on a connection of its own, read to its end. Raises RuntimeError on anything but 200."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 2}).encode()
    address = urlsplit(url)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\nX-Request-Id: {ident}\r\n"
    whole = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    sent_s = clock.monotonic()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(whole)
    first = await reader.read(1)
    first_byte_s = clock.monotonic()
    answer = (first + await reader.read(-1)).decode()
    writer.close()
    if " 200 " not in answer.partition("\r\n")[0] or "[DONE]" not in answer:
        raise RuntimeError(f"{ident}: {answer[:500]}")
    return Sent(ident, sent_s, first_byte_s)


# --- through hotseat --------------------------------------------------------------------------------------------------


async def put_to_sleep(daemon: GpuHouse) -> None:
    """By an operator's action, to level 1."""
    ended = await daemon.act("sleep", SLEEPER, level=1)
    found = await daemon.model(SLEEPER)
    if found["phase"] != "asleep":
        raise RuntimeError(f"{SLEEPER} is {found['phase']} instead of asleep: {ended}")


async def start_afresh(daemon: GpuHouse) -> None:
    """A new process, awake."""
    await daemon.act("stop", SLEEPER, now=True)
    await ask(daemon.url, SLEEPER, "start")


def part(sent: Sent, log: Sequence[dict[str, Any]]) -> Wake:
    """Take one wake apart with the engine's own log. Raises RuntimeError when it is not one wake and then the request."""
    [served] = [entry for entry in log if entry["headers"].get("x-request-id") == sent.ident]
    calls = [entry for entry in log if sent.sent_s <= entry["arrived_s"] < served["arrived_s"]]
    if not calls or [entry["path"] for entry in calls].count("/wake_up") != 1 or calls[0]["path"] != "/wake_up":
        raise RuntimeError(f"{sent.ident}: the engine was asked {[entry['path'] for entry in calls]}")
    replied_s = max(entry["answered_s"] for entry in calls)
    if not sent.sent_s < calls[0]["arrived_s"] < replied_s < served["answered_s"] < sent.first_byte_s:
        raise RuntimeError(f"{sent.ident}: served before it was awake")
    engine_s = sum(entry["answered_s"] - entry["arrived_s"] for entry in calls)
    return Wake(
        arrival_to_call=(calls[0]["arrived_s"] - sent.sent_s) * 1e3,
        reply_to_byte=(sent.first_byte_s - replied_s) * 1e3,
        engine=engine_s * 1e3,
        between=(replied_s - calls[0]["arrived_s"] - engine_s) * 1e3,
        total=(sent.first_byte_s - sent.sent_s) * 1e3,
    )


async def wakes_of_one_start(daemon: GpuHouse, bare_url: str, numbers: Sequence[int]) -> tuple[list[Wake], list[Wake]]:
    """Wakes through hotseat and by the script, in turns."""
    sent, bare = [], []
    for number in numbers:
        await put_to_sleep(daemon)
        await _control(bare_url, "/sleep?level=1")
        sent.append(await ask(daemon.url, SLEEPER, f"wake-{number}"))
        bare.append(await wake_bare(bare_url, f"bare-{number}"))
    log, bare_log = await requests_seen(daemon.engine_url(SLEEPER)), await requests_seen(bare_url)
    return [part(each, log) for each in sent], [part(each, bare_log) for each in bare]


async def crowd(daemon: GpuHouse, number: int) -> int:
    """How many wakes fifty requests at once to a sleeper bring about; all of them are answered."""
    await put_to_sleep(daemon)
    before = len(await daemon.asked(SLEEPER, "/wake_up"))
    await asyncio.gather(*(ask(daemon.url, SLEEPER, f"crowd-{number}-{n}") for n in range(CROWD)))
    return len(await daemon.asked(SLEEPER, "/wake_up")) - before


# --- without it -------------------------------------------------------------------------------------------------------


async def wake_bare(url: str, ident: str) -> Sent:
    """What somebody would do by hand."""
    begun_s = clock.monotonic()
    await _control(url, "/wake_up")
    sent = await ask(url, BARE, ident)
    return Sent(ident, begun_s, sent.first_byte_s)


async def _control(url: str, path: str) -> None:
    reply = await post(url, path, timeout_s=CONTROL_CALL_S)
    if reply.status != 200:
        raise RuntimeError(f"{path}: HTTP {reply.status}: {reply.text()}")


# --- the run ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def daemon_of(folder: Path) -> AsyncIterator[GpuHouse]:
    """A daemon as in production, both models awake; at the end it stops them, and no card was ever overfull."""
    world = GpuWorld(folder / "world")
    cards(world, 1)
    models = vllm(folder, world, SLEEPER, weights_gib=8, kv_gib=2, knobs=KNOBS)
    models |= vllm(folder, world, NEIGHBOUR, weights_gib=8, kv_gib=2, knobs=KNOBS)
    daemon = GpuHouse(folder, world, models)
    daemon.log_level = "info"
    try:
        await daemon.start()
        await ask(daemon.url, NEIGHBOUR, "start")
        yield daemon
        await daemon.stop()
    finally:
        daemon.sweep()
    if world.oom_log() or daemon.overfull():
        raise RuntimeError(f"the card was too full: {world.oom_log()} {daemon.overfull()}")


def bare_engine(folder: Path) -> AbstractContextManager[VllmProcess]:
    """The same engine without a daemon, on a card of its own."""
    world = GpuWorld(folder / "own")
    cards(world, 1)
    behaviour = replace(HEALTHY, awake_bytes=11 * GIB, residue_bytes={1: GIB}, wake_s=WAKE_S, sleep_s=SLEEP_S)
    return fake_vllm(folder, "--enable-sleep-mode", knobs=VllmKnobs(behaviour=behaviour), world=world)


async def run(wakes: int, crowds: int) -> dict[str, Any]:
    """One run; figures in milliseconds. About half a second per wake."""
    load = os.getloadavg()[0]  # of other programs: without a quiet machine only the ratios mean anything
    taken: list[Wake] = []
    bare: list[Wake] = []
    with tempfile.TemporaryDirectory() as name:
        async with asyncio.timeout(PATIENCE_S + wakes * PATIENCE_PER_WAKE_S), daemon_of(Path(name)) as daemon:
            for first in range(0, wakes, WAKES_PER_START):
                await start_afresh(daemon)
                with ExitStack() as stack:
                    engine = await asyncio.to_thread(stack.enter_context, bare_engine(Path(name)))
                    numbers = range(first, min(first + WAKES_PER_START, wakes))
                    ours, theirs = await wakes_of_one_start(daemon, engine.url, numbers)
                taken += ours
                bare += theirs
            await start_afresh(daemon)
            woke = [await crowd(daemon, number) for number in range(crowds)]
    return figures_of(taken, bare, woke, load)


def figures_of(taken: Sequence[Wake], bare: Sequence[Wake], woke: Sequence[int], load: float) -> dict[str, Any]:
    """What is printed and kept."""
    parts = ("arrival_to_call", "reply_to_byte", "overhead", "engine", "between", "total")
    ours = {name: _spread([getattr(wake, name) for wake in taken]) for name in parts}
    theirs = {name: _spread([getattr(wake, name) for wake in bare]) for name in ("overhead", "engine", "total")}
    ratios = {name: round(ours["total"][name] / theirs["total"][name], 3) for name in ("p50", "p99")}
    return {
        "load_1m_before": round(load, 2),
        "load_1m_after": round(os.getloadavg()[0], 2),
        "wakes": len(taken),
        "limit_ms": LIMIT_MS,
        "engine_wakes_in_s": WAKE_S,
        "hotseat_ms": ours,
        "script_ms": theirs,
        "total_ratio_to_script": ratios,
        "crowd": {"requests_at_once": CROWD, "wakes_each": list(woke)},
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {name: round(percentile(values, share), 2) for name, share in _SHARES}


def held(figures: dict[str, Any]) -> bool:
    """Whether the bars are met."""
    return figures["hotseat_ms"]["overhead"]["p99"] <= LIMIT_MS and set(figures["crowd"]["wakes_each"]) <= {1}


def show(figures: dict[str, Any]) -> None:
    """For people."""
    print(f"{figures['wakes']} wakes, ms       " + "".join(f"{name:>9}" for name, _ in _SHARES))
    for who in ("hotseat", "script"):
        for name, row in figures[f"{who}_ms"].items():
            print(f"{who:8}{name.replace('_', ' '):16}" + "".join(f"{row[share]:9.2f}" for share, _ in _SHARES))
    ratios = figures["total_ratio_to_script"]
    print(f"request to first byte, hotseat against the script: p50 x{ratios['p50']}, p99 x{ratios['p99']}")
    print(f"{CROWD} requests at once to a sleeper: wakes {figures['crowd']['wakes_each']}")
    print(f"bar: overhead p99 at most {LIMIT_MS:g} ms, one wake per crowd: {'held' if held(figures) else 'MISSED'}")


def main() -> int:
    """Command line; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wakes", type=int, default=500)
    parser.add_argument("--crowds", type=int, default=10, help=f"how often {CROWD} requests at once ask a sleeper")
    parser.add_argument("--quick", action="store_true", help="20 wakes and one crowd")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/wake_overhead.json")
    arguments = parser.parse_args()
    wakes, crowds = (20, 1) if arguments.quick else (arguments.wakes, arguments.crowds)
    if wakes < 1 or not 0 <= crowds < WAKES_PER_START:
        parser.error(f"--wakes must be at least 1, --crowds from 0 to {WAKES_PER_START - 1}")
    figures = asyncio.run(run(wakes, crowds))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    if arguments.save:
        save_record("wake_overhead", figures, at_s=clock.wall())
    return 0 if held(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
