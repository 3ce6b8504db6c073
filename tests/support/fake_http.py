"""Just enough of an HTTP/1.1 server for the fake engine: keep-alive, request bodies, streams, and who went away."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass(slots=True)
class Request:
    """One request; ``body`` is what came over the wire, byte for byte (chunks joined).

    ``arrived_s`` and ``answered_s`` (the first byte of the answer): CLOCK_MONOTONIC, which all processes share.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    outcome: str = "open"  # "done", "client_gone", "cut"
    repeated: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the query, every value of a key
    arrived_s: float = 0.0
    answered_s: float | None = None


@dataclass(slots=True)
class Connection:
    """One client. ``gone`` is set when it went away, ``request`` is the one that is answered."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    pushed_back: bytes = b""
    request: Request | None = None

    async def read_request(self) -> Request | None:
        """The next request, None when there is none."""
        try:
            head = self.pushed_back + await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        self.pushed_back = b""
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect", "").lower() == "100-continue":
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts = urlsplit(target)
        repeated = parse_qs(parts.query, keep_blank_values=True)
        query = {key: values[-1] for key, values in repeated.items()}
        body = await self._body(headers)
        self.request = Request(method, parts.path, query, headers, body, repeated=repeated, arrived_s=time.monotonic())
        return self.request

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return await self.reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readuntil(b"\r\n")
        return body

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Notice within the block when the client goes away."""

        async def watch() -> None:
            try:
                self.pushed_back = await self.reader.read(1)
            except ConnectionError:
                self.pushed_back = b""
            if not self.pushed_back:
                self.gone.set()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def pause(self, seconds: float) -> bool:
        """Wait, but not for a client that is gone; True while it is there."""
        if seconds <= 0 and not self.gone.is_set():
            await asyncio.sleep(0)
            return not self.gone.is_set()
        try:
            await asyncio.wait_for(self.gone.wait(), seconds)
        except TimeoutError:
            return True
        return False

    def send_json(self, status: int, document: object) -> None:
        """A whole reply."""
        self.send(status, json.dumps(document).encode(), "application/json")

    def send(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        """A whole reply."""
        self._note_answer()
        head = f"HTTP/1.1 {status} .\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    def _note_answer(self) -> None:
        if self.request is not None:
            self.request.answered_s = time.monotonic()

    def start_stream(self) -> None:
        """Begin a reply of server-sent events."""
        self._note_answer()
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    def event(self, data: str) -> None:
        """One event, in one chunk."""
        payload = f"data: {data}\n\n".encode()
        self.writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")

    def end_stream(self) -> None:
        """The last chunk."""
        self.writer.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Lose the connection."""
        self.writer.transport.abort()


Handler = Callable[[Request, Connection], Awaitable[None]]


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler) -> None:
    """Answer requests until the client goes away."""
    connection = Connection(reader, writer)
    try:
        while not connection.gone.is_set() and not writer.is_closing():
            request = await connection.read_request()
            if request is None:
                break
            async with connection.watched():
                await handle(request, connection)
            await writer.drain()
            if request.headers.get("connection", "").lower() == "close":
                break
    except (ConnectionError, asyncio.IncompleteReadError, ValueError):
        pass  # the client's affair
    finally:
        writer.close()
