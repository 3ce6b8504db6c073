"""What goes wrong with engines and disks ends in a named state with a reason and a fix, and concerns nobody else."""

import asyncio
import contextlib
import math
import os
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.behaviour import Child
from tests.support.fake_knobs import Speech
from tests.support.house import House, alive, events_of, fake, house, sleeper, until
from tests.support.real import MIB

SEAT = {"cpu0": 256 * MIB}
#: Two engines of this size do not fit together on SEAT.
BIG = 120


def devices(count: int) -> dict[str, int]:
    return {f"cpu{n}": 256 * MIB for n in range(count)}


@asynccontextmanager
async def chatting(daemon: House, model: str) -> AsyncIterator[None]:
    """Meanwhile somebody talks to ``model`` without a pause, and every answer must be right."""

    async def talk() -> None:
        while True:
            assert (await daemon.chat(model))[0] == 200

    talking = asyncio.create_task(talk())
    yield
    talking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await talking


# --- engines that die -----------------------------------------------------------------------------------------------


async def test_killed_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    models = fake("a", speech=Speech(tokens=1000, token_s=0.02)) | fake("good")
    async with house(tmp_path, models, SEAT) as daemon:
        assert (await daemon.chat("good"))[0] == 200
        async with chatting(daemon, "good"), aiohttp.ClientSession() as client:
            body = {"model": "a", "messages": [], "stream": True, "max_tokens": 1000}
            async with client.post(f"{daemon.url}/v1/chat/completions", json=body) as answer:
                begun = await answer.content.readany()
                pid = await daemon.pid("a")
                os.kill(pid, signal.SIGKILL)
                text = (begun + await answer.read()).decode()
        events = events_of(text)
        assert events[0]["choices"][0]["delta"]["content"] == "t0 "
        assert events[-1]["error"]["code"] == "engine_lost"
        assert "[DONE]" not in text
        status, text = await daemon.chat("a", stream=True, max_tokens=3)
        assert (status, events_of(text)[-1]) == (200, "[DONE]")
        assert await daemon.pid("a") != pid
        assert [(row["result"], row["exit_signal"]) for row in daemon.launches("a")] == [("lost", signal.SIGKILL), ("ready", None)]


async def test_a_request_that_is_tried_again_is_one_request(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", speech=Speech(cuts_before_first_byte=1)), SEAT) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        assert (await daemon.model("a"))["counters"]["requests"] == 1
        await daemon.terminate()  # usage is written at the latest when the daemon ends
        assert [(row["requests"], row["errors"]) for row in daemon.rows("SELECT requests, errors FROM usage_minutes")] == [(1, 0)]
        await daemon.start()


async def test_killed_before_its_first_byte_it_is_asked_once_more(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a", speech=Speech(first_token_s=2.0)), SEAT) as daemon:
        asking = asyncio.create_task(daemon.chat("a"))
        await daemon.until_model("a", lambda a: a["active"] == 1)
        while not await daemon.asked("a"):
            await asyncio.sleep(0.01)
        os.kill(await daemon.pid("a"), signal.SIGKILL)
        assert (await asking)[0] == 200
        assert len(daemon.launches("a")) == 2
        assert len(await daemon.asked("a")) == 1


async def test_an_engine_that_dies_of_a_request_is_not_fed_with_it_for_ever(tmp_path: Path) -> None:
    models = fake("a", speech=Speech(die_before_first_byte=True)) | fake("good")
    async with house(tmp_path, models, SEAT) as daemon:
        assert (await daemon.chat("good"))[0] == 200
        async with chatting(daemon, "good"):
            status, text = await daemon.chat("a")
        assert (status, "engine_lost" in text) == (502, True)
        model = await daemon.until("a", "backoff")
        await until(lambda: [(row["result"], row["exit_code"]) for row in daemon.launches("a")] == [("lost", 9)] * 2)
        assert model["error"]["code"] == "crashed"
        assert "exit status 9" in model["error"]["message"]
        assert model["error"]["fix"]
        assert model["error"]["retry_at"]


# --- engines that resist --------------------------------------------------------------------------------------------


async def ignores_term(daemon: House) -> None:
    """Its seat is wanted; it ignores TERM and gets KILL."""
    assert (await daemon.chat("deaf"))[0] == 200
    pid = await daemon.pid("deaf")
    assert (await daemon.chat("after-deaf"))[0] == 200
    assert not alive(pid)
    assert (await daemon.model("deaf"))["phase"] == "stopped"
    [launch] = daemon.launches("deaf")
    assert "fake: TERM" in Path(launch["log_path"]).read_text().splitlines()


async def child_survives(daemon: House, name: str) -> None:
    """The leader ends on TERM, its child neither on TERM nor with it, and holds half of the memory."""
    assert (await daemon.chat(name))[0] == 200
    pid, [child] = await daemon.pid(name), await daemon.children(name)
    asking = asyncio.create_task(daemon.chat(f"after-{name}"))
    await until(lambda: not alive(pid))
    assert alive(child)
    stopping = await daemon.model(name)
    assert (stopping["phase"], stopping["claimed_bytes"] > 0) == ("stopping", True)
    assert (await asking)[0] == 200
    assert not alive(child)


async def stranger_takes_the_port(daemon: House) -> None:
    """Somebody else listens on the port that was chosen, and answers 200 to everything."""
    app = web.Application()
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"status": "ok"})

    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        asking = asyncio.create_task(daemon.chat("robbed"))
        await until(lambda: bool(daemon.launches("robbed")))
        await web.TCPSite(runner, "127.0.0.1", daemon.launches("robbed")[0]["port"]).start()
        assert (await asking)[0] == 200
    finally:
        await runner.cleanup()
    first, second = daemon.launches("robbed")
    assert (first["result"], first["end_reason"]) == ("failed", "port_taken")
    assert first["port"] != second["port"]
    assert "/v1/chat/completions" not in asked
    assert len(await daemon.asked("robbed")) == 1


