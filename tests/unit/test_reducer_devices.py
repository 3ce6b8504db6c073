"""Devices that fall ill, get lost, vanish and come back, with instances in every phase on them."""

from dataclasses import replace

import pytest

from scheduler.domain.device import DeviceInfo, Health, Stranger
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.unfit import never_fits
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain
from tests.support.world import device

GPU0 = DeviceId("gpu0")
SMALL = Behaviour(awake_bytes=6 * GIB)
SLOW = Behaviour(awake_bytes=6 * GIB, start_s=5.0, sleep_s=5.0, wake_s=5.0, term_s=5.0)


def gpus(count: int) -> list[DeviceInfo]:
    return [device(f"gpu{n}", 24, index=n) for n in range(count)]


def in_phase(phase: str, count: int = 2) -> Plain:
    """``a`` sits on gpu0 and is in ``phase``."""
    world = Plain({}, infos=gpus(count), a=SLOW)
    world.ask("a")
    world.run(3)
    if phase != "launching":
        world.run(5)
    if phase in ("falling_asleep", "asleep", "waking"):
        world.order("sleep", "a")
        world.run(1)
    if phase in ("asleep", "waking"):
        world.run(8)
    if phase == "waking":
        world.ask("a", for_s=3.0)
        world.run(1)
    if phase in ("awake", "draining"):
        world.ask("a", for_s=60.0)
    if phase == "draining":
        world.order("stop", "a")
    if phase == "stopping":
        world.order("stop", "a")
        world.run(1)
    assert (world.phase("a"), world.instance("a").devices) == (phase, ("gpu0",))
    return world


# --- lost -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["launching", "awake", "draining", "falling_asleep", "asleep", "waking", "stopping"])
def test_a_lost_device_ends_who_sits_there_whatever_it_was_doing(phase: str) -> None:
    world = in_phase(phase)
    world.ail("gpu0", Health.LOST)
    if phase != "stopping":
        assert world.count("Kill", "a") == 1, "at once, without a TERM: nothing there answers"
        reason = world.instance("a").reason
        assert reason.code is Code.DEVICE_LOST
        assert reason.text == "gpu0 is lost: it fell off the bus (Xid 79)"
    world.run_until(lambda: not world.procs, within_s=20.0)
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    assert world.instance("a").devices == ("gpu1",)
    assert "held" not in world.ends()
    message, fix, _ = world.state.degraded["device_lost:gpu0"]
    assert (message, fix) == ("gpu0: it fell off the bus (Xid 79)", "look at dmesg")


def test_requests_on_a_lost_device_end_with_an_error_and_those_that_wait_are_kept() -> None:
    world = Plain({}, infos=gpus(2), specs={"a": {"max_concurrent": 1}}, a=SLOW)
    running, waiting = world.ask("a", 2, for_s=60.0)
    world.run(10)
    assert (running.end, waiting.end) == ("granted", "held")
    world.ail("gpu0", Health.LOST)
    world.settle()
    assert (running.end, waiting.end) == ("engine_lost", "ok")
    assert waiting.waited_s is not None
    assert waiting.waited_s < 30.0


def test_a_device_that_comes_back_well_is_used_again_and_nothing_is_left_to_complain_about() -> None:
    world = in_phase("awake", count=1)
    world.ail("gpu0", Health.LOST)
    (client,) = world.ask("a", wait_s=300.0)
    world.run(20)
    assert client.end == "held"
    assert world.state.hold_reasons[ModelName("a")].text == "gpu0 is lost: it fell off the bus (Xid 79)"
    world.ail("gpu0", Health.OK)
    assert {"device_lost", "device_back"} <= {t.kind for t in world.told}
    world.settle()
    assert client.end == "ok"
    assert not world.state.degraded


def test_what_was_found_unknown_on_a_lost_device_is_ended_too() -> None:
    world = in_phase("awake")
    world.around.ill[GPU0] = Health.LOST
    world.procs[world.instance("a").id].life.silent = True
    world.restart()
    world.run(40)
    assert world.phase("a") == "stopped"
    assert not world.procs


