"""A daemon's life by chance: demand, impatient clients, dying engines, failed starts, new configurations, foreign memory, crashes.

The real kernel over the real SQLite in virtual time. After every event the invariants hold and no device is over capacity;
in the end, once everything behaves again, every request that still waits is answered or refused, everybody can be served,
and every instance rests where it is wanted.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Phase_
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.instance import EMPTY_PHASES, Phase
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.simulator.virtual_time import VirtualLoop
from scheduler.telemetry.tasks import spawn
from tests.support.behaviour import Behaviour, Child, StartFailure
from tests.support.sim import Sim, spec
from tests.support.world import World, device

NAMES = ("big", "sleeper", "small", "brittle")
DEVICE = DeviceId("gpu0")
models = st.sampled_from(NAMES)


def behaviours() -> dict[str, Behaviour]:
    """Two large ones that do not fit together, a small one, and one whose start fails now and then."""
    return {
        "big": Behaviour(awake_bytes=6 * GIB, levels=(), children=(Child(outlives=True, keeps_token=False),)),
        "sleeper": Behaviour(awake_bytes=6 * GIB, levels=(1, 2)),
        "small": Behaviour(awake_bytes=2 * GIB, levels=(1,), free_lag_s=1.5),
        "brittle": Behaviour(awake_bytes=3 * GIB, levels=(), start_failures=(StartFailure(code=Code.CRASHED),)),
    }


class Life(RuleBasedStateMachine):
    """One host with two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="life-"))
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clients: set[asyncio.Task[str]] = set()
        self.up = False
        self.run(self.begin())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something on the virtual loop."""
        return self.runner.run(work)

    async def begin(self) -> None:
        """A fresh machine and its first daemon."""
        self.world = World([device("gpu0", 10, index=0), device("gpu1", 7, index=1)], behaviours())
        specs = [spec(name, max_wait_s=300.0, start_timeout_s=60.0) for name in NAMES]
        self.sim = Sim(self.world, self.folder, specs)
        await self.sim.start()
        self.up = True

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 5.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @precondition(lambda self: self.up)
    @rule(model=models, seconds=st.sampled_from([0.0, 0.5, 8.0]), many=st.integers(1, 4))
    def clients_ask(self, model: str, seconds: float, many: int) -> None:
        async def ask() -> None:
            for _ in range(many):
                client = spawn(self.sim.chat(model, seconds), "client", expected=(Exception,))
                self.clients.add(client)
            await asyncio.sleep(0)

        self.run(ask())

    @precondition(lambda self: any(not c.done() for c in self.clients))
    @rule(which=st.integers(0, 3))
    def a_client_leaves(self, which: int) -> None:
        waiting = sorted((c for c in self.clients if not c.done()), key=lambda c: c.get_name())
        waiting[which % len(waiting)].cancel()
        self.run(asyncio.sleep(0))

    @precondition(lambda self: bool(self.world.engines()))
    @rule(which=st.integers(0, 3))
    def an_engine_dies(self, which: int) -> None:
        alive = sorted({p.model for p in self.world.engines()})

        async def die() -> None:
            self.world.kill(alive[which % len(alive)])
            await asyncio.sleep(0)

        self.run(die())

    @precondition(lambda self: self.up)
    @rule(model=models, verb=st.sampled_from(["wake", "sleep", "stop", "restart"]), force=st.booleans())
    def an_operator_acts(self, model: str, verb: str, force: bool) -> None:
        async def act() -> None:
            self.sim.ask(verb, model, force=force, patience_s=120.0)
            await asyncio.sleep(0)

        self.run(act())

    @precondition(lambda self: self.up)
    @rule(model=models, removed=st.booleans())
    def the_configuration_changes(self, model: str, removed: bool) -> None:
        async def change() -> None:
            name = ModelName(model)
            now = dict(self.sim.models)
            old = now.pop(name, None)
            if not removed or old is None:
                base = old or spec(model, max_wait_s=300.0, start_timeout_s=60.0)
                now[name] = replace(base, args=(*base.args[-1:], "--changed"))
            self.sim.models = now
            await self.sim.kernel.change_models(now)
            await asyncio.sleep(0)

        self.run(change())

    @rule(gib=st.sampled_from([0, 1, 4]))
    def a_stranger_takes_memory(self, gib: int) -> None:
        async def take() -> None:
            self.world.set_foreign(DEVICE, gib * GIB)

        self.run(take())

    @precondition(lambda self: self.up)
    @rule()
    def the_daemon_is_killed(self) -> None:
        async def die() -> None:
            await self.sim.crash()
            for client in self.clients:
                client.cancel()
            if self.clients:
                await asyncio.wait(self.clients)
            self.clients.clear()

        self.run(die())
        self.up = False

    @precondition(lambda self: not self.up)
    @rule()
    def a_daemon_starts(self) -> None:
        self.run(self.sim.start())
        self.up = True

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def no_request_reached_a_sleeper(self) -> None:
        assert not self.world.misdirected

    def teardown(self) -> None:
        """Everything behaves again: then everybody is served, and everything comes to rest."""
        try:
            self.run(self.heal())
        finally:
            self.runner.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def heal(self) -> None:
        for name in NAMES:
            self.world.behaviours[ModelName(name)] = replace(behaviours()[name], start_failures=())
        self.world.set_foreign(DEVICE, 0)
        if not self.up:
            await self.sim.start()
        if self.clients:
            await asyncio.wait(self.clients, timeout=2000.0)
        assert all(c.done() for c in self.clients), "a request was neither answered nor refused"
        self.sim.models = {ModelName(n): spec(n, max_wait_s=300.0, start_timeout_s=60.0) for n in NAMES}
        await self.sim.kernel.change_models(self.sim.models)
        for name in NAMES:
            if self.sim.phase(name) in (Phase.FAILED, Phase.BACKOFF):
                await self.sim.act("restart", name)
        answers = [await self.sim.chat(name) for name in NAMES]
        assert answers == ["ok"] * len(NAMES), (answers, self.sim.phases())
        await self.sim.until(self.at_rest, within_s=300.0)
        assert self.sim.ledger_matches() == []
        assert not self.sim.kernel.state.holds
        assert not self.sim.kernel.state.moves
        await self.sim.stop()

    def at_rest(self) -> bool:
        """Goal and phase agree everywhere, and nobody moves."""
        found = self.sim.kernel.state.instances.values()
        stable = EMPTY_PHASES | {Phase.AWAKE, Phase.ASLEEP}
        return all(i.phase in stable and (i.phase in EMPTY_PHASES or i.goal.phase is i.phase) for i in found)


TestLife = pytest.mark.may_block(Life.TestCase)  # hundreds of lives in virtual time: how long a callback takes says nothing
DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
TestLife.settings = settings(
    max_examples=1000 if DEEP else 40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase_.explicit, Phase_.generate],
)
