"""The life of an instance against the table of docs/architecture.md, written out here once more, by hand."""

from dataclasses import fields

import pytest

from scheduler.domain import instance as life
from scheduler.domain.claims import NOTHING, Claim, even_claim
from scheduler.domain.errors import InvariantViolated
from scheduler.domain.ids import CauseId, DeviceId, InstanceId, LaunchId
from scheduler.domain.instance import (
    EMPTY_PHASES,
    GOAL_AWAKE,
    GOAL_STOPPED,
    GROWING_PHASES,
    SHRINKING_PHASES,
    TRANSITIONS,
    Event,
    Failures,
    Goal,
    Instance,
    Phase,
    apply,
    goal_asleep,
    may,
)
from scheduler.domain.reasons import Code, Reason

#: phase: "Event>next ..." as in section 3 of the design.
TABLE = {
    "stopped": "LaunchIntended>launching",
    "launching": "Ready>awake GroupLost>stopping LaunchTimedOut>stopping StopIntended>stopping DaemonRestarted>unknown",
    "awake": "DrainIntended>draining GroupLost>stopping ProbeLost>unknown DaemonRestarted>unknown",
    "draining": "Drained>falling_asleep|stopping Forced>stopping GroupLost>stopping DrainCancelled>awake ProbeLost>unknown "
    "DaemonRestarted>unknown",
    "falling_asleep": "SleepConfirmed>asleep SleepIneffective>stopping SleepFailed>stopping StopIntended>stopping GroupLost>stopping "
    "SleepTimedOut>unknown DaemonRestarted>unknown",
    "asleep": "WakeIntended>waking StopIntended>stopping GroupLost>stopping ProbeLost>unknown DaemonRestarted>unknown",
    "waking": "Ready>awake WakeFailed>unknown WakeTimedOut>unknown DaemonRestarted>unknown StopIntended>stopping GroupLost>stopping",
    "stopping": "GroupGone>stopped|backoff KillDue>stopping",
    "backoff": "RetryDue>launching GoalChanged>stopped RetriesExhausted>failed Reset>stopped ConfigChanged>stopped",
    "failed": "HalfOpened>launching Reset>stopped ConfigChanged>stopped",
    "unknown": "ProbedAwake>awake ProbedAsleep>asleep ProbedLaunching>launching ProbeExhausted>stopping StopIntended>stopping "
    "GroupLost>stopping",
}
EXPECTED = {
    (phase, pair.partition(">")[0]): set(pair.partition(">")[2].split("|")) for phase, line in TABLE.items() for pair in line.split()
}

DEVICES = (DeviceId("gpu0"), DeviceId("gpu1"))
OLD = even_claim(DEVICES, 10, host_bytes=3)
NEW = even_claim(DEVICES, 7, host_bytes=3)


def all_events() -> list[type[Event]]:
    """Every concrete event (by name: dataclasses with slots leave their first version among ``__subclasses__``)."""
    return [kind for kind in vars(life).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event]


def an_instance(phase: Phase, goal: Goal = GOAL_AWAKE) -> Instance:
    """An instance in ``phase`` with everything that a process has."""
    empty = phase in EMPTY_PHASES
    return Instance(
        id=InstanceId("m#0"),
        phase=phase,
        goal=goal,
        devices=() if empty else DEVICES,
        launch=None if empty else LaunchId(4),
        claim=NOTHING if empty else OLD,
        level=1 if phase in (Phase.ASLEEP, Phase.WAKING) else None,
        since_s=5.0,
        deadline_s=50.0,
        launch_deadline_s=77.0 if phase in (Phase.LAUNCHING, Phase.UNKNOWN) else None,
        failures=Failures(launch=1, sleep=2, wake=3, crash=4),
    )


