"""Who gets which seat, who leaves for it, and what measured memory has to say in it: as operators were disappointed elsewhere."""

import os
import subprocess
import sys

import pytest

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.plain import Plain

GPU = DeviceId("gpu0")


def sized(gib: float, **more: object) -> Behaviour:
    """An engine that takes so much."""
    return Behaviour(awake_bytes=int(gib * GIB), **more)  # type: ignore[arg-type]


def devices_of(world: Plain, models: str) -> dict[str, str]:
    """Where each of these sits."""
    return {m: ",".join(world.instance(m).devices) for m in models}


# --- which seat -------------------------------------------------------------------------------------------------


def test_on_unequal_devices_each_model_is_counted_against_its_own() -> None:
    world = Plain({"gpu0": 16, "gpu1": 24}, a=sized(20), b=sized(12), c=sized(18))
    for model in "ab":
        world.ask(model)
        world.settle()
    assert devices_of(world, "ab") == {"a": "gpu1", "b": "gpu0"}
    assert world.instance("a").claim.on(DeviceId("gpu0")) == 0
    world.ask("a", for_s=60.0)
    world.ask("c")  # more than gpu0 has, though it would fit into an average device
    world.run(30)
    assert world.phase("c") == "stopped"
    world.settle()
    assert devices_of(world, "c") == {"c": "gpu1"}
    assert (world.phase("a"), world.phase("b")) == ("asleep", "awake")
    assert not world.overflows


def test_equal_models_spread_over_equal_devices() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=sized(7), b=sized(7), c=sized(7), d=sized(7))
    for model in "abcd":
        world.ask(model)
        world.run(10)
    assert sorted(devices_of(world, "abcd").values()) == ["gpu0", "gpu0", "gpu1", "gpu1"]
    assert world.count("Sleep") == world.count("Stop") == 0


def test_one_device_is_used_where_one_is_enough_and_only_those_that_are_large_enough() -> None:
    world = Plain({"gpu0": 6, "gpu1": 24}, a=sized(9.6))
    world.ask("a")
    world.settle()
    assert devices_of(world, "a") == {"a": "gpu1"}
    assert dict(world.instance("a").claim.device_bytes).keys() == {DeviceId("gpu1")}


def test_of_two_devices_that_are_large_enough_only_one_is_used() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=sized(9.6))
    world.ask("a")
    world.settle()
    assert devices_of(world, "a") == {"a": "gpu0"}
    assert dict(world.instance("a").claim.device_bytes).keys() == {GPU}


def test_eight_models_on_four_devices_need_no_rules() -> None:
    """Sizes and budgets alone: whoever asks is served, and nobody leaves who did not have to."""
    sizes = {"a": 16, "b": 16, "c": 10, "d": 10, "e": 8, "f": 8, "g": 4, "h": 4}
    world = Plain({f"gpu{n}": 24 for n in range(4)}, behaviours={m: sized(gib) for m, gib in sizes.items()})
    for model in sizes:
        world.ask(model)
        world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.count("Sleep") + world.count("Stop") == 0  # 76 of 96 GiB: all of them have a seat
    for model in "ahbgcfde":
        world.ask(model)
        world.settle()
    assert world.count("Launch") == 8
    assert not world.overflows


def test_a_ninth_model_costs_one_seat_of_those_that_are_large_enough() -> None:
    """16 + 4, 16 + 4, 10 + 8 and 10 + 8 GiB of 24 each are taken: 7 GiB fit nowhere, and one that leaves is enough."""
    sizes = {"a": 16, "b": 16, "c": 10, "d": 10, "e": 8, "f": 8, "g": 4, "h": 4}
    world = Plain({f"gpu{n}": 24 for n in range(4)}, behaviours={m: sized(gib) for m, gib in (sizes | {"ninth": 7}).items()})
    for model in [*sizes, "ninth"]:
        world.ask(model)
        world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.phase("ninth") == "awake"
    assert [did for _, did, _ in world.did if did in ("Sleep", "Stop")] == ["Sleep"]
    assert not world.overflows


