"""The core of the fake engines: sleep, tags and wake, and what its knobs do to them."""

from typing import Any

import pytest

from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.engine import Answer
from tests.support.behaviour import ALWAYS, NEVER, NO_ROOM, NO_ZERO, Behaviour, StartFailure
from tests.support.engine_life import KV_CACHE, SCHEDULING, WEIGHTS, EngineLife, Fate, Stage

SIZED = Behaviour(start_s=1.0, awake_bytes=10 * GIB, kv_bytes=3 * GIB, residue_bytes={1: GIB, 2: GIB // 2}, levels=(1, 2))


class Room:
    """A device with so much left for one engine, and others on it."""

    def __init__(self, free: int, others: int = 0) -> None:
        self.free, self.used_by_others = free, others
        self.refused = 0

    def take(self, size: int) -> bool:
        self.refused += size > self.free
        return size <= self.free

    def squeeze(self, size: int) -> int:
        return min(size, self.free)

    def others(self) -> int:
        return self.used_by_others


def alive(room: Room | None = None, **knobs: Any) -> EngineLife:
    """An engine that became ready at 1 s."""
    life = EngineLife(Behaviour(**{**{name: getattr(SIZED, name) for name in SIZED.__slots__}, **knobs}), 0, 0.0, room)
    life.advance(1.0)
    assert life.stage is Stage.AWAKE
    return life


def asleep(room: Room | None = None, level: int = 1, **knobs: Any) -> EngineLife:
    """The same, asleep since 1.5 s; it is 10 s."""
    life = alive(room, **knobs)
    life.sleep(1.0, level)
    life.advance(10.0)
    assert life.stage is Stage.ASLEEP
    return life


# --- tags -------------------------------------------------------------------------------------------------------------


def test_memory_comes_back_tag_by_tag() -> None:
    life = asleep()
    assert life.device_bytes(10.0) == GIB
    reply = life.wake(10.0, [WEIGHTS])
    assert life.stage is Stage.WAKING
    assert reply.at_s == 11.0
    life.advance(11.0)
    assert (life.stage, life.gone_tags, life.device_bytes(11.0)) == (Stage.ASLEEP, {KV_CACHE}, 7 * GIB)
    assert life.request(11.0) is Fate.QUEUED
    assert life.wake(11.0, [KV_CACHE]).at_s == 11.0
    life.advance(11.0)
    assert (life.stage, life.is_sleeping, life.device_bytes(11.0)) == (Stage.AWAKE, False, 10 * GIB)


def test_the_kv_cache_may_come_first() -> None:
    life = asleep()
    life.wake(10.0, [KV_CACHE])
    life.advance(10.0)
    assert (life.gone_tags, life.device_bytes(10.0)) == ({WEIGHTS}, 4 * GIB)


@pytest.mark.parametrize("tags", [["nonsense"], [WEIGHTS, "nonsense"], [SCHEDULING], []])
def test_one_bad_tag_cancels_the_good_ones(tags: list[str]) -> None:
    life = asleep()
    assert (life.wake(10.0, tags).error, life.stage, life.gone_tags) == ("", Stage.ASLEEP, {WEIGHTS, KV_CACHE})
    life.wake(10.0, [WEIGHTS, SCHEDULING])  # this one is good in company
    life.advance(20.0)
    assert life.gone_tags == {KV_CACHE}
    life.wake(20.0, [WEIGHTS])  # and is not asleep any more
    assert life.stage is Stage.ASLEEP


def test_level_0_and_pause_keep_the_memory() -> None:
    life = alive()
    assert life.sleep(1.0, 0).at_s == 1.0
    assert (life.stage, life.is_sleeping, life.device_bytes(1.0)) == (Stage.AWAKE, True, 10 * GIB)
    assert life.answer(1.0) is Answer.ASLEEP
    assert life.request(1.0) is Fate.QUEUED
    life.wake(2.0, [SCHEDULING])
    assert life.request(2.0) is Fate.ANSWERED
    life.pause()
    assert life.request(2.0) is Fate.UNAVAILABLE  # 0.33
    life.wake(2.0)  # lifts a pause, too
    assert not life.is_sleeping
    life.behaviour = Behaviour(rejects_while_paused=False)  # 0.32
    life.pause()
    assert life.request(2.0) is Fate.QUEUED
    life.resume()
    assert life.request(2.0) is Fate.ANSWERED


def test_a_memory_kind_can_be_given_back_alone() -> None:
    life = alive()
    life.pause()
    life.discard(1.0, KV_CACHE)
    assert (life.is_sleeping, life.device_bytes(1.0)) == (True, 7 * GIB)
    life.wake(1.0, [KV_CACHE])
    life.advance(1.0)
    assert (life.stage, life.device_bytes(1.0)) == (Stage.AWAKE, 10 * GIB)


# --- level 2 ----------------------------------------------------------------------------------------------------------


def wake_fully(life: EngineLife, now_s: float, *, reload: bool = True) -> Fate:
    """What the first request after a wake meets."""
    life.wake(now_s)
    life.advance(now_s + 5)
    if reload:
        life.reload(now_s + 5)
    return life.request(now_s + 5)


def test_level_2_is_garbage_until_the_weights_are_read_again() -> None:
    life = asleep(level=2)
    assert life.device_bytes(10.0) == GIB // 2
    assert wake_fully(life, 10.0, reload=False) is Fate.GARBAGE
    life.sleep(20.0, 1)
    life.advance(30.0)
    assert wake_fully(life, 30.0, reload=False) is Fate.GARBAGE  # level 1 keeps what there is: nonsense
    assert life.reload(40.0).error == ""
    assert life.request(40.0) is Fate.ANSWERED
    assert wake_fully(asleep(level=1), 10.0, reload=False) is Fate.ANSWERED


def test_reload_is_slow_fails_and_needs_mapped_memory() -> None:
    life = asleep(level=2, reload_s=7.0)
    life.wake(10.0, [WEIGHTS])
    life.advance(11.0)
    assert life.reload(11.0).at_s == 18.0
    failing = asleep(level=2, reload_error="shapes differ")
    assert failing.reload(10.0).error == "shapes differ"
    assert wake_fully(failing, 10.0) is Fate.GARBAGE
    early = asleep(level=2)
    assert "illegal" in early.reload(10.0).error
    assert early.stage is Stage.ENDED


@pytest.mark.parametrize(
    ("level", "knobs", "fate"),
    [
        (2, {"garbage_levels": (2,)}, Fate.GARBAGE),
        (1, {"garbage_levels": (2,)}, Fate.ANSWERED),
        (1, {"garbage_levels": (1, 2)}, Fate.GARBAGE),
        (2, {"fp8_kv_garbage": True, "kv_dtype": "fp8_e4m3"}, Fate.GARBAGE),
        (2, {"fp8_kv_garbage": True}, Fate.ANSWERED),
        (1, {"fp8_kv_garbage": True, "kv_dtype": "fp8"}, Fate.ANSWERED),
        (2, {"garbage_levels": (2,), "sleep_enabled": False}, Fate.ANSWERED),  # nothing happened to it
        (2, {"wedged_after_wake": True}, Fate.HANGS),
        (2, {"first_generation_fails": True}, Fate.FAILS_AND_ENDS),
        (1, {"first_generation_fails": True}, Fate.ANSWERED),
        (1, {"dies_on_first_request_after_wake": True}, Fate.ENDS),
    ],
)
def test_what_the_first_request_after_a_wake_meets(level: int, knobs: dict[str, Any], fate: Fate) -> None:
    life = asleep(level=level, **knobs)
    assert wake_fully(life, 10.0) is fate
    assert life.answer(15.0) is (Answer.REFUSED if fate is Fate.ENDS else Answer.READY)  # its health tells nothing


def test_a_stale_cache_is_mended_by_a_reset() -> None:
    life = asleep(stale_cache_garbage=True)
    assert wake_fully(life, 10.0) is Fate.GARBAGE
    life.reset_cache()
    assert life.request(20.0) is Fate.ANSWERED


def test_it_is_slower_after_level_2() -> None:
    life = asleep(level=1, slow_after_level_2=2.0)
    assert life.slowness == 1.0
    wake_fully(life, 10.0)
    life.sleep(20.0, 2)
    life.advance(30.0)
    assert life.slowness == 2.0


def test_kv_first_at_level_2_is_the_end_of_some() -> None:
    assert asleep(level=1, kv_first_wake_crashes=True).wake(10.0, [KV_CACHE]).error == ""
    life = asleep(level=2, kv_first_wake_crashes=True)
    assert "illegal" in life.wake(10.0, [KV_CACHE]).error
    assert life.stage is Stage.ENDED
    assert asleep(level=2, kv_first_wake_crashes=True).wake(10.0).error == ""


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "held"),
    [
        ({}, GIB),
        ({"free_fraction": 0.5}, GIB + 9 * GIB // 2),
        ({"free_fraction": 0.0}, 10 * GIB),
        ({"sleep_enabled": False}, 10 * GIB),
        ({"sleep_frees_nothing": True}, 10 * GIB),
        ({"residue_bytes": {1: 20 * GIB}}, 10 * GIB),  # never more than it had
    ],
)
def test_what_a_sleep_frees(knobs: dict[str, Any], held: int) -> None:
    life = asleep(**knobs)
    assert life.device_bytes(10.0) == held
    assert life.is_sleeping


def test_memory_falls_later_than_the_reply() -> None:
    life = alive(free_delay_s=1.5)
    reply = life.sleep(1.0, 1)
    life.advance(reply.at_s)
    assert (life.stage, life.device_bytes(reply.at_s)) == (Stage.ASLEEP, 10 * GIB)
    assert life.next_change_s() == reply.at_s + 1.5
    life.advance(reply.at_s + 1.5)
    assert life.device_bytes(reply.at_s + 1.5) == GIB
    assert life.next_change_s() == NEVER


def test_residue_grows_with_each_cycle() -> None:
    life = alive(residue_growth_bytes=GIB // 4)
    seen = []
    for cycle in range(3):
        at_s = 10.0 * cycle + 1
        life.sleep(at_s, 1)
        life.advance(at_s + 2)
        seen.append(life.device_bytes(at_s + 2))
        life.wake(at_s + 3)
        life.advance(at_s + 9)
    assert seen == [GIB, GIB + GIB // 4, GIB + GIB // 2]


def test_host_copies_stay_or_go() -> None:
    for stays, left in ((True, 9 * GIB), (False, 0)):
        life = asleep(host_bytes={1: 9 * GIB}, host_copy_stays=stays)
        assert life.host_bytes() == 9 * GIB
        life.wake(10.0)
        life.advance(12.0)
        assert life.host_bytes() == left


def test_bandwidths_and_a_slower_first_sleep() -> None:
    life = alive(sleep_bps=2 * GIB, wake_bps=3 * GIB, first_sleep_extra_s=4.0)
    assert life.sleep(1.0, 1).at_s == 1.0 + 3.0 + 4.0  # 6 GiB of weights
    life.advance(10.0)
    assert life.wake(10.0).at_s == 12.0
    life.advance(12.0)
    assert life.sleep(12.0, 1).at_s == 15.0
    life.advance(15.0)
    life.wake(15.0)
    life.advance(20.0)
    assert life.sleep(20.0, 2).at_s == 20.5  # level 2 copies nothing


# --- a wake without room ----------------------------------------------------------------------------------------------


def test_a_wake_without_room_leaves_a_part_mapped_and_can_be_tried_again() -> None:
    room = Room(4 * GIB)
    life = asleep(room, wake_needs_room=True)
    reply = life.wake(10.0)
    assert reply.error == f"Call to wake_up method failed: {NO_ROOM}"
    assert life.device_bytes(10.5) == 4 * GIB  # while it fails, too
    life.advance(reply.at_s)
    assert (life.stage, life.is_sleeping, life.device_bytes(11.0)) == (Stage.ASLEEP, True, 4 * GIB)
    assert room.refused == 1
    room.free = 20 * GIB
    assert life.wake(11.0).error == ""
    life.advance(20.0)
    assert (life.stage, life.device_bytes(20.0)) == (Stage.AWAKE, 10 * GIB)
    life.sleep(20.0, 1)
    life.advance(30.0)
    assert life.device_bytes(30.0) == GIB


def test_weights_without_room_then_with() -> None:
    room = Room(6 * GIB)
    life = asleep(room, wake_needs_room=True)
    life.wake(10.0, [WEIGHTS])
    life.advance(20.0)
    assert life.gone_tags == {WEIGHTS, KV_CACHE}
    room.free = 7 * GIB
    life.wake(20.0, [WEIGHTS])
    life.advance(30.0)
    assert life.gone_tags == {KV_CACHE}
    assert NO_ROOM in life.wake(30.0, [KV_CACHE]).error


def test_wakes_can_fail_for_ever_without_mapping_anything() -> None:
    life = asleep(wake_errors=ALWAYS, wake_error_text=NO_ZERO)
    for at_s in (10.0, 20.0, 30.0):
        assert NO_ZERO in life.wake(at_s).error
        life.advance(at_s + 5)
        assert (life.stage, life.device_bytes(at_s + 5)) == (Stage.ASLEEP, GIB)


def test_without_the_knob_nobody_is_asked() -> None:
    room = Room(0)
    life = asleep(room)
    assert life.wake(10.0).error == ""
    assert room.refused == 0


# --- ends -------------------------------------------------------------------------------------------------------------


def test_it_can_end_in_its_third_wake() -> None:
    life = alive(crash_after_cycles=3)
    for cycle in range(3):
        assert life.stage is Stage.AWAKE
        life.sleep(10.0 * cycle + 1, 1)
        life.advance(10.0 * cycle + 5)
        life.wake(10.0 * cycle + 5)
        life.advance(10.0 * cycle + 9)
    assert life.ended is not None
    assert (life.stage, life.ended.exit_code) == (Stage.ENDED, 1)


def test_requests_to_sleepers_of_old_versions() -> None:
    assert asleep().request(10.0) is Fate.QUEUED
    assert asleep(crash_on_request_while_asleep=True).request(10.0) is Fate.ENDS
    whole, partly = (asleep(crash_on_partial_wake_request=True) for _ in range(2))
    assert whole.request(10.0) is Fate.QUEUED
    partly.wake(10.0, [WEIGHTS])
    partly.advance(20.0)
    assert partly.request(20.0) is Fate.ENDS


def test_a_sleeper_that_was_resumed_dies_of_the_next_request() -> None:
    life = asleep()
    life.resume()
    assert life.is_sleeping
    assert life.request(10.0) is Fate.ENDS
    harmless = asleep(sleep_enabled=False)  # as on the CPU, where the memory is still there
    harmless.resume()
    assert harmless.request(10.0) is Fate.ANSWERED


def test_a_sleep_after_requests_can_be_the_end() -> None:
    untouched = asleep(sleep_after_requests_crashes=True)
    assert untouched.stage is Stage.ASLEEP
    life = alive(sleep_after_requests_crashes=True)
    life.request(1.0)
    assert "illegal" in life.sleep(1.0, 1).error
    assert life.ended is not None


def test_it_can_be_wedged_at_any_time() -> None:
    life = alive()
    assert life.request(1.0) is Fate.ANSWERED
    life.wedge()
    assert life.request(1.0) is Fate.HANGS
    assert life.answer(1.0) is Answer.READY


def test_a_sleep_under_running_requests_is_answered_and_then_kills() -> None:
    life = alive(sleep_while_running_crashes=True)
    reply = life.sleep(1.0, 1, running=2)
    assert reply.error == ""
    stages = []
    for later_s in (1.9, 2.0):
        life.advance(reply.at_s + later_s)
        stages.append(life.stage)
    assert stages == [Stage.ASLEEP, Stage.ENDED]
    quiet = alive(sleep_while_running_crashes=True)
    quiet.sleep(1.0, 1)
    quiet.advance(100.0)
    assert quiet.stage is Stage.ASLEEP


@pytest.mark.parametrize(("profiling", "given_back", "inflated"), [("", 2, 0), ("inflate", 2, 2), ("inflate", -2, 0), ("abort", -2, 0)])
def test_neighbours_during_a_start(profiling: str, given_back: int, inflated: int) -> None:
    room = Room(20 * GIB, others=8 * GIB)
    life = EngineLife(Behaviour(start_s=1.0, awake_bytes=4 * GIB, profiling=profiling), 0, 0.0, room)
    room.used_by_others -= given_back * GIB
    life.advance(1.0)
    assert (life.stage, life.device_bytes(1.0)) == (Stage.AWAKE, (4 + inflated) * GIB)


def test_a_start_that_neighbours_disturb_can_end() -> None:
    room = Room(20 * GIB, others=8 * GIB)
    life = EngineLife(Behaviour(start_s=1.0, profiling="abort"), 0, 0.0, room)
    room.used_by_others = 0
    life.advance(1.0)
    assert life.ended is not None
    assert "Error in memory profiling" in life.ended.text


def test_a_start_can_be_made_to_fail_from_outside() -> None:
    life = EngineLife(SIZED, 0, 0.0)
    life.fail_start(StartFailure(code=Code.DEVICE_OOM, after_s=0.0, text="too little is free"))
    life.advance(0.0)
    assert life.ended is not None
    assert life.ended.text == "too little is free"
