"""The story: transitions of instances, moves and their steps, and the highest numbers given so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, insert, select, text, update

from scheduler.domain.errors import NotFound
from scheduler.domain.ids import ActionId, CauseId, DeviceId, InstanceId, ModelName, MoveId, model_of
from scheduler.domain.instance import Phase, Transition
from scheduler.domain.plan import Move, MoveState, Step, StepKind
from scheduler.store.codec import dumps, loads, member
from scheduler.store.rows import goal_of, reason_of, reason_values, upsert
from scheduler.store.tables import move_steps, moves, transitions


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIds:
    """The highest numbers ever given, 0 = none; rows that were pruned since count as well."""

    transition: int = 0
    launch: int = 0
    move: int = 0
    event: int = 0
    action: int = 0  # the number in the newest ids of the form "a17"


def save_transition(conn: Connection, transition: Transition) -> None:
    """Append one line; its ``seq`` must be new (Conflict ``store_constraint`` otherwise)."""
    conn.execute(
        insert(transitions),
        {
            "seq": transition.seq,
            "at": transition.at,
            "instance": transition.instance,
            "model": model_of(transition.instance),
            "source": transition.source.value,
            "target": transition.target.value,
            "event": transition.event,
            "cause": transition.cause,
            **reason_values(transition.reason),
        },
    )


def story(conn: Connection, subject: InstanceId | ModelName, limit: int = 100) -> list[Transition]:
    """The last ``limit`` transitions of an instance, or of all instances of a model; oldest first."""
    column = transitions.c.instance if "#" in subject else transitions.c.model
    return _transitions(conn, select(transitions).where(column == subject).order_by(transitions.c.seq.desc()).limit(limit))


def _transitions(conn: Connection, newest_first: Select[Any]) -> list[Transition]:
    found = [
        Transition(
            seq=row.seq,
            at=row.at,
            instance=InstanceId(row.instance),
            source=member(Phase, row.source, Phase.UNKNOWN),
            target=member(Phase, row.target, Phase.UNKNOWN),
            event=row.event,
            cause=CauseId(row.cause),
            reason=reason_of(row),
        )
        for row in conn.execute(newest_first)
    ]
    return found[::-1]


def save_move(conn: Connection, move: Move) -> None:
    """Write a move with its steps; written again, it is replaced."""
    upsert(
        conn,
        moves,
        {
            "id": move.id,
            "devices": dumps(move.devices),
            "cause": move.cause,
            "created_s": move.created_s,
            "beneficiary": move.beneficiary,
            "force": int(move.force),
            "action": move.action,
            "state": move.state.value,
            **reason_values(move.reason),
        },
    )
    conn.execute(delete(move_steps).where(move_steps.c.move == move.id))
    if move.steps:
        conn.execute(insert(move_steps), [_step_values(move.id, position, step) for position, step in enumerate(move.steps)])


def _step_values(move: MoveId, position: int, step: Step) -> dict[str, object]:
    return {
        "move": move,
        "position": position,
        "instance": step.instance,
        "goal_phase": step.goal.phase.value,
        "goal_level": step.goal.level,
        "kind": step.kind.value,
        "devices": dumps(step.devices),
    }


def end_move(conn: Connection, move: MoveId, state: MoveState, at: float) -> None:
    """Close a move at wall time ``at``; raises NotFound (``store_no_row``)."""
    done = conn.execute(update(moves).where(moves.c.id == move).values(state=state.value, ended_at=at))
    if done.rowcount == 0:
        raise NotFound(f"no move {move} in the journal", code="store_no_row")


def load_move(conn: Connection, move: MoveId) -> Move | None:
    """One move with its steps."""
    found = _moves(conn, select(moves).where(moves.c.id == move))
    return found[0] if found else None


def open_moves(conn: Connection) -> list[Move]:
    """Moves that were not closed, oldest first."""
    return _moves(conn, select(moves).where(moves.c.state == MoveState.OPEN.value).order_by(moves.c.id))


def _moves(conn: Connection, query: Select[Any]) -> list[Move]:
    rows = conn.execute(query).all()
    steps: dict[int, list[Step]] = {row.id: [] for row in rows}
    wanted = select(move_steps).where(move_steps.c.move.in_(steps)).order_by(move_steps.c.move, move_steps.c.position)
    for row in conn.execute(wanted):
        steps[row.move].append(_step_of(row))
    return [_move_of(row, steps[row.id]) for row in rows]


def _step_of(row: Row[Any]) -> Step:
    return Step(
        instance=InstanceId(row.instance),
        goal=goal_of(row),
        kind=StepKind(row.kind),
        devices=loads(tuple[DeviceId, ...], row.devices),
    )


def _move_of(row: Row[Any], steps: Sequence[Step]) -> Move:
    return Move(
        id=MoveId(row.id),
        devices=loads(frozenset[DeviceId], row.devices),
        steps=tuple(steps),
        cause=CauseId(row.cause),
        created_s=row.created_s,
        beneficiary=None if row.beneficiary is None else ModelName(row.beneficiary),
        force=bool(row.force),
        action=None if row.action is None else ActionId(row.action),
        reason=reason_of(row),
        state=member(MoveState, row.state, MoveState.FAILED),
    )


def last_ids(conn: Connection) -> LastIds:
    """For the counters of a new daemon: numbers are never given twice (a launch's number is in its engine's token)."""
    given = {row.name: row.seq for row in conn.execute(text("SELECT name, seq FROM sqlite_sequence"))}
    action = conn.execute(text("SELECT max(CAST(substr(id, 2) AS INTEGER)) FROM actions WHERE id GLOB 'a[0-9]*'")).scalar()
    return LastIds(
        transition=given.get("transitions", 0),
        launch=given.get("launches", 0),
        move=given.get("moves", 0),
        event=given.get("events", 0),
        action=action or 0,
    )
