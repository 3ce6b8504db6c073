"""Backups of a database in use."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.domain.errors import Invalid, Permanent
from scheduler.store.backup import KEEP, backup_database, list_backups, save_backup
from scheduler.store.engine import Database, open_database
from scheduler.store.events import append_event, list_events
from scheduler.store.writer import Writer
from tests.support.store_records import StillClock


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path / "state" / "hotseat.db", clock=StillClock(), durable=False)
    yield opened
    opened.close()


def note(database: Database, word: str) -> None:
    with database.connect_writer() as conn, conn.begin():
        append_event(conn, at=1.0, kind="k", subject="", message=word)


def words(path: Path) -> list[str]:
    opened = open_database(path, clock=StillClock(), mode="inline", durable=False)
    found = opened.read_now(lambda conn: [event.message for event in list_events(conn, limit=100_000)])
    opened.close()
    return found


def test_a_backup_is_one_private_file_with_all_that_was_committed(database: Database, tmp_path: Path) -> None:
    note(database, "1")
    target = tmp_path / "copy.db"
    assert backup_database(database.path, target) == target.stat().st_size
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "state"]
    note(database, "2")
    assert words(target) == ["1"]
    backup_database(database.path, target)
    assert words(target) == ["1", "2"]


async def test_a_backup_taken_while_units_are_committed_is_a_state_that_was(database: Database, tmp_path: Path) -> None:
    writer = Writer(database)
    loop = asyncio.get_running_loop()
    backups = [loop.run_in_executor(None, backup_database, database.path, tmp_path / f"{n}.db") for n in range(3)]
    written = 0
    while not all(backup.done() for backup in backups):
        # each unit writes two rows: a backup with an odd number of them was cut in the middle of one
        await writer.submit(lambda conn: [append_event(conn, at=1.0, kind="k", subject="", message="x") for _ in range(2)], "pair")
        written += 2
    await asyncio.gather(*backups)
    await writer.close()
    for n in range(3):
        count = len(words(tmp_path / f"{n}.db"))
        assert count % 2 == 0
        assert count <= written


def test_the_database_itself_and_strangers_files_are_never_overwritten(database: Database, tmp_path: Path) -> None:
    note(database, "1")
    (tmp_path / "link.db").symlink_to(database.path)
    os.link(database.path, tmp_path / "hard.db")
    (tmp_path / "letter.txt").write_text("dear all")
    sqlite3.connect(tmp_path / "foreign.db").execute("CREATE TABLE t (a)").connection.close()
    (tmp_path / "folder").mkdir()
    wal = database.path.with_name("hotseat.db-wal")
    for target in (database.path, wal, *(tmp_path / name for name in ("link.db", "hard.db", "letter.txt", "foreign.db", "folder"))):
        before = target.read_bytes() if target.is_file() else b""
        with pytest.raises(Invalid) as refused:
            backup_database(database.path, target)
        assert refused.value.code == "backup_target"
        assert refused.value.fix
        assert before == (target.read_bytes() if target.is_file() else b"")
    note(database, "2")  # its locks were not lost on the way
    assert words(database.path) == ["1", "2"]


def test_a_failed_backup_leaves_nothing_behind(database: Database, tmp_path: Path) -> None:
    with pytest.raises(Permanent) as failed:
        backup_database(database.path, tmp_path / "nowhere" / "copy.db")
    assert failed.value.code == "backup_target"
    with pytest.raises(Exception, match="unable to open"):
        backup_database(tmp_path / "missing.db", tmp_path / "copy.db")
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_an_interrupted_backup_of_before_is_no_obstacle(database: Database, tmp_path: Path) -> None:
    (tmp_path / ".copy.db.partial").write_text("half a copy")
    note(database, "1")
    backup_database(database.path, tmp_path / "copy.db")
    assert words(tmp_path / "copy.db") == ["1"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "state"]


def test_the_newest_automatic_backups_are_kept(database: Database) -> None:
    clock = StillClock()
    made = []
    for n in range(KEEP + 2):
        clock.wall_s += 1
        made.append(save_backup(database.path, 1 + n // 5, clock))
    assert list_backups(database.path) == made[: -KEEP - 1 : -1]
    assert made[-1].name == "hotseat-schema-0002-20270115T080009Z.db"
    assert made[-1].parent == database.path.parent / "backups"
    assert stat.S_IMODE(made[-1].parent.stat().st_mode) == 0o700


def test_a_place_for_automatic_backups_that_cannot_be_made_is_named(database: Database) -> None:
    (database.path.parent / "backups").write_text("in the way")
    with pytest.raises(Permanent) as failed:
        save_backup(database.path, 1, StillClock())
    assert failed.value.code == "backup_target"
