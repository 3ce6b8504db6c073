"""Old rows go, a chunk at a time, so that no unit of work holds up the journal for long."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, func, literal_column, select

from scheduler.store.tables import actions, events, instances, launches, move_steps, moves, transitions, usage_minutes

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long rows are kept, seconds of wall clock. Of each instance the last ``launches_each`` ended launches stay."""

    transitions_s: float = 90 * DAY_S
    moves_s: float = 30 * DAY_S
    events_s: float = 30 * DAY_S
    actions_s: float = 90 * DAY_S
    usage_s: float = 90 * DAY_S
    launches_each: int = 20


def prune(conn: Connection, now: float, keep: Retention | None = None, chunk: int = 1000) -> int:
    """Delete up to ``chunk`` rows per table that are past their time at wall time ``now``, give pages back; returns how many.

    One unit of work; submit it again while it returns something. Open moves and actions, unfinished launches and those
    that an instance refers to are never touched, nor the newest action (the numbers of actions go on from it).
    """
    keep = keep or Retention()
    old_moves = _some(moves.c.id, moves.c.ended_at < now - keep.moves_s, chunk)
    conn.execute(delete(move_steps).where(move_steps.c.move.in_(old_moves)))
    newest = select(func.max(actions.c.created_at)).scalar_subquery()
    old_actions = (actions.c.ended_at < now - keep.actions_s) & (actions.c.created_at < newest)
    old_minutes = usage_minutes.c.minute < int((now - keep.usage_s) // 60)
    deleted = (
        _delete(conn, moves, moves.c.id, old_moves)
        + _delete(conn, transitions, transitions.c.seq, _some(transitions.c.seq, transitions.c.at < now - keep.transitions_s, chunk))
        + _delete(conn, events, events.c.seq, _some(events.c.seq, events.c.at < now - keep.events_s, chunk))
        + _delete(conn, actions, actions.c.id, _some(actions.c.id, old_actions, chunk))
        + _delete(conn, usage_minutes, _ROWID, select(_ROWID).select_from(usage_minutes).where(old_minutes).limit(chunk))
        + _delete(conn, launches, launches.c.id, _spare_launches(keep.launches_each, chunk))
    )
    _give_back_pages(conn, chunk)
    return deleted


def _give_back_pages(conn: Connection, limit: int) -> None:
    free = int(conn.exec_driver_sql("PRAGMA freelist_count").scalar_one())
    for _ in range(min(free, limit)):
        # The driver takes only the first step of this statement, and each step frees one page.
        conn.exec_driver_sql("PRAGMA incremental_vacuum(1)")


_ROWID: ColumnElement[int] = literal_column("usage_minutes.rowid")


def _some(key: ColumnElement[Any], old: ColumnElement[bool], chunk: int) -> Select[Any]:
    return select(key).where(old).order_by(key).limit(chunk)


def _delete(conn: Connection, rows: Table, key: ColumnElement[Any], wanted: Select[Any]) -> int:
    return conn.execute(delete(rows).where(key.in_(wanted))).rowcount


def _spare_launches(each: int, chunk: int) -> Select[Any]:
    """Ended launches that nothing refers to, but for the last ``each`` of their instance."""
    newer = func.row_number().over(partition_by=launches.c.instance, order_by=launches.c.id.desc())
    ranked = select(launches.c.id, launches.c.ended_at, newer.label("rank")).subquery()
    used = select(instances.c.launch_id).where(instances.c.launch_id.is_not(None))
    spare = ranked.c.ended_at.is_not(None) & (ranked.c.rank > each) & ranked.c.id.not_in(used)
    return select(ranked.c.id).where(spare).order_by(ranked.c.id).limit(chunk)
