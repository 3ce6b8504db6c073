"""Rows on their way into the store: a unit of work per pass; what could not be written waits here, in order, until it can.

A pass may fail while later ones are in the writer already, so passes are numbered: an end never precedes its beginning.
"""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.domain.errors import Conflict, HotseatError, NotFound
from scheduler.domain.ids import LaunchId
from scheduler.domain.launch import LaunchRecord
from scheduler.orchestrator.effects import Effect, EndLaunch, EngineEffect, Journal, SaveInstance, SetGolden, SetVersion, Stop
from scheduler.orchestrator.events import Happening, IntentRefused, StoreFailed, StoreRecovered
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.rows import write
from scheduler.orchestrator.state import State
from scheduler.store.connection import Connection
from scheduler.telemetry.tasks import TaskScope

log = logging.getLogger(__name__)

#: Seconds between attempts to write again while the store is degraded.
RETRY_STORE_S = 2.0


@dataclass(slots=True, eq=False)
class Pass:
    """The rows of one pass of the reducer. ``unbuilt``: failed starts to report once their records are written."""

    number: int = 0
    rows: list[Effect] = field(default_factory=list)
    records: list[LaunchRecord] = field(default_factory=list)
    intents: list[Journal] = field(default_factory=list)
    engine: list[EngineEffect] = field(default_factory=list)
    unbuilt: list[Callable[[], None]] = field(default_factory=list)


class Backlog:
    """The applier's way to the store. ``post`` hears StoreFailed, IntentRefused and, once all is written, StoreRecovered."""

    def __init__(self, state: State, parts: Parts, post: Callable[[Happening], None]) -> None:
        self._state = state
        self._parts = parts
        self._post = post
        self._scope = TaskScope("backlog")
        self._waiting: list[Pass] = []
        self._under_way: set[asyncio.Future[object]] = set()
        self._given = 0
        self._catching_up = False

    async def close(self) -> None:
        """Stop catching up; what waits is lost."""
        await self._scope.aclose()

    def write(self, rows: Pass) -> "asyncio.Future[object]":
        """Hand over a pass; the future fails when it could not be written now (it is kept and written later)."""
        self._given += 1
        rows.number = self._given
        if self._waiting:
            self._keep(rows)
            refused: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            refused.set_exception(_Degraded())
            refused.exception()
            return refused
        committed: asyncio.Future[object] = self._save(rows.rows, rows.records, "+".join(sorted({_label(r) for r in rows.rows})))
        self._under_way.add(committed)
        committed.add_done_callback(lambda done: self._written(done, rows))
        return committed

    def trouble(self, error: Exception) -> None:
        """The store did not take a row: it is degraded until it has taken all that waits, and every instance as it is."""
        code, fix = getattr(error, "code", "store"), getattr(error, "fix", "")
        log.error("rows not written (%s): %s", code, error)
        self._post(StoreFailed(at_s=self._now(), code=code, message=str(error), fix=fix))
        if not self._catching_up and not self._scope.closed:
            self._catching_up = True
            self._scope.spawn(self._catch_up(), "catch-up")

    # --- internals --------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    def _save(self, rows: Sequence[Effect], records: Sequence[LaunchRecord], label: str) -> "asyncio.Future[object]":
        wall, boot = self._parts.clock.wall(), self._parts.launcher.boot_id
        todo, new = list(rows), list(records)

        def unit(conn: Connection) -> None:
            write(conn, todo, new, wall=wall, boot_id=boot)

        return self._parts.writer.submit(unit, label)

    def _written(self, done: "asyncio.Future[object]", rows: Pass) -> None:
        self._under_way.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, Exception):  # anything else is a simulated crash: nobody is left to act
            self.trouble(error)
            self._keep(rows)

    def _keep(self, rows: Pass) -> None:
        """Into the backlog, behind the passes before it, without the intents whose effect was not begun."""
        insort(self._waiting, rows, key=lambda kept: kept.number)
        stops = {(e.instance, e.seq) for e in rows.engine if isinstance(e, Stop)}  # carried out all the same
        for intent in rows.intents:
            seq, prior = intent.transition.seq, intent.prior
            if prior is None or (prior.id, seq) in stops or self._state.last_seq.get(prior.id) != seq:
                continue
            rows.rows.remove(intent)
            self._post(IntentRefused(at_s=self._now(), seq=seq, prior=prior))

    # --- catching up ------------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Try until everything that could not be written is written, with each instance as it is now."""
        try:
            while True:
                await asyncio.sleep(RETRY_STORE_S)
                if await self._attempt() and not self._waiting:
                    break
        finally:
            self._catching_up = False
        self._post(StoreRecovered(at_s=self._now()))

    async def _attempt(self) -> bool:
        if self._under_way:  # a later pass that fails belongs here too, and may refer to a record of an earlier one
            await asyncio.wait(set(self._under_way))
        taken = list(self._waiting)
        now = Pass(rows=[SaveInstance(instance=i) for i in self._state.instances.values()])
        for kept in taken:
            kept.rows = [row for row in kept.rows if not isinstance(row, SaveInstance)]  # older than ``now``
        launches = {_launch_of(row) for kept in (*taken, now) for row in kept.rows}
        for kept in taken:  # the record of a start that was taken back, and that nothing came after, is of no use
            kept.records = [record for record in kept.records if record.id in launches]
        try:
            await self._together([*taken, now])
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt must come
            log.warning("the store still does not take rows: %s", error)
            return False
        self._waiting = [kept for kept in self._waiting if kept not in taken]
        return True

    async def _together(self, passes: Sequence[Pass]) -> None:
        try:
            await self._save([row for p in passes for row in p.rows], [record for p in passes for record in p.records], "catch-up")
        except Exception as error:
            if not is_fault_of_row(error):
                raise
            # For example a row that was written after all, and only its confirmation was lost.
            log.warning("catching up row by row: %s", error)
            await self._one_by_one(passes)

    async def _one_by_one(self, passes: Sequence[Pass]) -> None:
        """What is written, or can never be, is taken out at once: a failure in the middle repeats nothing."""
        for kept in passes:
            while kept.records:
                await self._save_or_drop([], kept.records[:1])
                del kept.records[0]
            while kept.rows:
                await self._save_or_drop(kept.rows[:1], [])
                del kept.rows[0]

    async def _save_or_drop(self, rows: Sequence[Effect], records: Sequence[LaunchRecord]) -> None:
        try:
            await self._save(rows, records, "catch-up")
        except Exception as error:
            if not is_fault_of_row(error):
                raise
            log.warning("row dropped (%s): %s", _label(rows[0]) if rows else "launch record", error)


def is_fault_of_row(error: Exception) -> bool:
    """Whether this row is refused however often it is tried, as opposed to a store that takes none now."""
    if isinstance(error, HotseatError):
        return error.code == "store_error" or (isinstance(error, Conflict | NotFound) and error.code != "store_closed")
    return not isinstance(error, OSError | MemoryError)


def _launch_of(row: Effect) -> LaunchId | None:
    """The launch record that this row refers to."""
    match row:
        case Journal() | SaveInstance():
            return row.instance.launch
        case EndLaunch():
            return row.end.launch
        case SetVersion() | SetGolden():
            return row.launch
    return None


class _Degraded(Exception):
    """The rows wait behind others that could not be written."""


def _label(row: Effect) -> str:
    if isinstance(row, Journal):
        return row.transition.event
    return type(row).__name__