# --- gangs ------------------------------------------------------------------------------------------------------


def test_a_gang_that_loses_a_member_is_ended_whole_and_healthy_memory_returns_by_measurement() -> None:
    lagging = replace(SLOW, awake_bytes=20 * GIB, free_lag_s=4.0)
    world = Plain({}, infos=gpus(2), specs={"a": {"devices": DeviceWish(count=2)}}, a=lagging, b=SLOW)
    world.ask("a", for_s=100)
    world.run(10)
    assert world.instance("a").devices == ("gpu0", "gpu1")
    world.ask("b", wait_s=60.0)
    lost_at_s = world.now_s
    world.ail("gpu0", Health.LOST)
    world.settle()
    assert (world.ends("a"), world.ends("b")) == (["engine_lost"], ["ok"])
    assert world.when("Launch", "b")[0] >= lost_at_s + 4.0, "its room was not seen free before"
    assert world.instance("b").devices == ("gpu1",)
    assert not world.overflows


# --- faulty -----------------------------------------------------------------------------------------------------


def test_all_who_sit_on_a_faulty_device_leave_it_one_after_the_other_and_the_idle_ones_first() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=SMALL, b=SMALL, c=SMALL)
    world.configure(**{m: {"devices": DeviceWish(ids=(GPU0,))} for m in "abc"})
    for model in "abc":
        world.ask(model)
        world.run(10)
    world.order("sleep", "a")
    world.run(5)
    world.ask("b", for_s=300)
    world.run(1)
    world.ail("gpu0", Health.DRAINING)
    world.run(60)
    assert {m: world.phase(m) for m in "abc"} == {"a": "stopped", "b": "draining", "c": "stopped"}
    world.settle()
    assert (world.phase("b"), world.ends("b")) == ("stopped", ["ok", "ok"])


def test_a_faulty_device_finishes_its_answers_and_new_requests_are_served_elsewhere() -> None:
    world = in_phase("awake")
    world.ail("gpu0", Health.DRAINING)
    assert world.phase("a") == "draining"
    (late,) = world.ask("a", wait_s=300.0)
    world.settle()
    assert world.ends("a") == ["ok", "ok", "ok"], "nothing was cut"
    assert late.end == "ok"
    assert world.instance("a").devices == ("gpu1",)
    (drained,) = [j.transition for j in world.transitions if j.transition.event == "DrainIntended"]
    assert drained.reason.text == "it leaves its seat, because gpu0 is draining: an uncorrectable memory error (Xid 48)"


# --- missing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["launching", "awake", "draining", "falling_asleep", "asleep", "waking", "stopping"])
def test_a_device_that_vanishes_and_comes_back(phase: str) -> None:
    world = in_phase(phase, count=1)
    world.vanish("gpu0")
    assert world.state.degraded["device_missing:gpu0"][0] == "gpu0 (pretended nvidia) was there before and is not now"
    world.run(300)
    assert (world.phase("a"), list(world.procs)) == ("stopped", [])
    world.appear("gpu0")
    assert not world.state.degraded
    assert {"device_missing", "device_found"} <= {t.kind for t in world.told}
    (client,) = world.ask("a")
    world.settle()
    assert (client.end, world.instance("a").devices) == ("ok", ("gpu0",))


@pytest.mark.parametrize("seen", ["by a measurement first", "by the list alone"])
def test_a_device_that_goes_is_told_once_and_again_when_it_goes_again(seen: str) -> None:
    """A MIG instance that was taken apart is missed by the next measurement, and then by the next list."""
    world = in_phase("asleep", count=1)
    for times in (1, 2):
        if seen == "by a measurement first":
            world.ail("gpu0", Health.MISSING)
        world.vanish("gpu0")
        assert [t.subject for t in world.told if t.kind == "device_missing"] == ["gpu0"] * times
        world.around.ill.clear()
        world.appear("gpu0")
        world.settle()


