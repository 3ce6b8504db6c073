"""Tasks with an owner."""

import asyncio
import gc
import logging
import weakref

import pytest

from scheduler.simulator.virtual_time import elapse, settle
from scheduler.telemetry.tasks import TaskScope, spawn, unexpected_failures


async def boom() -> None:
    raise ValueError("boom")


async def for_ever(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append("cleaned up")


@pytest.mark.virtual_time
@pytest.mark.may_block  # a whole collection takes its time
async def test_a_spawned_task_outlives_the_garbage_collector() -> None:
    done: list[str] = []
    events: list[weakref.ref[asyncio.Event]] = []

    async def work() -> None:
        # Only this frame refers to the event, and only the event refers to the task: a cycle the collector may take.
        event = asyncio.Event()
        events.append(weakref.ref(event))
        await event.wait()
        done.append("ok")

    spawn(work(), "work")
    await settle()
    gc.collect(1)  # what is young; the whole heap of a test run would hold the loop up
    event = events[0]()
    assert event is not None
    event.set()
    await settle()
    assert done == ["ok"]


@pytest.mark.virtual_time
@pytest.mark.may_fail_tasks
async def test_an_unexpected_exception_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    before = unexpected_failures()
    spawn(boom(), "fragile")
    await settle()
    assert unexpected_failures() == before + 1
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "task fragile failed: ValueError: boom")
    assert record.exc_info is not None


@pytest.mark.virtual_time
async def test_an_expected_exception_reaches_the_awaiter_only(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="boom"):
        await spawn(boom(), "fragile", expected=(ValueError,))
    assert caplog.records == []


@pytest.mark.virtual_time
async def test_cancelling_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    task = spawn(for_ever(log), "waiter")
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert log == ["cleaned up"]
    assert caplog.records == []


def test_spawn_needs_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        spawn(boom(), "nowhere")


@pytest.mark.virtual_time
async def test_closing_a_scope_cancels_and_awaits_all() -> None:
    log: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await elapse(3)
            log.append("slow")

    async with TaskScope("rooms") as scope:
        scope.spawn(for_ever(log), "a")
        scope.spawn(slow_to_end(), "b")
        quick = scope.spawn(asyncio.sleep(0, "value"), "c")
        assert quick.get_name() == "rooms/c"
        await settle()
        assert quick.result() == "value"
        assert len(scope) == 2
    assert log == ["cleaned up", "slow"]
    assert len(scope) == 0
    assert asyncio.get_running_loop().time() == 3


@pytest.mark.virtual_time
async def test_a_closed_scope_refuses_new_tasks_also_from_its_own() -> None:
    scope = TaskScope("rooms")
    refused: list[str] = []

    async def respawns() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                scope.spawn(asyncio.sleep(0), "again")
            except RuntimeError as error:
                refused.append(str(error))

    scope.spawn(respawns(), "a")
    await settle()
    await scope.aclose()
    assert refused == ["task scope 'rooms' is closed; 'again' cannot start"]
    with pytest.raises(RuntimeError, match="is closed"):
        scope.spawn(asyncio.sleep(0), "late")
    await scope.aclose()


@pytest.mark.virtual_time
async def test_a_task_may_close_the_scope_it_lives_in() -> None:
    scope = TaskScope("rooms")
    log: list[str] = []
    scope.spawn(for_ever(log), "other")
    await settle()
    closer = scope.spawn(scope.aclose(), "closer")
    await closer
    assert log == ["cleaned up"]
