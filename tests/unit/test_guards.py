"""The guards catch what they are for: each case is a test that must fail, run by a pytest inside this one."""

import pytest

PRELUDE = """
import asyncio, time
import pytest
from scheduler.telemetry.tasks import spawn

def compute():
    end = time.thread_time() + 0.35
    while time.thread_time() < end:
        pass
"""


@pytest.fixture
def inner(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["tests.support.guards"]')
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
        "markers =\n  may_block\n  may_fail_tasks\n  virtual_time\n"
    )
    return pytester


def outcome(inner: pytest.Pytester, body: str) -> tuple[dict[str, int], str]:
    inner.makepyfile(PRELUDE + body)
    result = inner.runpytest_inprocess("-p", "no:cacheprovider")
    return result.parseoutcomes(), result.stdout.str()


@pytest.mark.may_block
@pytest.mark.parametrize("blocker", ["time.sleep(0.35)", "compute()"], ids=["sleeping", "computing"])
def test_a_test_that_blocks_the_loop_fails(inner: pytest.Pytester, blocker: str) -> None:
    outcomes, text = outcome(inner, f"async def test_it():\n    {blocker}\n")
    assert outcomes == {"failed": 1}
    assert "kept the event loop for" in text
    assert "(test_it)" in text


@pytest.mark.may_block
def test_a_blocker_in_a_background_task_is_named(inner: pytest.Pytester) -> None:
    body = "async def bad():\n    time.sleep(0.35)\nasync def test_it():\n    await spawn(bad(), 'poller')\n"
    outcomes, text = outcome(inner, body)
    assert outcomes == {"failed": 1}
    assert "task 'poller' (bad)" in text


@pytest.mark.may_block
def test_a_blocker_in_an_async_fixture_is_an_error(inner: pytest.Pytester) -> None:
    body = "@pytest.fixture\nasync def slow():\n    time.sleep(0.35)\nasync def test_it(slow):\n    pass\n"
    outcomes, _ = outcome(inner, body)
    assert outcomes == {"errors": 1}


@pytest.mark.may_block
def test_blocking_is_allowed_by_marker_in_threads_and_in_plain_tests(inner: pytest.Pytester) -> None:
    body = """
@pytest.mark.may_block
async def test_marked():
    time.sleep(0.35)
async def test_in_a_thread():
    await asyncio.to_thread(time.sleep, 0.35)
async def test_waiting():
    await asyncio.sleep(0.35)
def test_plain():
    time.sleep(0.35)
"""
    assert outcome(inner, body)[0] == {"passed": 4}


@pytest.mark.may_fail_tasks
def test_an_unexpected_task_failure_fails_the_test(inner: pytest.Pytester) -> None:
    body = """
async def bad():
    raise ValueError("boom")
async def test_unseen():
    task = spawn(bad(), "bad")
    await asyncio.wait([task])
@pytest.mark.may_fail_tasks
async def test_marked():
    await asyncio.wait([spawn(bad(), "bad")])
async def test_expected():
    with pytest.raises(ValueError):
        await spawn(bad(), "bad", expected=(ValueError,))
"""
    outcomes, text = outcome(inner, body)
    assert outcomes == {"failed": 1, "passed": 2}
    assert "task bad failed: ValueError: boom" in text


def test_virtual_time_is_chosen_by_marker(inner: pytest.Pytester) -> None:
    body = """
from scheduler.simulator.virtual_time import VirtualLoop
@pytest.mark.virtual_time
async def test_virtual(virtual_clock):
    await asyncio.sleep(86_400)
    assert virtual_clock.monotonic() == 86_400
async def test_real():
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
async def test_clock_without_marker(virtual_clock):
    pass
"""
    outcomes, text = outcome(inner, body)
    assert outcomes == {"passed": 2, "errors": 1}
    assert "mark the test with virtual_time" in text
