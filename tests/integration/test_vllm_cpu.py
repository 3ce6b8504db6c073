"""A life of vLLM on the CPU, where a sleep says yes and frees nothing: once with the fake, once with the real thing.

The real one is started when HOTSEAT_VLLM_BIN names a vllm executable that was built for the CPU. Nobody does that for you: it
takes minutes. ``HOTSEAT_VLLM_BIN=/path/to/vllm pytest -s -k real tests/integration/test_vllm_cpu.py`` prints what was measured.
"""

import json
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from adapters.engines.http import post
from adapters.engines.vllm import Vllm
from adapters.procfs.memory import read_held_bytes, read_resident
from adapters.procfs.processes import read_stat
from scheduler.domain.ids import ModelName
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.domain.units import GIB
from scheduler.ports.engine import Endpoint
from tests.conformance.variants import REAL_VLLM
from tests.support.house import House, alive, events_of, lived_in, until
from tests.support.real import MIB
from tests.support.tiny_hf import tiny_folder
from tests.support.vllm_knobs import COMMAND, HEALTHY, VllmKnobs

T = TypeVar("T")
REAL = (
    pytest.mark.slow,
    pytest.mark.skipif(REAL_VLLM not in os.environ, reason=f"set {REAL_VLLM} to a vllm executable for the CPU"),
    pytest.mark.timeout(3000),
)
NAME = "tiny"
CALLS = 30


