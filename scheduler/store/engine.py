"""The database file: opened safely, one connection that writes, a few that only read."""

import asyncio
import os
import sqlite3
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, Pool, QueuePool

from scheduler.domain.errors import Permanent
from scheduler.ports.clock import Clock
from scheduler.store.failures import transaction_lost, translate
from scheduler.store.filesystem import refuse_network
from scheduler.store.lock import unusable
from scheduler.store.meta import ensure_meta
from scheduler.store.migrate import migrate
from scheduler.store.tables import APPLICATION_ID, SCHEMA

T = TypeVar("T")
Mode = Literal["thread", "inline"]

NAME = "hotseat.db"
READERS = 4
BUSY_TIMEOUT_MS = 5000
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables

_COMMON = ("foreign_keys = ON", f"busy_timeout = {BUSY_TIMEOUT_MS}", "temp_store = MEMORY", "mmap_size = 0")
_WRITER = ("synchronous = FULL", f"journal_size_limit = {64 << 20}")
_NOT_DURABLE = ("synchronous = OFF",)
_READER = ("query_only = ON",)
#: Compiled statements, shared by all connections of the process: the same few dozen, whichever file they are for.
#: They are found by statement and dialect object, hence one dialect for all (create_engine makes one per engine).
_COMPILED: dict[Any, Any] = {}


@cache
def _dialect() -> Dialect:
    engine = create_engine("sqlite://")
    engine.connect().close()  # the dialect learns SQLite's version with the first connection, here to nothing
    engine.dispose()
    return engine.dialect


class Database:
    """An open, migrated database. Made by :func:`open_database`; ``state_uuid`` names this state directory for ever."""

    def __init__(self, path: Path, *, clock: Clock, mode: Mode, writer: Engine) -> None:
        self.path = path
        self.clock = clock
        self.mode: Mode = mode
        self.state_uuid = ""
        self._writer = writer
        self._readers = _engine(path, "ro", _READER, begin="BEGIN", readers=READERS)
        self._threads: ThreadPoolExecutor | None = None

    def connect_writer(self) -> Connection:
        """A new read-write connection, for :class:`scheduler.store.writer.Writer` alone. Raises HotseatError."""
        with translated():
            return self._writer.connect()

    def read_now(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one read transaction, here. It returns values, never a cursor. Raises HotseatError."""
        with translated(), self._readers.connect() as connection, connection.begin():
            return work(connection)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Like ``read_now``, in a thread of the readers' own (inline mode: at once). No transaction spans an await."""
        if self.mode == "inline":
            return self.read_now(work)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.read_now, work)

    def close(self) -> None:
        """Close the readers, after those at work; close the Writer first. Idempotent.

        The write-ahead log is folded into the file, so that whoever copies the file of a stopped daemon has all of it.
        """
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._readers.dispose()
        try:
            if self.path.with_name(self.path.name + "-wal").exists():
                self._writer.connect().close()  # the last connection to close does it, if it may write
        except (DBAPIError, sqlite3.Error):
            pass  # damaged or full: the log stays where it is and is read at the next start


