"""After a restart: rows become phase unknown, supervisors adopt, strangers with our token are reaped."""

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import InstanceId, LaunchId, ModelName
from scheduler.domain.instance import DaemonRestarted, Instance, Phase, StopIntended, may
from scheduler.domain.launch import LaunchRecord
from scheduler.domain.learned import Learned
from scheduler.domain.plan import MoveState
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator.applier import Applier
from scheduler.orchestrator.context import Context, launch_id
from scheduler.orchestrator.effects import Effect, Find, Stop
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.state import State
from scheduler.store.connection import Connection
from scheduler.store.footprints import load_footprints
from scheduler.store.instances import load_instances, load_launch
from scheduler.store.journal import LastIds, end_move, last_ids, open_moves
from scheduler.store.usage import last_used

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the journal knows: instances with the boot they belong to, launch records, counters, measurements, last use (wall clock)."""

    instances: list[tuple[Instance, str]]
    records: dict[LaunchId, LaunchRecord]
    last: LastIds
    learned: dict[ModelName, Learned]  # of the version that ran last
    kinds: dict[ModelName, str]  # of device, on which it did
    archive: dict[ModelName, dict[str, Learned]]  # of all its versions
    last_used: dict[ModelName, float]


def load_rows(conn: Connection) -> Rows:
    """Read it all."""
    instances = load_instances(conn)
    records = {}
    for instance, _ in instances:
        if instance.launch is not None:
            record = load_launch(conn, instance.launch)
            if record is not None:
                records[record.id] = record
    footprints = load_footprints(conn)
    learned = {row.model: row.runs for row in footprints}
    kinds = {row.model: row.device_kind for row in footprints}
    archive: dict[ModelName, dict[str, Learned]] = {model: {} for model in learned}
    for row in footprints:
        # Of other definitions, and on other devices, nothing counts any more.
        if row.runs.fingerprint == learned[row.model].fingerprint and row.device_kind == kinds[row.model]:
            archive[row.model][row.engine_version] = row.runs
    used = {ModelName(model): at for model, at in last_used(conn).items()}
    last = last_ids(conn)
    return Rows(instances=instances, records=records, last=last, learned=learned, kinds=kinds, archive=archive, last_used=used)


def close_moves(conn: Connection, wall: float) -> int:
    """Moves do not survive a restart: demand is found out again. Returns how many were open."""
    found = open_moves(conn)
    for move in found:
        end_move(conn, move.id, MoveState.CANCELLED, wall)
    return len(found)


def seed(state: State, rows: Rows, boot_id: str) -> dict[InstanceId, LaunchRecord]:
    """Put the rows into the state as they are; returns the launch records of what may still have a process."""
    state.next.seq = rows.last.transition + 1
    state.next.launch = rows.last.launch + 1
    state.next.move = rows.last.move + 1
    alive = {}
    for row, row_boot in rows.instances:
        instance = row if row_boot == boot_id else _other_boot(row, state.now_s)
        state.instances[instance.id] = instance
        record = rows.records.get(instance.launch) if instance.launch is not None else None
        if instance.has_process and record is not None:
            alive[instance.id] = record
            live = state.live_of(instance.id)
            live.fingerprint = record.fingerprint
            live.kv_bytes = record.kv_bytes or 0
            live.effect_at_s = instance.since_s  # what goes on has begun before this daemon
            live.launched_at_s = instance.since_s if instance.phase is Phase.LAUNCHING else None
    for model, runs in rows.learned.items():
        state.facts_of(model).learned, state.facts_of(model).learned_kind = runs, rows.kinds[model]
        state.facts_of(model).archive = rows.archive[model]
    for model, at in rows.last_used.items():
        facts = state.facts_of(model)
        facts.last_used_wall = at
        facts.last_used_s = state.now_s - max(0.0, state.wall - at)
    return alive


def _other_boot(instance: Instance, now_s: float) -> Instance:
    """Monotonic times of another boot mean nothing: start them now."""
    retry = None if instance.retry_at_s is None else now_s
    deadline = None if instance.deadline_s is None else now_s
    launch = None if instance.launch_deadline_s is None else now_s
    return replace(instance, since_s=now_s, deadline_s=deadline, launch_deadline_s=launch, retry_at_s=retry)


def restart(state: State, alive: Mapping[InstanceId, LaunchRecord], applier: Applier) -> list[Effect]:
    """Adopt: every row with a process becomes unknown and is looked at; a stop in progress goes on without a look."""
    ctx = Context(state)
    for iid, instance in list(state.instances.items()):
        if not instance.has_process:
            continue
        record = alive.get(iid)
        if record is None:
            log.error("%s is %s but has no launch record: it is forgotten", iid, instance.phase)
            state.instances[iid] = Instance(id=iid, since_s=state.now_s)
            continue
        applier.supervisor(iid).adopt(record)
        _resume(ctx, instance, record)
    return ctx.effects


def _resume(ctx: Context, instance: Instance, record: LaunchRecord) -> None:
    policy = ctx.state.policy
    reason = Reason(Code.RESTARTED, f"the daemon restarted while it was {instance.phase.value.replace('_', ' ')}")
    started = instance.phase is Phase.LAUNCHING or instance.before is Phase.LAUNCHING
    if may(instance, DaemonRestarted):
        ctx.transition(instance.id, DaemonRestarted(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.probe_timeout_s))
    elif instance.phase is Phase.UNKNOWN:
        ctx.state.instances[instance.id] = replace(instance, reason=reason, deadline_s=ctx.now_s + policy.probe_timeout_s)
    seq = ctx.state.last_seq.get(instance.id, 0)
    now = ctx.instance(instance.id)
    if now.phase is Phase.UNKNOWN and record.pid is None:
        stop = StopIntended(at_s=ctx.now_s, reason=reason, deadline_s=ctx.now_s + policy.term_grace_s)
        seq = ctx.transition(instance.id, stop)
    if ctx.instance(instance.id).phase is Phase.STOPPING:
        due = instance.deadline_s is not None and ctx.now_s >= instance.deadline_s
        ctx.emit(Stop(instance=instance.id, launch=launch_id(instance), seq=seq, kill=due))
    else:
        ctx.emit(Find(instance=instance.id, launch=launch_id(instance), seq=seq, started_before=started))


async def reap(state: State, parts: Parts) -> AsyncIterator[str]:
    """Kill what carries our token and belongs to no row (an orphan of a crash); gives a line for each.

    One that may not be signalled keeps the others from nothing. Raises whatever the list of processes does.
    """
    for owned in await parts.launcher.owned(parts.state_uuid):
        # Asked anew for each: while the scan and the kills took their time, this daemon has begun to launch.
        if owned.token in {f"{parts.state_uuid}:{i.launch}" for i in state.with_process()}:
            continue
        orphan = f"orphan process {owned.handle.pid} of launch {owned.token.rpartition(':')[2]}"
        try:
            await parts.launcher.terminate(owned.handle, kill=True)
        except HotseatError as error:
            yield f"cannot end {orphan}: {error.message}"
        else:
            yield f"ended {orphan}: no model is seated there"
