"""What was measured on models: the last runs, per engine version, flags and kind of device."""

from dataclasses import dataclass

from sqlalchemy import Connection, select

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.ids import ModelName
from scheduler.domain.learned import Learned
from scheduler.store.codec import dumps, loads, member
from scheduler.store.rows import upsert
from scheduler.store.tables import footprints


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFootprint:
    """One row. ``runs.fingerprint`` is part of the key; ``numbers`` is what was computed from the runs, if anything."""

    model: ModelName
    device_kind: str
    runs: Learned
    engine: str = ""
    engine_version: str = ""
    numbers: Footprint | None = None
    source: Source = Source.MEASURED
    updated_at: float = 0.0


def save_footprint(conn: Connection, footprint: StoredFootprint) -> None:
    """Write a row; its model must be in the registry (Conflict ``store_constraint``)."""
    upsert(
        conn,
        footprints,
        {
            "model": footprint.model,
            "engine": footprint.engine,
            "engine_version": footprint.engine_version,
            "fingerprint": footprint.runs.fingerprint,
            "device_kind": footprint.device_kind,
            "numbers": None if footprint.numbers is None else dumps(footprint.numbers),
            "source": footprint.source.value,
            "runs": dumps(footprint.runs),
            "updated_at": footprint.updated_at,
        },
    )


def load_footprints(conn: Connection, model: ModelName | None = None) -> list[StoredFootprint]:
    """All rows, or those of one model; the newest last, so that a later one wins in a dict."""
    query = select(footprints).order_by(footprints.c.updated_at, footprints.c.model, footprints.c.device_kind)
    if model is not None:
        query = query.where(footprints.c.model == model)
    return [
        StoredFootprint(
            model=ModelName(row.model),
            device_kind=row.device_kind,
            runs=loads(Learned, row.runs),
            engine=row.engine,
            engine_version=row.engine_version,
            numbers=None if row.numbers is None else loads(Footprint, row.numbers),
            source=member(Source, row.source, Source.ESTIMATED),
            updated_at=row.updated_at,
        )
        for row in conn.execute(query)
    ]
