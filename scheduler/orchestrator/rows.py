"""Effects as rows: which effect writes which table."""

from collections.abc import Sequence

from scheduler.domain.launch import LaunchRecord
from scheduler.domain.plan import MoveState
from scheduler.orchestrator.effects import Effect, EndLaunch, Journal, SaveInstance, SaveLearned, SaveMove, SetGolden, SetVersion, Tell
from scheduler.store.connection import Connection
from scheduler.store.events import append_event
from scheduler.store.footprints import StoredFootprint, save_footprint
from scheduler.store.instances import end_launch, save_instance, save_launch, set_launch_golden, set_launch_version
from scheduler.store.journal import end_move, save_move, save_transition


def write(conn: Connection, rows: Sequence[Effect], records: Sequence[LaunchRecord], *, wall: float, boot_id: str) -> None:
    """Write the rows of one pass, launch records first (instances refer to them)."""
    for record in records:
        save_launch(conn, record)
    for row in rows:
        _write_one(conn, row, wall, boot_id)


def _write_one(conn: Connection, row: Effect, wall: float, boot_id: str) -> None:
    match row:
        case Journal():
            save_transition(conn, row.transition)
            save_instance(conn, row.instance, boot_id)
        case SaveInstance():
            save_instance(conn, row.instance, boot_id)
        case EndLaunch():
            end_launch(conn, row.end)
        case SetVersion():
            set_launch_version(conn, row.launch, row.version)
        case SetGolden():
            set_launch_golden(conn, row.launch, row.golden)
        case SaveMove():
            if row.move.state is MoveState.OPEN:
                save_move(conn, row.move)
            else:
                end_move(conn, row.move.id, row.move.state, wall)
        case SaveLearned():
            save_footprint(conn, _footprint(row, wall))
        case Tell():
            append_event(conn, at=wall, kind=row.kind, subject=row.subject, message=row.message, data=dict(row.data))
        case _:
            raise AssertionError(f"{type(row).__name__} is not a row")


def _footprint(row: SaveLearned, wall: float) -> StoredFootprint:
    return StoredFootprint(
        model=row.model, device_kind=row.device_kind, engine_version=row.learned.version, runs=row.learned, updated_at=wall
    )
