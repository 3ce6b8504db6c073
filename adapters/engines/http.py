"""A small HTTP/1.1 client for the control calls of adapters: loopback only, everything bounded, nothing left behind.

Adapters are stateless, so a call owns its connection: opened, used once, closed. No proxy variables, no redirects, no
cookies, no keep-alive. Streams of tokens go another way (``scheduler.upstream``).
"""

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.ports.engine import Answer, Probe

MAX_BODY_BYTES = 1 << 20
MAX_HEAD_BYTES = 64 << 10
MAX_INTERIM_REPLIES = 8


class CallFailed(Temporary):
    """No usable reply; ``kind`` says how: REFUSED (nobody listens), SILENT (no reply in time), BROKEN (not HTTP, or cut)."""

    code = "engine_unreachable"

    def __init__(self, kind: Answer, message: str) -> None:
        super().__init__(message, retry_after_s=1.0, fix="look at the engine's log")
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete reply. Header names are lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON, or None when it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def text(self) -> str:
        """The body as text; bytes that are no UTF-8 are replaced."""
        return self.body.decode(errors="replace")


async def looked_at(look: Awaitable[Probe], timeout_s: float) -> Probe:
    """The outcome of a look at an engine, all of it within ``timeout_s``; one that fails says how."""
    try:
        async with asyncio.timeout(timeout_s):
            return await look
    except CallFailed as error:
        return Probe(answer=error.kind, detail=error.message)
    except TimeoutError:
        return Probe(answer=Answer.SILENT, detail=f"no answer within {timeout_s:g} s")
    except HotseatError as error:
        return Probe(answer=Answer.BROKEN, detail=error.message)


async def get(base_url: str, path: str, *, timeout_s: float, api_key: str = "") -> Reply:
    """GET ``path``. Raises CallFailed, and Permanent for an address that is not loopback HTTP."""
    return await call("GET", base_url, path, timeout_s=timeout_s, api_key=api_key)


async def post(base_url: str, path: str, body: object = None, *, timeout_s: float, api_key: str = "") -> Reply:
    """POST ``body`` as JSON (None = an empty body). Raises as :func:`get`."""
    return await call("POST", base_url, path, timeout_s=timeout_s, api_key=api_key, body=body)


async def call(method: str, base_url: str, path: str, *, timeout_s: float, api_key: str = "", body: object = None) -> Reply:
    """One request, one reply, within ``timeout_s`` seconds altogether."""
    host, port = _address(base_url)
    request = _request(method, host, port, path, api_key, body)
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(host, port, request)
    except TimeoutError:
        raise CallFailed(Answer.SILENT, f"{method} {path}: no reply within {timeout_s:g} s") from None
    except ConnectionRefusedError:
        raise CallFailed(Answer.REFUSED, f"{method} {path}: nobody listens on {host}:{port}") from None
    except (OSError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
        raise CallFailed(Answer.BROKEN, f"{method} {path}: {str(error) or type(error).__name__}") from error


def _address(base_url: str) -> tuple[str, int]:
    parts = urlsplit(base_url)
    try:
        host, port = parts.hostname or "", parts.port
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        host, port, loopback = "", None, False
    if parts.scheme != "http" or not loopback or not port:
        raise Permanent(
            f"{base_url!r} is not the address of an engine: engines are reached over plain HTTP on loopback only",
            code="not_loopback",
            fix="let the engine listen on 127.0.0.1",
        )
    return host, port


def _request(method: str, host: str, port: int, path: str, api_key: str, body: object) -> bytes:
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise Permanent(f"{path!r} is not a path", code="bad_path", fix="write it as /path, percent-encoded")
    if not api_key.isascii() or not api_key.isprintable():
        raise Permanent("the engine's key holds characters that a header cannot carry", code="bad_key")
    name = f"[{host}]" if ":" in host else host
    lines = [f"{method} {path} HTTP/1.1", f"Host: {name}:{port}", "Connection: close", "Accept: */*", "User-Agent: hotseat"]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    payload = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        lines.append("Content-Type: application/json")
    if method != "GET":
        lines.append(f"Content-Length: {len(payload)}")
    return "\r\n".join([*lines, "", ""]).encode() + payload


async def _exchange(host: str, port: int, request: bytes) -> Reply:
    reader, writer = await asyncio.open_connection(host, port, limit=MAX_HEAD_BYTES)
    try:
        writer.write(request)
        await writer.drain()
        return await _reply(reader)
    finally:
        # abort, not close: the reply was read whole or is worthless, and a graceful close may hang on a stuck peer
        writer.transport.abort()


async def _reply(reader: asyncio.StreamReader) -> Reply:
    for _ in range(MAX_INTERIM_REPLIES):
        status, headers = _head(await reader.readuntil(b"\r\n\r\n"))
        if status >= 200:
            return Reply(status=status, headers=headers, body=await _body(reader, status, headers))
    raise ValueError("nothing but interim replies")


def _head(block: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = block.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(code) != 3 or not code.isdigit() or not code.isascii():
        raise ValueError(f"not an HTTP reply: {first[:80]!r}")
    headers = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"not a header: {line[:80]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(code), headers


async def _body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> bytes:
    if status in (204, 304):
        return b""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _chunks(reader)
    length = headers.get("content-length")
    if length is not None:
        return await reader.readexactly(_bounded(int(length)))
    body = await reader.read(MAX_BODY_BYTES + 1)
    while more := await reader.read(MAX_BODY_BYTES + 1):
        body += more
        _bounded(len(body))
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        _bounded(len(body) + size)
        if size == 0:
            return body  # trailers, if any, are of no interest: the connection is not used again
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk does not end where it says")


def _bounded(size: int) -> int:
    if not 0 <= size <= MAX_BODY_BYTES:
        raise ValueError(f"the reply has {size} bytes, allowed are {MAX_BODY_BYTES}")
    return size
