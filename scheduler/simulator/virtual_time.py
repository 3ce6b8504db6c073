"""An event loop whose clock jumps: timing logic runs at once, and in the same order every time.

Time advances only when nothing is ready to run and no *foreign work* is outstanding. Foreign work is whatever ends by
itself outside the loop: a thread, a child process, a socket. The loop cannot see it, so it must be announced
(:meth:`VirtualLoop.foreign_work`, :meth:`VirtualLoop.begin_foreign`); what goes through ``run_in_executor`` or
``asyncio.to_thread`` is announced by the loop itself. With nothing ready, no timer and no foreign work left, the loop
raises :class:`Deadlock` instead of waiting for ever.
"""

import asyncio
import contextlib
import math
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: Real seconds that foreign work may take before the loop gives up on it.
FOREIGN_LIMIT_S = 60.0
#: Wall clock of virtual second 0: Monday 2026-01-05 00:00 UTC, so that windows and schedules are easy to reckon with.
EPOCH_S = 1_767_571_200.0


class Deadlock(RuntimeError):
    """Nothing can ever happen again on this loop, yet it was told to run; the message says which task waits where."""


class ForeignWorkStalled(RuntimeError):
    """Announced foreign work did not end within its limit of real time; the message names it."""


class _JumpingSelector(selectors.DefaultSelector):
    """Where a real loop would let time pass, it asks the virtual one what to do."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # What has arrived already (a thread's call_soon_threadsafe, a socket) comes before any jump.
        found = super().select(0)
        if found or timeout == 0:
            return found
        limit_s = self.loop.next_instant()
        if limit_s is None:
            return []
        found = super().select(limit_s)
        if not found:
            self.loop.give_up_on_foreign_work()
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. ``start_s`` is the first value of ``time()``."""

    def __init__(self, start_s: float = 0.0, foreign_limit_s: float = FOREIGN_LIMIT_S) -> None:
        self._now_s = start_s
        self._foreign: dict[int, str] = {}
        self._foreign_count = 0
        self._foreign_limit_s = foreign_limit_s
        self._settling: list[asyncio.Future[None]] = []
        self._executor: ThreadPoolExecutor | None = None
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = math.ulp(start_s)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    # --- time ----------------------------------------------------------------------------------------------------

    def next_instant(self) -> float | None:
        """Nothing is ready: jump to the next timer (None), or tell how many real seconds to wait for foreign work."""
        if self._foreign:
            return self._foreign_limit_s
        if self._settling:
            for waiter in self._settling:
                if not waiter.done():
                    waiter.set_result(None)
            self._settling.clear()
            return None
        timers = self._scheduled  # type: ignore[attr-defined]  # private, but a jump by a computed difference would round
        if not timers:
            raise Deadlock(self._who_waits())
        self._now_s = max(self._now_s, timers[0].when())
        # The base class fires timers up to one resolution early. Here a timer's callback never sees a time before it.
        self._clock_resolution = math.ulp(self._now_s)
        return None

    async def settled(self) -> None:
        """Return when everything that can happen at the present instant has happened; time stands still meanwhile."""
        waiter: asyncio.Future[None] = self.create_future()
        self._settling.append(waiter)
        await waiter

    # --- foreign work --------------------------------------------------------------------------------------------

    def begin_foreign(self, what: str) -> Callable[[], None]:
        """Announce work outside the loop: time stands still until the returned function was called.

        That function may be called from any thread, more than once, and after the loop was closed. Call it after the
        result was handed to the loop (``call_soon_threadsafe``): both arrive in that order.
        """
        self._foreign_count += 1
        ident = self._foreign_count
        self._foreign[ident] = what

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.call_soon_threadsafe(self._foreign.pop, ident, None)

        return end

    @contextlib.contextmanager
    def foreign_work(self, what: str) -> Iterator[None]:
        """As :meth:`begin_foreign`, around a block that awaits the foreign result."""
        end = self.begin_foreign(what)
        try:
            yield
        finally:
            end()

    def give_up_on_foreign_work(self) -> None:
        """Raise ForeignWorkStalled."""
        names = ", ".join(sorted(self._foreign.values()))
        raise ForeignWorkStalled(f"foreign work did not end within {self._foreign_limit_s:g} s of real time: {names}")

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """As in asyncio, announced as foreign work until the call really ended, even if its future was cancelled."""
        if executor is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(thread_name_prefix="virtual")
                self.set_default_executor(self._executor)  # so that asyncio shuts it down
            executor = self._executor
        end = self.begin_foreign(f"thread call of {getattr(func, '__qualname__', func)!s}")
        try:
            call: Future[T] = executor.submit(func, *args)
        except BaseException:
            end()
            raise
        future = asyncio.wrap_future(call, loop=self)
        call.add_done_callback(lambda _: end())
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As in asyncio; joins threads, which is foreign work."""
        with self.foreign_work("shutdown of the thread pool"):
            await super().shutdown_default_executor(*args, **kwargs)

    # --- explanation ---------------------------------------------------------------------------------------------

    def _who_waits(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        waiting = "\n".join(f"  {task.get_name()} at {_where(task)}" for task in tasks) or "  (no task)"
        return (
            f"virtual time stands at {self._now_s:g} s: nothing is ready, no timer is set and no foreign work is announced, "
            f"so these tasks wait for ever:\n{waiting}\n"
            "If one of them waits for a thread, a process or a socket, announce it with foreign_work()."
        )


def _where(task: asyncio.Task[Any]) -> str:
    """File and line of the innermost frame that ``task`` waits in."""
    place = "?"
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None:
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None) or getattr(inner, "ag_await", None)
    return place


class VirtualClock:
    """The loop's time as a :class:`scheduler.ports.clock.Clock`; ``wall`` is ``epoch_s`` plus the virtual seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_s: float = EPOCH_S) -> None:
        self._loop = loop
        self._epoch_s = epoch_s

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def wall(self) -> float:
        """POSIX seconds, UTC."""
        return self._epoch_s + self._loop.time()


async def elapse(seconds: float) -> None:
    """Let virtual time pass. Raises RuntimeError on a real loop, where it would be a sleep."""
    if not isinstance(asyncio.get_running_loop(), VirtualLoop):
        raise RuntimeError("elapse() needs a virtual loop; on a real one wait for the event itself")
    await asyncio.sleep(seconds)


async def settle() -> None:
    """Let everything that is ready happen, without letting virtual time pass. Raises RuntimeError on a real loop."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("settle() needs a virtual loop; on a real one wait for the event itself")
    await loop.settled()


def run_virtual(coro: Coroutine[Any, Any, T], *, start_s: float = 0.0) -> T:
    """Run ``coro`` to its end on a virtual loop of its own, then cancel what it left behind."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start_s)) as runner:
        return runner.run(coro)
