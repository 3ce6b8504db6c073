"""Engines that misbehave around sleep and wake as real ones were reported to, and what is asked of them at all."""

from collections.abc import Callable

import pytest

from scheduler.domain.ids import ModelName, instance_id
from scheduler.domain.learned import Learned
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator import effects as fx
from scheduler.orchestrator.state import Policy
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

BIG = Behaviour(awake_bytes=16 * GIB)


class Asked(Plain):
    """Keeps every order to an engine."""

    def __init__(self, *args: object, **more: object) -> None:
        self.orders: list[fx.EngineEffect] = []
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def command(self, effect: fx.EngineEffect) -> None:
        """Note it, then do it."""
        self.orders.append(effect)
        super().command(effect)


def sleep_and_wake(world: Plain, times: int = 1) -> None:
    """``a`` is put away by its operator and asked for again."""
    for _ in range(times):
        world.order("sleep", "a")
        world.settle()
        world.ask("a")
        world.settle()


# --- what is asked of an engine ---------------------------------------------------------------------------------


def test_no_question_to_an_engine_stands_between_a_request_and_its_lease() -> None:
    world = Asked({"gpu0": 24}, a=BIG)
    world.ask("a")
    world.settle()
    world.orders.clear()
    for _ in range(20):
        [client] = world.ask("a")
        assert client.end == "granted"
        world.run(2)
    assert world.orders == []


def test_fifty_requests_and_an_operator_wake_a_sleeper_once() -> None:
    world = Asked({"gpu0": 24}, a=BIG)
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    world.ask("a", 25)
    action = world.order("wake", "a")
    world.run(0.5)
    world.ask("a", 25)
    world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.finished[action].ok
    assert [type(order).__name__ for order in world.orders].count("Wake") == 1


def test_to_put_a_sleeper_to_sleep_asks_nothing_of_it_and_is_no_sample() -> None:
    world = Plain({"gpu0": 24}, a=BIG)
    world.ask("a")
    world.settle()
    for _ in range(3):
        action = world.order("sleep", "a")
        world.settle()
        assert world.finished[action].ok
    learned = world.state.facts_of(ModelName("a")).learned
    assert world.count("Sleep") == 1
    assert len(learned.sleep_s[1]) == 1
    assert not learned.wake_s


@pytest.mark.parametrize("order", [fx.Sleep, fx.Wake])
def test_big_models_get_more_time(order: type[fx.Sleep] | type[fx.Wake]) -> None:
    def time_out(gib: int, seconds: float) -> float:
        knobs = Behaviour(awake_bytes=gib * GIB, sleep_s=seconds, wake_s=seconds)
        world = Asked({"gpu0": 200}, a=knobs)
        world.ask("a")
        world.settle()
        sleep_and_wake(world, 2)
        return max(o.timeout_s for o in world.orders if isinstance(o, order))

    assert time_out(1, 0.5) == 60.0
    assert time_out(160, 40.0) >= 160.0


# --- memory that does not come back -----------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_a_sleep_that_frees_too_little_is_ended_and_its_level_not_used_again(fraction: float) -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, free_fraction=fraction), b=BIG)
    world.ask("a")
    world.settle()
    for _ in range(2):
        world.ask("b")
        world.settle()
        assert world.phase("a") == "stopped"
        assert not world.overflows
        world.ask("a")
        world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.count("Sleep", "a") == 1
    assert [t.kind for t in world.told].count("sleep_ineffective") == 1


def test_bytes_that_fall_after_the_reply_are_waited_for() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, free_delay_s=1.5), b=BIG)
    world.ask("a")
    world.settle()
    world.ask("b")
    world.settle()
    assert world.when("Launch", "b")[0] >= world.when("Sleep", "a")[0] + 0.5 + 1.5
    assert world.path("a") == "launching awake draining falling_asleep asleep"
    assert set(world.ends()) == {"ok"}
    assert not world.overflows


# --- engines that wear out --------------------------------------------------------------------------------------


