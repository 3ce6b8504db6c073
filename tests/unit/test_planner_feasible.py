"""The two admission tests of scheduling.md section 1 by the numbers, and ``evict`` by example."""

import pytest

from scheduler.domain.claims import Claim
from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId, InstanceId, ModelName
from scheduler.domain.instance import GOAL_STOPPED, Goal, Phase, goal_asleep
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB, MIB
from scheduler.planner.evict import Fits, Never, NotNow, evict
from scheduler.planner.feasible import Gap, admits_growth, can_ever_fit, gap_on, most_bytes
from scheduler.planner.inputs import Availability, DeviceView, Exit, HostView, Picture, Seat, Target

GPU0, GPU1 = DeviceId("gpu0"), DeviceId("gpu1")
MARGIN = 512 * MIB


def view(
    device: DeviceId = GPU0, *, capacity: int = 24, free: float | None = 24, foreign: float = 0, health: Health = Health.OK
) -> DeviceView:
    info = DeviceInfo(id=device, kind="nvidia", name="n", index=0, uuid=device, capacity_bytes=capacity * GIB)
    return DeviceView(info=info, health=health, free_bytes=None if free is None else int(free * GIB), foreign_bytes=int(foreign * GIB))


def seat(name: str, gib: float, *ways: tuple[Goal, float, float, float], device: DeviceId = GPU0, **more: object) -> Seat:
    """An instance of ``gib``; ``ways``: (goal, GiB freed, host GiB taken, regret)."""
    exits = tuple(
        Exit(
            goal=goal,
            claim_freed={device: int(freed * GIB)},
            measured_freed={device: int(freed * GIB)},
            host_delta_bytes=int(host * GIB),
            regret=regret,
        )
        for goal, freed, host, regret in ways or ((GOAL_STOPPED, gib, 0, 1.0),)
    )
    values: dict[str, object] = {"availability": Availability.IDLE, "phase": Phase.AWAKE, **more}
    return Seat(
        instance=InstanceId(f"{name}#0"),
        model=ModelName(name),
        devices=(device,),
        claim=Claim({device: int(gib * GIB)}),
        exits=exits,
        **values,  # type: ignore[arg-type]
    )


def picture(*seats: Seat, views: tuple[DeviceView, ...] = (), host_gib: float = 100, blocked: frozenset[DeviceId] = frozenset()) -> Picture:
    devices = {v.info.id: v for v in views or (view(free=24 - sum(s.claim.total_bytes for s in seats) / GIB),)}
    return Picture(
        now_s=0.0, devices=devices, seats=seats, host=HostView(limit_bytes=int(host_gib * GIB), claimed_bytes=0), blocked_devices=blocked
    )


def target(gib: float, *sets: tuple[DeviceId, ...], own: float = 0) -> Target:
    return Target(
        instance=InstanceId("t#0"),
        model=ModelName("t"),
        sets=sets or ((GPU0,),),
        need_bytes=int(gib * GIB),
        own_claim=Claim({GPU0: int(own * GIB)} if own else {}),
        own_measured={GPU0: int(own * GIB)} if own else {},
    )


def leaves(verdict: Fits | NotNow | Never) -> list[tuple[str, str]]:
    assert isinstance(verdict, Fits)
    return [(leave.seat.model, str(leave.exit.goal)) for leave in verdict.leaves]


# --- gaps -------------------------------------------------------------------------------------------------------


def test_the_ledger_counts_claims_and_foreign_use_the_measurement_free_bytes_and_the_margin() -> None:
    now = picture(seat("a", 10), views=(view(free=9, foreign=3),))
    assert gap_on(now, target(12), GPU0) == Gap(1 * GIB, 3 * GIB + MARGIN)
    assert gap_on(now, target(8), GPU0) == Gap(-3 * GIB, -1 * GIB + MARGIN)
    assert gap_on(now, target(8), GPU0).closed
    assert not gap_on(now, target(9), GPU0).closed  # the margin is missing
    assert not gap_on(now, target(12), GPU0).closed


def test_each_device_is_counted_by_itself() -> None:
    small, large = view(GPU0, capacity=16, free=14, foreign=2), view(GPU1, capacity=40, free=10)
    now = picture(seat("a", 30, device=GPU1), views=(small, large))
    assert gap_on(now, target(12), GPU0) == Gap(-2 * GIB, -2 * GIB + MARGIN)
    assert gap_on(now, target(12), GPU1) == Gap(2 * GIB, 2 * GIB + int(0.02 * 40 * GIB))


def test_what_a_sleeper_holds_already_counts_for_it() -> None:
    sleeper = Seat(
        instance=InstanceId("t#0"),
        model=ModelName("t"),
        phase=Phase.ASLEEP,
        devices=(GPU0,),
        claim=Claim({GPU0: 2 * GIB}),
        availability=Availability.IDLE,
    )
    now = picture(sleeper, views=(view(free=22),))
    assert gap_on(now, target(23, own=2), GPU0) == Gap(-1 * GIB, -1 * GIB + MARGIN)


@pytest.mark.parametrize(
    ("wrong", "may"),
    [(view(), True), (view(health=Health.STALE), False), (view(health=Health.LOST), False), (view(free=None), False)],
)
def test_only_healthy_and_freshly_measured_devices_admit_growth(wrong: DeviceView, may: bool) -> None:
    assert admits_growth(picture(views=(wrong,)), (GPU0,)) is may


