"""Two models of one device, one of them busy for long, while another device is idle: nobody waits for what need not be waited for."""

from dataclasses import replace

import pytest

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain
from tests.support.world import device

ONE = Behaviour(awake_bytes=16 * GIB, start_s=30.0)


def both_on_gpu0(a: Behaviour = ONE, b: Behaviour = ONE, **more: Behaviour) -> Plain:
    """``a`` is awake and ``b`` asleep on gpu0, since a stranger had gpu1; it left long ago."""
    world = Plain({"gpu0": 24, "gpu1": 24}, behaviours={"a": a, "b": b, **more})
    world.foreign[DeviceId("gpu1")] = 22 * GIB
    world.run(5)
    for name in ("b", "a"):
        world.ask(name)
        world.run(150)
    world.foreign.clear()
    world.run(700)
    assert (world.phase("a"), world.phase("b"), world.instance("b").devices) == ("awake", "asleep", ("gpu0",))
    return world


def test_a_sleeper_waits_for_a_short_request() -> None:
    world = both_on_gpu0()
    world.ask("a", for_s=15.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(120)
    assert (client.end, world.instance("b").devices) == ("ok", ("gpu0",))
    assert world.path("b").endswith("asleep waking awake")


def test_a_sleeper_does_not_wait_for_a_long_stream_beside_an_idle_device() -> None:
    world = both_on_gpu0()
    (stream,) = world.ask("a", for_s=300.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(20)
    assert world.phase("a") == "draining", "it may end any moment"
    (second,) = world.ask("a")
    world.run(400)
    assert (client.end, second.end, stream.end) == ("ok", "ok", "ok")
    assert world.path("b").endswith("asleep stopping stopped launching awake")
    assert world.instance("b").devices == ("gpu1",)
    assert second.waited_s is not None
    assert second.waited_s < 40.0, "what was gated for b goes on when b goes elsewhere"
    told = [line.message for line in world.told if line.kind == "move" and line.subject == "b"]
    assert told[-2] == "b is not woken on gpu0: a must finish first, and takes long; it is stopped, and starts on gpu1 instead"


def test_a_start_that_is_sooner_than_the_end_of_a_turn_is_made_at_once() -> None:
    world = both_on_gpu0(replace(ONE, start_s=60.0), replace(ONE, start_s=2.0))
    world.ask("a", for_s=300.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(60)
    assert (client.end, world.path("b").endswith("asleep stopping stopped launching awake")) == ("ok", True)
    assert client.waited_s is not None
    assert client.waited_s < 10.0, "its turn would have come much later"
    assert world.phase("a") == "awake"


def test_a_turn_that_has_just_begun_is_not_waited_for_either() -> None:
    world = both_on_gpu0(b=replace(ONE, start_s=2.0))
    world.order("sleep", "a")
    world.run(20)
    world.ask("a", for_s=300.0)
    world.run(3)
    assert world.phase("a") == "awake"
    (client,) = world.ask("b")
    world.run(10)
    assert (client.end, world.instance("b").devices) == ("ok", ("gpu1",))
    assert world.path("a").endswith("asleep waking awake")


def test_who_runs_for_long_already_is_not_asked_to_finish() -> None:
    world = both_on_gpu0()
    world.ask("a", for_s=300.0)
    world.run(100)
    (client,) = world.ask("b")
    world.run(100)
    assert client.end == "ok"
    assert (world.path("a"), world.instance("b").devices) == ("launching awake", ("gpu1",))


def test_a_drain_is_taken_back_when_nothing_else_of_its_move_is_under_way() -> None:
    """A victim that is falling asleep is waited for, as at the end of any other move."""
    small = replace(ONE, awake_bytes=8 * GIB)
    world = Plain({"gpu0": 24, "gpu1": 24}, a=small, b=replace(ONE, awake_bytes=20 * GIB), c=replace(small, sleep_s=40.0), d=ONE)
    world.ask("d", for_s=60.0)  # on gpu0
    world.run(40)
    for name in ("a", "c"):  # on gpu1
        world.ask(name)
        world.run(60)
    world.run(200)  # their turns are over
    world.ask("d", for_s=50.0)
    world.run(30)
    world.ask("a", for_s=500.0)
    world.run(1)
    (client,) = world.ask("b", wait_s=300.0)
    world.run_until(lambda: world.phase("c") == "falling_asleep")
    assert world.phase("a") == "draining"
    world.run_until(lambda: world.phase("a") == "awake")
    assert world.phase("c") == "asleep"
    world.run(100)
    assert (client.end, world.instance("b").devices) == ("ok", ("gpu0",))


def test_a_restart_waits_for_its_own_requests_whatever_is_idle() -> None:
    world = both_on_gpu0()
    world.ask("a", for_s=300.0)
    world.run(60)
    world.order("restart", "a")
    world.run(1)
    world.ask("a", wait_s=500.0)
    world.run(120)
    assert world.phase("a") == "draining"


def test_a_gang_leaves_a_pair_of_which_one_card_is_taken_for_a_pair_that_shares_the_other() -> None:
    cards = [device(f"gpu{n}", 24, index=n, islands=("nvlink:0", "host")) for n in range(3)]
    world = Plain({}, infos=cards, specs={"b": {"devices": DeviceWish(count=2)}}, b=ONE)
    world.ask("b")
    world.run(60)
    world.order("sleep", "b")
    world.run(60)
    assert world.instance("b").devices == ("gpu0", "gpu1")
    world.foreign[DeviceId("gpu0")] = 20 * GIB
    world.run(10)
    (client,) = world.ask("b")
    world.run(90)
    assert (client.end, world.instance("b").devices) == ("ok", ("gpu1", "gpu2"))


def test_a_stopped_model_that_waits_for_a_drain_takes_the_device_that_became_idle() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=ONE, b=ONE, c=ONE)
    world.ask("a", for_s=600.0)
    world.run(40)
    world.ask("c", for_s=60.0)
    world.run(40)
    assert {world.instance(name).devices for name in ("a", "c")} == {("gpu0",), ("gpu1",)}
    (client,) = world.ask("b")
    world.run(120)
    assert client.end == "ok"
    assert world.instance("b").devices == world.instance("c").devices
    assert world.phase("a") == "awake"


def test_where_everything_is_busy_the_drain_goes_on() -> None:
    world = both_on_gpu0()
    world.foreign[DeviceId("gpu1")] = 22 * GIB
    world.run(2)
    world.ask("a", for_s=90.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(120)
    assert (client.end, world.path("b").endswith("asleep waking awake")) == ("ok", True)


def test_nobody_is_put_away_elsewhere_who_is_missed_more_than_the_wait() -> None:
    """It cannot sleep, takes minutes to start, and was used a moment ago."""
    world = both_on_gpu0(c=replace(ONE, levels=(), start_s=200.0))
    world.ask("c")
    world.run(220)
    assert world.instance("c").devices == ("gpu1",)
    world.ask("a", for_s=60.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(100)
    assert (client.end, world.instance("b").devices, world.path("c")) == ("ok", ("gpu0",), "launching awake")


def test_an_attached_sleeper_waits_where_it_is() -> None:
    world = both_on_gpu0()
    world.play(replace(world.registry(), attached=frozenset({ModelName("b")})))
    world.ask("a", for_s=90.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(120)
    assert (client.end, world.path("b").endswith("asleep waking awake")) == ("ok", True)


@pytest.mark.parametrize("gib", [24, 10])
def test_room_elsewhere_has_to_be_enough(gib: int) -> None:
    world = both_on_gpu0()
    world.infos = [replace(i, capacity_bytes=gib * GIB) if i.id == "gpu1" else i for i in world.infos]
    world.restart()
    world.run(30)
    world.ask("a", for_s=110.0)
    world.run(1)
    (client,) = world.ask("b")
    world.run(200)
    assert (client.end, world.instance("b").devices) == ("ok", ("gpu1",) if gib == 24 else ("gpu0",))
