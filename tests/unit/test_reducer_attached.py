"""Engines that somebody else started: they are put to sleep and woken, never ended, and nothing else is said of them."""

from dataclasses import replace

from scheduler.domain.device import DeviceInfo, DeviceSample
from scheduler.domain.ids import Holder, ModelName, instance_id
from scheduler.domain.units import GIB
from scheduler.orchestrator.state import Policy
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

IDLE = {"a": {"idle_sleep_after_s": 60.0}}
COPY = Behaviour(awake_bytes=10 * GIB, host_bytes={1: 30 * GIB})


def attached(knobs: Behaviour, *, host_gib: int = 0, idle: bool = False, policy: Policy | None = None) -> Plain:
    """``a`` was taken in and is awake."""
    world = Plain({"gpu0": 24}, host_limit_bytes=host_gib * GIB, specs=IDLE if idle else None, policy=policy, a=knobs)
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.ask("a")
    world.settle()
    return world


def test_one_that_slept_often_is_not_let_go_to_be_started_afresh_by_nobody() -> None:
    world = attached(Behaviour(awake_bytes=10 * GIB), policy=Policy(recycle_cycles=2))
    for _ in range(4):
        world.order("sleep", "a")
        world.settle()
        world.ask("a")
        world.settle()
    assert world.count("Stop", "a") == 0


def test_nobody_says_that_it_was_started() -> None:
    world = attached(Behaviour(awake_bytes=10 * GIB))
    assert [line.message for line in world.told if line.kind == "started"] == ["a is taken in: it runs already"]


def test_one_without_a_sleep_level_that_works_is_left_alone_when_it_is_idle() -> None:
    world = attached(Behaviour(awake_bytes=10 * GIB, levels=()), idle=True)
    world.run(3600)
    assert world.path("a") == "launching awake"


def test_one_for_whose_copy_the_host_has_no_room_stays_awake_and_the_operator_hears_why() -> None:
    world = attached(COPY, host_gib=8, idle=True)
    world.run(3600)
    action = world.order("sleep", "a")
    world.settle()
    assert world.path("a") == "launching awake"
    done = world.finished[action]
    assert (done.ok, done.code) == (False, "sleep_failed")
    assert done.message == "a cannot sleep at level 1: its copy needs 30.0 GiB of host memory, 0 MiB of 8.0 GiB are held"


def test_one_for_whose_copy_there_is_no_room_any_more_when_it_was_drained_serves_on() -> None:
    world = attached(COPY, host_gib=64)
    world.around.host_bytes = 128 * GIB
    (client,) = world.ask("a", for_s=20.0)
    world.run(1)
    action = world.order("sleep", "a")
    world.run(5)
    assert world.phase("a") == "draining"
    world.around.host_others_bytes = 110 * GIB
    world.settle()
    assert world.path("a") == "launching awake draining awake"
    assert client.end == "ok"
    done = world.finished[action]
    assert (done.ok, done.code) == (False, "sleep_failed")
    assert "its copy needs 30.0 GiB of host memory" in done.message
    assert done.fix


def test_who_it_should_have_made_room_for_waits_on() -> None:
    world = Plain({"gpu0": 24}, host_limit_bytes=64 * GIB, a=COPY, b=Behaviour(awake_bytes=16 * GIB))
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.around.host_bytes = 128 * GIB
    world.ask("a", for_s=300.0, limit_s=2000.0)
    world.run(5)
    (client,) = world.ask("b", wait_s=2000.0, limit_s=3000.0)
    world.run_until(lambda: world.phase("a") == "draining")
    world.around.host_others_bytes = 110 * GIB
    world.run(400)
    assert (world.phase("a"), client.end) == ("awake", "held")
    world.around.host_others_bytes = 0
    world.settle()
    assert (world.phase("a"), client.end) == ("asleep", "ok")
    assert world.count("Stop", "a") == 0


def test_one_whose_sleep_frees_nothing_is_let_go_and_nobody_says_that_its_memory_is_free() -> None:
    world = attached(replace(COPY, sleep_frees_nothing=True), host_gib=64)
    world.order("sleep", "a")
    world.settle()
    said = [line.message for line in world.told if line.kind in ("sleep_ineffective", "stopped")]
    assert len(said) == 2
    assert said[0].endswith("still holds 10.0 GiB: let go, since its process is not hotseat's to end")
    assert said[1] == "let go of a, which goes on by itself"


# --- found by its port, and not taken in ------------------------------------------------------------------------


class Found(Plain):
    """``a`` runs already, since before anybody asked for it, and holds ``theirs_bytes``."""

    theirs_bytes = 12 * GIB

    def _sample(self, info: DeviceInfo) -> DeviceSample:
        sample, iid = super()._sample(info), instance_id(ModelName("a"))
        if self.state.has_process(iid):
            return sample
        used, own = sample.used_bytes + self.theirs_bytes, {**sample.own, Holder(iid): self.theirs_bytes}
        return replace(sample, used_bytes=used, free_bytes=info.capacity_bytes - used, own=own)


def found(*, b: Behaviour) -> Found:
    world = Found({"gpu0": 24}, a=Behaviour(awake_bytes=12 * GIB), b=b)
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.run(2)
    return world


def test_nothing_is_started_into_what_it_holds_before_it_is_taken_in() -> None:
    world = found(b=Behaviour(awake_bytes=16 * GIB))
    world.ask("b")
    world.run(30)
    assert world.count("Launch", "b") == 0
    assert "12.0 GiB are used by others" in world.state.hold_reasons[ModelName("b")].text


def test_what_it_holds_is_its_own_when_it_is_taken_in() -> None:
    """Beside 10 GiB of ``b`` there is room for the 12 GiB that it holds, not for as many more."""
    world = found(b=Behaviour(awake_bytes=10 * GIB))
    world.ask("b", for_s=60.0)
    world.run(20)
    assert world.phase("b") == "awake"
    world.ask("a")
    world.run_until(lambda: world.phase("a") == "awake")
    assert world.path("b") == "launching awake"


def test_where_it_leaves_too_little_for_who_is_there_an_idle_model_is_put_away() -> None:
    world = found(b=Behaviour(awake_bytes=10 * GIB))
    world.ask("b")
    world.run(20)
    world.theirs_bytes = 15 * GIB
    world.run_until(lambda: world.phase("b") == "asleep")


def test_who_is_to_be_awake_always_is_planned_around_it() -> None:
    """``b`` needs what it holds, ``c`` fits beside it; and where it is itself to be awake always, what it holds is its own."""
    world = Found({"gpu0": 24}, a=Behaviour(awake_bytes=13 * GIB), b=Behaviour(awake_bytes=16 * GIB), c=Behaviour(awake_bytes=10 * GIB))
    world.theirs_bytes = 13 * GIB
    world.configure(b={"always_awake": True, "enabled": False}, c={"enabled": False})
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.run(2)
    world.configure(b={"enabled": True})
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.run(60)
    assert world.count("Launch", "b") == 0
    assert [line for line in world.told if line.kind in ("move", "memory_not_freed")] == [], "nothing was even begun"
    world.configure(a={"always_awake": True}, b={"enabled": False}, c={"enabled": True, "always_awake": True})
    world.play(replace(world.registry(), attached=frozenset({ModelName("a")})))
    world.run_until(lambda: (world.phase("a"), world.phase("c")) == ("awake", "awake"))
