"""What operators asked for, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select, update

from scheduler.domain.ids import ActionId, ModelName
from scheduler.store.codec import dumps, loads
from scheduler.store.rows import upsert
from scheduler.store.tables import actions

RUNNING = "running"
FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAction:
    """One action. Times are wall clock; ``result`` is set when it has ended."""

    id: ActionId
    verb: str
    model: ModelName | None
    principal: str
    created_at: float
    state: str = RUNNING
    ended_at: float | None = None
    result: Mapping[str, object] | None = None


def save_action(conn: Connection, action: StoredAction) -> None:
    """Write an action; written again, it is replaced."""
    upsert(
        conn,
        actions,
        {
            "id": action.id,
            "verb": action.verb,
            "model": action.model,
            "state": action.state,
            "principal": action.principal,
            "created_at": action.created_at,
            "ended_at": action.ended_at,
            "result": None if action.result is None else dumps(action.result),
        },
    )


def close_actions(conn: Connection, at: float, result: Mapping[str, object]) -> None:
    """What an earlier daemon left running failed with it; ``at`` = wall time."""
    values = {"state": FAILED, "ended_at": at, "result": dumps(result)}
    conn.execute(update(actions).where(actions.c.ended_at.is_(None)).values(values))


def recent_actions(conn: Connection, limit: int = 100) -> list[StoredAction]:
    """The last ``limit`` actions, newest first."""
    return [_action_of(row) for row in conn.execute(select(actions).order_by(actions.c.created_at.desc()).limit(limit))]


def _action_of(row: Row[Any]) -> StoredAction:
    return StoredAction(
        id=ActionId(row.id),
        verb=row.verb,
        model=None if row.model is None else ModelName(row.model),
        principal=row.principal,
        created_at=row.created_at,
        state=row.state,
        ended_at=row.ended_at,
        result=None if row.result is None else loads(dict[str, object], row.result),
    )
