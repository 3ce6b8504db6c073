"""The pretended machine with engines that do not keep their word: what a daemon sees of it through its ports."""

from dataclasses import replace

import pytest

from scheduler.domain.errors import Permanent, Temporary
from scheduler.domain.lease import Outcome
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.engine import Answer, Endpoint, WarmsUp
from scheduler.ports.launcher import ExitInfo
from scheduler.simulator.virtual_time import elapse, settle
from scheduler.telemetry.tasks import spawn
from tests.support.behaviour import Behaviour
from tests.support.world_ports import Daemon
from tests.unit.test_world import GPU, machine, started

pytestmark = pytest.mark.virtual_time

QUICK = Behaviour(start_s=0.0, awake_bytes=10 * GIB, residue_bytes={1: GIB, 2: GIB}, levels=(1, 2))


async def warm(daemon: Daemon, name: str = "a", launch: int = 1) -> Endpoint:
    """A started engine's endpoint with its golden answer."""
    _, endpoint = await started(daemon, name, launch)
    await settle()
    return replace(endpoint, golden=await daemon.engine.warm_up(endpoint, 5.0))


async def cycle(daemon: Daemon, endpoint: Endpoint, level: int) -> None:
    await daemon.engine.sleep(endpoint, level, 5.0)
    await daemon.engine.wake(endpoint, level, 5.0)


async def test_a_warm_up_says_the_same_twice_and_a_healthy_engine_says_it_after_each_wake() -> None:
    _, daemon = machine(a=QUICK)
    engine: object = daemon.engine
    assert isinstance(engine, WarmsUp)
    endpoint = await warm(daemon)
    assert endpoint.golden == await daemon.engine.warm_up(endpoint, 5.0) != ""
    for level in (1, 2):
        await cycle(daemon, endpoint, level)
    assert (await daemon.engine.probe(endpoint, 1.0)).answer is Answer.READY


async def test_garbage_after_a_wake_is_refused_when_there_is_something_to_compare_with() -> None:
    world, daemon = machine(a=replace(QUICK, garbage_levels=(2,)))
    endpoint = await warm(daemon)
    await cycle(daemon, endpoint, 1)
    with pytest.raises(Permanent) as caught:
        await cycle(daemon, endpoint, 2)
    assert caught.value.code == Code.OUTPUT_WRONG
    await cycle(daemon, replace(endpoint, golden=""), 1)  # then nobody notices
    assert await world.request(endpoint.base_url, 1.0) is Outcome.OK
    assert [entry.subject for entry in world.happened("garbage")] == ["a"]


async def test_a_reload_that_fails_is_a_wake_that_failed() -> None:
    _, daemon = machine(a=replace(QUICK, reload_error="shapes differ"))
    endpoint = await warm(daemon)
    with pytest.raises(Temporary, match="shapes differ"):
        await cycle(daemon, endpoint, 2)


async def test_a_wedged_engine_looks_ready_and_costs_the_time_out() -> None:
    world, daemon = machine(a=replace(QUICK, wedged_after_wake=True))
    endpoint = await warm(daemon)
    await daemon.engine.sleep(endpoint, 1, 5.0)
    before_s = world.now_s
    with pytest.raises(Temporary) as caught:
        await daemon.engine.wake(endpoint, 1, 5.0)
    assert caught.value.code == Code.WAKE_FAILED
    assert world.now_s == before_s + QUICK.wake_s + 5.0
    assert (await daemon.engine.probe(endpoint, 1.0)).answer is Answer.READY
    hanging = spawn(world.request(endpoint.base_url, 1.0), "hangs")
    await elapse(100.0)
    assert not hanging.done()
    world.kill("a")
    assert await hanging is Outcome.ENGINE_LOST


async def test_a_wake_that_really_finds_no_room() -> None:
    knobs = replace(QUICK, wake_needs_room=True)
    world, daemon = machine(a=knobs, b=replace(QUICK, awake_bytes=20 * GIB, residue_bytes={1: GIB}))
    a = await warm(daemon, "a", 1)
    await daemon.engine.sleep(a, 1, 5.0)
    b = await warm(daemon, "b", 2)
    with pytest.raises(Temporary, match="out of memory"):
        await daemon.engine.wake(a, 1, 5.0)
    assert world.used_bytes(GPU) == 24 * GIB  # as much as there was
    assert (await daemon.engine.probe(a, 1.0)).answer is Answer.ASLEEP
    assert [entry.detail for entry in world.overflows] == [f"{6 * GIB} bytes too many, refused to a"]
    await daemon.engine.sleep(b, 1, 5.0)
    await daemon.engine.wake(a, 1, 5.0)
    assert world.used_bytes(GPU) == 11 * GIB
    assert len(world.engines()) == 2


