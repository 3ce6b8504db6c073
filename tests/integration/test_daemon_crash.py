"""The daemon dies, engines do not: what the next daemon finds, keeps, ends and never starts twice.

Engines are held where the story wants them with SIGSTOP, so that nothing depends on how long a restart takes.
"""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp

from tests.support.behaviour import Child
from tests.support.fake_knobs import Speech
from tests.support.house import House, alive, events_of, fake, house, sleeper, until
from tests.support.real import MIB

THREE = {"cpu0": 128 * MIB, "cpu1": 128 * MIB, "cpu2": 128 * MIB}
SEAT = {"cpu0": 256 * MIB}
BIG = 120


def deadline(daemon: House, model: str) -> float:
    """The end of the present start, monotonic seconds, as the journal has it."""
    [row] = daemon.rows("SELECT launch_deadline_s FROM instances WHERE model = ?", model)
    found: float = row["launch_deadline_s"]
    return found


async def leader(daemon: House, model: str) -> int:
    """Process id of an engine that is just being started, once it is let through its gate: before that it dies with the daemon."""
    found = await daemon.until_model(model, lambda m: bool(m["instances"]) and m["instances"][0]["pid"] is not None)
    pid: int = found["instances"][0]["pid"]
    await until(lambda: b"fake_engine.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return pid


async def test_one_awake_one_launching_one_stopping(tmp_path: Path) -> None:
    orphan = Child(outlives=True, ignores_term=True, keeps_token=False)
    models = (
        fake("awake", device="cpu0")
        | fake("launching", device="cpu1", knobs={"start_s": 3.0, "listens_early": False}, start_timeout="5m")
        | fake("stopping", device="cpu2", knobs={"children": (orphan,)})
    )
    async with house(tmp_path, models, THREE) as daemon:
        assert [status for status, _ in await asyncio.gather(daemon.chat("awake"), daemon.chat("stopping"))] == [200, 200]
        pids = {name: await daemon.pid(name) for name in ("awake", "stopping")}
        [child] = await daemon.children("stopping")
        asking = asyncio.create_task(daemon.chat("launching"))
        pids["launching"] = await leader(daemon, "launching")
        os.kill(pids["launching"], signal.SIGSTOP)
        await daemon.act("stop", "stopping", wait_s=0)
        await until(lambda: not alive(pids["stopping"]))  # its child ignores TERM, and bears no token
        before = deadline(daemon, "launching")

        await daemon.kill()
        await asyncio.wait([asking])
        assert isinstance(asking.exception(), aiohttp.ClientError)
        await daemon.start()

        awake = await daemon.until("awake", "awake")
        assert awake["instances"][0]["pid"] == pids["awake"]
        launching = await daemon.until("launching", "launching")
        assert launching["instances"][0]["pid"] == pids["launching"]
        assert deadline(daemon, "launching") == before
        stopping = await daemon.model("stopping")
        assert stopping["phase"] == "stopping"
        assert stopping["claimed_bytes"] > 0
        assert alive(child)
        os.kill(pids["launching"], signal.SIGCONT)
        await daemon.until("launching", "awake")
        for name in ("awake", "launching"):
            assert (await daemon.chat(name))[0] == 200
            assert await daemon.pid(name) == pids[name]
            assert len(daemon.launches(name)) == 1
        assert await daemon.told(1, "adopted") == [("adopted", "awake")]
        await daemon.until("stopping", "stopped")
        assert not alive(child)
        await daemon.check_books()
        assert (await daemon.chat("stopping"))[0] == 200
        [child] = await daemon.children("stopping")
        os.kill(child, signal.SIGKILL)  # else the end of this test takes as long again


async def test_requests_that_were_held_die_with_the_daemon_and_start_nothing_afterwards(tmp_path: Path) -> None:
    models = fake("a", mib=BIG, speech=Speech(tokens=1000, token_s=0.05)) | fake("b", mib=BIG)
    models |= fake("c", device="cpu1", knobs={"start_s": 3.0, "listens_early": False})
    devices = {**SEAT, "cpu1": 128 * MIB}
    async with house(tmp_path, models, devices) as daemon:
        streaming = asyncio.create_task(daemon.chat("a", stream=True, max_tokens=1000))
        await daemon.until_model("a", lambda a: a["active"] == 1)
        held = [asyncio.create_task(daemon.chat(name)) for name in "bbbcc"]
        pid = await leader(daemon, "c")
        os.kill(pid, signal.SIGSTOP)
        await daemon.until_model("b", lambda b: b["held"] == 3)

        await daemon.kill()
        await asyncio.wait([streaming, *held])
        assert all(isinstance(task.exception(), aiohttp.ClientError) for task in [streaming, *held])
        os.kill(pid, signal.SIGCONT)
        await daemon.start()

        await daemon.until("a", "awake")
        await daemon.until("c", "awake")
        assert daemon.launches("b") == []
        assert daemon.rows("SELECT id FROM moves WHERE state = 'open'") == []
        assert [len(daemon.launches(name)) for name in "ac"] == [1, 1]
        await daemon.tell("a", token_s=0.0)
        assert [status for status, _ in await asyncio.gather(*(daemon.chat(name) for name in "abc"))] == [200] * 3
        assert len(daemon.launches("b")) == 1


async def test_an_orderly_end_keeps_engines_and_ends_requests(tmp_path: Path) -> None:
    models = fake("a", mib=BIG, speech=Speech(tokens=60, token_s=0.05)) | fake("b", mib=BIG)
    async with house(tmp_path, models, SEAT) as daemon:
        streaming = asyncio.create_task(daemon.chat("a", stream=True, max_tokens=60))
        await daemon.until_model("a", lambda a: a["active"] == 1)
        held = asyncio.create_task(daemon.chat("b"))
        await daemon.until_model("b", lambda b: b["held"] == 1)
        pid = await daemon.pid("a")

        assert await daemon.terminate() == 0
        assert events_of((await streaming)[1])[-1] == "[DONE]"
        status, text = await held
        assert (status, "model_starting" in text) == (503, True)
        assert alive(pid)
        await daemon.start()

        await daemon.until("a", "awake")
        assert (await daemon.chat("a"))[0] == 200
        assert await daemon.pid("a") == pid
        assert len(daemon.launches("a")) == 1


async def test_engines_end_with_the_daemon_when_the_operator_wants_so(tmp_path: Path) -> None:
    async with house(
        tmp_path, fake("a") | fake("b", knobs={"children": (Child(keeps_token=False),)}), SEAT, gateway={"on_exit": "stop"}
    ) as daemon:
        assert [status for status, _ in await asyncio.gather(daemon.chat("a"), daemon.chat("b"))] == [200, 200]
        assert len(daemon.engine_processes()) == 3
        assert await daemon.terminate() == 0
        assert daemon.engine_processes() == set()
        await daemon.start()
        assert {m["phase"] for m in (await daemon.status())["models"]} == {"stopped"}
        assert await daemon.events("adopted") == []


async def test_a_sleeper_is_adopted_asleep_and_the_dead_are_not_adopted(tmp_path: Path) -> None:
    """Of the one that died meanwhile, the row says awake, its process is gone, and a child of it lives on in a session of its own.

    The one that lives has overwritten its environment: what identifies it is its process id and start time.
    """
    orphan = Child(outlives=True, ignores_term=True)
    dies = fake("dies", knobs={"children": (orphan,), "child_session": True})
    async with house(tmp_path, sleeper("sleeps", mib=60) | dies | fake("lives", knobs={"erases_environment": True}), SEAT) as daemon:
        names = ("sleeps", "dies", "lives")
        assert [status for status, _ in await asyncio.gather(*(daemon.chat(name) for name in names))] == [200] * 3
        pids = {name: await daemon.pid(name) for name in names}
        [child] = await daemon.children("dies")
        assert (await daemon.act("sleep", "sleeps"))["state"] == "done"
        await daemon.kill()
        os.kill(pids["dies"], signal.SIGKILL)
        await daemon.start()
        asleep = await daemon.until("sleeps", "asleep")
        assert (asleep["level"], asleep["instances"][0]["pid"]) == (1, pids["sleeps"])
        assert sorted(await daemon.told(2, "adopted")) == [("adopted", "lives"), ("adopted", "sleeps")]
        await daemon.until_model("sleeps", lambda sleeps: sleeps["claimed_bytes"] < 60 * MIB)  # once it was measured
        assert [status for status, _ in await asyncio.gather(*(daemon.chat(name) for name in names))] == [200] * 3
        assert {name for name in names if await daemon.pid(name) == pids[name]} == {"sleeps", "lives"}
        assert [len(daemon.launches(name)) for name in names] == [1, 2, 1]
        assert not alive(child)
        await daemon.check_books()
        [child] = await daemon.children("dies")
        os.kill(child, signal.SIGKILL)  # it ignores TERM, which would cost this test ten seconds


async def test_actions_of_a_dead_daemon_have_an_end(tmp_path: Path) -> None:
    models = fake("done") | fake("open", device="cpu1", knobs={"start_s": 3.0, "listens_early": False}, start_timeout="5m")
    async with house(tmp_path, models, THREE) as daemon:
        done = await daemon.act("wake", "done")
        left = await daemon.act("wake", "open", wait_s=0)
        waiting = asyncio.create_task(daemon.cli("wake", "open"))
        pid = await leader(daemon, "open")
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: len(daemon.rows("SELECT id FROM actions WHERE ended_at IS NULL")) == 2)
        await daemon.kill()
        await daemon.start()
        code, _, told = await waiting
        assert (code, "daemon_restarted: the daemon ended before the action did" in told) == (1, True)
        assert "fix: look where the model stands with hotseat status open" in told
        for _ in range(2):
            found = await daemon.get(f"/control/v1/actions/{left['id']}")
            assert (found["state"], found["error"]["code"]) == ("failed", "daemon_restarted")
            assert (await daemon.get(f"/control/v1/actions/{done['id']}"))["state"] == "done"
            assert daemon.rows("SELECT id FROM actions WHERE ended_at IS NULL") == []
            await daemon.kill()
            await daemon.start()
        assert (await daemon.act("stop", "done"))["id"] not in (left["id"], done["id"])
        os.kill(pid, signal.SIGCONT)
        await daemon.until("open", "awake", "stopped")


async def test_a_hangup_ends_the_daemon_in_order(tmp_path: Path) -> None:
    """The terminal of a daemon in the foreground is closed: answers end, engines stay, the next daemon goes on with them."""
    async with house(tmp_path, fake("a"), SEAT) as daemon:
        assert (await daemon.chat("a"))[0] == 200
        pid = await daemon.pid("a")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        assert await daemon.process.wait() == 0
        assert alive(pid)
        await daemon.start()
        assert await daemon.pid("a") == pid


async def test_under_nohup_a_hangup_means_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit it, as from nohup
    try:
        async with house(tmp_path, fake("a"), SEAT) as daemon:
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGHUP)
            assert (await daemon.chat("a"))[0] == 200
            assert daemon.process.returncode is None
    finally:
        signal.signal(signal.SIGHUP, before)
