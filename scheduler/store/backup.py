"""Copies of the live database: whole, in one file, or not there at all."""

import os
import sqlite3
import urllib.parse
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from scheduler.domain.errors import Invalid, Permanent
from scheduler.ports.clock import Clock
from scheduler.store.failures import translate
from scheduler.store.tables import APPLICATION_ID

FOLDER = "backups"
KEEP = 7


def backup_database(source: Path, target: Path) -> int:
    """Copy the database ``source``, which may be in use, to ``target``; returns the copy's bytes.

    The copy is checked, synced and only then given its name, mode 0600. An older hotseat database of that name is
    replaced; anything else is left alone. Blocks for the time of the copy: call it in a thread.

    Raises Invalid (``backup_target``), HotseatError (``store_full``, ``store_io``, ``store_corrupt``).
    """
    _check_target(source, target)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _copy(source, partial)
        size = partial.stat().st_size
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    except sqlite3.Error as error:
        raise translate(error) from error
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        _forget(partial)
    return size


def save_backup(path: Path, schema: int, clock: Clock) -> Path:
    """The backup before a migration: ``backups/hotseat-schema-0001-20261130T140612Z.db`` beside the database."""
    folder = path.parent / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    stamp = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
    target = folder / f"{path.stem}-schema-{schema:04d}-{stamp}.db"
    backup_database(path, target)
    for old in list_backups(path)[KEEP:]:
        old.unlink(missing_ok=True)
    return target


def list_backups(path: Path) -> list[Path]:
    """The automatic backups of the database ``path``, newest first."""
    found = (path.parent / FOLDER).glob(f"{path.stem}-schema-*.db")
    return sorted(found, key=lambda file: (file.name.rpartition("-")[2], file.name), reverse=True)


def _unwritable(target: Path, error: OSError) -> Permanent:
    return Permanent(
        f"the backup {target} cannot be written: {error.strerror or error}",
        code="backup_target",
        fix="choose a folder that exists, has room, and that the daemon's user may write",
    )


def _check_target(source: Path, target: Path) -> None:
    own = [source.with_name(source.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]
    if target.resolve() in [file.resolve() for file in own] or (target.exists() and any(f.exists() and target.samefile(f) for f in own)):
        raise Invalid(f"{target} belongs to the database itself", code="backup_target", fix="name another file for the backup")
    if target.exists() and not _is_ours(target):
        raise Invalid(f"{target} exists and is not a hotseat database", code="backup_target", fix="name a file that does not exist yet")


def _is_ours(file: Path) -> bool:
    """By the header alone (bytes 68-71 are the application id): opening it could create files beside it."""
    try:
        with file.open("rb") as stream:
            header = stream.read(100)
    except OSError:
        return False
    return header[:16] == b"SQLite format 3\0" and int.from_bytes(header[68:72]) == APPLICATION_ID


def _copy(source: Path, partial: Path) -> None:
    uri = f"file:{urllib.parse.quote(str(source))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as live, closing(sqlite3.connect(partial)) as copy:
        # All pages in one step: one consistent state, never restarted by the writer, who goes on in the WAL meanwhile.
        live.backup(copy)
        (mode,) = copy.execute("PRAGMA journal_mode = DELETE").fetchone()
        rows = copy.execute("PRAGMA quick_check(5)").fetchall()
    if mode != "delete" or rows != [("ok",)]:
        raise Permanent(
            f"the copy of {source} is damaged: {rows}",
            code="store_corrupt",
            fix="the database itself is damaged: keep the older backups and report this",
        )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _forget(partial: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            partial.with_name(partial.name + suffix).unlink(missing_ok=True)
        except OSError:
            pass  # the folder is gone or read-only: there is nothing left to tidy, and the first error counts
