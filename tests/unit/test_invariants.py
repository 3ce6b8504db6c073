"""The invariant checks themselves: each one sees its own violation, and none sees one where all is well."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from scheduler.daemon.self_check import SelfCheck
from scheduler.domain.claims import NOTHING, even_claim
from scheduler.domain.device import DeviceSample
from scheduler.domain.errors import InvariantViolated, Temporary
from scheduler.domain.ids import ActionId, CauseId, DeviceId, Holder, HoldId, InstanceId, LaunchId, LeaseId, ModelName, MoveId
from scheduler.domain.instance import GOAL_AWAKE, GOAL_STOPPED, Instance, Phase, Transition
from scheduler.domain.lease import Hold, Lease
from scheduler.domain.plan import Move, Step, StepKind
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.orchestrator import effects as fx
from scheduler.orchestrator.events import HoldCancelled, LeaseRequested, Tick
from scheduler.orchestrator.holds import Holds
from scheduler.orchestrator.invariants import Before, HoldLedger, Watch, check, check_step
from scheduler.orchestrator.state import State, Wish
from tests.support.world import device

GPU = DeviceId("gpu0")
A, B = InstanceId("a#0"), InstanceId("b#0")


def seated(iid: InstanceId, phase: Phase, gib: float = 10, **more: object) -> Instance:
    base = Instance(
        id=iid,
        phase=phase,
        goal=GOAL_AWAKE,
        devices=(GPU,),
        launch=LaunchId(1 if iid == A else 2),
        claim=even_claim((GPU,), int(gib * GIB)),
        level=1 if phase in (Phase.ASLEEP, Phase.WAKING) else None,
        deadline_s=None if phase in (Phase.AWAKE, Phase.ASLEEP, Phase.DRAINING) else 99.0,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def state(*instances: Instance) -> State:
    found = State(now_s=10.0)
    found.devices = {GPU: device("gpu0", 24)}
    found.samples = {GPU: sample()}
    found.instances = {i.id: i for i in instances}
    return found


def sample(a_gib: float = 0, foreign_gib: float = 0, at_s: float = 9.5) -> DeviceSample:
    own = {Holder(A): int(a_gib * GIB)} if a_gib else {}
    return DeviceSample(device=GPU, started_at_s=at_s, used_bytes=0, free_bytes=0, foreign_bytes=int(foreign_gib * GIB), own=own)


def move(n: int, *iids: InstanceId, force: bool = False, devices: frozenset[DeviceId] = frozenset({GPU})) -> Move:
    steps = tuple(Step(instance=iid, goal=GOAL_STOPPED, kind=StepKind.SHRINK) for iid in iids)
    return Move(id=MoveId(n), devices=devices, steps=steps, cause=CauseId("x"), created_s=0.0, force=force)


def lease(n: int, iid: InstanceId = A) -> Lease:
    return Lease(id=LeaseId(n), hold=HoldId(n), model=ModelName("a"), instance=iid, granted_s=0.0, waited_s=0.0, woke=False)


def hold(n: int, deadline_s: float = 99.0, action: str = "") -> Hold:
    return Hold(
        id=HoldId(n),
        model=ModelName("a"),
        arrived_s=0.0,
        deadline_s=deadline_s,
        limit_s=99.0,
        action=ActionId(action) if action else None,
    )


# --- the state by itself ----------------------------------------------------------------------------------------


def _with(*instances: Instance, change: Callable[[State], object] = lambda _s: None) -> State:
    found = state(*instances)
    change(found)
    return found


def test_a_sound_state_is_silent() -> None:
    sound = state(seated(A, Phase.AWAKE), seated(B, Phase.FALLING_ASLEEP), Instance(id=InstanceId("c#0")))
    sound.leases[LeaseId(1)] = lease(1)
    sound.live_of(A).leases.add(LeaseId(1))
    sound.holds[HoldId(1)] = hold(1)
    sound.moves[MoveId(1)] = move(1, B)
    assert check(sound) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (_with(seated(A, Phase.STOPPED, deadline_s=None)), "without a process"),
        (_with(seated(A, Phase.AWAKE, launch=None)), "no launch"),
        (_with(seated(A, Phase.AWAKE, claim=NOTHING)), "claims on"),
        (_with(seated(A, Phase.LAUNCHING, deadline_s=None)), "has no deadline"),
        (_with(seated(A, Phase.AWAKE, deadline_s=50.0)), "stable but has a deadline"),
        (_with(seated(A, Phase.STOPPING, deadline_s=9.0)), "over its deadline"),
        (_with(seated(A, Phase.ASLEEP, level=None)), "no sleep level"),
        (_with(Instance(id=A, phase=Phase.BACKOFF)), "retry time"),
        (_with(seated(A, Phase.AWAKE), change=lambda s: s.samples.update({GPU: sample(11)})), "I1: .* holds"),
        (_with(seated(A, Phase.AWAKE), change=lambda s: s.leases.update({LeaseId(1): lease(1)})), "leases differ"),
        (_with(seated(A, Phase.AWAKE), change=lambda s: s.live_of(A).leases.add(LeaseId(1))), "leases differ"),
        (_with(change=lambda s: s.leases.update({LeaseId(1): lease(1)})), "has no process"),
        (_with(change=lambda s: s.moves.update({MoveId(n): move(n) for n in (1, 2)})), "I8: gpu0 is owned by 2"),
        (
            _with(seated(A, Phase.AWAKE), change=lambda s: s.moves.update({MoveId(1): move(1, A, devices=frozenset())})),
            "I8: move 1 touches",
        ),
        (_with(change=lambda s: s.begun.add(MoveId(7))), "ended move 7"),
        (_with(change=lambda s: s.wishes.update({A: Wish(goal=GOAL_STOPPED, cause=CauseId("x"), reason=Reason(Code.ASKED))})), "the wish"),
        (_with(change=lambda s: s.holds.update({HoldId(2): hold(1)})), "filed under"),
        (_with(change=lambda s: s.holds.update({HoldId(1): hold(1, deadline_s=9.0)})), "over its deadline"),
    ],
)
def test_each_broken_state_is_seen(wrong: State, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        raise AssertionError("; ".join(check(wrong)))


# --- steps ------------------------------------------------------------------------------------------------------


def grown(iid: InstanceId = A) -> fx.Effect:
    return fx.Launch(instance=iid, launch=LaunchId(1), seq=1, devices=(GPU,), footprint=None)  # type: ignore[arg-type]


def journal(source: Phase, target: Phase, event: str, reason: Reason | None = None) -> fx.Effect:
    line = Transition(
        seq=1,
        at=0.0,
        instance=A,
        source=source,
        target=target,
        event=event,
        cause=CauseId("x"),
        reason=reason if reason is not None else Reason(Code.ASKED, "because"),
    )
    return fx.Journal(transition=line, instance=seated(A, target))


def steps(before: State, after: State, *effects: fx.Effect) -> str:
    return "; ".join(check_step(Before.of(before), Tick(at_s=10.0), effects, after))


def test_a_grow_with_room_alone_and_fresh_evidence_is_silent() -> None:
    assert steps(state(), state(seated(A, Phase.LAUNCHING, 20)), grown()) == ""


def test_a_grow_beyond_capacity_is_seen() -> None:
    after = state(seated(A, Phase.LAUNCHING, 20), seated(B, Phase.AWAKE, 5))
    assert "I1: a#0 grows on gpu0 although" in steps(state(), after, grown())
    pressed = state(seated(A, Phase.LAUNCHING, 20))
    pressed.samples[GPU] = sample(foreign_gib=5)
    assert "I1: a#0 grows on gpu0 although" in steps(state(), pressed, grown())


def test_a_grow_without_fresh_evidence_is_seen() -> None:
    after = state(seated(A, Phase.LAUNCHING, 2))
    after.samples[GPU] = sample(at_s=1.0)
    assert "without a fresh measurement" in steps(state(), after, grown())


@pytest.mark.parametrize("phase", [Phase.LAUNCHING, Phase.WAKING, Phase.FALLING_ASLEEP, Phase.STOPPING])
def test_a_grow_beside_somebody_who_moves_is_seen(phase: Phase) -> None:
    after = state(seated(A, Phase.LAUNCHING, 2), seated(B, phase, 2))
    assert "I2: a#0 grows beside b#0" in steps(state(), after, grown())
    unknown = state(seated(A, Phase.LAUNCHING, 2), seated(B, Phase.UNKNOWN, 2, before=phase))
    assert "I2: a#0 grows beside b#0" in steps(state(), unknown, grown())


def test_an_over_full_world_may_shrink_but_no_claim_may_rise_without_a_measurement() -> None:
    before = state(seated(A, Phase.AWAKE, 20), seated(B, Phase.AWAKE, 20))
    assert steps(before, state(seated(A, Phase.AWAKE, 20), seated(B, Phase.AWAKE, 3))) == ""
    risen = state(seated(A, Phase.AWAKE, 21), seated(B, Phase.AWAKE, 20))
    assert "I1: the claim of a#0" in steps(before, risen)
    risen.samples[GPU] = sample(a_gib=21)
    assert steps(before, risen) == ""


def test_a_copy_beyond_the_host_memory_is_seen_and_an_old_one_may_stay() -> None:
    copied = replace(seated(A, Phase.FALLING_ASLEEP), claim=even_claim((GPU,), 10 * GIB, host_bytes=12 * GIB))
    before, after = state(seated(A, Phase.DRAINING)), state(copied)
    after.host_limit_bytes = 8 * GIB
    assert "I1: a#0 claims" in steps(before, after)
    assert steps(after, after) == ""
    after.host_limit_bytes = 12 * GIB
    assert steps(before, after) == ""


def test_a_claim_may_rise_into_room_also_when_another_one_is_raised_by_measurement_at_once() -> None:
    before = state(seated(A, Phase.LAUNCHING, 10), seated(B, Phase.AWAKE, 10))
    after = state(seated(A, Phase.LAUNCHING, 15), seated(B, Phase.AWAKE, 11))
    after.samples[GPU] = sample(a_gib=15)
    assert steps(before, after) == ""


def test_a_drain_that_ends_with_leases_or_without_a_reason_is_seen() -> None:
    after = state(seated(A, Phase.STOPPING))
    drained = journal(Phase.DRAINING, Phase.STOPPING, "Drained")
    assert steps(after, after, drained) == ""
    after.live_of(A).leases.add(LeaseId(1))
    assert "I3: a#0 leaves its drain with 1 leases" in steps(after, after, drained)
    nameless = journal(Phase.AWAKE, Phase.DRAINING, "DrainIntended", Reason(Code.NONE))
    assert "I6: a#0 is drained without a reason" in steps(after, after, nameless)


def test_a_force_that_nobody_asked_for_is_seen() -> None:
    forced = journal(Phase.DRAINING, Phase.STOPPING, "Forced")
    after = state(seated(A, Phase.STOPPING))
    assert "I3: a#0 is forced" in steps(after, after, forced)
    before = state(seated(A, Phase.DRAINING))
    before.moves[MoveId(1)] = move(1, A, force=True)
    assert steps(before, after, forced) == ""
    after.wishes[A] = Wish(goal=GOAL_STOPPED, cause=CauseId("x"), reason=Reason(Code.ASKED), force=True)
    assert steps(state(), after, forced) == ""


def test_a_shrink_beside_a_start_is_seen() -> None:
    after = state(seated(A, Phase.STOPPING), seated(B, Phase.LAUNCHING))
    assert "I2: a#0 shrinks beside a grow" in steps(after, after, journal(Phase.DRAINING, Phase.STOPPING, "Drained"))


# --- holds ------------------------------------------------------------------------------------------------------

ENDED = Temporary("no", retry_after_s=1.0)


def granted(n: int) -> fx.Effect:
    return fx.GrantLease(hold=HoldId(n), lease=lease(n), launch=LaunchId(1))


def test_a_hold_that_ends_once_is_silent() -> None:
    books, world = HoldLedger(), state()
    world.holds = Holds({HoldId(n): hold(n) for n in (1, 2)} | {HoldId(-1): hold(-1, action="act")})
    assert books.note(Tick(at_s=0.0), [], _only(world, -1)) == []
    assert books.note(LeaseRequested(at_s=0.0, hold=hold(1)), [], _only(world, -1, 1)) == []
    assert books.note(LeaseRequested(at_s=0.0, hold=hold(2)), [granted(1)], _only(world, -1, 2)) == []
    assert books.note(HoldCancelled(at_s=0.0, hold=HoldId(2)), [], _only(world, -1)) == []
    finish = fx.FinishAction(action=ActionId("act"), ok=True, code="", message="")
    assert books.note(Tick(at_s=0.0), [finish], _only(world)) == []
    assert books.ended == {1: "granted", 2: "cancelled", -1: "finished"}
    assert not books.open


def _only(world: State, *ids: int) -> State:
    found = state()
    found.holds = Holds({HoldId(n): world.holds[HoldId(n)] for n in ids})
    return found


def test_a_hold_that_ends_twice_or_never_is_seen() -> None:
    books = HoldLedger()
    waiting = state()
    waiting.holds = Holds({HoldId(1): hold(1)})
    books.note(LeaseRequested(at_s=0.0, hold=hold(1)), [], waiting)
    refused = fx.RefuseHold(hold=HoldId(1), error=ENDED)
    assert "after it was granted" in "".join(books.note(Tick(at_s=0.0), [granted(1), refused], state()))
    assert "came twice" in "".join(books.note(LeaseRequested(at_s=0.0, hold=hold(1)), [], waiting))
    assert "holds differ" in "".join(books.note(Tick(at_s=0.0), [], state()))
    assert "never seen" in "".join(HoldLedger().note(Tick(at_s=0.0), [granted(5)], state()))


def test_the_watch_raises_with_every_sentence() -> None:
    world = state()
    watch = Watch(world)
    watch.observe(Tick(at_s=10.0), world)
    world.instances[A] = seated(A, Phase.LAUNCHING, 30)
    watch.effects([grown()])
    with pytest.raises(InvariantViolated, match="I1: a#0 grows"):
        watch.observe(Tick(at_s=10.0), world)
    watch.observe(Tick(at_s=10.0), world)  # each step is judged by itself


@pytest.mark.parametrize("level", ["info", "debug"])
def test_a_daemon_at_debug_level_logs_what_it_finds_and_goes_on(level: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(level.upper(), "scheduler.daemon.self_check")
    world = state()
    mine = SelfCheck()
    mine.observe(Tick(at_s=10.0), world)  # recovery: not looked at
    mine.begin(world)
    mine.observe(Tick(at_s=10.0), world)
    world.instances[A] = seated(A, Phase.LAUNCHING, 30)
    mine.effects([grown()])
    mine.observe(Tick(at_s=10.0), world)
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(errors) == (level == "debug")
    assert all("invariant violated: I1: a#0 grows" in error for error in errors)


def test_a_check_that_fails_by_itself_does_not_end_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "scheduler.daemon.self_check")
    world = state()
    mine = SelfCheck()
    mine.begin(world)
    world.instances[A] = cast(Instance, None)
    mine.observe(Tick(at_s=10.0), world)
    assert "the check itself failed after Tick" in caplog.text
