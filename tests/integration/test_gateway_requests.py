"""Requests through the real gateway to real little engines: bytes, headers, limits, errors, and the stock client."""

import asyncio
import gzip
import io
import json
from typing import Any

import openai
import pytest
from aiohttp import ClientSession, web

from scheduler.domain.errors import Conflict, HotseatError, Permanent, Temporary
from scheduler.domain.lease import Outcome
from scheduler.domain.model import ModelClass
from scheduler.gateway.app import INFERENCE, build_app
from scheduler.gateway.settings import GatewaySettings
from scheduler.orchestrator.readiness import Usage
from tests.support.gateway_rig import (
    ChatEngine,
    RawClient,
    chat_body,
    dead_url,
    engine,
    gateway,
    new_desk,
    raw_engine,
    read_request,
    serving,
)

CHAT = "/v1/chat/completions"


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="client-secret", max_retries=0, timeout=30)


# --- the stock client ------------------------------------------------------------------------------------------------


async def test_the_stock_client_does_everything() -> None:
    desk = new_desk()
    async with engine() as (chat, engine_url), gateway(desk) as url, client_of(url) as client:
        desk.add("qwen", engine_url, aliases=("Qwen/Qwen3-8B",), served_model="served")
        desk.add("hidden", engine_url, unlisted=True)
        assert [model.id for model in (await client.models.list()).data] == ["qwen"]
        assert (await client.models.retrieve("Qwen/Qwen3-8B")).id == "Qwen/Qwen3-8B"
        assert (await client.models.retrieve("hidden")).owned_by == "hotseat"
        messages: Any = [{"role": "user", "content": "hi"}]
        done = await client.chat.completions.create(model="Qwen/Qwen3-8B", messages=messages)
        assert done.choices[0].message.content == "Hello"
        stream = await client.chat.completions.create(model="qwen", messages=messages, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Hello"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        assert (await client.completions.create(model="qwen", prompt="x")).choices[0].text == "Hello"
        assert (await client.embeddings.create(model="qwen", input="x", encoding_format="float")).data[0].embedding == [0.25, 0.5]
        assert [json.loads(seen.body)["model"] for seen in chat.seen] == ["served"] * 4
        assert all("client-secret" not in str(seen.headers) for seen in chat.seen)
    assert desk.settled()
    assert [one.outcome for one in desk.released] == [Outcome.OK] * 4


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (Temporary("full", code="queue_full", retry_after_s=7), openai.RateLimitError, 429),
        (Temporary("slow", code="wait_timeout", retry_after_s=7), openai.InternalServerError, 503),
        (Temporary("starting", code="model_starting", retry_after_s=500), openai.InternalServerError, 503),
        (Permanent("broken", code="model_failed"), openai.InternalServerError, 503),
        (Conflict("off", code="model_disabled"), openai.InternalServerError, 503),
        (Permanent("too big", code="does_not_fit"), openai.InternalServerError, 507),
    ],
)
@pytest.mark.parametrize("held", [False, True])
async def test_the_stock_client_sees_our_errors(error: HotseatError, kind: type[openai.APIStatusError], status: int, held: bool) -> None:
    desk = new_desk()
    async with gateway(desk) as url, client_of(url) as client:
        model = desk.add("m", dead_url(), awake=False)
        asking = asyncio.gather(client.chat.completions.create(model="m", messages=[], stream=True), return_exceptions=True)
        if held:
            await desk.until(lambda: desk.held("m") == 1)
            desk.refuse("m", error)
        else:
            await desk.until(lambda: desk.held("m") == 1)
            model.refusal = error
            desk.wake("m")  # to an engine that nobody runs; the second try is refused
        raised = (await asking)[0]
    assert isinstance(raised, kind)
    assert isinstance(raised, openai.APIStatusError)
    assert (raised.status_code, raised.code, raised.response.headers["x-hotseat-model"]) == (status, error.code, "m")
    if isinstance(error, Temporary):
        assert raised.response.headers["retry-after"] == str(min(120, int(error.retry_after_s)))
    else:
        assert raised.response.headers["x-should-retry"] == "false"
    assert desk.settled()


