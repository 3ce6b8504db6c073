"""Which effects wait for their row, for how long, and what becomes of them when it does not come."""

import asyncio

import pytest

from scheduler.domain.ids import DeviceId, InstanceId, LaunchId
from scheduler.orchestrator.effects import CheckNow, EngineEffect, Find, Sleep, Stop, Wake, WatchIdle
from scheduler.orchestrator.executor import ROW_PATIENCE_S, Executor
from scheduler.simulator.virtual_time import elapse

pytestmark = pytest.mark.virtual_time
IID, LAUNCH, DEVICES = InstanceId("a#0"), LaunchId(1), (DeviceId("gpu0"),)
WAKE = Wake(instance=IID, launch=LAUNCH, seq=5, level=1, timeout_s=1.0)
SLEEP = Sleep(instance=IID, launch=LAUNCH, seq=5, level=1, timeout_s=1.0)
STOP = Stop(instance=IID, launch=LAUNCH, seq=6, kill=True)
FIND = Find(instance=IID, launch=LAUNCH, seq=6, started_before=False)
IDLE = WatchIdle(instance=IID, launch=LAUNCH, seq=6)
CHECK = CheckNow(instance=IID, launch=LAUNCH, seq=6)


class Lanes:
    """An executor and what it carried out; every row waits until the test decides."""

    def __init__(self) -> None:
        self.done: list[EngineEffect] = []
        self.executor = Executor(self._carry_out)

    async def _carry_out(self, effect: EngineEffect) -> None:
        self.done.append(effect)

    def submit(self, effect: EngineEffect) -> "asyncio.Future[object]":
        row: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.executor.submit(effect, DEVICES, asyncio.shield(row))
        return row


@pytest.mark.parametrize("effect", [STOP, FIND, IDLE, CHECK])
async def test_a_stop_and_a_look_need_no_row(effect: EngineEffect) -> None:
    lanes = Lanes()
    lanes.submit(effect).set_exception(OSError("the disk is full"))
    await elapse(0.1)
    assert lanes.done == [effect]


@pytest.mark.parametrize("effect", [STOP, FIND, IDLE, CHECK])
async def test_a_stop_and_a_look_wait_a_moment_for_a_stuck_row(effect: EngineEffect) -> None:
    lanes = Lanes()
    row = lanes.submit(effect)
    await elapse(ROW_PATIENCE_S / 2)
    assert lanes.done == []
    await elapse(ROW_PATIENCE_S)
    assert lanes.done == [effect]
    row.set_result(None)
    await elapse(1.0)
    assert lanes.done == [effect]


@pytest.mark.parametrize("effect", [WAKE, SLEEP])
async def test_what_changes_an_engine_needs_its_row(effect: EngineEffect) -> None:
    lanes = Lanes()
    failing, waiting = lanes.submit(effect), lanes.submit(effect)
    failing.set_exception(OSError("the disk is full"))
    await elapse(10 * ROW_PATIENCE_S)
    assert lanes.done == []
    waiting.set_result(None)
    await elapse(0.1)
    assert lanes.done == [effect]


@pytest.mark.parametrize("late", [WAKE, SLEEP])
@pytest.mark.parametrize("newer", [STOP, FIND])
async def test_a_row_that_came_too_late_begins_nothing(late: EngineEffect, newer: EngineEffect) -> None:
    """The engine was stopped or looked at since: what is known of it now does not come from before that."""
    lanes = Lanes()
    rows = [lanes.submit(late), lanes.submit(newer)]
    await elapse(2 * ROW_PATIENCE_S)
    for row in rows:
        row.set_result(None)
    await elapse(0.1)
    assert lanes.done == [newer]
