"""Demand meets seats: one start for many, turns, drains, bounds, deadlines (scheduling.md section 4). Every event is checked."""

from dataclasses import replace

import pytest

from scheduler.domain.ids import InstanceId, LaunchId, ModelName
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator import events as ev
from scheduler.orchestrator.state import FORCE_GRACE_S, Policy
from tests.support.behaviour import NEVER, Behaviour
from tests.support.plain import Plain

BIG = Behaviour(awake_bytes=16 * GIB, levels=())  # two do not fit on one device of 24 GiB; stop and start only
SLEEPER = Behaviour(awake_bytes=16 * GIB, levels=(1,))
SMALL = Behaviour(awake_bytes=4 * GIB, levels=())


def test_fifty_first_requests_make_one_start() -> None:
    world = Plain({"gpu0": 24}, a=BIG)
    world.ask("a", 50)
    world.run(10)
    assert world.ends() == ["ok"] * 50
    assert world.count("Launch") == 1
    assert world.path("a") == "launching awake"


def test_two_that_fit_live_side_by_side() -> None:
    world = Plain({"gpu0": 24}, a=SMALL, b=SMALL)
    world.ask("a", for_s=10)
    world.ask("b")
    world.run(20)
    assert world.ends() == ["ok", "ok"]
    assert not world.count("Stop")


def test_starts_on_two_devices_overlap_and_on_one_do_not() -> None:
    world = Plain({"gpu0": 24, "gpu1": 24}, a=BIG, b=BIG)
    world.ask("a")
    world.ask("b")
    assert [world.when("Launch", m) for m in "ab"] == [[0.0], [0.0]]
    world = Plain({"gpu0": 24}, a=SMALL, b=SMALL)
    world.ask("a")
    world.ask("b")
    world.run(10)
    assert world.when("Launch", "b")[0] >= 3.0
    assert world.ends() == ["ok", "ok"]


@pytest.mark.parametrize(("knobs", "leaving"), [(BIG, "draining stopping stopped"), (SLEEPER, "draining falling_asleep asleep")])
def test_a_busy_model_is_drained_then_put_away_then_the_other_starts(knobs: Behaviour, leaving: str) -> None:
    world = Plain({"gpu0": 24}, a=knobs, b=knobs)
    (stream,) = world.ask("a", for_s=20)
    world.run(1 + 3)
    (waiter,) = world.ask("b")
    world.settle()
    assert (stream.end, waiter.end) == ("ok", "ok")  # the answer of a is not cut
    assert world.path("a") == f"launching awake {leaving}"
    assert world.path("b") == "launching awake"
    assert world.when("Launch", "b")[0] > 3 + 20
    assert not world.overflows


def test_arrivals_are_served_in_groups() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG, c=BIG)
    for model in "abaacabc":
        world.ask(model)
    world.settle(120)
    assert world.ends() == ["ok"] * 8
    assert world.count("Launch") == 3


def test_arrivals_over_time_are_served_in_groups() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG, c=BIG)
    for model in "abaacabc":
        world.ask(model)
        world.run(1)
    world.settle(120)
    assert world.ends() == ["ok"] * 8
    assert world.count("Launch") <= 5
    assert max(c.waited_s or 0 for c in world.clients) < 120


@pytest.mark.parametrize("wait_s", [30.0, 60.0, 120.0])
def test_two_clients_that_keep_a_busy_cannot_starve_b(wait_s: float) -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)

    def keep_busy() -> None:
        world.ask("a", for_s=2.0, wait_s=600)
        if world.now_s < 400:
            world.later(1.0, keep_busy)

    keep_busy()
    world.run(10)
    (waiter,) = world.ask("b", wait_s=wait_s)
    world.run(wait_s + 1)
    assert waiter.end in ("ok", "granted")
    assert waiter.waited_s is not None
    assert waiter.waited_s < wait_s
    world.settle()
    assert set(world.ends()) == {"ok"}


def test_long_answers_are_gated_early_enough_for_the_first_deadline() -> None:
    """A full turn plus the drain plus the switch would be too late: the gate closes by the waiter's deadline."""
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)
    world.ask("a", 20, for_s=12.0)  # it is learned how long its answers take
    world.settle()
    world.order("stop", "a")
    world.settle()

    def keep_busy() -> None:
        world.ask("a", for_s=12.0, wait_s=600)
        if world.now_s < 200:
            world.later(1.0, keep_busy)

    keep_busy()
    world.run(5)
    (waiter,) = world.ask("b", wait_s=22)
    world.run(29)
    assert waiter.end in ("granted", "ok")
    world.settle()


