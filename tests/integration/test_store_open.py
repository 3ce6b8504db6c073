"""Opening a database: what is made, what is checked, what is refused and left as it was."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.domain.errors import HotseatError, Permanent
from scheduler.store import engine, filesystem
from scheduler.store.engine import Database, open_database
from scheduler.store.events import append_event, list_events
from scheduler.store.meta import get_meta
from scheduler.store.tables import APPLICATION_ID, SCHEMA
from tests.support.store_records import StillClock


def opened(path: Path, **options: str) -> Database:
    return open_database(path, clock=StillClock(), mode="inline", durable=False, **options)


def refused(path: Path) -> HotseatError:
    with pytest.raises(HotseatError) as caught:
        opened(path)
    assert caught.value.fix
    return caught.value


def with_events(path: Path, count: int = 200) -> None:
    database = opened(path)
    with database.connect_writer() as conn, conn.begin():
        for n in range(count):
            append_event(conn, at=1.0, kind="k", subject=str(n), message="x" * 500)
    database.close()


def test_a_new_database_is_private_and_keeps_its_uuid(tmp_path: Path) -> None:
    path = tmp_path / "state" / "hotseat.db"
    first = opened(path)
    first.close()
    again = opened(path, state_uuid="another")
    assert again.state_uuid == first.state_uuid
    assert again.read_now(lambda conn: get_meta(conn, "state_uuid")) == first.state_uuid
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    again.close()
    assert opened(tmp_path / "other" / "hotseat.db", state_uuid="given").state_uuid == "given"


def test_a_closed_database_is_one_file(tmp_path: Path) -> None:
    with_events(tmp_path / "hotseat.db")
    assert [file.name for file in tmp_path.iterdir()] == ["hotseat.db"]


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "odd ?mode=ro&x#y%20'é" / "hotseat.db"
    with_events(path, 1)
    assert path.is_file()


def test_the_settings_are_in_force(tmp_path: Path) -> None:
    database = open_database(tmp_path / "hotseat.db", clock=StillClock())

    def pragma(conn: object, name: str) -> object:
        return conn.exec_driver_sql(f"PRAGMA {name}").scalar_one()  # type: ignore[attr-defined]

    with database.connect_writer() as conn:
        wanted = {
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
            "busy_timeout": 5000,
            "journal_size_limit": 64 << 20,
            "temp_store": 2,
            "mmap_size": 0,
            "auto_vacuum": 2,
            "application_id": APPLICATION_ID,
            "user_version": SCHEMA,
            "query_only": 0,
        }
        assert {name: pragma(conn, name) for name in wanted} == wanted
    assert database.read_now(lambda reader: (pragma(reader, "query_only"), pragma(reader, "foreign_keys"))) == (1, 1)
    database.close()


def test_a_unit_of_work_takes_the_write_lock_at_its_beginning(tmp_path: Path) -> None:
    database = opened(tmp_path / "hotseat.db")
    stranger = sqlite3.connect(database.path, isolation_level=None, timeout=0)
    with database.connect_writer() as conn:
        with conn.begin(), pytest.raises(sqlite3.OperationalError, match="locked"):
            stranger.execute("BEGIN IMMEDIATE")
        stranger.execute("BEGIN IMMEDIATE")
        stranger.execute("ROLLBACK")
    database.read_now(lambda _: stranger.execute("BEGIN IMMEDIATE"))  # a reader does not
    stranger.close()
    database.close()


def test_what_was_committed_survives_kill_9_and_the_rest_is_gone(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from scheduler.store.engine import open_database
from scheduler.store.events import append_event
from tests.support.store_records import StillClock
conn = open_database(sys.argv[1], clock=StillClock(), durable=False).connect_writer()
for word in ("1", "2"):
    with conn.begin():
        append_event(conn, at=1.0, kind="k", subject="", message=word)
conn.begin()
for n in range(2000):  # more than fits the page cache: some of it is in the log already
    append_event(conn, at=1.0, kind="k", subject="", message="uncommitted " * 500)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "hotseat.db"
    ended = subprocess.run([sys.executable, "-c", script, str(path)], cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.with_name("hotseat.db-wal").stat().st_size > 1 << 20
    database = opened(path)
    assert database.read_now(lambda conn: [event.message for event in list_events(conn)]) == ["1", "2"]
    database.close()


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", [slice(1, None), slice(-1, None)], ids=["all", "one that nothing reads at the start"])
def test_a_damaged_page_is_found_at_the_start(tmp_path: Path, pages: slice) -> None:
    path = tmp_path / "hotseat.db"
    with_events(path)
    with path.open("r+b") as file:
        for page in range(path.stat().st_size // 4096)[pages]:
            file.seek(page * 4096)
            file.write(b"\xff" * 64)
    error = refused(path)
    assert error.code == "store_corrupt"
    assert "backups" in error.fix


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"\xff" * 4080, b"not a database " * 300])
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "hotseat.db"
    path.write_bytes(content)
    assert refused(path).code == "store_corrupt"
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "hotseat.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    before = path.read_bytes()
    error = refused(path)
    assert (error.code, path.read_bytes()) == ("store_foreign", before)
    assert str(path) in error.message


def test_a_newer_schema_is_refused_untouched_and_says_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "hotseat.db"
    with_events(path, 1)
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    newer.close()
    before = path.read_bytes()
    error = refused(path)
    assert error.code == "store_newer"
    assert f"number {SCHEMA + 1}, this version knows {SCHEMA}" in error.message
    assert path.read_bytes() == before


def test_a_network_file_system_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 0:40 / {tmp_path} rw - cifs //server/share rw\n")
    monkeypatch.setattr(filesystem, "MOUNTS", table)
    path = tmp_path / "state" / "hotseat.db"
    assert refused(path).code == "store_network_fs"
    assert not path.exists()


def test_an_old_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "OLDEST_SQLITE", (99, 0, 0))
    error = refused(tmp_path / "hotseat.db")
    assert error.code == "store_sqlite_old"
    assert sqlite3.sqlite_version in error.message


def test_a_folder_or_a_file_in_the_way_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "hotseat.db").mkdir()
    assert refused(tmp_path / "hotseat.db").code == "store_io"
    (tmp_path / "file").write_text("")
    error = refused(tmp_path / "file" / "hotseat.db")
    assert error.code == "store_io"
    assert isinstance(error, Permanent)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert refused(tmp_path / "hotseat.db").code == "store_io"
    finally:
        tmp_path.chmod(0o700)


def test_a_database_that_vanishes_is_not_made_anew_behind_our_back(tmp_path: Path) -> None:
    database = opened(tmp_path / "hotseat.db")
    database.path.unlink()
    with pytest.raises(HotseatError) as failed:
        database.connect_writer()
    assert failed.value.code == "store_io"
    assert not database.path.exists()
    database.close()
