"""What others use of a device: planned with the most of the last minutes, acted on with what it is now; and worlds that are over-full."""

from dataclasses import replace

import pytest

from scheduler.domain.claims import even_claim
from scheduler.domain.device import Stranger
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.devices import FOREIGN_WINDOW_S
from scheduler.orchestrator.estimates import eta_seconds
from tests.support.behaviour import Behaviour
from tests.support.plain import Plain

GPU0 = DeviceId("gpu0")
A = Behaviour(awake_bytes=16 * GIB)
ALWAYS = {"always_awake": True}


def breathe(world: Plain, gib: int, seconds: float) -> None:
    """Somebody takes so much for a while."""
    world.foreign[GPU0] = gib * GIB
    world.run(seconds)
    world.foreign.clear()
    world.run(1.5)


# --- the window -------------------------------------------------------------------------------------------------


def test_a_plan_counts_on_the_most_that_others_used_in_ten_minutes_a_request_on_what_they_use_now() -> None:
    world = Plain({"gpu0": 24}, a=A, b=A)
    breathe(world, 12, 5)
    world.configure(a=ALWAYS)
    world.run(300)
    assert world.phase("a") == "stopped", "others may come back any minute"
    assert "12.0 GiB are used by others" in world.state.hold_reasons[ModelName("a")].text
    (client,) = world.ask("b")
    world.run(30)
    assert client.end == "ok", "who waits now is served now"


def test_after_ten_minutes_the_window_has_passed() -> None:
    world = Plain({"gpu0": 24}, a=A)
    breathe(world, 12, 5)
    world.configure(a=ALWAYS)
    world.run(FOREIGN_WINDOW_S - 30)
    assert world.phase("a") == "stopped"
    world.run(60)
    assert world.phase("a") == "awake"


def test_the_highest_of_several_peaks_counts_and_each_passes_by_itself() -> None:
    world = Plain({"gpu0": 24}, a=A)
    breathe(world, 12, 5)
    world.run(100)
    breathe(world, 4, 5)
    assert world.state.foreign_planned(GPU0) == 12 * GIB
    world.run(FOREIGN_WINDOW_S - 60)
    assert world.state.foreign_planned(GPU0) == 4 * GIB
    world.run(120)
    assert world.state.foreign_planned(GPU0) == 0


@pytest.mark.parametrize("lag_s", [0.0, 1.0, 4.0])
def test_what_an_engine_gives_back_late_is_nobody_else_s(lag_s: float) -> None:
    """The driver frees the memory of a process that has ended a little later: no stranger may be made of it for ten minutes."""
    world = Plain({"gpu0": 24}, a=replace(A, free_lag_s=lag_s), b=A)
    world.ask("a")
    world.settle()
    world.crash("a")
    world.run(20)
    assert world.state.foreign_planned(GPU0) == 0
    world.order("stop", "a")
    world.ask("b")
    world.settle()
    assert world.state.foreign_planned(GPU0) == 0


# --- over-full --------------------------------------------------------------------------------------------------


def test_foreign_growth_puts_the_least_valuable_to_sleep_and_nobody_grows_meanwhile() -> None:
    small = Behaviour(awake_bytes=7 * GIB)
    world = Plain({"gpu0": 24}, a=small, b=small, c=small)
    for model in "abc":
        world.ask(model)
        world.run(100)
    world.foreign[GPU0] = 6 * GIB
    world.run(5)
    assert [world.phase(m) for m in "abc"] == ["asleep", "awake", "awake"], "a is the longest unused"
    reason = next(j.transition.reason for j in world.transitions if j.transition.event == "DrainIntended")
    assert (reason.code, "6.0 GiB used by others exceed 24.0 GiB" in reason.text) == (Code.SHED, True)
    assert not world.state.degraded


def over_full(claim_gib: int = 14) -> Plain:
    """A new daemon finds two rows that claim more than the device has: it became smaller, or the rows are of a cruder time."""
    small = Behaviour(awake_bytes=6 * GIB)
    world = Plain({"gpu0": 24}, a=small, b=small, c=small)
    for model in "ab":
        world.ask(model)
        world.run(10)
    for iid, instance in world.state.instances.items():
        world.state.instances[iid] = replace(instance, claim=even_claim(instance.devices, claim_gib * GIB))
    world.restart()
    return world


def test_a_restart_into_claims_above_capacity_admits_only_shrinking_and_the_device_says_so() -> None:
    world = over_full()
    launches = world.count("Launch") + world.count("Wake")
    message, fix, _ = world.state.degraded["over_capacity:gpu0"]
    assert message == "gpu0: 28.0 GiB claimed and 0 MiB used by others exceed 24.0 GiB; nothing grows there"
    assert fix == "nothing to do: an idle model is put away; or stop one"
    (client,) = world.ask("c", wait_s=600.0)
    while world.state.claimed_on(GPU0) > 24 * GIB:
        assert world.count("Launch") + world.count("Wake") == launches
        world.run(0.25)
    world.settle()
    assert client.end == "ok"
    assert not world.state.degraded
    assert not world.overflows


def test_an_over_full_device_names_the_process_to_end() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB))
    world.ask("a", for_s=600.0)
    world.run(10)
    world.foreign[GPU0] = 10 * GIB
    world.around.strangers[GPU0] = (Stranger(pid=4711, used_bytes=8 * GIB, name="python"), Stranger(pid=9, used_bytes=2 * GIB))
    world.run(5)
    _, fix, _ = world.state.degraded["over_capacity:gpu0"]
    assert fix == "end the foreign process 4711 (python, 8.0 GiB, the largest of 2), or stop a model"
    assert [line.subject for line in world.told if line.kind == "over_capacity"] == ["gpu0"], "said once"
    world.around.strangers[GPU0] = (Stranger(pid=9, used_bytes=None),)
    world.run(5)
    assert world.state.degraded["over_capacity:gpu0"][1] == "end the foreign process, or stop a model", (
        "the driver does not say whose it is"
    )


def test_nobody_says_how_long_the_memory_of_others_takes() -> None:
    world = Plain({"gpu0": 24}, a=Behaviour(awake_bytes=16 * GIB, start_s=20.0))
    world.foreign[GPU0] = 12 * GIB
    world.run(5)
    world.ask("a", wait_s=600.0)
    world.run(5)
    (hold,) = world.state.holds_of(ModelName("a"))
    assert eta_seconds(world.state, hold) is None
    world.foreign[GPU0] = 0
    world.run_until(lambda: world.phase("a") == "launching")
    assert eta_seconds(world.state, hold) == pytest.approx(20.0, abs=1.0)
