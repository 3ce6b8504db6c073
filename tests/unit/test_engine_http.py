"""The adapters' HTTP client against a socket that says anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from adapters.engines.http import MAX_BODY_BYTES, CallFailed, get, post
from scheduler.domain.errors import Permanent
from scheduler.ports.engine import Answer

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server(reply: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that reads a request and says ``reply``; yields its address and what it was sent."""
    seen: list[bytes] = []
    talking: list[asyncio.Task[None] | None] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talking.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
        seen.append(head + await reader.readexactly(length))
        try:
            if callable(reply):
                await reply(writer)
            else:
                writer.write(reply)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", seen
    for task in talking:
        assert task is not None
        task.cancel()
        await asyncio.wait([task])


async def test_get_and_post() -> None:
    async with server(b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\nX-A: b\r\n\r\n{"a": 1}') as (url, seen):
        reply = await get(url, "/props?x=1", timeout_s=5, api_key="k")
        assert (reply.status, reply.json(), reply.headers["x-a"]) == (200, {"a": 1}, "b")
        await post(url, "/sleep", {"b": 2}, timeout_s=5)
        await post(url, "/wake_up", timeout_s=5)
    assert seen[0].startswith(b"GET /props?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer k\r\n" in seen[0]
    assert b"Connection: close\r\n" in seen[0]
    assert seen[1].endswith(b'\r\n\r\n{"b": 2}')
    assert b"Content-Type: application/json\r\n" in seen[1]
    assert b"Content-Length: 0\r\n" in seen[2]
    assert b"Content-Type" not in seen[2]
    assert b"Authorization" not in seen[1]


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n1\r\n!\r\n0\r\n\r\n", b"ok!"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 302 Found\r\nLocation: http://example.invalid/\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
async def test_bodies_of_all_kinds(raw: bytes, body: bytes) -> None:
    async with server(raw) as (url, seen):
        reply = await get(url, "/", timeout_s=5)
        assert reply.body == body
        assert reply.json() is None
        assert len(seen) == 1  # no redirect is followed


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nokay\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK,
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (MAX_BODY_BYTES + 1),
    ],
)
async def test_nonsense_is_broken(raw: bytes) -> None:
    async with server(raw) as (url, _):
        with pytest.raises(CallFailed) as caught:
            await get(url, "/health", timeout_s=5)
    assert caught.value.kind is Answer.BROKEN


async def test_silence_and_refusal() -> None:
    async def nothing(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with server(nothing) as (url, _):
        with pytest.raises(CallFailed) as caught:
            await get(url, "/health", timeout_s=0.05)
        assert caught.value.kind is Answer.SILENT
        assert "0.05 s" in caught.value.message
    with pytest.raises(CallFailed) as caught:
        await get(url, "/health", timeout_s=5)
    assert caught.value.kind is Answer.REFUSED


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:80", "https://127.0.0.1:80", "http://localhost:80", "http://127.0.0.1", "", "http://127.0.0.1:x"]
)
async def test_only_loopback(url: str) -> None:
    with pytest.raises(Permanent) as caught:
        await get(url, "/", timeout_s=1)
    assert caught.value.code == "not_loopback"


@pytest.mark.parametrize("path", ["health", "/a b", "/a\r\nX: y", "/ä", ""])
async def test_paths_cannot_smuggle(path: str) -> None:
    with pytest.raises(Permanent):
        await get("http://127.0.0.1:1", path, timeout_s=1)


async def test_a_key_cannot_smuggle() -> None:
    with pytest.raises(Permanent):
        await get("http://127.0.0.1:1", "/", timeout_s=1, api_key="a\r\nb")
