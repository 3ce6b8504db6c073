"""Small helpers shared by the modules that read and write rows."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Table
from sqlalchemy.dialects.sqlite import Insert, insert

from scheduler.domain.instance import GOAL_STOPPED, Goal, Phase
from scheduler.domain.reasons import Code, Reason
from scheduler.store.codec import member


def upsert(conn: Connection, table: Table, values: Mapping[str, object]) -> None:
    """Insert a row, or replace the other columns of the row with the same primary key."""
    conn.execute(_upsert(table, tuple(values)), dict(values))


@lru_cache(maxsize=64)
def _upsert(table: Table, names: tuple[str, ...]) -> Insert:
    """The statement for these columns, built once: building it costs more than running it."""
    keys = [column.name for column in table.primary_key]
    statement = insert(table)
    changed = {name: statement.excluded[name] for name in names if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def reason_values(reason: Reason) -> dict[str, str]:
    """A Reason as its four columns."""
    return {
        "reason_code": reason.code.value,
        "reason_text": reason.text,
        "reason_fix": reason.fix,
        "reason_log_line": reason.log_line,
    }


def reason_of(row: Row[Any]) -> Reason:
    """The Reason in a row; a code of a newer version keeps its text."""
    code = member(Code, row.reason_code, Code.NONE)
    return Reason(code, row.reason_text, row.reason_fix, row.reason_log_line)


def goal_of(row: Row[Any]) -> Goal:
    """The goal in a row; one that this version does not know means stopped, which is always safe."""
    phase = member(Phase, row.goal_phase, Phase.UNKNOWN)
    return GOAL_STOPPED if phase is Phase.UNKNOWN else Goal(phase, row.goal_level)
