"""What SQLite says, in the words of our one family of errors."""

import sqlite3

from sqlalchemy.exc import DBAPIError

from scheduler.domain.errors import Conflict, HotseatError, Permanent, Temporary

RETRY_S = 5.0

_FULL = frozenset({sqlite3.SQLITE_FULL})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_IO = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
    }
)

#: After these the transaction may be gone already, and the connection is not trusted any more.
LOSES_TRANSACTION = frozenset({"store_full", "store_io", "store_corrupt"})
#: The file as a whole does not take writes now: trying the next unit at once is of no use.
REFUSES_ALL = frozenset({"store_busy", "store_corrupt"})


def transaction_lost() -> HotseatError:
    """SQLite rolled the transaction back (a full disk does that) while whoever wrote went on."""
    return Temporary(
        "the transaction was rolled back by the database while it was being written",
        retry_after_s=RETRY_S,
        code="store_io",
        fix="check the disk of the state directory; writing resumes by itself",
    )


def translate(error: Exception) -> Exception:
    """The HotseatError for a database failure; any other exception comes back as it is."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        found = _of_sqlite(cause)
        found.__cause__ = error
        return found
    return error


def _of_sqlite(error: sqlite3.Error) -> HotseatError:
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    primary = None if code is None else code & 0xFF  # the rest of the number only refines it
    detail = f"{error} ({name})"
    if primary in _FULL:
        return Temporary(
            f"the database cannot grow: {detail}",
            retry_after_s=RETRY_S,
            code="store_full",
            fix="free space on the file system of the state directory; writing resumes by itself",
        )
    if primary in _BUSY:
        return Temporary(
            f"another program holds the database: {detail}",
            retry_after_s=RETRY_S,
            code="store_busy",
            fix="end the other program (a sqlite3 shell, a copy job); writing resumes by itself",
        )
    if primary in _CORRUPT:
        return Permanent(
            f"the database file is damaged: {detail}",
            code="store_corrupt",
            fix="stop the daemon, move the database aside and put the newest file of the backups folder in its place",
        )
    if primary in _IO:
        return Temporary(
            f"the database cannot be read or written: {detail}",
            retry_after_s=RETRY_S,
            code="store_io",
            fix="check the disk, and that the state directory exists and belongs to the daemon's user",
        )
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return Conflict(f"a rule of the database refused a row: {detail}", code="store_constraint")
    return Permanent(f"the database refused a statement: {detail}", code="store_error", fix="report this: it is a fault of hotseat")
