"""Memory and the store: over-full devices, foreign growth, blind devices, a database that takes no rows."""

from dataclasses import replace

import pytest

from scheduler.domain.claims import Source, even_claim
from scheduler.domain.ids import DeviceId, ModelName, holder_of
from scheduler.domain.instance import GOAL_AWAKE, Phase
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator import events as ev
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain

GPU = DeviceId("gpu0")
A = Behaviour(awake_bytes=10 * GIB)
STOPPER = Behaviour(awake_bytes=10 * GIB, levels=())


def two(knobs: Behaviour = A) -> Plain:
    """``a`` and ``b`` are awake side by side; ``a`` was used first."""
    world = Plain({"gpu0": 24}, a=knobs, b=knobs, c=knobs)
    for model in "ab":
        world.ask(model)
        world.run(10)
    assert (world.phase("a"), world.phase("b")) == ("awake", "awake")
    return world


# --- over-full --------------------------------------------------------------------------------------------------


def test_foreign_growth_puts_an_idle_model_away_and_says_why() -> None:
    world = two()
    world.foreign = {GPU: 6 * GIB}
    world.run(5)
    world.settle()
    assert sorted((world.phase("a"), world.phase("b"))) == ["asleep", "awake"]
    assert any(t.kind == "shed" and "used by others" in t.message for t in world.told)


def test_who_is_waited_for_is_not_put_away_for_the_room_that_its_wake_did_not_find() -> None:
    world = Plain({"gpu0": 24}, a=replace(A, wake_errors=1, wake_s=2.0, start_s=0.2), b=A)
    world.state.models = {name: replace(each, min_awake_s=300.0) for name, each in world.state.models.items()}
    for model in "ab":
        world.ask(model)
        world.run(10)
    world.order("sleep", "a")
    world.settle()
    (client,) = world.ask("a", limit_s=3600, wait_s=600)
    world.run_until(lambda: world.phase("a") == "waking")
    world.foreign = {GPU: 6 * GIB}
    world.settle()
    assert client.end == "ok"
    assert world.path("a").endswith("asleep waking unknown asleep waking awake")
    assert (world.phase("b"), world.count("Launch", "a")) == ("asleep", 1)


def test_a_start_that_was_robbed_of_its_room_says_nothing_about_its_size() -> None:
    """Else a few of them make a model larger than any device, and it is refused for ever."""
    robbed = StartFailure(code=Code.DEVICE_OOM)
    world = Plain({"gpu0": 24}, a=replace(A, start_failures=(robbed, replace(robbed, after_s=2.0))))
    guessed = world.state.facts_of(ModelName("a")).footprint.awake_bytes
    (client,) = world.ask("a", limit_s=3600, wait_s=600)
    world.run_until(lambda: world.phase("a") == "launching")
    world.foreign = {GPU: 20 * GIB}
    world.run(30)
    assert (world.count("Launch", "a"), world.state.facts_of(ModelName("a")).footprint.awake_bytes) == (1, guessed)
    world.foreign = {}
    world.settle()
    assert client.end == "ok"
    assert world.state.facts_of(ModelName("a")).guess.awake_bytes == int(1.3 * guessed), "nobody else is to blame for the second"


def test_foreign_growth_never_cuts_an_answer() -> None:
    world = two()
    inside = [world.ask(model, for_s=60)[0] for model in "ab"]
    world.foreign = {GPU: 6 * GIB}
    world.run(30)
    assert (world.phase("a"), world.phase("b")) == ("awake", "awake")
    assert any("over_capacity" in code for code in world.state.degraded)
    world.run(60)
    world.settle()
    assert [c.end for c in inside] == ["ok", "ok"]
    assert sorted((world.phase("a"), world.phase("b"))) == ["asleep", "awake"]


