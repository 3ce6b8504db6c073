"""Wishes and kept turns whose reason is gone are not carried out; an operator's last word counts."""

import pytest

from scheduler.domain.ids import DeviceId
from scheduler.domain.model import DeviceWish
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

A = Behaviour(awake_bytes=16 * GIB)
STOPPER = Behaviour(awake_bytes=16 * GIB, levels=())
SMALL = Behaviour(awake_bytes=4 * GIB)
SLOW = Behaviour(awake_bytes=4 * GIB, start_s=60.0)


def beside_a_start(**fields: object) -> Plain:
    """``a`` is awake and idle; its device is taken by the start of ``c`` for a minute."""
    world = Plain({"gpu0": 24}, specs={"a": fields}, a=SMALL, c=SLOW)
    world.ask("a")
    world.run(10)
    world.ask("c")
    world.run(5)
    assert world.phase("c") == "launching"
    return world


def test_an_idle_rule_is_forgotten_when_the_model_is_busy_again_before_its_device_is_free() -> None:
    world = beside_a_start(idle_sleep_after_s=20.0)
    world.run(25)
    for _ in range(60):
        world.ask("a", for_s=5.0)
        world.run(1.0)
    assert world.path("a") == "launching awake"


@pytest.mark.parametrize("back", ["put back", "enabled", "as before"])
def test_a_model_that_is_wanted_again_before_its_device_is_free_is_not_stopped(back: str) -> None:
    world = beside_a_start()
    kept = world.specs["a"]
    world.configure(a={"put back": None, "enabled": {"enabled": False}, "as before": {"args": ("--x",)}}[back])
    world.run(5)
    world.specs["a"] = kept
    world.play(world.registry())
    world.settle()
    assert world.path("a") == "launching awake"


def test_a_kept_turn_of_a_disabled_model_starts_nothing() -> None:
    world = Plain({"gpu0": 24}, a=STOPPER, b=STOPPER)
    world.ask("a", for_s=50.0, limit_s=1000, wait_s=1000)
    world.run(10)
    world.ask("b", wait_s=20.0, limit_s=20.0)
    world.run(25)
    assert world.count("Launch", "b") == 0
    world.configure(b={"enabled": False})
    world.run(200)
    assert world.count("Launch", "b") == 0


def test_a_stop_ends_the_wish_to_wake() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, start_s=30.0))
    wake = world.order("wake", "a")
    world.run(10)
    stop = world.order("stop", "a")
    world.run(120)
    assert world.finished[stop].ok
    assert (world.finished[wake].ok, world.finished[wake].code) == (False, "conflict")
    assert world.phase("a") == "stopped"


def test_a_stop_of_one_that_waits_for_its_room_ends_the_wish_to_wake() -> None:
    world = Plain({"gpu0": 24}, a=STOPPER, b=STOPPER)
    world.ask("b", for_s=100.0)
    world.run(10)
    wake = world.order("wake", "a")
    assert world.finished[world.order("stop", "a")].ok
    assert world.finished[wake].code == "conflict"
    world.run(300)
    assert world.count("Launch", "a") == 0


def test_a_stop_is_not_undone_by_a_kept_turn() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, start_s=40.0))
    world.ask("a", wait_s=10.0, limit_s=10.0)
    world.run(45)
    assert world.phase("a") == "awake"
    stop = world.order("stop", "a")
    world.run(60)
    assert world.finished[stop].ok
    assert world.phase("a") == "stopped"


def test_requests_that_wait_are_served_after_a_stop() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, start_s=30.0))
    (client,) = world.ask("a", wait_s=300.0)
    world.run(10)
    world.order("stop", "a")
    world.settle()
    assert client.end == "ok"


def test_a_sleep_that_failed_is_not_reported_as_done() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, sleep_errors=1))
    world.ask("a")
    world.run(60)
    action = world.order("sleep", "a")
    world.settle()
    end = world.finished[action]
    assert (world.phase("a"), end.ok, end.code) == ("stopped", False, "sleep_failed")
    assert "sleep failed" in end.message


def test_a_restart_starts_only_where_the_model_may_sit_now() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=A)
    world.ask("a", for_s=500)
    world.run(10)
    assert world.instance("a").devices == ("gpu0",)
    world.configure(a={"devices": DeviceWish(ids=(DeviceId("gpu1"),))})
    action = world.order("restart", "a", force=True)
    world.settle()
    assert world.finished[action].ok
    assert world.instance("a").devices == ("gpu1",)


def test_a_start_that_waits_for_room_goes_where_the_model_may_sit_by_then() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=STOPPER, b=STOPPER, c=STOPPER)
    for model in "bc":
        world.ask(model, for_s=50.0 if model == "b" else 500.0)
    world.run(10)
    (client,) = world.ask("a", wait_s=100.0)
    world.run_until(lambda: "draining" in (world.phase("b"), world.phase("c")))
    (other,) = {"gpu0", "gpu1"} - {d for m in "bc" if world.phase(m) == "draining" for d in world.instance(m).devices}
    world.configure(a={"devices": DeviceWish(ids=(DeviceId(other),))})
    world.settle()
    assert client.end in ("ok", "wait_timeout")
    assert {d for j in world.transitions if j.instance.model == "a" for d in j.instance.devices} <= {other}
