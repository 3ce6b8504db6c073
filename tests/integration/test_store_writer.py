"""The writer: order, isolation of failures, group commit, crashes; the same suite in a thread and inline."""

import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from scheduler.domain.errors import Conflict, Permanent, Temporary
from scheduler.store.engine import Database, Mode, open_database
from scheduler.store.events import append_event, list_events
from scheduler.store.instances import save_instance
from scheduler.store.meta import set_meta
from scheduler.store.writer import Writer
from tests.support.store_records import BOOT, StillClock, instance


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", ["thread", "inline"])


@pytest.fixture
def database(tmp_path: Path, mode: Mode) -> Iterator[Database]:
    opened = open_database(tmp_path / "hotseat.db", clock=StillClock(), mode=mode, durable=False)
    yield opened
    opened.close()


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[Writer]:
    opened = Writer(database)
    yield opened
    await opened.close()


def note(word: str) -> Callable[[Connection], int]:
    """A unit that writes one event."""
    return lambda conn: append_event(conn, at=1.0, kind="note", subject="", message=word)


def note_and_fail(word: str) -> Callable[[Connection], int]:
    def work(conn: Connection) -> int:
        note(word)(conn)
        raise ValueError(word)

    return work


def note_and_fail_at_commit(word: str) -> Callable[[Connection], int]:
    """A unit whose fault SQLite sees only at COMMIT: a reference to nothing, checked late."""

    def work(conn: Connection) -> int:
        conn.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        save_instance(conn, instance(f"unregistered-{word}#0"), BOOT)
        return note(word)(conn)

    return work


async def words(database: Database) -> list[str]:
    return await database.read(lambda conn: [event.message for event in list_events(conn, limit=1000)])


class Gate:
    """A unit that holds up the writer's thread until opened, so that what is submitted meanwhile makes one group.

    Inline there is no thread to hold up, and no groups: it does nothing.
    """

    def __init__(self, writer: Writer, database: Database) -> None:
        self._open, self._begun = threading.Event(), threading.Event()
        self._thread = database.mode == "thread"
        self.future = writer.submit(self._work, "gate")

    def _work(self, _: Connection) -> None:
        self._begun.set()
        assert not self._thread or self._open.wait(30)

    async def begun(self) -> None:
        if self._thread:
            assert await asyncio.to_thread(self._begun.wait, 30)

    def open(self) -> None:
        self._open.set()


# --- order and isolation --------------------------------------------------------------------------------------------


async def test_units_run_in_order_and_are_read_back(database: Database, writer: Writer) -> None:
    answers = await asyncio.gather(*(writer.submit(note(str(n)), "note") for n in range(20)))
    assert answers == sorted(answers)
    assert await words(database) == [str(n) for n in range(20)]


async def test_a_failed_unit_leaves_no_trace_and_the_next_one_runs(database: Database, writer: Writer) -> None:
    first, second, third = writer.submit(note("1"), "a"), writer.submit(note_and_fail("2"), "b"), writer.submit(note("3"), "c")
    await asyncio.gather(first, third)
    with pytest.raises(ValueError, match="2"):
        await second
    assert await words(database) == ["1", "3"]


async def test_a_broken_rule_comes_back_as_a_conflict(database: Database, writer: Writer) -> None:
    with pytest.raises(Conflict, match="FOREIGN KEY") as refused:
        await writer.submit(lambda conn: save_instance(conn, instance("unregistered#0"), BOOT), "row")
    assert refused.value.code == "store_constraint"
    with pytest.raises(Conflict, match="FOREIGN KEY"):
        await writer.submit(note_and_fail_at_commit("x"), "late")
    await writer.submit(note("after"), "note")
    assert await words(database) == ["after"]


async def test_a_fault_of_ours_names_itself(writer: Writer) -> None:
    with pytest.raises(Permanent, match="no such table") as failed:
        await writer.submit(lambda conn: conn.execute(text("SELECT * FROM nowhere")), "wrong")
    assert failed.value.code == "store_error"


