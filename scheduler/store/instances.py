"""Instances as they stand, and the launch records of their engine processes."""

from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select, update

from scheduler.domain.claims import Claim, Footprint
from scheduler.domain.errors import NotFound
from scheduler.domain.ids import CauseId, DeviceId, InstanceId, LaunchId, model_of
from scheduler.domain.instance import Failures, Instance, Phase
from scheduler.domain.launch import LaunchEnd, LaunchRecord
from scheduler.domain.reasons import Code
from scheduler.store.codec import dumps, loads, member
from scheduler.store.rows import goal_of, reason_of, reason_values, upsert
from scheduler.store.tables import instances, launches

#: Columns of ``launches`` that are the record's fields as they are.
_PLAIN = (
    *("id", "instance", "engine", "env_hash", "cwd", "port", "kv_bytes", "token", "fingerprint", "served_model"),
    *("ready_path", "log_path", "boot_id", "created_at", "pid", "start_ticks", "version", "golden"),
)
#: ... and those that are JSON, with the type to read them back as.
_JSON: dict[str, Any] = {
    "argv": tuple[str, ...],
    "env": tuple[tuple[str, str], ...],
    "devices": tuple[DeviceId, ...],
    "footprint": Footprint,
    "sleep_paths": tuple[tuple[str, float], ...],
    "wake_paths": tuple[tuple[str, float], ...],
}


def save_instance(conn: Connection, instance: Instance, boot_id: str) -> None:
    """Write the row; its monotonic times belong to ``boot_id``.

    Its model must be in the registry and its launch must have been saved before (Conflict ``store_constraint``):
    no engine process without a committed launch record.
    """
    upsert(
        conn,
        instances,
        {
            "id": instance.id,
            "model": model_of(instance.id),
            "ordinal": int(instance.id.rpartition("#")[2]),
            "variant": "",
            "phase": instance.phase.value,
            "level": instance.level,
            "goal_phase": instance.goal.phase.value,
            "goal_level": instance.goal.level,
            "devices": dumps(instance.devices),
            "launch_id": instance.launch,
            "claim": dumps(instance.claim),
            "since_s": instance.since_s,
            "deadline_s": instance.deadline_s,
            "launch_deadline_s": instance.launch_deadline_s,
            "retry_at_s": instance.retry_at_s,
            "before": None if instance.before is None else instance.before.value,
            "failures": dumps(instance.failures),
            "cause": instance.cause,
            **reason_values(instance.reason),
            "boot_id": boot_id,
        },
    )


def load_instances(conn: Connection) -> list[tuple[Instance, str]]:
    """All instances with the boot that their monotonic times belong to, by id."""
    return [(_instance_of(row), row.boot_id) for row in conn.execute(select(instances).order_by(instances.c.id))]


def _instance_of(row: Row[Any]) -> Instance:
    return Instance(
        id=InstanceId(row.id),
        phase=member(Phase, row.phase, Phase.UNKNOWN),
        level=row.level,
        goal=goal_of(row),
        devices=loads(tuple[DeviceId, ...], row.devices),
        launch=None if row.launch_id is None else LaunchId(row.launch_id),
        claim=loads(Claim, row.claim),
        since_s=row.since_s,
        deadline_s=row.deadline_s,
        launch_deadline_s=row.launch_deadline_s,
        retry_at_s=row.retry_at_s,
        before=None if row.before is None else member(Phase, row.before, Phase.UNKNOWN),
        failures=loads(Failures, row.failures),
        cause=CauseId(row.cause),
        reason=reason_of(row),
    )


def save_launch(conn: Connection, record: LaunchRecord) -> None:
    """Append a launch record; number and token must be new (Conflict ``store_constraint``)."""
    plain = {name: getattr(record, name) for name in _PLAIN}
    encoded = {name: dumps(getattr(record, name)) for name in _JSON}
    conn.execute(insert(launches), {"model": model_of(record.instance), **plain, **encoded})


def set_launch_process(conn: Connection, launch: LaunchId, boot_id: str, pid: int, start_ticks: int) -> None:
    """Record the process that waits at the gate, before it is let through; raises NotFound (``store_no_row``)."""
    _change(conn, launch, boot_id=boot_id, pid=pid, start_ticks=start_ticks)


def set_launch_version(conn: Connection, launch: LaunchId, version: str) -> None:
    """Record the engine's version, known at Ready; raises NotFound (``store_no_row``)."""
    _change(conn, launch, version=version)


def set_launch_golden(conn: Connection, launch: LaunchId, golden: str) -> None:
    """Record what the engine answered after its start; raises NotFound (``store_no_row``)."""
    _change(conn, launch, golden=golden)


def end_launch(conn: Connection, end: LaunchEnd) -> None:
    """Record how a launch ended, or that its start did; raises NotFound (``store_no_row``).

    Seconds are those of the start: an end that tells none leaves what was recorded when it became ready.
    """
    timed = {} if end.duration_s is None else {"duration_s": end.duration_s}
    _change(
        conn,
        end.launch,
        ended_at=end.at,
        result=end.result,
        exit_code=end.exit_code,
        exit_signal=end.exit_signal,
        end_reason=end.reason.value,
        log_line=end.log_line,
        **timed,
    )


def _change(conn: Connection, launch: LaunchId, **values: object) -> None:
    if conn.execute(update(launches).where(launches.c.id == launch).values(**values)).rowcount == 0:
        raise NotFound(f"no launch {launch} in the journal", code="store_no_row")


def load_launch(conn: Connection, launch: LaunchId) -> LaunchRecord | None:
    """One launch record."""
    found = _launches(conn, select(launches).where(launches.c.id == launch))
    return found[0][0] if found else None


def load_launch_end(conn: Connection, launch: LaunchId) -> LaunchEnd | None:
    """How a launch ended, None while it has not."""
    found = _launches(conn, select(launches).where(launches.c.id == launch))
    return found[0][1] if found else None


def recent_launches(conn: Connection, instance: InstanceId, limit: int) -> list[tuple[LaunchRecord, LaunchEnd | None]]:
    """The last ``limit`` launches of an instance, newest first."""
    return _launches(conn, select(launches).where(launches.c.instance == instance).order_by(launches.c.id.desc()).limit(limit))


def open_launches(conn: Connection) -> list[LaunchRecord]:
    """Launches without an end, oldest first."""
    query = select(launches).where(launches.c.ended_at.is_(None)).order_by(launches.c.id)
    return [record for record, _ in _launches(conn, query)]


def _launches(conn: Connection, query: Select[Any]) -> list[tuple[LaunchRecord, LaunchEnd | None]]:
    return [(_record_of(row), _end_of(row)) for row in conn.execute(query)]


def _record_of(row: Row[Any]) -> LaunchRecord:
    values = row._mapping
    plain = {name: values[name] for name in _PLAIN}
    decoded = {name: loads(kind, values[name]) for name, kind in _JSON.items()}
    return LaunchRecord(**plain, **decoded)


def _end_of(row: Row[Any]) -> LaunchEnd | None:
    if row.ended_at is None:
        return None
    return LaunchEnd(
        launch=LaunchId(row.id),
        at=row.ended_at,
        result=row.result,
        exit_code=row.exit_code,
        exit_signal=row.exit_signal,
        reason=member(Code, row.end_reason, Code.NONE),
        log_line=row.log_line or "",
        duration_s=row.duration_s,
    )