def test_the_complaint_ends_with_its_cause() -> None:
    world = two()
    world.ask("a", for_s=20)
    world.ask("b", for_s=20)
    world.foreign = {GPU: 6 * GIB}
    world.run(5)
    assert world.state.degraded
    world.foreign = {}
    world.run(2)
    assert not world.state.degraded


def test_a_complaint_of_the_shell_is_told_once_and_keeps_its_beginning() -> None:
    world = two()

    def complain(message: str) -> None:
        world.play(ev.Complained(at_s=world.now_s, code=Code.DISK_LOW, message=message, fix="free space"))

    complain("3 GiB free")
    world.run(60)
    complain("2 GiB free")
    ((key, (message, fix, since)),) = world.state.degraded.items()
    assert (key, message, fix, world.state.wall - since) == ("disk_low", "2 GiB free", "free space", 60.0)
    complain("")
    complain("")
    assert world.state.degraded == {}
    assert [line.message for line in world.told if line.kind == "disk_low"] == ["3 GiB free", "disk_low is over"]


def test_growth_beyond_the_claim_raises_the_claim_at_once_and_sheds() -> None:
    growing = Behaviour(awake_bytes=10 * GIB, growth_bps=GIB / 4, growth_limit_bytes=4 * GIB)
    world = Plain({"gpu0": 24}, a=A, b=growing)
    for model in "ab":
        world.ask(model)
        world.run(5)
    world.run(30)
    assert world.instance("b").claim.on(GPU) >= 14 * GIB
    world.settle()
    assert world.phase("a") == "asleep"
    assert world.phase("b") == "awake"


def test_growth_is_told_and_not_with_every_sample() -> None:
    """The claim follows what is measured: without a word of it nobody would see that there was a difference."""
    growing = Behaviour(awake_bytes=10 * GIB, growth_bps=GIB / 4, growth_limit_bytes=6 * GIB)
    world = Plain({"gpu0": 48}, a=A, b=growing)
    for model in "ab":
        world.ask(model)
        world.run(5)
    world.run(60)
    assert world.instance("b").claim.on(GPU) >= 16 * GIB
    assert [t.message for t in world.told if t.kind == "grew"] == [
        "b takes 11.8 GiB of a device, it took 10.0 GiB before: its claim rises with it",
        "b takes 13.8 GiB of a device, it took 11.8 GiB before: its claim rises with it",
        "b takes 16.0 GiB of a device, it took 13.8 GiB before: its claim rises with it",
    ]


def test_nothing_grows_on_an_over_full_device() -> None:
    world = two()
    world.ask("a", for_s=100)
    world.ask("b", for_s=100)
    world.foreign = {GPU: 6 * GIB}
    world.run(2)
    (client,) = world.ask("c", wait_s=50)
    world.run(60)
    assert client.end == "wait_timeout"
    assert world.count("Launch", "c") == 0


def test_a_world_that_begins_over_full_only_shrinks_until_it_is_not() -> None:
    world = two()
    for model in "abc":  # as after a crash of a daemon that believed in larger devices
        iid = world.instance(model).id
        instance = world.state.instances.get(iid)
        if instance is not None and instance.has_process:
            world.state.instances[iid] = replace(instance, claim=even_claim((GPU,), 14 * GIB))
    world.watch = type(world.watch)(world.state)
    (client,) = world.ask("c", wait_s=60)
    world.settle()
    assert client.end == "ok"
    assert world.count("Launch", "c") == 1


