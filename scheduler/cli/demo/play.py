"""The script of the demo, and its summary."""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from scheduler.cli.demo.house import MODELS, House, curl_lines, make_house
from scheduler.cli.demo.traffic import Client, Tally
from scheduler.cli.demo.witness import Witness
from scheduler.daemon.clock import SystemClock
from scheduler.daemon.demo_model import demo_model
from scheduler.domain.errors import HotseatError
from scheduler.domain.units import human_bytes
from scheduler.telemetry.tasks import TaskScope

SMALL, MIDDLE, LARGE = MODELS


def run(args: argparse.Namespace) -> int:
    """Play it; 0 only if every request was answered, memory stayed in its budget and the restart started nothing."""
    folder = Path(tempfile.mkdtemp(prefix="hotseat-demo-"))
    keep = bool(args.keep)
    try:
        return asyncio.run(_play(folder, keep=keep, as_json=bool(args.json)))
    except HotseatError as error:
        sys.stderr.write(f"hotseat demo: {error.message}\n" + (f"  fix: {error.fix}\n" if error.fix else ""))
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("hotseat demo: interrupted; its engines were stopped\n")
        return 130
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def _play(folder: Path, *, keep: bool, as_json: bool) -> int:
    me = asyncio.current_task()
    if me is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    clock = SystemClock()
    begun = clock.monotonic()
    tally = Tally()
    teller = Witness("", clock, begun, quiet=as_json)
    teller.say("looking for the model file (250 MB, put together once and kept in the cache)")
    model = await asyncio.to_thread(demo_model, lambda text: teller.say(f"... {text}"))
    house = make_house(folder, model)
    witness = Witness(house.url, clock, begun, quiet=as_json)
    scope = TaskScope("demo")
    left_running = False
    try:
        witness.say(f"starting the daemon on {house.url}; its configuration is {house.config}")
        witness.say(f"serving after {await house.start():.1f} s; three models, none running, a budget for one or two of them")
        scope.spawn(witness.run(), "witness")
        script = _Script(house, witness, Client(house.url, tally))
        same = await script.play()
        await witness.look()
        problems = _problems(tally, witness, same)
        _summary(witness, tally, same, problems, as_json=as_json)
        if keep and not problems:
            left_running = True
            _leave(house)
        return 0 if not problems else 1
    finally:
        await scope.aclose()
        if not left_running:
            witness.say("stopping the engines and the daemon")
            await house.end()


class _Script:
    """What happens, in order."""

    def __init__(self, house: House, witness: Witness, client: Client) -> None:
        self._house = house
        self._witness = witness
        self._client = client

    def _title(self, text: str) -> None:
        self._witness.say("")
        self._witness.say(f"== {text}")

    async def play(self) -> bool:
        """Returns whether the engines lived through the daemon's death."""
        chat = self._client.chat
        self._title("one request to each model; each is started when it is asked for, and makes room by itself")
        for model in MODELS:
            await chat(model, "Say hello.")
        await self._table()
        self._title("twelve requests at once, to all three: they are held, grouped and served in turns")
        await asyncio.gather(*(chat(model, f"Count to {n}.") for n in range(4) for model in MODELS))
        await self._table()
        self._title("a stream on one model while another one is asked for: the stream ends whole, then they switch")
        await asyncio.gather(chat(LARGE, "Tell me a long story.", stream=True, max_tokens=96), self._soon(chat(SMALL, "Me too, please.")))
        await self._table()
        same = await self._kill_and_return()
        self._title("streams to all three after the restart")
        await asyncio.gather(*(chat(model, "Go on.", stream=True, max_tokens=24) for model in MODELS))
        await self._table()
        return same

    async def _soon(self, request: Any) -> None:
        await self._witness.look()
        await request

    async def _table(self) -> None:
        await self._witness.look()
        self._witness.show()

    async def _kill_and_return(self) -> bool:
        """kill -9 of the daemon; the next one must find the engines warm and start nothing."""
        self._title("kill -9 of the daemon, with an engine awake")
        await self._client.chat(SMALL, "Are you there?")
        await self._witness.look()
        before = {m: p for m, p in self._witness.seen.pids.items() if p is not None}
        starts = sum(self._witness.seen.starts.values())
        self._house.kill()
        if self._house.process is not None:
            await self._house.process.wait()
        alive = [m for m, pid in before.items() if _alive(pid)]
        self._witness.say(f"the daemon is gone; still running: {', '.join(alive)}. Starting it again")
        self._witness.say(f"serving again after {await self._house.start():.1f} s")
        await self._client.chat(SMALL, "And now?")
        await self._witness.look()
        after = self._witness.seen.pids.get(SMALL)
        same = after is not None and after == before.get(SMALL) and sum(self._witness.seen.starts.values()) == starts
        self._witness.say(
            f"{SMALL} answered from the same process ({after}): nothing was started" if same else "it had to be started again"
        )
        await self._table()
        return same


def _alive(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except OSError:
        return False
    return pid is not None


def _problems(tally: Tally, witness: Witness, same: bool) -> list[str]:
    found = [f"failed: {line}" for line in tally.failed]
    found += [f"over the budget: {line}" for line in witness.seen.over]
    if not same:
        found.append("the engine did not live through the daemon's death")
    if sum(witness.seen.starts.values()) < len(MODELS):
        found.append("not every model was started")
    if tally.tokens <= 0:
        found.append("no tokens came")
    return found


def _summary(witness: Witness, tally: Tally, same: bool, problems: list[str], *, as_json: bool) -> None:
    seen = witness.seen
    switches = max(0, sum(seen.starts.values()) - 1)
    longest = max(tally.waits, default=0.0)
    facts: dict[str, object] = {
        "requests": tally.sent,
        "failures": len(tally.failed),
        "tokens": tally.tokens,
        "starts": dict(seen.starts),
        "switches": switches,
        "longest_wait_s": round(longest, 2),
        "most_used_bytes": seen.most_used_bytes,
        "most_claimed_bytes": seen.most_claimed_bytes,
        "budget_bytes": seen.budget_bytes,
        "samples": seen.samples,
        "engine_survived_kill": same,
        "problems": problems,
    }
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    share = 100 * seen.most_used_bytes / max(1, seen.budget_bytes)
    memory = f"{human_bytes(seen.most_used_bytes)} measured, {human_bytes(seen.most_claimed_bytes)} claimed,"
    lines = [
        "",
        "== summary",
        f"requests       {tally.sent}, {len(tally.failed)} failed, {tally.tokens} tokens",
        f"switches       {switches} (starts: {', '.join(f'{m} {n}' for m, n in seen.starts.items())})",
        f"longest wait   {longest:.1f} s",
        f"most memory    {memory} of {human_bytes(seen.budget_bytes)} ({share:.0f} %), {seen.samples} samples",
        f"kill -9        {'the engine kept running and was adopted' if same else 'the engine was lost'}",
        *(f"PROBLEM        {p}" for p in problems),
        "all held" if not problems else "NOT all held",
    ]
    for line in lines:
        witness.say(line)


def _leave(house: House) -> None:
    sys.stdout.write("\nThe daemon keeps running. Try:\n")
    for line in curl_lines(house):
        sys.stdout.write(f"  {line}\n")
    pid = house.process.pid if house.process is not None else 0
    sys.stdout.write(f"\nTo end it and its engines: kill {pid}\n")
