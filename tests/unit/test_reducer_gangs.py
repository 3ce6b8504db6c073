"""Gangs: several equal, linked devices for one engine, all or none of them; and the KV cache that fits where a model sits."""

from dataclasses import replace

import pytest

from scheduler.domain.claims import Footprint, Source, even_claim
from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain
from tests.support.world import device

PAIR = {"devices": DeviceWish(count=2)}
BIG = Behaviour(awake_bytes=16 * GIB)


def linked(count: int = 4, **more: object) -> list[DeviceInfo]:
    """Cards in pairs of NVLink on one host."""
    cards = [device(f"gpu{n}", 24, index=n, islands=(f"nvlink:{n // 2}", "host")) for n in range(count)]
    return [replace(card, **more) for card in cards]  # type: ignore[arg-type]


def on(*names: str, count: int = 1) -> dict[str, object]:
    return {"devices": DeviceWish(count=count, ids=tuple(DeviceId(name) for name in names))}


def claims_are_whole(world: Plain) -> bool:
    """Every instance claims on all of its devices or on none."""
    found = world.state.instances.values()
    return all(set(i.claim.device_bytes) == set(i.devices) and len({*i.claim.device_bytes.values()}) <= 1 for i in found)


def test_a_gang_sits_within_the_tightest_island_that_is_large_enough() -> None:
    world = Plain({}, infos=linked(), specs={"a": on("gpu1", "gpu2", "gpu3", count=2), "b": {"devices": DeviceWish(count=3)}}, a=BIG, b=BIG)
    world.ask("a")
    world.settle()
    assert world.instance("a").devices == ("gpu2", "gpu3"), "gpu1 and gpu2 are linked by the host only"
    world.ask("b")
    world.settle()
    assert len(world.instance("b").devices) == 3, "no NVLink island has three: any of the host do"
    assert world.ends() == ["ok", "ok"]


@pytest.mark.parametrize("odd", [{"capacity_bytes": 40 * GIB}, {"name": "another card"}, {"parent": DeviceId("gpu9")}])
def test_a_gang_is_made_of_equal_whole_devices_only(odd: dict[str, object]) -> None:
    cards = linked(2)
    world = Plain({}, infos=[cards[0], replace(cards[1], **odd)], specs={"a": PAIR}, a=BIG)  # type: ignore[arg-type]
    (client,) = world.ask("a")
    assert client.end == "does_not_fit"


def test_a_gang_is_admitted_on_all_of_its_devices_or_on_none() -> None:
    """One of the two is taken by others: nothing is claimed on the one that is free, and it is said which is short."""
    world = Plain({}, infos=linked(2), specs={"a": PAIR, "b": on("gpu0")}, a=BIG, b=BIG)
    world.foreign[DeviceId("gpu1")] = 12 * GIB
    world.run(2)
    (client,) = world.ask("a", wait_s=900.0, limit_s=2000.0)
    world.run(30)
    assert client.end == "held"
    assert world.state.claimed_on(DeviceId("gpu0")) == 0
    assert world.state.hold_reasons[ModelName("a")].text == "4.5 GiB short; 12.0 GiB are used by others"
    (other,) = world.ask("b")
    world.run(30)
    assert other.end == "ok", "the free one is not kept for it"
    world.foreign.clear()
    world.settle()
    assert (client.end, world.instance("a").devices) == ("ok", ("gpu0", "gpu1"))
    start = next(row.instance for row in world.transitions if row.transition.event == "LaunchIntended" and row.instance.model == "a")
    assert start.claim == even_claim(start.devices, 16 * GIB), "all of it on each, not a share"
    world.run(3)
    assert world.instance("a").claim == even_claim(start.devices, int(16 * GIB * 1.05)), "as measured on each"
    assert not world.overflows


def test_a_gang_is_looked_at_on_all_of_its_devices_once_more_before_it_starts() -> None:
    """While its victim on one device finished an answer, others took the second one."""
    world = Plain({}, infos=linked(2), specs={"a": PAIR, "b": on("gpu0")}, a=BIG, b=BIG)
    world.ask("b")
    world.settle()
    world.ask("b", for_s=200.0)
    (client,) = world.ask("a", wait_s=900.0, limit_s=2000.0)
    world.run_until(lambda: world.phase("b") == "draining")
    world.foreign[DeviceId("gpu1")] = 12 * GIB
    world.run_until(lambda: world.phase("b") == "asleep")
    world.run(30)
    assert (client.end, world.count("Launch", "a")) == ("held", 0)
    world.foreign.clear()
    world.settle()
    assert client.end == "ok"
    assert not world.overflows


def test_room_is_made_on_every_device_of_a_gang_before_it_starts_and_never_partly() -> None:
    world = Plain({}, infos=linked(2), specs={"g": PAIR, "a": on("gpu0"), "b": on("gpu1")}, g=BIG, a=BIG, b=BIG)
    for model in "ab":
        world.ask(model)
        world.settle()
    world.ask("b", for_s=40.0)
    (client,) = world.ask("g", wait_s=600.0)
    while client.end != "ok":
        world.run(0.5)
        assert claims_are_whole(world), world.picture()
    slept = [world.when("Sleep", m) or world.when("Stop", m) for m in "ab"]
    assert world.when("Launch", "g")[0] > max(at for times in slept for at in times)
    assert not world.overflows


def test_a_gang_sleeps_and_wakes_whole() -> None:
    world = Plain({}, infos=linked(2), specs={"a": PAIR, "b": PAIR}, a=BIG, b=BIG)
    for model in "abab":
        world.ask(model)
        world.settle()
        assert claims_are_whole(world)
    assert world.ends() == ["ok"] * 4
    assert world.path("a") == "launching awake draining falling_asleep asleep waking awake draining falling_asleep asleep"
    assert world.state.host_claimed() == 0
    assert not world.overflows


