"""The control API over real sockets: what each resource answers, and how it says no."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from scheduler.api.access import local_policy
from scheduler.api.app import build_control_app, endpoints
from scheduler.api.control_socket import bind_control_socket
from scheduler.api.schemas import Action, ModelDetail, ModelStatus, Status, StoryEntry
from scheduler.domain.errors import Permanent, Temporary
from tests.support import world_devices, worlds
from tests.support.fake_plane import T0, FakePlane

SLASHED = "Qwen/Qwen3-8B:Q4@v1+x"


class Served:
    """The application on a control socket; requests go over it unless ``tcp`` is used."""

    def __init__(self, plane: FakePlane, socket_path: Path, base: str, app: web.Application, runner: web.AppRunner) -> None:
        self.plane, self.socket_path, self.base, self.app, self.runner = plane, socket_path, base, app, runner
        self.unix = aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(socket_path)))
        self.tcp = aiohttp.ClientSession(base)

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.unix.get(path) as response:
            return response.status, await response.json(content_type=None)

    async def post(self, path: str, body: bytes | dict[str, object] = b"") -> tuple[int, Any, dict[str, str]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.unix.post(path, data=data) as response:
            return response.status, await response.json(content_type=None), dict(response.headers)

    async def close(self) -> None:
        await self.unix.close()
        await self.tcp.close()
        await self.runner.cleanup()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    cards = [worlds.awake_card(), worlds.failing_card(), worlds.detail(worlds.model(SLASHED, engine="command", aliases=["default"]))]
    plane = FakePlane(cards, logs=tmp_path)
    app = build_control_app(plane, local_policy(["127.0.0.1"]))
    runner = web.AppRunner(app, shutdown_timeout=5.0)
    await runner.setup()
    path = tmp_path / "control.sock"
    await web.SockSite(runner, bind_control_socket(path, None)).start()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served = Served(plane, path, f"http://127.0.0.1:{runner.addresses[-1][1]}", app, runner)
    yield served
    await served.close()


async def test_status_has_every_key_and_null_for_the_unknown(served: Served) -> None:
    status, body = await served.get("/control/v1/status")
    assert status == 200
    assert set(body) == set(Status.model_fields)
    wanted = {"class" if key == "model_class" else key for key in ModelStatus.model_fields}
    assert all(set(model) == wanted for model in body["models"])
    assert body["models"][0]["last_used_at"] == "2026-11-30T00:53:12.000Z"
    assert body["models"][2]["last_used_at"] is None
    assert body["host"] == {"sleep_bytes": None, "sleep_limit_bytes": None, "kv_bytes": None}


@pytest.mark.parametrize("name", [SLASHED, "a/b/c", "x:y", "user@host", "plus+plus", "100%25", "-", "sleep", "wake/story"])
async def test_names_with_special_characters_arrive_whole(served: Served, name: str) -> None:
    from urllib.parse import quote

    served.plane.models[name] = worlds.detail(worlds.model(name, engine="command"))
    import yarl

    async with served.unix.get(yarl.URL(f"/control/v1/models/{quote(name, safe='')}", encoded=True)) as response:
        assert response.status == 200
        assert (await response.json())["name"] == name
    async with served.unix.post(yarl.URL(f"/control/v1/models/{quote(name, safe='')}/wake", encoded=True)) as response:
        assert (await response.json())["model"] == name


async def test_models_are_listed_in_pages_that_join_without_gap_or_repeat(served: Served) -> None:
    served.plane.models = {f"m{i}": worlds.detail(worlds.model(f"m{i}")) for i in range(7)}
    seen, after = [], ""
    while True:
        _, page = await served.get(f"/control/v1/models?limit=3{after}")
        seen += [model["name"] for model in page["items"]]
        if not page["has_more"]:
            assert page["after"] is None
            break
        after = f"&after={page['after']}"
    assert seen == [f"m{i}" for i in range(7)]


@pytest.mark.parametrize("cursor", ["%FF", "zzz", "bm90LWEtbW9kZWw", "é"])
async def test_a_cursor_that_the_list_did_not_give_out_is_refused(served: Served, cursor: str) -> None:
    status, body = await served.get(f"/control/v1/models?after={cursor}")
    assert (status, body["code"]) == (400, "invalid")


async def test_a_model_by_its_alias_has_what_the_card_needs(served: Served) -> None:
    status, body = await served.get("/control/v1/models/llama")
    assert status == 200
    card = ModelDetail.model_validate(body)
    assert (card.name, card.source, card.starts[0].exit) == ("llama-70b", "file:/etc/hotseat/hotseat.yaml:41", "exit 1")
    assert set(body) >= {"memory", "starts", "log_line", "error", "instances"}


async def test_an_unknown_model_is_404_with_the_nearest_name(served: Served) -> None:
    status, body = await served.get("/control/v1/models/gemma-9k")
    assert status == 404
    assert body == {
        "type": "urn:hotseat:problem:model_not_found",
        "title": "Not found",
        "status": 404,
        "detail": "there is no model 'gemma-9k'",
        "instance": "/control/v1/models/gemma-9k",
        "code": "model_not_found",
        "fix": "did you mean gemma-8k?",
    }


async def test_problems_are_problem_json(served: Served) -> None:
    async with served.unix.get("/control/v1/models/nope") as response:
        assert response.headers["Content-Type"].startswith("application/problem+json")


async def test_an_action_that_ends_at_once_is_200_with_its_effect(served: Served) -> None:
    status, body, headers = await served.post("/control/v1/models/gemma-8k/stop", {"now": True})
    assert status == 200
    action = Action.model_validate(body)
    assert (action.state, action.changed, action.from_phase, action.to_phase) == ("done", True, "awake", "stopped")
    assert headers["Location"] == f"/control/v1/actions/{action.id}"
    verb, name, options, principal = served.plane.acts[0]
    assert (verb, name, options.now, principal) == ("stop", "gemma-8k", True, "uid:root")


async def test_a_long_action_is_202_and_can_be_waited_for(served: Served) -> None:
    served.plane.hold = True
    status, body, _ = await served.post("/control/v1/models/llama-70b/wake?wait=0.01")
    assert (status, body["state"]) == (202, "running")
    waiting = asyncio.create_task(served.get(f"/control/v1/actions/{body['id']}?wait=30"))
    async with served.plane.changed:
        await served.plane.changed.wait_for(lambda: served.plane.waits == 1)
    assert (await served.get(f"/control/v1/actions/{body['id']}"))[1]["state"] == "running"
    served.plane.finish(body["id"])
    await served.plane.notify()
    status, body = await waiting
    assert (status, body["state"]) == (200, "done")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/control/v1/models/gemma-8k/sleep", {"level": 3}, "invalid"),
        ("/control/v1/models/gemma-8k/sleep", {"level": "1"}, "invalid"),
        ("/control/v1/models/gemma-8k/stop", {"now": "yes please"}, "invalid"),
        ("/control/v1/models/gemma-8k/stop", {"now": "yes"}, "invalid"),
        ("/control/v1/models/gemma-8k/stop", {"now": 1}, "invalid"),
        ("/control/v1/models/gemma-8k/stop", {"now": None}, "invalid"),
        ("/control/v1/models/gemma-8k/sleep", {"level": True}, "invalid"),
        ("/control/v1/models/gemma-8k/sleep", {"level": 1.0}, "invalid"),
        ("/control/v1/models/gemma-8k/stop", {"force": True}, "invalid"),
        ("/control/v1/models/gemma-8k/wake", {"for": "2h"}, "invalid"),
        ("/control/v1/models/gemma-8k/wake", b"[1]", "invalid"),
        ("/control/v1/models/gemma-8k/wake", b"{", "invalid"),
        ("/control/v1/models/gemma-8k/wake", b"\xff\xfe", "invalid"),
        ("/control/v1/models/gemma-8k/wake", b"[" * 30000, "invalid"),
        ("/control/v1/models/gemma-8k/wake?wait=nan", b"", "invalid"),
        ("/control/v1/models/gemma-8k/wake?wait=-1", b"", "invalid"),
        ("/control/v1/models/gemma-8k/wake?wait=1e9", b"", "invalid"),
        ("/control/v1/models/gemma-8k/wake?wat=1", b"", "invalid"),
        ("/control/v1/models/" + "x" * 200 + "/wake", b"", "invalid"),
    ],
)
async def test_bad_requests_are_400_and_do_nothing(served: Served, path: str, body: Any, code: str) -> None:
    status, answer, _ = await served.post(path, body)
    assert (status, answer["code"]) == (400, code)
    assert answer["detail"]
    assert served.plane.acts == []


@pytest.mark.parametrize(
    ("header", "body", "leaves"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 7", b"garbage", False),
        ("Content-Encoding: deflate\r\nContent-Length: 7", b"garbage", False),
        ("Transfer-Encoding: chunked", b"zz\r\n{}\r\n0\r\n\r\n", False),
        ("Content-Length: 7", b"{", True),
    ],
)
async def test_a_body_that_is_broken_as_a_transfer_is_the_callers_mistake(
    served: Served, caplog: pytest.LogCaptureFixture, header: str, body: bytes, leaves: bool
) -> None:
    reader, writer = await asyncio.open_unix_connection(served.socket_path)
    head = f"POST /control/v1/models/gemma-8k/stop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n"
    writer.write(head.encode() + body)
    if leaves:
        await writer.drain()
        writer.close()
        await served.get("/control/v1/status")
    else:
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.split(b" ")[1] == b"400"
        writer.close()
    await writer.wait_closed()
    await served.runner.cleanup()  # whoever answers has done so
    assert served.plane.acts == []
    assert [record.getMessage() for record in caplog.records if record.name.startswith("scheduler.")] == []


async def test_a_body_above_64_kib_is_413(served: Served) -> None:
    status, answer, _ = await served.post("/control/v1/models/gemma-8k/wake", b" " * 70_000)
    assert (status, answer["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=-5", "limit=٣", "foo=1"])
async def test_bad_query_parameters_are_named(served: Served, query: str) -> None:
    status, answer = await served.get(f"/control/v1/models/gemma-8k/story?{query}")
    assert (status, answer["code"]) == (400, "invalid")
    assert query.split("=")[0] in answer["detail"]


async def test_a_state_that_does_not_allow_it_is_409_with_the_fix(served: Served) -> None:
    status, answer, _ = await served.post("/control/v1/models/gemma-8k/sleep")
    assert (status, answer["code"], answer["fix"]) == (409, "sleep_unsupported", "hotseat stop gemma-8k")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Temporary("the store cannot commit", retry_after_s=400.2, code="store_unavailable"), 503),
        (Permanent("needs 90 GiB, has 80", code="does_not_fit"), 507),
        (Permanent("no"), 422),
        (ZeroDivisionError("secret detail"), 500),
    ],
)
async def test_errors_of_the_daemon_become_problems(served: Served, error: Exception, status: int) -> None:
    served.plane.break_with = error
    async with served.unix.get("/control/v1/status") as response:
        assert response.status == status
        body = await response.json(content_type=None)
        assert response.headers.get("Retry-After") == ("120" if isinstance(error, Temporary) else None)
    assert "secret detail" not in json.dumps(body)


async def test_unknown_paths_and_methods_are_problems_too(served: Served) -> None:
    status, answer = await served.get("/control/v1/nothing")
    assert (status, answer["code"]) == (404, "no_such_endpoint")
    status, answer = await served.get("/control/v1/models/Qwen/Qwen3-8B")
    assert (status, "%2F" in answer["fix"]) == (404, True)
    async with served.unix.delete("/control/v1/status") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
        assert (await response.json(content_type=None))["code"] == "method_not_allowed"


async def test_story_is_the_last_entries_oldest_first(served: Served) -> None:
    entries = [
        StoryEntry(
            seq=i, at=T0 + i, instance="gemma-8k#0", from_phase="stopped", to_phase="launching", event="LaunchIntended", cause="hold:1"
        )
        for i in range(5)
    ]
    served.plane.stories["gemma-8k"] = entries
    _, page = await served.get("/control/v1/models/gemma-8k/story?limit=2")
    assert [item["seq"] for item in page["items"]] == [3, 4]
    assert (page["has_more"], page["items"][0]["from"], page["items"][0]["to"]) == (True, "stopped", "launching")
    _, page = await served.get("/control/v1/models/gemma-8k/story")
    assert (len(page["items"]), page["has_more"]) == (5, False)


async def test_logs_by_lines_and_by_offset(served: Served) -> None:
    path = served.plane.log_file("gemma-8k", 1)
    path.write_text("".join(f"line {i}\n" for i in range(300)))
    _, piece = await served.get("/control/v1/models/gemma-8k/logs?lines=2")
    assert (piece["lines"], piece["truncated"], piece["launch"]) == (["line 298", "line 299"], True, 1)
    with path.open("a") as file:
        file.write("more\npart")
    _, piece = await served.get(f"/control/v1/models/gemma-8k/logs?launch=last&offset={piece['offset']}")
    assert piece["lines"] == ["more"]
    served.plane.log_file(None, 0).write_text("daemon line\n")
    _, piece = await served.get("/control/v1/logs")
    assert (piece["model"], piece["launch"], piece["lines"]) == (None, None, ["daemon line"])
    for query in ("launch=0", "launch=first", "lines=10001", "offset=-1"):
        status, _ = await served.get(f"/control/v1/models/gemma-8k/logs?{query}")
        assert status == 400


async def test_operations_endpoints(served: Served) -> None:
    for path in ("/livez", "/health", "/healthz"):
        async with served.tcp.get(path) as response:
            assert (response.status, await response.text()) == (200, "ok\n")
        async with served.tcp.head(path) as response:
            assert response.status == 200
    served.plane.alive = False
    async with served.tcp.get("/livez") as response:
        assert response.status == 503
    async with served.tcp.get("/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "hotseat_build_info" in await response.text()
    _, version = await served.get("/control/v1/version")
    assert version == {"version": "0.1.0", "api": "v1", "pid": 1, "started_at": "2026-11-30T00:53:20.000Z"}


async def test_readyz_is_503_with_what_is_degraded(served: Served) -> None:
    served.plane.degraded = list(worlds.broken().degraded)
    served.plane.is_ready = False
    async with served.tcp.get("/readyz") as response:
        assert response.status == 503
        body = await response.json()
    assert [item["code"] for item in body["degraded"]] == ["device_lost", "store_unavailable"]
    assert "disk full" in body["degraded"][1]["message"]
    async with served.tcp.get("/readyz", headers={"X-Forwarded-For": "203.0.113.9"}) as response:
        assert (await response.json())["degraded"][1]["message"] == ""


async def test_shutdown_does_not_wait_for_those_who_only_wait(served: Served) -> None:
    served.plane.hold = True
    _, body, _ = await served.post("/control/v1/models/llama-70b/wake")
    waiting = [
        asyncio.create_task(served.get(f"/control/v1/actions/{body['id']}?wait=600")),
        asyncio.create_task(served.get("/control/v1/events?after=0&wait=600")),
    ]
    async with served.plane.changed:
        await served.plane.changed.wait_for(lambda: served.plane.waits == 2)
    async with asyncio.timeout(3):
        await served.runner.cleanup()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, aiohttp.ClientError) for result in results)


async def test_devices_in_pages(served: Served) -> None:
    served.plane.base = served.plane.base.model_copy(update={"devices": world_devices.machine().devices})
    status, page = await served.get("/control/v1/devices?limit=4")
    assert (status, page["has_more"]) == (200, True)
    _, rest = await served.get(f"/control/v1/devices?after={page['after']}")
    assert [d["id"] for d in page["items"] + rest["items"]] == ["gpu0", "gpu1", "gpu2", "gpu2m0", "gpu3", "gpu4", "cpu0", "gpu9"]
    assert (rest["has_more"], rest["after"]) == (False, None)
    _, whole = await served.get("/control/v1/status")
    assert whole["devices"] == page["items"] + rest["items"]
    served.plane.base = served.plane.base.model_copy(update={"devices": []})
    status, problem = await served.get(f"/control/v1/devices?after={page['after']}")
    assert (status, problem["code"]) == (400, "invalid")
    assert "gpu2m0" in problem["detail"]


async def test_one_device(served: Served) -> None:
    served.plane.base = served.plane.base.model_copy(update={"devices": world_devices.machine().devices})
    status, device = await served.get("/control/v1/devices/gpu3")
    assert (status, device["health"], device["used_bytes"], device["claims"]) == (200, "lost", None, [])
    status, problem = await served.get("/control/v1/devices/gpu7")
    assert (status, problem["code"]) == (404, "device_not_found")
    for wrong in ("g" * 64, "a%00b"):
        status, problem = await served.get(f"/control/v1/devices/{wrong}")
        assert (status, problem["code"]) == (400, "invalid")
    status, problem = await served.get("/control/v1/devices/gpu3?wait=1")
    assert (status, problem["code"]) == (400, "invalid")


def test_every_endpoint_is_listed(tmp_path: Path) -> None:
    found = endpoints(build_control_app(FakePlane(), local_policy([])))
    assert ("POST", "/control/v1/models/{name}/{verb}") in found
    assert ("GET", "/livez") in found
    assert len(found) == len(set(found)) == 17
