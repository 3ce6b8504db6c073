"""Operators' actions, and changes of the registry while engines run."""

from dataclasses import replace

import pytest

from scheduler.domain.claims import NOTHING
from scheduler.domain.ids import ActionId
from scheduler.domain.instance import EMPTY_PHASES
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.orchestrator import events as ev
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain

A = Behaviour(awake_bytes=16 * GIB)
STOPPER = Behaviour(awake_bytes=16 * GIB, levels=())


def awake(knobs: Behaviour = A, **fields: object) -> Plain:
    """``a`` is awake and idle; ``b`` would need its room."""
    world = Plain({"gpu0": 24}, specs={"a": fields}, a=knobs, b=A)
    world.ask("a")
    world.run(10)
    assert world.phase("a") == "awake"
    return world


def ended(world: Plain, action: ActionId) -> tuple[bool, str]:
    finish = world.finished[action]
    return finish.ok, finish.code


# --- wake -------------------------------------------------------------------------------------------------------


def test_wake_brings_it_awake_and_says_when() -> None:
    world = Plain({"gpu0": 24}, a=A)
    action = world.order("wake", "a")
    assert action not in world.finished
    world.settle()
    assert ended(world, action) == (True, "")
    assert "awake after 3.0 s" in world.finished[action].message
    assert world.instance("a").reason == Reason(Code.ASKED, "a on gpu0: asked for by an operator"), "no request is behind it"
    again = world.order("wake", "a")
    assert "already" in world.finished[again].message


def test_wake_and_requests_share_one_start() -> None:
    world = Plain({"gpu0": 24}, a=A)
    world.ask("a", 5)
    action = world.order("wake", "a")
    world.settle()
    assert world.count("Launch") == 1
    assert world.finished[action].ok


def test_wake_clears_a_failure_and_tries_at_once() -> None:
    failure = StartFailure(code=Code.MODEL_MISSING)
    world = Plain({"gpu0": 24}, a=Behaviour(start_failures=(failure,), awake_bytes=GIB))
    world.ask("a")
    world.settle()
    assert world.phase("a") == "failed"
    action = world.order("wake", "a")
    world.settle()
    assert world.finished[action].ok
    assert world.phase("a") == "awake"


def test_a_wake_that_fails_tells_why() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(fails_always=StartFailure(code=Code.UNKNOWN_FLAG, text="unknown flag --x")))
    action = world.order("wake", "a")
    world.settle()
    assert ended(world, action) == (False, "model_failed")
    assert "unknown flag --x" in world.finished[action].message


def test_a_wake_that_can_never_fit_fails_at_once() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=40 * GIB))
    assert ended(world, world.order("wake", "a")) == (False, "does_not_fit")


def test_a_wake_waits_for_its_turn_and_gives_up_at_its_patience() -> None:
    world = awake(STOPPER)
    world.ask("a", for_s=500)
    action = world.order("wake", "b", patience_s=60)
    world.run(61)
    assert ended(world, action) == (False, "wait_timeout")


# --- sleep and stop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "end"), [("sleep", "asleep"), ("stop", "stopped")])
def test_put_away_when_idle(verb: str, end: str) -> None:
    world = awake()
    action = world.order(verb, "a")
    world.settle()
    assert (world.finished[action].ok, world.phase("a")) == (True, end)
    again = world.order(verb, "a")
    world.settle()
    assert world.finished[again].ok


@pytest.mark.parametrize(("verb", "end"), [("sleep", "asleep"), ("stop", "stopped")])
def test_put_away_waits_for_requests_and_the_next_one_brings_it_back(verb: str, end: str) -> None:
    world = awake()
    (inside,) = world.ask("a", for_s=20)
    action = world.order(verb, "a")
    (late,) = world.ask("a", for_s=1)
    assert (world.phase("a"), late.end) == ("draining", "held")
    world.run_until(lambda: action in world.finished)
    assert (inside.end, world.finished[action].ok) == ("ok", True)
    world.settle()
    assert late.end == "ok"
    assert f"draining {'falling_asleep' if end == 'asleep' else 'stopping'} {end}" in world.path("a")
    assert world.phase("a") == "awake"


def test_stop_now_cuts_its_requests_after_they_were_told() -> None:
    world = awake()
    (inside,) = world.ask("a", for_s=500)
    asked_s = world.now_s
    action = world.order("stop", "a", force=True)
    world.settle()
    assert inside.end == "aborted"
    assert (world.finished[action].ok, world.phase("a")) == (True, "stopped")
    assert world.when("Stop", "a") == [pytest.approx(asked_s + 0.1)], "when the client had been told"