async def never_ready(daemon: House) -> None:
    """Every start runs into its time limit; after three it is given up, with a card that says why."""
    status, text = await daemon.chat("endless")
    assert (status, "model_failed" in text) == (503, True)
    assert [(row["result"], row["end_reason"]) for row in daemon.launches("endless")] == [("failed", "start_timeout")] * 3
    failed = await daemon.model("endless")
    assert (failed["phase"], failed["error"]["code"], failed["error"]["attempts"]) == ("failed", "start_timeout", 3)
    code, card, _ = await daemon.cli("status", "endless")
    assert code == 0
    assert "why         start_timeout: endless was not ready after" in card
    assert "raise start_timeout" in card
    assert len(daemon.launches("endless")) == 3
    assert (await daemon.chat("endless"))[0] == 503
    assert len(daemon.launches("endless")) == 3, "a failed model is not started for each request"


async def sleeps_in_name_only(daemon: House) -> None:
    """It answers 200 to sleep and keeps its memory: it is stopped, and not asked to sleep again."""
    assert (await daemon.chat("liar"))[0] == 200
    action = await daemon.act("sleep", "liar")
    assert (await daemon.model("liar"))["phase"] == "stopped", action
    assert ("sleep_ineffective", "liar") in await daemon.told(1, "sleep_ineffective")
    assert (await daemon.chat("liar"))[0] == 200
    refused = await daemon.act("sleep", "liar")
    assert (refused["state"], refused["error"]["code"]) == ("failed", "sleep_unsupported")
    known = (await daemon.get("/control/v1/models/liar"))["sleep"]
    assert (known["levels"], known["denied_levels"]) == ([], [1]), "what is not used any more is said for as long as it holds"
    assert "level 1 not used" in (await daemon.cli("models", "show", "liar"))[1]


