"""What the fake vLLM says, and the requests that are under way in it.

Its answers depend on the model and the prompt alone, so that a golden answer can be compared. Nonsense is "!".
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.engine_life import EngineLife, Fate, Stage
from tests.support.fake_http import Connection

LOOK_S = 0.005
Usage = dict[str, int]


@dataclass(slots=True, eq=False)
class Flight:
    """One request inside."""

    connection: Connection
    running: bool = False  # else it waits
    streaming: bool = False  # its headers were sent
    aborted: bool = False


@dataclass(slots=True)
class Traffic:
    """All requests inside. ``draining``: those that run may go on although the scheduler is paused."""

    life: EngineLife
    flights: set[Flight] = field(default_factory=set)
    draining: bool = False
    shown: tuple[int, int] = (0, 0)  # running and waiting, as last told by the scheduler

    @property
    def moves(self) -> bool:
        """Whether the scheduler takes steps."""
        return self.draining or not self.life.paused

    def running(self) -> list[Flight]:
        """Those that were begun."""
        return [flight for flight in self.flights if flight.running]

    def abort(self) -> int:
        """All of them end now; how many."""
        for flight in self.flights:
            flight.aborted = True
        return len(self.flights)

    def gauges(self, *, stale: bool) -> tuple[int, int]:
        """Running and waiting. A scheduler that is paused does not tell."""
        if not stale or self.moves:
            begun = len(self.running())
            self.shown = begun, len(self.flights) - begun
        return self.shown

    async def admitted(self, flight: Flight, ask: Callable[[], Fate]) -> Fate | None:
        """Wait for its turn; None when its client went away, or it was aborted while it waited."""
        while (fate := ask()) is Fate.QUEUED:
            self.gauges(stale=True)
            if not await flight.connection.pause(LOOK_S) or flight.aborted:
                return None
        flight.running = fate in (Fate.ANSWERED, Fate.GARBAGE)
        return fate

    async def step(self, flight: Flight, seconds: float) -> bool:
        """The time of one token, and as long as the scheduler stands still; False = its client went away, or it was aborted."""
        self.gauges(stale=True)
        until_s = time.monotonic() + seconds * self.life.slowness
        while not flight.aborted:
            left_s = until_s - time.monotonic()
            steps = self.moves and (self.draining or self.life.stage in (Stage.AWAKE, Stage.FALLING_ASLEEP))
            if left_s <= 0 and steps:
                return await flight.connection.pause(0)
            if not await flight.connection.pause(min(max(left_s, LOOK_S), LOOK_S * 4)):
                return False
        return False


class TooLong(ValueError):
    """More tokens are asked for than there is room for."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request for text. Raises ValueError from :meth:`of` with what vLLM would answer."""

    prompt: str
    chat: bool
    stream: bool
    count: int  # tokens of the answer
    reason: str  # why it ends after them
    usage_in_stream: bool
    prompt_tokens: int

    @classmethod
    def of(cls, body: dict[str, Any], *, chat: bool, spoken: int, context: int | None) -> "Question":
        """From a body; ``spoken`` is how much this model says by itself."""
        asked = body.get("messages" if chat else "prompt")
        if asked is None:
            raise ValueError(f"1 validation error:\n  Field required: body.{'messages' if chat else 'prompt'}")
        prompt = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True)
        prompt_tokens = len(asked) if isinstance(asked, list) and not chat else max(1, len(prompt.split()))
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or (None if chat else 16)
        if context is not None and prompt_tokens + (limit or 0) > context:
            text = f"This model's maximum context length is {context} tokens. However, your request has {prompt_tokens} input tokens"
            raise TooLong(f"{text} and asks for {limit}. Please reduce the length.")
        natural = math.inf if body.get("ignore_eos") else spoken
        count = int(min(natural, limit if limit is not None else spoken))
        reason = "length" if limit is not None and count == limit else "stop"
        options = body.get("stream_options") or {}
        return cls(prompt, chat, bool(body.get("stream")), count, reason, bool(options.get("include_usage")), prompt_tokens)

    def word(self, model: str, number: int, *, garbage: bool) -> str:
        """The token at a place of the answer."""
        if garbage:
            return "!"
        digest = hashlib.sha256(f"{model}\0{self.prompt}\0{number}".encode()).hexdigest()
        return f" {digest[:4]}"

    def usage(self, sent: int) -> Usage:
        """Tokens in and out."""
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": sent, "total_tokens": self.prompt_tokens + sent}


def vector(model: str, text: str, dimensions: int, *, garbage: bool) -> list[float]:
    """A direction that depends on model and text."""
    salt = "\0garbage" if garbage else ""
    raw = [hashlib.sha256(f"{model}\0{text}\0{n}{salt}".encode()).digest()[0] / 127.5 - 1.0 for n in range(dimensions)]
    length = math.hypot(*raw) or 1.0
    return [each / length for each in raw]


def error(status: int, message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """An error in vLLM's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
