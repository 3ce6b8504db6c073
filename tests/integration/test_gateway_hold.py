"""Requests that wait: silence or comments, errors before and after them, and clients that go away."""

import asyncio
import json
from typing import Any

import openai
import pytest
from aiohttp import ClientSession

from scheduler.domain.errors import Temporary
from scheduler.domain.lease import Outcome
from scheduler.gateway.settings import GatewaySettings
from scheduler.orchestrator.readiness import Grant
from tests.support.desk import Desk, DeskTicket
from tests.support.gateway_rig import ChatEngine, RawClient, begin_stream, chat_body, chunk, dead_url, engine, gateway, new_desk

CHAT = "/v1/chat/completions"
QUICK = GatewaySettings(keepalive_s=0.02)


def body_of(model: str, **more: Any) -> bytes:
    return json.dumps(chat_body(model, **more)).encode()


async def test_a_streaming_request_gets_comments_and_then_its_answer() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk, QUICK) as url:
        desk.add("m", engine_url, awake=False)
        first = await RawClient.connect(url)
        first.post(CHAT, body_of("m", stream=True), x_request_id="req-1")
        await desk.until(lambda: desk.held("m") == 1)
        second = await RawClient.connect(url)
        second.post(CHAT, body_of("m", stream=True))
        await desk.until(lambda: desk.held("m") == 2)
        head = await second.head()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "Content-Type: text/event-stream; charset=utf-8\r\n" in head
        assert "x-hotseat-model: m\r\n" in head
        assert [await second.chunk() for _ in range(3)] == [b": waiting position=2 eta=4.1s\n\n"] * 3
        assert "x-request-id: req-1\r\n" in await first.head()
        assert await first.chunk() == b": waiting position=1 eta=4.1s\n\n"
        desk.wake("m")
        for client in (first, second):
            events = b""
            while data := await client.chunk():
                events += data
            events = b"\n\n".join(event for event in events.split(b"\n\n") if not event.startswith(b":"))
            assert events.count(b"data: ") == 5
            assert events.endswith(b"data: [DONE]\n\n")
            await client.close()
    assert desk.settled()


async def test_the_stock_client_reads_over_comments() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk, QUICK) as url:
        model = desk.add("m", engine_url, awake=False)
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            asking = asyncio.create_task(client.chat.completions.create(model="m", messages=[], stream=True))
            stream = await asking  # status and headers came with the first comment, while the model sleeps
            assert model.queue
            desk.wake("m")
            assert "".join([part.choices[0].delta.content or "" async for part in stream if part.choices]) == "Hello"


async def test_others_wait_silently_and_get_their_real_status() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk, QUICK) as url:
        desk.add("m", engine_url, awake=False)
        silent = [
            (body_of("m"), {}),
            (body_of("m", stream=False), {}),
            (body_of("m", stream=True), {"x_hotseat_keepalive": "off"}),
        ]
        clients = []
        for body, headers in silent:
            clients.append(await RawClient.connect(url))
            clients[-1].post(CHAT, body, **headers)
        loud = await RawClient.connect(url)
        loud.post(CHAT, body_of("m", stream=True))
        await desk.until(lambda: desk.held("m") == 4)
        await loud.head()
        for _ in range(3):  # three comments to one client: the others had the time to get one
            await loud.chunk()
        desk.refuse("m", Temporary("m is not awake after 30 s.", code="wait_timeout", retry_after_s=9))
        for client in clients:
            head = await client.head()
            assert head.startswith("HTTP/1.1 503 ")
            assert "Retry-After: 9\r\n" in head
            await client.close()
        await loud.close()
    assert desk.settled()


