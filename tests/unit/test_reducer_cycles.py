"""Many sleeps and wakes of one engine: it is started afresh when it leaks, when it slept very often, and when it speaks nonsense."""

from dataclasses import replace

import pytest

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.state import Policy
from tests.support.behaviour import NO_ROOM, Behaviour
from tests.support.plain import Plain

A = Behaviour(awake_bytes=8 * GIB, residue_bytes={1: GIB // 2, 2: GIB // 2}, levels=(1, 2))


def cycle(world: Plain, model: str = "a", *, level: int | None = None) -> None:
    """Asked, and put to sleep."""
    world.ask(model)
    world.settle()
    world.order("sleep", model, level=level)
    world.settle()


def denied(world: Plain) -> tuple[int, ...]:
    return world.state.facts_of(ModelName("a")).learned.denied_levels


# --- recycling --------------------------------------------------------------------------------------------------


def test_an_engine_that_slept_often_enough_is_stopped_when_idle_and_started_afresh_when_wanted() -> None:
    world = Plain({"gpu0": 24}, policy=Policy(recycle_cycles=3), a=A)
    for _ in range(2):
        cycle(world)
        assert world.phase("a") == "asleep"
    cycle(world)
    assert world.phase("a") == "stopped"
    reason = world.instance("a").reason
    assert (reason.code, reason.text) == (Code.RECYCLED, "it slept 3 times: stopped, and started afresh when it is asked for")
    cycle(world)
    assert (world.phase("a"), world.count("Launch", "a")) == ("asleep", 2), "counted from its new start"
    assert denied(world) == ()


def test_nobody_is_recycled_while_it_is_wanted() -> None:
    world = Plain({"gpu0": 24}, policy=Policy(recycle_cycles=1), a=A)
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    (client,) = world.ask("a", for_s=20.0)
    world.run_until(lambda: client.end == "granted")
    assert world.count("Wake", "a") == 1
    world.settle()
    world.run(5)
    assert (client.end, world.phase("a")) == ("ok", "stopped")


def test_a_residue_that_grows_from_sleep_to_sleep_is_a_leak() -> None:
    world = Plain({"gpu0": 24}, a=replace(A, residue_growth_bytes=GIB // 4))
    sleeps = 0
    while world.phase("a") != "stopped" or not sleeps:
        cycle(world)
        sleeps += 1
        assert sleeps < 10
    assert sleeps == 4
    assert world.instance("a").reason.text.startswith("its residue grew from 512 MiB to 1.2 GiB")
    assert denied(world) == ()


def test_a_residue_that_wavers_is_none() -> None:
    world = Plain({"gpu0": 24}, a=replace(A, residue_growth_bytes=30 << 20))
    for _ in range(8):
        cycle(world)
    assert world.count("Launch", "a") == 1


# --- wakes that fail --------------------------------------------------------------------------------------------


def test_a_wake_without_room_makes_room_and_is_tried_once_more() -> None:
    """Others grew while it slept: what it left mapped counts as its own."""
    world = Plain({"gpu0": 24}, a=replace(A, wake_errors=1, wake_error_text=NO_ROOM), b=replace(A, awake_bytes=12 * GIB))
    cycle(world)
    world.ask("b")
    world.settle()
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    assert (world.count("Wake", "a"), world.count("Launch", "a")) == (2, 1)
    assert world.state.facts_of(ModelName("a")).learned.failed_wakes == {}, "it says nothing of the level"
    assert denied(world) == ()


def test_a_wake_that_found_no_room_is_repeated_on_what_was_measured_since() -> None:
    """A stranger came after the last sample: what that sample saw free is not there."""
    world = Plain({"gpu0": 24}, a=replace(A, awake_bytes=16 * GIB, wake_s=0.3, wake_errors=1), b=replace(A, awake_bytes=3 * GIB))
    world.ask("a")
    world.run(30)
    world.order("sleep", "a")
    world.run(30)
    world.ask("b")
    world.run(60.5)
    (client,) = world.ask("a")
    world.run_until(lambda: world.phase("a") == "waking")
    world.foreign[DeviceId("gpu0")] = 4 * GIB
    world.run(60)
    assert (client.end, world.phase("b"), world.count("Wake", "a")) == ("ok", "asleep", 2)


@pytest.mark.parametrize("level", [1, 2])
def test_a_wake_that_fails_for_another_reason_is_a_cold_start_and_the_second_denies_the_level(level: int) -> None:
    world = Plain({"gpu0": 24}, a=replace(A, wake_errors=1, wake_error_text="illegal memory access"))
    for already, then in (((), ()), ((), (level,))):
        assert denied(world) == already
        cycle(world, level=level)
        (client,) = world.ask("a")
        world.settle()
        assert client.end == "ok"
        assert denied(world) == then
    assert world.count("Launch", "a") == 3
    action = world.order("sleep", "a", level=level)
    world.settle()
    assert world.finished[action].code == "sleep_unsupported"


def test_a_wake_that_went_well_forgets_the_one_that_did_not() -> None:
    world = Plain({"gpu0": 24}, a=replace(A, wake_errors=1, wake_error_text="illegal memory access"))
    cycle(world)
    world.ask("a")
    world.settle()
    world.behaviours["a"] = A
    world.order("restart", "a")
    world.settle()
    cycle(world)
    cycle(world)
    assert world.state.facts_of(ModelName("a")).learned.failed_wakes == {}


def test_weights_that_cannot_be_read_again_are_a_failed_wake_and_what_says_that_it_is_awake_never_serves() -> None:
    world = Plain({"gpu0": 24}, a=replace(A, reload_error="Model reloading with `runai_streamer` format"))
    cycle(world, level=2)
    (client,) = world.ask("a")
    world.settle()
    assert (client.end, world.count("Launch", "a")) == ("ok", 2)
    assert world.path("a").endswith("asleep waking unknown stopping stopped launching awake")
    (stopped,) = [j.transition for j in world.transitions if j.transition.event == "StopIntended"]
    assert stopped.reason.text == "its wake was not seen to end well, so nothing proves what it would answer: started afresh"
    assert world.state.facts_of(ModelName("a")).learned.failed_wakes == {2: 1}


def test_a_wake_whose_end_nobody_saw_because_the_daemon_was_away_proves_nothing() -> None:
    world = Plain({"gpu0": 24}, a=replace(A, wake_s=2.0, garbage_levels=(1,)))
    cycle(world)
    world.ask("a")
    world.run(1.0)
    world.restart()
    (client,) = world.ask("a")
    world.settle()
    assert (client.end, world.count("Launch", "a")) == ("ok", 2)
    assert world.path("a").endswith("asleep waking unknown stopping stopped launching awake")


# --- nonsense ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_speaks_nonsense_after_a_wake_never_serves_and_its_level_is_denied_at_once(level: int) -> None:
    world = Plain({"gpu0": 24}, a=replace(A, garbage_levels=(level,)))
    cycle(world, level=level)
    clients = world.ask("a", 3)
    world.run_until(lambda: world.count("Kill", "a") == 1)
    assert {c.end for c in clients} == {"held"}, "kept for the one that is started in its place"
    world.settle()
    assert {c.end for c in clients} == {"ok"}
    assert world.path("a").endswith("asleep waking stopping backoff launching awake")
    assert denied(world) == (level,)
    (told,) = [t for t in world.told if t.kind == "output_wrong"]
    assert told.message == "it does not say what it said before it slept"
    assert not world.overflows
