"""What a run teaches: sizes and times of what is configured now, and never of what it replaced."""

from dataclasses import replace

import pytest

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.learned import Learned
from scheduler.domain.model import HttpStep
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.state import ModelFacts
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain
from tests.support.world import device

SMALL = Behaviour(awake_bytes=2 * GIB)
LARGE = Behaviour(awake_bytes=6 * GIB, levels=())
LONGER = {"args": ("--ctx", "100000")}


def facts(world: Plain, model: str = "a") -> ModelFacts:
    return world.state.facts_of(ModelName(model))


def enlarge(world: Plain) -> None:
    """The operator gives ``a`` a larger context; its adapter says what that takes."""
    world.behaviours["a"] = LARGE
    world.configure(a=LONGER)


@pytest.mark.parametrize("at_s", [1.0, 4.0], ids=["while it starts", "while it serves"])
def test_the_process_of_an_old_definition_teaches_the_new_one_nothing(at_s: float) -> None:
    world = Plain({"gpu0": 10}, a=SMALL)
    world.ask("a", for_s=20.0)
    world.run(at_s)
    enlarge(world)
    world.settle()
    assert world.path("a").endswith("stopping stopped")
    assert facts(world).footprint.awake_bytes >= 6 * GIB
    assert facts(world).learned == Learned()


def test_an_adopted_process_of_an_old_definition_teaches_the_new_one_nothing() -> None:
    """The definition changed while no daemon lived."""
    world = Plain({"gpu0": 10}, a=SMALL, b=Behaviour(awake_bytes=5 * GIB, levels=()))
    world.ask("a")
    world.run(1.0)
    world.specs["a"] = replace(world.specs["a"], args=("--ctx", "100000"))
    world.behaviours["a"] = LARGE
    world.restart()
    world.ask("a", for_s=5.0)  # somebody waits: the old process is adopted and serves, as it should
    world.settle()
    assert facts(world).footprint.awake_bytes >= 6 * GIB
    world.ask("b", for_s=60.0)
    world.run(20.0)
    world.ask("a")
    world.settle()
    assert not world.overflows


def test_an_old_start_that_runs_out_of_memory_does_not_raise_the_new_guess() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=2 * GIB, fails_always=StartFailure(code=Code.DEVICE_OOM, after_s=5.0)))
    world.ask("a")
    world.run(1.0)
    enlarge(world)
    world.run(10.0)
    assert facts(world).guess.awake_bytes == 6 * GIB


def test_a_level_that_freed_nothing_under_an_old_definition_is_tried_under_the_new_one() -> None:
    world = Plain({"gpu0": 10}, a=Behaviour(awake_bytes=2 * GIB, sleep_frees_nothing=True))
    world.ask("a")
    world.run(10.0)
    world.order("sleep", "a")
    world.configure(a=LONGER)
    world.settle()
    assert world.path("a").endswith("falling_asleep stopping stopped")
    assert facts(world).usable_levels() == (1,)


def test_a_definition_that_is_changed_back_learns_from_what_still_runs() -> None:
    world = Plain({"gpu0": 10}, a=SMALL)
    world.ask("a", for_s=60.0)
    world.run(10.0)
    known = facts(world).learned.awake_bytes
    world.configure(a=LONGER)
    world.run(5.0)
    assert facts(world).learned == Learned()
    world.configure(a={"args": ()})
    world.run(5.0)
    assert facts(world).learned.awake_bytes == known
    assert world.phase("a") == "awake"


# --- times ------------------------------------------------------------------------------------------------------


def awake_for_a_while(**knobs: float) -> Plain:
    world = Plain({"gpu0": 10}, a=Behaviour(awake_bytes=2 * GIB, **knobs))  # type: ignore[arg-type]
    world.ask("a")
    world.settle()
    return world