def test_an_engine_that_slept_very_often_is_started_afresh_when_it_is_idle() -> None:
    world = Plain({"gpu0": 24}, policy=Policy(recycle_cycles=5), a=Behaviour(awake_bytes=16 * GIB, crash_after_cycles=6))
    world.ask("a")
    world.settle()
    sleep_and_wake(world, 12)
    assert set(world.ends()) == {"ok"}
    assert world.count("Launch") == 3
    assert "crashed" not in world.path("a")
    assert any("it slept 5 times" in j.transition.reason.text for j in world.transitions)


def test_an_engine_whose_residue_grows_is_started_afresh_when_it_is_idle() -> None:
    leaky = Behaviour(awake_bytes=16 * GIB, residue_bytes={1: GIB}, residue_growth_bytes=GIB // 4)
    world = Plain({"gpu0": 24}, a=leaky)
    world.ask("a")
    world.settle()
    sleep_and_wake(world, 8)
    assert set(world.ends()) == {"ok"}
    assert world.count("Launch") > 1
    reasons = [j.transition.reason for j in world.transitions]
    assert any(r.code is Code.RECYCLED and "its residue grew" in r.text for r in reasons)
    assert not world.overflows


def test_what_was_learned_on_one_device_says_nothing_about_a_gang() -> None:
    """Tensor parallelism keeps several times the residue."""
    world = Plain({"gpu0": 24, "gpu1": 24}, a=BIG)
    world.ask("a")
    world.settle()
    sleep_and_wake(world)
    assert world.state.facts_of(ModelName("a")).learned.residue_bytes[1] == (GIB // 2,)
    world.configure(a={"devices": DeviceWish(count=2)})
    assert world.state.facts_of(ModelName("a")).learned == Learned()


# --- wrong answers ----------------------------------------------------------------------------------------------


def test_a_level_after_which_it_answers_nonsense_is_not_used_again_and_the_other_is() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, levels=(1, 2), garbage_levels=(2,)))
    world.ask("a")
    world.settle()
    world.order("sleep", "a", level=2)
    world.settle()
    world.ask("a", 3)
    world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.path("a").endswith("asleep waking stopping backoff launching awake")
    assert any(t.kind == "output_wrong" for t in world.told)
    action = world.order("sleep", "a", level=2)
    world.settle()
    assert world.finished[action].code == "sleep_unsupported"
    action = world.order("sleep", "a", level=1)
    world.settle()
    assert world.finished[action].ok


# --- starts and neighbours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["sleep", "wake"])
def test_a_neighbour_neither_sleeps_nor_wakes_while_another_one_starts(verb: str) -> None:
    small = Behaviour(awake_bytes=8 * GIB)
    world = Asked({"gpu0": 24}, a=small, b=Behaviour(awake_bytes=8 * GIB, start_s=30.0))
    world.ask("a")
    world.settle()
    if verb == "wake":
        world.order("sleep", "a")
        world.settle()
    world.ask("b")
    world.run(5)
    assert world.phase("b") == "launching"
    world.orders.clear()
    action = world.order(verb, "a")
    world.run(10)
    assert world.phase("b") == "launching"
    assert [o for o in world.orders if o.instance == instance_id(ModelName("a"))] == []
    world.settle()
    assert world.finished[action].ok
    assert world.count(verb.title(), "a") == 1


def ends_of(deaf: Callable[[int], bool]) -> Plain:
    """``a`` is stopped, and its processes take no notice of the first signals."""

    class Deaf(Plain):
        signals = 0

        def _stop(self, effect: fx.Stop, proc: object) -> None:
            self.signals += 1
            if not deaf(self.signals):
                super()._stop(effect, proc)  # type: ignore[arg-type]

    world = Deaf({"gpu0": 24}, a=BIG, b=BIG)
    world.ask("a")
    world.settle()
    world.order("stop", "a")
    return world


def test_a_stop_that_does_not_come_off_stays_one_and_is_repeated() -> None:
    world = ends_of(lambda count: count <= 4)
    world.run(12)
    world.ask("b", wait_s=600)
    world.run(10)
    assert world.phase("a") == "stopping"
    assert world.instance("a").claim.total_bytes >= 16 * GIB
    assert world.phase("b") == "stopped"
    world.settle()
    assert world.ends() == ["ok", "ok"]
    assert world.count("Kill", "a") >= 3
