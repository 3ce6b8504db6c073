"""The event feed of a real daemon: a lone event reaches who waits for it."""

import asyncio
from pathlib import Path

import aiohttp

from tests.support.house import fake, house
from tests.support.real import MIB

SEAT = {"cpu0": 256 * MIB}
FEED = "/control/v1/events"


async def test_a_lone_event_ends_every_long_poll(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a"), SEAT) as daemon:
        for round_ in range(1, 4):
            await daemon.act("wake", "a")
            await daemon.told(round_, "started")
            after = (await daemon.get(f"{FEED}?limit=1"))["after"]
            waiting = [asyncio.create_task(daemon.get(f"{FEED}?after={after}&wait=600")) for _ in range(3)]
            await daemon.act("stop", "a")  # the only event, and nothing comes after it
            kinds = [[item["kind"] for item in page["items"]] for page in await asyncio.gather(*waiting)]
            assert kinds == [["stopped"]] * 3


async def test_a_lone_event_does_not_wait_for_the_next_ping(tmp_path: Path) -> None:
    headers = {"Accept": "text/event-stream"}
    async with house(tmp_path, fake("a"), SEAT) as daemon, aiohttp.ClientSession() as client:
        await daemon.act("wake", "a")
        await daemon.told(1, "started")
        async with client.get(daemon.url + FEED, headers=headers) as answer:
            assert (await answer.content.readline()).startswith(b"retry: ")
            await daemon.act("stop", "a")
            lines = []
            while b"event: stopped\n" not in lines:
                lines.append(await answer.content.readline())
            assert b": ping\n" not in lines