def an_event(kind: type[Event], **more: object) -> Event:
    """An event with every field filled."""
    values: dict[str, object] = {
        "at_s": 10.0,
        "cause": CauseId("test:1"),
        "reason": Reason(Code.ASKED, "because"),
        "launch": LaunchId(9),
        "devices": DEVICES[:1],
        "claim": NEW,
        "deadline_s": 99.0,
        "goal": goal_asleep(1),
        "level": 2,
        "retry_at_s": None,
    }
    wanted = {f.name for f in fields(kind)}
    return kind(**{**{k: v for k, v in values.items() if k in wanted}, **more})  # type: ignore[arg-type]


def test_the_table_names_every_event_and_phase() -> None:
    assert {phase.value for phase in Phase} == set(TABLE)
    assert {event.__name__ for event in all_events()} == {event for _, event in EXPECTED}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", all_events(), ids=lambda k: k.__name__)
def test_every_pair_is_legal_exactly_as_the_table_says(phase: Phase, kind: type[Event]) -> None:
    expected = EXPECTED.get((phase.value, kind.__name__))
    before = an_instance(phase)
    assert may(before, kind) == (expected is not None)
    if expected is None:
        with pytest.raises(InvariantViolated, match=f"m#0: {kind.__name__} is not possible while {phase.value}"):
            apply(before, an_event(kind))
        return
    assert {p.value for p in TRANSITIONS[phase, kind]} == expected
    after = apply(before, an_event(kind))
    assert after.phase.value in expected
    assert after.id == before.id
    assert (after.cause, after.reason.text) == ("test:1", "because")


@pytest.mark.parametrize(("goal", "target"), [(goal_asleep(1), Phase.FALLING_ASLEEP), (GOAL_STOPPED, Phase.STOPPING)])
def test_drained_goes_where_the_goal_says(goal: Goal, target: Phase) -> None:
    assert apply(an_instance(Phase.DRAINING, goal), an_event(life.Drained)).phase is target


def test_a_gone_group_backs_off_only_when_a_retry_is_due() -> None:
    stopping = an_instance(Phase.STOPPING)
    again = apply(stopping, an_event(life.GroupGone, retry_at_s=33.0))
    assert (again.phase, again.retry_at_s, again.goal) == (Phase.BACKOFF, 33.0, GOAL_AWAKE)
    over = apply(stopping, an_event(life.GroupGone))
    assert (over.phase, over.retry_at_s, over.goal) == (Phase.STOPPED, None, GOAL_STOPPED)


# --- claims -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "event", "claim"),
    [
        (Phase.STOPPED, life.LaunchIntended, NEW),
        (Phase.BACKOFF, life.RetryDue, NEW),
        (Phase.FAILED, life.HalfOpened, NEW),
        (Phase.LAUNCHING, life.Ready, NEW),
        (Phase.LAUNCHING, life.GroupLost, OLD),
        (Phase.LAUNCHING, life.LaunchTimedOut, OLD),
        (Phase.AWAKE, life.DrainIntended, OLD),
        (Phase.DRAINING, life.Drained, OLD),
        (Phase.FALLING_ASLEEP, life.SleepConfirmed, NEW),
        (Phase.FALLING_ASLEEP, life.SleepTimedOut, OLD),
        (Phase.FALLING_ASLEEP, life.SleepIneffective, OLD),
        (Phase.ASLEEP, life.WakeIntended, NEW),
        (Phase.WAKING, life.Ready, NEW),
        (Phase.WAKING, life.WakeFailed, OLD),
        (Phase.AWAKE, life.DaemonRestarted, OLD),
        (Phase.UNKNOWN, life.ProbedAwake, NEW),
        (Phase.UNKNOWN, life.ProbedAsleep, NEW),
        (Phase.UNKNOWN, life.ProbeExhausted, OLD),
        (Phase.STOPPING, life.KillDue, OLD),
        (Phase.STOPPING, life.GroupGone, NOTHING),
    ],
)
def test_what_is_claimed_after_each_step(phase: Phase, event: type[Event], claim: Claim) -> None:
    """A claim is taken at the intent and given up only by what confirms that the bytes are free."""
    assert apply(an_instance(phase), an_event(event)).claim == claim