async def test_a_unit_that_ends_its_transaction_is_refused(database: Database, writer: Writer) -> None:
    def work(conn: Connection) -> None:
        conn.exec_driver_sql("ROLLBACK")
        note("autocommitted")(conn)

    with pytest.raises(Temporary, match="rolled back") as failed:
        await writer.submit(work, "bad")
    assert failed.value.code == "store_io"
    await writer.submit(note("after"), "note")
    assert await words(database) == ["after"]


async def test_a_stop_iteration_does_not_hang_anybody(writer: Writer) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await writer.submit(lambda _: next(iter([])), "empty")


async def test_a_cancelled_future_does_not_cancel_the_unit(database: Database, writer: Writer) -> None:
    future = writer.submit(note("1"), "a")
    future.cancel()
    await writer.submit(note("2"), "b")
    assert await words(database) == ["1", "2"]


async def test_a_second_writer_outside_is_waited_for_then_named(database: Database, writer: Writer) -> None:
    await writer.submit(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout = 20"), "impatient")
    stranger = sqlite3.connect(database.path, isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with pytest.raises(Temporary) as failed:
        await writer.submit(note("1"), "a")
    assert failed.value.code == "store_busy"
    assert failed.value.retry_after_s > 0
    stranger.execute("ROLLBACK")
    stranger.close()
    await writer.submit(note("2"), "b")
    assert await words(database) == ["2"]


# --- groups ---------------------------------------------------------------------------------------------------------


async def grouped(database: Database, units: list[Callable[[Connection], Any]]) -> tuple[list[Any], list[int]]:
    """Submit ``units`` while the writer is held up; returns the outcomes, and the units of each commit after the first."""
    commits: list[int] = []
    writer = Writer(database, on_commit=lambda _seconds, units: commits.append(units))
    gate = Gate(writer, database)
    await gate.begun()
    futures = [writer.submit(unit, "unit") for unit in units]
    gate.open()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    await writer.close()
    return outcomes, commits[1:]


async def test_what_queues_up_is_committed_together(database: Database) -> None:
    outcomes, commits = await grouped(database, [note(str(n)) for n in range(300)])
    assert outcomes == sorted(outcomes)
    assert len(await words(database)) == 300
    assert sum(commits) == 300
    assert len(commits) == (2 if database.mode == "thread" else 300)


async def test_one_bad_unit_in_a_group_fails_alone(database: Database) -> None:
    outcomes, commits = await grouped(database, [note("1"), note_and_fail("2"), note("3")])
    assert isinstance(outcomes[1], ValueError)
    assert await words(database) == ["1", "3"]
    assert commits == ([2] if database.mode == "thread" else [1, 1])


async def test_when_the_commit_of_a_group_fails_each_unit_is_tried_alone(database: Database) -> None:
    outcomes, commits = await grouped(database, [note("1"), note_and_fail_at_commit("2"), note("3"), note_and_fail("4"), note("5")])
    assert await words(database) == ["1", "3", "5"]
    assert [type(outcome) for outcome in outcomes] == [int, Conflict, int, ValueError, int]
    assert commits == [1, 1, 1]


async def test_a_group_that_finds_the_database_busy_fails_as_one(database: Database) -> None:
    stranger = sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)

    def boundary(name: str) -> None:
        if name == "committed:gate":  # between two transactions of the writer, in whose thread this runs
            stranger.execute("BEGIN IMMEDIATE")

    writer = Writer(database, on_boundary=boundary)
    await writer.submit(lambda conn: conn.exec_driver_sql("PRAGMA busy_timeout = 20").close(), "impatient")
    gate = Gate(writer, database)
    await gate.begun()
    started_s = time.monotonic()
    futures = [writer.submit(note(str(n)), "note") for n in range(3 if database.mode == "thread" else 1)]
    gate.open()
    await gate.future
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert {getattr(outcome, "code", None) for outcome in outcomes} == {"store_busy"}
    assert time.monotonic() - started_s < 4  # tried one by one, each of the others would have waited 5 s on a new connection
    stranger.execute("ROLLBACK")
    stranger.close()
    await writer.submit(note("after"), "note")
    await writer.close()
    assert await words(database) == ["after"]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database without rows, to copy: migrating one for each example would take most of the time."""
    path = tmp_path_factory.mktemp("empty") / "hotseat.db"
    open_database(path, clock=StillClock(), durable=False).close()
    return path


@settings(max_examples=25)
@given(st.lists(st.sampled_from([note, note_and_fail, note_and_fail_at_commit]), max_size=12))
def test_whatever_fails_the_rest_is_there_in_order(empty: Path, mode: Mode, kinds: list[Any]) -> None:
    path = shutil.copyfile(empty, empty.with_name("copy.db"))
    database = open_database(path, clock=StillClock(), mode=mode, durable=False)
    outcomes, _ = asyncio.run(grouped(database, [kind(str(n)) for n, kind in enumerate(kinds)]))
    assert [isinstance(outcome, int) for outcome in outcomes] == [kind is note for kind in kinds]
    assert database.read_now(lambda conn: [event.message for event in list_events(conn)]) == [
        str(n) for n, kind in enumerate(kinds) if kind is note
    ]
    database.close()


async def test_an_observer_that_fails_does_not_fail_the_unit(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_seconds: float, _units: int) -> None:
        raise RuntimeError("broken gauge")

    writer = Writer(database, on_commit=broken)
    assert await writer.submit(note("1"), "a") > 0
    await writer.close()
    assert "broken gauge" in caplog.text


# --- closing --------------------------------------------------------------------------------------------------------


async def test_close_finishes_what_is_queued(database: Database) -> None:
    writer = Writer(database)
    futures = [writer.submit(note(str(n)), "note") for n in range(5)]
    await writer.close()
    assert all(future.done() for future in futures)
    assert len(await words(database)) == 5


async def test_close_without_draining_refuses_what_has_not_begun(database: Database) -> None:
    writer = Writer(database)
    gate = Gate(writer, database)
    await gate.begun()
    queued = writer.submit(note("late"), "late")
    asyncio.get_running_loop().call_soon(gate.open)  # once close has taken the queue away and waits
    await writer.close(drain=False)
    with pytest.raises(Conflict) as refused:
        await queued
    assert refused.value.code == "store_closed"
    (begun,) = await asyncio.gather(gate.future, return_exceptions=True)
    assert (begun is None) == (database.mode == "thread")  # inline, not even the first has begun
    assert await words(database) == []


async def test_after_close_units_are_refused_and_closing_again_is_harmless(database: Database) -> None:
    writer = Writer(database)
    await writer.submit(note("1"), "a")
    await writer.close()
    await writer.close()
    with pytest.raises(Conflict) as refused:
        await writer.submit(note("2"), "b")
    assert refused.value.code == "store_closed"
    unused = Writer(database)
    await unused.close()


# --- boundaries and crashes -----------------------------------------------------------------------------------------


class PowerCut(BaseException):
    """A simulated crash."""


class Boundaries:
    """Records the boundaries passed, and fails at one of them."""

    def __init__(self, at: str = "", error: BaseException | None = None) -> None:
        self.seen: list[str] = []
        self._at = at
        self._error = error

    def __call__(self, boundary: str) -> None:
        self.seen.append(boundary)
        if boundary == self._at and self._error is not None:
            raise self._error


async def test_boundaries_are_named_in_order(database: Database) -> None:
    boundaries = Boundaries()
    writer = Writer(database, on_boundary=boundaries)
    await writer.submit(note("1"), "launch")
    with pytest.raises(ValueError, match="2"):
        await writer.submit(note_and_fail("2"), "sleep")
    await writer.close()
    assert boundaries.seen == ["before:launch", "written:launch", "committed:launch", "before:sleep"]


@pytest.mark.parametrize(("boundary", "kept"), [("before:b", ["1"]), ("written:b", ["1"]), ("committed:b", ["1", "2"])])
async def test_a_crash_stops_everything_there(database: Database, boundary: str, kept: list[str]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # inline, the crash leaves by the loop
    boundaries = Boundaries(boundary, PowerCut())
    writer = Writer(database, on_boundary=boundaries)
    await writer.submit(note("1"), "a")
    with pytest.raises(PowerCut):
        await writer.submit(note("2"), "b")
    assert isinstance(writer.crash, PowerCut)
    assert boundaries.seen[-1] == boundary
    with pytest.raises(PowerCut):
        await writer.submit(note("3"), "c")
    await writer.close()
    database.close()
    again = open_database(database.path, clock=StillClock(), mode="inline", durable=False)
    assert await words(again) == kept
    again.close()


@pytest.mark.virtual_time
async def test_inline_a_crash_leaves_through_the_loop(tmp_path: Path) -> None:
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context.get("exception")))
    database = open_database(tmp_path / "hotseat.db", clock=StillClock(), mode="inline", durable=False)
    crash = PowerCut()
    writer = Writer(database, on_boundary=Boundaries("written:a", crash))
    with pytest.raises(PowerCut):
        await writer.submit(note("1"), "a")
    assert seen == [crash]
    database.close()


async def test_in_a_group_a_crash_after_the_commit_keeps_all_of_it(database: Database) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    writer = Writer(database, on_boundary=Boundaries("committed:b", PowerCut()))
    gate = Gate(writer, database)
    await gate.begun()
    futures = [writer.submit(note(label), label) for label in "abc"]
    gate.open()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    await writer.close()
    assert [type(outcome) for outcome in outcomes] == [int, PowerCut, PowerCut]
    assert await words(database) == (["a", "b", "c"] if database.mode == "thread" else ["a", "b"])


@pytest.mark.parametrize(("boundary", "kept"), [("before:b", ["1", "3"]), ("written:b", ["1", "3"]), ("committed:b", ["1", "2", "3"])])
async def test_an_injected_failure_fails_one_unit(database: Database, boundary: str, kept: list[str]) -> None:
    full = Temporary("the database cannot grow", retry_after_s=1.0, code="store_full")
    outcomes: list[object] = []
    writer = Writer(database, on_boundary=Boundaries(boundary, full))
    for word, label in (("1", "a"), ("2", "b"), ("3", "c")):
        outcomes += await asyncio.gather(writer.submit(note(word), label), return_exceptions=True)
    await writer.close()
    assert outcomes[1] is full
    assert await words(database) == kept


# --- readers --------------------------------------------------------------------------------------------------------


async def test_readers_see_the_last_commit_while_a_unit_is_at_work(database: Database, writer: Writer) -> None:
    await writer.submit(note("1"), "a")
    if database.mode == "inline":
        assert await words(database) == ["1"]
        return
    gate, begun = threading.Event(), threading.Event()

    def slow(conn: Connection) -> None:
        note("2")(conn)
        begun.set()
        assert gate.wait(30)

    unit = writer.submit(slow, "slow")
    await asyncio.to_thread(begun.wait, 30)
    many = await asyncio.gather(*(words(database) for _ in range(20)))
    assert many == [["1"]] * 20
    gate.set()
    await unit
    assert await words(database) == ["1", "2"]


async def test_readers_cannot_write_and_failures_are_ours(database: Database) -> None:
    with pytest.raises(Temporary) as failed:
        await database.read(lambda conn: set_meta(conn, "a", "b"))
    assert failed.value.code == "store_io"
    with pytest.raises(Permanent) as wrong:
        await database.read(lambda conn: conn.execute(text("SELECT * FROM nowhere")))
    assert wrong.value.code == "store_error"
    with pytest.raises(ZeroDivisionError):
        await database.read(lambda _: 1 // 0)
