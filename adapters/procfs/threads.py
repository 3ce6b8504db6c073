"""Waiting in the event loop for work in a thread of our own."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def outcome_of(future: Future[T]) -> T:
    """The result of work in a thread, or its exception. Cancelling the waiter leaves the work and other waiters alone."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            pass  # the waiter was cancelled and the loop has closed since

    future.add_done_callback(wake)
    await done.wait()
    return future.result()
