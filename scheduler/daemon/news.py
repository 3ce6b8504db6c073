"""Tells those who wait for rows that something was committed; what it was, each of them looks up."""

import asyncio
from collections.abc import Awaitable, Callable


class News:
    """Belongs to one event loop: made there, :meth:`ring` from any thread, :meth:`until` on the loop.

    Each ring wakes all who began to wait before it, and only them: nobody can take another's wake-up away.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = asyncio.Event()

    def ring(self) -> None:
        """Rows are committed, and to be seen by who reads now."""
        try:
            self._loop.call_soon_threadsafe(self._rung)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _rung(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, found: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        """Look now and after every ring; True once ``found`` says so, False after ``seconds``."""
        end = self._loop.time() + seconds
        while True:
            coming = self._next  # taken before the look: what is committed during it rings this one
            if await found():
                return True
            try:
                async with asyncio.timeout_at(end):
                    await coming.wait()
            except TimeoutError:
                return False
