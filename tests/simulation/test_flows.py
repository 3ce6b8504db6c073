"""What users see, in virtual time: the real kernel and SQLite over a pretended machine."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scheduler.daemon.prometheus import Exposition
from scheduler.daemon.status import StatusBuilder
from scheduler.domain.errors import Temporary
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.instance import Phase
from scheduler.domain.model import DeviceWish, ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.state import Policy
from scheduler.simulator.virtual_time import run_virtual
from tests.support.behaviour import NEVER, Behaviour, Child, StartFailure
from tests.support.sim import Sim, spec
from tests.support.world import World, device

pytestmark = pytest.mark.may_block  # how long a callback takes in virtual time says nothing
Script = Callable[[Sim], Awaitable[None]]


def play(
    folder: Path,
    behaviours: dict[str, Behaviour],
    script: Script,
    *,
    devices: int = 1,
    models: dict[str, ModelSpec] | None = None,
    boundary: Callable[[str], None] | None = None,
    policy: Policy | None = None,
) -> Sim:
    """Run ``script`` on a machine with devices of 10 GiB; afterwards ledger and processes must agree."""

    async def main() -> Sim:
        world = World([device(f"gpu{i}", 10, index=i) for i in range(devices)], behaviours)
        specs = [(models or {}).get(name, spec(name)) for name in behaviours]
        sim = Sim(world, folder, specs, boundary=boundary, policy=policy)
        await sim.start()
        await script(sim)
        assert sim.ledger_matches() == []
        assert not world.overflows
        assert not world.misdirected
        await sim.stop()
        return sim

    return run_virtual(main())


BIG = Behaviour(awake_bytes=6 * GIB, start_s=3.0, levels=())  # two of them do not fit together


def test_fifty_first_requests_start_one_engine(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        answers = await asyncio.gather(*(sim.chat("a") for _ in range(50)))
        assert answers == ["ok"] * 50

    sim = play(tmp_path, {"a": BIG}, script)
    assert len(sim.world.happened("started", "a")) == 1


@pytest.mark.parametrize("between_s", [0.0, 0.05], ids=["at once", "until after the wake"])
def test_fifty_requests_to_a_sleeper_cause_one_wake(tmp_path: Path, between_s: float) -> None:
    async def late(sim: Sim, delay_s: float) -> str:
        await asyncio.sleep(delay_s)
        return await sim.chat("a")

    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        assert (await sim.act("sleep", "a", level=1)).ok
        assert sim.phase("a") is Phase.ASLEEP
        assert await asyncio.gather(*(late(sim, n * between_s) for n in range(50))) == ["ok"] * 50

    sim = play(tmp_path, {"a": Behaviour(awake_bytes=6 * GIB)}, script)
    assert [len(sim.world.happened(what, "a")) for what in ("started", "asleep", "woken")] == [1, 1, 1]


def test_a_stream_ends_whole_before_its_model_makes_room(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        loop = asyncio.get_running_loop()
        begun = loop.time()
        streaming = asyncio.gather(sim.chat("a", 20.0))
        await asyncio.sleep(1.0)
        assert await sim.chat("b") == "ok"
        assert streaming.done()
        assert list(streaming.result()) == ["ok"]
        assert loop.time() - begun < 30

    sim = play(tmp_path, {"a": BIG, "b": BIG}, script)
    assert len(sim.world.happened("started")) == 2
    assert len(sim.world.happened("terminated", "a")) <= 1


def test_arrivals_are_served_in_groups(tmp_path: Path) -> None:
    limits = {m: spec(m, max_wait_s=120.0) for m in "abc"}

    async def script(sim: Sim) -> None:
        assert list(await asyncio.gather(*(sim.chat(m) for m in "abaacabc"))) == ["ok"] * 8

    sim = play(tmp_path, dict.fromkeys("abc", BIG), script, models=limits)
    assert {m: len(sim.world.happened("started", m)) for m in "abc"} == {"a": 1, "b": 1, "c": 1}


def test_twenty_pairs_at_once_do_not_thrash(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert set(await asyncio.gather(*(sim.chat(m) for _ in range(20) for m in "ab"))) == {"ok"}

    sim = play(tmp_path, dict.fromkeys("ab", BIG), script)
    assert len(sim.world.happened("started")) == 2


@pytest.mark.parametrize("max_wait_s", [20.0, 60.0])
def test_overlapping_traffic_cannot_starve_the_other_model(tmp_path: Path, max_wait_s: float) -> None:
    limits = {"a": spec("a", max_wait_s=max_wait_s), "b": spec("b", max_wait_s=max_wait_s)}

    async def client(sim: Sim, offset: float) -> None:
        await asyncio.sleep(offset)
        while True:
            assert await sim.chat("a", 2.0) == "ok"

    async def script(sim: Sim) -> None:
        loop = asyncio.get_running_loop()
        assert await sim.chat("a") == "ok"
        busy = asyncio.gather(client(sim, 0.0), client(sim, 1.0))
        await asyncio.sleep(7.0)
        for _ in range(3):
            asked = loop.time()
            assert await sim.chat("b") == "ok"
            assert loop.time() - asked <= max_wait_s
            await asyncio.sleep(5.0)
        busy.cancel()
        await asyncio.wait([busy])

    play(tmp_path, dict.fromkeys("ab", BIG), script, models=limits)


@pytest.mark.parametrize("interrupt", [False, True])
def test_a_stream_without_end_is_cut_only_where_the_operator_chose_so(tmp_path: Path, interrupt: bool) -> None:
    models = {"a": spec("a", drain_timeout_s=60.0)}

    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        endless = asyncio.gather(sim.chat("a", 10_000.0, tries=1))
        await asyncio.sleep(1.0)
        answer = await sim.chat("b", wait_s=300.0)
        assert answer == ("ok" if interrupt else "wait_timeout")
        if interrupt:
            assert list(await endless) == ["engine_lost"]
        else:
            assert any("a" in t.message for t in sim.told if t.kind == "drain_slow")
            endless.cancel()
            await asyncio.wait([endless])

    play(tmp_path, dict.fromkeys("ab", BIG), script, models=models, policy=Policy(interrupt=interrupt))


def test_a_long_start_holds_up_nobody_elsewhere(tmp_path: Path) -> None:
    slow = Behaviour(awake_bytes=6 * GIB, start_s=60.0, levels=())
    quick = Behaviour(awake_bytes=6 * GIB, levels=(1,), wake_s=1.0)
    where = {
        "a": spec("a", devices=DeviceWish(ids=(DeviceId("gpu0"),))),
        "b": spec("b", devices=DeviceWish(ids=(DeviceId("gpu1"),))),
        "c": spec("c", devices=DeviceWish(ids=(DeviceId("gpu1"),))),
    }

    async def script(sim: Sim) -> None:
        assert await sim.chat("c") == "ok"
        loop = asyncio.get_running_loop()
        starting = asyncio.gather(sim.chat("a"))
        await asyncio.sleep(5.0)
        asked = loop.time()
        assert await sim.chat("c", 0.5) == "ok"
        assert loop.time() - asked == pytest.approx(0.5, abs=0.001)
        assert await sim.chat("b", 0.5) == "ok"  # a second move, on the other device
        assert loop.time() - asked < 30
        assert not starting.done()
        assert list(await starting) == ["ok"]

    play(tmp_path, {"a": slow, "b": quick, "c": quick}, script, devices=2, models=where)


def test_a_waiter_that_leaves_wakes_nothing(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        streaming = asyncio.gather(sim.chat("a", 20.0))
        await asyncio.sleep(1.0)
        waiting = asyncio.gather(sim.chat("b"))
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await streaming
        await asyncio.sleep(30.0)
        assert sim.phase("a") is Phase.AWAKE

    sim = play(tmp_path, dict.fromkeys("ab", BIG), script)
    assert not sim.world.happened("started", "b")


def test_scrapes_wake_nothing_and_touch_no_idle_time(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        await asyncio.sleep(1.0)
        used = sim.kernel.state.facts["a"].last_used_s  # type: ignore[index]
        metrics = Exposition("test")
        status = StatusBuilder(sim.kernel.state, sim.kernel.applier.supervisors, version="test", started_wall=0.0, state_dir=tmp_path)
        for second in range(600):
            await asyncio.sleep(1.0)
            assert len(sim.kernel.desk.listed()) == 2  # what GET /v1/models reads
            text = metrics.scrape(status.build(asyncio.get_running_loop().time(), float(second), ready=True))
            assert 'hotseat_model_phase{model="a",phase="awake"} 1.0' in text
        assert sim.kernel.state.facts["a"].last_used_s == used  # type: ignore[index]
        assert sim.phase("b") is Phase.STOPPED

    sim = play(tmp_path, dict.fromkeys("ab", BIG), script)
    assert not sim.world.happened("started", "b")


def test_always_awake_models_come_by_themselves_and_come_back(tmp_path: Path) -> None:
    models = {"a": spec("a", always_awake=True), "x": spec("x", always_awake=True)}

    async def script(sim: Sim) -> None:
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE)
        assert await sim.chat("b") == "ok"
        assert sim.phase("a") is Phase.STOPPED
        await asyncio.sleep(10.0)
        assert sim.phase("b") is Phase.AWAKE  # not put away for nobody a moment after it was used
        await sim.until(lambda: sim.phase("a") is Phase.AWAKE)
        await asyncio.sleep(600.0)
        assert not (await sim.act("stop", "a")).ok

    sim = play(tmp_path, dict.fromkeys("abx", BIG), script, models=models)
    assert not sim.world.happened("started", "x")  # a and x do not fit together and do not chase each other
    assert len(sim.world.happened("started", "a")) == 2


# --- crashes with something in every phase --------------------------------------------------------------------------


def test_kill_nine_with_one_awake_one_launching_one_stopping(tmp_path: Path) -> None:
    behaviours = {
        "awake": Behaviour(awake_bytes=2 * GIB, levels=()),
        "launching": Behaviour(awake_bytes=2 * GIB, levels=(), start_s=40.0),
        "stopping": Behaviour(awake_bytes=2 * GIB, levels=(), term_s=8.0, children=(Child(outlives=True, keeps_token=False),)),
    }

    async def script(sim: Sim) -> None:
        assert list(await asyncio.gather(sim.chat("awake"), sim.chat("stopping"))) == ["ok", "ok"]
        pid = sim.world.engine("awake").pid
        launching = asyncio.gather(sim.chat("launching"))
        await sim.until(lambda: sim.phase("launching") is Phase.LAUNCHING)
        await asyncio.sleep(2.0)
        sim.ask("stop", "stopping")
        await sim.until(lambda: sim.phase("stopping") is Phase.STOPPING)
        deadline, killed_s = sim.instance("launching").deadline_s, sim.instance("stopping").deadline_s
        assert killed_s is not None
        await sim.crash()
        launching.cancel()
        await asyncio.wait([launching])
        await asyncio.sleep(1.0)
        await sim.start()
        await sim.until(lambda: sim.phase("launching") is Phase.LAUNCHING)
        assert sim.instance("launching").deadline_s == deadline
        await sim.until(lambda: sim.phase("awake") is Phase.AWAKE and sim.phase("stopping") is Phase.STOPPED)
        assert sim.world.engine("awake").pid == pid
        assert not sim.world.engines("stopping")
        assert sim.instance("stopping").since_s < killed_s  # its stop went on at once, nobody waited for the end of its grace
        assert await sim.chat("awake") == "ok"
        assert await sim.chat("launching") == "ok"

    elsewhere = {"stopping": spec("stopping", devices=DeviceWish(ids=(DeviceId("gpu1"),)))}
    sim = play(tmp_path, behaviours, script, devices=2, models=elsewhere)
    assert {m: len(sim.world.happened("started", m)) for m in behaviours} == dict.fromkeys(behaviours, 1)


def test_an_engine_killed_in_the_middle_is_tried_again(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "ok"
        running = asyncio.gather(sim.chat("a", 10.0))
        await asyncio.sleep(1.0)
        sim.world.kill("a")
        assert list(await running) == ["ok"]

    sim = play(tmp_path, {"a": BIG}, script)
    assert len(sim.world.happened("started", "a")) == 2


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(awake_bytes=6 * GIB, levels=(), term_s=NEVER),
        Behaviour(awake_bytes=6 * GIB, levels=(), children=(Child(share=0.5, outlives=True, ignores_term=True, keeps_token=False),)),
        Behaviour(awake_bytes=6 * GIB, levels=(), free_lag_s=3.0),
        Behaviour(awake_bytes=6 * GIB, levels=(1,), sleep_frees_nothing=True),
        Behaviour(awake_bytes=6 * GIB, levels=(1,), sleep_errors=1),
        Behaviour(awake_bytes=6 * GIB, levels=(1,), sleep_hangs=1),
        Behaviour(awake_bytes=6 * GIB, levels=(1,), wake_errors=3),
        Behaviour(awake_bytes=6 * GIB, levels=(1,), wake_hangs=1),
        Behaviour(awake_bytes=6 * GIB, levels=(1, 2), sleep_says_level=2),
        Behaviour(awake_bytes=6 * GIB, levels=(), port_taken=1),
        Behaviour(awake_bytes=6 * GIB, levels=(), start_failures=(StartFailure(code=Code.CRASHED),) * 2),
    ],
    ids=[
        "ignores TERM",
        "child survives",
        "memory lags",
        "sleep frees nothing",
        "sleep refused",
        "sleep hangs",
        "wake refused",
        "wake hangs",
        "wrong level",
        "stranger on the port",
        "fails twice",
    ],
)
def test_a_difficult_engine_gives_way_and_comes_back(tmp_path: Path, behaviour: Behaviour) -> None:
    async def script(sim: Sim) -> None:
        for model in "abab":
            assert await sim.chat(model, wait_s=900.0) == "ok", (model, sim.answers, [t.message for t in sim.told])

    play(tmp_path, {"a": behaviour, "b": BIG}, script)


@pytest.mark.parametrize(
    ("behaviour", "code", "told"),
    [
        (Behaviour(preflight=StartFailure(code=Code.MODEL_MISSING, text="no such file")), "model_failed", "no such file"),
        (Behaviour(executable_missing=True), "model_failed", "no such program"),
        (Behaviour(fails_always=StartFailure(code=Code.UNKNOWN_FLAG, text="unknown argument --x")), "model_failed", "--x"),
        (Behaviour(fails_always=StartFailure(code=Code.CRASHED, text="boom")), "model_failed", "boom"),
        (Behaviour(awake_bytes=20 * GIB), "does_not_fit", "20"),
    ],
    ids=["model missing", "executable missing", "unknown flag", "crashes", "too large"],
)
def test_a_failure_has_a_state_a_reason_and_a_fix_and_others_go_on(tmp_path: Path, behaviour: Behaviour, code: str, told: str) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("good") == "ok"
        answers = asyncio.gather(sim.chat("bad", wait_s=3000.0))
        while not answers.done():
            assert await sim.chat("good") == "ok"
            await asyncio.sleep(1.0)
        assert list(await answers) == [code]
        if code == "model_failed":
            await sim.until(lambda: sim.phase("bad") is Phase.FAILED)
            assert told in sim.instance("bad").reason.text
            assert sim.instance("bad").reason.code is not Code.NONE
            assert await sim.chat("bad") == code  # at once, without another start

    models = {"bad": spec("bad", start_timeout_s=60.0)}
    play(tmp_path, {"good": Behaviour(awake_bytes=2 * GIB, levels=()), "bad": behaviour}, script, models=models)


def test_a_start_that_never_becomes_ready_ends_named(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("bad") in ("model_backoff", "model_failed")
        while sim.phase("bad") is not Phase.FAILED:
            await sim.chat("bad")
        assert sim.instance("bad").reason.code is Code.START_TIMEOUT
        assert "start_timeout" in sim.instance("bad").reason.fix
        assert await sim.chat("bad") == "model_failed"

    play(tmp_path, {"bad": Behaviour(start_s=NEVER)}, script, models={"bad": spec("bad", start_timeout_s=30.0)})


def test_a_failed_model_works_again_once_the_cause_is_gone(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert await sim.chat("a") == "model_failed"
        sim.world.behaviours[ModelName("a")] = BIG
        assert (await sim.act("restart", "a")).ok
        assert await sim.chat("a") == "ok"

    play(tmp_path, {"a": Behaviour(fails_always=StartFailure(code=Code.UNKNOWN_FLAG))}, script)


# --- the store cannot commit ----------------------------------------------------------------------------------------


def test_a_full_database_stops_starts_and_nothing_else(tmp_path: Path) -> None:
    """What SQLite itself does on a full disk is tested in tests/integration/test_store_full.py."""
    full = False

    def boundary(name: str) -> None:
        if full and name.startswith("written:"):
            raise Temporary("the disk is full", code="store_full", retry_after_s=1.0, fix="make room")

    async def script(sim: Sim) -> None:
        nonlocal full
        assert await sim.chat("a") == "ok"
        full = True
        assert await sim.chat("b") == "store_unavailable"
        assert await sim.chat("a") == "ok"
        assert sim.kernel.state.degraded["store"][1] == "make room"
        await asyncio.sleep(10.0)
        assert await sim.chat("b") == "store_unavailable"
        assert sim.phase("b") is Phase.STOPPED
        full = False
        await sim.until(lambda: sim.kernel.state.store_ok)
        assert await sim.chat("b") == "ok"
        await sim.restart()
        assert list(await asyncio.gather(sim.chat("a"), sim.chat("b"))) == ["ok", "ok"]

    small = Behaviour(awake_bytes=4 * GIB)
    sim = play(tmp_path, {"a": small, "b": small}, script, boundary=boundary)
    assert {m: len(sim.world.happened("started", m)) for m in "ab"} == {"a": 1, "b": 1}


# --- a world that is over-full already ------------------------------------------------------------------------------


def test_foreign_memory_makes_room_by_shrinking_only(tmp_path: Path) -> None:
    async def script(sim: Sim) -> None:
        assert list(await asyncio.gather(sim.chat("a"), sim.chat("b"))) == ["ok", "ok"]
        sim.world.set_foreign(DeviceId("gpu0"), 5 * GIB)
        await sim.until(lambda: {sim.phase("a"), sim.phase("b")} == {Phase.AWAKE, Phase.STOPPED})
        assert any(t.kind == "shed" for t in sim.told)
        sim.world.set_foreign(DeviceId("gpu0"), 0)
        await asyncio.sleep(5.0)
        assert list(await asyncio.gather(sim.chat("a"), sim.chat("b"))) == ["ok", "ok"]

    small = Behaviour(awake_bytes=4 * GIB, levels=())
    play(tmp_path, {"a": small, "b": small}, script)
