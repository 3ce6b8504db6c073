"""Host memory for the copies of sleepers: claimed only where there is room, whoever decided that they sleep."""

from dataclasses import replace

import pytest

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain
from tests.support.world import device

COPY = Behaviour(awake_bytes=16 * GIB, host_bytes={1: 16 * GIB})


def test_two_sleeps_at_once_share_the_host_memory_that_each_was_promised() -> None:
    """Both victims are busy when their moves open, and each was checked against the room that both then take."""
    slow = Behaviour(awake_bytes=16 * GIB, host_bytes={1: 16 * GIB}, start_s=30.0)
    other = Behaviour(awake_bytes=16 * GIB)
    world = Plain({"gpu0": 24, "gpu1": 24}, host_limit_bytes=20 * GIB, a=slow, b=slow, c=other, d=other)
    for model in "ab":
        world.ask(model, for_s=300, limit_s=2000, wait_s=2000)
    world.run(60)
    for model in "cd":
        world.ask(model, limit_s=2000, wait_s=1000)
    world.settle()
    assert set(world.ends()) == {"ok"}
    assert sorted([world.phase("a"), world.phase("b")]) == ["asleep", "stopped"]
    assert world.state.host_claimed() == 16 * GIB


@pytest.mark.parametrize("by", ["operator", "idle time"])
def test_who_finds_no_room_for_its_copy_is_stopped_and_the_reason_has_the_numbers(by: str) -> None:
    world = Plain({"gpu0": 24}, host_limit_bytes=8 * GIB, specs={"a": {"idle_sleep_after_s": 60.0}}, a=COPY)
    world.ask("a")
    world.run(10)
    if by == "operator":
        world.order("sleep", "a")
    world.run(100)
    assert world.path("a").endswith("draining stopping stopped")
    reason = world.instance("a").reason
    assert reason.code is Code.SLEEP_FAILED
    assert "16.0 GiB" in reason.text
    assert "8.0 GiB" in reason.text
    assert world.count("Sleep") == 0
    assert world.state.host_claimed() == 0


def test_a_copy_that_was_made_once_is_no_further_claim() -> None:
    world = Plain({"gpu0": 24}, host_limit_bytes=16 * GIB, a=COPY)
    for _ in range(2):
        world.ask("a")
        world.settle()
        world.order("sleep", "a")
        world.settle()
        assert world.phase("a") == "asleep"
    assert world.state.host_claimed() == 16 * GIB


@pytest.mark.parametrize("woken", [True, False])
def test_a_copy_stays_claimed_awake_too_until_its_process_has_ended(woken: bool) -> None:
    world = Plain({"gpu0": 24}, host_limit_bytes=16 * GIB, a=replace(COPY, term_s=5.0))

    def claimed_in(*phases: str) -> None:
        for phase in phases:
            world.run_until(lambda: world.phase("a") == phase)  # noqa: B023 - asked for at once
            assert world.state.host_claimed() == 16 * GIB, phase

    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    claimed_in("asleep")
    if woken:
        world.ask("a", for_s=20)
        claimed_in("waking", "awake")
        proc = world.procs[world.instance("a").id]
        proc.life.behaviour = replace(proc.life.behaviour, awake_bytes=18 * GIB)
        world.arm(world.instance("a").id, proc)
        world.run_until(lambda: world.instance("a").claim.total_bytes >= 18 * GIB)
    world.order("stop", "a")
    claimed_in(*(["draining"] if woken else []), "stopping")
    world.settle()
    assert world.state.host_claimed() == 0


def test_what_a_deeper_sleep_adds_does_not_stand_for_the_copy_of_an_earlier_one() -> None:
    """Level 2 keeps a few buffers; the pinned memory of level 1 stays beside them until the process ends."""
    world = Plain(
        {"gpu0": 24}, host_limit_bytes=64 * GIB, a=Behaviour(awake_bytes=16 * GIB, levels=(1, 2), host_bytes={1: 30 * GIB, 2: 31 * GIB})
    )
    world.around.host_bytes = 256 * GIB
    event = world.registry()
    world.play(replace(event, guesses={name: replace(f, host_bytes={1: 30 * GIB, 2: GIB}) for name, f in event.guesses.items()}))
    for level in (1, 2):
        world.ask("a")
        world.settle()
        world.run(3)
        world.order("sleep", "a", level=level)
        world.settle()
        world.run(3)
    assert world.instance("a").level == 2
    assert world.state.host_claimed() == 30 * GIB


# --- three sleepers of 30 GiB, and 64 GiB for them --------------------------------------------------------------

LIMIT = 64 * GIB
THIRTY = Behaviour(awake_bytes=16 * GIB, host_bytes={1: 30 * GIB})
WISHES = {name: {"devices": DeviceWish(ids=(DeviceId("gpu0"),))} for name in "abcd"}