def decisions() -> list[str]:
    """What is done, and who sits where then: eight equal models on three equal devices, and all that are awake used at once."""
    world = Plain({f"gpu{n}": 24 for n in range(3)}, behaviours=dict.fromkeys("abcdefgh", sized(10, levels=())))
    seated = []
    for model in "abcdefghcbafedhg":
        for other in "abcdefgh":
            if world.phase(other) == "awake":
                world.ask(other)
        world.run(60.0)
        if world.phase(model) != "awake":
            world.ask(model)
            world.settle()
        seated.append(devices_of(world, "abcdefgh"))
    return [*map(str, world.did), *map(str, seated)]


def test_the_same_demand_twice_is_decided_alike() -> None:
    """In processes of their own: within one, the order of a set and of addresses may well be the same twice."""
    code = "from tests.unit.test_reducer_seats import decisions\nprint(*decisions(), sep=chr(10))"
    seen = set()
    for seed in "012":
        environ = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environ)
        seen.add(done.stdout)
    assert len(seen) == 1, "\n\n".join(seen)
    assert seen.pop().count("Stop") > 3


def test_of_equals_whoever_was_used_least_recently_leaves() -> None:
    world = Plain({"gpu0": 24}, a=sized(10), b=sized(10), c=sized(10))
    for model in "aba":  # b came last, and a was used last
        world.ask(model)
        world.run(30.0)
    world.ask("c")
    world.settle()
    assert (world.phase("a"), world.phase("b"), world.phase("c")) == ("awake", "asleep", "awake")


def test_always_awake_models_that_do_not_fit_together_do_not_chase_each_other() -> None:
    world = Plain({"gpu0": 24}, specs={m: {"always_awake": True} for m in "abc"}, a=sized(10), b=sized(10), c=sized(10))
    world.run(600)
    assert sorted(world.phase(m) for m in "abc") == ["awake", "awake", "stopped"]
    assert world.count("Launch") == 2
    [waiting] = [m for m in "abc" if world.phase(m) == "stopped"]
    assert world.why(waiting) in (Code.WAITING_TURN, Code.WAITING_MEMORY, Code.ALWAYS)


def test_ten_quick_edits_start_one_process() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"always_awake": True}}, a=sized(10))
    for n in range(10):
        world.configure(a={"description": f"edit {n}", "max_queued": 100 + n})
        world.run(0.1)
    world.run(60)
    assert world.phase("a") == "awake"
    assert world.count("Launch") == 1
    assert len(world.procs) == 1


# --- measured, not believed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["stopped", "asleep"])
def test_room_that_others_take_between_the_decision_and_the_start_is_not_taken_twice(before: str) -> None:
    """Nor between the decision and the wake."""
    world = Plain({"gpu0": 24}, a=sized(16), b=sized(16))
    if before == "asleep":
        world.ask("b", for_s=0.0)
        world.settle()
    world.ask("a", for_s=8.0)
    world.run_until(lambda: world.phase("a") == "awake")
    assert world.phase("b") == before
    world.ask("b", wait_s=600)
    world.run_until(lambda: world.phase("a") == "falling_asleep")
    world.foreign = {GPU: 12 * GIB}  # while a falls asleep: with it, b does not fit any more
    world.run(60)
    assert world.phase("b") == before
    assert world.count("Wake", "b") == 0
    assert world.why("b") in (Code.WAITING_MEMORY, Code.WAITING_TURN)
    assert not world.overflows
    world.foreign = {}
    world.settle()
    assert set(world.ends()) == {"ok"}


def test_after_a_crash_nothing_is_waited_for_that_is_free_already() -> None:
    """The driver shows the bytes free at the next look: the model that waits for them starts then, and not after a fixed time."""
    world = Plain({"gpu0": 24}, a=sized(16, levels=()), b=sized(16))
    world.ask("a", for_s=600.0)
    world.run(10)
    world.ask("b")
    world.run(1)
    assert world.phase("b") == "stopped"
    world.crash("a")
    crashed_s = world.now_s
    world.run_until(lambda: world.phase("b") == "launching")
    assert world.now_s - crashed_s <= world.policy.sample_period_s
    world.settle()
    assert "ok" in world.ends("b")