@pytest.mark.timeout(120)
async def test_difficult_engines_side_by_side(tmp_path: Path) -> None:
    survivor = Child(share=0.5, outlives=True, ignores_term=True, keeps_token=False)
    models = (
        fake("good", device="cpu0")
        | fake("deaf", device="cpu1", mib=BIG, knobs={"term_s": math.inf})
        | fake("after-deaf", device="cpu1", mib=BIG)
        | fake("forked", device="cpu2", mib=BIG, knobs={"children": (survivor,)})
        | fake("after-forked", device="cpu2", mib=BIG)
        | fake("runaway", device="cpu3", mib=BIG, knobs={"children": (survivor,), "child_session": True})
        | fake("after-runaway", device="cpu3", mib=BIG)
        | fake("robbed", device="cpu4", knobs={"start_s": 3.0, "listens_early": False})
        | fake("endless", device="cpu5", knobs={"start_s": math.inf}, start_timeout="1s")
        | sleeper("liar", device="cpu6", mib=60, knobs={"sleep_frees_nothing": True})
    )
    async with house(tmp_path, models, devices(7), within_s=100) as daemon:
        assert (await daemon.chat("good"))[0] == 200
        async with chatting(daemon, "good"), asyncio.TaskGroup() as stories:
            for story in (
                ignores_term(daemon),
                child_survives(daemon, "forked"),
                child_survives(daemon, "runaway"),
                stranger_takes_the_port(daemon),
                never_ready(daemon),
                sleeps_in_name_only(daemon),
            ):
                stories.create_task(story)
        # The operator mends one of them: it works, and the engines of the others live through the restart.
        seated = {m["name"]: m["instances"][0]["pid"] for m in (await daemon.settled())["models"] if m["instances"]}
        daemon.models = models | fake("endless", device="cpu5")
        assert await daemon.terminate() == 0
        await daemon.start()
        assert (await daemon.chat("endless"))[0] == 200
        await daemon.settled()
        assert {name: await daemon.pid(name) for name in seated} == seated
        assert len(daemon.launches("good")) == 1


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_an_engine_that_lives_but_listens_no_more_is_replaced(tmp_path: Path) -> None:
    async with house(tmp_path, fake("a"), SEAT, within_s=120) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        pid = await daemon.pid("a")
        async with aiohttp.ClientSession() as client, client.post(f"{daemon.engine_url('a')}/admin/do?what=refuse") as answer:
            assert answer.status == 200
        await daemon.until("a", "unknown")
        assert (await daemon.chat("a"))[0] == 200
        assert not alive(pid)
        first, _ = daemon.launches("a")
        assert (first["result"], first["end_reason"]) == ("lost", "engine_lost")


# --- a database that cannot commit ----------------------------------------------------------------------------------


async def test_a_database_that_cannot_commit(tmp_path: Path) -> None:
    """The kernel refuses to let the daemon's files grow, as it does on a full or dying disk."""
    models = fake("a", device="cpu0") | fake("b", device="cpu1") | fake("c", device="cpu1")
    async with house(tmp_path, models, devices(2)) as daemon:
        assert [status for status, _ in await asyncio.gather(daemon.chat("a"), daemon.chat("c"))] == [200, 200]
        assert daemon.process is not None
        limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1024, limits[1]))

        status, text = await daemon.chat("b")
        assert (status, "store_unavailable" in text) == (503, True)
        async with chatting(daemon, "a"):
            [degraded] = (await daemon.status())["degraded"]
            assert (degraded["code"], bool(degraded["message"]), bool(degraded["fix"])) == ("store", True, True)
            async with aiohttp.ClientSession() as client:
                async with client.get(f"{daemon.url}/readyz") as ready:
                    assert (ready.status, [d["code"] for d in (await ready.json())["degraded"]]) == (200, ["store"])
                body = {"model": "b", "messages": []}
                async with client.post(f"{daemon.url}/v1/chat/completions", json=body) as refused:
                    assert 1 <= int(refused.headers["Retry-After"]) <= 120
            code, _, err = await daemon.cli("wake", "b")
            assert (code, "store_unavailable" in err) == (1, True)
            code, out, _ = await daemon.cli("status")
            assert (code, out.splitlines()[1][:1]) == (0, "!")
            assert (await daemon.model("b"))["phase"] == "stopped"
            assert daemon.launches("b") == []
            pid = await daemon.pid("c")
            assert (await daemon.act("stop", "c"))["state"] == "done"  # killing is always a safe exit
            assert not alive(pid)

        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, limits)
        async with asyncio.timeout(20):
            while (await daemon.status())["degraded"]:
                await asyncio.sleep(0.02)
        assert (await daemon.chat("b"))[0] == 200
        assert [row["phase"] for row in daemon.rows("SELECT phase FROM instances WHERE model = 'c'")] == ["stopped"]

        await daemon.kill()
        await daemon.start()
        assert [status for status, _ in await asyncio.gather(*(daemon.chat(name) for name in "abc"))] == [200] * 3
        assert [len(daemon.launches(name)) for name in "abc"] == [1, 1, 2]
