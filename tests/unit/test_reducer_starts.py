"""Cold starts that fail with what sleeping needs, and cold starts side by side."""

from dataclasses import replace

import pytest

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator import effects as fx
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain

CRASH = StartFailure(code=Code.CRASHED, text="CUDA error: an illegal instruction was encountered")
B = Behaviour(awake_bytes=16 * GIB)


class Seen(Plain):
    """Keeps every launch."""

    launches: list[fx.Launch]

    def command(self, effect: fx.EngineEffect) -> None:
        """Note it, then do it."""
        if isinstance(effect, fx.Launch):
            self.launches = [*getattr(self, "launches", []), effect]
        super().command(effect)

    def sleepless(self) -> list[bool]:
        """Of each launch so far, whether it was made without what sleeping needs."""
        return [launch.sleepless for launch in self.launches]


def test_a_start_that_fails_with_sleep_mode_is_tried_once_without_and_then_is_only_started_and_stopped() -> None:
    world = Seen({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=CRASH), b=B)
    world.versions["a"] = "0.9.0"
    world.ask("a")
    world.settle()
    assert world.ends() == ["ok"]
    assert world.sleepless() == [False, False, True]
    assert [t.kind for t in world.told if t.subject == "a"].count("starts_sleepless") == 1
    world.launches = []
    for model in "ba":
        world.ask(model)
        world.settle()
    assert set(world.ends()) == {"ok"}
    assert [launch.sleepless for launch in world.launches if launch.instance == world.instance("a").id] == [True]
    assert world.count("Sleep", "a") == 0
    action = world.order("sleep", "a")
    world.settle()
    assert world.finished[action].code == "sleep_unsupported"


@pytest.mark.parametrize("known", [False, True], ids=["its first", "a later one"])
def test_a_start_without_sleep_mode_that_outlives_its_daemon_is_not_taken_for_one_with_it(known: bool) -> None:
    """Whoever started well with sleep mode before is never tried without: it would not start at all any more."""
    world = Seen({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=CRASH))
    world.versions["a"] = "0.9.0"
    world.ask("a")
    if known:
        world.settle()
        world.order("stop", "a")
        world.settle()
        world.ask("a")
    world.run_until(lambda: len(world.sleepless()) == (4 if known else 3) and world.phase("a") == "launching")
    assert world.sleepless()[-1]
    world.run(1)
    world.restart()
    world.settle()
    assert world.phase("a") == "awake"
    world.order("stop", "a")
    world.settle()
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"


def test_another_version_of_the_engine_is_tried_with_sleep_mode_again() -> None:
    world = Seen({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=CRASH), b=B)
    world.versions["a"] = "0.9.0"
    world.ask("a")
    world.settle()
    world.versions["a"] = "0.10.0"
    world.behaviours["a"] = Behaviour(awake_bytes=16 * GIB)
    world.launches = []
    for model in "babab":  # the first start after the upgrade does not know of it yet
        world.ask(model)
        world.settle()
    assert set(world.ends()) == {"ok"}
    assert [launch.sleepless for launch in world.launches if launch.instance == world.instance("a").id] == [True, False]
    assert world.phase("a") == "asleep"


def test_a_version_that_does_not_start_with_sleep_mode_either_is_remembered_in_its_turn() -> None:
    world = Seen({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=CRASH), b=B)
    for version in ("0.9.0", "0.10.0"):
        world.versions["a"] = version
        for model in "aba":
            world.ask(model)
            world.settle()
        world.order("stop", "a")
        world.settle()
    world.launches = []
    world.ask("a")
    world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.sleepless() == [True]


@pytest.mark.parametrize("mended", [True, False])
def test_an_operators_restart_tries_it_with_sleep_mode_again(mended: bool) -> None:
    """Two starts may have failed for a cause that is gone."""
    broken = Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=CRASH)
    world = Seen({"gpu0": 24}, a=broken, b=B)
    world.ask("a")
    world.settle()
    world.behaviours["a"] = Behaviour(awake_bytes=16 * GIB) if mended else broken
    world.launches = []
    action = world.order("restart", "a")
    world.settle()
    world.ask("a")
    world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.finished[action].ok is mended
    assert world.sleepless() == ([False] if mended else [False, False, True])
    world.ask("b")
    world.settle()
    assert world.phase("a") == ("asleep" if mended else "stopped")


def test_a_definition_that_started_with_sleep_mode_before_keeps_it() -> None:
    world = Seen({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB))
    world.ask("a")
    world.settle()
    world.order("stop", "a")
    world.settle()
    world.behaviours["a"] = Behaviour(awake_bytes=16 * GIB, fails_always=CRASH)
    world.ask("a")
    world.settle()
    assert world.phase("a") == "failed"
    assert not any(world.sleepless())


def test_a_command_of_the_operators_is_run_as_it_stands() -> None:
    sleepy = Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=CRASH)
    world = Seen({"gpu0": 24}, specs={"a": {"command": ("serve", "--enable-sleep-mode")}}, a=sleepy)
    world.ask("a")
    world.settle()
    assert world.phase("a") == "failed"
    assert not any(world.sleepless())


def test_a_start_without_memory_gets_more_room_then_less_kv_cache_then_goes_without_sleep_mode() -> None:
    short = StartFailure(code=Code.DEVICE_OOM, text="CUDA out of memory")
    world = Seen({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleepy_start_fails=short))
    name = ModelName("a")
    guess = Footprint(awake_bytes=16 * GIB, weights_bytes=10 * GIB, kv_bytes=5 * GIB, kv_min_bytes=GIB, source=Source.DECLARED)
    world.play(replace(world.registry(), guesses={name: guess}))
    world.ask("a")
    world.settle()
    assert world.ends() == ["ok"]
    first, second, third = world.launches
    assert first.claim_bytes < second.claim_bytes <= third.claim_bytes <= 24 * GIB
    assert first.kv_bytes == second.kv_bytes == 5 * GIB
    assert third.kv_bytes is not None
    assert GIB <= third.kv_bytes < 5 * GIB
    assert world.sleepless() == [False, False, True]


# --- side by side -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("host_gib", "at_once"), [(20, 1), (64, 2), (None, 2)])
def test_weights_that_host_memory_cannot_hold_together_are_loaded_one_after_the_other(host_gib: int | None, at_once: int) -> None:
    world = Seen({"gpu0": 24, "gpu1": 24}, a=B, b=B, c=Behaviour(awake_bytes=GIB))
    world.around.host_bytes = None if host_gib is None else host_gib * GIB
    world.take_sample()
    for model in "ab":
        world.ask(model)
    world.run(1)
    assert sum(world.phase(m) == "launching" for m in "ab") == at_once
    if at_once == 1:
        [later] = [m for m in "ab" if world.phase(m) == "stopped"]
        assert "available" in world.state.hold_reasons[ModelName(later)].text
        world.ask("c")
        world.run(1)
        assert sum(world.phase(m) == "launching" for m in "abc") == 1
    world.settle()
    assert set(world.ends()) == {"ok"}


def test_a_wake_loads_nothing_and_waits_for_no_load() -> None:
    world = Seen({"gpu0": 24, "gpu1": 24}, specs={"b": {"devices": DeviceWish(ids=(DeviceId("gpu1"),))}}, a=B, b=B)
    world.around.host_bytes = 20 * GIB
    world.ask("b")
    world.settle()
    world.order("sleep", "b")
    world.settle()
    world.ask("a")
    world.run(1)
    world.ask("b")
    world.run(0.5)
    assert (world.phase("a"), world.phase("b")) == ("launching", "waking")
    world.settle()
    assert set(world.ends()) == {"ok"}
