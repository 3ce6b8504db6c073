"""Waiting in the event loop for work in a thread of our own."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class LoneThread:
    """Does work one after another in one thread, which begins with the first and ends with this object.

    Other than an executor's, the thread does not keep the process from ending: a call into a driver may never return.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        weakref.finalize(self, self._work.put, None)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work. A future that is cancelled before its turn came is passed over."""
        future: Future[T] = Future()

        def do() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)

        self._work.put(do)
        if not self._begun:
            self._begun = True
            threading.Thread(target=_serve, args=(self._work,), name=self._name, daemon=True).start()
        return future


def _serve(queue: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (do := queue.get()) is not None:
        do()
        del do  # else the last work, and all it refers to, lives as long as the thread waits


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