@pytest.mark.parametrize(("source", "planned"), [(Source.ESTIMATED, int(12 * GIB * 1.3)), (Source.DECLARED, 12 * GIB)])
def test_the_first_measurement_replaces_the_guess(source: Source, planned: int) -> None:
    """What was declared is no guess, but no truth either."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=8 * GIB, guess_bytes=12 * GIB))
    event = world.registry()
    world.play(replace(event, guesses={name: replace(guess, source=source) for name, guess in event.guesses.items()}))
    world.ask("a")
    assert world.instance("a").claim.on(GPU) == planned
    world.run(10)
    assert world.instance("a").claim.on(GPU) == int(8 * GIB * 1.05)


def test_room_that_is_not_seen_free_is_not_taken_and_the_alarm_says_so() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, levels=(), free_lag_s=40.0), b=Behaviour(awake_bytes=16 * GIB, levels=()))
    world.ask("a")
    world.run(10)
    (client,) = world.ask("b")
    world.settle()
    assert client.end == "ok"
    assert not world.overflows
    assert world.when("Launch", "b")[0] >= world.when("Stop", "a")[0] + 40.0
    assert any(t.kind == "memory_not_freed" for t in world.told)


def test_what_a_driver_still_counts_for_an_ended_engine_keeps_its_claim() -> None:
    """Its processes are gone, and the driver says for a while that they hold memory: that is nobody else's yet."""
    world = Plain({"gpu0": 24}, a=STOPPER, b=STOPPER)
    world.ask("a")
    world.settle()
    iid = world.instance("a").id
    world.order("stop", "a")
    world.run_until(lambda: world.state.live_of(iid).emptied_at_s is not None)
    for held, phase in ((2 * GIB, "stopping"), (0, "stopped")):
        late = replace(world.state.samples[GPU], started_at_s=world.now_s, used_bytes=held, own={holder_of(iid): held})
        world.play(ev.Sampled(at_s=world.now_s, samples=(late,)))
        assert (world.phase("a"), world.instance("a").claim.on(GPU) >= held) == (phase, True)


# --- blind devices ----------------------------------------------------------------------------------------------


def test_what_nobody_can_measure_is_not_said_to_be_in_use() -> None:
    world = two()
    world.unreadable.add(GPU)
    world.order("stop", "a")
    world.run(60)
    (line,) = [line for line in world.told if line.kind == "memory_not_freed"]
    assert line.message == "all processes of a ended, but gpu0 cannot be measured, so nobody knows whether their memory is free"
    world.unreadable.clear()
    world.settle()
    assert world.phase("a") == "stopped"


def test_a_device_that_cannot_be_read_admits_no_growth_and_serves_on() -> None:
    world = two()
    world.unreadable = {GPU}
    world.run(10)
    (serving,) = world.ask("a")
    (waiting,) = world.ask("c", wait_s=200)
    world.run(30)
    assert (serving.end, waiting.end) == ("ok", "held")
    assert world.why("c") is Code.WAITING_MEMORY
    world.unreadable = set()
    world.settle()
    assert waiting.end == "ok"


def test_a_stop_on_a_blind_device_waits_for_evidence() -> None:
    world = two(STOPPER)
    world.unreadable = {GPU}
    world.run(5)
    action = world.order("stop", "a")
    world.run(60)
    assert world.phase("a") == "stopping"
    assert world.instance("a").claim.on(GPU) > 0
    world.unreadable = set()
    world.settle()
    assert world.finished[action].ok


# --- the store --------------------------------------------------------------------------------------------------


def test_without_a_store_awake_models_serve_and_others_are_refused() -> None:
    world = two()
    world.break_store()
    (refused,) = world.ask("c")
    world.run(1)
    assert refused.end == "store_unavailable"
    assert world.phase("c") == "stopped"
    assert world.count("Launch", "c") == 0
    assert world.ask("a")[0].end == "granted"
    assert world.ask("c")[0].end == "store_unavailable"
    world.run(60)
    world.mend_store()
    world.ask("c")
    world.settle()
    assert world.ends("c")[-1] == "ok"


def test_a_store_that_fails_in_the_middle_of_a_drain_gives_the_seat_back() -> None:
    world = two()
    world.ask("a", for_s=20)
    world.ask("b", for_s=20)
    (waiter,) = world.ask("c", wait_s=100)
    world.run_until(lambda: "draining" in (world.phase("a"), world.phase("b")))
    world.break_store()
    world.run(60)
    assert waiter.end == "store_unavailable"
    assert (world.phase("a"), world.phase("b")) == ("awake", "awake")
    assert world.ask("a")[0].end == "granted"
    world.mend_store()
    world.settle()


