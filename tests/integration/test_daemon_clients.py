"""Clients that leave, and callers that only look."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_knobs import Speech
from tests.support.house import House, fake, house
from tests.support.real import MIB

SEAT = {"cpu0": 256 * MIB}
#: Two engines of this size do not fit together on SEAT.
BIG = 120
#: An engine notices within this that nobody listens any more; the issue says "about a second".
CLOSED_WITHIN_S = 2.0


async def leaves(asking: "asyncio.Task[Any]") -> None:
    """The client closes its connection."""
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled()


async def outcome(daemon: House, model: str) -> str:
    """How the last request ended, as the engine saw it."""
    found: str = (await daemon.asked(model))[-1]["outcome"]
    return found


async def test_a_client_that_leaves_the_queue_starts_nothing(tmp_path: Path) -> None:
    models = fake("a", mib=BIG, speech=Speech(tokens=1000, token_s=0.05)) | fake("b", mib=BIG)
    async with house(tmp_path, models, SEAT) as daemon:
        streaming = asyncio.create_task(daemon.chat("a", stream=True, max_tokens=1000))
        await daemon.until_model("a", lambda a: a["active"] == 1)
        held = [asyncio.create_task(daemon.chat("b", stream=stream)) for stream in (False, True)]
        await daemon.until_model("b", lambda b: b["held"] == 2)
        for asking in held:
            await leaves(asking)
        await daemon.until_model("b", lambda b: b["held"] == 0)
        await leaves(streaming)
        await daemon.until_model("a", lambda a: a["active"] == 0)
        await daemon.tell("a", token_s=0.0)
        assert (await daemon.chat("a"))[0] == 200  # the seat was free in between, and nobody took it
        assert daemon.launches("b") == []
        assert (await daemon.model("b"))["phase"] == "stopped"


async def test_the_engine_hears_at_once_that_a_client_has_left(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", speech=Speech(tokens=1000, token_s=0.05)), SEAT) as daemon:
        for sent, stream in enumerate((True, False), start=1):
            asking = asyncio.create_task(daemon.chat("a", stream=stream, max_tokens=1000))
            await daemon.until_model("a", lambda a: a["active"] == 1)
            while len(await daemon.asked("a")) < sent:
                await asyncio.sleep(0.01)
            assert await outcome(daemon, "a") == "open"
            await leaves(asking)
            async with asyncio.timeout(CLOSED_WITHIN_S):
                while await outcome(daemon, "a") == "open":
                    await asyncio.sleep(0.01)
            assert await outcome(daemon, "a") == "client_gone"
            await daemon.until_model("a", lambda a: a["active"] == 0)
        assert len(daemon.launches("a")) == 1


async def test_looking_wakes_nothing_and_is_no_use(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a") | fake("b", aliases=["other"]), SEAT) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        await daemon.settled()
        before = {m["name"]: (m["phase"], m["last_used_at"], m["counters"]) for m in (await daemon.status())["models"]}
        assert before["a"][1] is not None
        async with aiohttp.ClientSession() as client:
            for _ in range(10):
                for path in (
                    "/metrics",
                    "/v1/models",
                    "/v1/models/b",
                    "/v1/models/other",
                    "/livez",
                    "/readyz",
                    "/control/v1/models/b",
                ):
                    async with client.get(daemon.url + path) as answer:
                        assert answer.status == 200, path
                        await answer.read()
            async with client.get(f"{daemon.url}/metrics") as answer:
                text = await answer.text()
            async with client.get(f"{daemon.url}/v1/models") as answer:
                assert {model["id"] for model in (await answer.json())["data"]} >= {"a", "b"}
        assert 'hotseat_model_phase{model="a",phase="awake"} 1.0' in text
        assert 'hotseat_model_phase{model="b",phase="stopped"} 1.0' in text
        after = {m["name"]: (m["phase"], m["last_used_at"], m["counters"]) for m in (await daemon.status())["models"]}
        assert after == before
        assert daemon.launches("b") == []
        assert len(await daemon.asked("a")) == 1


@pytest.mark.parametrize("headers", [{"Host": "evil.example:11500"}, {"Origin": "https://evil.example"}, {"Origin": "null"}])
async def test_a_web_page_of_another_site_gets_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    """A page may send a body of text/plain without asking first, and a name of its own may lead to 127.0.0.1."""
    async with house(tmp_path, fake("a"), SEAT) as daemon, aiohttp.ClientSession() as client:
        body = json.dumps({"model": "a", "messages": []})
        told = {**headers, "Content-Type": "text/plain"}
        async with client.post(daemon.url + "/v1/chat/completions", data=body, headers=told) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (403, "not_permitted")
        async with client.get(daemon.url + "/v1/models", headers=headers) as answer:
            assert answer.status == 403
        assert (await daemon.model("a"))["phase"] == "stopped"
        own = {"Origin": daemon.url, "X-Forwarded-For": "10.0.0.1"}
        async with client.get(daemon.url + "/v1/models", headers=own) as answer:
            assert answer.status == 200


async def test_a_stream_that_outlasts_the_daemon_ends_with_an_error_event(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", speech=Speech(tokens=10_000, token_s=0.05)), SEAT) as daemon:
        streaming = asyncio.create_task(daemon.chat("a", stream=True, max_tokens=10_000))
        await daemon.until_model("a", lambda a: a["active"] == 1)
        assert await daemon.terminate() == 0
        status, text = await streaming
        assert status == 200
        assert text.rstrip().splitlines()[-1].startswith('data: {"error"')
        assert "[DONE]" not in text
        await daemon.start()
