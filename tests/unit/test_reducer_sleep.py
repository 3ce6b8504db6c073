"""Sleeping and waking: believed when measured, denied when useless, recovered when it fails."""

from dataclasses import replace

import pytest

from scheduler.domain.claims import Footprint
from scheduler.domain.ids import DeviceId, ModelName, holder_of
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB, MIB
from scheduler.orchestrator.events import Sampled
from scheduler.orchestrator.moves import MEASURE_S
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain
from tests.support.world import device

A = Behaviour(awake_bytes=16 * GIB)
GPU = DeviceId("gpu0")


def pair(**more: object) -> Plain:
    """``a`` with those knobs was awake and idle; now ``b``, which needs its room, is asked for."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, **more), b=A)  # type: ignore[arg-type]
    world.ask("a")
    world.run(10)
    world.ask("b", for_s=2.0)
    return world


def test_an_idle_model_sleeps_for_another_and_wakes_again() -> None:
    world = pair()
    world.settle()
    world.ask("a")
    world.settle()
    assert world.path("a") == "launching awake draining falling_asleep asleep waking awake"
    assert world.path("b") == "launching awake draining falling_asleep asleep"
    assert set(world.ends()) == {"ok"}
    assert world.instance("b").claim.total_bytes < GIB
    assert not world.overflows


def test_sleep_is_believed_only_on_a_sample_that_began_after_the_reply() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, free_lag_s=0.0), b=A)
    world.ask("a")
    world.run(10.9)
    world.sample_takes_s = 0.3
    world.ask("b")
    world.run_until(lambda: world.state.live_of(world.instance("a").id).returned_at_s is not None)
    returned = world.now_s
    stale = [s for s in world.state.samples.values() if s.started_at_s >= returned]
    assert not stale
    world.run_until(lambda: world.phase("a") == "asleep")
    assert min(s.started_at_s for s in world.state.samples.values()) >= returned


def test_a_sample_from_before_the_reply_confirms_nothing() -> None:
    world = pair()
    world.run_until(lambda: world.state.live_of(world.instance("a").id).returned_at_s is not None)
    returned = world.now_s
    for began, phase in ((returned - 0.1, "falling_asleep"), (returned, "asleep")):
        sample = replace(world.state.samples[GPU], started_at_s=began, own={holder_of(world.instance("a").id): 0})
        world.play(Sampled(at_s=world.now_s, samples=(sample,)))
        assert world.phase("a") == phase


def test_memory_that_is_seen_free_late_is_waited_for() -> None:
    world = pair(free_lag_s=4.0)
    world.run_until(lambda: world.phase("a") == "asleep")
    assert world.when("Sleep", "a")[0] + 0.5 + 4.0 <= world.now_s
    world.settle()
    assert world.ends("b") == ["ok"]
    assert not world.overflows


def test_sleep_that_frees_nothing_is_ended_and_never_tried_again() -> None:
    world = pair(sleep_frees_nothing=True)
    world.settle()
    assert world.path("a") == "launching awake draining falling_asleep stopping stopped"
    assert world.instance("a").reason.code is Code.SLEEP_INEFFECTIVE
    assert world.ends("b") == ["ok"]
    assert any(t.kind == "sleep_ineffective" for t in world.told)
    world.ask("a")
    world.settle()
    world.ask("b")
    world.settle()
    assert world.count("Sleep", "a") == 1
    assert world.path("a").endswith("awake draining stopping stopped")


def test_a_sleeper_that_holds_nothing_at_all_teaches_nothing() -> None:
    """Its worker has died, and nobody has noticed yet: with a residue of nothing, every later sleep would be ineffective."""
    world = pair(residue_bytes={1: 0})
    world.settle()
    assert (world.phase("a"), world.state.facts_of(ModelName("a")).learned.residue_bytes) == ("asleep", {})


def just_awake(**more: object) -> Plain:
    """``a``, guessed at many times its size, sleeps in vain; it is awake, and no sample of that has been taken."""
    small = Behaviour(awake_bytes=64 * MIB, guess_bytes=3 * GIB, residue_bytes={1: 8 * MIB}, sleep_frees_nothing=True)
    world = Plain({"gpu0": 24}, a=replace(small, **more))  # type: ignore[arg-type]
    world.order("wake", "a")
    world.run_until(lambda: world.phase("a") == "awake")
    return world


def test_what_a_sleep_and_a_stop_are_said_to_free_was_measured() -> None:
    """Its claim keeps the peak of its start: it frees less."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=2 * GIB, loading_bytes=3 * GIB, residue_bytes={1: GIB // 2}))
    world.order("wake", "a")
    world.settle()
    assert world.state.claimed_on(DeviceId("gpu0")) == 3 * GIB
    world.order("sleep", "a")
    world.settle()
    world.order("stop", "a")
    world.settle()
    words = [t.message.partition(" in ")[0] for t in world.told if t.kind in ("asleep", "stopped")]
    assert words == ["slept a: 1.5 GiB freed", "stopped a: 512 MiB freed"]
    world.order("wake", "a")
    world.run(10)
    world.order("stop", "a")
    world.settle()
    assert world.told[-1].message.startswith("stopped a: 2.0 GiB freed")


