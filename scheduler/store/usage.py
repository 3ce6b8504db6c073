"""Usage per model, minute, principal and endpoint. Rows are sums: writing adds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, cast, func, select
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import Text

from scheduler.domain.ids import ModelName
from scheduler.store.tables import usage_minutes as table

By = Literal["model", "principal", "endpoint", "minute", "hour", "day"]

_COUNTS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "holds", "cold_hits", "hold_seconds")
_KEY = ("model", "minute", "principal", "endpoint")
_MINUTES = {"minute": 1, "hour": 60, "day": 1440}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums. ``errors`` are requests that ended with one, ``holds`` those that waited (``hold_seconds`` in all), ``cold_hits``
    those that waited for a wake or a start."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    holds: int = 0
    cold_hits: int = 0
    hold_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What is added to the minute of wall time ``at``."""

    model: ModelName
    at: float
    principal: str
    endpoint: str
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """``key`` is the model, principal or endpoint, or the POSIX second at which the minute, hour or day (UTC) begins."""

    key: str
    counts: Counts


def add_usage(conn: Connection, rows: Iterable[UsageRow]) -> None:
    """Add to the sums of each row's minute."""
    values = [_values(row) for row in rows]
    if not values:
        return
    statement = insert(table)
    new = statement.excluded
    added = {name: table.c[name] + new[name] for name in _COUNTS}
    latest = func.max(table.c.last_at, new.last_at)
    conn.execute(statement.on_conflict_do_update(index_elements=_KEY, set_={**added, "last_at": latest}), values)


def _values(row: UsageRow) -> dict[str, object]:
    return {
        "model": row.model,
        "minute": int(row.at // 60),
        "principal": row.principal,
        "endpoint": row.endpoint,
        "last_at": row.at,
        **{name: getattr(row.counts, name) for name in _COUNTS},
    }


def usage_by(
    conn: Connection,
    by: By,
    *,
    since: float = 0.0,
    until: float | None = None,
    model: ModelName | None = None,
    principal: str | None = None,
) -> list[UsageSum]:
    """Sums over whole minutes from ``since`` to before ``until`` (wall seconds), grouped and ordered by ``by``."""
    key = _key(by)
    sums = [func.sum(table.c[name]).label(name) for name in _COUNTS]
    query = select(cast(key, Text).label("key"), *sums).where(table.c.minute >= int(since // 60)).group_by(key).order_by(key)
    if until is not None:
        query = query.where(table.c.minute < -int(-until // 60))
    if model is not None:
        query = query.where(table.c.model == model)
    if principal is not None:
        query = query.where(table.c.principal == principal)
    return [UsageSum(key=row.key, counts=Counts(**{name: row._mapping[name] for name in _COUNTS})) for row in conn.execute(query)]


def _key(by: By) -> ColumnElement[int] | ColumnElement[str]:
    if by in _MINUTES:
        width = _MINUTES[by]
        return (table.c.minute - table.c.minute % width) * 60
    return table.c[by]


def last_used(conn: Connection) -> dict[ModelName, float]:
    """When each model was last used, wall seconds. Rows without a request (only holds that were given up) do not count."""
    query = select(table.c.model, func.max(table.c.last_at)).where(table.c.requests > 0).group_by(table.c.model)
    return {ModelName(row[0]): row[1] for row in conn.execute(query)}
