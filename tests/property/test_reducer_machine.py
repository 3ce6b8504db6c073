"""Anything at all happens to the reducer; every invariant holds after every event, and in the end everything comes to rest."""

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from scheduler.domain.claims import even_claim
from scheduler.domain.device import DeviceInfo, Health, Stranger
from scheduler.domain.ids import DeviceId
from scheduler.domain.instance import EMPTY_PHASES, GOAL_STOPPED, Instance, Phase, goal_asleep
from scheduler.domain.model import DeviceWish, ModelClass
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.events import EngineRefused, EngineSlow
from scheduler.orchestrator.state import Policy
from tests.support.behaviour import NEVER, NO_ROOM, Behaviour, StartFailure
from tests.support.plain import Plain
from tests.support.world import device

MODELS = ("a", "b", "c", "d")
DEEP = os.environ.get("HYPOTHESIS_PROFILE", "default") != "default"


def _mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The usual value three times out of four: a world in which everything fails shows little."""
    return st.integers(0, 7).flatmap(lambda n: st.just(usual) if n < 6 or not others else st.sampled_from(others))


def _failures(code: Code) -> tuple[StartFailure, ...]:
    return (StartFailure(code=code, after_s=0.7),)


BEHAVIOURS = st.builds(
    Behaviour,
    start_s=_mostly(4.0, 0.0, 1.0, 20.0, NEVER),
    start_failures=_mostly((), *(_failures(code) for code in (Code.CRASHED, Code.DEVICE_OOM, Code.PORT_TAKEN, Code.MODEL_MISSING))),
    loading_bytes=_mostly(0, 12 * GIB),
    awake_bytes=st.sampled_from([2 * GIB, 11 * GIB, 13 * GIB, 22 * GIB]),
    guess_bytes=_mostly(None, 12 * GIB),
    residue_bytes=st.sampled_from([{1: GIB // 2, 2: GIB // 4}, {1: 2 * GIB, 2: GIB}]),
    host_bytes=_mostly({}, {1: 10 * GIB}),
    free_lag_s=_mostly(0.0, 0.4, 4.0, 15.0),
    levels=st.sampled_from([(), (1,), (1, 2)]),
    sleep_s=_mostly(0.5, 0.0, 5.0),
    wake_s=_mostly(1.0, 0.0, 8.0),
    sleep_errors=_mostly(0, 1),
    sleep_hangs=_mostly(0, 1),
    sleep_frees_nothing=_mostly(False, True),
    sleep_says_level=_mostly(None, 2),
    wake_errors=_mostly(0, 1, 2),
    wake_error_text=st.sampled_from([NO_ROOM, "illegal memory access"]),
    wake_hangs=_mostly(0, 1),
    garbage_levels=_mostly((), (1,), (2,)),
    residue_growth_bytes=_mostly(0, GIB // 4),
    reload_error=_mostly("", "it cannot reload"),
    free_fraction=_mostly(1.0, 0.5),
    crash_after_s=_mostly(NEVER, 2.0, 30.0),
    term_s=_mostly(0.2, 3.0, NEVER),
)

GPUS = tuple(replace(device(f"gpu{n}", 24.0, index=n), islands=(f"nvlink:{n // 2}", "host")) for n in range(4))
MACHINES: dict[str, tuple[DeviceInfo, ...]] = {
    "one": GPUS[:1],
    "pair": GPUS[:2],
    "islands": GPUS,
    "odd": (GPUS[0], replace(GPUS[1], max_processes=1), replace(GPUS[2], allocatable=False, why_not="it is only watched")),
    "unified": (replace(GPUS[0], host_memory=True), GPUS[1]),
}

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "enabled": _mostly(True, False),
        "devices": st.sampled_from([DeviceWish(), DeviceWish(), DeviceWish(count=2)]),
        "args": _mostly((), ("--x",), ("--y",)),
        "always_awake": _mostly(False, True),
        "idle_sleep_after_s": _mostly(None, 0.0, 5.0),
        "max_concurrent": st.sampled_from([None, 1, 2]),
        "max_queued": _mostly(512, 1),
        "min_awake_s": st.sampled_from([0.0, 30.0]),
        "start_timeout_s": _mostly(900.0, 5.0),
        "drain_timeout_s": st.sampled_from([3.0, 600.0]),
        "model_class": st.sampled_from(list(ModelClass)),
    },
)


class Anything(RuleBasedStateMachine):
    """One daemon's reducer over a plain world, which raises when a request is granted by an engine that is not awake."""

    world: Plain
    steps = 0  # of all examples

    @initialize(
        behaviours=st.fixed_dictionaries(dict.fromkeys(MODELS, BEHAVIOURS)),
        fields=st.fixed_dictionaries(dict.fromkeys(MODELS, FIELDS)),
        machine=st.sampled_from(["one", *MACHINES]),
        host=st.sampled_from([0, 15 * GIB, 100 * GIB]),
        measured=st.sampled_from([None, 20 * GIB, 200 * GIB]),
        policy=st.sampled_from([Policy(), Policy(interrupt=True), Policy(recycle_cycles=2)]),
    )
    def begin(
        self, behaviours: dict[str, Behaviour], fields: dict[str, Any], machine: str, host: int, measured: int | None, policy: Policy
    ) -> None:
        """A machine and four models, of which two have served. ``measured``: how much memory the host has, if anybody looks."""
        # a peak that no measurement can see cannot be planned for
        behaviours = {name: replace(knobs, loading_bytes=0) if knobs.start_s < 0.5 else knobs for name, knobs in behaviours.items()}
        self.world = Plain({}, policy=policy, specs=fields, infos=MACHINES[machine], host_limit_bytes=host, behaviours=behaviours)
        self.world.around.host_bytes = measured
        self.pressed = any(knobs.estimate().launch_bytes() < max(knobs.loading_bytes, knobs.awake_bytes) for knobs in behaviours.values())
        self.actions = 0
        for model in "ab":
            self.world.ask(model)
            self.world.run(6.0)

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(
        model=st.sampled_from(MODELS),
        n=st.sampled_from([1, 1, 2, 5]),
        for_s=st.sampled_from([0.0, 0.5, 4.0, 60.0]),
        wait_s=_mostly(120.0, 0.5, 10.0),
        limit_s=_mostly(600.0, 5.0),
        second=st.booleans(),
        model_class=st.sampled_from(list(ModelClass)),
        then_s=st.sampled_from([0.0, 0.6, 3.0]),
    )
    def ask(
        self, model: str, n: int, for_s: float, wait_s: float, limit_s: float, second: bool, model_class: ModelClass, then_s: float
    ) -> None:
        """Requests arrive."""
        self.world.ask(model, n, for_s=for_s, wait_s=wait_s, limit_s=limit_s, second_try=second, model_class=model_class)
        self.world.run(then_s)

    @rule(model=st.sampled_from(MODELS), for_s=st.sampled_from([0.5, 20.0]))
    def use(self, model: str, for_s: float) -> None:
        """A request arrives and is waited for."""
        (client,) = self.world.ask(model, for_s=for_s)
        if client.end == "held":
            self.world.run(7.0)

    @rule(which=st.integers(0, 50))
    def leave(self, which: int) -> None:
        """A client goes away."""
        there = [c for c in self.world.clients if c.end in ("held", "granted")]
        if there:
            self.world.cancel(there[which % len(there)])

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.world.run(seconds)

    @rule(seconds=st.sampled_from([7.0, 25.0, 70.0]))
    def wait_long(self, seconds: float) -> None:
        """Much time passes."""
        self.world.run(seconds)

    @rule(
        verb=st.sampled_from(["wake", "sleep", "sleep", "stop", "restart"]),
        model=st.sampled_from(MODELS),
        level=_mostly(None, 1, 2),
        force=_mostly(False, True),
        patience_s=_mostly(3600.0, 1.0, 60.0),
        then_s=st.sampled_from([0.0, 0.3, 3.0]),
    )
    def order(self, verb: str, model: str, level: int | None, force: bool, patience_s: float, then_s: float) -> None:
        """An operator acts."""
        self.world.order(verb, model, level=level, force=force, patience_s=patience_s)
        self.actions += 1
        self.world.run(then_s)

    @rule(model=st.sampled_from(MODELS), fields=FIELDS)
    def configure(self, model: str, fields: dict[str, Any]) -> None:
        """A model's definition changes, or it comes back."""
        self.world.configure(**{model: fields})

    @rule(
        what=st.sampled_from(["crash", "crash", "refused", "slow", "fast", "silent", "remove", "restart", "over-full"]),
        model=st.sampled_from(MODELS),
    )
    def mishap(self, what: str, model: str) -> None:
        """Something goes wrong with one model, or with the daemon."""
        match what:
            case "crash":
                self.world.crash(model, Code.CRASHED)
            case "remove":
                self.world.configure(**{model: None})
            case "restart":
                self._restart()
            case "over-full":
                self._begin_over_full()
            case _:
                self._ail(model, what)

    def _ail(self, model: str, what: str) -> None:
        """An engine answers badly."""
        instance = self.world.instance(model)
        if instance.launch is None or instance.phase not in (Phase.AWAKE, Phase.DRAINING, Phase.ASLEEP):
            return
        iid, launch, at_s = instance.id, instance.launch, self.world.now_s
        if what == "silent" and iid in self.world.procs:
            self.world.procs[iid].life.silent = True
        if what in ("refused", "silent"):
            self.world.play(EngineRefused(at_s=at_s, instance=iid, launch=launch))
        else:
            self.world.play(EngineSlow(at_s=at_s, instance=iid, launch=launch, slow=what == "slow"))

    @rule(what=_mostly("well", "gpu0", "gpu1", "blind", "late", "store"), gib=st.sampled_from([3, 12, 30]))
    def surroundings(self, what: str, gib: int) -> None:
        """What surrounds the daemon: others on a device, blind devices, slow measurements, a store that takes nothing; or all is well."""
        world = self.world
        if what == "well":
            self._all_is_well()
        elif what == "blind":
            world.unreadable = {DeviceId("gpu0")}
        elif what == "late":
            world.sample_takes_s = 0.2 if gib == 3 else 1.5
        elif what == "store":
            world.break_store()
        elif any(info.id == what for info in world.infos):
            world.foreign[DeviceId(what)] = gib * GIB
            self.pressed = True

    @rule(
        what=st.sampled_from(["lost", "lost", "ill", "well", "well", "vanish", "appear", "stranger", "nobody", "estimated"]),
        which=st.integers(0, 3),
        then_s=st.sampled_from([0.0, 0.3, 3.0]),
    )
    def devices_change(self, what: str, which: int, then_s: float) -> None:
        """A device is lost, falls ill, vanishes, comes back; somebody sits on it, or processes have no numbers of their own."""
        world, name = self.world, f"gpu{which}"
        match what:
            case "lost" | "ill" | "well":
                world.ail(name, {"lost": Health.LOST, "ill": Health.DRAINING, "well": Health.OK}[what])
            case "vanish":
                world.vanish(name)
            case "appear":
                world.appear(name)
            case "stranger" | "nobody":
                world.around.strangers[DeviceId(name)] = (Stranger(pid=7, used_bytes=None),) if what == "stranger" else ()
            case _:
                world.around.estimated = not world.around.estimated
        world.run(then_s)

    @rule(gib=st.sampled_from([0, 0, 5, 18, 150]), hidden=st.booleans())
    def host_memory(self, gib: int, hidden: bool) -> None:
        """Others use the machine's memory; what engines pin is seen in their resident set, or not."""
        self.world.around.host_others_bytes, self.world.around.copies_hidden = gib * GIB, hidden

    def _all_is_well(self) -> None:
        world = self.world
        world.foreign, world.unreadable, world.sample_takes_s = {}, set(), 0.0
        around = world.around
        around.ill, around.strangers, around.host_others_bytes = {}, {}, 0
        for gone in list(around.absent):
            world.appear(gone)
        world.take_sample()
        if world.store_down:
            world.mend_store()

    def _restart(self) -> None:
        """The daemon is killed and started again."""
        if not self.world.store_down:
            self.world.restart()
            self.actions = len(self.world.finished)

    def _begin_over_full(self) -> None:
        """A new daemon finds rows that claim more than its devices have."""
        if self.world.store_down:
            return
        for iid, instance in self.world.state.instances.items():
            if instance.has_process:
                claim = even_claim(instance.devices, 23 * GIB, instance.claim.host_bytes)
                self.world.state.instances[iid] = replace(instance, claim=claim.at_least(instance.claim.device_bytes))
        self._restart()

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def memory_is_never_exceeded(self) -> None:
        """Nobody takes what is not there (others that grow between two measurements, and guesses that are too low, excepted)."""
        Anything.steps += 1
        if hasattr(self, "world") and not self.pressed:
            assert not self.world.overflows, self.world.overflows

    def teardown(self) -> None:
        """After the last event everything comes to rest: holds end, phases are stable and as wanted, processes have rows."""
        if not hasattr(self, "world") or self.world.broken:
            return
        world = self.world
        self._all_is_well()
        restless = {name: {"always_awake": False, "idle_sleep_after_s": None} for name in world.specs}
        world.configure(**restless)  # models that must come back for ever never rest
        world.settle(within_s=4 * 3600)
        assert not [c for c in world.clients if c.end in ("held", "granted")]
        assert len(world.finished) == self.actions, "an operator's action never ended"
        for instance in world.state.instances.values():
            assert instance.goal == _wanted(instance), world.picture()
        assert {i.id for i in world.state.with_process()} == set(world.procs)


def _wanted(instance: Instance) -> object:
    if instance.phase in EMPTY_PHASES:
        return GOAL_STOPPED
    return goal_asleep(instance.level or 1) if instance.phase is Phase.ASLEEP else type(GOAL_STOPPED)(instance.phase)


TestAnything = pytest.mark.timeout(7200 if DEEP else 120)(Anything.TestCase)
TestAnything.settings = settings(max_examples=2000 if DEEP else 50, stateful_step_count=30)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_steps() -> None:
    """Every invariant after every event of each step, and no request to an engine that is not awake."""
    Anything.steps = 0
    run_state_machine_as_test(Anything, settings=settings(max_examples=420, stateful_step_count=30))
    print(f"{Anything.steps} steps")
    assert Anything.steps >= 10_000