@pytest.mark.parametrize(("away_s", "end"), [(60.0, "ok"), (400.0, "does_not_fit")])
def test_who_waits_for_a_device_that_vanished_is_kept_for_a_while(away_s: float, end: str) -> None:
    """A reset of the driver takes its time; a card that was taken out does not come back."""
    world = in_phase("asleep", count=1)
    world.vanish("gpu0")
    world.run(5)
    (client,) = world.ask("a", wait_s=300.0)
    assert "gpu0 (pretended nvidia) is not there any more" in world.state.hold_reasons[ModelName("a")].text
    world.run(away_s)
    world.appear("gpu0")
    world.settle()
    assert client.end == end


def test_requests_on_a_device_that_vanished_are_not_waited_for() -> None:
    """Nothing there will ever answer them: a drain would last for ever."""
    world = in_phase("awake")
    (waiting,) = world.ask("a", 1)
    world.vanish("gpu0")
    assert world.count("Kill", "a") == 1
    reason = world.instance("a").reason
    assert (reason.code, reason.text) == (Code.DEVICE_LOST, "gpu0 (pretended nvidia) is not there any more")
    (late,) = world.ask("a")
    world.settle()
    assert world.ends("a") == ["ok", "engine_lost", "engine_lost", "ok"]
    assert (waiting.end, late.end, world.instance("a").devices) == ("engine_lost", "ok", ("gpu1",))


# --- no seat ----------------------------------------------------------------------------------------------------


def test_why_nothing_may_grow_on_a_device_is_said_in_words_with_numbers() -> None:
    world = Plain({}, infos=[replace(gpus(1)[0], max_processes=1)], a=SMALL)

    def why() -> str:
        world.take_sample()
        return world.state.hold_reasons[ModelName("a")].text

    world.around.strangers[GPU0] = (Stranger(pid=4711, used_bytes=GIB, name="python"), Stranger(pid=9, used_bytes=None))
    world.take_sample()
    (client,) = world.ask("a", wait_s=600.0)
    assert why() == "gpu0 takes one process at a time (EXCLUSIVE_PROCESS), and python 4711, process 9 is there"
    world.around.strangers.clear()
    world.around.ill[GPU0] = Health.DRIVER_MISMATCH
    assert why() == "gpu0 is driver mismatch: driver_mismatch"
    world.around.ill[GPU0] = Health.OK
    world.foreign[GPU0] = 20 * GIB
    assert why() == "2.5 GiB short; 20.0 GiB are used by others"
    world.unreadable = {GPU0}
    world.run(10)
    assert world.state.hold_reasons[ModelName("a")].text == "no fresh measurement of gpu0"
    assert client.end == "held"
    world.foreign, world.unreadable = {}, set()
    world.settle()
    assert client.end == "ok"


def test_what_may_only_sit_on_a_device_that_is_no_seat_is_refused() -> None:
    infos = [replace(gpus(1)[0], allocatable=False, why_not="devices.override says use: false")]
    world = Plain({}, infos=infos, a=SMALL)
    (client,) = world.ask("a")
    assert client.end == "does_not_fit"
    assert client.error is not None
    text = "a has no device it may run on: gpu0 is no seat: devices.override says use: false"
    assert client.error.message == text


def test_a_device_of_one_process_holds_one_and_a_sleeper_is_one() -> None:
    world = Plain({}, infos=[replace(gpus(1)[0], max_processes=1)], a=SMALL, b=SMALL)
    for model in "abab":
        world.ask(model)
        world.run_until(lambda: world.quiet)
        assert len(world.procs) == 1
    assert world.ends() == ["ok"] * 4
    assert world.count("Sleep") == 0, "asleep it would still be there"


def test_an_operator_may_put_to_sleep_on_a_device_of_one_process_and_the_next_one_stops_it() -> None:
    world = Plain({}, infos=[replace(gpus(1)[0], max_processes=1)], a=SMALL, b=SMALL)
    world.ask("a")
    world.settle()
    world.order("sleep", "a")
    world.settle()
    assert world.phase("a") == "asleep"
    world.ask("b")
    world.settle()
    assert (world.phase("a"), world.phase("b"), world.ends("b")) == ("stopped", "awake", ["ok"])


# --- what nobody measured ---------------------------------------------------------------------------------------


