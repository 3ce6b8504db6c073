"""Sharing one scan between callers."""

import asyncio
import threading

import pytest

from adapters.launchers.scans import SharedScans
from adapters.procfs.processes import ProcessTable


class SlowScans:
    """Scans that begin when asked and end when told."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.tables: list[ProcessTable] = []
        self.began: asyncio.Queue[int] = asyncio.Queue()
        self.may_end = threading.Semaphore(0)

    def scan(self) -> ProcessTable:
        table = ProcessTable.of((), {})
        self.tables.append(table)
        self.loop.call_soon_threadsafe(self.began.put_nowait, len(self.tables))
        assert self.may_end.acquire(timeout=10)
        return table


async def test_callers_share_a_scan_that_begins_after_them_all() -> None:
    slow = SlowScans()
    scans = SharedScans(slow.scan)
    first = asyncio.create_task(scans.table())
    assert await slow.began.get() == 1
    later = [asyncio.create_task(scans.table()) for _ in range(5)]
    await asyncio.sleep(0)
    slow.may_end.release()
    assert await slow.began.get() == 2
    slow.may_end.release()
    assert (await first) is slow.tables[0]
    assert all(table is slow.tables[1] for table in await asyncio.gather(*later))
    assert len(slow.tables) == 2


async def test_cancelled_caller_does_not_take_the_scan_from_the_others() -> None:
    slow = SlowScans()
    scans = SharedScans(slow.scan)
    blocker = asyncio.create_task(scans.table())
    await slow.began.get()
    leaving, staying = asyncio.create_task(scans.table()), asyncio.create_task(scans.table())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    slow.may_end.release(2)
    assert (await staying) is slow.tables[1]
    await blocker


async def test_failure_reaches_all_and_is_not_kept() -> None:
    outcomes: list[Exception | ProcessTable] = [OSError("no /proc"), ProcessTable.of((), {})]

    def scan() -> ProcessTable:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    scans = SharedScans(scan)
    with pytest.raises(OSError, match="no /proc"):
        await scans.table()
    assert (await scans.table()).by_pid == {}