def test_a_turn_lasts_its_length_when_there_is_time() -> None:
    world = Plain({"gpu0": 24}, policy=Policy(turn_factor=4.0), a=BIG, b=BIG)

    def keep_busy() -> None:
        world.ask("a", for_s=2.0, wait_s=600)
        if world.now_s < 100:
            world.later(1.0, keep_busy)

    keep_busy()
    world.run(4)
    world.ask("b", wait_s=600)
    world.run_until(lambda: world.phase("a") == "draining")
    switch = 2.0 + 3.0  # the estimate: stop 2 s, start 3 s
    assert world.now_s == pytest.approx(3.0 + 4.0 * switch, abs=0.1)


def test_a_drain_is_taken_back_when_its_waiter_leaves() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)
    world.ask("a", for_s=60)
    world.run(5)
    (waiter,) = world.ask("b", wait_s=300)
    world.run_until(lambda: world.phase("a") == "draining")
    late = world.ask("a")[0]
    assert late.end == "held"
    world.cancel(waiter)
    assert world.phase("a") == "awake"
    assert late.end == "granted"
    world.settle()
    assert world.count("Launch") == 1
    assert waiter.end == "cancelled"


def test_a_client_that_goes_away_in_the_queue_wakes_nothing() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)
    world.ask("a", for_s=5)
    world.run(4)
    (waiter,) = world.ask("b")
    world.cancel(waiter)
    world.run(60)
    assert world.phase("a") == "awake"
    assert world.count("Launch", "b") == 0


def test_a_start_without_its_client_goes_on_and_is_not_repeated() -> None:
    world = Plain({"gpu0": 24}, a=BIG)
    (client,) = world.ask("a")
    world.run(1)
    world.cancel(client)
    world.settle()
    assert world.path("a") == "launching awake"


def test_the_queue_is_bounded() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_queued": 3}}, a=BIG)
    clients = world.ask("a", 5)
    assert [c.end for c in clients] == ["held"] * 3 + ["queue_full"] * 2
    refusal = clients[-1].error
    assert refusal is not None
    assert 1 <= refusal.retry_after_s <= 120  # type: ignore[attr-defined]
    world.run(10)
    assert world.ends() == ["ok"] * 3 + ["queue_full"] * 2
    assert world.ask("a")[0].end == "granted"


def test_concurrency_is_bounded_and_fair() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 2}}, a=BIG)
    clients = world.ask("a", 6, for_s=2.0)
    world.run(3.5)
    assert [c.end for c in clients] == ["granted"] * 2 + ["held"] * 4
    assert world.why("a") is Code.WAITING_TURN
    world.settle()
    waits = [c.waited_s for c in clients]
    assert waits == sorted(waits, key=lambda w: w or 0.0)
    assert waits[-1] == pytest.approx(7.0, abs=0.1)


def test_the_only_request_of_one_client_does_not_stand_behind_a_hundred_of_another() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=BIG)
    many = world.ask("a", 20, for_s=1.0, principal="batch")
    (single,) = world.ask("a", for_s=1.0, principal="someone")
    world.settle()
    assert single.waited_s == pytest.approx(4.0, abs=0.1)  # the start, and one other
    assert {c.end for c in many} == {"ok"}


def test_a_just_woken_model_serves_the_requests_that_woke_it() -> None:
    specs = {"a": {"max_concurrent": 1}, "b": {"max_concurrent": 1}}
    world = Plain({"gpu0": 24}, specs=specs, a=BIG, b=BIG)
    for model in "ab":
        world.ask(model, 5, for_s=2.0, wait_s=12.0)
    late = world.ask("a", for_s=2.0, wait_s=60.0)[0]
    world.run(200)
    assert world.count("Launch") <= 3
    assert world.ends("a").count("ok") == 6
    assert late.end == "ok"


def test_unknown_and_disabled_models_are_refused_at_once() -> None:
    world = Plain({"gpu0": 24}, specs={"b": {"enabled": False}}, a=BIG, b=BIG)
    assert [world.ask(m)[0].end for m in ("x", "b")] == ["model_not_found", "model_disabled"]
    assert world.count("Launch") == 0