def test_a_gang_that_keeps_its_memory_on_one_device_sleeps_not() -> None:
    """Measured per device: what one of them keeps is not made up for by the others."""
    knobs = replace(BIG, free_fraction=0.5)
    world = Plain({}, infos=linked(2), specs={"a": PAIR}, a=knobs)
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    assert world.path("a").endswith("falling_asleep stopping stopped")


def test_a_gang_does_not_start_on_a_member_that_is_ill() -> None:
    world = Plain({}, infos=linked(4), specs={"a": PAIR}, a=BIG)
    world.ail("gpu0", Health.DRAINING)
    world.ask("a")
    world.settle()
    assert world.instance("a").devices == ("gpu2", "gpu3")


# --- KV cache ---------------------------------------------------------------------------------------------------

KV = Behaviour(awake_bytes=28 * GIB, kv_bytes=12 * GIB, kv_min_bytes=2 * GIB)


def test_kv_cache_shrinks_to_what_an_empty_device_leaves() -> None:
    world = Plain({"gpu0": 24}, a=KV)
    world.ask("a")
    world.settle()
    assert world.ends() == ["ok"]
    held = world.procs[world.instance("a").id].life.behaviour
    info = world.infos[0]
    assert held.awake_bytes == info.capacity_bytes - info.margin_bytes
    assert held.kv_bytes == 12 * GIB - (28 * GIB - held.awake_bytes)
    assert not world.overflows


def test_kv_cache_is_not_shrunk_where_there_is_room_for_all_of_it() -> None:
    world = Plain({"gpu0": 40}, a=KV)
    world.ask("a")
    world.settle()
    assert world.procs[world.instance("a").id].life.behaviour.kv_bytes == 12 * GIB


@pytest.mark.parametrize(("awake_gib", "end"), [(17, "ok"), (21, "ok"), (26, "ok"), (27, "does_not_fit")])
def test_an_estimate_is_taken_with_less_to_spare_where_the_device_is_too_small_for_all_of_it(awake_gib: int, end: str) -> None:
    """Four of these GiB are KV cache, of which one is needed: with all to spare, what is larger than 21 GiB would never start."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=awake_gib * GIB, kv_bytes=4 * GIB, kv_min_bytes=GIB), b=Behaviour(awake_bytes=GIB))
    world.ask("b")
    world.settle()
    guess = Footprint(awake_bytes=awake_gib * GIB, kv_bytes=4 * GIB, kv_min_bytes=GIB, source=Source.ESTIMATED)
    world.state.facts_of(ModelName("a")).guess = guess
    (client,) = world.ask("a")
    world.run_until(lambda: world.phase("a") == "launching" or client.end != "held")
    if end == "ok":
        room = world.infos[0].capacity_bytes - world.infos[0].margin_bytes
        assert world.instance("a").claim.on(DeviceId("gpu0")) == min(guess.launch_bytes(), room)
    world.settle()
    assert client.end == end
    assert not world.overflows
    assert client.error is None or client.error.message.startswith("a needs 24.0 GiB (1.0 GiB KV")


@pytest.mark.parametrize(
    ("source", "fix"), [(Source.ESTIMATED, "use {}"), (Source.DECLARED, "correct `footprint` of a if it says too much; or use {}")]
)
def test_kv_cache_never_shrinks_below_one_request_and_the_refusal_has_the_numbers(source: Source, fix: str) -> None:
    world = Plain({"gpu0": 24}, a=replace(KV, kv_min_bytes=8 * GIB))
    facts = world.state.facts_of(ModelName("a"))
    facts.guess = replace(facts.guess, source=source)
    (client,) = world.ask("a")
    assert client.end == "does_not_fit"
    assert client.error is not None
    needs, gives = "24.0 GiB (8.0 GiB KV cache for one request of full length)", "23.5 GiB of 24.0 GiB"
    assert client.error.message == f"a needs {needs}; gpu0, the largest device it may use, can give {gives}"
    assert client.error.fix == fix.format("a shorter context, a smaller quantisation, or more cards (devices.count)")


def test_neighbours_leave_rather_than_that_a_cache_is_cut_for_them() -> None:
    world = Plain({"gpu0": 40}, a=KV, b=Behaviour(awake_bytes=16 * GIB))
    world.ask("b")
    world.settle()
    world.ask("a")
    world.settle()
    assert world.procs[world.instance("a").id].life.behaviour.kv_bytes == 12 * GIB
    assert world.phase("b") == "asleep"


def test_a_run_with_a_smaller_cache_says_nothing_of_the_next_with_a_larger_one() -> None:
    world = Plain({"gpu0": 24, "gpu1": 40}, specs={"a": on("gpu0")}, a=KV)
    world.ask("a")
    world.settle()
    world.order("stop", "a")
    world.settle()
    world.configure(a=on("gpu1"))
    world.ask("a")
    world.settle()
    assert world.procs[world.instance("a").id].life.behaviour.kv_bytes == 12 * GIB
    assert not world.overflows


def test_who_waits_for_a_device_that_changes_hands_hears_who_is_moving() -> None:
    """A member fell ill, and the whole gang finishes its answers: that keeps the healthy member's device, too."""
    world = Plain({}, infos=linked(2), specs={"a": PAIR}, a=BIG, b=BIG)
    world.ask("a", for_s=600.0)
    world.run(10)
    world.ail("gpu1", Health.DRAINING)
    world.ask("b")
    assert world.state.hold_reasons[ModelName("b")].text == "another change on gpu0 is under way: a is draining"