def crowd(knobs: Behaviour, *, guess: int | None = None, host_gib: int = 256, limit: int = LIMIT) -> Plain:
    """``a`` to ``d`` share one device; ``guess``: what the adapter thinks that a copy takes."""
    world = Plain({"gpu0": 24}, host_limit_bytes=limit, specs=WISHES, behaviours=dict.fromkeys("abcd", knobs))
    world.around.host_bytes = host_gib * GIB
    if guess is not None:
        event = world.registry()
        wrong = {name: replace(f, host_bytes={**f.host_bytes, 1: guess}) for name, f in event.guesses.items()}
        world.play(replace(event, guesses=wrong))
    return world


def serve(world: Plain, models: str) -> None:
    for model in models:
        (client,) = world.ask(model)
        world.settle()
        world.run(3)  # a sleeper's copy is measured
        assert client.end == "ok"


@pytest.mark.parametrize(("levels", "start_s", "end"), [((1,), 3.0, "stopped"), ((1, 2), 30.0, "asleep")])
@pytest.mark.parametrize("guess", [None, 10 * GIB], ids=["known", "estimated too low"])
def test_the_third_sleeper_finds_no_room_and_the_operator_sees_why(
    levels: tuple[int, ...], start_s: float, end: str, guess: int | None
) -> None:
    world = crowd(replace(THIRTY, levels=levels, start_s=start_s), guess=guess)
    serve(world, "ab")
    if guess is None:
        assert world.state.host_claimed() == 30 * GIB
    serve(world, "cd")
    assert [world.instance(m).level for m in "ab"] == [1, 1]
    assert world.state.host_claimed() == 60 * GIB, "as measured, whatever was thought"
    last = world.instance("c")
    assert (last.phase.value, last.level) == (end, 2 if end == "asleep" else None)
    (drained,) = [j.transition for j in world.transitions if j.transition.instance == "c#0" and j.transition.event == "DrainIntended"]
    need = "30.0 GiB" if guess is None else "10.0 GiB"
    assert f"c cannot sleep at level 1: its copy needs {need} of host memory, 60.0 GiB of 64.0 GiB are held" in drained.reason.text
    assert drained.reason.fix == "stop a sleeper that keeps its copy there, or raise host.sleep_memory"


def test_where_starts_are_slow_the_oldest_sleeper_gives_its_copy_back_for_the_third_and_the_operator_sees_why() -> None:
    world = crowd(replace(THIRTY, start_s=30.0))
    serve(world, "abcd")
    assert [world.instance(m).level for m in "abc"] == [None, 1, 1]
    assert world.state.host_claimed() == 60 * GIB
    text = next(
        j.transition.reason.text for j in world.transitions if j.transition.instance == "a#0" and j.transition.event == "StopIntended"
    )
    assert "a gives back 30.0 GiB of host memory for c, whose copy needs 30.0 GiB: 60.0 GiB of 64.0 GiB are held" in text


def test_a_stopped_sleeper_gives_its_copy_back_and_the_next_one_may_sleep_again() -> None:
    world = crowd(THIRTY)
    serve(world, "abcd")
    assert world.phase("c") == "stopped"
    world.order("stop", "a")
    world.settle()
    assert world.state.host_claimed() == 30 * GIB
    serve(world, "a")
    assert world.instance("d").level == 1
    assert world.state.host_claimed() == 60 * GIB


def test_what_the_machine_has_left_counts_too() -> None:
    """The ledger has room for two, the machine's memory is used by others."""
    world = crowd(THIRTY, host_gib=64)
    world.around.host_others_bytes = 20 * GIB
    serve(world, "ab")
    assert world.instance("a").level == 1
    serve(world, "c")
    assert world.phase("b") == "stopped"
    (drained,) = [j.transition for j in world.transitions if j.transition.instance == "b#0" and j.transition.event == "DrainIntended"]
    assert "its copy needs 30.0 GiB of host memory, 30.0 GiB of 64.0 GiB are held, and only 12.0 GiB are available" in drained.reason.text


def test_no_copy_is_made_on_the_word_of_an_old_measurement() -> None:
    """The ledger has room, but for a minute nobody could say what others have taken of the machine's memory."""
    world = crowd(THIRTY, host_gib=64)
    serve(world, "a")
    world.around.host_bytes = None
    world.run(60)
    world.order("sleep", "a")
    world.settle()
    assert world.phase("a") == "stopped"
    assert "0 MiB of 64.0 GiB are held, and host memory has not been measured for 60 s" in world.instance("a").reason.text
    assert "reading /proc" in world.instance("a").reason.fix
    world.around.host_bytes = 256 * GIB
    serve(world, "a")
    world.order("sleep", "a")
    world.settle()
    assert world.phase("a") == "asleep"