def test_what_can_ever_fit_counts_the_margin_but_nobody_else() -> None:
    now = picture(seat("a", 20), views=(view(free=0, foreign=4),))
    assert most_bytes(now.devices[GPU0].info) == 24 * GIB - MARGIN
    assert can_ever_fit(now, target(23.5), (GPU0,))
    assert not can_ever_fit(now, target(23.6), (GPU0,))


# --- evict by example -------------------------------------------------------------------------------------------


def test_nobody_leaves_where_there_is_room() -> None:
    assert leaves(evict(picture(seat("a", 10)), target(12))) == []


def test_a_big_one_rather_than_three_small_ones() -> None:
    small = [seat(f"s{n}", 4, (GOAL_STOPPED, 4, 0, 1.0)) for n in range(3)]
    verdict = evict(picture(*small, seat("big", 12, (GOAL_STOPPED, 12, 0, 3.0))), target(11))
    assert leaves(verdict) == [("big", "stopped")]


def test_no_more_than_needed() -> None:
    verdict = evict(picture(seat("a", 15, (GOAL_STOPPED, 15, 0, 1.0)), seat("b", 6, (GOAL_STOPPED, 6, 0, 1.0))), target(8))
    assert leaves(verdict) == [("b", "stopped")]


def test_the_device_where_it_costs_least_and_nobody_on_the_other() -> None:
    views = (view(GPU0, free=4), view(GPU1, free=4))
    seats = (seat("a", 20, (GOAL_STOPPED, 20, 0, 5.0)), seat("b", 20, (GOAL_STOPPED, 20, 0, 2.0), device=GPU1))
    verdict = evict(picture(*seats, views=views), target(10, (GPU0,), (GPU1,)))
    assert isinstance(verdict, Fits)
    assert verdict.devices == (GPU1,)
    assert leaves(verdict) == [("b", "stopped")]


def test_at_equal_cost_the_preferred_device() -> None:
    views = (view(GPU0), view(GPU1))
    verdict = evict(picture(views=views), target(10, (GPU1,), (GPU0,)))
    assert isinstance(verdict, Fits)
    assert verdict.devices == (GPU1,)


def test_the_least_recently_used_of_equals() -> None:
    one, other = seat("one", 10, last_used_s=50.0), seat("other", 10, last_used_s=20.0)
    assert leaves(evict(picture(one, other), target(10))) == [("other", "stopped")]


def test_sleep_where_the_copy_fits_and_stop_where_it_does_not() -> None:
    ways = ((goal_asleep(1), 15.0, 20.0, 1.0), (GOAL_STOPPED, 16.0, 0.0, 9.0))
    assert leaves(evict(picture(seat("a", 16, *ways), host_gib=30), target(16))) == [("a", "asleep:1")]
    assert leaves(evict(picture(seat("a", 16, *ways), host_gib=10), target(16))) == [("a", "stopped")]


def test_a_sleeper_is_stopped_for_its_host_copy_when_that_is_cheapest() -> None:
    """Eviction works on the device and on the host ledger."""
    awake = seat("a", 16, (goal_asleep(1), 15, 20, 1.0), (GOAL_STOPPED, 16, 0, 50.0))
    sleeper = seat("s", 1, (GOAL_STOPPED, 1, -20, 5.0), phase=Phase.ASLEEP)
    verdict = evict(picture(awake, sleeper, host_gib=10), target(16))
    assert sorted(leaves(verdict)) == [("a", "asleep:1"), ("s", "stopped")]


def test_the_locked_and_the_blocked_stay() -> None:
    locked = seat("a", 20, availability=Availability.LOCKED, why=Reason(Code.WAITING_TURN, "it is serving"), free_at_s=7.0)
    verdict = evict(picture(locked), target(10))
    assert isinstance(verdict, NotNow)
    assert (verdict.holder, verdict.retry_at_s) == ("a", 7.0)
    assert "it is serving" in verdict.reason.text
    moving = evict(picture(seat("a", 20), blocked=frozenset({GPU0})), target(10))
    assert isinstance(moving, NotNow)
    assert moving.reason.code is Code.WAITING_MOVE
    blind = evict(picture(views=(view(free=None),)), target(10))
    assert isinstance(blind, NotNow)
    assert blind.reason.code is Code.WAITING_MEMORY


def test_foreign_memory_is_not_evicted() -> None:
    verdict = evict(picture(seat("a", 4), views=(view(free=2, foreign=18),)), target(12))
    assert isinstance(verdict, NotNow)
    assert verdict.reason.code is Code.WAITING_MEMORY
    assert "18.0 GiB are used by others" in verdict.reason.text


def test_what_fits_nowhere_is_told_the_largest_device() -> None:
    verdict = evict(picture(views=(view(), view(GPU1, capacity=40))), target(60, (GPU0,), (GPU1,)))
    assert isinstance(verdict, Never)
    assert "gpu1" in verdict.reason.text
    assert "60.0 GiB" in verdict.reason.text
    nowhere = evict(picture(), Target(instance=InstanceId("t#0"), model=ModelName("t"), sets=(), need_bytes=1, own_claim=Claim()))
    assert isinstance(nowhere, Never)
    assert "no device it may run on" in nowhere.reason.text
