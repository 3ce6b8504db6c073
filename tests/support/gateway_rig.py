"""A gateway on loopback in front of real little engines: aiohttp servers, and raw sockets where an engine misbehaves."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from scheduler.daemon.clock import SystemClock
from scheduler.gateway.app import build_app, make_runner
from scheduler.gateway.metrics import GatewayMetrics
from scheduler.gateway.settings import GatewaySettings
from tests.support.desk import Desk

Respond = Callable[[web.Request, "ChatEngine"], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(app: web.Application, *, own_runner: bool = False) -> AsyncIterator[str]:
    """Run an application on a free loopback port; the base URL."""
    runner = make_runner(app, shutdown_timeout_s=0.5) if own_runner else web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway(desk: Desk, settings: GatewaySettings | None = None, metrics: GatewayMetrics | None = None) -> AsyncIterator[str]:
    """The real gateway application before a desk."""
    async with serving(build_app(desk, SystemClock(), settings, metrics), own_runner=True) as url:
        yield url


def new_desk() -> Desk:
    return Desk(SystemClock())


@dataclass
class Seen:
    """A request as an engine got it."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ChatEngine:
    """A well-behaved engine; ``respond`` replaces its answer to the three inference routes."""

    respond: Respond | None = None
    seen: list[Seen] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)  # a generation has begun
    go_on: asyncio.Event = field(default_factory=asyncio.Event)  # lets a generation that waits for it go on
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)  # the gateway closed the connection during one

    def app(self) -> web.Application:
        app = web.Application(client_max_size=256 << 20)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings"):
            app.router.add_post(path, self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(Seen(request.path_qs, dict(request.headers), body))
        self.started.set()
        try:
            if self.respond is not None:
                return await self.respond(request, self)
            return await answer(request, json.loads(body))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def engine(respond: Respond | None = None) -> AsyncIterator[tuple[ChatEngine, str]]:
    """A running :class:`ChatEngine` and its base URL."""
    chat = ChatEngine(respond)
    async with serving(chat.app()) as url:
        yield chat, url


USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 4}}


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """What a healthy engine says."""
    if request.path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, 0.5]}]
        return web.json_response({"object": "list", "model": body["model"], "data": data, "usage": USAGE})
    if body.get("stream"):
        return await stream(request, body["model"], ["Hel", "lo"])
    chat = request.path.endswith("chat/completions")
    choice = {"index": 0, "finish_reason": "stop"} | ({"message": {"role": "assistant", "content": "Hello"}} if chat else {"text": "Hello"})
    kind = "chat.completion" if chat else "text_completion"
    return web.json_response({"id": "c1", "object": kind, "created": 1, "model": body["model"], "choices": [choice], "usage": USAGE})


def chunk(model: str, text: str | None, finish: str | None = None, usage: dict[str, Any] | None = None) -> bytes:
    """One streamed event."""
    delta = {} if text is None else {"content": text}
    choices = [] if usage is not None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    event = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices, "usage": usage}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def begin_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Engine": "yes"})
    await response.prepare(request)
    return response


async def stream(request: web.Request, model: str, words: list[str]) -> web.StreamResponse:
    response = await begin_stream(request)
    for word in words:
        await response.write(chunk(model, word))
    await response.write(chunk(model, None, finish="stop"))
    await response.write(chunk(model, None, usage=USAGE))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_engine(script: Script) -> AsyncIterator[str]:
    """A server that does to each connection what ``script`` does; the connection is closed afterwards."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway hung up, as some tests want
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def dead_url() -> str:
    """A base URL where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request with a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return head, await reader.readexactly(length)


def chat_body(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}


@dataclass
class RawClient:
    """A client at the level of bytes, for what HTTP libraries hide."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, url: str) -> "RawClient":
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def post(self, path: str, body: bytes, **headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def chunk(self) -> bytes:
        """The next piece of a chunked body; b"" at its end."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def close(self, *, reset: bool = False) -> None:
        if reset:
            self.writer.transport.abort()
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass  # it was reset, which is what the caller wants