def test_what_can_never_fit_is_refused_at_once_with_the_bytes() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=30 * GIB))
    (client,) = world.ask("a")
    assert client.end == "does_not_fit"
    assert client.error is not None
    assert "30.0 GiB" in client.error.message
    assert "23.5 GiB of 24.0 GiB" in client.error.message
    assert client.error.fix


def test_foreign_memory_is_waited_for_not_refused() -> None:
    world = Plain({"gpu0": 24}, a=BIG)
    world.foreign = {world.infos[0].id: 20 * GIB}
    world.run(2)
    (client,) = world.ask("a")
    world.run(10)
    assert client.end == "held"
    assert world.why("a") is Code.WAITING_MEMORY
    assert world.state.hold_reasons[ModelName("a")].text == "12.5 GiB short; 20.0 GiB are used by others"
    world.foreign = {}
    world.run(10)
    assert client.end == "ok"


# --- deadlines --------------------------------------------------------------------------------------------------


def test_a_wait_that_is_over_names_the_holder_and_keeps_the_turn() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)
    (stream,) = world.ask("a", for_s=40)
    world.run(5)
    (waiter,) = world.ask("b", wait_s=20)
    world.run(21)
    assert waiter.end == "wait_timeout"
    assert waiter.error is not None
    assert waiter.waited_s == pytest.approx(20.0)
    assert "waiting for a, which finishes 1 requests" in waiter.error.message
    # the client retries after Retry-After: its turn was kept, a was drained meanwhile
    world.run_until(lambda: stream.end == "ok")
    world.run(10)
    assert world.phase("b") == "awake"
    (again,) = world.ask("b")
    assert again.end == "granted"


def test_a_drain_is_cut_after_its_timeout_where_the_operator_chose_so_and_clients_are_told_first() -> None:
    world = Plain({"gpu0": 24}, policy=Policy(interrupt=True), specs={"a": {"drain_timeout_s": 60.0}}, a=BIG, b=BIG)
    (stream,) = world.ask("a", for_s=5000)
    world.run(5)
    (waiter,) = world.ask("b", wait_s=300)
    assert "short; waiting for a: it is serving" in world.state.hold_reasons[ModelName("b")].text
    world.run_until(lambda: world.phase("a") == "draining")
    cut_s = world.now_s + 60.0
    assert [t.message for t in world.told if t.kind == "draining"] == ["a takes no new requests; 1 in flight will be finished"]
    assert world.state.hold_reasons[ModelName("b")].text == "waiting for a, which finishes 1 requests"
    world.run_until(lambda: stream.end != "granted")
    assert stream.end == "aborted"
    assert world.now_s == pytest.approx(cut_s + 0.1)
    assert world.when("Stop", "a") == [world.now_s], "the client was told before its engine was touched"
    world.settle()
    assert waiter.end == "ok"


def test_a_client_that_is_told_and_hangs_on_is_waited_for_a_moment_only() -> None:
    world = Plain({"gpu0": 24}, policy=Policy(interrupt=True), specs={"a": {"drain_timeout_s": 60.0}}, a=BIG, b=BIG)
    (stream,) = world.ask("a", for_s=5000)
    world.run(5)
    stream.lease = None  # the relay never lets go of it
    (waiter,) = world.ask("b", wait_s=300)
    world.run_until(lambda: world.phase("a") == "draining")
    world.run(60.0 + FORCE_GRACE_S + 1.0)
    assert world.phase("a") != "draining"
    world.run(30)
    assert waiter.end == "ok"


def test_a_kept_turn_is_not_kept_for_ever() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)
    world.ask("a", for_s=400)
    world.run(5)
    (waiter,) = world.ask("b", wait_s=20)
    world.run_until(lambda: waiter.end == "wait_timeout")
    assert world.phase("a") == "draining"
    world.run(300)
    assert world.phase("a") == "awake"  # the drain was taken back
    assert world.ask("a")[0].end == "granted"
    world.settle()


def test_a_cold_start_that_is_under_way_extends_the_wait() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(start_s=200.0, awake_bytes=16 * GIB))
    patient, hasty = world.ask("a", for_s=9, limit_s=600)[0], world.ask("a", for_s=9, limit_s=210)[0]
    world.run(201)
    assert (patient.end, hasty.end) == ("granted", "granted")