def test_a_stop_that_this_daemon_watched_is_timed() -> None:
    world = awake_for_a_while(term_s=4.0)
    world.order("stop", "a")
    world.settle()
    (seconds,) = facts(world).learned.stop_s
    assert 4.0 <= seconds <= 5.0
    assert any("freed in 4" in t.message for t in world.told if t.kind == "stopped")


def test_a_stop_that_outlived_its_daemon_is_not_timed() -> None:
    """When it was through nobody knows: the daemon was away, for hours perhaps."""
    world = awake_for_a_while(term_s=4.0)
    world.order("stop", "a")
    world.run(1.0)
    world.now_s += 7200.0
    world.restart()
    world.settle()
    assert world.phase("a") == "stopped"
    assert facts(world).learned.stop_s == ()


def test_a_stop_that_is_still_under_way_when_the_next_daemon_looks_is_timed_from_its_beginning() -> None:
    world = awake_for_a_while(term_s=8.0)
    world.order("stop", "a")
    world.run(2.0)
    world.restart()
    world.settle()
    (seconds,) = facts(world).learned.stop_s
    assert 8.0 <= seconds <= 2.0 + 8.0 + 1.0  # the next daemon sends its TERM again


@pytest.mark.parametrize("verb", ["stop", "sleep"])
def test_what_ended_on_a_blind_device_is_not_timed(verb: str) -> None:
    world = awake_for_a_while()
    world.order(verb, "a")
    world.unreadable.add(DeviceId("gpu0"))
    world.run(7200.0)
    world.unreadable.clear()
    world.settle()
    learned = facts(world).learned
    assert (learned.stop_s, dict(learned.sleep_s)) == ((), {})
    assert bool(learned.residue_bytes) == (verb == "sleep")  # what it keeps was measured all the same


@pytest.mark.parametrize(
    "change",
    [{"sleep_steps": (HttpStep(path="/sleep"),)}, {"wake_steps": (HttpStep(path="/wake"),)}, {"upstream_model": "other"}],
)
def test_what_the_launch_record_keeps_makes_a_running_engine_stale(change: dict[str, object]) -> None:
    world = awake_for_a_while()
    world.configure(a=change)
    world.settle()
    assert world.phase("a") == "stopped"
    assert world.instance("a").reason.code is Code.SPEC_STALE


