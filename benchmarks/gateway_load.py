"""Load for the gateway benchmark: closed-loop requests, and paced streams whose chunks carry their time of writing."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import cast

_TIMES = re.compile(rb'"t":(\d{17})').findall


def request_bytes(model: str, port: int, *, stream: bool) -> bytes:
    """A chat request of usual size."""
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Tell me about foxes. " * 20}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 64, "stream": stream}).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Tally:
    """What a run saw: latencies of requests, or delays of chunks, in seconds."""

    requests: list[float] = field(default_factory=list)
    chunks: list[float] = field(default_factory=list)
    failures: int = 0


class _Client(asyncio.Protocol):
    """One connection. Requests one after the other until ``stop_s``; a stream ends with its last chunk."""

    def __init__(self, request: bytes, tally: Tally, stop_s: float, *, stream: bool) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._tally = tally
        self._stop_s = stop_s
        self._stream = stream
        self._buffer = b""
        self._sent_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        if self._transport is not None:
            self._sent_s = time.monotonic()
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._stream:
            now_ns = time.monotonic_ns()
            self._tally.chunks.extend([(now_ns - int(written)) / 1e9 for written in _TIMES(data)])
            if data.endswith(b"0\r\n\r\n") and data[-6:-5] != b"0":
                self._end()
            return
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        end = lower.find(b"\r\n", at)
        if len(body) < int(lower[at : end if end > 0 else None]):
            return
        self._buffer = b""
        self._tally.requests.append(time.monotonic() - self._sent_s)
        self._tally.failures += not head.startswith(b"HTTP/1.1 200")
        if time.monotonic() < self._stop_s:
            self._send()
        else:
            self._end()

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._tally.failures += 1
            self.done.set_result(None)


async def run_load(port: int, model: str, connections: int, *, seconds: float, stream: bool) -> Tally:
    """Keep ``connections`` busy for ``seconds`` (streams: until each has ended) and say what was seen."""
    tally = Tally()
    loop = asyncio.get_running_loop()
    request = request_bytes(model, port, stream=stream)
    stop_s = time.monotonic() + seconds
    clients: list[_Client] = []
    for number in range(connections):
        _, client = await loop.create_connection(lambda: _Client(request, tally, stop_s, stream=stream), "127.0.0.1", port)
        clients.append(client)
        if stream and number % 8 == 7:
            await asyncio.sleep(0.016)  # half a second for 256: streams of real users do not start in the same millisecond
    await asyncio.gather(*(client.done for client in clients))
    return tally
