"""The only writer of the database: units of work, strictly in the order in which they were submitted.

In production a thread of its own takes whatever is queued and commits it together (one fsync for many units); in
simulation the same code runs on the loop, one unit per callback, so that virtual time stays deterministic.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection

from scheduler.domain.errors import Conflict, HotseatError
from scheduler.store.engine import Database, Mode
from scheduler.store.units import Outcome, UnitRunner

T = TypeVar("T")
MAX_GROUP = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    label: str
    work: Callable[[Connection], Any]
    future: asyncio.Future[Any]


def _nowhere(_label: str) -> None:
    """No boundary is watched."""


def _unmeasured(_seconds: float, _units: int) -> None:
    """Nobody measures commits."""


class Writer:
    """See the module. Belongs to one event loop; ``submit`` and ``close`` are called on it.

    ``on_boundary`` is called at ``before:LABEL``, ``written:LABEL`` (not yet committed) and ``committed:LABEL`` (not yet
    answered), in thread mode by the thread. An Exception from it fails the unit (at ``committed`` only its answer); any
    other BaseException is a simulated crash: the open transaction is undone, no later unit runs, every unit without an
    answer gets the crash as its exception, and ``crash`` keeps it. ``on_commit(seconds, units)`` measures commits.
    """

    def __init__(
        self,
        database: Database,
        *,
        mode: Mode | None = None,
        on_boundary: Callable[[str], None] | None = None,
        on_commit: Callable[[float, int], None] | None = None,
    ) -> None:
        self.crash: BaseException | None = None
        self._inline = (mode or database.mode) == "inline"
        self._boundary = on_boundary or _nowhere
        self._runner = UnitRunner(database.connect_writer, database.clock, self._boundary, on_commit or _unmeasured)
        self._queue: deque[_Unit] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None

    def submit(self, work: Callable[[Connection], T], label: str) -> asyncio.Future[T]:
        """Queue a unit; the future gives its value once it is committed, or its error (then it left no trace).

        ``work`` may be run a second time when a group commit failed: it must touch nothing but its connection.
        Cancelling the future does not cancel the unit. Never raises: after ``close`` the future fails with Conflict
        (``store_closed``), after a crash with the crash.
        """
        loop = asyncio.get_running_loop()
        unit = _Unit(label, work, loop.create_future())
        with self._changed:
            refusal = self.crash or (_closed() if self._closing else None)
            if refusal is None:
                self._loop = loop
                self._queue.append(unit)
                self._changed.notify()
        if refusal is not None:
            unit.future.set_exception(refusal)
        elif self._inline:
            loop.call_soon(self._step)
        elif self._thread is None:
            self._ended = loop.create_future()
            self._thread = threading.Thread(target=self._serve, name="store-write", daemon=True)
            self._thread.start()
        return unit.future

    async def close(self, drain: bool = True) -> None:
        """Finish what is queued (or refuse it, ``drain`` False; a unit at work still ends), then give the connection back."""
        with self._changed:
            refused = [] if drain else list(self._queue)
            if not drain:
                self._queue.clear()
            self._closing = True
            self._changed.notify()
        _settle([(unit, Outcome(error=_closed())) for unit in refused])
        if self._inline:
            while self._queue and self.crash is None:
                self._step()
            self._runner.close()
        elif self._thread is not None and self._ended is not None:
            await asyncio.shield(self._ended)  # a caller with no patience for a stuck disk may give up waiting
            self._thread.join()

    # --- inline: on the loop ------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self._queue and self.crash is None:
            self._run([self._queue.popleft()])
            if self.crash is not None:
                raise self.crash

    # --- thread -------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while units := self._take():
            self._run(units)
            if self.crash is not None:
                break
        self._runner.close()
        self._call(self._has_ended)

    def _has_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _take(self) -> list[_Unit]:
        """The next group, waiting for one; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._closing)
            return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_GROUP))]

    # --- both ---------------------------------------------------------------------------------------------------------

    def _run(self, units: Sequence[_Unit]) -> None:
        answers: list[tuple[_Unit, Outcome]] = []
        try:
            for unit, outcome in zip(units, self._runner.run([(unit.label, unit.work) for unit in units]), strict=True):
                answers.append((unit, self._committed(unit, outcome)))
        except Exception as error:  # noqa: BLE001 - a fault of the machinery itself: the writer lives on
            self._runner.close()
            answers += [(unit, Outcome(error=error)) for unit in units[len(answers) :]]
        except BaseException as crash:  # noqa: BLE001 - kept in self.crash; inline it is raised again by _step
            self._answer(answers)
            self._crashed(crash, units[len(answers) :])
            return
        self._answer(answers)

    def _committed(self, unit: _Unit, outcome: Outcome) -> Outcome:
        if outcome.error is None:
            try:
                self._boundary(f"committed:{unit.label}")
            except Exception as error:  # noqa: BLE001 - the answer is lost, the rows are there
                return Outcome(error=error)
        return outcome

    def _crashed(self, crash: BaseException, unanswered: Sequence[_Unit]) -> None:
        self._runner.close()
        with self._changed:
            self.crash = crash
            left = [*unanswered, *self._queue]
            self._queue.clear()
        self._call(lambda: _fail(left, crash))

    def _answer(self, answers: Sequence[tuple[_Unit, Outcome]]) -> None:
        self._call(lambda: _settle(answers))

    def _call(self, action: Callable[[], object]) -> None:
        if self._inline:
            action()
            return
        assert self._loop is not None  # set by the first submit, before the thread exists
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to be told


def _settle(answers: Sequence[tuple[_Unit, Outcome]]) -> None:
    for unit, outcome in answers:
        if unit.future.done():
            continue  # cancelled by its owner; the unit was done all the same
        if outcome.error is not None:
            unit.future.set_exception(outcome.error)
        else:
            unit.future.set_result(outcome.value)


def _fail(units: Sequence[_Unit], crash: BaseException) -> None:
    for unit in units:
        if not unit.future.done():
            unit.future.set_exception(crash)


def _closed() -> HotseatError:
    return Conflict("the database is closed: the daemon is shutting down", code="store_closed", fix="try again once it runs")