def test_a_store_that_fails_while_an_operator_puts_to_sleep_ends_the_action() -> None:
    world = two()
    world.ask("a", for_s=10)
    action = world.order("sleep", "a")
    world.run(1)
    world.break_store()
    world.run(60)
    assert not world.finished[action].ok
    assert world.phase("a") == "awake"


def test_a_stop_goes_through_without_a_store() -> None:
    world = two(STOPPER)
    world.break_store()
    world.ask("c")
    world.run(1)
    action = world.order("stop", "a")
    world.run(30)
    assert world.finished[action].ok
    assert world.phase("a") == "stopped"


def test_a_crash_without_a_store_is_cleaned_up_and_refused_until_it_is_back() -> None:
    world = two(STOPPER)
    world.break_store()
    world.ask("c")
    world.run(1)
    world.crash("a")
    world.run(30)
    assert world.phase("a") == "stopped"
    assert world.ask("a")[0].end == "store_unavailable"
    world.mend_store()
    world.ask("a")
    world.settle()
    assert world.ends("a")[-1] == "ok"


def test_an_over_full_device_without_a_store_does_not_spin() -> None:
    world = two()
    world.break_store()
    world.ask("c")
    world.run(1)
    world.foreign = {GPU: 6 * GIB}
    before = world.events
    world.run(60)
    assert world.events - before < 300
    assert sorted((world.phase("a"), world.phase("b"))) == ["awake", "stopped"]  # a stop needs no row before it


# --- restarts ---------------------------------------------------------------------------------------------------


def test_after_a_restart_what_runs_is_adopted_and_serves_without_a_start() -> None:
    world = two()
    world.order("sleep", "b")
    world.settle()
    launches = {m: world.instance(m).launch for m in "ab"}
    world.restart()
    assert (world.phase("a"), world.phase("b")) == ("unknown", "unknown")
    clients = [world.ask(m)[0] for m in "a"]
    world.settle()
    assert [c.end for c in clients] == ["ok"]
    assert {m: world.instance(m).launch for m in "ab"} == launches
    assert (world.phase("a"), world.phase("b")) == ("awake", "asleep")


def test_after_a_restart_a_start_keeps_its_deadline_and_a_stop_goes_on() -> None:
    slow = Behaviour(start_s=100.0, awake_bytes=10 * GIB, levels=())
    world = Plain({"gpu0": 24}, specs={"a": {"start_timeout_s": 200.0}}, a=slow, b=STOPPER)
    world.ask("b")
    world.settle()
    world.order("stop", "b")
    world.ask("a", limit_s=1000)
    world.run_until(lambda: world.phase("a") == "launching")
    deadline = world.instance("a").deadline_s
    world.order("stop", "b")
    world.run(10)
    world.restart()
    (client,) = world.ask("a", limit_s=1000)
    world.run_until(lambda: world.phase("a") == "launching")
    assert world.instance("a").deadline_s == deadline
    world.settle()
    assert client.end == "ok"
    assert world.count("Launch", "a") == 1
    assert world.phase("b") == "stopped"


def test_a_restart_in_the_middle_of_a_start_does_not_forget_its_peak() -> None:
    knobs = Behaviour(awake_bytes=2 * GIB, loading_bytes=12 * GIB, start_s=20.0, levels=())
    world = Plain({"gpu0": 24}, a=knobs)
    world.ask("a")
    world.run(19.95)
    world.restart()
    world.run(5)
    assert world.state.facts_of(world.specs["a"].name).footprint.launch_bytes() >= 12 * GIB


