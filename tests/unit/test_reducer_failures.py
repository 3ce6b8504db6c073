"""What goes wrong with engines, and what becomes of the requests that wait for them."""

import pytest

from scheduler.domain.ids import InstanceId, LaunchId, ModelName
from scheduler.domain.lease import Outcome
from scheduler.domain.reasons import PERMANENT, Code, Reason
from scheduler.domain.units import GIB
from scheduler.orchestrator import events as ev
from scheduler.orchestrator.events import EngineExited, EngineIdle, EngineReady, EngineRefused, EngineSlow, GroupEmpty
from scheduler.orchestrator.state import Policy
from tests.support.behaviour import ALWAYS, NEVER, Behaviour, StartFailure
from tests.support.plain import Plain

STOPPER = {"awake_bytes": 16 * GIB, "levels": ()}


def failing(code: Code = Code.CRASHED, times: int = ALWAYS, **more: object) -> Behaviour:
    failure = StartFailure(code=code, after_s=1.0, text=f"pretended {code.value}")
    if times == ALWAYS:
        return Behaviour(fails_always=failure, awake_bytes=16 * GIB, **more)  # type: ignore[arg-type]
    return Behaviour(start_failures=(failure,) * times, awake_bytes=16 * GIB, **more)  # type: ignore[arg-type]


# --- starts -----------------------------------------------------------------------------------------------------


def test_a_start_that_fails_twice_is_repeated_with_pauses_and_the_waiter_is_served() -> None:
    world = Plain({"gpu0": 24}, a=failing(times=2))
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    first, second, third = world.when("Launch", "a")
    assert second - first >= 1.0 + 1.0
    assert third - second >= 1.0 + 2.0
    assert world.path("a") == "launching stopping backoff launching stopping backoff launching awake"
    assert world.instance("a").failures.launch == 0


def test_too_many_failures_end_in_failed_with_the_reason_and_the_waiters_are_told() -> None:
    world = Plain({"gpu0": 24}, a=failing())
    clients = world.ask("a", 3)
    world.settle()
    assert world.ends() == ["model_failed"] * 3
    assert world.count("Launch") == 3
    assert world.phase("a") == "failed"
    assert clients[0].error is not None
    assert "pretended crashed" in clients[0].error.message
    assert world.ask("a")[0].end == "model_failed"  # the next one at once
    assert world.count("Launch") == 3


def test_a_failed_model_gets_one_try_per_quarter_of_an_hour_on_request() -> None:
    world = Plain({"gpu0": 24}, a=failing(times=4))
    world.ask("a")
    world.settle()
    assert world.phase("a") == "failed"
    world.run(900)
    assert world.count("Launch") == 3  # nobody asked
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "model_failed"
    assert world.count("Launch") == 4
    world.run(60)
    assert world.ask("a")[0].end == "model_failed"
    assert world.count("Launch") == 4
    world.run(900)
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    assert world.phase("a") == "awake"


@pytest.mark.parametrize("code", sorted(PERMANENT))
def test_what_a_retry_cannot_mend_fails_at_once(code: Code) -> None:
    world = Plain({"gpu0": 24}, a=failing(code))
    (client,) = world.ask("a")
    world.settle()
    assert (client.end, world.phase("a"), world.count("Launch")) == ("model_failed", "failed", 1)
    assert world.instance("a").reason.code is code


@pytest.mark.parametrize(
    "knobs", [Behaviour(executable_missing=True), Behaviour(preflight=StartFailure(code=Code.MODEL_MISSING))], ids=["exec", "preflight"]
)
def test_what_was_never_started_fails_and_frees_its_claim(knobs: Behaviour) -> None:
    world = Plain({"gpu0": 24}, a=knobs, b=Behaviour(**STOPPER))  # type: ignore[arg-type]
    (client,) = world.ask("a")
    world.settle()
    assert (client.end, world.phase("a")) == ("model_failed", "failed")
    world.ask("b")
    world.settle()
    assert world.ends("b") == ["ok"]


def test_a_port_taken_by_a_stranger_is_tried_again_at_once() -> None:
    world = Plain({"gpu0": 24}, a=failing(Code.PORT_TAKEN, times=1))
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    first, second = world.when("Launch", "a")
    assert second - first < 1.5


@pytest.mark.parametrize("code", [Code.DEVICE_OOM, Code.HOST_OOM])
def test_out_of_memory_raises_the_guess_for_the_next_try(code: Code) -> None:
    world = Plain({"gpu0": 24}, a=failing(code, times=1, guess_bytes=8 * GIB))
    world.ask("a")
    claimed = world.instance("a").claim.total_bytes
    world.run_until(lambda: world.count("Launch") == 2)
    assert world.instance("a").claim.total_bytes >= int(claimed * 1.29)
    world.settle()
    assert world.ends() == ["ok"]


