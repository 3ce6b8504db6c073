"""Writes the database that a release leaves behind: ``python -m tests.migration.write_database``.

Run once per schema, before its release; the file is committed under tests/data and never written again, because it
stands for what is on somebody's disk. Its rows are ROWS below, which the test compares.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import ActionId, DeviceId, LaunchId, MoveId
from scheduler.domain.launch import LaunchEnd
from scheduler.domain.plan import MoveState
from scheduler.domain.reasons import Code
from scheduler.store.actions import StoredAction, recent_actions, save_action
from scheduler.store.backup import backup_database
from scheduler.store.devices import load_devices, save_devices
from scheduler.store.engine import open_database
from scheduler.store.events import StoredEvent, append_event, list_events
from scheduler.store.footprints import StoredFootprint, load_footprints, save_footprint
from scheduler.store.instances import end_launch, load_instances, open_launches, recent_launches, save_instance, save_launch
from scheduler.store.journal import end_move, load_move, open_moves, save_move, save_transition, story
from scheduler.store.meta import get_meta, next_epoch
from scheduler.store.models import StoredModel, load_models, mark_removed, save_models
from scheduler.store.tables import SCHEMA
from scheduler.store.usage import Counts, UsageRow, UsageSum, add_usage, last_used, usage_by
from tests.support.store_records import A0, BOOT, A, StillClock, footprint, instance, launch, learned, model, move, transition

DATA = Path(__file__).parents[1] / "data"
UUID = "5f0c0f3a6f0b4c0e9d0a000000000001"
NOW = 1_800_000_000.0

_END = LaunchEnd(
    launch=LaunchId(1), at=NOW + 60, result="failed", exit_code=1, reason=Code.DEVICE_OOM, log_line="out of memory", duration_s=3.5
)
_FOOTPRINT = StoredFootprint(
    model=A, device_kind="cpu", runs=learned(), engine="llamacpp", engine_version="b7000", numbers=footprint(), updated_at=NOW
)
_ACTION = StoredAction(
    id=ActionId("a7"),
    verb="wake",
    model=A,
    principal="office",
    created_at=NOW,
    state="done",
    ended_at=NOW + 3,
    result={"code": "ok", "waited_s": 2.9},
)
_CARD = DeviceInfo(id=DeviceId("gpu0"), kind="nvidia", name="A100", index=1, uuid="GPU-1", capacity_bytes=80 << 30)
_USED = Counts(requests=3, errors=1, prompt_tokens=100, cached_tokens=60, completion_tokens=20, holds=1, cold_hits=1, hold_seconds=2.5)


def populate(conn: Connection) -> None:
    """At least one row in every table."""
    save_models(conn, [model(A), model("b"), model("gone")], NOW)
    mark_removed(conn, model("gone").name, NOW + 1)
    save_footprint(conn, _FOOTPRINT)
    save_launch(conn, launch(1))
    end_launch(conn, _END)
    save_launch(conn, launch(2, pid=4711, start_ticks=99, version="b7000"))
    save_instance(conn, instance(launch=LaunchId(2)), BOOT)
    save_instance(conn, instance("b#0"), BOOT)
    save_transition(conn, transition(1))
    save_transition(conn, transition(2, "b#0"))
    save_move(conn, move(1))
    end_move(conn, MoveId(1), MoveState.DONE, NOW + 9)
    save_move(conn, move(2))
    append_event(conn, at=NOW, kind="woke", subject=A, message="woke org/a", data={"seconds": 2.9, "device": "cpu0"})
    save_action(conn, _ACTION)
    add_usage(conn, [UsageRow(model=A, at=NOW + 30, principal="office", endpoint="chat/completions", counts=_USED)])
    next_epoch(conn)
    save_devices(conn, [_CARD], NOW)


#: What is read back from a database that ``populate`` filled, whichever release wrote it.
ROWS: dict[str, tuple[Callable[[Connection], Any], Any]] = {
    "models": (
        lambda conn: load_models(conn, removed=True),
        [
            StoredModel(spec=model(A), created_at=NOW, updated_at=NOW),
            StoredModel(spec=model("b"), created_at=NOW, updated_at=NOW),
            StoredModel(spec=model("gone"), created_at=NOW, updated_at=NOW, removed_at=NOW + 1),
        ],
    ),
    "footprints": (load_footprints, [_FOOTPRINT]),
    "launches": (
        lambda conn: recent_launches(conn, A0, 9),
        [(launch(2, pid=4711, start_ticks=99, version="b7000"), None), (launch(1), _END)],
    ),
    "open launches": (lambda conn: [record.id for record in open_launches(conn)], [2]),
    "instances": (load_instances, [(instance("b#0"), BOOT), (instance(launch=LaunchId(2)), BOOT)]),
    "transitions": (lambda conn: story(conn, A), [transition(1)]),
    "moves": (lambda conn: load_move(conn, MoveId(1)), dataclasses.replace(move(1), state=MoveState.DONE)),
    "open moves": (open_moves, [move(2)]),
    "events": (
        list_events,
        [StoredEvent(seq=1, at=NOW, kind="woke", subject=A, message="woke org/a", data={"seconds": 2.9, "device": "cpu0"})],
    ),
    "actions": (lambda conn: recent_actions(conn), [_ACTION]),
    "usage": (lambda conn: usage_by(conn, "principal"), [UsageSum(key="office", counts=_USED)]),
    "last used": (last_used, {A: NOW + 30}),
    "uuid": (lambda conn: get_meta(conn, "state_uuid"), UUID),
    "epoch": (lambda conn: get_meta(conn, "epoch"), "1"),
}

#: ... and what only releases from that schema on have written.
SINCE: dict[int, dict[str, tuple[Callable[[Connection], Any], Any]]] = {
    2: {"devices": (lambda conn: load_devices(conn, "nvidia"), {"GPU-1": "gpu0"})},
}


def write(path: Path) -> None:
    """Make ``path`` with the present schema and rows."""
    database = open_database(path, clock=StillClock(), mode="inline", state_uuid=UUID)
    with database.connect_writer() as conn, conn.begin():
        populate(conn)
    database.close()


def main() -> None:
    """Write the file of the present schema unless there is one."""
    target = DATA / f"store-{SCHEMA:04d}.db"
    if target.exists():
        raise SystemExit(f"{target.name} exists; a released schema's database is never written again")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "hotseat.db"
        write(scratch)
        backup_database(scratch, target)  # one file, without a write-ahead log


if __name__ == "__main__":
    main()
