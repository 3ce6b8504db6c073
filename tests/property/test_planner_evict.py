"""``evict`` against an oracle that tries everything, and what must hold however large the picture is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.claims import Claim
from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId, InstanceId, ModelName
from scheduler.domain.instance import GOAL_STOPPED, Phase, goal_asleep
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.planner.cover import is_better
from scheduler.planner.evict import Fits, Never, evict
from scheduler.planner.feasible import gap_on, most_bytes
from scheduler.planner.inputs import Availability, DeviceView, Exit, HostView, Picture, Seat, Target
from tests.support import evict_oracle as oracle

DEVICES = tuple(DeviceId(f"gpu{n}") for n in range(3))
TARGET = InstanceId("wanted#0")
SIZES = st.sampled_from([0, 1, 2, 4, 7, 10, 16])  # GiB; few values, so that ties are common
REGRETS = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.floats(0, 50).map(lambda x: round(x, 3)))


@st.composite
def seats(draw: st.DrawFn, number: int) -> Seat:
    """An instance on one device, or a gang on two."""
    devices = draw(st.sampled_from([(d,) for d in DEVICES] * 3 + [(DEVICES[0], DEVICES[1])]))
    size = draw(SIZES) * GIB
    held = draw(st.sampled_from([size, size, size // 2]))
    asleep = draw(st.booleans())
    copy = draw(st.sampled_from([0, 5, 20])) * GIB if asleep else 0
    exits = [_exit(None, devices, size, held, -copy, draw(REGRETS))]
    if not asleep:
        for level in draw(st.sampled_from([(), (1,), (1, 2)])):
            residue = min(size, draw(st.sampled_from([0, 1, 4])) * GIB)
            host = draw(st.sampled_from([0, 5, 20])) * GIB if level == 1 else 0
            exits.insert(0, _exit(level, devices, size - residue, max(0, held - residue), host, draw(REGRETS)))
    return Seat(
        instance=InstanceId(f"m{number}#0"),
        model=ModelName(f"m{number}"),
        phase=Phase.ASLEEP if asleep else Phase.AWAKE,
        devices=devices,
        claim=Claim(dict.fromkeys(devices, size), copy),
        availability=draw(st.sampled_from([Availability.IDLE, Availability.IDLE, Availability.DRAIN, Availability.LOCKED])),
        exits=tuple(exits),
        last_used_s=draw(st.sampled_from([0.0, 1.0, 2.0])),
        free_at_s=draw(st.sampled_from([None, 5.0])),
        why=Reason(Code.WAITING_TURN, "it is serving"),
    )


def _exit(level: int | None, devices: tuple[DeviceId, ...], claimed: int, measured: int, host: int, regret: float) -> Exit:
    return Exit(
        goal=GOAL_STOPPED if level is None else goal_asleep(level),
        claim_freed=dict.fromkeys(devices, claimed),
        measured_freed=dict.fromkeys(devices, measured),
        host_delta_bytes=host,
        regret=regret,
    )


@st.composite
def cases(draw: st.DrawFn, most: int = 7) -> tuple[Picture, Target]:
    """A picture and a model that wants to be awake."""
    found = [draw(seats(n)) for n in range(draw(st.integers(0, most)))]
    views = {}
    for n, device in enumerate(DEVICES):
        info = DeviceInfo(
            id=device,
            kind="nvidia",
            name="n",
            index=n,
            uuid=device,
            capacity_bytes=draw(st.sampled_from([16, 24, 40])) * GIB,
            headroom_bytes=GIB,
        )
        held = sum(s.exits[-1].measured_freed.get(device, 0) for s in found)
        foreign = draw(st.sampled_from([0, 0, 3])) * GIB
        free = max(0, info.usable_bytes - held - foreign)
        views[device] = DeviceView(
            info=info,
            health=draw(st.sampled_from([Health.OK] * 5 + [Health.STALE])),
            free_bytes=draw(st.sampled_from([free] * 5 + [None])),
            foreign_bytes=foreign,
        )
    claimed = sum(s.claim.host_bytes for s in found)
    picture = Picture(
        now_s=0.0,
        devices=views,
        seats=tuple(found),
        host=HostView(limit_bytes=claimed + draw(st.sampled_from([0, 6, 100])) * GIB, claimed_bytes=claimed),
        blocked_devices=draw(st.sampled_from([frozenset(), frozenset(), frozenset(DEVICES[2:])])),
    )
    choices = [((DEVICES[0],), (DEVICES[1],), (DEVICES[2],)), ((DEVICES[1],),), (DEVICES[:2],), ()]
    sets = draw(st.sampled_from(choices))
    own = draw(st.sampled_from([0, 2])) * GIB
    return picture, Target(
        instance=TARGET,
        model=ModelName("wanted"),
        sets=sets,
        need_bytes=draw(st.sampled_from([1, 6, 14, 22, 60])) * GIB,
        own_claim=Claim(dict.fromkeys(DEVICES, own)),
        own_measured=dict.fromkeys(DEVICES, own),
    )


@st.composite
def tight_cases(draw: st.DrawFn) -> tuple[Picture, Target]:
    """One full device, everybody may go, regrets and sizes close to each other: where bounds go wrong."""
    sizes = draw(st.lists(st.integers(10, 60), min_size=4, max_size=7))
    found = []
    for n, size in enumerate(sizes):
        regret = size / 10 + draw(st.integers(-10, 10)) / 7
        exits = [_exit(None, DEVICES[:1], size, size, 0, max(0.0, regret * draw(st.sampled_from([1.0, 1.3]))))]
        if draw(st.booleans()):
            exits.insert(0, _exit(1, DEVICES[:1], size - 5, size - 5, draw(st.integers(0, 30)), max(0.0, regret)))
        found.append(
            Seat(
                instance=InstanceId(f"m{n}#0"),
                model=ModelName(f"m{n}"),
                phase=Phase.AWAKE,
                devices=DEVICES[:1],
                claim=Claim({DEVICES[0]: size}),
                availability=Availability.IDLE,
                exits=tuple(exits),
            )
        )
    info = DeviceInfo(id=DEVICES[0], kind="nvidia", name="n", index=0, uuid="u", capacity_bytes=sum(sizes))
    device = DeviceView(info=info, health=Health.OK, free_bytes=info.margin_bytes, foreign_bytes=0)
    picture = Picture(
        now_s=0.0, devices={info.id: device}, seats=tuple(found), host=HostView(limit_bytes=draw(st.integers(0, 90)), claimed_bytes=0)
    )
    need = draw(st.integers(1, sum(sizes) - info.margin_bytes))
    return picture, Target(instance=TARGET, model=ModelName("wanted"), sets=(DEVICES[:1],), need_bytes=need, own_claim=Claim())


@given(case=st.one_of(cases(), tight_cases()))
def test_nothing_cheaper_exists(case: tuple[Picture, Target]) -> None:
    picture, target = case
    verdict, expected = evict(picture, target), oracle.best(picture, target)
    if expected is None:
        assert not isinstance(verdict, Fits)
        return
    assert isinstance(verdict, Fits)
    gaps = {d: gap_on(picture, target, d) for d in verdict.devices}
    choice = tuple((leave.seat, leave.exit) for leave in verdict.leaves)
    assert oracle.enough(picture, choice, gaps)
    got = oracle.cost(choice, gaps)
    assert verdict.regret == pytest.approx(got[0])
    assert not is_better(expected, got), (expected, got)
    assert not is_better(got, expected), (expected, got)


@given(case=cases(most=14))
def test_nobody_leaves_for_nothing_or_against_his_will(case: tuple[Picture, Target]) -> None:
    picture, target = case
    verdict = evict(picture, target)
    assert verdict == evict(picture, target)
    if not isinstance(verdict, Fits):
        return
    gaps = {d: gap_on(picture, target, d) for d in verdict.devices}
    choice = tuple((leave.seat, leave.exit) for leave in verdict.leaves)
    assert oracle.enough(picture, choice, gaps)
    assert len({leave.seat.instance for leave in verdict.leaves}) == len(verdict.leaves)
    for leave in verdict.leaves:
        assert leave.seat.availability is not Availability.LOCKED
        assert leave.exit in leave.seat.exits
        assert set(leave.seat.devices) & set(verdict.devices)
        assert not set(leave.seat.devices) & picture.blocked_devices
        assert oracle.helps(leave.exit, gaps)
        rest = tuple(one for one in choice if one[0] is not leave.seat)
        assert not oracle.enough(picture, rest, gaps) or leave.exit.regret < 0


@given(case=cases(most=10), order=st.randoms(use_true_random=False))
def test_the_order_of_seats_does_not_matter(case: tuple[Picture, Target], order: object) -> None:
    picture, target = case
    shuffled = list(picture.seats)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = evict(picture, target), evict(replace(picture, seats=tuple(shuffled)), target)
    assert type(first) is type(second)
    if isinstance(first, Fits) and isinstance(second, Fits):
        assert first.regret == pytest.approx(second.regret)
        assert len(first.leaves) == len(second.leaves)


@given(case=cases())
def test_a_refusal_has_a_reason_and_never_is_for_ever(case: tuple[Picture, Target]) -> None:
    picture, target = case
    verdict = evict(picture, target)
    if isinstance(verdict, Fits):
        return
    assert verdict.reason.text
    fits_empty = any(all(target.need_bytes <= most_bytes(picture.devices[d].info) for d in s) for s in target.sets)
    assert isinstance(verdict, Never) == (not fits_empty)
    if isinstance(verdict, Never):
        assert verdict.reason.code is Code.DOES_NOT_FIT
        assert verdict.reason.fix
    elif verdict.holder is not None:
        (holder,) = [s for s in picture.seats if s.model == verdict.holder]
        assert holder.availability is Availability.LOCKED
        assert holder.model in verdict.reason.text