async def test_unknown_models_and_urls_are_told_in_the_clients_words() -> None:
    desk = new_desk()
    async with gateway(desk) as url, client_of(url) as client, ClientSession() as web_client:
        desk.add("qwen", awake=False)
        with pytest.raises(openai.NotFoundError, match="did you mean 'qwen'") as caught:
            await client.chat.completions.create(model="qwem", messages=[])
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("no/such")
        with pytest.raises(openai.BadRequestError, match="not valid JSON") as bad:
            await client.post("/chat/completions", cast_to=object, content=b"{", options={"headers": {"content-type": "application/json"}})
        assert bad.value.code == "invalid_json"
        for method, path in [("GET", CHAT), ("POST", "/v1/nothing"), ("DELETE", "/v1/models/qwen"), ("GET", "/v1/")]:
            async with web_client.request(method, url + path) as answer:
                if method != "DELETE":
                    assert (await answer.json())["error"]["code"] == "unknown_url"
                assert answer.status in (404, 405)
    assert desk.wants == []


# --- bytes and headers ------------------------------------------------------------------------------------------------


async def test_bytes_pass_unchanged_in_both_directions() -> None:
    said = b'{"choices" : [ {"finish_reason":"stop","text":"\xc3\xa9"} ],\n "usage":{"prompt_tokens":3,"completion_tokens":1}}'

    async def respond(request: web.Request, chat: ChatEngine) -> web.Response:
        return web.Response(body=said, headers={"Content-Type": "application/json", "X-Engine": "1", "X-Request-Id": "theirs"})

    desk = new_desk()
    async with engine(respond) as (chat, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("a/b", engine_url, served_model="x", api_key="engine-key")
        body = b'{ "messages": [ {"model" : "a/b"} ], "n":1e0,\t"model" : "a\\/b" }'
        headers = {"Authorization": "Bearer mine", "X-Request-Id": "req-7", "Content-Type": "text/plain", "X-Other": "kept"}
        async with client.post(f"{url}/v1/completions?api-version=2026-01&x=%26", data=body, headers=headers) as answer:
            assert answer.status == 200
            assert await answer.read() == said
            told = answer.headers
    seen = chat.seen[0]
    assert seen.path == "/v1/completions?api-version=2026-01&x=%26"
    assert seen.body == body.replace(b'"a\\/b"', b'"x"')
    assert (seen.headers["Authorization"], seen.headers["X-Other"]) == ("Bearer engine-key", "kept")
    assert (seen.headers["Content-Type"], seen.headers["Accept-Encoding"]) == ("application/json", "identity")
    assert (told["X-Engine"], told["x-request-id"], told["x-hotseat-model"], told["x-hotseat-instance"]) == ("1", "req-7", "a/b", "a/b#0")
    assert told["x-hotseat-woke"] == "0"
    assert float(told["x-hotseat-wait"]) < 1
    assert desk.released[0].usage == Usage(endpoint="completions", status=200, prompt_tokens=3, completion_tokens=1)


async def test_a_request_id_is_made_when_the_clients_is_unfit() -> None:
    desk = new_desk()
    async with engine() as (chat, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        ids = set()
        for given in ("bad id", "x" * 200, None):
            headers = {} if given is None else {"X-Request-Id": given}
            async with client.post(url + CHAT, json=chat_body("m"), headers=headers) as answer:
                ids.add(answer.headers["x-request-id"])
    assert len(ids) == 3
    assert all(made.startswith("req-") for made in ids)
    assert {seen.headers["X-Request-ID"] for seen in chat.seen} == ids


async def test_what_the_engine_answers_is_the_answer() -> None:
    said = b'{"error":{"message":"the prompt is too long","type":"BadRequestError","param":null,"code":400}}'

    async def respond(request: web.Request, chat: ChatEngine) -> web.Response:
        status = json.loads(chat.seen[-1].body)["status"]
        return web.Response(status=status, body=said, content_type="application/json")

    desk = new_desk()
    async with engine(respond) as (_, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        for stream in (False, True):
            for status in (400, 404, 501, 500, 503):
                async with client.post(url + CHAT, json=chat_body("m", status=status, stream=stream)) as answer:
                    assert (answer.status, await answer.read()) == (status, said)
    assert [one.outcome for one in desk.released] == [Outcome.OK] * 3 + [Outcome.ENGINE_ERROR] * 2 + [Outcome.OK] * 3 + [
        Outcome.ENGINE_ERROR
    ] * 2


async def test_deadline_and_class_come_from_headers_and_model() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        desk.add("short", engine_url, max_wait_s=20, model_class=ModelClass.STANDARD)
        asks: list[tuple[str, dict[str, str]]] = [
            ("m", {}),
            ("m", {"x-hotseat-max-wait": "30", "x-stainless-read-timeout": "10"}),
            ("m", {"x-stainless-read-timeout": "60", "x-hotseat-class": "batch"}),
            ("short", {"x-hotseat-class": "interactive"}),
            ("short", {"x-hotseat-max-wait": "3"}),
        ]
        for model, headers in asks:
            async with client.post(url + CHAT, json=chat_body(model), headers=headers) as answer:
                assert answer.status == 200
        async with client.post(url + CHAT, json=chat_body("m"), headers={"x-hotseat-class": "vip"}) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == "invalid_header"
    assert [round(want.deadline_s - want.arrived_s, 3) for want in desk.wants] == [600, 30, 55, 20, 3]
    classes = [ModelClass.INTERACTIVE, ModelClass.INTERACTIVE, ModelClass.BATCH, ModelClass.STANDARD, ModelClass.STANDARD]
    assert [want.model_class for want in desk.wants] == classes
    assert all(want.principal == "local" and not want.second_try for want in desk.wants)


async def test_listing_models_asks_for_nothing() -> None:
    desk = new_desk()
    async with gateway(desk) as url, ClientSession() as client:
        desk.add("m", awake=False)
        for path in ("/v1/models", "/v1/models/m"):
            for method in ("GET", "HEAD"):
                async with client.request(method, url + path) as answer:
                    assert answer.status == 200
    assert desk.wants == []


# --- bodies -----------------------------------------------------------------------------------------------------------


async def test_a_large_body_arrives_whole() -> None:
    desk = new_desk()
    async with engine() as (chat, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url, served_model="much-longer-served-name")
        body = json.dumps(chat_body("m", image="A" * (12 << 20))).encode()

        async def pieces() -> Any:  # chunked, without a length
            for start in range(0, len(body), 1 << 20):
                yield body[start : start + (1 << 20)]

        for data in (io.BytesIO(body), pieces()):
            async with client.post(url + CHAT, data=data) as answer:
                assert answer.status == 200
    assert [seen.body for seen in chat.seen] == [body.replace(b'"m"', b'"much-longer-served-name"', 1)] * 2


async def test_a_compressed_body_is_read_and_bounded_by_its_real_size() -> None:
    desk = new_desk()
    settings = GatewaySettings(max_body_bytes=100_000)
    async with engine() as (chat, engine_url), gateway(desk, settings) as url, ClientSession() as client:
        desk.add("m", engine_url)
        small = json.dumps(chat_body("m")).encode()
        bomb = gzip.compress(b'{"model":"m","x":"' + b"A" * 3_000_000 + b'"}', 1)
        async with client.post(url + CHAT, data=gzip.compress(small), headers={"Content-Encoding": "gzip"}) as answer:
            assert answer.status == 200
        assert chat.seen[0].body == small
        assert "Content-Encoding" not in chat.seen[0].headers
        async with client.post(url + CHAT, data=bomb, headers={"Content-Encoding": "gzip"}) as answer:
            assert (await answer.json())["error"]["code"] == "body_too_large"
        async with client.post(url + CHAT, data=b"not gzip", headers={"Content-Encoding": "gzip"}) as answer:
            assert answer.status == 400


async def test_bodies_above_the_limit_are_refused_before_they_are_read() -> None:
    desk = new_desk()
    async with gateway(desk, GatewaySettings(max_body_bytes=1000)) as url:
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n".encode())
        assert (await client.head()).startswith("HTTP/1.1 413 ")
        await client.close()
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n".encode())
        assert (await client.head()).startswith("HTTP/1.1 413 ")
        await client.close()
        client = await RawClient.connect(url)
        client.writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n".encode() + b"x" * 1000 + b"\r\n1\r\nx\r\n"
        )
        head = await client.head()
        assert head.startswith("HTTP/1.1 413 ")
        told = json.loads(await client.reader.readexactly(int(head.lower().split("content-length: ")[1].split("\r\n")[0])))
        assert "1000" in told["error"]["message"]
        await client.close()


async def test_a_client_that_asks_before_sending_is_told_to_go_on() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        body = json.dumps(chat_body("m")).encode()
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert (await client.head()).startswith("HTTP/1.1 100 ")
        client.writer.write(body)
        assert (await client.head()).startswith("HTTP/1.1 200 ")
        await client.close()


async def test_a_body_that_stops_coming_is_given_up() -> None:
    desk = new_desk()
    async with gateway(desk, GatewaySettings(body_idle_s=0.05)) as url:
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert (await client.head()).startswith("HTTP/1.1 408 ")
        await client.close()


async def test_all_bodies_together_are_bounded_and_given_back() -> None:
    desk = new_desk()
    settings = GatewaySettings(total_body_bytes=250_000)
    async with engine() as (_, engine_url):
        desk.add("asleep", engine_url, awake=False)
        app = build_app(desk, desk.clock, settings)
        budget = app[INFERENCE].budget
        async with serving(app, own_runner=True) as url, ClientSession() as client:
            body = chat_body("asleep", x="A" * 100_000)
            waiting = [asyncio.create_task(client.post(url + CHAT, json=body)) for _ in range(2)]
            await desk.until(lambda: desk.held("asleep") == 2)
            assert 200_000 < budget.used_bytes <= 250_000
            async with client.post(url + CHAT, json=body) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (429, "5")
                assert (await answer.json())["error"]["code"] == "queue_full"
            vanished = await RawClient.connect(url)
            vanished.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n".encode() + b"x" * 10_000)
            before = budget.used_bytes
            while budget.used_bytes == before:
                await asyncio.sleep(0)
            await vanished.close(reset=True)
            while budget.used_bytes != before:
                await asyncio.sleep(0)
            desk.wake("asleep")
            for task in waiting:
                assert (await task).status == 200
            assert budget.used_bytes == 0
    assert desk.settled()


# --- many at once -----------------------------------------------------------------------------------------------------


async def test_fifty_first_requests_wait_and_are_all_answered() -> None:
    desk = new_desk()
    async with engine() as (chat, engine_url), gateway(desk) as url, ClientSession() as client:
        desk.add("cold", engine_url, awake=False)
        asking = [asyncio.create_task(client.post(url + CHAT, json=chat_body("cold", stream=number % 2 == 0))) for number in range(50)]
        await desk.until(lambda: desk.held("cold") == 50)
        assert chat.seen == []
        desk.wake("cold")
        for task in asking:
            answer = await task
            assert answer.status == 200
            assert answer.headers["x-hotseat-woke"] == "1"
            await answer.read()
    assert desk.settled()
    assert [one.outcome for one in desk.released] == [Outcome.OK] * 50


async def test_connections_to_an_engine_are_used_again() -> None:
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}')

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk) as url, ClientSession() as client:
        desk.add("m", engine_url)
        for _ in range(5):
            async with client.post(url + CHAT, json=chat_body("m")) as answer:
                assert answer.status == 200
    assert connections == 1