def test_a_size_that_was_declared_too_large_evicts_nobody_once_it_was_measured() -> None:
    world = Plain({"gpu0": 80}, a=sized(27, guess_bytes=59 * GIB), b=sized(20), c=sized(20))
    world.ask("a")
    world.settle()
    for model in "bc":
        world.ask(model)
        world.settle()
    assert {world.phase(m) for m in "abc"} == {"awake"}
    assert world.count("Sleep") + world.count("Stop") == 0


def test_a_full_device_without_demand_is_left_alone() -> None:
    world = Plain({"gpu0": 100}, a=sized(46), b=sized(45))
    for model in "ab":
        world.ask(model)
        world.settle()
    world.run(3600)
    assert (world.phase("a"), world.phase("b")) == ("awake", "awake")
    assert world.count("Sleep") + world.count("Stop") == 0


def test_six_sleepers_on_one_device_are_counted_and_some_are_stopped_when_their_residue_is_wanted() -> None:
    sleeper = sized(8, residue_bytes={1: 2 * GIB})
    world = Plain({"gpu0": 24}, behaviours=dict.fromkeys("abcdef", sleeper), g=sized(20))
    for model in "abcdef":
        world.ask(model)
        world.settle()
        world.order("sleep", model)
        world.settle()
    asleep = [m for m in "abcdef" if world.phase(m) == "asleep"]
    assert sum(world.instance(m).claim.total_bytes for m in asleep) >= 2 * GIB * len(asleep)
    world.ask("g")
    world.settle()
    assert world.ends("g") == ["ok"]
    assert len([m for m in "abcdef" if world.phase(m) == "asleep"]) <= 1
    assert not world.overflows


def test_start_without_memory_takes_more_room_evicts_for_it_and_is_repeated() -> None:
    """A model that was thought smaller than it is: after its failed start the neighbour leaves as well."""
    short = StartFailure(code=Code.DEVICE_OOM, text="CUDA out of memory")
    world = Plain({"gpu0": 24}, a=sized(10), b=sized(16, guess_bytes=9 * GIB, start_failures=(short,)))
    world.ask("a")
    world.settle()
    assert world.phase("a") == "awake"
    world.ask("b")
    world.settle()
    assert world.ends() == ["ok", "ok"]
    assert world.phase("a") == "asleep"
    first, second = world.when("Launch", "b")
    assert first < world.when("Sleep", "a")[0] < second
    assert len(world.overflows) == 1  # of the first try, which was thought to fit


@pytest.mark.parametrize("wish", [DeviceWish(), DeviceWish(ids=(GPU,))])
def test_an_operators_wake_obeys_the_same_ledger(wish: DeviceWish) -> None:
    world = Plain({"gpu0": 24}, specs={"b": {"devices": wish}}, a=sized(16), b=sized(16), c=sized(40))
    world.ask("a", for_s=60.0)
    world.run(10)
    action = world.order("wake", "b")
    world.run(10)
    assert world.phase("b") == "stopped"
    assert world.phase("a") == "awake"
    world.settle()
    assert world.finished[action].ok
    assert world.phase("a") == "asleep"
    refused = world.order("wake", "c")
    world.settle()
    assert world.finished[refused].code == "does_not_fit"
    assert world.instance("c").claim.total_bytes == 0
    assert ModelName("c") not in world.state.holds.models()


def test_an_engine_that_grew_into_the_margin_of_its_device_is_woken_and_started_there_again() -> None:
    """It was once as large as the device can hold: that is no reason to refuse it for ever."""
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=22 * GIB, growth_bps=GIB, growth_limit_bytes=int(1.8 * GIB)))
    for verb in ("sleep", "stop", "sleep"):
        world.ask("a", for_s=20.0)
        world.settle()
        world.order(verb, "a")
        world.settle()
    assert world.ends() == ["ok"] * 3
    assert (world.count("Launch", "a"), world.count("Wake", "a")) == (2, 1)
    assert world.overflows == []