def test_a_start_that_does_nothing_extends_no_wait() -> None:
    knobs = Behaviour(start_s=300.0, awake_bytes=16 * GIB, stalls=True)
    world = Plain({"gpu0": 24}, a=knobs)
    (client,) = world.ask("a", for_s=9, limit_s=600)
    world.run_until(lambda: client.end != "held", within_s=600)
    assert (client.end, round(client.waited_s or 0)) == ("wait_timeout", 120)
    world.run_until(lambda: world.phase("a") == "awake")  # only the wait has ended
    assert world.count("Launch", "a") == 1


def test_progress_extends_a_wait_by_a_minute_each_time() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(start_s=500.0, awake_bytes=16 * GIB, stalls=True))
    (client,) = world.ask("a", for_s=9, limit_s=600)
    world.run(119)
    world.play(ev.StartProgressed(at_s=world.now_s, instance=InstanceId("a#0"), launch=LaunchId(1)))
    world.run_until(lambda: client.end != "held", within_s=600)
    assert (client.end, round(client.waited_s or 0)) == ("wait_timeout", 179)


def test_growing_memory_is_progress() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(start_s=500.0, awake_bytes=16 * GIB, stalls=True))
    (client,) = world.ask("a", for_s=9, limit_s=600)
    world.run(100)
    proc = world.procs[InstanceId("a#0")]
    proc.life.behaviour = replace(proc.life.behaviour, loading_bytes=17 * GIB)
    world.arm(InstanceId("a#0"), proc)
    world.run_until(lambda: client.end != "held", within_s=600)
    assert client.waited_s is not None
    assert 160 <= client.waited_s <= 163


def test_a_start_that_never_becomes_ready_ends_the_waits_at_its_own_deadline() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"start_timeout_s": 300.0}}, a=Behaviour(start_s=NEVER))
    (client,) = world.ask("a", limit_s=10_000)
    world.run_until(lambda: client.end != "held", within_s=4000)
    assert client.end in ("wait_timeout", "model_failed", "model_backoff")
    world.settle(4000)
    assert world.phase("a") in ("stopped", "failed")


def test_nobody_waits_longer_than_his_patience_for_a_start_that_was_measured() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(start_s=100.0, awake_bytes=16 * GIB))
    assert world.order("wake", "a")
    world.run(110)
    world.order("stop", "a")
    world.run(10)
    (client,) = world.ask("a", wait_s=10, limit_s=10)
    assert client.end == "model_starting"  # at once, but the start goes on
    assert world.count("Launch", "a") == 2
    world.run(101)
    assert world.ask("a")[0].end == "granted"


def test_a_mere_guess_refuses_nobody() -> None:
    """An engine that nobody has timed yet is guessed at half a minute and may be there in three seconds."""
    knobs = Behaviour(start_s=3.0, awake_bytes=16 * GIB)
    world = Plain({"gpu0": 24}, a=knobs)
    world.state.facts_of(ModelName("a")).guess = replace(knobs.estimate(), start_s=0.0)
    (client,) = world.ask("a", wait_s=10, limit_s=10)
    assert client.end == "held"
    world.run(4)
    assert client.end in ("granted", "ok")


def test_a_second_try_is_first_in_line() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=BIG)
    first = world.ask("a", for_s=5)[0]
    world.run(4)
    waiting = world.ask("a", for_s=1)[0]
    again = world.ask("a", for_s=1, second_try=True)[0]
    world.run_until(lambda: first.end == "ok")
    assert (again.end, waiting.end) == ("granted", "held")
    world.settle()


def test_time_alone_brings_few_events() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=BIG)
    world.ask("a", for_s=100)
    world.run(5)
    world.ask("b", wait_s=90)
    before = world.events
    world.run(80)
    assert world.events - before < 80 * 1.25 + 20  # one measurement a second, and a handful of alarms


# --- nearly full devices ----------------------------------------------------------------------------------------


def test_what_fits_only_without_the_margin_is_refused_and_nobody_leaves_for_it() -> None:
    world = Plain({"gpu0": 24}, a=BIG, b=Behaviour(awake_bytes=int(23.8 * GIB)))
    world.ask("a")
    world.settle()
    assert world.ask("b")[0].end == "does_not_fit"
    assert world.path("a") == "launching awake"


def test_what_ran_on_a_nearly_full_device_fits_again_after_it_was_measured() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=23 * GIB, levels=()), b=BIG)
    for model in "abab":
        world.ask(model)
        world.settle()
    assert world.ends() == ["ok"] * 4