async def test_without_that_knob_the_waker_dies_of_it() -> None:
    world, daemon = machine(a=QUICK, b=replace(QUICK, awake_bytes=20 * GIB))
    a = await warm(daemon, "a", 1)
    await daemon.engine.sleep(a, 1, 5.0)
    await warm(daemon, "b", 2)
    with pytest.raises(Temporary):
        await daemon.engine.wake(a, 1, 5.0)
    assert not world.engines("a")


@pytest.mark.parametrize(("knob", "wanted"), [({"free_fraction": 0.3}, 10 * GIB - int(0.3 * 9 * GIB)), ({"free_fraction": 0.0}, 10 * GIB)])
async def test_a_sleep_that_frees_a_part(knob: dict[str, float], wanted: int) -> None:
    world, daemon = machine(a=replace(QUICK, **knob))  # type: ignore[arg-type]
    endpoint = await warm(daemon)
    assert await daemon.engine.sleep(endpoint, 1, 5.0) == 1
    assert world.used_bytes(GPU) == wanted


async def test_memory_that_falls_after_the_reply() -> None:
    world, daemon = machine(a=replace(QUICK, free_delay_s=1.5))
    endpoint = await warm(daemon)
    await daemon.engine.sleep(endpoint, 1, 5.0)
    pid = world.engine("a").pid
    assert world.own_bytes(GPU, frozenset({pid})) == 10 * GIB
    await elapse(1.5)
    assert world.own_bytes(GPU, frozenset({pid})) == GIB


@pytest.mark.parametrize("knob", ["dies_on_first_request_after_wake", "first_generation_fails"])
async def test_a_probe_after_the_wake_finds_what_kills(knob: str) -> None:
    world, daemon = machine(a=replace(QUICK, **{knob: True}))  # type: ignore[arg-type]
    endpoint = await warm(daemon)
    with pytest.raises(Temporary):
        await cycle(daemon, endpoint, 2)
    assert not world.engines("a")


async def test_a_request_to_a_sleeper_that_does_not_stand_it() -> None:
    world, daemon = machine(a=replace(QUICK, crash_on_request_while_asleep=True))
    endpoint = await warm(daemon)
    await daemon.engine.sleep(endpoint, 1, 5.0)
    assert await world.request(endpoint.base_url, 1.0) is Outcome.ENGINE_LOST
    assert len(world.misdirected) == 1
    assert not world.engines("a")


async def test_a_sleep_under_running_requests_kills_later() -> None:
    world, daemon = machine(a=replace(QUICK, sleep_while_running_crashes=True))
    endpoint = await warm(daemon)
    inside = spawn(world.request(endpoint.base_url, 60.0), "inside")
    await settle()
    assert await daemon.engine.sleep(endpoint, 1, 5.0) == 1
    await elapse(2.0)
    assert not world.engines("a")
    assert await inside is Outcome.ENGINE_LOST


async def test_a_start_that_looks_for_free_memory_first() -> None:
    knobs = replace(QUICK, start_needs_share=0.9)
    world, daemon = machine(a=QUICK, b=knobs, c=knobs)
    await warm(daemon, "a", 1)
    handle, _ = await started(daemon, "b", 2)
    assert await daemon.launcher.wait_leader(handle) == ExitInfo(code=1)
    assert daemon.engine.explain_exit(ExitInfo(code=1), daemon.read_log("b.log")).code is Code.DEVICE_OOM
    assert world.overflows == []  # it took nothing
    await started(daemon, "c", 3, "gpu1")
    await settle()
    assert len(world.engines("c")) == 1


@pytest.mark.parametrize(("profiling", "engines", "used_gib"), [("", 2, 1 + 4), ("inflate", 2, 1 + 4 + 9), ("abort", 1, 1)])
async def test_a_neighbour_that_falls_asleep_while_another_starts(profiling: str, engines: int, used_gib: int) -> None:
    world, daemon = machine(a=QUICK, b=replace(QUICK, start_s=10.0, awake_bytes=4 * GIB, profiling=profiling))
    a = await warm(daemon, "a", 1)
    await started(daemon, "b", 2)
    await daemon.engine.sleep(a, 1, 5.0)
    await elapse(10.0)
    assert len(world.engines()) == engines
    assert world.used_bytes(GPU) == used_gib * GIB
