"""The one response of a request: begun at most once, by the engine's head or by the first comment of a long wait."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from aiohttp import web

from scheduler.domain.errors import HotseatError
from scheduler.gateway.errors import envelope, retry_headers, rule_of
from scheduler.gateway.headers import to_client
from scheduler.upstream.sse import event
from scheduler.upstream.wire import Headers

T = TypeVar("T")

_EVENT_STREAM = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")]


_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger: on, for no time at all


class BrokenOff(ConnectionResetError):
    """We break the client's connection, because a cut answer must not look like a whole one."""


class Answer:
    """What the client gets.

    ``status`` is what it was told, or would have been; ``relaying`` turns true with the first byte of the engine's
    answer that went out, from where on nothing can be tried again.
    """

    def __init__(self, request: web.Request, request_id: str) -> None:
        self.status = 200
        self.relaying = False
        self.headers = {"x-request-id": request_id}
        self._request = request
        self._response: web.StreamResponse | None = None
        self._comment_every_s: float | None = None
        self._comment_due_s = 0.0
        self._loop = asyncio.get_running_loop()

    @property
    def begun(self) -> bool:
        """Whether status and headers are out."""
        return self._response is not None

    def comment_every(self, seconds: float) -> None:
        """From now on, :meth:`patiently` tells a waiting client every so often that it still waits."""
        self._comment_every_s = seconds
        self._comment_due_s = self._loop.time() + seconds

    async def patiently(self, wait: Callable[[], Awaitable[T]], comment: Callable[[], str]) -> T:
        """Await ``wait()``; with comments wanted, interrupt it to write one and await it anew.

        ``wait`` must survive being cancelled and called again. Raises ConnectionError when the client is gone.
        """
        if self._comment_every_s is None or self.relaying:
            return await wait()
        while True:
            timer = asyncio.timeout_at(self._comment_due_s)
            try:
                async with timer:
                    return await wait()
            except TimeoutError:
                if not timer.expired():
                    raise
            await self._write_comment(comment())

    async def begin(self, status: int, headers: Headers, length: int | None = None) -> None:
        """The engine's answer starts; a client that already got comments keeps its 200 and the stream it has."""
        self.relaying = True
        self.status = status
        if self._response is None:
            await self._start(status, headers, length)

    async def write(self, data: bytes) -> None:
        """Pass bytes on; waits while the client does not read. Raises ConnectionError when it is gone."""
        await self._out().write(data)

    async def end(self) -> web.StreamResponse:
        """The answer is complete."""
        response = self._out()
        await response.write_eof()
        return response

    async def whole(self, status: int, headers: Headers, body: bytes) -> web.StreamResponse:
        """An answer that is here in one piece."""
        self.relaying = True
        self.status = status
        response = self._response = web.Response(status=status, body=body, headers=to_client(headers, self.headers))
        return response

    async def fail(self, error: HotseatError, *, midway: bool = False) -> web.StreamResponse:
        """Tell an error: with its status when nothing is out yet, else as the last event of the stream.

        A body that is not a stream can only be broken off, so that nobody takes it for whole.
        """
        self.status = rule_of(error).status
        if self._response is None:
            return self._refuse(error)
        if self._response.content_type != "text/event-stream":
            self._reset()
            raise BrokenOff("the engine's answer was cut after a part of it had been passed on")
        return await self.last_event(envelope(error), midway=midway)

    async def last_event(self, payload: bytes, *, midway: bool = False) -> web.StreamResponse:
        """End a stream with one more event; ``midway``: an unfinished event has to be closed first."""
        await self._out().write((b"\n\n" if midway else b"") + event(payload))
        return await self.end()

    def _refuse(self, error: HotseatError) -> web.Response:
        headers = {**self.headers, **retry_headers(error)}
        return web.Response(status=self.status, body=envelope(error), headers=headers, content_type="application/json")

    async def _write_comment(self, text: str) -> None:
        if self._response is None:
            await self._start(200, _EVENT_STREAM, None)
        await self._out().write(f": {text}\n\n".encode())
        self._comment_due_s = self._loop.time() + (self._comment_every_s or 0.0)

    async def _start(self, status: int, headers: Headers, length: int | None) -> None:
        response = web.StreamResponse(status=status, headers=to_client(headers, self.headers))
        if length is not None:
            response.content_length = length
        await response.prepare(self._request)
        self._response = response

    def _reset(self) -> None:
        """End the connection with a reset: a mere close is how a whole answer ends for clients of HTTP/1.0."""
        transport = self._request.transport
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()

    def _out(self) -> web.StreamResponse:
        if self._response is None:
            raise RuntimeError("nothing has been begun")
        return self._response


def error_event(status: int, body: bytes) -> bytes:
    """An engine's own error answer as the payload of an event, for a client that already has its 200."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    error = found.get("error", found) if isinstance(found, dict) else None
    fields: Mapping[str, object] = error if isinstance(error, dict) else {}
    message = fields.get("message") or fields.get("detail") or body[:500].decode("utf-8", "replace")
    kind = fields.get("type") or ("invalid_request_error" if status < 500 else "server_error")
    told = {"message": f"The engine answered {status}: {message}", "type": kind, "param": fields.get("param"), "code": "engine_error"}
    return json.dumps({"error": told}).encode()