def test_force_is_not_stopped_by_requests_that_hang_on() -> None:
    world = awake()
    world.ask("a", for_s=500)
    world.clients[-1].lease = None  # the relay never lets go of it
    world.order("stop", "a", force=True)
    world.run_until(lambda: world.phase("a") == "stopped", within_s=30)  # and not the ten minutes of a drain
    assert "Forced" in [j.transition.event for j in world.transitions]


def test_a_stop_with_force_after_one_without_cuts_too() -> None:
    world = awake()
    (inside,) = world.ask("a", for_s=500)
    gentle = world.order("stop", "a")
    world.run(5)
    assert world.phase("a") == "draining"
    hard = world.order("stop", "a", force=True)
    world.run_until(lambda: world.phase("a") == "stopped", within_s=60)
    world.settle()
    assert inside.end == "aborted"
    assert {gentle, hard} <= set(world.finished)
    assert world.finished[hard].ok


@pytest.mark.parametrize("phase", ["launching", "waking", "falling_asleep", "asleep", "backoff"])
def test_stop_in_every_phase_ends_stopped(phase: str) -> None:
    failure = StartFailure(code=Code.CRASHED, after_s=1.0)
    knobs = Behaviour(awake_bytes=16 * GIB, start_failures=(failure,) if phase == "backoff" else ())
    world = Plain({"gpu0": 24}, a=knobs, b=A)
    world.ask("a", limit_s=2000, wait_s=1000)
    if phase in ("falling_asleep", "asleep", "waking"):
        world.settle()
        world.order("sleep", "a")
    if phase == "waking":
        world.settle()
        world.ask("a")
    world.run_until(lambda: world.phase("a") == phase)
    action = world.order("stop", "a")
    world.run_until(lambda: action in world.finished)
    assert world.finished[action].ok
    assert world.phase("a") in {p.value for p in EMPTY_PHASES} or world.phase("a") == "launching"


def test_a_level_that_does_not_exist_or_freed_nothing_is_refused() -> None:
    world = awake()
    assert ended(world, world.order("sleep", "a", level=2)) == (False, "sleep_unsupported")
    world = awake(STOPPER)
    assert ended(world, world.order("sleep", "a")) == (False, "sleep_unsupported")
    world = awake(Behaviour(awake_bytes=16 * GIB, sleep_frees_nothing=True))
    action = world.order("sleep", "a")
    world.settle()
    assert action in world.finished
    world.order("wake", "a")
    world.settle()
    refused = world.order("sleep", "a")
    assert ended(world, refused) == (False, "sleep_unsupported")
    assert "level 1 did not work with this version of the engine" in world.finished[refused].message


@pytest.mark.parametrize(("there", "other"), [(1, 2), (2, 1)])
def test_another_level_than_the_one_it_sleeps_at_is_refused_with_the_way_there(there: int, other: int) -> None:
    world = awake(Behaviour(awake_bytes=16 * GIB, levels=(1, 2)))
    world.order("sleep", "a", level=there)
    world.settle()
    refused = world.order("sleep", "a", level=other)
    assert ended(world, refused) == (False, "conflict")
    assert world.finished[refused].message == f"a is asleep at level {there} already, and has to be woken for level {other}"
    assert world.finished[refused].fix == f"hotseat wake a, then hotseat sleep a --level {other}"
    for level in (there, None):
        again = world.order("sleep", "a", level=level)
        assert ended(world, again) == (True, "")
        assert world.finished[again].message == f"a is asleep at level {there} already"
    assert (world.count("Sleep"), world.instance("a").level) == (1, there)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, "has none with these flags"),
        ({"levels": (2,)}, "levels names 2, which the engine"),
        ({"levels": ()}, "levels is []"),
    ],
)
def test_why_a_model_can_only_be_stopped_is_said(fields: dict[str, object], cause: str) -> None:
    world = awake(STOPPER, **fields)
    refused = world.order("sleep", "a")
    assert ended(world, refused) == (False, "sleep_unsupported")
    assert cause in world.finished[refused].message


def test_the_second_level_is_reached_when_asked_for() -> None:
    world = awake(Behaviour(awake_bytes=16 * GIB, levels=(1, 2)))
    world.order("sleep", "a", level=2)
    world.settle()
    assert (world.phase("a"), world.instance("a").level) == ("asleep", 2)


@pytest.mark.parametrize("verb", ["sleep", "stop"])
def test_always_awake_models_are_not_put_away(verb: str) -> None:
    world = awake(always_awake=True)
    assert ended(world, world.order(verb, "a")) == (False, "conflict")