def test_of_two_that_leave_at_once_the_second_does_not_count_on_memory_that_the_first_is_about_to_take() -> None:
    """The ledger has room for six, the machine for one, and the first copy is not to be seen yet."""
    slow = replace(THIRTY, sleep_s=5.0)
    world = Plain({"gpu0": 24, "gpu1": 24}, host_limit_bytes=200 * GIB, a=slow, b=slow)
    world.around.host_bytes = 50 * GIB
    serve(world, "ab")
    for model in "ab":
        world.order("sleep", model)
    world.settle()
    assert (world.phase("a"), world.phase("b")) == ("asleep", "stopped")
    assert world.state.host is not None
    assert world.state.host.available_bytes > 0


def test_copies_that_were_measured_above_the_limit_shed_one_sleeper_and_not_more() -> None:
    """All three left at once, each with room by its estimate."""
    world = Plain({"gpu0": 24, "gpu1": 24, "gpu2": 24}, host_limit_bytes=LIMIT, behaviours=dict.fromkeys("abc", THIRTY))
    world.around.host_bytes = 256 * GIB
    event = world.registry()
    world.play(replace(event, guesses={name: replace(f, host_bytes={1: 10 * GIB}) for name, f in event.guesses.items()}))
    for model in "abc":
        world.ask(model)
        world.run(40)
    for model in "abc":
        world.order("sleep", model)
    world.run_until(lambda: "host_over_capacity" in world.state.degraded)
    message, fix, _ = world.state.degraded["host_over_capacity"]
    assert [line.message for line in world.told if line.kind == "host_over_capacity"] == [message]
    assert message == "copies of sleepers take 90.0 GiB of host memory, 64.0 GiB are allowed"
    assert fix == "nothing to do: a sleeper is stopped; or raise host.sleep_memory"
    world.settle()
    world.run(5)
    assert sorted(world.phase(m) for m in "abc") == ["asleep", "asleep", "stopped"]
    assert world.state.host_claimed() == 60 * GIB
    assert "host_over_capacity" not in world.state.degraded
    assert any(t.kind == "shed" for t in world.told)


def test_a_copy_that_cannot_be_seen_stays_claimed_as_estimated() -> None:
    world = crowd(THIRTY)
    world.around.copies_hidden = True
    serve(world, "ab")
    assert world.state.host_claimed() == 30 * GIB


def test_a_copy_that_is_smaller_than_was_thought_leaves_room_for_more() -> None:
    world = crowd(replace(THIRTY, host_bytes={1: 16 * GIB}), guess=30 * GIB)
    serve(world, "abcd")
    assert [world.instance(m).level for m in "abc"] == [1, 1, 1]
    assert world.state.host_claimed() == 48 * GIB


# --- one memory for device and host -----------------------------------------------------------------------------


def test_where_device_and_host_share_their_memory_level_1_gives_back_the_kv_part_only() -> None:
    """Weights only move within it: planning with the residue of a card would start the next one beyond capacity."""
    knobs = Behaviour(awake_bytes=60 * GIB, kv_bytes=20 * GIB, kv_min_bytes=20 * GIB, residue_bytes={1: GIB, 2: GIB}, levels=(1, 2))
    kept = replace(knobs, residue_bytes={1: 40 * GIB, 2: GIB})
    world = Plain({}, infos=[device("gpu0", 120, host_memory=True)], host_limit_bytes=LIMIT, a=kept, b=knobs)
    event = world.registry()
    world.play(replace(event, guesses={**event.guesses, ModelName("a"): knobs.estimate()}))
    world.ask("a")
    world.settle()
    world.order("sleep", "a", level=1)
    world.settle()
    assert (world.phase("a"), world.instance("a").claim.total_bytes) == ("asleep", 40 * GIB)
    assert world.state.host_claimed() == 0, "no copy is made there"
    assert not world.overflows


def test_where_device_and_host_share_their_memory_a_small_kv_part_is_enough_for_a_sleep() -> None:
    """On a card it would be one that frees next to nothing; here nothing else is to be had."""
    knobs = Behaviour(awake_bytes=60 * GIB, kv_bytes=4 * GIB, kv_min_bytes=4 * GIB, residue_bytes={1: 56 * GIB})
    for shared, end in ((True, "asleep"), (False, "stopped")):
        world = Plain({}, infos=[device("gpu0", 120, host_memory=shared)], host_limit_bytes=LIMIT, a=knobs)
        world.ask("a")
        world.settle()
        world.order("sleep", "a", level=1)
        world.settle()
        assert world.phase("a") == end
