"""The pretended machine itself: what it lets a daemon see, and what it never lets happen."""

import pytest

from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.ids import DeviceId, Holder, ModelName
from scheduler.domain.lease import Outcome
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.device import DeviceSource
from scheduler.ports.engine import Answer, CanSleep, CountsRequests, Endpoint, Engine, LaunchPlan
from scheduler.ports.launcher import ExitInfo, Gate, Launcher, ProcessHandle, SpawnRequest
from scheduler.simulator.virtual_time import elapse, settle
from scheduler.telemetry.tasks import spawn
from tests.support.behaviour import NEVER, Behaviour, Child
from tests.support.engine_life import Ended
from tests.support.world import World, device
from tests.support.world_ports import ENGINE, Daemon, WorldGate, fails

pytestmark = pytest.mark.virtual_time

GPU = DeviceId("gpu0")
UUID = "uuid"


def machine(**behaviours: Behaviour) -> tuple[World, Daemon]:
    world = World([device("gpu0", 24), device("gpu1", 24, index=1)], behaviours)
    return world, Daemon(world)


async def gated(daemon: Daemon, name: str = "a", launch: int = 1, on: str = "gpu0") -> tuple[WorldGate, Endpoint]:
    spec = ModelSpec(name=ModelName(name), engine=ENGINE)
    port = daemon.launcher.free_port()
    argv = daemon.engine.command(spec, LaunchPlan(port=port, devices=(DeviceId(on),))).argv
    request = SpawnRequest(argv=argv, env={}, cwd="/", log_path=f"{name}.log", token=f"{UUID}:{launch}")
    return await daemon.launcher.spawn(request), Endpoint(base_url=f"http://127.0.0.1:{port}", served_model=name)


async def started(daemon: Daemon, name: str = "a", launch: int = 1, on: str = "gpu0") -> tuple[ProcessHandle, Endpoint]:
    gate, endpoint = await gated(daemon, name, launch, on)
    await gate.release()
    return gate.handle, endpoint


async def test_implements_the_ports() -> None:
    _, daemon = machine()
    launcher: Launcher = daemon.launcher
    engine: Engine = daemon.engine
    source: DeviceSource = daemon.sources[0]
    gate: Gate = (await gated(daemon))[0]
    assert isinstance(engine, CanSleep)
    assert isinstance(engine, CountsRequests)
    assert (launcher.boot_id, source.kind, gate.handle.pid) == (launcher.boot_id, "nvidia", 1000)


async def test_start_sleep_wake_stop_as_measured() -> None:
    world, daemon = machine(a=Behaviour(loading_bytes=6 * GIB, awake_bytes=4 * GIB, residue_bytes={1: GIB}, free_lag_s=1.0))
    handle, endpoint = await started(daemon)
    holder = Holder("a#0")

    async def own() -> int:
        pids = await daemon.launcher.members(handle)
        (sample, _) = await daemon.sources[0].sample({GPU: {holder: pids}})
        assert sample.used_bytes == world.used_bytes(GPU)
        return sample.own[holder]

    assert (await daemon.engine.probe(endpoint, 1)).answer is Answer.REFUSED
    assert await own() == 6 * GIB
    await elapse(3.0)
    assert (await daemon.engine.probe(endpoint, 1)).answer is Answer.READY
    await elapse(1.0)
    assert await own() == 4 * GIB
    assert await daemon.engine.sleep(endpoint, 1, 10) == 1
    assert await own() == 4 * GIB  # said, but not seen yet
    await elapse(1.0)
    assert await own() == GIB
    found = await daemon.engine.probe(endpoint, 1)
    assert (found.answer, found.level) == (Answer.ASLEEP, 1)
    await daemon.engine.wake(endpoint, 1, 10)
    assert await own() == 4 * GIB
    await daemon.launcher.terminate(handle, kill=False)
    assert await daemon.launcher.wait_leader(handle) == ExitInfo(code=0)
    assert await daemon.launcher.members(handle) == frozenset()
    assert await own() == 0
    assert world.used_bytes(GPU) == 4 * GIB  # dead, but the driver is slow
    await elapse(1.0)
    assert world.used_bytes(GPU) == 0
    assert world.devices[GPU].peak_bytes == 6 * GIB
    assert [e.what for e in world.log] == ["spawned", "started", "ready", "asleep", "woken", "ended"]


