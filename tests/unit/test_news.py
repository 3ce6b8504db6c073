"""Who waits for rows is woken by their commit, whatever others who wait do."""

import asyncio

import pytest

from scheduler.daemon.news import News
from scheduler.simulator.virtual_time import settle

pytestmark = pytest.mark.virtual_time


class Row:
    """Something that is committed at some time; ``looks`` counts who looked for it."""

    def __init__(self) -> None:
        self.there = False
        self.looks = 0

    async def found(self) -> bool:
        self.looks += 1
        seen = self.there
        await asyncio.sleep(0)  # a read of the store takes its time
        return seen


async def test_what_is_committed_during_the_look_is_seen() -> None:
    news, row = News(), Row()

    async def found() -> bool:
        seen = await row.found()
        if not row.there:
            row.there = True
            news.ring()
            await settle()
        return seen

    begun = asyncio.get_running_loop().time()
    assert await news.until(found, 60.0)
    assert asyncio.get_running_loop().time() == begun


async def test_everybody_who_waits_is_woken() -> None:
    news, row, other = News(), Row(), Row()
    waiting = [asyncio.create_task(news.until(each.found, 60.0)) for each in (row, other, row)]
    await settle()
    row.there = True
    news.ring()
    await settle()
    assert [task.done() for task in waiting] == [True, False, True]
    assert other.looks == 2  # it looked, and waits on
    other.there = True
    news.ring()
    assert await waiting[1]


async def test_nothing_came() -> None:
    begun = asyncio.get_running_loop().time()
    assert not await News().until(Row().found, 60.0)
    assert asyncio.get_running_loop().time() - begun == 60.0
