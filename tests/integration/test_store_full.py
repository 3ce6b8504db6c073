"""A full disk, for real: the unit fails by name, nothing of it stays, and writing goes on once there is room."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from scheduler.domain.errors import Temporary
from scheduler.store.engine import Database, Mode, open_database
from scheduler.store.events import append_event, list_events
from scheduler.store.writer import Writer
from tests.support.full_disk import big
from tests.support.store_records import StillClock

MODES = pytest.mark.parametrize("mode", ["thread", "inline"])
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]


def may_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    return subprocess.run([*OWN_MOUNTS, *mount], check=False, capture_output=True).returncode == 0


def scenario(prefix: list[str], name: str, folder: Path, mode: Mode) -> dict[str, Any]:
    command = [*prefix, sys.executable, "-m", "tests.support.full_disk", name, str(folder), mode]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@MODES
def test_a_disk_that_fills_up_and_empties_again(tmp_path: Path, mode: Mode) -> None:
    if not may_mount(tmp_path):
        pytest.skip("this system lets nobody mount a tmpfs in a namespace")
    assert scenario(OWN_MOUNTS, "tmpfs", tmp_path, mode) == {
        "before": "ok",
        "full": "store_full",
        "group": ["store_full"] * 3,
        "backup": "store_full",
        "left": ["ballast", "state"],
        "read": ["before"],
        "after": "ok",
        "at_last": ["before", "after"],
        "new": "store_full",
    }


@MODES
def test_a_disk_that_refuses_writes_for_a_while(tmp_path: Path, mode: Mode) -> None:
    assert scenario([], "limit", tmp_path, mode) == {
        "before": "ok",
        "limited": "store_io",
        "group": ["store_io"] * 3,
        "after": "ok",
        "at_last": ["before", "after"],
    }


# --- SQLite's own limit of pages, where nothing may be mounted ------------------------------------------------------


def limited(conn: Connection) -> None:
    """No new page from here on, for this connection."""
    pages = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
    conn.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close()


def small(word: str) -> Any:
    return lambda conn: append_event(conn, at=1.0, kind="small", subject=word, message="")


def too_much(conn: Connection) -> None:
    limited(conn)
    big("too much")(conn)


def too_much_but_swallowed(conn: Connection) -> None:
    limited(conn)
    try:
        big("too much")(conn)
    except Exception:
        small("in autocommit")(conn)


def subjects(database: Database) -> list[str]:
    return database.read_now(lambda conn: [event.subject for event in list_events(conn)])


@MODES
async def test_in_a_group_only_the_unit_that_does_not_fit_fails(tmp_path: Path, mode: Mode) -> None:
    database = open_database(tmp_path / "hotseat.db", clock=StillClock(), mode=mode, durable=False)
    writer = Writer(database)
    outcomes = await asyncio.gather(*map(writer.submit, (small("1"), too_much, small("2")), "abc"), return_exceptions=True)
    assert [getattr(outcome, "code", "ok") for outcome in outcomes] == ["ok", "store_full", "ok"]
    full = outcomes[1]
    assert isinstance(full, Temporary)
    assert full.retry_after_s > 0
    assert "free space" in full.fix
    assert subjects(database) == ["1", "2"]
    await writer.submit(big("fits again"), "d")
    await writer.close()
    database.close()


@MODES
async def test_a_unit_that_swallows_the_failure_is_not_called_done(tmp_path: Path, mode: Mode) -> None:
    database = open_database(tmp_path / "hotseat.db", clock=StillClock(), mode=mode, durable=False)
    writer = Writer(database)
    with pytest.raises(Temporary) as failed:
        await writer.submit(too_much_but_swallowed, "a")
    assert failed.value.code == "store_io"
    await writer.submit(small("after"), "b")
    await writer.close()
    assert subjects(database) == ["after"]
    database.close()