def test_nobody_is_put_to_sleep_before_it_was_measured_awake() -> None:
    """Only what it held tells whether a sleep has freed anything: beside a large guess everything looks freed."""
    world = just_awake()
    action = world.order("sleep", "a")
    world.settle()
    assert (world.phase("a"), world.finished[action].code) == ("stopped", "sleep_ineffective")
    assert world.state.facts_of(ModelName("a")).learned.denied_levels == (1,)


def test_an_engine_of_which_nothing_can_be_measured_is_not_waited_for() -> None:
    world = just_awake(awake_bytes=0, residue_bytes={1: 0}, sleep_frees_nothing=False)
    began = world.now_s
    world.order("sleep", "a")
    world.run_until(lambda: world.phase("a") == "falling_asleep")
    assert world.when("Sleep", "a")[0] - began < MEASURE_S / 2


def test_a_measurement_that_does_not_come_delays_a_sleep_for_a_while_only() -> None:
    world = just_awake(sleep_frees_nothing=False)
    world.sample_takes_s = 3600.0
    began = world.now_s
    world.order("sleep", "a")
    world.run_until(lambda: world.phase("a") == "falling_asleep")
    assert world.when("Sleep", "a")[0] - began <= MEASURE_S


@pytest.mark.parametrize(("kept", "end"), [(130 * MIB, "asleep"), (500 * MIB, "asleep"), (700 * MIB, "stopped")])
def test_a_little_more_than_last_time_is_no_ineffective_sleep(kept: int, end: str) -> None:
    """The first sleep left 100 MiB of 16 GiB; 3 % of what it holds awake are tolerated beyond that."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, residue_bytes={1: 100 * MIB}))
    for residue in (100 * MIB, kept):
        world.order("stop", "a")
        world.settle()
        world.behaviours["a"] = Behaviour(awake_bytes=16 * GIB, residue_bytes={1: residue})
        world.ask("a")
        world.settle()
        world.order("sleep", "a")
        world.settle()
    assert world.phase("a") == end
    assert world.state.facts_of(ModelName("a")).learned.denied_levels == (() if end == "asleep" else (1,))


@pytest.mark.parametrize("seen_s", [0.0, 1.0], ids=["never measured", "measured once, too early"])
@pytest.mark.parametrize(("frees_nothing", "end"), [(False, "asleep"), (True, "stopped")])
def test_a_sleep_on_a_blind_device_waits_for_evidence(seen_s: float, frees_nothing: bool, end: str) -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleep_frees_nothing=frees_nothing, free_lag_s=4.0))
    world.ask("a")
    world.run(60)
    world.order("sleep", "a")
    world.run(seen_s)
    world.unreadable.add(GPU)
    world.run(100)
    assert world.phase("a") == "falling_asleep"
    assert world.state.facts_of(ModelName("a")).learned.denied_levels == ()
    world.unreadable.clear()
    world.settle()
    assert world.phase("a") == end
    assert world.state.facts_of(ModelName("a")).learned.denied_levels == (() if end == "asleep" else (1,))


@pytest.mark.parametrize(
    ("knobs", "ending"),
    [
        ({"sleep_errors": 1}, "falling_asleep stopping stopped"),
        ({"sleep_says_level": 2}, "falling_asleep stopping stopped"),
        ({"crash_after_s": 7.25}, "falling_asleep stopping stopped"),
        ({"sleep_hangs": 1}, "falling_asleep unknown awake draining falling_asleep asleep"),
    ],
    ids=["error", "other level", "crash", "hang"],
)
def test_a_sleep_that_goes_wrong_makes_room_all_the_same(knobs: dict[str, object], ending: str) -> None:
    world = pair(**knobs)
    world.settle()
    assert world.path("a") == f"launching awake draining {ending}"
    assert world.ends("b") == ["ok"]
    assert not world.overflows


def test_an_engine_that_never_answers_to_a_sleep_is_stopped_after_the_second_time() -> None:
    world = pair(sleep_hangs=1_000, start_s=20.0)
    (client,) = world.ask("b", wait_s=600)
    world.settle()
    assert client.end == "ok"
    assert world.count("Sleep", "a") == 2
    assert world.path("a").endswith("falling_asleep unknown awake draining falling_asleep unknown stopping stopped")
    assert any(line.kind == "sleep_failed" and "2 times in a row" in line.message for line in world.told)


def test_a_wake_that_finds_no_room_is_tried_once_more_and_its_waiters_stay_held() -> None:
    world = pair(wake_errors=1)
    world.settle()
    (client,) = world.ask("a", limit_s=3600, wait_s=600)
    world.settle()
    assert client.end == "ok"
    assert world.path("a").endswith("asleep waking unknown asleep waking awake")
    assert world.count("Launch", "a") == 1
    assert world.count("Sleep", "a") == 1  # never put back to sleep


def test_a_wake_that_fails_for_another_reason_becomes_a_cold_start_at_once() -> None:
    world = pair(wake_hangs=1)
    world.settle()
    (client,) = world.ask("a", limit_s=3600, wait_s=600)
    world.settle()
    assert client.end == "ok"
    assert world.path("a").endswith("asleep waking unknown asleep stopping stopped launching awake")
    assert world.count("Sleep", "a") == 1


def test_an_engine_that_is_up_after_a_wake_that_failed_serves_nobody() -> None:
    """It may be wedged, or have lost its weights: only a wake that ended well has proven otherwise."""
    world = pair(wake_s=63.0)  # two seconds more than it is given
    world.settle()
    (client,) = world.ask("a", limit_s=3600, wait_s=600)
    world.settle()
    assert client.end == "ok"
    assert world.path("a").endswith("asleep waking unknown stopping stopped launching awake")


@pytest.mark.parametrize(
    "knobs",
    [{"wake_hangs": 2}, {"wake_errors": 2, "wake_error_text": "Call to collective_rpc method failed: AssertionError"}],
    ids=["no answer", "an error of the reload"],
)
def test_a_level_that_cannot_be_woken_from_twice_is_not_used_again(knobs: dict[str, object]) -> None:
    world = pair(**knobs)
    for _ in range(2):
        world.settle()
        world.ask("a", limit_s=3600, wait_s=600)
        world.settle()
        world.order("sleep", "a")
    world.settle()
    assert world.state.facts_of(ModelName("a")).usable_levels() == ()


def test_a_level_that_two_engines_die_of_when_they_wake_is_not_used_again() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, crash_after_cycles=1, start_s=20.0), b=A)
    for model in "ababab":
        (client,) = world.ask(model)
        world.settle()
        assert client.end == "ok"
    assert (world.count("Wake", "a"), world.count("Sleep", "a")) == (2, 2)
    assert world.state.facts_of(ModelName("a")).learned.denied_levels == (1,)


def test_a_wake_that_fails_twice_becomes_a_cold_start() -> None:
    world = pair(wake_errors=2)
    world.settle()
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    assert world.path("a").endswith("asleep waking unknown asleep waking unknown asleep stopping stopped launching awake")
    assert not world.overflows


def test_a_failed_wake_claims_its_awake_footprint_until_it_is_looked_at() -> None:
    world = pair(wake_errors=1)
    world.settle()
    world.ask("a")
    world.run_until(lambda: world.phase("a") == "unknown")
    assert world.instance("a").claim.total_bytes >= 16 * GIB


def test_what_a_failed_wake_keeps_mapped_is_not_given_to_another() -> None:
    """The last sample may be older than the failed wake and show a sleeper that held nothing."""
    knobs = Behaviour(awake_bytes=11 * GIB, wake_s=0.0, wake_errors=1)
    world = Plain({"gpu0": 24}, a=knobs, b=Behaviour(awake_bytes=22 * GIB, levels=()), c=Behaviour(awake_bytes=22 * GIB, levels=()))
    for model in "ab":
        world.ask(model)
        world.run(10)
    world.ask("a")
    world.ask("c")
    world.settle()
    assert set(world.ends()) == {"ok"}
    assert not world.overflows
    assert world.instance("a").claim.total_bytes < GIB or world.phase("a") != "asleep"


def test_a_sleeper_that_dies_is_started_afresh() -> None:
    world = pair()
    world.settle()
    world.crash("a")
    world.settle()
    assert world.path("a").endswith("asleep stopping stopped")
    world.ask("a")
    world.settle()
    assert world.ends("a") == ["ok", "ok"]


def test_a_sleeper_is_stopped_when_its_residue_is_wanted() -> None:
    big = Behaviour(awake_bytes=23 * GIB, residue_bytes={1: 2 * GIB})
    world = Plain({"gpu0": 24}, a=big, b=big)
    for model in "abab":
        world.ask(model)
        world.settle()
    assert world.ends() == ["ok"] * 4
    assert world.count("Sleep") == 0  # asleep it would not make room: it is stopped at once
    assert not world.overflows


def test_host_memory_bounds_how_many_sleep() -> None:
    knobs = Behaviour(awake_bytes=16 * GIB, host_bytes={1: 20 * GIB})
    world = Plain({"gpu0": 24}, host_limit_bytes=30 * GIB, a=knobs, b=knobs, c=knobs)
    for model in "abcabc":
        world.ask(model)
        world.settle()
        assert world.state.host_claimed() <= 30 * GIB
    assert world.ends() == ["ok"] * 6
    assert world.count("Sleep") >= 1
    assert world.count("Stop") >= 1


def test_on_a_device_of_host_memory_a_host_copy_costs_nothing_extra() -> None:
    """It sleeps although there is no host memory for copies: its weights stay where they are."""
    info = device("cpu0", 24, kind="cpu", host_memory=True)
    knobs = Behaviour(awake_bytes=16 * GIB, kv_bytes=12 * GIB, kv_min_bytes=12 * GIB, residue_bytes={1: 4 * GIB}, start_s=30.0)
    knobs = replace(knobs, levels=(1,), host_bytes={1: 20 * GIB})
    world = Plain({}, infos=[info], a=knobs, b=knobs)
    world.around.host_bytes = 256 * GIB
    for model in "ab":
        world.ask(model)
        world.settle()
        world.run(3)
        assert world.state.host_claimed() == 0
    assert (world.phase("a"), world.phase("b")) == ("asleep", "awake")


def guessed(world: Plain, guess: Footprint, *, awake_for_s: float = 10.0) -> Plain:
    """``a``, of which that is believed before it was measured, is awake for a while and then told to sleep."""
    world.state.facts_of(ModelName("a")).guess = guess
    world.ask("a")
    world.run_until(lambda: world.phase("a") == "awake")
    world.run(awake_for_s)
    world.order("sleep", "a")
    world.settle()
    return world


@pytest.mark.parametrize("awake_for_s", [0.1, 10.0])  # the first sample of its run was taken, or not
def test_where_weights_only_move_a_sleep_that_frees_no_kv_cache_is_in_vain(awake_for_s: float) -> None:
    """Asleep it would hold 15 GiB of 16; what it does hold is within the tolerance of that, and far within that of the guess."""
    info = device("cpu0", 64, kind="cpu", host_memory=True)
    world = Plain({}, infos=[info], a=Behaviour(awake_bytes=16 * GIB, free_fraction=0.0))
    guess = Footprint(awake_bytes=20 * GIB, kv_bytes=GIB, kv_min_bytes=GIB, residue_bytes={1: 3 * GIB // 2})
    guessed(world, guess, awake_for_s=awake_for_s)
    assert (world.phase("a"), world.instance("a").reason.code) == ("stopped", Code.SLEEP_INEFFECTIVE)
    assert world.state.facts_of(ModelName("a")).usable_levels() == ()


def test_where_weights_only_move_a_sleep_that_frees_the_kv_cache_counts() -> None:
    info = device("cpu0", 64, kind="cpu", host_memory=True)
    world = Plain({}, infos=[info], a=Behaviour(awake_bytes=16 * GIB, residue_bytes={1: 15 * GIB}))
    guessed(world, Footprint(awake_bytes=20 * GIB, kv_bytes=GIB, kv_min_bytes=GIB, residue_bytes={1: 3 * GIB // 2}))
    assert world.phase("a") == "asleep"
    assert world.instance("a").claim.total_bytes < 16 * GIB


def test_a_sleep_that_frees_nothing_is_in_vain_however_little_there_was() -> None:
    """It holds no more than what a sleeper of the guessed size would keep."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=GIB, free_fraction=0.0))
    guessed(world, Footprint(awake_bytes=8 * GIB, residue_bytes={1: 3 * GIB // 2}, host_bytes={1: 0}))
    assert (world.phase("a"), world.instance("a").reason.code) == ("stopped", Code.SLEEP_INEFFECTIVE)


@pytest.mark.parametrize("awake_for_s", [0.1, 10.0])  # no sample was taken since it woke, or several were
def test_what_a_sleeper_held_is_no_measure_of_its_next_sleep(awake_for_s: float) -> None:
    """Put to sleep again right after its wake, before anybody saw it awake: the residue seen last is not what a tenth is counted of."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, wake_s=0.05))
    for _ in range(2):
        world.ask("a", for_s=0.0)
        world.run_until(lambda: world.phase("a") == "awake")
        world.run(awake_for_s)
        world.order("sleep", "a", level=1)
        world.run_until(lambda: world.phase("a") in ("asleep", "stopped"))
    assert world.phase("a") == "asleep"
    assert world.state.facts_of(ModelName("a")).usable_levels() == (1,)


def test_what_it_held_while_it_started_is_no_measure_of_its_sleep() -> None:
    """A sample that began during its start is told only now: it saw less than what a sleeper keeps."""
    world = Plain({"gpu0": 24}, a=A)
    world.ask("a", for_s=0.0)
    world.run_until(lambda: world.phase("a") == "awake")
    world.run(0.1)
    began, holder = world.instance("a").since_s - 0.2, holder_of(world.instance("a").id)
    loading = replace(world.state.samples[GPU], started_at_s=began, used_bytes=GIB // 4, own={holder: GIB // 4})
    world.play(Sampled(at_s=world.now_s, samples=(loading,)))
    world.order("sleep", "a", level=1)
    world.run_until(lambda: world.phase("a") in ("asleep", "stopped"))
    assert world.phase("a") == "asleep"


# --- by rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("levels", "end"), [((1,), "asleep"), ((), "stopped")])
def test_an_idle_model_is_put_away_after_its_time(levels: tuple[int, ...], end: str) -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"idle_sleep_after_s": 60.0}}, a=Behaviour(awake_bytes=16 * GIB, levels=levels))
    world.ask("a", for_s=30)
    world.run(3 + 30 + 59)
    assert world.phase("a") == "awake"
    world.run(2)
    world.settle()
    assert world.phase("a") == end
    assert world.instance("a").reason.code is Code.IDLE


def test_use_puts_off_the_idle_time() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"idle_sleep_after_s": 60.0}}, a=A)
    for _ in range(5):
        world.ask("a")
        world.run(50)
    assert world.phase("a") == "awake"


def test_nothing_sleeps_without_a_cause() -> None:
    world = Plain({"gpu0": 24}, a=A)
    world.ask("a")
    world.run(3600 * 3)
    assert world.path("a") == "launching awake"


@pytest.mark.parametrize("force", [False, True])
def test_an_operator_who_insists_can_stop_what_falls_asleep_on_a_blind_device(force: bool) -> None:
    world = Plain({"gpu0": 24}, a=A)
    world.ask("a")
    world.settle()
    world.unreadable.add(GPU)
    world.order("sleep", "a")
    world.run(60)
    assert world.phase("a") == "falling_asleep"
    action = world.order("stop", "a", force=force)
    world.run(60)
    assert bool(world.procs) != force, "nobody knows whether it sleeps, but its end needs no proof"
    world.unreadable.clear()
    world.settle()
    assert (world.phase("a"), world.finished[action].ok) == ("stopped", True)