@dataclass(slots=True)
class Engine:
    """Which vLLM it is, and what was measured on it."""

    command: list[str]
    patience_s: float
    entry: Mapping[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    async def timed(self, name: str, work: Awaitable[T]) -> T:
        """Await ``work`` and keep how long it took."""
        began = time.monotonic()
        found = await work
        self.figures[name] = round(time.monotonic() - began, 3)
        return found


@pytest.fixture(params=[pytest.param("fake", marks=pytest.mark.timeout(180)), pytest.param("real", marks=REAL)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """A vLLM. The fake is small, so what it may keep asleep has to be declared; of the real one nothing is said but its folder."""
    if request.param == "real":
        return Engine(command=[os.environ[REAL_VLLM]], patience_s=900.0)
    knobs = VllmKnobs(behaviour=replace(HEALTHY, awake_bytes=64 * MIB), workers_outlive=True)
    return Engine(command=list(COMMAND), patience_s=50.0, entry={"env": knobs.env(), "footprint": {"residue": 8 * MIB}})


@asynccontextmanager
async def vllm_house(folder: Path, engine: Engine) -> Any:
    """A daemon with one model; at the end its books are right and nothing lives."""
    model = tiny_folder(folder / "model")
    models = {NAME: {"engine": "vllm", "model": str(model), **engine.entry}}
    settings = {"defaults": {"start_timeout": f"{engine.patience_s:g}s"}, "engines": {"vllm": {"command": engine.command}}}
    daemon = House(folder, models, {"cpu0": 8 * GIB}, **settings)
    async with lived_in(daemon, 3 * engine.patience_s):
        yield daemon


# --- small things -----------------------------------------------------------------------------------------------------


async def group_of(daemon: House) -> list[int]:
    """Every process of the engine: its server leads a session."""
    leader = await daemon.pid(NAME)
    return [leader, *sorted(pid for pid in daemon.engine_processes() - {leader} if pid_session(pid) == leader)]


def pid_session(pid: int) -> int:
    stat = read_stat(pid)
    return 0 if stat is None else stat.session


async def chats(daemon: House) -> None:
    """One plain answer and one stream."""
    status, text = await daemon.chat(NAME)
    assert status == 200, text
    answer = json.loads(text)
    assert (answer["model"], answer["usage"]["completion_tokens"]) == (NAME, 8)
    status, text = await daemon.chat(NAME, stream=True)
    assert status == 200, text
    events = events_of(text)
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def started_s(daemon: House) -> float:
    """Seconds of the newest start, as the journal has it."""
    await daemon.told(1, "started")
    return round(daemon.launches(NAME)[-1]["duration_s"], 1)


def memory(pids: list[int]) -> list[dict[str, Any]]:
    """What each process holds, MiB."""
    found = []
    for pid in pids:
        stat, resident = read_stat(pid), read_resident(pid)
        assert stat is not None
        rss = 0 if resident is None else resident.private_bytes + resident.shared_bytes
        found.append({"name": name_of(pid), "rss_mib": rss // MIB, "pss_mib": (read_held_bytes(pid) or 0) // MIB})
    return found


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()


async def median_ms(**urls: str) -> dict[str, float]:
    """Of one-token completions, over one connection each, asked in turn: what else the machine does concerns all alike."""
    took: dict[str, list[float]] = {name: [] for name in urls}
    body = {"model": NAME, "prompt": "a", "max_tokens": 1, "temperature": 0}
    async with aiohttp.ClientSession() as client:
        for _ in range(CALLS):
            for name, url in urls.items():
                began = time.monotonic()
                async with client.post(f"{url}/v1/completions", json=body) as answer:
                    assert answer.status == 200
                    await answer.read()
                took[name].append(time.monotonic() - began)
    return {name: round(statistics.median(each) * 1000, 1) for name, each in took.items()}


# --- the story --------------------------------------------------------------------------------------------------------


async def test_a_life_on_the_cpu(tmp_path: Path, engine: Engine) -> None:
    async with vllm_house(tmp_path, engine) as daemon:
        await is_started_by_a_request(daemon, engine)
        await sleeps_in_vain_once(daemon, engine)
        await is_adopted(daemon, engine)
        await loses_its_server(daemon, engine)
        await ends_in_order(daemon, engine)
    print(json.dumps(engine.figures, indent=1))


async def is_started_by_a_request(daemon: House, engine: Engine) -> None:
    """Nobody said a kind of device: there are no cards here, so it sits on the CPU, and is sized for it."""
    spec = ModelSpec(name=ModelName(NAME), engine="vllm", model=daemon.models[NAME]["model"], devices=DeviceWish(kind="cpu"))
    estimate = await Vllm().estimate(spec)
    card = await daemon.get(f"/control/v1/models/{NAME}")
    assert (card["memory"]["source"], card["memory"]["estimated_bytes"]) == ("estimated", estimate.awake_bytes)
    await engine.timed("first_request_s", chats(daemon))
    engine.figures["first_start_s"] = await started_s(daemon)
    awake = await daemon.until_model(NAME, lambda m: (m["used_bytes"] or 0) > 32 * MIB)
    assert (awake["phase"], awake["devices"]) == ("awake", ["cpu0"])
    pids = await group_of(daemon)
    assert len(pids) >= 2  # at least a server and an engine core
    held = memory(pids)
    engine.figures |= {
        "load_average": round(os.getloadavg()[0], 1),
        "version": daemon.launches(NAME)[-1]["version"],
        "processes": held,
        "together_mib": {"rss": sum(each["rss_mib"] for each in held), "pss": sum(each["pss_mib"] for each in held)},
        "estimate_mib": {"awake": estimate.awake_bytes // MIB, "kv": estimate.kv_bytes // MIB},
        "measured_mib": awake["used_bytes"] // MIB,
    }
    if not engine.entry:
        assert awake["used_bytes"] <= estimate.awake_bytes <= 2 * awake["used_bytes"]


async def sleeps_in_vain_once(daemon: House, engine: Engine) -> None:
    """It says that it sleeps, and everything is still there: stopped, told, remembered; a request brings it back."""
    pids = await group_of(daemon)
    action = await engine.timed("vain_sleep_until_stopped_s", daemon.act("sleep", NAME, wait_s=60))
    assert (action["state"], action["error"]["code"]) == ("failed", "sleep_ineffective")
    assert "said it sleeps at level 1 but still holds" in action["error"]["message"]
    assert action["error"]["fix"]
    assert not any(alive(pid) for pid in pids)
    stopped = await daemon.model(NAME)
    assert (stopped["phase"], stopped["claimed_bytes"], stopped["reason"]["code"]) == ("stopped", 0, "sleep_ineffective")
    assert await daemon.told(1, "sleep_ineffective", "asleep") == [("sleep_ineffective", NAME)]
    await chats(daemon)
    engine.figures["second_start_s"] = await started_s(daemon)
    refused = await daemon.act("sleep", NAME)
    assert (refused["state"], refused["error"]["code"]) == ("failed", "sleep_unsupported")
    assert (await daemon.model(NAME))["phase"] == "awake"  # asking in vain does it no harm
    engine.figures["completion_ms"] = await median_ms(daemon=daemon.url, engine=daemon.engine_url(NAME))


async def is_adopted(daemon: House, engine: Engine) -> None:
    """The daemon is killed, the engine lives on; what was learned about its sleep is known to the next daemon."""
    pids = await group_of(daemon)
    await daemon.kill()
    await asks_it_directly(daemon, engine)
    await engine.timed("daemon_restart_s", daemon.start())
    await daemon.until(NAME, "awake")
    assert await daemon.told(1, "adopted") == [("adopted", NAME)]
    await chats(daemon)
    assert await group_of(daemon) == pids
    assert len(daemon.launches(NAME)) == 2
    assert (await daemon.act("sleep", NAME))["error"]["code"] == "sleep_unsupported"


async def asks_it_directly(daemon: House, engine: Engine) -> None:
    """How long it takes to say that it sleeps, and to be proven awake; nobody else speaks to it now."""
    adapter = Vllm()
    endpoint = Endpoint(base_url=daemon.engine_url(NAME), served_model=NAME, version=engine.figures["version"])
    endpoint = replace(endpoint, golden=await adapter.warm_up(endpoint, 60.0))
    before = {pid: read_held_bytes(pid) for pid in daemon.engine_processes()}
    await engine.timed("sleep_s", adapter.sleep(endpoint, 1, 60.0))
    kept = sum(read_held_bytes(pid) or 0 for pid in before)
    engine.figures["kept_asleep_share"] = round(kept / sum(size or 0 for size in before.values()), 2)
    await engine.timed("wake_s", adapter.wake(endpoint, 1, 60.0))
    reply = await post(endpoint.base_url, "/v1/completions", {"model": NAME, "prompt": "a", "max_tokens": 1}, timeout_s=60.0)
    assert reply.status == 200


async def loses_its_server(daemon: House, engine: Engine) -> None:
    """kill -9 of the server alone leaves processes with all the memory: they are ended with their group, and seen free."""
    pids = await group_of(daemon)
    os.kill(pids[0], signal.SIGKILL)
    await engine.timed("kill_until_free_s", daemon.until(NAME, "stopped", within_s=60.0))
    assert [pid for pid in pids if alive(pid)] == []
    assert (await daemon.told(1, "engine_failed")) == [("engine_failed", NAME)]
    await daemon.until_device("cpu0", claimed_bytes=0)
    await daemon.check_books()
    await chats(daemon)
    engine.figures["third_start_s"] = await started_s(daemon)


async def ends_in_order(daemon: House, engine: Engine) -> None:
    """TERM: everything goes, without a KILL."""
    pids = await group_of(daemon)
    action = await engine.timed("term_until_free_s", daemon.act("stop", NAME))
    assert (action["state"], action["to_phase"]) == ("done", "stopped")
    await until(lambda: not any(alive(pid) for pid in pids))
    story = (await daemon.get(f"/control/v1/models/{NAME}/story"))["items"]
    last = [entry["event"] for entry in story if entry["to"] == "stopping"][-2:]
    assert last
    assert "KillDue" not in last
