"""Models that share a seat take turns: real daemon, real engines, real HTTP. Order is asserted, never a duration."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_knobs import Speech
from tests.support.house import House, events_of, fake, house, words_of
from tests.support.pace import pause
from tests.support.real import MIB

SEAT = {"cpu0": 256 * MIB}
#: Two engines of this size do not fit together on SEAT.
BIG = 120
QUICK_TURNS: dict[str, Any] = {"defaults": {"min_awake": "0s", "max_wait": "120s"}, "gateway": {"turn_factor": 1}}


async def test_fifty_first_requests_start_one_engine(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", knobs={"start_s": 0.5}), SEAT) as daemon:
        answers = await asyncio.gather(*(daemon.chat("a") for _ in range(50)))
        assert [status for status, _ in answers] == [200] * 50
        assert len(daemon.launches("a")) == 1
        assert await daemon.told(1, "started") == [("started", "a")]
        assert len(await daemon.asked("a")) == 50
        assert (await daemon.model("a"))["counters"]["requests"] == 50


@pytest.mark.parametrize(
    ("tokens", "token_s"),
    [pytest.param(50, 0.05, id="short"), pytest.param(100, 0.2, id="twenty seconds", marks=pytest.mark.slow)],
)
async def test_a_stream_ends_whole_before_its_model_makes_room(tmp_path: Path, tokens: int, token_s: float) -> None:
    models = fake("a", mib=BIG, speech=Speech(tokens=tokens, token_s=token_s)) | fake("b", mib=BIG)
    ended: list[str] = []

    async def stream(daemon: House, begun: asyncio.Event) -> str:
        text = b""
        async with aiohttp.ClientSession() as client:
            body = {"model": "a", "messages": [], "stream": True, "max_tokens": tokens}
            async with client.post(f"{daemon.url}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
                async for piece in answer.content.iter_any():
                    text += piece
                    begun.set()
        ended.append("a")
        return text.decode()

    async def ask(daemon: House) -> int:
        status, _ = await daemon.chat("b")
        ended.append("b")
        return status

    async with house(tmp_path, models, SEAT, **QUICK_TURNS) as daemon:
        begun = asyncio.Event()
        streaming = asyncio.create_task(stream(daemon, begun))
        await begun.wait()
        asking = asyncio.create_task(ask(daemon))
        await daemon.until_model("b", lambda b: b["held"] == 1)
        assert (await daemon.model("a"))["active"] == 1
        events = events_of(await streaming)
        assert events[-1] == "[DONE]"
        assert words_of(events) == [f"t{n}" for n in range(tokens)]
        assert await asking == 200
        assert ended == ["a", "b"]
        assert await daemon.told(3, "started", "stopped") == [("started", "a"), ("stopped", "a"), ("started", "b")]
        assert [len(daemon.launches(name)) for name in "ab"] == [1, 1]


@pytest.mark.parametrize("start_s", [0.5, pytest.param(3.0, marks=pytest.mark.slow)])
async def test_arrivals_are_served_in_groups(tmp_path: Path, start_s: float) -> None:
    models: dict[str, Any] = {}
    for name in "abc":
        models |= fake(name, mib=BIG, knobs={"start_s": start_s})
    async with house(tmp_path, models, SEAT, defaults={"max_wait": "120s"}) as daemon:
        asking = []
        for name in "abaacabc":
            before = await total_seen(daemon)
            asking.append(asyncio.create_task(daemon.chat(name)))
            while await total_seen(daemon) == before:
                await asyncio.sleep(0.01)
        answers = await asyncio.gather(*asking)
        assert [status for status, _ in answers] == [200] * 8
        assert {name: len(daemon.launches(name)) for name in "abc"} == {"a": 1, "b": 1, "c": 1}


async def total_seen(daemon: House) -> int:
    """Requests that have been granted or are held: what the scheduler knows of."""
    return sum(model["counters"]["requests"] + model["held"] for model in (await daemon.status())["models"])


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(180)])])
async def test_overlapping_traffic_cannot_starve_the_other_model(tmp_path: Path, rounds: int) -> None:
    """Two clients keep ``a`` busy without a gap; ``b`` is answered all the same: a longer wait would be a 503."""
    models = fake("a", mib=BIG, speech=Speech(tokens=8, token_s=0.05)) | fake("b", mib=BIG)
    answers: dict[str, list[int]] = {"a": [], "b": []}

    async def keep_busy(daemon: House, offset: float) -> None:
        await pause(offset)  # half a request later than the other: their requests overlap
        while True:
            answers["a"].append((await daemon.chat("a"))[0])

    async with house(tmp_path, models, SEAT, within_s=30 + 25 * rounds, defaults={"max_wait": "8s"}) as daemon:
        for name in "ba":  # from now on it is known how long a start takes
            assert (await daemon.act("wake", name))["state"] == "done"
        busy = [asyncio.create_task(keep_busy(daemon, offset)) for offset in (0.0, 0.2)]
        for _ in range(rounds):
            await daemon.until_model("a", lambda a: a["active"] == 2)
            served = len(answers["a"])
            answers["b"].append((await daemon.chat("b"))[0])
            assert len(answers["a"]) > served, "nothing kept the seat busy meanwhile"
        for task in busy:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*busy)
        assert set(answers["a"]) == {200}
        assert answers["b"] == [200] * rounds