def test_a_sleeper_of_an_old_definition_is_not_woken_into_the_room_of_the_new_one() -> None:
    """The new one is smaller. While ``b`` starts on the same device, the sleeper cannot be stopped yet, and somebody asks for it."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB), b=Behaviour(awake_bytes=10 * GIB, start_s=30.0))
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    world.ask("b", for_s=300.0)
    world.run(5)
    assert world.phase("b") == "launching"
    world.behaviours["a"] = Behaviour(awake_bytes=6 * GIB)
    world.configure(a=LONGER)
    (client,) = world.ask("a")
    world.run(120)
    assert client.end == "ok"
    assert world.overflows == []
    assert (world.count("Wake", "a"), world.count("Launch", "a")) == (0, 2)


# --- kinds of device --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reborn", [False, True], ids=["one daemon", "another daemon"])
def test_what_was_learned_on_one_kind_of_device_says_nothing_about_another(reborn: bool) -> None:
    """The driver of the cards was not loaded at first, so it ran on the CPU, where its sleep gives nothing back."""
    cards, ram = device("gpu0", 10), replace(device("ram", 32), kind="cpu", host_memory=True)
    world = Plain({}, infos=[ram, cards], a=replace(SMALL, sleep_frees_nothing=True))

    def may_sit_on(kind: str) -> None:
        world.play(replace(world.registry(), kinds={ModelName("a"): (kind,)}))

    may_sit_on("cpu")
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    assert (world.phase("a"), facts(world).learned.denied_levels) == ("stopped", (1,))
    world.behaviours["a"] = replace(SMALL, awake_bytes=4 * GIB)
    if reborn:
        world.restart()
    may_sit_on("nvidia")
    assert facts(world).learned == Learned()
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    assert world.phase("a") == "asleep"
    assert facts(world).learned.awake_bytes == (4 * GIB,)


def test_a_process_that_is_left_on_another_kind_of_device_teaches_nothing() -> None:
    ram = replace(device("ram", 32), kind="cpu", host_memory=True)
    world = Plain({}, infos=[ram, device("gpu0", 10)], a=SMALL)
    world.play(replace(world.registry(), kinds={ModelName("a"): ("cpu",)}))
    world.ask("a")
    world.run(1)
    world.play(replace(world.registry(), kinds={ModelName("a"): ("nvidia",)}))
    world.run(10)
    assert (world.phase("a"), world.instance("a").devices) == ("awake", ("ram",))
    assert facts(world).learned == Learned()


def test_a_sleeper_that_is_left_on_another_kind_of_device_is_started_on_the_new_one() -> None:
    """How much it takes when it wakes is not known any more: what is known is of the new kind."""
    ram = replace(device("ram", 32), kind="cpu", host_memory=True)
    world = Plain({}, infos=[ram, device("gpu0", 10)], a=SMALL)
    world.play(replace(world.registry(), kinds={ModelName("a"): ("cpu",)}))
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    assert (world.phase("a"), world.instance("a").devices) == ("asleep", ("ram",))
    world.play(replace(world.registry(), kinds={ModelName("a"): ("nvidia",)}))
    (client,) = world.ask("a")
    world.settle()
    assert (client.end, world.instance("a").devices, world.count("Wake", "a")) == ("ok", ("gpu0",), 0)


# --- versions of the engine -------------------------------------------------------------------------------------


def start_with(world: Plain, version: str) -> None:
    """The operator installs another version and starts ``a`` afresh."""
    world.versions["a"] = version
    world.order("restart", "a")
    world.settle()
    assert world.phase("a") == "awake"


def denied_under_one() -> Plain:
    """Version 1 of the engine keeps its memory when it sleeps; others do not."""
    world = Plain({"gpu0": 10}, a=replace(SMALL, sleep_frees_nothing=True))
    world.versions["a"] = "1"
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    assert facts(world).usable_levels() == ()
    world.behaviours["a"] = SMALL
    world.versions["a"] = "1"
    return world


@pytest.mark.parametrize("reborn", [False, True], ids=["one daemon", "another daemon"])
def test_a_denial_ends_with_the_version_it_was_seen_in_and_comes_back_with_it(reborn: bool) -> None:
    world = denied_under_one()
    start_with(world, "2")
    assert facts(world).usable_levels() == (1,), "tried again"
    world.order("sleep", "a")
    world.settle()
    assert world.phase("a") == "asleep"
    assert facts(world).learned.residue_bytes[1] == (GIB // 2,)
    if reborn:
        world.restart()
        world.run(5)
    start_with(world, "1")
    assert facts(world).usable_levels() == (), "not tried again to no avail"
    start_with(world, "2")
    assert facts(world).usable_levels() == (1,)
    assert facts(world).learned.residue_bytes[1] == (GIB // 2,)


def test_an_engine_that_says_no_version_changes_nothing() -> None:
    world = denied_under_one()
    start_with(world, "")
    assert facts(world).usable_levels() == ()


def test_another_definition_makes_old_versions_forgotten() -> None:
    """Flags are part of what a denial is of."""
    world = denied_under_one()
    start_with(world, "2")
    world.configure(a=LONGER)
    start_with(world, "1")
    assert facts(world).usable_levels() == (1,)


def test_an_old_definition_s_process_does_not_bring_its_version_s_denials_to_the_new_one() -> None:
    world = denied_under_one()
    start_with(world, "2")
    world.order("stop", "a")
    world.settle()
    world.versions["a"] = "1"
    world.ask("a", for_s=30.0)
    world.run(1.0)
    world.configure(a=LONGER)
    world.settle()
    assert facts(world).usable_levels() == (1,)
