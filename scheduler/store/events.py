"""The event feed: one line per thing that happened, numbered for ``Last-Event-ID``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, select

from scheduler.store.codec import dumps, loads
from scheduler.store.tables import events


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """One line. ``at`` is wall clock, ``subject`` a model, instance, device or ""; ``data`` holds details by name."""

    seq: int
    at: float
    kind: str
    subject: str
    message: str
    data: Mapping[str, object] = field(default_factory=dict)


def append_event(
    conn: Connection,
    *,
    at: float,
    kind: str,
    subject: str,
    message: str,
    data: Mapping[str, object] | None = None,
    seq: int | None = None,
) -> int:
    """Append a line and return its number: ``seq`` when the caller counts (it must be new), else the next one."""
    values = {"at": at, "kind": kind, "subject": subject, "message": message, "data": dumps(dict(data or {}))}
    if seq is not None:
        values["seq"] = seq
    key = conn.execute(insert(events), values).inserted_primary_key
    assert key is not None
    return int(key[0])


def list_events(conn: Connection, after: int = 0, limit: int = 100) -> list[StoredEvent]:
    """Up to ``limit`` lines with a number above ``after``, oldest first."""
    return _listed(conn, after, limit, newest=False)


def newest_events(conn: Connection, limit: int = 100) -> list[StoredEvent]:
    """The last ``limit`` lines, oldest first."""
    return _listed(conn, 0, limit, newest=True)


def _listed(conn: Connection, after: int, limit: int, *, newest: bool) -> list[StoredEvent]:
    order = events.c.seq.desc() if newest else events.c.seq
    rows = conn.execute(select(events).where(events.c.seq > after).order_by(order).limit(limit)).all()
    found = [
        StoredEvent(
            seq=row.seq,
            at=row.at,
            kind=row.kind,
            subject=row.subject,
            message=row.message,
            data=loads(dict[str, object], row.data),
        )
        for row in rows
    ]
    return found[::-1] if newest else found
