"""A real daemon for one story: fake engines as real processes, a witness of its memory, its books, and nothing left behind."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from adapters.engines.http import get
from adapters.procfs.memory import read_held_bytes
from adapters.procfs.processes import TOKEN_VARIABLE, read_stat
from tests.support.behaviour import Behaviour
from tests.support.fake_adapter import SCRIPT, requests_seen, tell
from tests.support.fake_knobs import Knobs, Speech
from tests.support.real import MIB, RealDaemon

#: What the fake's interpreter takes besides the memory that it is told to hold.
FAKE_BYTES = 24 * MIB
EMPTY = frozenset({"stopped", "backoff", "failed"})
STABLE = EMPTY | {"awake", "asleep"}
LOOK_S = 0.1


def fake(
    name: str, *, mib: int = 20, device: str = "cpu0", speech: Speech | None = None, knobs: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, dict[str, Any]]:
    """One entry of ``models``: a fake engine that holds ``mib`` of memory on ``device``.

    ``knobs`` are fields of Behaviour, or of Knobs beside it; ``more`` are keys of the configuration.
    """
    told = dict(knobs or {})
    besides = {key: told.pop(key) for key in ("starts_file", "erases_environment", "child_session", "says") if key in told}
    behaviour = Behaviour(**{"start_s": 0.05, "listens_early": True, "levels": (), "awake_bytes": mib * MIB, "residue_bytes": {}, **told})
    chosen = Knobs(behaviour=behaviour, speech=speech or Speech(), **besides)
    command = [sys.executable, "-I", "-S", str(SCRIPT), "--port", "${port}", "--model", name, "--knobs", chosen.to_json()]
    entry = {
        "engine": "command",
        "command": command,
        "devices": {"ids": [device]},
        "footprint": {"weights": mib * MIB, "overhead": FAKE_BYTES, "kv_min": 0},
        **more,
    }
    return {name: entry}


def sleeper(name: str, *, mib: int = 20, **more: Any) -> dict[str, dict[str, Any]]:
    """A fake engine that can sleep at level 1, where it keeps nothing but its interpreter."""
    steps: dict[str, Any] = {"sleep_steps": [{"post": "/sleep?level=1"}], "wake_steps": [{"post": "/wake_up"}]}
    knobs = {"levels": (1,), "sleep_s": 0.1, "wake_s": 0.1, **more.pop("knobs", {})}
    footprint = {"weights": mib * MIB, "overhead": FAKE_BYTES, "kv_min": 0, "residue": FAKE_BYTES}
    return fake(name, mib=mib, knobs=knobs, footprint=footprint, **steps, **more)


class House(RealDaemon):
    """A daemon whose journal and engines a test may look into."""

    # --- the journal ------------------------------------------------------------------------------------------------

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Rows of the database as it stands, read from outside."""
        with closing(sqlite3.connect(f"file:{self.state_dir / 'hotseat.db'}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, values)]

    def launches(self, model: str) -> list[dict[str, Any]]:
        """Launch records of a model, oldest first."""
        return self.rows("SELECT * FROM launches WHERE model = ? ORDER BY id", model)

    async def told(self, count: int, *kinds: str, within_s: float = 10.0) -> list[tuple[str, str]]:
        """(kind, subject) of the events of these kinds, in order, once there are ``count``: they are written behind the facts."""
        found: list[tuple[str, str]] = []
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = [(e["kind"], e["subject"]) for e in await self.events() if e["kind"] in kinds]
                    if len(found) >= count:
                        return found
                    await asyncio.sleep(LOOK_S / 2)
        except TimeoutError:
            raise AssertionError(f"{count} events of {kinds} wanted, there are {found}") from None

    # --- engines ----------------------------------------------------------------------------------------------------

    def engine_url(self, model: str) -> str:
        """Where the newest engine of a model listens."""
        return f"http://127.0.0.1:{self.launches(model)[-1]['port']}"

    async def pid(self, model: str) -> int:
        """Process id of a model's engine."""
        found: int = (await self.model(model))["instances"][0]["pid"]
        return found

    async def asked(self, model: str, path: str = "/v1/chat/completions") -> list[dict[str, Any]]:
        """Requests for ``path`` that the newest engine of a model got."""
        return [request for request in await requests_seen(self.engine_url(model)) if request["path"] == path]

    async def tell(self, model: str, **speech: Any) -> None:
        """Change how a model's engine talks."""
        await tell(self.engine_url(model), **speech)

    async def children(self, model: str) -> list[int]:
        """Children of a model's engine, as it says itself."""
        reply = await get(self.engine_url(model), "/admin/state", timeout_s=5.0)
        found: list[int] = reply.json()["children"]
        return found

    # --- books ------------------------------------------------------------------------------------------------------

    async def settled(self, within_s: float = 30.0) -> dict[str, Any]:
        """The status once no model is on its way anywhere."""
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(within_s):
                while True:
                    status = await self.status()
                    if all(model["phase"] in STABLE for model in status["models"]):
                        return status
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            phases = {model["name"]: (model["phase"], model["reason"]) for model in status.get("models", [])}
            raise AssertionError(f"not settled: {phases}\n{self.output()}") from None

    async def check_books(self) -> None:
        """Claims and processes tell the same story: who holds a claim lives, who lives holds a claim, nobody else is there."""
        status = await self.settled()
        seated, tokens = set(), set()
        for model in status["models"]:
            if model["phase"] in EMPTY:
                assert model["claimed_bytes"] == 0, model
                assert model["instances"] == [], model
            else:
                [instance] = model["instances"]
                assert model["claimed_bytes"] > 0, model
                assert alive(instance["pid"]), model
                seated.add(instance["pid"])
                tokens.add(self.launches(model["name"])[-1]["token"])
        for device in status["devices"]:
            claims = sum(m["claimed_bytes"] // len(m["devices"]) for m in status["models"] if device["id"] in m["devices"])  # gangs: equal
            assert device["claimed_bytes"] == claims, device
        found = {pid: read_stat(pid) for pid in self.engine_processes()}
        strays = [pid for pid, stat in found.items() if stat is not None and stat.session not in seated and token_of(pid) not in tokens]
        assert not strays, f"processes of no seated model: {strays}\n{self.output()}"

    def engine_processes(self) -> set[int]:
        """Everything alive that a launch of this state directory brought about, with or without its environment."""
        found = set(self.processes())
        stats = [stat for stat in (read_stat(int(e.name)) for e in Path("/proc").iterdir() if e.name.isdigit()) if stat is not None]
        ticks = {stat.pid: stat.start_ticks for stat in stats}
        launched = self.rows("SELECT pid, start_ticks FROM launches WHERE pid IS NOT NULL")
        # A number that was given to another process since leads nobody of ours any more.
        sessions = {row["pid"] for row in launched if ticks.get(row["pid"], row["start_ticks"]) == row["start_ticks"]}
        return found | {stat.pid for stat in stats if stat.session in sessions and not stat.dead}

    def sweep(self) -> list[int]:
        """Kill whatever is left, the daemon included; returns the engines' processes that were there."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        try:
            left = self.engine_processes()
        except sqlite3.Error:
            left = set(self.processes())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return sorted(left)


async def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Look at something of this machine again and again until it holds."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(LOOK_S / 10)


def alive(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    stat = read_stat(pid)
    return stat is not None and not stat.dead


def token_of(pid: int) -> str | None:
    """The launch that a process belongs to by its own word; None when it says none."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    name = TOKEN_VARIABLE.encode() + b"="
    return next((word.removeprefix(name).decode() for word in words if word.startswith(name)), None)


class Witness:
    """Looks at the status ten times a second and at the processes themselves; keeps every look that breaks the budget."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._task: asyncio.Task[None] | None = None
        self.looks = 0
        self.wrong: list[str] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        await until(lambda: bool(self._house.url))
        async with aiohttp.ClientSession() as client:
            while True:
                try:
                    async with client.get(f"{self._house.url}/control/v1/status") as answer:
                        self._judge(await answer.json())
                except aiohttp.ClientError:
                    pass  # the story has killed the daemon, or is just ending it
                self._measure()
                await asyncio.sleep(LOOK_S)

    def _judge(self, status: dict[str, Any]) -> None:
        self.looks += 1
        for device in status["devices"]:
            usable = device["total_bytes"] - device["headroom_bytes"] - device["reserved_bytes"]
            own = (device["used_bytes"] or 0) - (device["foreign_bytes"] or 0)
            if device["claimed_bytes"] > usable or own > device["total_bytes"]:
                self.wrong.append(f"{device['id']}: {own} used and {device['claimed_bytes']} claimed of {usable}")

    def _measure(self) -> None:
        held = sum(read_held_bytes(pid) or 0 for pid in self._house.engine_processes())
        budget = sum(self._house.devices.values())
        if held > budget:
            self.wrong.append(f"the engines hold {held} bytes of {budget}")


@asynccontextmanager
async def house(
    folder: Path, models: Mapping[str, Mapping[str, Any]], devices: Mapping[str, int], *, within_s: float = 50.0, **settings: Any
) -> AsyncIterator[House]:
    """A running daemon. At the end: its books are right, it stops everything, and at no look the budget was exceeded.

    A story that is not over after ``within_s`` fails. (An event loop swallows what pytest's own time limit raises in a callback.)
    """
    daemon = House(folder, models, devices, **settings)
    witness = Witness(daemon)

    def check() -> None:
        assert witness.wrong == []
        assert witness.looks > 0

    async with witness, lived_in(daemon, within_s, check):
        yield daemon


@asynccontextmanager
async def lived_in(daemon: House, within_s: float, check: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """From the start of a daemon to its end, all within ``within_s``: its books are right, it stops everything, and ``check`` passes."""
    try:
        async with asyncio.timeout(within_s):
            await daemon.start()
            yield
            await daemon.check_books()
            await daemon.stop()
        assert daemon.engine_processes() == set()
        check()
    except BaseException:
        sys.stderr.write(f"--- the daemon's own words\n{daemon.output()}\n")
        raise
    finally:
        daemon.sweep()
        if daemon.process is not None:
            await daemon.process.wait()


# --- what streams said ----------------------------------------------------------------------------------------------


def events_of(text: str) -> list[Any]:
    """Payloads of a stream of server-sent events: parsed, with "[DONE]" as it is."""
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in found]


def words_of(events: Iterable[Any]) -> list[str]:
    """The words that a chat stream brought."""
    deltas = (event["choices"][0]["delta"] for event in events if isinstance(event, dict) and event.get("choices"))
    return "".join(delta.get("content", "") for delta in deltas).split()