def test_only_a_gone_group_ends_without_a_claim_and_without_a_process() -> None:
    for (phase, kind), targets in TRANSITIONS.items():
        after = apply(an_instance(phase, GOAL_STOPPED), an_event(kind))
        if after.phase in EMPTY_PHASES:
            assert (after.claim, after.launch, after.devices) == (NOTHING, None, ())
            assert kind is life.GroupGone or phase in EMPTY_PHASES
        else:
            assert after.claim != NOTHING
            assert after.launch is not None
        assert targets


# --- what a step carries ----------------------------------------------------------------------------------------


def test_phases_are_told_apart() -> None:
    assert {"launching", "waking"} == GROWING_PHASES
    assert {"falling_asleep", "stopping"} == SHRINKING_PHASES
    assert {"stopped", "backoff", "failed"} == EMPTY_PHASES
    assert [p for p in Phase if not an_instance(p).has_process] == [Phase.STOPPED, Phase.BACKOFF, Phase.FAILED]


def test_a_start_remembers_its_launch_devices_and_deadline_through_a_restart_of_the_daemon() -> None:
    launching = apply(an_instance(Phase.STOPPED, GOAL_STOPPED), an_event(life.LaunchIntended, deadline_s=900.0))
    assert (launching.launch, launching.devices, launching.goal) == (9, DEVICES[:1], GOAL_AWAKE)
    unknown = apply(launching, an_event(life.DaemonRestarted, deadline_s=40.0))
    assert (unknown.before, unknown.deadline_s, unknown.launch_deadline_s) == (Phase.LAUNCHING, 40.0, 900.0)
    found = apply(unknown, an_event(life.ProbedLaunching))
    assert (found.phase, found.deadline_s, found.before) == (Phase.LAUNCHING, 900.0, None)


def test_ready_clears_the_failures_of_launch_sleep_and_wake_only() -> None:
    for phase, event in ((Phase.LAUNCHING, life.Ready), (Phase.WAKING, life.Ready), (Phase.UNKNOWN, life.ProbedAwake)):
        assert apply(an_instance(phase), an_event(event)).failures == Failures(crash=4)
    assert apply(an_instance(Phase.FAILED), an_event(life.Reset)).failures == Failures()
    assert apply(an_instance(Phase.UNKNOWN), an_event(life.ProbedAsleep)).failures.wake == 3


def test_levels_and_goals() -> None:
    asleep = apply(an_instance(Phase.FALLING_ASLEEP, goal_asleep(2)), an_event(life.SleepConfirmed, level=2))
    assert (asleep.level, asleep.goal) == (2, goal_asleep(2))
    waking = apply(asleep, an_event(life.WakeIntended))
    assert (waking.level, waking.goal) == (2, GOAL_AWAKE)
    assert apply(waking, an_event(life.Ready)).level is None
    unknown = apply(waking, an_event(life.WakeFailed))
    assert apply(unknown, an_event(life.ProbedAsleep, level=2)).goal == goal_asleep(2)
    assert apply(an_instance(Phase.DRAINING, GOAL_STOPPED), an_event(life.DrainCancelled)).goal == GOAL_AWAKE
    assert [str(g) for g in (GOAL_AWAKE, GOAL_STOPPED, goal_asleep(2))] == ["awake", "stopped", "asleep:2"]


def test_time_in_a_phase_counts_from_its_beginning_and_deadlines_from_the_event() -> None:
    stopping = an_instance(Phase.STOPPING)
    killed = apply(stopping, an_event(life.KillDue))
    assert (killed.since_s, killed.deadline_s) == (5.0, 99.0)
    awake = apply(an_instance(Phase.LAUNCHING), an_event(life.Ready))
    assert (awake.since_s, awake.deadline_s) == (10.0, None)


def test_an_event_without_reason_or_cause_keeps_the_old_ones() -> None:
    before = apply(an_instance(Phase.AWAKE), an_event(life.DrainIntended))
    after = apply(before, life.Drained(at_s=11.0, deadline_s=12.0))
    assert (after.cause, after.reason) == (before.cause, before.reason)


def test_failures_add_up() -> None:
    assert Failures(launch=1, sleep=2, wake=3, crash=4).total == 10
