"""The event feed: pages, long polling, server-sent events that resume."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from scheduler.api.access import local_policy
from scheduler.api.app import build_control_app
from scheduler.api.service import ActOptions
from tests.support import worlds
from tests.support.fake_plane import FakePlane
from tests.support.gateway_rig import serving

PATH = "/control/v1/events"


class Feed:
    def __init__(self, plane: FakePlane, client: aiohttp.ClientSession) -> None:
        self.plane, self.client = plane, client

    async def get(self, query: str = "") -> tuple[list[int], dict[str, object]]:
        async with self.client.get(f"{PATH}{query}") as response:
            assert response.status == 200
            page = await response.json()
            return [item["seq"] for item in page["items"]], page

    async def happen(self, text: str) -> None:
        self.plane.add_event(text)
        await self.plane.notify()


@pytest.fixture
async def feed() -> AsyncIterator[Feed]:
    plane = FakePlane()
    runner = web.AppRunner(build_control_app(plane, local_policy(["127.0.0.1"])), shutdown_timeout=5.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
        yield Feed(plane, client)
    await runner.cleanup()


async def test_pages_forward_from_a_cursor(feed: Feed) -> None:
    for i in range(5):
        feed.plane.add_event(f"e{i}")
    assert (await feed.get("?limit=2"))[0] == [4, 5]
    seqs, page = await feed.get("?after=0&limit=2")
    assert (seqs, page["has_more"], page["after"]) == ([1, 2], True, "2")
    seqs, page = await feed.get(f"?after={page['after']}&limit=3")
    assert (seqs, page["has_more"]) == ([3, 4, 5], False)
    seqs, page = await feed.get(f"?after={page['after']}")
    assert (seqs, page["after"]) == ([], "5")


async def test_an_empty_feed_has_no_cursor(feed: Feed) -> None:
    seqs, page = await feed.get()
    assert (seqs, page["after"], page["has_more"]) == ([], None, False)


async def test_long_polling_returns_with_the_event(feed: Feed) -> None:
    waiting = asyncio.create_task(feed.get("?after=0&wait=30"))
    async with feed.plane.changed:
        await feed.plane.changed.wait_for(lambda: feed.plane.waits == 1)
    await feed.happen("now")
    assert (await waiting)[0] == [1]


async def test_long_polling_ends_empty(feed: Feed) -> None:
    assert (await feed.get("?after=0&wait=0.01"))[0] == []


async def read_events(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, str]]:
    """(id, data) of the next events; comments and the retry line are skipped."""
    found: list[tuple[str, str]] = []
    fields: dict[str, str] = {}
    async with asyncio.timeout(10):
        while len(found) < count:
            line = (await response.content.readline()).decode().rstrip("\n")
            if line:
                key, _, value = line.partition(": ")
                fields[key] = value
            elif "data" in fields:
                found.append((fields["id"], fields["data"]))
                fields = {}
    return found


async def stream(feed: Feed, **headers: str) -> aiohttp.ClientResponse:
    return await feed.client.get(PATH, headers={"Accept": "text/event-stream", **headers})


async def test_a_stream_begins_with_the_next_event_and_resumes_after_the_last_seen(feed: Feed) -> None:
    await feed.happen("before")
    response = await stream(feed)
    assert response.headers["Content-Type"] == "text/event-stream"
    async with feed.plane.changed:
        await feed.plane.changed.wait_for(lambda: feed.plane.waits == 1)
    await feed.happen("first")
    await feed.happen("second")
    assert [id_ for id_, _ in await read_events(response, 2)] == ["2", "3"]
    response.close()
    await feed.happen("while away")
    response = await stream(feed, **{"Last-Event-ID": "2"})
    found = await read_events(response, 2)
    assert [id_ for id_, _ in found] == ["3", "4"]
    assert '"text":"while away"' in found[1][1]
    response.close()


async def test_a_text_with_line_breaks_stays_one_event(feed: Feed) -> None:
    response = await stream(feed, **{"Last-Event-ID": "0"})
    await feed.happen("one\n\ndata: forged\nid: 99")
    [(id_, data)] = await read_events(response, 1)
    assert id_ == "1"
    assert "\\n\\ndata: forged" in data
    response.close()


@pytest.mark.parametrize("bad", ["x", "-1", "1e3", "9" * 30])
async def test_a_bad_last_event_id_is_refused(feed: Feed, bad: str) -> None:
    response = await stream(feed, **{"Last-Event-ID": bad})
    assert response.status == 400
    assert (await response.json(content_type=None))["code"] == "invalid"


async def test_an_error_inside_a_stream_ends_it(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    response = await stream(feed, **{"Last-Event-ID": "0"})
    async with feed.plane.changed:
        await feed.plane.changed.wait_for(lambda: feed.plane.waits == 1)

    async def broken(after: int | None, limit: int) -> list[object]:
        raise RuntimeError("the store is gone")

    monkeypatch.setattr(feed.plane, "events", broken)
    await feed.happen("unseen")
    async with asyncio.timeout(10):
        assert b"unseen" not in await response.content.read()


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        (PATH, "text/event-stream", "text/event-stream"),
        (f"{PATH}?after=0&wait=600", "*/*", "application/json; charset=utf-8"),
        ("/control/v1/actions/a1?wait=600", "*/*", "application/json; charset=utf-8"),
    ],
)
async def test_head_neither_waits_nor_streams(path: str, accept: str, kind: str) -> None:
    card = worlds.awake_card()
    plane = FakePlane([card])
    plane.hold = True
    await plane.act("stop", card.name, ActOptions(), "local")
    async with serving(build_control_app(plane, local_policy(["127.0.0.1"]))) as url:
        found = await answers(url, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")
    head, _, after = found.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200")
    assert f"Content-Type: {kind}" in head
    assert after.startswith("HTTP/1.1 200")
    assert plane.waits == 0


async def answers(url: str, request: str) -> str:
    """All that comes for a request and, on the same connection, one for the version."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{request}GET /control/v1/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        found = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return found