@contextmanager
def translated() -> Iterator[None]:
    """Database failures inside leave as HotseatError."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        raise translate(error) from error


def open_database(
    path: Path | str, *, clock: Clock, mode: Mode = "thread", durable: bool = True, state_uuid: str | None = None
) -> Database:
    """Open ``path`` for this process, the only one that may write it (see lock.py); create and migrate it as needed.

    ``durable`` False leaves out fsync, for simulations: what was committed survives the end of the process, not of the
    machine. ``state_uuid`` is used when the database is new (default: a random one).

    Raises HotseatError: ``store_network_fs``, ``store_sqlite_old``, ``store_foreign``, ``store_newer``,
    ``store_corrupt``, ``store_io``, ``store_full``, ``store_busy``, ``store_migration``.
    """
    path = Path(path).absolute()
    _prepare(path)
    writer = _engine(path, "rw", _WRITER if durable else (*_WRITER, *_NOT_DURABLE), begin="BEGIN IMMEDIATE")
    database = Database(path, clock=clock, mode=mode, writer=writer)
    try:
        with translated():
            _check_and_migrate(writer, path, clock)
            with writer.connect() as connection, connection.begin():
                database.state_uuid = ensure_meta(connection, state_uuid or uuid.uuid4().hex)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(path: Path) -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise Permanent(
            f"this Python has SQLite {sqlite3.sqlite_version}; 3.37 or later is needed",
            code="store_sqlite_old",
            fix="run hotseat with a newer Python build, for example one installed by uv",
        )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_network(path.parent)
        # Only a new file is opened here: closing a file that SQLite has open drops all its locks in this process.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError as error:
        if not path.is_file():
            raise unusable(path.parent, error) from error
    except OSError as error:
        raise unusable(path.parent, error) from error


def _engine(path: Path, access: str, pragmas: tuple[str, ...], *, begin: str, readers: int = 0) -> Engine:
    uri = f"file:{urllib.parse.quote(str(path))}?mode={access}"

    def connect() -> Any:  # a sqlite3.Connection; the pool's protocol and the driver's type stub do not agree
        # isolation_level None: the driver begins nothing by itself, the hook below does (a SELECT of the legacy mode
        # runs outside any transaction, and its deferred BEGIN fails at once with BUSY_SNAPSHOT on the first write).
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000)

    dialect = _dialect()
    if readers:
        pool: Pool = QueuePool(connect, pool_size=readers, max_overflow=0, dialect=dialect)
    else:
        pool = NullPool(connect, dialect=dialect)
    engine = Engine(pool, dialect, make_url("sqlite://"), execution_options={"compiled_cache": _COMPILED})

    def on_connect(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        for pragma in (*_COMMON, *pragmas):
            connection.execute(f"PRAGMA {pragma}")

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    event.listen(engine, "before_cursor_execute", _refuse_autocommit)
    return engine


def _refuse_autocommit(connection: Connection, cursor: sqlite3.Cursor, *_: object) -> None:
    """A full disk ends SQLite's transaction; the next statement of a unit that went on would commit by itself."""
    if connection.in_transaction() and not cursor.connection.in_transaction:
        raise transaction_lost()


def _check_and_migrate(engine: Engine, path: Path, clock: Clock) -> None:
    """Before any of our own SQL: whose file is it, is it whole, is it one that this version understands?"""
    raw = engine.raw_connection()
    try:
        driver = raw.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        schema = _identify(driver, path)
        if schema == 0:
            driver.execute("PRAGMA auto_vacuum = INCREMENTAL")  # possible before the first table only
        else:
            _quick_check(driver, path)
        (journal,) = driver.execute("PRAGMA journal_mode = WAL").fetchone()
    finally:
        raw.close()
    if journal != "wal":
        raise Permanent(
            f"the file system of {path.parent} does not allow SQLite's write-ahead log (journal mode {journal})",
            code="store_network_fs",
            fix="set state_dir to a folder on a local disk",
        )
    if schema < SCHEMA:
        migrate(engine, path, schema, clock)


def _identify(driver: sqlite3.Connection, path: Path) -> int:
    """The schema number of our own file, 0 for an empty one; anything else is refused untouched."""
    (application,) = driver.execute("PRAGMA application_id").fetchone()
    (schema,) = driver.execute("PRAGMA user_version").fetchone()
    (strangers,) = driver.execute("SELECT count(*) FROM sqlite_master WHERE name <> 'alembic_version' AND type = 'table'").fetchone()
    if application != APPLICATION_ID and (application, schema, strangers) != (0, 0, 0):
        raise Permanent(
            f"{path} is a SQLite database of another program (application id {application:#x})",
            code="store_foreign",
            fix="move that file away, or set state_dir to another folder",
        )
    if schema > SCHEMA:
        raise Permanent(
            f"{path} was written by a newer hotseat: its schema is number {schema}, this version knows {SCHEMA}",
            code="store_newer",
            fix="run the newer version, or stop the daemon and put the backup made before the upgrade (backups folder) in place",
        )
    return int(schema)


def _quick_check(driver: sqlite3.Connection, path: Path) -> None:
    rows = [row[0] for row in driver.execute("PRAGMA quick_check(5)")]
    if rows != ["ok"]:
        raise Permanent(
            f"{path} is damaged: {'; '.join(map(str, rows))}",
            code="store_corrupt",
            fix="stop the daemon, move the database aside and put the newest file of the backups folder in its place",
        )