@pytest.mark.parametrize("known", [True, False])
def test_out_of_memory_twice_never_makes_of_a_model_one_that_fits_nowhere(known: bool) -> None:
    """Who took the memory may have been somebody else: it is tried alone on the largest device before anything is said."""
    short = StartFailure(code=Code.DEVICE_OOM, after_s=1.0, text="pretended device_oom")
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, guess_bytes=16 * GIB, levels=()))
    if known:
        world.ask("a")
        world.settle()
        world.order("stop", "a")
        world.settle()
    world.behaviours["a"] = Behaviour(awake_bytes=16 * GIB, guess_bytes=16 * GIB, levels=(), start_failures=(short,) * (3 if known else 2))
    (client,) = world.ask("a")
    world.settle()
    assert client.end == "ok"
    assert world.count("Launch", "a") == (4 if known else 3)


def test_a_start_that_is_never_ready_is_ended_with_kill_when_it_ignores_term() -> None:
    knobs = Behaviour(start_s=NEVER, term_s=NEVER, **STOPPER)  # type: ignore[arg-type]
    world = Plain({"gpu0": 24}, specs={"a": {"start_timeout_s": 30.0}}, policy=Policy(max_launch_failures=1), a=knobs)
    world.ask("a", limit_s=500)
    world.settle()
    assert world.path("a") == "launching stopping backoff failed"
    assert world.when("Stop", "a") == [30.0]
    assert world.when("Kill", "a") == [40.0]
    assert world.instance("a").reason.code is Code.START_TIMEOUT


def test_processes_that_not_even_kill_ends_are_told_of_once() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a")
    world.settle()
    world.command = lambda effect: None  # type: ignore[method-assign]  # they hang in the kernel
    world.order("stop", "a")
    world.run(600)
    assert world.phase("a") == "stopping"
    assert world.instance("a").claim.total_bytes >= 16 * GIB
    (line,) = [line for line in world.told if line.kind == "not_ended"]
    assert "a has not ended in 30 s" in line.message


@pytest.mark.parametrize("stalls", [False, True])
def test_a_start_that_is_out_of_time_was_busy_or_did_nothing(stalls: bool) -> None:
    knobs = Behaviour(start_s=1000.0, stalls=stalls, **STOPPER)  # type: ignore[arg-type]
    world = Plain({"gpu0": 24}, specs={"a": {"start_timeout_s": 300.0}}, policy=Policy(max_launch_failures=1), a=knobs)
    world.order("wake", "a")
    world.settle()
    reason = world.instance("a").reason
    assert reason.code is (Code.START_STALLED if stalls else Code.START_TIMEOUT)
    assert reason.text.startswith("a was not ready after 5 min")
    assert ("took no memory" in reason.text) == stalls
    assert ("raise start_timeout" in reason.fix) != stalls


def test_a_waiter_whose_patience_ends_before_the_next_try_is_told_so_at_once() -> None:
    world = Plain({"gpu0": 24}, a=failing(times=2))
    (client,) = world.ask("a", wait_s=1.5)
    world.settle()
    assert client.end == "model_backoff"
    assert client.error is not None
    assert "next try in" in client.error.message


def test_a_back_off_that_nobody_waits_for_ends_as_stopped() -> None:
    world = Plain({"gpu0": 24}, a=failing(times=1))
    (client,) = world.ask("a")
    world.run_until(lambda: world.phase("a") == "backoff")
    world.cancel(client)
    world.settle()
    assert world.phase("a") == "stopped"
    assert world.count("Launch") == 1


def test_one_bad_model_does_not_hold_up_the_others() -> None:
    world = Plain({"gpu0": 24}, a=failing(), b=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a", wait_s=300)
    world.ask("b")
    world.settle()
    assert world.ends("b") == ["ok"]
    assert world.ends("a") == ["model_failed"]


# --- awake ------------------------------------------------------------------------------------------------------


def test_a_crash_while_awake_is_followed_by_a_start_on_demand_only() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a")
    world.run(10)
    world.crash("a")
    world.run(60)
    assert world.path("a") == "launching awake stopping stopped"
    world.ask("a")
    world.settle()
    assert world.ends() == ["ok", "ok"]


def test_a_crash_under_load_loses_its_requests_and_serves_the_waiting_ones() -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    inside, waiting = world.ask("a", 2, for_s=5.0)
    world.run(4)
    world.crash("a")
    world.settle()
    assert (inside.end, waiting.end) == ("engine_lost", "ok")
    assert world.count("Launch") == 2


def test_an_engine_that_crashes_again_and_again_fails_in_the_end() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(crash_after_s=0.5, **STOPPER))  # type: ignore[arg-type]
    for _ in range(8):
        world.ask("a", for_s=2.0)
        world.settle()
    assert world.phase("a") == "failed"
    assert world.count("Launch") == 5
    assert world.ends()[-1] == "model_failed"


def test_an_answered_request_clears_the_count_of_crashes() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    for _ in range(8):
        world.ask("a")
        world.settle()
        world.crash("a")
        world.settle()
    assert set(world.ends()) == {"ok"}
    assert world.phase("a") == "stopped"


