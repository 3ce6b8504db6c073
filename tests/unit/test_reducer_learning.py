"""What a run teaches: sizes and times of what is configured now, and never of what it replaced."""

from dataclasses import replace

import pytest

from scheduler.domain.ids import ModelName
from scheduler.domain.learned import Learned
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.state import ModelFacts
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain

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