def test_a_later_action_replaces_an_earlier_one() -> None:
    world = Plain({"gpu0": 24}, a=A, b=A)
    world.ask("a")
    world.run(10)
    world.ask("b", limit_s=500)
    world.run_until(lambda: world.phase("a") == "falling_asleep")
    first, second = world.order("stop", "a"), world.order("stop", "a")
    assert ended(world, first) == (False, "conflict")
    world.settle()
    assert world.finished[second].ok
    assert world.phase("a") == "stopped"


def test_unknown_models_and_verbs() -> None:
    world = awake()
    assert ended(world, world.order("wake", "x")) == (False, "model_not_found")
    assert ended(world, world.order("dance", "a")) == (False, "invalid")


# --- restart ----------------------------------------------------------------------------------------------------


def test_restart_is_one_stop_and_one_start_whoever_waits() -> None:
    world = awake()
    (inside,) = world.ask("a", for_s=5)
    action = world.order("restart", "a")
    (late,) = world.ask("a")
    world.settle()
    assert (inside.end, late.end, world.finished[action].ok) == ("ok", "ok", True)
    assert world.count("Launch") == 2
    assert world.path("a").endswith("awake draining stopping stopped launching awake")


def test_restart_of_a_stopped_model_is_a_start() -> None:
    world = Plain({"gpu0": 24}, a=A)
    action = world.order("restart", "a")
    world.settle()
    assert world.finished[action].ok
    assert world.phase("a") == "awake"


def test_restart_of_a_sleeper_starts_it_afresh() -> None:
    world = awake()
    world.order("sleep", "a")
    world.settle()
    action = world.order("restart", "a")
    world.settle()
    assert world.finished[action].ok
    assert world.path("a").endswith("asleep stopping stopped launching awake")


def test_restart_of_one_that_starts_is_a_fresh_start() -> None:
    world = Plain({"gpu0": 24}, a=A)
    world.ask("a")
    world.run(1)
    action = world.order("restart", "a")
    world.settle()
    assert world.finished[action].ok
    assert world.ends() == ["ok"]
    assert world.count("Launch") == 2


def test_a_restart_that_fails_says_so() -> None:
    failure = StartFailure(code=Code.MODEL_MISSING, text="no such file")
    world = awake()
    world.behaviours["a"] = Behaviour(awake_bytes=16 * GIB, fails_always=failure)
    action = world.order("restart", "a")
    world.settle()
    assert not world.finished[action].ok
    assert "no such file" in world.finished[action].message


# --- the registry -----------------------------------------------------------------------------------------------


def test_a_removed_model_is_drained_and_stopped_and_its_waiters_get_404() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=A)
    inside, waiting = world.ask("a", 2, for_s=10)
    world.run(5)
    world.configure(a=None)
    assert (inside.end, waiting.end) == ("granted", "model_not_found")
    world.settle()
    assert inside.end == "ok"
    assert world.phase("a") == "stopped"
    assert world.ask("a")[0].end == "model_not_found"


@pytest.mark.parametrize(
    "phase", ["launching", "awake", "draining", "falling_asleep", "asleep", "waking", "stopping", "backoff", "failed", "unknown"]
)
def test_a_model_removed_in_any_phase_ends_stopped(phase: str) -> None:
    failures = {"backoff": (StartFailure(code=Code.CRASHED),), "failed": (StartFailure(code=Code.MODEL_MISSING),)}.get(phase, ())
    world = Plain({"gpu0": 24}, a=replace(A, start_failures=failures), b=A)
    (client,) = world.ask("a", for_s=500 if phase == "draining" else 1, wait_s=900, limit_s=900)
    if phase in ("falling_asleep", "asleep", "waking", "stopping", "unknown"):
        world.settle()
        world.order("stop" if phase == "stopping" else "sleep", "a")
    if phase == "waking":
        world.run_until(lambda: world.phase("a") == "asleep")
        world.ask("a")
    if phase == "unknown":
        world.settle()
        world.restart()
    if phase == "draining":
        world.ask("b", wait_s=900, limit_s=900)
    world.run_until(lambda: world.phase("a") == phase)
    world.configure(a=None)
    world.settle()
    assert (world.phase("a"), world.instance("a").claim) == (phase if phase == "failed" else "stopped", NOTHING)
    assert not world.procs.get(world.instance("a").id)
    assert client.end == {"launching": "model_not_found", "backoff": "model_not_found", "failed": "model_failed"}.get(phase, "ok")
    (other,) = world.ask("b")
    world.settle()
    assert other.end == "ok"


