"""One TCP connection to an engine: flow control both ways, reads that survive a cancelled waiter."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from scheduler.upstream.errors import EngineLost
from scheduler.upstream.wire import ResponseParser, WireError

#: Body bytes that may pile up here before the engine is told to wait (a slow client is the usual cause).
HIGH_WATER_BYTES = 256 << 10
LOW_WATER_BYTES = 64 << 10
#: A large request body is handed to the socket in slices, so that one write never copies 64 MiB at once.
SLICE_BYTES = 256 << 10


class Connection(asyncio.Protocol):
    """Carries one exchange at a time: ``begin``, ``head``, ``read`` until it returns b"", then again.

    The request goes out as fast as the engine reads, without anybody waiting for it. ``head`` and ``read`` may be
    cancelled and called again; nothing is lost. Both raise :class:`EngineLost` once the connection broke before the
    response was complete.
    """

    __slots__ = (
        "_loop",
        "_lost",
        "_on_idle_lost",
        "_parser",
        "_paused",
        "_pieces",
        "_queued",
        "_reading",
        "_sent",
        "_transport",
        "_unsent",
        "_wake",
        "home",
        "idle_since_s",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, on_idle_lost: Callable[["Connection"], None]) -> None:
        self._loop = loop
        self._on_idle_lost = on_idle_lost
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None  # None while idle
        self._pieces: deque[bytes] = deque()
        self._queued = 0
        self._reading = True
        self._unsent: Iterator[memoryview] | None = None  # None: all is sent, or nobody wants the rest
        self._sent = False
        self._paused = False
        self._wake: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self.idle_since_s = 0.0
        self.home: list[Connection] | None = None

    # --- what the exchange calls ---------------------------------------------------------------------------------

    def begin(self, parts: Iterable[bytes | memoryview]) -> None:
        """Start an exchange on an idle connection: send a request, up to where the engine already answers."""
        self._parser = ResponseParser()
        self._pieces.clear()
        self._queued = 0
        self._sent = False
        self._unsent = _slices(parts)
        self._push()

    async def head(self) -> ResponseParser:
        """Wait for the response's status and headers."""
        while not self._answer.status:
            if self._lost is not None:
                raise self._engine_lost()
            await self._woken()
        return self._answer

    async def read(self) -> bytes:
        """The next bytes of body, all that are here; b"" after the last."""
        while not self._pieces:
            if self._answer.done:
                return b""
            if self._lost is not None:
                raise self._engine_lost()
            await self._woken()
        data = self._pieces.popleft() if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._queued = 0
        if not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        return data

    @property
    def answered(self) -> bool:
        """Whether a byte of a response has arrived in this exchange."""
        return self._parser is not None and self._parser.begun

    @property
    def usable(self) -> bool:
        """Whether another exchange may be tried on it."""
        return self._transport is not None and self._lost is None and not self._transport.is_closing()

    def finish(self) -> bool:
        """End the exchange. True: idle and usable again. False: closed, at once and with whatever was in flight."""
        parser, self._parser = self._parser, None
        if parser is not None and parser.done and parser.reusable and self._sent and not self._pieces and self.usable:
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close now; bytes not yet sent are dropped, the engine sees its client gone."""
        self._unsent = None
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:  # an idle connection has nothing to say; whatever it is, it would poison the next exchange
            self._break("the engine sent bytes nobody asked for")
            return
        try:
            self._queue(parser.feed(data))
        except WireError as error:
            self._queue(error.pieces)
            self._break(f"the engine's answer is not HTTP: {error}")
            return
        if parser.status:  # it may answer without ever reading the rest of the body
            self._unsent = None
        if self._queued > HIGH_WATER_BYTES and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
        self._notify()

    def eof_received(self) -> bool:
        if self._parser is not None:
            self._parser.eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        idle = self._parser is None
        if self._parser is not None and exc is None:
            self._parser.eof()
        self._transport = self._unsent = None
        if self._lost is None:
            self._lost = "the engine closed the connection" if exc is None else f"the connection to the engine broke: {exc}"
        self._notify()
        if idle:
            self._on_idle_lost(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._push()

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _answer(self) -> ResponseParser:
        if self._parser is None:
            raise RuntimeError("no exchange is open on this connection")
        return self._parser

    def _push(self) -> None:
        """Write until the socket has enough for now; called again when it can take more."""
        while self._unsent is not None and not self._paused and self._transport is not None and self.usable:
            piece = next(self._unsent, None)
            if piece is None:
                self._unsent = None
                self._sent = True
            else:
                self._transport.write(piece)

    def _queue(self, pieces: list[bytes]) -> None:
        self._pieces.extend(pieces)
        self._queued += sum(map(len, pieces))

    def _break(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        self.close()
        self._notify()

    def _engine_lost(self) -> EngineLost:
        return EngineLost(self._lost or "the engine closed the connection", answered=self.answered)

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _woken(self) -> None:
        self._wake = self._loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None


def _slices(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), SLICE_BYTES):
            yield view[start : start + SLICE_BYTES]
