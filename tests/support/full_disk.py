"""Run as a program: the store on a file system that fills up. Prints what happened as JSON.

Started by tests/integration/test_store_full.py in mount and user namespaces of its own, where it may mount a tmpfs.
"""

import asyncio
import errno
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from scheduler.domain.errors import HotseatError
from scheduler.store.backup import backup_database
from scheduler.store.engine import Database, Mode, open_database
from scheduler.store.events import append_event, list_events
from scheduler.store.writer import Writer
from tests.support.store_records import StillClock

BIG = 60_000


def big(word: str) -> Callable[[Connection], int]:
    """A unit that needs many new pages."""
    return lambda conn: append_event(conn, at=1.0, kind="big", subject=word, message="x" * BIG)


async def outcome(writer: Writer, unit: Callable[[Connection], Any], label: str = "unit") -> str:
    """ "ok", or the code of the error."""
    try:
        await writer.submit(unit, label)
    except HotseatError as error:
        return error.code
    return "ok"


def fill(folder: Path) -> Path:
    """Leave no byte free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return ballast


def subjects(database: Database) -> list[str]:
    return database.read_now(lambda conn: [event.subject for event in list_events(conn, limit=1000)])


async def on_tmpfs(folder: Path, mode: Mode) -> dict[str, Any]:
    """Fill the disk under a running writer, try alone and in a group, free it, go on."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True)
    database = open_database(folder / "state" / "hotseat.db", clock=StillClock(), mode=mode)
    writer = Writer(database)
    found: dict[str, Any] = {"before": await outcome(writer, big("before"))}
    ballast = fill(folder)
    found["full"] = await outcome(writer, big("full"))
    found["group"] = await asyncio.gather(*(outcome(writer, big(f"group{n}")) for n in range(3)))
    try:
        backup_database(database.path, folder / "copy.db")
        found["backup"] = "ok"
    except HotseatError as error:
        found["backup"] = error.code
    found["left"] = sorted(file.name for file in folder.iterdir())
    found["read"] = subjects(database)
    ballast.unlink()
    found["after"] = await outcome(writer, big("after"))
    await writer.close()
    database.close()
    again = open_database(database.path, clock=StillClock(), mode="inline")
    found["at_last"] = subjects(again)
    again.close()
    try:
        fill(folder)
        open_database(folder / "second" / "hotseat.db", clock=StillClock())
        found["new"] = "ok"
    except HotseatError as error:
        found["new"] = error.code
    return found


async def under_a_size_limit(folder: Path, mode: Mode) -> dict[str, Any]:
    """Writes fail with EFBIG: to SQLite an I/O error like that of a dying disk."""
    database = open_database(folder / "hotseat.db", clock=StillClock(), mode=mode)
    writer = Writer(database)
    found: dict[str, Any] = {"before": await outcome(writer, big("before"))}
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (database.path.with_name("hotseat.db-wal").stat().st_size, hard))
    found["limited"] = await outcome(writer, big("limited"))
    found["group"] = await asyncio.gather(*(outcome(writer, big(f"group{n}")) for n in range(3)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    found["after"] = await outcome(writer, big("after"))
    await writer.close()
    found["at_last"] = subjects(database)
    database.close()
    return found


if __name__ == "__main__":
    scenario = {"tmpfs": on_tmpfs, "limit": under_a_size_limit}[sys.argv[1]]
    chosen: Mode = "inline" if sys.argv[3] == "inline" else "thread"
    json.dump(asyncio.run(scenario(Path(sys.argv[2]), chosen)), sys.stdout)
