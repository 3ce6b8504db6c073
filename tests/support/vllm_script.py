"""A vLLM whose every answer a test writes down beforehand, and that notes each call: method, path, query, and body."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from scheduler.ports.engine import Endpoint
from tests.support.gateway_rig import serving

MODEL = "org/tiny"
AWAKE, WEIGHTS_OFFLOADED, DISCARD_ALL = "awake", "weights_offloaded", "discard_all"


@dataclass(frozen=True, slots=True)
class Says:
    """One answer: ``body`` as JSON, or as it is when it is text. ``silent`` = none at all."""

    body: Any = None
    status: int = 200
    silent: bool = False


@dataclass
class Script:
    """``answers``: call -> what it gets, one after the other; the last one again and again. Anything else is not found."""

    answers: dict[str, list[Says]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)

    def on(self, call: str, *answers: Says | Any) -> "Script":
        """``call`` as in ``POST /sleep?level=1&mode=wait``. What is no :class:`Says` is the body of a 200."""
        self.answers[call] = [each if isinstance(each, Says) else Says(each) for each in answers]
        return self

    @property
    def posts(self) -> list[str]:
        """What was asked of the engine, without what was only looked at."""
        return [call.removeprefix("POST ") for call in self.calls if call.startswith("POST ")]

    async def answer(self, request: web.Request) -> web.Response:
        """The next answer of this call."""
        call = f"{request.method} {request.path_qs}"
        self.calls.append(call)
        self.bodies[call] = await request.read()
        self.keys.add(request.headers.get("Authorization", ""))
        answers = self.answers.get(call, [Says({"detail": "Not Found"}, 404)])
        now = answers.pop(0) if len(answers) > 1 else answers[0]
        if now.silent:
            await asyncio.Event().wait()
        if now.body is None or isinstance(now.body, str):
            return web.Response(text=now.body or "", status=now.status)
        return web.json_response(now.body, status=now.status)


def ready(version: str = "0.32.0") -> Script:
    """One that is awake and answers what an idle vLLM answers; tests change what matters to them."""
    script = Script()
    script.on("GET /health", "").on("GET /version", {"version": version})
    script.on("GET /v1/models", {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
    script.on("GET /is_sleeping", {"is_sleeping": False}).on("GET /is_paused", {"is_paused": False})
    script.on("GET /metrics", metrics(AWAKE))
    script.on("POST /v1/completions", text(" 8"))
    return script


def asleep(level: int = 1, version: str = "0.32.0") -> Script:
    """The same, asleep at ``level``."""
    script = ready(version).on("GET /is_sleeping", {"is_sleeping": True}).on("GET /is_paused", {"is_paused": True})
    return script.on("GET /metrics", metrics(WEIGHTS_OFFLOADED if level == 1 else DISCARD_ALL))


def metrics(state: str = "", running: object = 0, waiting: object = 0, prefix: str = "vllm:") -> str:
    """A page of metrics; ``state`` empty = all sleep states are 0, as at level 0."""
    labels = 'engine="0",model_name="org/tiny"'
    lines = [f"{prefix}num_requests_running{{{labels}}} {running}", f"{prefix}num_requests_waiting{{{labels}}} {waiting}"]
    lines.append(f'{prefix}num_requests_waiting_by_reason{{{labels},reason="capacity"}} 5.0')
    states = (AWAKE, WEIGHTS_OFFLOADED, DISCARD_ALL)
    lines += [f'{prefix}engine_sleep_state{{{labels},sleep_state="{each}"}} {1.0 if each == state else 0.0}' for each in states]
    return "\n".join(["# HELP x", *lines, ""])


def text(words: str, finish: str = "length") -> Any:
    """A completion."""
    return {"object": "text_completion", "choices": [{"index": 0, "text": words, "finish_reason": finish}]}


def vector(*numbers: float) -> Any:
    """An embedding."""
    return {"object": "list", "data": [{"index": 0, "embedding": list(numbers)}]}


def error(message: str, status: int = 500) -> Says:
    """An error as vLLM writes it."""
    return Says({"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}}, status)


@asynccontextmanager
async def playing(script: Script, version: str = "0.32.0", golden: str = "", key: str = "") -> AsyncIterator[Endpoint]:
    """``script`` on a port of this host."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.answer)
    async with serving(app) as url:
        yield Endpoint(base_url=url, served_model=MODEL, version=version, golden=golden, api_key=key)