def test_a_sleep_is_not_believed_while_the_driver_tells_nothing() -> None:
    world = in_phase("falling_asleep", count=1)
    world.ail("gpu0", Health.DRIVER_MISMATCH)
    world.run(60)
    assert world.phase("a") == "falling_asleep"
    assert world.state.facts_of(ModelName("a")).learned.residue_bytes == {}
    world.ail("gpu0", Health.OK)
    world.settle()
    assert world.phase("a") == "asleep"
    assert min(world.state.facts_of(ModelName("a")).learned.residue_bytes[1]) > 0


def test_a_sleep_on_a_device_that_vanished_teaches_nothing_and_ends() -> None:
    world = in_phase("falling_asleep", count=1)
    world.vanish("gpu0")
    world.settle()
    assert world.phase("a") == "stopped"
    learned = world.state.facts_of(ModelName("a")).learned
    assert (learned.residue_bytes, learned.denied_levels) == ({}, ())


@pytest.mark.parametrize(
    ("wish", "cause", "fix"),
    [
        (DeviceWish(ids=(DeviceId("gpu7"),)), "there is no gpu7; devices are: gpu0, gpu1", "correct devices.ids"),
        (DeviceWish(kind="cpu"), "it wants the kind cpu; devices are: gpu0, gpu1", "declare it: devices: {declared: [{id: cpu0, "),
        (DeviceWish(kind="nvidia"), "it wants the kind nvidia; devices are: gpu0, gpu1", "hotseat doctor"),
        (
            DeviceWish(min_memory_bytes=80 * GIB),
            "it wants 80.0 GiB or more on each; gpu1, the largest, has 48.0 GiB",
            "lower devices.memory",
        ),
        (DeviceWish(count=9), "it wants 9 equal devices at once; it may use 2: gpu0, gpu1", "lower devices.count"),
        (
            DeviceWish(count=2, ids=(DeviceId("gpu0"), DeviceId("gpu7"))),
            "it wants 2 equal devices at once; it may use 1: gpu0; not there: gpu7",
            "lower devices.count",
        ),
    ],
    ids=["ids", "no budget", "no card", "memory", "count", "count and ids"],
)
def test_a_model_without_any_device_is_told_which_condition_leaves_none(wish: DeviceWish, cause: str, fix: str) -> None:
    infos = [device("gpu0", 24, index=0), replace(device("gpu1", 48, index=1))]
    infos = [replace(info, kind="rngd") for info in infos] if wish.kind == "nvidia" else [replace(info, kind="nvidia") for info in infos]
    world = Plain({}, infos=infos, specs={"a": {"devices": wish}}, a=SMALL)
    (client,) = world.ask("a")
    assert client.error is not None
    assert (client.end, client.error.message) == ("does_not_fit", f"a has no device it may run on: {cause}")
    assert client.error.fix.startswith(fix)
    assert never_fits(world.state, ModelName("a")) is not None


def test_nothing_is_said_against_a_model_that_fits_once_others_have_left() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=20 * GIB), b=Behaviour(awake_bytes=20 * GIB))
    world.ask("b")
    assert never_fits(world.state, ModelName("a")) is None


def test_a_restart_that_cannot_start_again_says_what_the_device_has() -> None:
    world = in_phase("awake", count=1)
    world.run(61)
    action = world.order("restart", "a")
    world.ail("gpu0", Health.DRIVER_MISMATCH)
    world.run(60)
    assert not world.finished[action].ok
    (line,) = [line for line in world.told if line.kind == "memory_not_freed"]
    assert line.message == "not started: a waited 10 s for its devices: gpu0 is driver mismatch: driver_mismatch"


def test_a_headroom_that_leaves_too_little_is_the_cause_and_not_the_model() -> None:
    infos = [replace(device("gpu0", 24, index=0), headroom_bytes=24 * GIB)]
    world = Plain({}, infos=infos, a=SMALL)
    (client,) = world.ask("a")
    assert client.error is not None
    assert "can give 0 MiB of 24.0 GiB, of which 24.0 GiB are kept free by configuration" in client.error.message
    assert client.error.fix.startswith("lower devices.headroom")
