"""Anything at all happens to the reducer; every invariant holds after every event, and in the end everything comes to rest."""

import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.domain.claims import even_claim
from scheduler.domain.ids import DeviceId
from scheduler.domain.instance import EMPTY_PHASES, GOAL_STOPPED, Instance, Phase, goal_asleep
from scheduler.domain.model import ModelClass
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.orchestrator.events import EngineRefused, EngineSlow
from scheduler.orchestrator.invariants import Watch
from scheduler.orchestrator.state import Policy
from tests.support.behaviour import NEVER, Behaviour, StartFailure
from tests.support.plain import Plain

MODELS = ("a", "b", "c", "d")
DEEP = os.environ.get("HYPOTHESIS_PROFILE", "default") != "default"

FAILURES = st.lists(
    st.sampled_from([Code.CRASHED, Code.DEVICE_OOM, Code.PORT_TAKEN, Code.MODEL_MISSING]).map(lambda c: StartFailure(code=c, after_s=0.7)),
    max_size=3,
).map(tuple)

BEHAVIOURS = st.builds(
    Behaviour,
    start_s=st.sampled_from([0.0, 1.0, 3.0, 20.0, NEVER]),
    start_failures=FAILURES,
    loading_bytes=st.sampled_from([0, 11 * GIB]),
    awake_bytes=st.sampled_from([2 * GIB, 7 * GIB, 11 * GIB, 22 * GIB]),
    guess_bytes=st.sampled_from([None, 12 * GIB]),
    residue_bytes=st.sampled_from([{1: GIB // 2, 2: GIB // 4}, {1: 2 * GIB, 2: GIB}]),
    host_bytes=st.sampled_from([{}, {1: 10 * GIB}]),
    free_lag_s=st.sampled_from([0.0, 0.4, 4.0, 15.0]),
    levels=st.sampled_from([(), (1,), (1, 2)]),
    sleep_s=st.sampled_from([0.0, 0.5, 5.0]),
    wake_s=st.sampled_from([0.0, 1.0, 8.0]),
    sleep_errors=st.sampled_from([0, 0, 1]),
    sleep_hangs=st.sampled_from([0, 0, 1]),
    sleep_frees_nothing=st.sampled_from([False, False, True]),
    wake_errors=st.sampled_from([0, 0, 1, 2]),
    wake_hangs=st.sampled_from([0, 0, 1]),
    crash_after_s=st.sampled_from([NEVER, NEVER, 2.0, 30.0]),
    term_s=st.sampled_from([0.2, 3.0, NEVER]),
)

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.booleans(),
        "args": st.sampled_from([(), ("--x",), ("--y",)]),
        "always_awake": st.booleans(),
        "idle_sleep_after_s": st.sampled_from([None, 0.0, 5.0]),
        "max_concurrent": st.sampled_from([None, 1, 2]),
        "max_queued": st.sampled_from([1, 512]),
        "min_awake_s": st.sampled_from([0.0, 30.0]),
        "start_timeout_s": st.sampled_from([5.0, 900.0]),
        "drain_timeout_s": st.sampled_from([3.0, 600.0]),
        "model_class": st.sampled_from(list(ModelClass)),
    },
)


class Anything(RuleBasedStateMachine):
    """One daemon's reducer over a plain world."""

    world: Plain

    @initialize(
        behaviours=st.fixed_dictionaries(dict.fromkeys(MODELS, BEHAVIOURS)),
        fields=st.fixed_dictionaries(dict.fromkeys(MODELS, FIELDS)),
        devices=st.sampled_from([1, 2]),
        host=st.sampled_from([0, 15 * GIB, 100 * GIB]),
        interrupt=st.booleans(),
    )
    def begin(self, behaviours: dict[str, Behaviour], fields: dict[str, Any], devices: int, host: int, interrupt: bool) -> None:
        """A machine and four models."""
        names = {f"gpu{n}": 24.0 for n in range(devices)}
        policy = Policy(interrupt=interrupt)
        self.world = Plain(names, policy=policy, specs=fields, host_limit_bytes=host, **behaviours)
        self.pressed = any(knobs.estimate().launch_bytes() < max(knobs.loading_bytes, knobs.awake_bytes) for knobs in behaviours.values())
        self.actions = 0

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(
        model=st.sampled_from(MODELS),
        n=st.sampled_from([1, 1, 2, 5]),
        for_s=st.sampled_from([0.0, 0.5, 4.0, 60.0]),
        wait_s=st.sampled_from([0.5, 10.0, 120.0]),
        limit_s=st.sampled_from([5.0, 600.0]),
        second=st.booleans(),
        model_class=st.sampled_from(list(ModelClass)),
    )
    def ask(self, model: str, n: int, for_s: float, wait_s: float, limit_s: float, second: bool, model_class: ModelClass) -> None:
        """Requests arrive."""
        self.world.ask(model, n, for_s=for_s, wait_s=wait_s, limit_s=limit_s, second_try=second, model_class=model_class)

    @rule(which=st.integers(0, 50))
    def leave(self, which: int) -> None:
        """A client goes away."""
        there = [c for c in self.world.clients if c.end in ("held", "granted")]
        if there:
            self.world.cancel(there[which % len(there)])

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 7.0, 25.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.world.run(seconds)

    @rule(model=st.sampled_from(MODELS), code=st.sampled_from([Code.CRASHED, Code.DEVICE_OOM]))
    def crash(self, model: str, code: Code) -> None:
        """An engine dies."""
        self.world.crash(model, code)

    @rule(model=st.sampled_from(MODELS), what=st.sampled_from(["refused", "slow", "fast", "silent"]))
    def ail(self, model: str, what: str) -> None:
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

    @rule(
        verb=st.sampled_from(["wake", "sleep", "stop", "restart"]),
        model=st.sampled_from(MODELS),
        level=st.sampled_from([None, 1, 2]),
        force=st.booleans(),
        patience_s=st.sampled_from([1.0, 60.0, 3600.0]),
    )
    def order(self, verb: str, model: str, level: int | None, force: bool, patience_s: float) -> None:
        """An operator acts."""
        self.world.order(verb, model, level=level, force=force, patience_s=patience_s)
        self.actions += 1

    @rule(model=st.sampled_from(MODELS), fields=FIELDS)
    def configure(self, model: str, fields: dict[str, Any]) -> None:
        """A model's definition changes, or it comes back."""
        self.world.configure(**{model: fields})

    @rule(model=st.sampled_from(MODELS))
    def remove(self, model: str) -> None:
        """A model is taken out of the configuration."""
        self.world.configure(**{model: None})

    @rule(device=st.sampled_from(["gpu0", "gpu1"]), gib=st.sampled_from([0, 3, 12, 30]))
    def press(self, device: str, gib: int) -> None:
        """Somebody else uses a device."""
        if any(info.id == device for info in self.world.infos):
            self.world.foreign[DeviceId(device)] = gib * GIB
            self.pressed = self.pressed or gib > 0

    @rule(blind=st.booleans())
    def blind(self, blind: bool) -> None:
        """A device cannot be read, or can again."""
        self.world.unreadable = {DeviceId("gpu0")} if blind else set()

    @rule(seconds=st.sampled_from([0.0, 0.2, 1.5]))
    def measure_slowly(self, seconds: float) -> None:
        """Measurements take time."""
        self.world.sample_takes_s = seconds

    @rule()
    def break_store(self) -> None:
        """The database takes no rows."""
        self.world.break_store()

    @precondition(lambda self: self.world.store_down)
    @rule()
    def mend_store(self) -> None:
        """It takes them again."""
        self.world.mend_store()

    @precondition(lambda self: not self.world.store_down)
    @rule()
    def restart(self) -> None:
        """The daemon is killed and started again."""
        self.world.restart()
        self.actions = len(self.world.finished)

    @precondition(lambda self: not self.world.store_down)
    @rule(gib=st.sampled_from([13, 23, 40]))
    def begin_again_over_full(self, gib: int) -> None:
        """A new daemon finds rows that claim more than its devices have."""
        for iid, instance in self.world.state.instances.items():
            if instance.has_process:
                claim = even_claim(instance.devices, gib * GIB, instance.claim.host_bytes)
                self.world.state.instances[iid] = _with_claim(instance, claim.at_least(instance.claim.device_bytes))
        self.world.watch = Watch(self.world.state)
        self.world.restart()
        self.actions = len(self.world.finished)

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def memory_is_never_exceeded(self) -> None:
        """Nobody takes what is not there (others that grow between two measurements, and guesses that are too low, excepted)."""
        if hasattr(self, "world") and not self.pressed:
            assert not self.world.overflows, self.world.overflows

    def teardown(self) -> None:
        """After the last event everything comes to rest: holds end, phases are stable and as wanted, processes have rows."""
        if not hasattr(self, "world") or self.world.broken:
            return
        world = self.world
        world.foreign, world.unreadable, world.sample_takes_s = {}, set(), 0.0
        if world.store_down:
            world.mend_store()
        restless = {name: {"always_awake": False, "idle_sleep_after_s": None} for name in world.specs}
        world.configure(**restless)  # models that must come back for ever never rest
        world.settle(within_s=4 * 3600)
        assert not [c for c in world.clients if c.end in ("held", "granted")]
        assert len(world.finished) == self.actions, "an operator's action never ended"
        for instance in world.state.instances.values():
            assert instance.goal == _wanted(instance), world.picture()
        assert {i.id for i in world.state.with_process()} == set(world.procs)


def _with_claim(instance: Instance, claim: Any) -> Instance:
    from dataclasses import replace

    return replace(instance, claim=claim)


def _wanted(instance: Instance) -> object:
    if instance.phase in EMPTY_PHASES:
        return GOAL_STOPPED
    return goal_asleep(instance.level or 1) if instance.phase is Phase.ASLEEP else type(GOAL_STOPPED)(instance.phase)


TestAnything = Anything.TestCase
TestAnything.settings = settings(
    parent=settings.default,
    max_examples=settings.default.max_examples if DEEP else 60,
    stateful_step_count=30,  # type: ignore[union-attr]
)
