"""Turns between models of which one has a limit of requests at a time: its queue may be longer than the others can wait."""

from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

STOPPER = Behaviour(awake_bytes=16 * GIB, levels=())


def queued(requests: int = 60, *, for_s: float = 5.0) -> Plain:
    """``a`` serves one request at a time and has been woken by many; ``b`` fits only in its place."""
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=STOPPER, b=STOPPER)
    world.ask("a", requests, for_s=for_s, wait_s=900.0, limit_s=900.0)
    world.run(30)
    assert world.phase("a") == "awake"
    return world


def test_a_queue_behind_a_limit_does_not_postpone_another_model_past_its_max_wait() -> None:
    world = queued()
    (b,) = world.ask("b", wait_s=60.0, limit_s=60.0)
    world.run(100)
    assert b.end == "ok"
    assert b.waited_s is not None
    assert b.waited_s <= 60.0


def test_the_requests_that_woke_it_are_served_until_then() -> None:
    world = queued()
    (b,) = world.ask("b", wait_s=100.0, limit_s=100.0)
    assert world.why("b") is Code.WAITING_TURN
    world.run(40)
    assert "draining" not in world.path("a")
    world.run(80)
    assert b.end == "ok"


def test_who_could_not_come_in_time_anyhow_does_not_end_a_turn_that_has_just_begun() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=STOPPER, b=STOPPER)
    world.ask("a", 4, for_s=2.0, wait_s=900.0, limit_s=900.0)
    world.run_until(lambda: world.phase("a") == "launching")
    world.ask("b", wait_s=12.0, limit_s=300.0)
    world.run_until(lambda: world.phase("a") == "draining")
    assert "held" not in world.ends("a")


def test_the_rest_of_the_queue_is_served_afterwards() -> None:
    world = queued(20)
    world.ask("b", wait_s=60.0, limit_s=60.0)
    world.settle()
    assert set(world.ends("a")) == {"ok"}


def test_a_turn_that_is_only_kept_cuts_nobodys_short() -> None:
    """The client of ``b`` has given up: nobody's deadline ends the turn of ``a`` before those who woke it are served."""
    world = queued(30)
    (b,) = world.ask("b", wait_s=600.0, limit_s=600.0)
    world.run(5)
    world.cancel(b)
    world.state.facts_of(world.instance("b").model).turn_kept_until_s = world.now_s + 80.0
    world.run(75)
    assert "draining" not in world.path("a")