def test_what_died_while_nobody_looked_is_found_out() -> None:
    world = two()
    iid = world.instance("a").id
    del world.procs[iid]
    world.restart()
    world.settle()
    assert world.phase("a") in ("stopped", "awake")
    world.ask("a")
    world.settle()
    assert world.ends("a")[-1] == "ok"


@pytest.mark.parametrize("at_s", [0.5, 3.2, 10.1, 10.4, 10.7, 11.0, 13.0, 20.0])
def test_a_restart_at_any_moment_settles(at_s: float) -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB), b=Behaviour(awake_bytes=16 * GIB))
    world.ask("a")

    def ask_b() -> None:
        world.ask("b")

    world.later(10.0, ask_b)
    world.run(at_s)
    world.restart()
    for model in "ab":
        world.ask(model)
    world.settle()
    assert world.ends("b")[-1] == "ok"
    assert world.ends("a")[-1] == "ok"
    assert not world.overflows
    for model in "ab":
        assert world.instance(model).phase is not Phase.UNKNOWN
        assert world.instance(model).goal == GOAL_AWAKE or world.phase(model) != "awake"


def test_nobody_grows_beside_a_start_that_was_not_measured_since() -> None:
    """The last sample may be older than the start: it shows a device that was empty then."""
    shy = Behaviour(awake_bytes=2 * GIB, loading_bytes=12 * GIB, start_s=0.4, free_lag_s=30.0, levels=())
    world = Plain({"gpu0": 24}, a=shy, b=Behaviour(awake_bytes=20 * GIB, levels=()))
    world.ask("a")
    (client,) = world.ask("b")
    world.run(10)
    assert not world.overflows
    assert world.count("Launch", "b") == 0  # what a took while loading is not seen free yet
    world.settle()
    assert client.end == "ok"
    assert not world.overflows


def test_nobody_grows_beside_a_crash_that_comes_in_the_middle_of_a_move() -> None:
    """Invariant I2: the checks after every event see a start beside somebody who gives memory back."""
    world = Plain({"gpu0": 34}, a=STOPPER, b=STOPPER, c=Behaviour(awake_bytes=14 * GIB, levels=()))
    for model in "ba":
        world.ask(model)
        world.run(5)
    world.sample_takes_s = 1.0
    world.ask("c")
    leaving = next(m for m in "ab" if world.phase(m) != "awake")
    world.run_until(lambda: world.state.live_of(world.instance(leaving).id).emptied_at_s is not None)
    world.run(0.5)
    assert world.phase(leaving) == "stopping"
    world.crash("b" if leaving == "a" else "a")
    world.settle()
    assert world.ends("c") == ["ok"]


def test_an_adopted_start_is_not_disturbed_by_shedding() -> None:
    world = Plain({"gpu0": 24}, a=A, b=Behaviour(awake_bytes=10 * GIB, start_s=20.0))
    world.ask("a")
    world.run(10)
    world.ask("b")
    world.run(5)
    world.restart()
    world.run(2)
    world.foreign = {GPU: 6 * GIB}
    world.run(5)
    assert (world.phase("a"), world.phase("b")) == ("awake", "launching")
    assert world.ask("a")[0].end == "granted"
    world.settle()
    assert "asleep" in (world.phase("a"), world.phase("b"))


@pytest.mark.parametrize("found_first", [True, False])
def test_nobody_is_put_away_beside_a_start_that_was_adopted(found_first: bool) -> None:
    """A start that outlived the daemon belongs to no move; what its neighbour gives back would still mislead it."""
    world = Plain({"gpu0": 24}, a=A, b=Behaviour(awake_bytes=10 * GIB, start_s=20.0))
    world.ask("a")
    world.run(10)
    world.ask("b")
    world.run(5)
    world.restart()
    if found_first:
        world.run(4)
    action = world.order("stop", "a")
    world.run(5)
    assert (world.phase("a"), world.phase("b")) == ("awake", "launching")
    world.settle()
    assert world.finished[action].ok
    assert world.when("Stop", "a")[0] >= 30.0
