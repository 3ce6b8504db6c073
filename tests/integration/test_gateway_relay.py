"""The awake path: unbuffered streams, back-pressure, engines and clients that vanish, cut answers, metering."""

import asyncio
import json
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientSession, web

from scheduler.domain.lease import Outcome
from scheduler.gateway.app import INFERENCE, build_app
from scheduler.gateway.settings import GatewaySettings
from scheduler.orchestrator.readiness import Usage
from tests.support.gateway_rig import (
    USAGE,
    ChatEngine,
    RawClient,
    begin_stream,
    chat_body,
    chunk,
    dead_url,
    engine,
    gateway,
    new_desk,
    raw_engine,
    read_request,
    serving,
)

CHAT = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ABORT = chunk("m", "half", finish="abort")


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def body_of(model: str, **more: Any) -> bytes:
    return json.dumps(chat_body(model, **more)).encode()


class Counted:
    """A GatewayMetrics that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append((name, *arguments))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


# --- streaming --------------------------------------------------------------------------------------------------------


async def test_each_chunk_is_passed_on_before_the_next_is_made() -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        response = await begin_stream(request)
        for number in range(20):
            await response.write(chunk("m", str(number)))
            await chat.go_on.wait()
            chat.go_on.clear()
        return response

    desk = new_desk()
    app = build_app(desk, desk.clock)
    async with engine(respond) as (chat, engine_url), serving(app, own_runner=True) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True))
        await client.head()
        assert app[INFERENCE].budget.used_bytes == 0  # the engine has the body, nobody will send it again
        for number in range(20):
            assert await client.chunk() == chunk("m", str(number))
            chat.go_on.set()
        assert await client.chunk() == b""
        await client.close()
    assert desk.settled()


@pytest.mark.parametrize("stream", [True, False])
async def test_whatever_comes_from_an_engine_is_a_sign_of_life(stream: bool) -> None:
    """Each piece of a stream, and each piece of an answer that is kept back until it is whole."""

    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        response = await begin_stream(request) if stream else web.StreamResponse(headers={"Content-Type": "application/json"})
        if not stream:
            await response.prepare(request)
        for number in range(5):
            await response.write(chunk("m", str(number)) if stream else b" ")
            await chat.go_on.wait()
            chat.go_on.clear()
        await response.write(b"data: [DONE]\n\n" if stream else b"{}")
        return response

    desk = new_desk()
    async with engine(respond) as (chat, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=stream))
        before = 0
        for _ in range(5):
            async with asyncio.timeout(10):
                while desk.heard <= before:
                    await asyncio.sleep(0)
            before = desk.heard
            chat.go_on.set()
        await client.head()
        await client.close()
    assert before >= 5


async def test_a_large_body_does_not_live_as_long_as_its_stream() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while left:
            left -= len(await reader.read(min(left, 1 << 16)))
        writer.write(SSE_HEAD + framed(chunk("m", "one")))
        await asyncio.Event().wait()

    body = body_of("m", stream=True, x="A" * (16 << 20))
    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        tracemalloc.start()
        try:
            client.post(CHAT, body)
            await client.head()
            await client.chunk()
            assert tracemalloc.get_traced_memory()[0] < 8 << 20
            assert tracemalloc.get_traced_memory()[1] > 16 << 20
        finally:
            tracemalloc.stop()
        await client.close()


async def test_small_packets_are_never_held_back_by_the_kernel() -> None:
    seen: list[int] = []
    upstream: list[int] = []

    async def look(request: web.Request, response: web.StreamResponse) -> None:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    desk = new_desk()
    app = build_app(desk, desk.clock)
    app.on_response_prepare.append(look)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def spying(*arguments: Any, **named: Any) -> Any:
        transport, protocol = await connect(*arguments, **named)
        upstream.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return transport, protocol

    async with engine() as (_, engine_url), serving(app, own_runner=True) as url, ClientSession() as client:
        desk.add("m", engine_url)
        loop.create_connection = spying  # type: ignore[method-assign]
        async with client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            await answer.read()
    assert seen == [1]
    assert upstream
    assert set(upstream) == {1}


async def test_a_slow_client_slows_the_engine_down_and_loses_nothing() -> None:
    event = b"data: " + b"x" * 65_000 + b"\n\n"
    total, produced = 600, 0

    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        nonlocal produced
        response = await begin_stream(request)
        for _ in range(total):
            await response.write(event)
            produced += 1
        return response

    desk = new_desk()
    async with engine(respond) as (_, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
        client.post(CHAT, body_of("m", stream=True))
        await client.head()  # and then read nothing
        last, quiet = -1, 0
        while quiet < 5:
            last, quiet = produced, quiet + 1 if produced == last else 0
            await asyncio.sleep(0.02)
        assert produced < total / 2, "39 MB went into buffers"
        received = 0
        while data := await client.chunk():
            received += len(data)
        assert received == total * len(event)
        await client.close()
    assert desk.settled()


# --- clients that go away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_the_generation(stream: bool, reset: bool) -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        if stream:
            response = await begin_stream(request)
            await response.write(chunk("m", "one"))
        await chat.go_on.wait()
        return web.Response()

    desk, metrics = new_desk(), Counted()
    async with engine(respond) as (chat, engine_url), gateway(desk, None, metrics) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=stream))
        await chat.started.wait()
        if stream:
            await client.head()
            await client.chunk()
        await client.close(reset=reset)
        await asyncio.wait_for(chat.cancelled.wait(), 5)
        await desk.until(lambda: desk.leases == 0)
    assert [(one.outcome, one.usage) for one in desk.released] == [(Outcome.CLIENT_GONE, Usage(endpoint="chat/completions", status=499))]
    assert metrics.of("request") == [("m", "chat/completions", 499)]


async def test_a_client_that_goes_away_while_its_chunks_pile_up() -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        response = await begin_stream(request)
        while True:
            await response.write(b"data: " + b"x" * 60_000 + b"\n\n")

    desk = new_desk()
    async with engine(respond) as (_, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True))
        await client.head()
        await client.close(reset=True)
        await desk.until(lambda: desk.leases == 0)
    assert [one.outcome for one in desk.released] == [Outcome.CLIENT_GONE]


async def test_a_client_that_goes_away_takes_its_unsent_body_along() -> None:
    """An engine that does not read: what is still to be sent must not keep the connection open."""
    reading, rest = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reading.wait()
        size = 0
        try:
            while data := await reader.read(1 << 20):
                size += len(data)
        except ConnectionResetError:
            pass  # one way to be told
        rest.set_result(size)

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", x="A" * (20 << 20)))
        await desk.until(lambda: desk.leases == 1)
        await client.close(reset=True)
        await desk.until(lambda: desk.leases == 0)
        reading.set()
        assert await asyncio.wait_for(rest, 10) < 20 << 20
    assert [one.outcome for one in desk.released] == [Outcome.CLIENT_GONE]


async def test_a_waiting_stream_gets_comments_while_its_engine_does_not_read_and_then_its_answer() -> None:
    reading = asyncio.Event()
    size = 20 << 20

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reading.wait()
        _, asked = await read_request(reader)
        writer.write(SSE_HEAD + framed(b"data: %d\n\n" % asked.count(b"A")) + b"0\r\n\r\n")
        await writer.drain()

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk, GatewaySettings(keepalive_s=0.02)) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True, x="A" * size))
        await client.head()
        for _ in range(5):  # each is a wait that was broken off; nothing is sent twice, nothing is lost
            assert await client.chunk() == b": working\n\n"
        reading.set()
        while (piece := await client.chunk()) == b": working\n\n":
            pass
        assert piece == b"data: %d\n\n" % size
        await client.close()
    assert [one.outcome for one in desk.released] == [Outcome.OK]


async def test_a_cut_reaches_a_request_that_its_engine_does_not_read() -> None:
    desk = new_desk()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        desk.cut()
        await asyncio.Event().wait()

    async with raw_engine(script) as engine_url, gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", x="A" * (20 << 20)), Connection="close")
        answer = await client.reader.read()
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"put away" in answer
        await client.close()
    assert [one.outcome for one in desk.released] == [Outcome.ABORTED]


# --- engines that go away ---------------------------------------------------------------------------------------------

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()


async def hangs_up_after_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(SSE_HEAD)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [None, hangs_up, resets])
async def test_an_engine_lost_before_its_first_byte_is_tried_once_more(script: Script | None, stream: bool) -> None:
    desk, metrics = new_desk(), Counted()
    async with raw_engine(script or hangs_up) as bad_url, engine() as (chat, good_url), gateway(desk, None, metrics) as url:
        desk.add("m", good_url).next_urls = [bad_url if script else dead_url()]
        async with ClientSession() as client, client.post(url + CHAT, json=chat_body("m", stream=stream)) as answer:
            assert answer.status == 200
            assert (await answer.read()).count(b"finish_reason") == (3 if stream else 1)
    first, second = desk.wants
    assert (first.second_try, second.second_try) == (False, True)
    assert (first.arrived_s, first.deadline_s) == (second.arrived_s, second.deadline_s)
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_LOST, Outcome.OK]
    assert desk.released[0].usage == Usage(endpoint="chat/completions", status=502, again=True)  # the request is counted once
    assert len(chat.seen) == 1
    assert metrics.of("request") == [("m", "chat/completions", 200)]
    assert metrics.of("interrupted") == []


async def test_a_stream_whose_engine_dies_before_the_first_event_is_tried_once_more() -> None:
    desk = new_desk()
    async with raw_engine(hangs_up_after_the_head) as bad_url, engine() as (_, good_url), gateway(desk) as url:
        desk.add("m", good_url).next_urls = [bad_url]
        async with ClientSession() as client, client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_LOST, Outcome.OK]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [None, hangs_up])
async def test_an_engine_lost_twice_is_a_502(script: Script | None, stream: bool) -> None:
    desk, metrics = new_desk(), Counted()
    async with raw_engine(script or hangs_up) as bad_url, gateway(desk, None, metrics) as url, ClientSession() as client:
        desk.add("m", bad_url if script else dead_url())
        async with client.post(url + CHAT, json=chat_body("m", stream=stream)) as answer:
            assert answer.status == 502
            told = (await answer.json())["error"]
            assert "x-should-retry" not in answer.headers
    assert (told["code"], told["type"]) == ("engine_lost", "server_error")
    assert "model m" in told["message"]
    assert [want.second_try for want in desk.wants] == [False, True]
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_LOST] * 2
    assert desk.released[1].usage == Usage(endpoint="chat/completions", status=502)
    assert metrics.of("interrupted") == []  # nothing had been begun


@pytest.mark.parametrize("frame_cut", [False, True])
async def test_a_stream_that_is_cut_ends_with_one_error_event(frame_cut: bool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + framed(chunk("m", "one")) + framed(chunk("m", "two")))
        if frame_cut:  # half an event is no event
            writer.write(framed(b'data: {"choices":[{"delta":') + b"1f\r\nhalf a frame")

    desk, metrics = new_desk(), Counted()
    async with raw_engine(script) as engine_url, gateway(desk, None, metrics) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            assert answer.status == 200
            events = (await answer.read()).split(b"\n\n")
    assert events[:2] == [chunk("m", "one")[:-2], chunk("m", "two")[:-2]]
    assert json.loads(events[2].removeprefix(b"data: "))["error"]["code"] == "engine_lost"
    assert events[3:] == [b""]
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_LOST]
    assert metrics.of("request") == [("m", "chat/completions", 502)]
    assert metrics.of("interrupted") == [("engine_lost",)]


async def test_a_stream_without_length_and_without_done_was_cut() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + chunk("m", "one"))
        if b"whole" in body:
            writer.write(b"data: [DONE]\n\n")

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + CHAT, json=chat_body("m", stream=True, whole=1)) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        async with client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            assert b'"engine_lost"' in await answer.read()
    assert [one.outcome for one in desk.released] == [Outcome.OK, Outcome.ENGINE_LOST]


@pytest.mark.parametrize(
    "said",
    [
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"choices":',
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{"choices":\r\n',
        b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"choices":[{"text":"half',
        b"HTTP/1.1 200 OK\r\nContent-Ty",
        b"Segmentation fault (core dumped)\r\n\r\n",
    ],
)
async def test_an_answer_cut_half_way_is_a_502_and_not_tried_again(said: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(said)

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + CHAT, json=chat_body("m")) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "engine_lost"
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_LOST]


async def test_a_stale_pooled_connection_is_no_dead_engine() -> None:
    """The engine closes an idle connection just as the next request is under way on it."""
    connections = 0
    second_request = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}')
        if connections == 1:
            await read_request(reader)  # and hang up without a byte
            second_request.set()
        else:
            await asyncio.Event().wait()

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        for _ in range(2):
            async with client.post(url + CHAT, json=chat_body("m")) as answer:
                assert answer.status == 200
    assert second_request.is_set()
    assert connections == 2
    assert [want.second_try for want in desk.wants] == [False, False]
    assert [one.outcome for one in desk.released] == [Outcome.OK, Outcome.OK]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", ["pooled", "fresh"])
async def test_a_request_is_sent_twice_at_most(first: str, stream: bool) -> None:
    """Whichever of its two connections had served before: a request that kills engines must not kill three."""
    poison: list[bool] = []  # on which kind of connection it came: True = pooled

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pooled = False
        while True:
            _, asked = await read_request(reader)
            if b"poison" in asked:
                poison.append(pooled)
                if not pooled and len(poison) == 1:  # meanwhile others left connections in the pool
                    await (await client.post(url + CHAT, json=chat_body("m"))).read()
                return
            pooled = True
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}')

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        if first == "pooled":
            await (await client.post(url + CHAT, json=chat_body("m"))).read()
        async with client.post(url + CHAT, json=chat_body("m", stream=stream, x="poison")) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "engine_lost"
    assert poison == [first == "pooled", False]
    assert desk.settled()


async def test_a_dead_engine_behind_a_pooled_connection_is_tried_once_more() -> None:
    """Sending it again did not come about, so the one retry is still there."""
    second_request = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}')
        await read_request(reader)
        second_request.set()
        await asyncio.Event().wait()  # until the engine is gone, listening socket first

    desk = new_desk()
    async with engine() as (chat, good_url), gateway(desk) as url, ClientSession() as client:
        async with raw_engine(script) as bad_url:
            model = desk.add("m", bad_url)
            await (await client.post(url + CHAT, json=chat_body("m"))).read()
            asking = asyncio.create_task(client.post(url + CHAT, json=chat_body("m")))
            await second_request.wait()
            model.next_urls = [good_url]
        async with await asking as answer:
            assert answer.status == 200
    assert len(chat.seen) == 1
    assert [want.second_try for want in desk.wants] == [False, False, True]


async def test_stray_bytes_behind_an_answer_cost_the_connection_and_not_the_answer() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}\r\n')
        await reader.read()

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        for _ in range(2):
            async with client.post(url + CHAT, json=chat_body("m")) as answer:
                assert (answer.status, await answer.read()) == (200, b'{"choices":[]}')
    assert connections == 2
    assert [one.outcome for one in desk.released] == [Outcome.OK, Outcome.OK]


async def test_events_before_bytes_that_are_no_http_are_passed_on() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + framed(chunk("m", "one")) + b"no chunk size\r\n")
        await reader.read()

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            first, last, _ = (await answer.read()).split(b"\n\n")
    assert first == chunk("m", "one")[:-2]
    assert b"is not HTTP" in last
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_LOST]


async def test_an_engine_that_answers_before_it_has_read_the_body() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        await asyncio.Event().wait()  # the body, 8 MB, is never read

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", x="A" * (8 << 20)))
        assert (await client.head()).startswith("HTTP/1.1 413 ")
        await client.close()
    assert desk.settled()


# --- answers cut short by the engine itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 7])
async def test_an_aborted_stream_is_never_passed_off_as_whole(pieces: int) -> None:
    tail = chunk("m", "one") + ABORT + b"data: [DONE]\n\n"

    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        response = await begin_stream(request)
        size = len(tail) // pieces + 1
        for start in range(0, len(tail), size):
            await response.write(tail[start : start + size])
            await asyncio.sleep(0.002)  # so that the pieces travel apart
        return response

    desk, metrics = new_desk(), Counted()
    async with engine(respond) as (_, engine_url), gateway(desk, None, metrics) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            events = (await answer.read()).split(b"\n\n")
    assert events[0] == chunk("m", "one")[:-2]
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "engine_lost"
    assert events[2:] == [b""]
    assert [one.outcome for one in desk.released] == [Outcome.ABORTED]
    assert metrics.of("interrupted") == [("aborted",)]


@pytest.mark.parametrize("last", [b"y" * 10, b'"}],"finish_reason":"abort"}\n\n'])
async def test_the_error_event_behind_a_part_of_an_oversized_event_is_one_of_its_own(last: bytes) -> None:
    part_is_out = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD + framed(b'data: {"choices":[{"x":"' + b"x" * 1_500_000))
        await part_is_out.wait()
        writer.write(framed(last))

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True))
        await client.head()
        got = b""
        while piece := await client.chunk():
            got += piece
            if len(got) >= 1 << 20:
                part_is_out.set()
        await client.close()
    part, error, rest = got.split(b"\n\n")
    assert part.endswith(b"xxx")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_lost"
    assert rest == b""


async def aborted(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
    if json.loads(chat.seen[-1].body).get("stream"):
        response = await begin_stream(request)
        await response.write(ABORT + b"data: [DONE]\n\n")
        return response
    return web.json_response({"choices": [{"index": 0, "message": {"content": "half"}, "finish_reason": "abort"}], "usage": USAGE})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_abort_before_anything_was_passed_on_is_tried_once_more(stream: bool) -> None:
    desk = new_desk()
    async with engine(aborted) as (_, bad_url), engine() as (_, good_url), gateway(desk) as url, ClientSession() as client:
        desk.add("m", good_url).next_urls = [bad_url]
        async with client.post(url + CHAT, json=chat_body("m", stream=stream)) as answer:
            assert answer.status == 200
            assert b"half" not in await answer.read()
        desk.add("never", bad_url)
        async with client.post(url + CHAT, json=chat_body("never", stream=stream)) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "engine_lost"
    assert [one.outcome for one in desk.released] == [Outcome.ABORTED, Outcome.OK, Outcome.ABORTED, Outcome.ABORTED]


# --- answers cut by the scheduler -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_answer_ends_with_an_error_and_is_not_tried_again(stream: bool) -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        if stream:
            response = await begin_stream(request)
            await response.write(chunk("m", "one"))
        await chat.go_on.wait()
        return web.Response()

    desk, metrics = new_desk(), Counted()
    async with engine(respond) as (chat, engine_url), gateway(desk, None, metrics) as url, ClientSession() as client:
        desk.add("m", engine_url)
        asking = asyncio.create_task(client.post(url + CHAT, json=chat_body("m", stream=stream)))
        await chat.started.wait()
        if stream:
            assert await (await asking).content.readuntil(b"\n\n") == chunk("m", "one")
        desk.cut()
        answer = await asking
        text = await answer.read()
        await asyncio.wait_for(chat.cancelled.wait(), 5)
        told = json.loads(text.removeprefix(b"data: "))["error"]
    assert answer.status == (200 if stream else 502)
    assert told["code"] == "engine_lost"
    assert "put away" in told["message"]
    assert [(one.outcome, one.usage) for one in desk.released] == [(Outcome.ABORTED, Usage(endpoint="chat/completions", status=502))]
    assert metrics.of("interrupted") == ([("cut",)] if stream else [])


async def test_a_cut_does_not_wait_for_a_client_that_does_not_read() -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        response = await begin_stream(request)
        while True:
            await response.write(b"data: " + b"x" * 60_000 + b"\n\n")

    desk = new_desk()
    async with engine(respond) as (chat, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True))
        await client.head()
        desk.cut()
        await desk.until(lambda: desk.leases == 0)
        await asyncio.wait_for(chat.cancelled.wait(), 5)
        last = b""
        while data := await client.chunk():
            last = data
        assert last.endswith(b"}\n\n")
        assert b'"engine_lost"' in last
        await client.close()
    assert [one.outcome for one in desk.released] == [Outcome.ABORTED]


# --- answers of unusual shape -----------------------------------------------------------------------------------------


async def test_an_engines_error_after_comments_is_one_event() -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        if b"json" in chat.seen[-1].body:
            return web.json_response({"choices": []})
        return web.json_response({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}, status=400)

    desk = new_desk()
    async with engine(respond) as (_, engine_url), gateway(desk, GatewaySettings(keepalive_s=0.02)) as url:
        for model, more, words in (("a", {}, "The engine answered 400: too long"), ("b", {"json": 1}, "no event stream")):
            desk.add(model, engine_url, awake=False)
            client = await RawClient.connect(url)
            client.post(CHAT, body_of(model, stream=True, **more))
            await client.head()
            desk.wake(model)
            last = b""
            while data := await client.chunk():
                last = data
            told = json.loads(last.removeprefix(b"data: "))["error"]
            assert told["code"] == "engine_error"
            assert words in told["message"]
            await client.close()
    assert desk.settled()


@pytest.mark.parametrize("said", [b'data: {"error": {"message": "boom", "code": 500}}', b'error: {"code":500,"message":"boom"}'])
async def test_an_error_event_of_the_engine_is_counted_as_one(said: bytes) -> None:
    async def respond(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("m", "x") + said + b"\n\ndata: [DONE]\n\n")
        return response

    desk = new_desk()
    async with engine(respond) as (_, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + CHAT, json=chat_body("m", stream=True)) as answer:
            assert b'"boom"' in await answer.read()
    assert [one.outcome for one in desk.released] == [Outcome.ENGINE_ERROR]


@pytest.mark.parametrize(("sized", "stream"), [(False, False), (True, False), (True, True)])
async def test_an_answer_too_large_to_keep_back_passes_and_is_broken_off_when_cut(sized: bool, stream: bool) -> None:
    body = b'{"data":[' + b"0.125," * 50_000 + b'1],"usage":{"prompt_tokens":9,"total_tokens":9}}'

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, asked = await read_request(reader)
        framing = b"Content-Length: %d" % len(body) if sized else b"Transfer-Encoding: chunked"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n")
        sent = body if b"whole" in asked else body[:200_000]
        writer.write(sent if sized else framed(sent) + (b"0\r\n\r\n" if b"whole" in asked else b""))
        await writer.drain()

    desk, metrics = new_desk(), Counted()
    settings = GatewaySettings(answer_buffer_bytes=100_000)
    async with raw_engine(script) as engine_url, gateway(desk, settings, metrics) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + "/v1/embeddings", json={"model": "m", "input": "whole", "stream": stream}) as answer:
            assert await answer.read() == body
        async with client.post(url + "/v1/embeddings", json={"model": "m", "input": "cut", "stream": stream}) as answer:
            assert answer.status == 200
            with pytest.raises(ClientPayloadError):
                await answer.read()
    assert [one.outcome for one in desk.released] == [Outcome.OK, Outcome.ENGINE_LOST]
    assert desk.released[0].usage == Usage(endpoint="embeddings", status=200, prompt_tokens=9)
    assert [status for _, _, status in metrics.of("request")] == [200, 502]


@pytest.mark.parametrize("at_start", [False, True])
async def test_the_tokens_of_an_answer_too_large_to_keep_back_are_counted(at_start: bool) -> None:
    usage, data = b'"usage":{"prompt_tokens":7,"total_tokens":7}', b'"data":[' + b"0.125," * 50_000 + b"1]"
    first, second = (usage, data) if at_start else (data, usage)
    body = b"{" + first + b"," + second + b"}"
    rest = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body[:-10])
        await rest.wait()
        writer.write(body[-10:])
        await writer.drain()

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk, GatewaySettings(answer_buffer_bytes=1000)) as url, ClientSession() as client:
        desk.add("m", engine_url)
        async with client.post(url + "/v1/embeddings", json=chat_body("m")) as answer:
            got = await answer.content.readexactly(len(body) - 10)
            rest.set()
            assert got + await answer.read() == body
    assert desk.released[0].usage == Usage(endpoint="embeddings", status=200, prompt_tokens=7)


async def test_an_http_1_0_client_gets_its_stream() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        body = body_of("m", stream=True)
        client.writer.write(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await client.reader.read()
        assert b"chunked" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")
        await client.close()


async def test_a_bug_of_ours_is_a_500_and_releases_the_lease() -> None:
    desk = new_desk()
    async with gateway(desk) as url, ClientSession() as client:
        desk.add("m", "ftp://nowhere")
        async with client.post(url + CHAT, json=chat_body("m")) as answer:
            assert answer.status == 500
            assert (await answer.json())["error"]["code"] == "bad_engine_url"
    assert desk.settled()


# --- metering ---------------------------------------------------------------------------------------------------------


async def test_usage_and_metrics_of_every_kind_of_answer() -> None:
    async def llama(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
        return web.json_response({"choices": [], "timings": {"cache_n": 3, "prompt_n": 2, "predicted_n": 4}})

    desk, metrics = new_desk(), Counted()
    async with engine() as (_, engine_url), engine(llama) as (_, llama_url), gateway(desk, None, metrics) as url:
        desk.add("m", engine_url)
        desk.add("llama", llama_url)
        async with ClientSession() as client:
            for path, model, more in (
                (CHAT, "m", {}),
                (CHAT, "m", {"stream": True}),
                ("/v1/embeddings", "m", {}),
                (CHAT, "llama", {}),
                (CHAT, "unheard-of", {}),
            ):
                async with client.post(url + path, json=chat_body(model, **more)) as answer:
                    await answer.read()
    plain, streamed, embedded, llamas = (one.usage for one in desk.released)
    assert plain == Usage(endpoint="chat/completions", status=200, prompt_tokens=12, cached_tokens=4, completion_tokens=5)
    assert streamed is not None
    assert streamed.ttft_s is not None
    assert 0 < streamed.ttft_s < 5
    assert (streamed.prompt_tokens, streamed.cached_tokens, streamed.completion_tokens) == (12, 4, 5)
    assert embedded == Usage(endpoint="embeddings", status=200, prompt_tokens=12, cached_tokens=4, completion_tokens=5)
    assert llamas == Usage(endpoint="chat/completions", status=200, prompt_tokens=5, cached_tokens=3, completion_tokens=4)
    assert metrics.of("request") == [
        ("m", "chat/completions", 200),
        ("m", "chat/completions", 200),
        ("m", "embeddings", 200),
        ("llama", "chat/completions", 200),
        ("", "chat/completions", 404),
    ]
    assert metrics.of("tokens")[:3] == [("m", "prompt_uncached", 8), ("m", "prompt_cached", 4), ("m", "completion", 5)]
    assert [(model, woke) for model, woke, _ in metrics.of("ttft")] == [("m", False)]
    assert len(metrics.of("hold")) == len(metrics.of("overhead")) == 4
    assert all(0 <= seconds < 1 for (seconds,) in metrics.of("overhead"))
