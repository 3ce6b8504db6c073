"""Units of work in transactions on the one writing connection. Knows nothing of threads, loops and futures."""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RootTransaction
from sqlalchemy.exc import DBAPIError

from scheduler.domain.errors import HotseatError
from scheduler.ports.clock import Clock
from scheduler.store.failures import LOSES_TRANSACTION, REFUSES_ALL, transaction_lost, translate

log = logging.getLogger(__name__)

Work = Callable[[Connection], Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a unit: a value that is committed, or the error that left no trace in the database."""

    value: Any = None
    error: Exception | None = None


class _Lost(Exception):
    """The transaction is gone, or must be given up; every unit in it counts as not done."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class UnitRunner:
    """Runs groups of labelled units, each group in one transaction, and survives the failure of any of them.

    ``boundary`` is told ``before:LABEL`` and ``written:LABEL`` (inside the transaction, nothing committed yet); an
    Exception from it fails that unit. ``on_commit`` is told seconds and number of units of each commit.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        clock: Clock,
        boundary: Callable[[str], None],
        on_commit: Callable[[float, int], None],
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._boundary = boundary
        self._on_commit = on_commit
        self._connection: Connection | None = None

    def run(self, units: Sequence[tuple[str, Work]]) -> Iterator[Outcome]:
        """The outcomes of ``units`` in their order, each given only once it is final.

        A group whose transaction is lost is run again unit by unit, so that a bad unit fails alone.
        """
        try:
            outcomes = self._transact(units)
        except _Lost as lost:
            if len(units) == 1 or getattr(lost.error, "code", "") in REFUSES_ALL:
                yield from [Outcome(error=lost.error) for _ in units]
            else:
                for unit in units:
                    yield from self.run([unit])
        else:
            yield from outcomes

    def close(self) -> None:
        """Give the connection back; what is not committed is undone. The next unit opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except (DBAPIError, sqlite3.Error):
                connection.invalidate()  # it was broken already, which is why it is being closed

    def _transact(self, units: Sequence[tuple[str, Work]]) -> list[Outcome]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            transaction = connection.begin()
        except (HotseatError, DBAPIError, sqlite3.Error) as error:
            self.close()
            raise _Lost(translate(error)) from error
        try:
            outcomes = [self._run_unit(connection, unit, alone=len(units) == 1) for unit in units]
            started_s = self._clock.monotonic()
            transaction.commit()
        except _Lost as lost:
            self._undo(transaction, lost.error)
            raise
        except (DBAPIError, sqlite3.Error) as error:
            self.close()
            raise _Lost(translate(error)) from error
        except BaseException:  # a simulated crash: as after kill -9, nothing of this transaction stays
            self.close()
            raise
        self._measured(self._clock.monotonic() - started_s, sum(outcome.error is None for outcome in outcomes))
        return outcomes

    def _undo(self, transaction: RootTransaction, error: Exception) -> None:
        """Roll back; after a failure of the file itself go on with a new connection."""
        try:
            if getattr(error, "code", "") in LOSES_TRANSACTION:
                self.close()
            else:
                transaction.rollback()
        except (DBAPIError, sqlite3.Error):
            self.close()

    def _measured(self, seconds: float, units: int) -> None:
        try:
            self._on_commit(seconds, units)
        except Exception:  # the units are committed: a fault of the observer must not turn them into failures
            log.exception("the observer of commits failed")

    def _run_unit(self, connection: Connection, unit: tuple[str, Work], *, alone: bool) -> Outcome:
        label, work = unit
        savepoint = None
        try:
            self._boundary(f"before:{label}")
            savepoint = None if alone else connection.begin_nested()
            value = work(connection)
            self._boundary(f"written:{label}")
            if not _alive(connection):  # the unit swallowed the failure of its last statement
                raise transaction_lost()
            if savepoint is not None:
                savepoint.commit()
        except Exception as raised:  # whatever a unit raises belongs to whoever submitted it
            # A StopIteration cannot be the exception of a future.
            error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else translate(raised)
            if alone or getattr(error, "code", "") in LOSES_TRANSACTION or not _alive(connection):
                raise _Lost(error) from raised
            if savepoint is not None:
                savepoint.rollback()
            return Outcome(error=error)
        return Outcome(value=value)


def _alive(connection: Connection) -> bool:
    driver = connection.connection.driver_connection
    return isinstance(driver, sqlite3.Connection) and driver.in_transaction
