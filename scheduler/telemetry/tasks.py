"""Background tasks with an owner. The only module that creates asyncio tasks (ruff bans the raw calls elsewhere).

A bare ``asyncio.create_task`` has two traps: the loop keeps only a weak reference, so a task can vanish in the middle
of its work, and an exception nobody awaits is reported when the garbage collector finds it, if ever.
"""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_live: set[asyncio.Task[Any]] = set()
_unexpected = 0


def unexpected_failures() -> int:
    """How many spawned tasks of this process ended with an exception that their owner did not announce."""
    return _unexpected


def spawn(coro: Coroutine[Any, Any, T], name: str, *, expected: tuple[type[Exception], ...] = ()) -> asyncio.Task[T]:
    """Start ``coro`` as a task of the running loop and keep it alive until it ends.

    An exception outside ``expected`` is logged with its traceback and counted, at once, even if somebody awaits the
    task as well. ``expected`` names what the awaiter handles. Needs a running loop (RuntimeError otherwise).
    """
    try:
        task = asyncio.get_running_loop().create_task(coro, name=name)
    except RuntimeError:
        coro.close()  # or Python warns about a coroutine that was never awaited and hides the cause
        raise
    _live.add(task)
    task.add_done_callback(lambda ended: _ended(ended, expected))
    return task


def _ended(task: asyncio.Task[Any], expected: tuple[type[Exception], ...]) -> None:
    global _unexpected
    _live.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if not isinstance(error, Exception) or isinstance(error, expected):  # what is no Exception ends the process anyway
        return
    _unexpected += 1
    log.error("task %s failed: %s: %s", task.get_name(), type(error).__name__, error, exc_info=error)


class TaskScope:
    """Owns a set of tasks; ``aclose`` cancels those that still run and waits for the end of all.

    Ended tasks leave the scope by themselves. Usable as an async context manager.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """Whether ``aclose`` was called: nothing can be spawned any more."""
        return self._closed

    def spawn(self, coro: Coroutine[Any, Any, T], name: str, *, expected: tuple[type[Exception], ...] = ()) -> asyncio.Task[T]:
        """As :func:`spawn`, owned by this scope. Raises RuntimeError once the scope is closed (``coro`` is closed too)."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"task scope {self.name!r} is closed; {name!r} cannot start")
        task = spawn(coro, f"{self.name}/{name}", expected=expected)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Cancel every task and wait until all have ended; idempotent. A task that closes its own scope is left out.

        A task may take its time to clean up, and what it spawns is refused. When the caller is itself cancelled while
        waiting, the tasks stay cancelled and the caller's cancellation goes on.
        """
        self._closed = True
        me = asyncio.current_task()
        while pending := {task for task in self._tasks if task is not me and not task.done()}:
            for task in pending:
                task.cancel(f"{self.name} closes")
            await asyncio.wait(pending)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
