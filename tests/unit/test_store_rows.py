"""Every record comes back from the tables as it was written, and what is asked of them is answered right."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select, text

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.errors import Conflict, NotFound
from scheduler.domain.ids import ActionId, InstanceId, LaunchId, ModelName, MoveId, model_of
from scheduler.domain.instance import GOAL_STOPPED, Goal, Instance, Phase, Transition
from scheduler.domain.launch import LaunchEnd, LaunchRecord
from scheduler.domain.learned import Learned
from scheduler.domain.plan import Move, MoveState, Step
from scheduler.domain.reasons import Code, Reason
from scheduler.store import tables
from scheduler.store.actions import StoredAction, close_actions, recent_actions, save_action
from scheduler.store.engine import Database, open_database, translated
from scheduler.store.events import append_event, list_events, newest_events
from scheduler.store.footprints import StoredFootprint, load_footprints, save_footprint
from scheduler.store.instances import (
    _JSON,
    _PLAIN,
    end_launch,
    load_instances,
    load_launch,
    load_launch_end,
    open_launches,
    recent_launches,
    save_instance,
    save_launch,
    set_launch_process,
    set_launch_version,
)
from scheduler.store.journal import end_move, last_ids, load_move, open_moves, save_move, save_transition, story
from scheduler.store.meta import get_meta, next_epoch, set_meta
from scheduler.store.models import load_models, mark_removed, save_models
from scheduler.store.retention import DAY_S, Retention, prune
from scheduler.store.usage import Counts, UsageRow, add_usage, last_used, usage_by
from tests.support.store_records import A0, BOOT, A, StillClock, any_of, instance, launch, model, move, transition

B = ModelName("b")
B0 = InstanceId("b#0")
_NAMED = any_of(InstanceId)
few = settings(max_examples=40)
_GOALS = any_of(Goal, phase=st.sampled_from([Phase.AWAKE, Phase.ASLEEP, Phase.STOPPED]))


class Undone:
    """A transaction that is rolled back: what hypothesis writes in one example is not there in the next."""

    def __init__(self, database: Database) -> None:
        self.connection = database.connect_writer()

    def __enter__(self) -> Connection:
        self.connection.begin()
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.rollback()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undone]:
    database = open_database(tmp_path_factory.mktemp("store") / "hotseat.db", clock=StillClock(), mode="inline", durable=False)
    undone = Undone(database)
    yield undone
    undone.connection.close()
    database.close()


@pytest.fixture
def conn(store: Undone) -> Iterator[Connection]:
    with store as connection:
        save_models(connection, [model(A), model(B)], 1.0)
        yield connection


# --- round trips ----------------------------------------------------------------------------------------------------


@few
@given(any_of(Instance, id=_NAMED, goal=_GOALS, launch=st.none()), st.text(max_size=8))
def test_any_instance_comes_back(store: Undone, row: Instance, boot: str) -> None:
    with store as conn:
        save_models(conn, [model(row.model)], 1.0)
        save_instance(conn, instance(row.id), "an earlier row of the same id")
        save_instance(conn, row, boot)
        assert load_instances(conn) == [(row, boot)]


@few
@given(any_of(LaunchRecord, id=st.integers(1, 2**62), pid=st.none(), start_ticks=st.none()), any_of(LaunchEnd))
def test_any_launch_comes_back_with_what_became_known_later(store: Undone, record: LaunchRecord, end: LaunchEnd) -> None:
    with store as conn:
        save_models(conn, [model(model_of(record.instance))], 1.0)
        save_launch(conn, record)
        assert load_launch(conn, record.id) == record
        assert open_launches(conn) == [record]
        set_launch_process(conn, record.id, "boot-2", 4711, 99)
        set_launch_version(conn, record.id, "9.9")
        known = dataclasses.replace(record, boot_id="boot-2", pid=4711, start_ticks=99, version="9.9")
        assert recent_launches(conn, record.instance, 1) == [(known, None)]
        end = dataclasses.replace(end, launch=record.id)
        end_launch(conn, end)
        assert recent_launches(conn, record.instance, 1) == [(known, end)]
        assert load_launch_end(conn, record.id) == end
        assert open_launches(conn) == []


@few
@given(any_of(LaunchRecord, id=st.integers(1, 2**62), pid=st.none(), start_ticks=st.none()), st.sampled_from(["stopped", "lost"]))
def test_the_seconds_of_a_start_are_kept_when_it_ends(store: Undone, record: LaunchRecord, result: str) -> None:
    with store as conn:
        save_models(conn, [model(model_of(record.instance))], 1.0)
        save_launch(conn, record)
        end_launch(conn, LaunchEnd(launch=record.id, at=7.0, result="ready", duration_s=6.5))
        end_launch(conn, LaunchEnd(launch=record.id, at=90.0, result=result))
        assert load_launch_end(conn, record.id) == LaunchEnd(launch=record.id, at=90.0, result=result, duration_s=6.5)


@few
@given(any_of(Transition, seq=st.integers(1, 2**62)))
def test_any_transition_comes_back(store: Undone, line: Transition) -> None:
    with store as conn:
        save_transition(conn, line)
        assert story(conn, line.instance) == [line]
        assert story(conn, model_of(line.instance)) == [line]
        assert last_ids(conn).transition == line.seq


@few
@given(any_of(Move, id=st.integers(1, 2**62), steps=st.lists(any_of(Step, goal=_GOALS), max_size=3).map(tuple)))
def test_any_move_comes_back(store: Undone, whole: Move) -> None:
    with store as conn:
        save_move(conn, move(whole.id))
        save_move(conn, whole)
        assert load_move(conn, whole.id) == whole
        assert open_moves(conn) == ([whole] if whole.state is MoveState.OPEN else [])


@few
@given(any_of(Learned), st.none() | any_of(Footprint), any_of(Source), st.text(max_size=5), st.text(max_size=5))
def test_any_footprint_comes_back(store: Undone, runs: Learned, numbers: Footprint | None, source: Source, kind: str, version: str) -> None:
    with store as conn:
        save_models(conn, [model()], 1.0)
        row = StoredFootprint(model=A, device_kind=kind, runs=runs, engine_version=version, numbers=numbers, source=source, updated_at=2.0)
        save_footprint(conn, dataclasses.replace(row, source=Source.DECLARED))
        save_footprint(conn, row)
        assert load_footprints(conn) == load_footprints(conn, A) == [row]
        assert load_footprints(conn, B) == []


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_DETAILS = st.dictionaries(st.text(max_size=5), _JSON_VALUES, max_size=3)


@few
@given(st.lists(st.tuples(st.floats(0, 1e10), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), _DETAILS), max_size=4))
def test_any_events_come_back_in_order(store: Undone, lines: list[tuple[float, str, str, str, dict[str, Any]]]) -> None:
    with store as conn:
        seqs = [append_event(conn, at=at, kind=k, subject=s, message=m, data=data) for at, k, s, m, data in lines]
        read = list_events(conn)
        assert [event.seq for event in read] == seqs == sorted(set(seqs))
        assert [(e.at, e.kind, e.subject, e.message, dict(e.data)) for e in read] == lines
        assert newest_events(conn, 2) == read[-2:]


@few
@given(
    any_of(ActionId).filter(lambda number: number != "a0"), st.none() | any_of(ModelName), st.text(max_size=5), st.floats(0, 1e10), _DETAILS
)
def test_any_action_comes_back(
    store: Undone, number: ActionId, name: ModelName | None, who: str, at: float, result: dict[str, Any]
) -> None:
    with store as conn:
        action = StoredAction(id=number, verb="wake", model=name, principal=who, created_at=at)
        save_action(conn, action)
        assert recent_actions(conn) == [action]
        done = dataclasses.replace(action, id=ActionId("a0"), state="done", ended_at=at, result={})
        save_action(conn, done)
        close_actions(conn, at + 1, result)
        lost = dataclasses.replace(action, state="failed", ended_at=at + 1, result=result)
        assert {a.id: a for a in recent_actions(conn)} == {number: lost, done.id: done}


def test_every_field_of_a_launch_record_has_a_column() -> None:
    columns = set(tables.launches.c.keys())
    assert {field.name for field in dataclasses.fields(LaunchRecord)} <= columns
    assert {field.name for field in dataclasses.fields(LaunchRecord)} == set(_PLAIN) | set(_JSON)


# --- the registry ---------------------------------------------------------------------------------------------------


def test_the_registry_keeps_its_order_and_says_when_a_definition_changed(conn: Connection) -> None:
    save_models(conn, [model(A, description="new"), model(B)], 5.0)
    first, second = load_models(conn)
    assert (first.spec.name, first.spec.description, first.created_at, first.updated_at) == (A, "new", 1.0, 5.0)
    assert (second.spec.name, second.created_at, second.updated_at) == (B, 1.0, 1.0)


def test_a_removed_model_keeps_its_row_and_may_come_back(conn: Connection) -> None:
    mark_removed(conn, A, 7.0)
    mark_removed(conn, A, 8.0)
    mark_removed(conn, ModelName("never-there"), 8.0)
    assert [stored.spec.name for stored in load_models(conn)] == [B]
    assert [stored.removed_at for stored in load_models(conn, removed=True)] == [7.0, None]
    save_models(conn, [model(A)], 9.0)
    assert load_models(conn)[0].removed_at is None


# --- what the tables refuse -----------------------------------------------------------------------------------------


def test_no_instance_without_its_model_and_its_launch_record(conn: Connection) -> None:
    for row in (instance("unregistered#0"), instance(A0, launch=LaunchId(1))):
        with conn.begin_nested(), pytest.raises(Conflict) as refused, translated():
            save_instance(conn, row, BOOT)
        assert refused.value.code == "store_constraint"
    save_launch(conn, launch(1))
    save_instance(conn, instance(A0, launch=LaunchId(1)), BOOT)


def test_numbers_and_tokens_are_given_once(conn: Connection) -> None:
    save_launch(conn, launch(1))
    save_transition(conn, transition(1))
    writes: list[Callable[[], object]] = [
        lambda: save_launch(conn, launch(1, token="other")),
        lambda: save_launch(conn, launch(2, token="uuid:1")),
        lambda: save_transition(conn, transition(1)),
    ]
    for write in writes:
        with pytest.raises(Conflict), translated(), conn.begin_nested():
            write()


def test_a_type_that_does_not_fit_its_column_is_refused(conn: Connection) -> None:
    with pytest.raises(Conflict, match="cannot store TEXT value in INTEGER column"), translated():
        conn.execute(text("INSERT INTO usage_minutes VALUES ('a', 'noon', 'p', 'e', 1, 0, 0, 0, 0, 0, 0, 0, 0)"))


def test_what_is_not_there_cannot_be_changed(conn: Connection) -> None:
    changes: list[Callable[[], object]] = [
        lambda: set_launch_version(conn, LaunchId(9), "1"),
        lambda: set_launch_process(conn, LaunchId(9), BOOT, 1, 1),
        lambda: end_launch(conn, LaunchEnd(launch=LaunchId(9), at=1.0, result="lost")),
        lambda: end_move(conn, MoveId(9), MoveState.DONE, 1.0),
    ]
    for change in changes:
        with pytest.raises(NotFound) as failed:
            change()
        assert failed.value.code == "store_no_row"
        assert "9" in failed.value.message


def test_a_garbled_log_line_does_not_keep_a_row_from_being_written(conn: Connection) -> None:
    garbled = b"bad \xff byte".decode("utf-8", "surrogateescape")
    save_transition(conn, transition(1, reason=Reason(Code.CRASHED, log_line=garbled)))
    assert story(conn, A0)[0].reason.log_line == "bad \\udcff byte"
    save_launch(conn, launch(1, argv=("x", garbled)))
    loaded = load_launch(conn, LaunchId(1))
    assert loaded is not None
    assert loaded.argv == ("x", garbled)


def test_words_of_a_newer_version_are_read_as_something_safe(conn: Connection) -> None:
    save_instance(conn, instance(), BOOT)
    save_move(conn, move(1))
    conn.execute(text("UPDATE instances SET phase = 'hovering', goal_phase = 'hovering', reason_code = 'too_hot'"))
    conn.execute(text("UPDATE moves SET state = 'paused'"))
    ((row, _),) = load_instances(conn)
    assert (row.phase, row.goal, row.reason.code, row.reason.text) == (Phase.UNKNOWN, GOAL_STOPPED, Code.NONE, "evicted for b")
    found = load_move(conn, MoveId(1))
    assert found is not None
    assert found.state is MoveState.FAILED


# --- questions ------------------------------------------------------------------------------------------------------


def test_the_story_of_a_model_has_all_its_instances_and_ends_with_the_newest(conn: Connection) -> None:
    for seq, name in enumerate(["org/a#0", "b#0", "org/a#1", "org/a#0", "org/ab#0"], start=1):
        save_transition(conn, transition(seq, name))
    assert [line.seq for line in story(conn, A)] == [1, 3, 4]
    assert [line.seq for line in story(conn, A0)] == [1, 4]
    assert [line.seq for line in story(conn, A, limit=2)] == [3, 4]
    assert story(conn, ModelName("nobody")) == []


def test_recent_launches_are_newest_first(conn: Connection) -> None:
    for number in (1, 2, 3):
        save_launch(conn, launch(number))
    save_launch(conn, launch(4, B0))
    assert [record.id for record, _ in recent_launches(conn, A0, 2)] == [3, 2]


def test_a_move_ends_and_its_steps_stay_in_order(conn: Connection) -> None:
    save_move(conn, move(1))
    save_move(conn, move(2, steps=()))
    end_move(conn, MoveId(1), MoveState.DONE, 5.0)
    assert [open_move.id for open_move in open_moves(conn)] == [2]
    ended = load_move(conn, MoveId(1))
    assert ended == move(1, state=MoveState.DONE)
    assert load_move(conn, MoveId(3)) is None


def test_numbers_go_on_after_their_rows_are_gone(conn: Connection) -> None:
    save_launch(conn, launch(41))
    save_transition(conn, transition(17))
    save_move(conn, move(5, steps=()))
    seq = append_event(conn, at=1.0, kind="k", subject="", message="")
    for name in ("a9", "a10", "imported"):
        save_action(conn, StoredAction(id=ActionId(name), verb="wake", model=A, principal="local", created_at=1.0))
    for table in (tables.launches, tables.transitions, tables.moves, tables.events):
        conn.execute(table.delete())
    last = last_ids(conn)
    assert (last.launch, last.transition, last.move, last.event, last.action) == (41, 17, 5, seq, 10)
    assert append_event(conn, at=1.0, kind="k", subject="", message="") == seq + 1
    assert append_event(conn, at=1.0, kind="k", subject="", message="", seq=seq + 50) == seq + 50


def test_events_page_by_number(conn: Connection) -> None:
    seqs = [append_event(conn, at=1.0, kind="k", subject=str(n), message="") for n in range(5)]
    assert [event.seq for event in list_events(conn, after=seqs[1], limit=2)] == seqs[2:4]
    assert list_events(conn, after=seqs[-1]) == []


def test_epochs_count_starts(conn: Connection) -> None:
    first = next_epoch(conn)
    assert next_epoch(conn) == first + 1
    set_meta(conn, "last_config", "x")
    assert (get_meta(conn, "last_config"), get_meta(conn, "unset")) == ("x", None)


# --- usage ----------------------------------------------------------------------------------------------------------


def used(name: ModelName, at: float, principal: str = "local", **counts: Any) -> UsageRow:
    return UsageRow(model=name, at=at, principal=principal, endpoint="chat", counts=Counts(**counts))


def test_usage_adds_up_within_a_minute(conn: Connection) -> None:
    add_usage(conn, [used(A, 61.0, requests=1, prompt_tokens=10, hold_seconds=0.5), used(A, 119.5, requests=2, errors=1, hold_seconds=1.0)])
    add_usage(conn, [used(A, 60.0, requests=1), used(A, 120.0, requests=8), used(B, 60.0, "key1", holds=1)])
    add_usage(conn, [])
    minutes = {row.key: row.counts.requests for row in usage_by(conn, "minute", model=A)}
    assert minutes == {"60": 4, "120": 8}
    (first, _) = usage_by(conn, "minute", model=A)
    assert first.counts == Counts(requests=4, errors=1, prompt_tokens=10, hold_seconds=1.5)
    assert last_used(conn) == {A: 120.0}  # B's only hold was given up


def test_usage_is_grouped_and_bounded(conn: Connection) -> None:
    add_usage(conn, [used(A, 30.0, "x", requests=1), used(A, 3_650.0, "y", requests=2), used(B, 90_000.0, "x", requests=4)])
    assert {row.key: row.counts.requests for row in usage_by(conn, "model")} == {A: 3, B: 4}
    assert {row.key: row.counts.requests for row in usage_by(conn, "principal")} == {"x": 5, "y": 2}
    assert {row.key: row.counts.requests for row in usage_by(conn, "endpoint", principal="x")} == {"chat": 5}
    assert [(row.key, row.counts.requests) for row in usage_by(conn, "hour")] == [("0", 1), ("3600", 2), ("90000", 4)]
    assert [(row.key, row.counts.requests) for row in usage_by(conn, "day")] == [("0", 3), ("86400", 4)]
    assert [row.key for row in usage_by(conn, "minute", since=60.0, until=3_660.0)] == ["3600"]
    assert [row.key for row in usage_by(conn, "minute", until=3_601.0)] == ["0", "3600"]  # a minute that has begun counts whole
    assert usage_by(conn, "model", since=1e9) == []


@few
@given(
    st.lists(
        st.builds(
            used, st.sampled_from([A, B]), st.floats(0, 1e4), st.sampled_from("xy"), requests=st.integers(0, 9), holds=st.integers(0, 9)
        ),
        max_size=12,
    )
)
def test_no_grouping_loses_or_invents_usage(store: Undone, rows: list[UsageRow]) -> None:
    with store as conn:
        for row in rows:
            add_usage(conn, [row])
        wanted = (sum(row.counts.requests for row in rows), sum(row.counts.holds for row in rows))
        for by in ("model", "principal", "endpoint", "minute", "hour", "day"):
            groups = usage_by(conn, by)
            assert (sum(g.counts.requests for g in groups), sum(g.counts.holds for g in groups)) == wanted


# --- retention ------------------------------------------------------------------------------------------------------


def _count(conn: Connection, name: str) -> int:
    return int(conn.execute(select(func.count()).select_from(tables.metadata.tables[name])).scalar_one())


def test_old_rows_go_in_chunks_and_live_ones_never(conn: Connection) -> None:
    now = 1000 * DAY_S
    for number in range(1, 31):
        save_launch(conn, launch(number))
        save_transition(conn, transition(number, at=now - 200 * DAY_S if number <= 25 else now))
        append_event(conn, at=now - (31 if number <= 10 else 1) * DAY_S, kind="k", subject="", message="")
        if number != 2:
            end_launch(conn, LaunchEnd(launch=LaunchId(number), at=float(number), result="stopped"))
    save_instance(conn, instance(launch=LaunchId(1)), BOOT)
    for number, ended in ((1, 1.0), (2, None), (3, now)):
        save_move(conn, move(number))
        if ended is not None:
            end_move(conn, MoveId(number), MoveState.DONE, ended)
    for name, created, ended in (("a1", 1.0, 1.0), ("a2", 2.0, None), ("a3", 3.0, 3.0)):
        save_action(conn, StoredAction(id=ActionId(name), verb="wake", model=A, principal="local", created_at=created, ended_at=ended))
    add_usage(conn, [used(A, 60.0, requests=1), used(A, now, requests=1)])

    first = prune(conn, now, chunk=10)
    assert first == 10 + 10 + 8 + 1 + 1 + 1  # transitions, events, launches (30 - 20 - the open one - the one in use), move, action, minute
    while prune(conn, now, chunk=10):
        pass
    assert {name: _count(conn, name) for name in ("transitions", "events", "launches", "moves", "move_steps", "usage_minutes")} == {
        "transitions": 5,
        "events": 20,
        "launches": 22,
        "moves": 2,
        "move_steps": 4,
        "usage_minutes": 1,
    }
    assert [action.id for action in recent_actions(conn)] == ["a3", "a2"]
    assert load_launch(conn, LaunchId(1)) is not None
    assert [record.id for record in open_launches(conn)] == [2]


def test_pruning_gives_pages_back_to_the_file_system(tmp_path: Path) -> None:
    database = open_database(tmp_path / "hotseat.db", clock=StillClock(), mode="inline", durable=False)
    with database.connect_writer() as conn:
        with conn.begin():
            for _ in range(300):
                append_event(conn, at=1.0, kind="k", subject="", message="x" * 2000)
        before = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
        conn.rollback()
        with conn.begin():
            assert prune(conn, 1e9, Retention(events_s=1.0)) == 300
        after = conn.exec_driver_sql("PRAGMA page_count").scalar_one()
    database.close()
    assert before > 150
    assert after < before / 2
