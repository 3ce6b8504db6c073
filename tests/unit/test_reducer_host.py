"""Host memory for the copies of sleepers: claimed only where there is room, whoever decided that they sleep."""

import pytest

from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

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
