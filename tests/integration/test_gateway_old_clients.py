"""Clients of HTTP/1.0, and those that ask before they send."""

import asyncio
import json
from typing import Any

import pytest

from scheduler.gateway.settings import GatewaySettings
from tests.support.gateway_rig import RawClient, chat_body, engine, gateway, new_desk, raw_engine, read_request

CHAT = "/v1/chat/completions"
BODY = json.dumps(chat_body("m")).encode()


class Counted:
    """A GatewayMetrics that remembers requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []

    def request(self, *told: Any) -> None:
        """One more."""
        self.requests.append(told)

    def __getattr__(self, name: str) -> Any:
        """Nothing else is of interest."""
        return lambda *_: None


async def test_a_large_answer_that_is_cut_does_not_look_whole_to_a_client_of_http_1_0() -> None:
    """Without chunks or a length, a closed connection is how a whole answer ends."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        data = b'{"data": [' + b"1," * 100_000
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()

    desk = new_desk()
    async with raw_engine(script) as engine_url, gateway(desk, GatewaySettings(answer_buffer_bytes=1000)) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
        await client.close()


async def test_a_client_of_http_1_0_gets_no_interim_answer() -> None:
    desk = new_desk()
    async with engine() as (_, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n".encode() + BODY)
        assert (await client.head()).startswith("HTTP/1.0 200")
        await client.close()


async def test_a_body_refused_before_it_was_sent_is_counted() -> None:
    metrics = Counted()
    async with gateway(new_desk(), GatewaySettings(max_body_bytes=100), metrics) as url:
        client = await RawClient.connect(url)
        client.writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\nExpect: 100-continue\r\n\r\n".encode())
        assert " 413 " in (await client.head()).splitlines()[0]
        await client.close()
    assert metrics.requests == [("", "chat/completions", 413)]
