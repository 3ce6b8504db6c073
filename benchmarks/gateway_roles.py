"""The processes of the gateway benchmark: backend, bare TCP pass-through, and the real gateway application.

Each prints its port and serves until it is terminated.
"""

import argparse
import asyncio
import time
from typing import cast

from aiohttp import web

from scheduler.daemon.clock import SystemClock
from scheduler.gateway.app import build_app, make_runner
from tests.support.desk import Desk

CHUNKS = 200
CHUNK_EVERY_S = 0.010
MODEL = "bench"

_JSON = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1790000000,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy dog and then takes a rest in the shade."},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":21,"completion_tokens":17,"total_tokens":38}}'
)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_JSON), _JSON)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
# The time of writing travels in the chunk; the load generator subtracts it. CLOCK_MONOTONIC is the same for all processes.
_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}],"t":%017d}\n\n'
)


class Backend(asyncio.Protocol):
    """Answers a POST with 400 bytes of JSON, or with one event every 10 ms when the body asks to stream."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._left = 0
        self._next_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or self._transport is None:
            return
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        end = lower.find(b"\r\n", at)
        length = int(lower[at : end if end > 0 else None])
        if len(body) < length:
            return
        self._buffer = body[length:]
        if b'"stream": true' in body[:length]:
            self._transport.write(_STREAM_HEAD)
            self._left = CHUNKS
            self._next_s = self._loop.time()
            self._tick()
        else:
            self._transport.write(_ANSWER)

    def _tick(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._left == 0:
            self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        self._left -= 1
        event = _EVENT % time.monotonic_ns()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._next_s += CHUNK_EVERY_S
        self._loop.call_at(self._next_s, self._tick)


class _Far(asyncio.Protocol):
    """The pass-through's side towards the backend."""

    def __init__(self, near: asyncio.Transport) -> None:
        self._near = near

    def data_received(self, data: bytes) -> None:
        self._near.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._near.close()


class PassThrough(asyncio.Protocol):
    """Copies bytes both ways and looks at none of them: what any relay in this language costs at least."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._early: list[bytes] = []
        self._far: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._task = asyncio.get_running_loop().create_task(self._open(cast(asyncio.Transport, transport)))

    async def _open(self, near: asyncio.Transport) -> None:
        far, _ = await asyncio.get_running_loop().create_connection(lambda: _Far(near), "127.0.0.1", self._port)
        for data in self._early:
            far.write(data)
        self._far = far

    def data_received(self, data: bytes) -> None:
        if self._far is None:
            self._early.append(data)
        else:
            self._far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._far is not None:
            self._far.close()


async def _serve_gateway(backend_port: int) -> int:
    clock = SystemClock()
    desk = Desk(clock)
    desk.keep_records = False
    desk.add(MODEL, f"http://127.0.0.1:{backend_port}")
    runner = make_runner(build_app(desk, clock))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    return int(runner.addresses[0][1])


async def _serve(role: str, backend_port: int) -> None:
    loop = asyncio.get_running_loop()
    if role == "gateway":
        port = await _serve_gateway(backend_port)
    else:
        factory = Backend if role == "backend" else lambda: PassThrough(backend_port)
        server = await loop.create_server(factory, "127.0.0.1", 0, backlog=1024)
        port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Run one role."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["backend", "pass-through", "gateway"])
    parser.add_argument("--backend-port", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.role, arguments.backend_port))


if __name__ == "__main__":
    main()
