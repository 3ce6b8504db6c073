"""Watches the demo from outside: status twice a second, every switch with its reason, the most memory ever held."""

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from scheduler.cli.render.facts import View
from scheduler.cli.render.status import render_status
from scheduler.ports.clock import Clock

EVERY_S = 0.4
SHOWN = frozenset(
    {"move", "started", "stopped", "adopted", "draining", "engine_failed", "model_failed", "memory_not_freed", "shed", "orphan"}
)


@dataclass(slots=True)
class Seen:
    """Over the whole demo."""

    most_used_bytes: int = 0
    most_claimed_bytes: int = 0
    budget_bytes: int = 0
    samples: int = 0
    over: list[str] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    pids: dict[str, int | None] = field(default_factory=dict)


class Witness:
    """See the module. Survives the daemon: while it is away, it just sees nothing."""

    def __init__(self, url: str, clock: Clock, begun_s: float, *, quiet: bool) -> None:
        self._url = f"{url}/control/v1"
        self._clock = clock
        self._begun_s = begun_s
        self._quiet = quiet
        self._after = 0
        self.seen = Seen()
        self.status: dict[str, Any] | None = None

    def say(self, text: str) -> None:
        """A line with the time since the demo began; from any thread."""
        self._write(f"{self._clock.monotonic() - self._begun_s:6.1f}s  {text}\n")

    def show(self) -> None:
        """The status table as it stands."""
        if self.status is not None and not self._quiet:
            lines = render_status(self.status, "demo", View(now=self._clock.wall(), columns=100))
            self._write("".join(f"         | {line}\n" for line in lines))

    def _write(self, text: str) -> None:
        if self._quiet:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # the reader went away (`| head`): what was started must be ended all the same
            self._quiet = True

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """One look at status and events."""
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:
                async with client.get(f"{self._url}/status") as answer:
                    self._measure(await answer.json())
                async with client.get(f"{self._url}/events", params={"after": str(self._after), "limit": "100"}) as answer:
                    self._tell((await answer.json())["items"])
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.status = None

    def _measure(self, status: dict[str, Any]) -> None:
        self.status = status
        self.seen.samples += 1
        for device in status["devices"]:
            used, claimed, total = device["used_bytes"] or 0, device["claimed_bytes"], device["total_bytes"]
            self.seen.budget_bytes = total
            self.seen.most_used_bytes = max(self.seen.most_used_bytes, used - (device["foreign_bytes"] or 0))
            self.seen.most_claimed_bytes = max(self.seen.most_claimed_bytes, claimed)
            if max(used, claimed) > total:
                self.seen.over.append(f"{used} used, {claimed} claimed of {total} bytes")
        for model in status["models"]:
            self.seen.pids[model["name"]] = model["instances"][0]["pid"] if model["instances"] else None

    def _tell(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            self._after = max(self._after, event["seq"])
            if event["kind"] == "started":
                self.seen.starts[event["subject"]] = self.seen.starts.get(event["subject"], 0) + 1
            if event["kind"] in SHOWN:
                self.say(f"[{event['kind']}] {event['text']}")
