"""Facts about the database itself: whose state directory it is, and how often a daemon has started on it."""

from sqlalchemy import Connection, select

from scheduler.store.rows import upsert
from scheduler.store.tables import meta

STATE_UUID = "state_uuid"
EPOCH = "epoch"


def get_meta(conn: Connection, key: str) -> str | None:
    """The value of ``key``, None when it was never set."""
    return conn.execute(select(meta.c.value).where(meta.c.key == key)).scalar_one_or_none()


def set_meta(conn: Connection, key: str, value: str) -> None:
    """Set ``key``."""
    upsert(conn, meta, {"key": key, "value": value})


def ensure_meta(conn: Connection, new_uuid: str) -> str:
    """The state directory's uuid, set to ``new_uuid`` once; tokens of engine processes carry it."""
    known = get_meta(conn, STATE_UUID)
    if known is None:
        set_meta(conn, STATE_UUID, new_uuid)
        set_meta(conn, EPOCH, "0")
    return known or new_uuid


def next_epoch(conn: Connection) -> int:
    """Count one more start of the daemon: 1, 2, ... Work handed out in an older epoch is told apart by it."""
    epoch = int(get_meta(conn, EPOCH) or 0) + 1
    set_meta(conn, EPOCH, str(epoch))
    return epoch