async def test_a_crash_ends_children_at_their_gates_only() -> None:
    world, daemon = machine()
    running, endpoint = await started(daemon)
    gate, _ = await gated(daemon, "b", 2)
    released = spawn(daemon.launcher.wait_leader(running), "dead daemon waits")
    world.crash()
    assert not [p for p in world.processes.values() if p.alive and p.model == "b"]
    late = spawn(gate.release(), "dead daemon releases")
    await settle()
    assert late.cancelled()  # its code ends without having done anything
    assert not world.engines("b")
    new = Daemon(world)
    assert [owned.handle for owned in await new.launcher.owned(UUID)] == [running]
    await elapse(3.0)
    assert (await new.engine.probe(endpoint, 1)).answer is Answer.READY
    world.kill("a")
    assert await new.launcher.wait_leader(running) == ExitInfo()  # not its child: nobody saw how
    await settle()
    assert released.cancelled()
    for task in (late, released):
        task.cancel()


async def test_abandoned_and_missing_programs_never_run() -> None:
    world, daemon = machine(b=Behaviour(executable_missing=True))
    gate, _ = await gated(daemon)
    await gate.abandon()
    await gate.abandon()
    gate, _ = await gated(daemon, "b")
    with pytest.raises(Permanent) as caught:
        await gate.release()
    assert caught.value.code == "executable_missing"
    assert world.engines() == []
    assert not world.happened("started")


async def test_fails_so_often_then_works() -> None:
    _, daemon = machine(a=Behaviour(start_failures=(fails(Code.DEVICE_OOM), fails(Code.HOST_OOM, after_s=2.0))))
    for code in (Code.DEVICE_OOM, Code.HOST_OOM):
        handle, _ = await started(daemon)
        ended = await daemon.launcher.wait_leader(handle)
        assert daemon.engine.explain_exit(ended, daemon.read_log("a.log")).code is code
    _, endpoint = await started(daemon)
    await elapse(3.0)
    assert (await daemon.engine.probe(endpoint, 1)).answer is Answer.READY


async def test_taking_more_than_there_is_is_recorded_and_ends_the_taker() -> None:
    world, daemon = machine(a=Behaviour(awake_bytes=16 * GIB), b=Behaviour(awake_bytes=16 * GIB))
    await started(daemon, "a", 1)
    await elapse(5.0)
    handle, _ = await started(daemon, "b", 2)
    assert not await daemon.launcher.leader_alive(handle)
    assert [e.subject for e in world.overflows] == ["gpu0"]
    assert daemon.engine.explain_exit(ExitInfo(code=1), daemon.read_log("b.log")).code is Code.DEVICE_OOM
    await started(daemon, "b", 3, "gpu1")
    assert len(world.overflows) == 1


async def test_a_child_that_outlives_its_leader_keeps_its_memory_until_killed() -> None:
    children = (Child(share=0.5, outlives=True, ignores_term=True, keeps_token=False), Child(share=0.25))
    world, daemon = machine(a=Behaviour(awake_bytes=8 * GIB, children=children))
    handle, _ = await started(daemon)
    await elapse(4.0)
    assert len(await daemon.launcher.members(handle)) == 3
    world.kill("a")
    (left,) = await daemon.launcher.members(handle)
    assert world.used_bytes(GPU) == 4 * GIB
    assert await daemon.launcher.owned(UUID) == []  # it lost its token: only its session tells
    await daemon.launcher.terminate(handle, kill=False)
    assert await daemon.launcher.members(handle) == {left}
    await daemon.launcher.terminate(handle, kill=True)
    assert await daemon.launcher.members(handle) == frozenset()
    assert world.used_bytes(GPU) == 0


async def test_term_ignored_kill_not() -> None:
    _, daemon = machine(a=Behaviour(term_s=NEVER))
    handle, _ = await started(daemon)
    await daemon.launcher.terminate(handle, kill=False)
    await elapse(100.0)
    assert await daemon.launcher.leader_alive(handle)
    await daemon.launcher.terminate(handle, kill=True)
    assert await daemon.launcher.wait_leader(handle) == ExitInfo(signal=9)


async def test_control_calls_that_fail_lie_or_hang() -> None:
    knobs = Behaviour(start_s=0.0, sleep_errors=1, sleep_hangs=1, wake_errors=1, wake_hangs=1, awake_bytes=8 * GIB)
    world, daemon = machine(a=knobs)
    _, endpoint = await started(daemon)
    await settle()
    for sentence in ("internal error", "no answer"):
        with pytest.raises(Temporary, match=sentence):
            await daemon.engine.sleep(endpoint, 1, 5.0)
    assert await daemon.engine.sleep(endpoint, 1, 5.0) == 1
    assert world.used_bytes(GPU) == GIB // 2
    with pytest.raises(Temporary, match="out of memory"):
        await daemon.engine.wake(endpoint, 1, 5.0)
    assert world.used_bytes(GPU) == 4 * GIB  # half mapped, and asleep
    assert (await daemon.engine.probe(endpoint, 1)).answer is Answer.ASLEEP
    with pytest.raises(Temporary, match="no answer"):
        await daemon.engine.wake(endpoint, 1, 5.0)
    await daemon.engine.wake(endpoint, 1, 5.0)
    assert (await daemon.engine.probe(endpoint, 1)).answer is Answer.READY


