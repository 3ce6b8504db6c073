"""The registry of models. A removed model keeps its row: launches, footprints and the story refer to it."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, select, text, update
from sqlalchemy.dialects.sqlite import insert

from scheduler.domain.ids import ModelName
from scheduler.domain.model import ModelSpec
from scheduler.store.codec import dumps, loads
from scheduler.store.tables import models


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A registry row. Times are wall clock; ``updated_at`` is when the definition last changed."""

    spec: ModelSpec
    created_at: float
    updated_at: float
    removed_at: float | None = None


def save_models(conn: Connection, specs: Iterable[ModelSpec], at: float) -> None:
    """Register or redefine models at wall time ``at``; one that was removed is back. Those not named stay as they are."""
    for spec in specs:
        wanted = insert(models).values(name=spec.name, spec=dumps(spec), source=spec.source, created_at=at, updated_at=at)
        new = wanted.excluded
        conn.execute(
            wanted.on_conflict_do_update(
                index_elements=["name"],
                set_={"spec": new.spec, "source": new.source, "updated_at": new.updated_at, "removed_at": None},
                where=(models.c.spec != new.spec) | models.c.removed_at.is_not(None),
            )
        )


def mark_removed(conn: Connection, name: ModelName, at: float) -> None:
    """Take a model out of the registry at wall time ``at``; no error when it is not there any more."""
    conn.execute(update(models).where(models.c.name == name, models.c.removed_at.is_(None)).values(removed_at=at))


def load_models(conn: Connection, *, removed: bool = False) -> list[StoredModel]:
    """The registry in the order of registration; with ``removed`` also what was taken out."""
    query = select(models).order_by(models.c.created_at, text("rowid"))
    if not removed:
        query = query.where(models.c.removed_at.is_(None))
    return [
        StoredModel(
            spec=loads(ModelSpec, row.spec),
            created_at=row.created_at,
            updated_at=row.updated_at,
            removed_at=row.removed_at,
        )
        for row in conn.execute(query)
    ]
