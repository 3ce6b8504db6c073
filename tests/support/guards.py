"""Pytest plugin of this repository: what makes a test fail besides its own assertions, and virtual time.

* A callback that keeps an event loop from running for more than :data:`LIMIT_S` fails the test (marker ``may_block``
  opts out). One blocking call in the daemon stalls every stream of every client, and no assertion notices.
* An error in the log of our HTTP servers fails it (``may_fail_tasks``): clients' doings are none, a bug of ours is one.
* An unexpected exception in a task started with ``scheduler.telemetry.tasks.spawn`` fails it (``may_fail_tasks``).
* The marker ``virtual_time`` runs the test and its async fixtures on a :class:`VirtualLoop`.
"""

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import pytest

from scheduler.gateway.server_log import SERVER_LOG
from scheduler.simulator.virtual_time import VirtualClock, VirtualLoop
from scheduler.telemetry.tasks import unexpected_failures

#: Longest time that one callback may keep the loop, in seconds of wall clock in which the thread was not kept off a CPU.
LIMIT_S = 0.25
_REFRESH_S = 0.05


class _RunDelay:
    """Seconds this thread was ready to run but other programs had the CPU; a busy machine is not a blocked loop."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._seen_s = 0.0
        self._read_at_s = 0.0
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel without schedstats: nothing is subtracted
            self._fd = -1

    def _read_s(self) -> float:
        if self._fd < 0 or threading.get_ident() != self._thread:
            return 0.0
        return int(os.pread(self._fd, 128, 0).split()[1]) / 1e9

    def mark(self, now_s: float) -> None:
        """Remember the delay so far; a cheap no-op most of the time."""
        if now_s - self._read_at_s > _REFRESH_S:
            self._read_at_s = now_s
            self._seen_s = self._read_s()

    def since_mark_s(self) -> float:
        """Delay since the last mark that was not a no-op."""
        return self._read_s() - self._seen_s

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Collections:
    """Seconds that full garbage collections took: the heap of a test run is a hundred times that of a daemon."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._begun_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, stage: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        now_s = time.perf_counter()
        if stage == "start":
            self._begun_s = now_s
        else:
            self.total_s += now_s - self._begun_s

    def close(self) -> None:
        gc.callbacks.remove(self._note)


def _describe(handle: asyncio.Handle) -> str:
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coro = owner.get_coro()
        return f"task {owner.get_name()!r} ({getattr(coro, '__qualname__', coro)})"
    return f"callback {getattr(callback, '__qualname__', callback)}"


@contextmanager
def blocked_callbacks(limit_s: float = LIMIT_S) -> Generator[list[str]]:
    """Collect a sentence for every callback, of any loop of this process, that ran longer than ``limit_s``."""
    found: list[str] = []
    delay, collections = _RunDelay(), _Collections()
    original = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        start_s, collected_s = time.perf_counter(), collections.total_s
        delay.mark(start_s)
        original(handle)
        took_s = time.perf_counter() - start_s
        if took_s > limit_s:
            own_s = took_s - delay.since_mark_s() - (collections.total_s - collected_s)
            if own_s > limit_s:
                found.append(f"{_describe(handle)} kept the event loop for {own_s:.2f} s")

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]
        delay.close()
        collections.close()


class _ServerErrors(logging.Handler):
    """Collects what our HTTP servers log as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


@contextmanager
def _server_errors() -> Generator[list[str]]:
    handler = _ServerErrors()
    SERVER_LOG.addHandler(handler)
    try:
        yield handler.found
    finally:
        SERVER_LOG.removeHandler(handler)


def _guarded(item: pytest.Item) -> Generator[None, object, object]:
    failures = unexpected_failures()
    with blocked_callbacks() as blocked, _server_errors() as server_errors:
        result = yield
    if blocked and item.get_closest_marker("may_block") is None:
        pytest.fail(f"{'; '.join(blocked)} (limit {LIMIT_S} s): move the work to a thread or cut it into pieces", pytrace=False)
    if server_errors and item.get_closest_marker("may_fail_tasks") is None:
        pytest.fail(f"an HTTP server of ours logged: {'; '.join(server_errors)}; see the captured log", pytrace=False)
    failed = unexpected_failures() - failures
    if failed and item.get_closest_marker("may_fail_tasks") is None:
        pytest.fail(f"{failed} spawned task(s) ended with an unexpected exception; see the captured log", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Guard async fixtures on their way in."""
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Guard the test itself."""
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Guard async fixtures on their way out."""
    return (yield from _guarded(item))


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of a test: virtual when marked so, else asyncio's own."""
    return {"virtual": VirtualLoop} if item.get_closest_marker("virtual_time") else {"real": asyncio.new_event_loop}


@pytest.fixture
async def virtual_clock() -> VirtualClock:
    """The clock of a ``virtual_time`` test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "mark the test with virtual_time"
    return VirtualClock(loop)