async def test_a_sleep_goes_on_without_its_caller() -> None:
    world, daemon = machine(a=Behaviour(start_s=0.0, sleep_s=5.0))
    _, endpoint = await started(daemon)
    await settle()
    asking = spawn(daemon.engine.sleep(endpoint, 1, 60.0), "ask")
    await elapse(1.0)
    asking.cancel()
    await elapse(5.0)
    assert [e.at_s for e in world.happened("asleep", "a")] == [5.0]


async def test_requests_end_as_their_engine_does() -> None:
    world, daemon = machine(a=Behaviour(start_s=0.0), b=Behaviour(start_s=0.0))
    _, at_a = await started(daemon, "a", 1)
    _, at_b = await started(daemon, "b", 2, "gpu1")
    await settle()
    whole = spawn(world.request(at_a.base_url, 5.0), "whole")
    lost = spawn(world.request(at_b.base_url, 5.0), "lost")
    await elapse(1.0)
    assert await daemon.engine.running(at_a, 1) == 1
    world.end("b", Ended(signal=11, code=Code.CRASHED))
    assert await lost is Outcome.ENGINE_LOST
    assert await world.request(at_b.base_url, 5.0) is Outcome.ENGINE_LOST
    assert await whole is Outcome.OK
    cut = spawn(world.request(at_a.base_url, 5.0), "cut")
    await elapse(1.0)
    await daemon.engine.sleep(at_a, 1, 5.0)
    assert await cut is Outcome.ABORTED
    assert not world.misdirected
    assert await world.request(at_a.base_url, 1.0) is Outcome.ENGINE_ERROR
    assert len(world.misdirected) == 1


async def test_strangers_silence_and_refusal() -> None:
    world, daemon = machine(a=Behaviour(port_taken=1, silent_after_s=10.0))
    handle, endpoint = await started(daemon)
    assert (await daemon.engine.probe(endpoint, 1)).answer is Answer.READY  # the stranger
    assert await daemon.launcher.owns_port(handle, 20_000) is False
    ended = await daemon.launcher.wait_leader(handle)
    assert daemon.engine.explain_exit(ended, daemon.read_log("a.log")).code is Code.PORT_TAKEN
    handle, endpoint = await started(daemon)
    await elapse(5.0)
    assert await daemon.launcher.owns_port(handle, 20_001) is True
    await elapse(10.0)
    before = world.now_s
    assert (await daemon.engine.probe(endpoint, 2.0)).answer is Answer.SILENT
    assert world.now_s == before + 2.0
    life = world.engine("a").life
    assert life is not None
    life.refuses = True
    assert (await daemon.engine.probe(endpoint, 2.0)).answer is Answer.REFUSED


async def test_devices_unreadable_slow_and_pressed_from_outside() -> None:
    world, daemon = machine()
    world.devices[GPU].readable = False
    assert [s.device for s in await daemon.sources[0].sample({})] == ["gpu1"]
    world.devices[GPU].readable = True
    world.set_foreign(GPU, 30 * GIB)
    world.sample_s = 0.5
    first = (await daemon.sources[0].sample({}))[0]
    assert (first.started_at_s, world.now_s) == (0.0, 0.5)
    assert (first.free_bytes, first.foreign_bytes) == (0, 30 * GIB)


async def test_growth_over_time_is_seen_and_bounded() -> None:
    world, daemon = machine(a=Behaviour(start_s=0.0, growth_bps=GIB, growth_limit_bytes=2 * GIB))
    await started(daemon)
    await elapse(1.0)
    assert world.used_bytes(GPU) == 5 * GIB
    await elapse(10.0)
    assert world.used_bytes(GPU) == 6 * GIB


async def test_errors_have_codes() -> None:
    _, daemon = machine(a=Behaviour(preflight=fails(Code.MODEL_MISSING)))
    with pytest.raises(HotseatError) as caught:
        await daemon.engine.preflight(ModelSpec(name=ModelName("a"), engine=ENGINE))
    assert caught.value.code == Code.MODEL_MISSING.value