def test_a_disabled_model_is_drained_and_stopped_and_can_be_enabled_again() -> None:
    world = awake()
    (inside,) = world.ask("a", for_s=10)
    world.configure(a={"enabled": False})
    assert world.ask("a")[0].end == "model_disabled"
    world.settle()
    assert (inside.end, world.phase("a"), world.instance("a").reason.code) == ("ok", "stopped", Code.DISABLED)
    world.configure(a={"enabled": True})
    world.ask("a")
    world.settle()
    assert world.ends()[-1] == "ok"


def test_holds_of_a_model_that_is_disabled_meanwhile_end() -> None:
    world = Plain({"gpu0": 24}, a=A)
    (client,) = world.ask("a")
    world.run(1)
    world.configure(a={"enabled": False})
    world.settle()
    assert client.end == "model_disabled"
    assert world.phase("a") == "stopped"


def test_a_stale_model_serves_on_and_restarts_when_idle() -> None:
    world = awake()
    (inside,) = world.ask("a", for_s=10)
    world.configure(a={"args": ("--ctx", "8192")})
    world.run(5)
    assert world.ask("a")[0].end == "granted"
    world.settle()
    assert inside.end == "ok"
    assert world.phase("a") == "stopped"
    assert world.instance("a").reason.code is Code.SPEC_STALE
    world.ask("a")
    world.settle()
    assert world.count("Launch") == 2


def test_an_alias_touches_no_engine() -> None:
    world = awake()
    world.configure(a={"aliases": ("x",), "max_queued": 3, "description": "new"})
    world.run(60)
    assert world.path("a") == "launching awake"


def test_what_failed_is_tried_again_after_its_definition_changed() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(fails_always=StartFailure(code=Code.UNKNOWN_FLAG), awake_bytes=GIB))
    world.ask("a")
    world.settle()
    assert world.phase("a") == "failed"
    world.behaviours["a"] = Behaviour(awake_bytes=GIB)
    world.configure(a={"args": ("--right",)})
    assert world.phase("a") == "stopped"
    world.ask("a")
    world.settle()
    assert world.ends()[-1] == "ok"


def test_a_change_while_it_starts_is_served_by_the_old_engine_first() -> None:
    world = Plain({"gpu0": 24}, a=A)
    (client,) = world.ask("a")
    world.run(1)
    world.configure(a={"args": ("--ctx", "8192")})
    world.settle()
    assert client.end == "ok"
    world.run(60)
    assert world.phase("a") == "stopped"


def test_a_bigger_definition_does_not_change_the_claim_of_what_runs() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=8 * GIB, levels=()), b=Behaviour(awake_bytes=12 * GIB, levels=()))
    world.ask("b", for_s=60)
    world.run(5)
    world.ask("a", for_s=30)
    world.run(1)
    world.behaviours["a"] = Behaviour(awake_bytes=20 * GIB, levels=())
    world.configure(a={"args": ("--ctx", "1000000")})
    world.run(5)
    assert world.phase("a") == "awake"
    assert world.instance("a").claim.total_bytes < 10 * GIB
    world.settle()
    assert world.ends() == ["ok", "ok"]


def test_an_always_awake_model_starts_by_itself_and_comes_back() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"always_awake": True}}, a=STOPPER, b=STOPPER)
    world.run(10)
    assert world.phase("a") == "awake"
    world.crash("a")
    world.settle()
    assert world.phase("a") == "awake"
    world.ask("b")
    world.settle()
    assert world.ends("b") == ["ok"]
    world.run(3600)
    assert world.phase("a") == "awake"
    world.settle()


def test_an_always_awake_model_that_always_fails_does_not_spin() -> None:
    failing = Behaviour(fails_always=StartFailure(code=Code.CRASHED), awake_bytes=GIB)
    world = Plain({"gpu0": 24}, specs={"a": {"always_awake": True}}, a=failing)
    world.run(3600)
    assert world.count("Launch") <= 3 + 4


def test_a_daemon_that_closes_starts_nothing_and_stops_what_is_always_awake() -> None:
    """The room that one leaves is not for another, though its turn was kept."""
    big = Behaviour(awake_bytes=6 * GIB, levels=())
    world = Plain({"gpu0": 10}, specs={"c": {"always_awake": True}}, a=big, b=big, c=replace(big, awake_bytes=2 * GIB))
    world.run(5)
    world.ask("a", for_s=1000)
    world.run(5)
    world.ask("b", wait_s=10)
    world.run(15)
    world.play(ev.Closing(at_s=world.now_s))
    actions = [world.order("stop", model, force=True) for model in "ac"]
    world.run(60)
    assert all(world.finished[action].ok for action in actions)
    assert [world.phase(model) for model in "abc"] == ["stopped"] * 3
    assert world.count("Launch", "b") == 0