def test_a_refusing_engine_is_looked_at_and_ended_when_it_stays_silent() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a")
    world.run(10)
    proc = next(iter(world.procs.values()))
    proc.life.silent = True
    world.play(EngineRefused(at_s=world.now_s, instance=world.instance("a").id, launch=proc.launch))
    assert world.phase("a") == "unknown"
    (client,) = world.ask("a")
    world.settle()
    assert world.path("a") == "launching awake unknown stopping backoff launching awake"
    assert client.end == "ok"


def test_a_refusing_engine_that_answers_again_goes_on() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    (client,) = world.ask("a", for_s=60)
    world.run(10)
    world.play(EngineRefused(at_s=world.now_s, instance=world.instance("a").id, launch=next(iter(world.procs.values())).launch))
    world.run(2)
    assert world.path("a") == "launching awake unknown awake"
    world.settle()
    assert client.end == "ok"


def test_a_slow_engine_gets_no_new_requests_until_it_answers_in_time() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a")
    world.run(10)
    iid, launch = world.instance("a").id, world.instance("a").launch
    assert launch is not None
    world.play(EngineSlow(at_s=world.now_s, instance=iid, launch=launch, slow=True))
    (client,) = world.ask("a")
    world.run(10)
    assert (client.end, world.phase("a")) == ("held", "awake")
    world.play(EngineSlow(at_s=world.now_s, instance=iid, launch=launch, slow=False))
    assert client.end == "granted"


def test_a_cut_request_stops_grants_until_somebody_looked() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    (client,) = world.ask("a", for_s=60)
    world.run(10)
    world._release(client, Outcome.ENGINE_LOST)
    (second,) = world.ask("a")
    assert second.end == "held"
    assert world.count("CheckNow") == 1
    world.run(0.2)
    assert second.end == "granted"


# --- reports that come late -------------------------------------------------------------------------------------


def test_reports_of_an_earlier_launch_change_nothing() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a")
    world.run(10)
    old = world.instance("a").launch
    assert old is not None
    world.crash("a")
    world.settle()
    world.ask("a", for_s=30)
    world.run(10)
    iid = world.instance("a").id
    before = world.instance("a")
    for event in (
        EngineExited(at_s=world.now_s, instance=iid, launch=old, reason=Reason(Code.CRASHED)),
        EngineReady(at_s=world.now_s, instance=iid, launch=old),
        GroupEmpty(at_s=world.now_s, instance=iid, launch=old),
        EngineRefused(at_s=world.now_s, instance=iid, launch=old),
        EngineIdle(at_s=world.now_s, instance=iid, launch=old),
    ):
        world.play(event)
        assert world.instance("a") == before


def test_a_start_that_gives_odd_answers_is_told_with_them() -> None:
    knobs = Behaviour(start_s=1000.0, **STOPPER)  # type: ignore[arg-type]
    world = Plain({"gpu0": 24}, specs={"a": {"start_timeout_s": 30.0}}, policy=Policy(max_launch_failures=1), a=knobs)
    world.order("wake", "a")
    world.run(5)
    detail = "/health answers 404; `ready: {path: ...}` names another path"
    world.play(ev.StartAnswered(at_s=world.now_s, instance=InstanceId("a#0"), launch=LaunchId(1), detail=detail))
    world.settle()
    reason = world.instance("a").reason
    assert (reason.code, reason.text) == (Code.START_TIMEOUT, f"a was not ready after 30 s: {detail}")
    assert "correct what the answer names" in reason.fix


def test_somebody_elses_engine_that_was_not_there_is_looked_for_again_soon() -> None:
    absent = StartFailure(code=Code.ENGINE_LOST, after_s=0.1, text="nobody listens on port 9000")
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=6 * GIB, start_failures=(absent,) * 3))
    world.state.facts_of(ModelName("a")).attached = True
    (first,) = world.ask("a")
    world.run(10)
    assert (first.end, world.phase("a")) == ("model_failed", "failed")
    (second,) = world.ask("a")
    world.settle()
    assert second.end == "ok", "it was started meanwhile; nobody waits a quarter of an hour for what costs nothing"


@pytest.mark.parametrize("asleep", [False, True])
def test_who_ignores_term_is_killed_after_its_time_and_the_next_request_is_served(asleep: bool) -> None:
    world = Plain({"gpu0": 24}, policy=Policy(term_grace_s=7.0), a=Behaviour(awake_bytes=16 * GIB, term_s=NEVER), b=Behaviour(**STOPPER))  # type: ignore[arg-type]
    world.ask("a")
    world.settle()
    if asleep:
        world.order("sleep", "a")
        world.settle()
    world.order("stop", "a")
    world.settle()
    (told,) = world.when("Stop", "a")
    assert world.when("Kill", "a") == [told + 7.0]
    for model in "ba":
        world.ask(model)
        world.settle()
    assert set(world.ends()) == {"ok"}