async def test_a_failure_after_a_comment_is_one_event() -> None:
    desk = new_desk()
    async with gateway(desk, QUICK) as url:
        desk.add("m", dead_url(), awake=False)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True))
        assert (await client.head()).startswith("HTTP/1.1 200 ")
        assert (await client.chunk()).startswith(b": waiting")
        desk.refuse("m", Temporary("m is not awake after 30 s.", code="wait_timeout", retry_after_s=9))
        events = []
        while data := await client.chunk():
            events.append(data)
        assert [event for event in events if not event.startswith(b":")] == [events[-1]]
        told = json.loads(events[-1].removeprefix(b"data: "))
        message = {"message": "m is not awake after 30 s.", "type": "server_error", "param": "model", "code": "wait_timeout"}
        assert told == {"error": message}
        client.post(CHAT, body_of("unknown"))  # the connection is in good order
        assert (await client.head()).startswith("HTTP/1.1 404 ")
        await client.close()
    assert desk.settled()


async def test_the_stock_client_raises_the_error_event() -> None:
    desk = new_desk()
    async with gateway(desk, QUICK) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        desk.add("m", awake=False)
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        desk.refuse("m", Temporary("m is not awake after 30 s.", code="wait_timeout", retry_after_s=9))
        with pytest.raises(openai.APIError, match="not awake after 30 s"):
            async for _ in stream:
                pass


async def test_comments_go_on_until_the_first_token() -> None:
    async def respond(request: Any, chat: ChatEngine) -> Any:
        response = await begin_stream(request)
        await chat.go_on.wait()
        await response.write(chunk("m", "late"))
        return response

    desk = new_desk()
    async with engine(respond) as (chat, engine_url), gateway(desk, QUICK) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=True))
        await client.head()
        assert [await client.chunk() for _ in range(2)] == [b": working\n\n"] * 2
        chat.go_on.set()
        data = b": working\n\n"
        while data == b": working\n\n":
            data = await client.chunk()
        assert data == chunk("m", "late")
        assert await client.chunk() == b""
        await client.close()
    assert desk.settled()


# --- clients that go away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keepalive_s", [0.02, 5.0])
async def test_a_held_client_that_goes_away_gives_up_its_place_at_once(stream: bool, reset: bool, keepalive_s: float) -> None:
    desk = new_desk()
    async with engine() as (chat, engine_url), gateway(desk, GatewaySettings(keepalive_s=keepalive_s)) as url:
        desk.add("m", engine_url, awake=False)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m", stream=stream))
        await desk.until(lambda: desk.held("m") == 1)
        await client.close(reset=reset)
        await desk.until(lambda: desk.tickets[0].cancelled)
        assert desk.held("m") == 0
        desk.wake("m")
        assert chat.seen == []
    assert desk.settled()
    assert desk.released == []


async def test_a_client_that_goes_away_as_its_turn_comes_leaves_no_lease_behind() -> None:
    """The grant is there, the handler has not been told yet, and the client's connection goes."""

    class Late(DeskTicket):
        async def granted(self) -> Grant:
            while True:
                grant = await super().granted()
                self.collected = False
                ready.set()
                await hang.wait()
                self.collected = True
                return grant

    ready, hang = asyncio.Event(), asyncio.Event()

    class LateDesk(Desk):
        ticket_class = Late

    plain = new_desk()
    desk = LateDesk(plain.clock)
    async with engine() as (chat, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.post(CHAT, body_of("m"))
        await ready.wait()
        assert desk.leases == 1
        await client.close(reset=True)
        await desk.until(lambda: desk.leases == 0)
        assert chat.seen == []
    assert [one.outcome for one in desk.released] == [Outcome.CLIENT_GONE]


async def test_shutting_down_ends_every_wait() -> None:
    desk = new_desk()
    async with ClientSession() as client:
        async with gateway(desk) as url:
            desk.add("m", awake=False)
            asking = [asyncio.create_task(client.post(url + CHAT, json=chat_body("m"))) for _ in range(3)]
            await desk.until(lambda: desk.held("m") == 3)
        results = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(result, Exception) for result in results)
    assert desk.settled()
