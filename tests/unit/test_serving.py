"""When chat counts as servable: for as long as somebody's request would be answered."""

import pytest

from scheduler.daemon.serving import can_serve, why_none
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain

SLEEPER = Behaviour(awake_bytes=4 * GIB, levels=(1,), residue_bytes={1: GIB})
DEVICES = {"gpu0": 24, "gpu1": 24}
STALE_AFTER_S = 10.0


def house() -> Plain:
    return Plain(DEVICES, a=SLEEPER, b=SLEEPER, host_limit_bytes=8 * GIB)


def blind(world: Plain, *devices: str) -> None:
    """Nobody can measure these devices any more."""
    world.unreadable |= {info.id for info in world.infos if info.id in devices}
    world.run(STALE_AFTER_S)


def test_without_models_there_is_nothing_to_wait_for() -> None:
    assert can_serve(Plain({"gpu0": 24}).state)
    assert can_serve(Plain({}).state)


def test_a_model_that_could_be_started_is_enough() -> None:
    assert can_serve(house().state)


def test_without_a_device_nothing_can_be_started() -> None:
    assert not can_serve(Plain({}, a=SLEEPER).state)


def test_why_no_model_serves_is_told_of_each() -> None:
    """One is too large, one failed for good, one may wait for its device, one is awake."""
    gone = Behaviour(awake_bytes=GIB, fails_always=StartFailure(code=Code.MODEL_MISSING))
    world = Plain({"gpu0": 24}, large=Behaviour(awake_bytes=40 * GIB), gone=gone, waits=SLEEPER, up=SLEEPER)
    world.ask("gone")
    world.ask("up")
    world.settle()
    blind(world, "gpu0")
    why = dict(why_none(world.state))
    assert {model: reason.code for model, reason in why.items()} == {"large": Code.DOES_NOT_FIT, "gone": Code.MODEL_MISSING}
    assert "40.0 GiB" in why[ModelName("large")].text


def test_nothing_can_be_started_where_nothing_is_measured() -> None:
    world = house()
    blind(world, "gpu0")
    assert can_serve(world.state)
    blind(world, "gpu1")
    assert not can_serve(world.state)
    world.unreadable.clear()
    world.run(STALE_AFTER_S)
    assert can_serve(world.state)


@pytest.mark.parametrize(("phase", "serves"), [("awake", True), ("asleep", False)])
def test_with_every_device_stale_awake_models_serve_and_sleeping_ones_cannot_be_woken(phase: str, serves: bool) -> None:
    world = house()
    world.ask("a")
    world.settle()
    if phase == "asleep":
        world.order("sleep", "a", level=1)
        world.settle()
    blind(world, *DEVICES)
    assert world.phase("a") == phase
    assert can_serve(world.state) == serves


def test_an_awake_model_serves_while_the_database_takes_no_rows() -> None:
    world = house()
    world.break_store()
    world.ask("b")
    world.run(1)
    assert not world.state.store_ok
    assert not can_serve(world.state)
    world.mend_store()
    world.run(10)
    world.ask("a")
    world.settle()
    world.break_store()
    world.ask("b")
    world.run(1)
    assert can_serve(world.state)


@pytest.mark.parametrize(
    ("bytes_", "fields"),
    [
        (GIB, {"enabled": False}),
        (30 * GIB, {}),
        (GIB, {"devices": DeviceWish(ids=(DeviceId("gpu1"),))}),
        (GIB, {"devices": DeviceWish(kind="cpu")}),
    ],
    ids=["disabled", "too large", "its device is stale", "no such device"],
)
def test_a_model_that_nobody_can_start_does_not_count(bytes_: int, fields: dict[str, object]) -> None:
    world = Plain(DEVICES, a=Behaviour(awake_bytes=bytes_), specs={"a": fields})
    blind(world, "gpu1")
    assert not can_serve(world.state)


def test_a_model_that_failed_counts_again_when_a_request_may_try_it() -> None:
    broken = Behaviour(fails_always=StartFailure(code=Code.CRASHED, after_s=1.0, text="pretended"), awake_bytes=GIB)
    world = Plain({"gpu0": 24}, a=broken)
    assert can_serve(world.state)
    world.ask("a")
    world.settle()
    assert world.phase("a") == "failed"
    assert not can_serve(world.state)
    world.run(900)
    assert can_serve(world.state)
