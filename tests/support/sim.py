"""A whole daemon in virtual time: the real kernel, the real SQLite, a pretended world that survives its crashes."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scheduler.domain.errors import HotseatError, InvariantViolated
from scheduler.domain.ids import ModelName, holder_of
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.lease import Outcome
from scheduler.domain.model import ModelSpec
from scheduler.domain.units import GIB
from scheduler.orchestrator.effects import Effect, FinishAction, Tell
from scheduler.orchestrator.events import Asked, Happening
from scheduler.orchestrator.invariants import Watch
from scheduler.orchestrator.kernel import Hooks, Kernel
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.readiness import Usage, Want
from scheduler.orchestrator.state import Policy, State
from scheduler.simulator.virtual_time import VirtualClock
from scheduler.store.engine import open_database
from scheduler.store.writer import Writer
from tests.support.world import World
from tests.support.world_ports import ENGINE, Daemon


class Broken(SystemExit):
    """An invariant does not hold. Of this kind because it leaves the event loop at once, whoever awaits whatever."""


class Crashed(BaseException):
    """The daemon is gone, as after kill -9."""


class Sim:
    """One daemon at a time over one world and one database file. Every invariant is looked at after every event."""

    def __init__(
        self,
        world: World,
        folder: Path,
        models: Sequence[ModelSpec],
        *,
        policy: Policy | None = None,
        host_limit_bytes: int = 0,
        boundary: Callable[[str], None] | None = None,
    ) -> None:
        self.world = world
        self.folder = folder
        self.models: dict[ModelName, ModelSpec] = {m.name: m for m in models}
        self.policy = policy or Policy()
        self.host_limit_bytes = host_limit_bytes
        self.boundary = boundary or (lambda _name: None)
        self.told: list[Tell] = []
        self.finished: dict[str, FinishAction] = {}
        self.answers: list[tuple[str, str]] = []
        self._actions = 0
        self._watch: Watch | None = None

    async def start(self) -> None:
        """Boot a daemon on what the last one left."""
        clock = VirtualClock(asyncio.get_running_loop())
        self.daemon = Daemon(self.world)
        self.database = open_database(self.folder / "state.db", clock=clock, mode="inline", durable=False, state_uuid="sim")
        self.writer = Writer(self.database, on_boundary=self.boundary)
        parts = Parts(
            engines=self.daemon.engines,
            launcher=self.daemon.launcher,
            sources=self.daemon.sources,
            host=self.daemon.host,
            clock=clock,
            database=self.database,
            writer=self.writer,
            state_uuid="sim",
            log_dir=self.folder,
            environment=lambda _spec, extra, _values: dict(extra),
            boundary=self.boundary,
            read_log=self._read_log,
        )
        hooks = Hooks(finished=self._on_finished, told=self.told.append, effects=self._effects, observe=self._observe, broken=self._broken)
        self.kernel = Kernel(parts, self.policy, hooks)
        self._watch = None  # what recovery does is no step of the reducer
        await self.kernel.start(self.models, self.host_limit_bytes)
        self._watch = Watch(self.kernel.state)

    async def _read_log(self, path: str) -> Sequence[str]:
        return self.daemon.read_log(path)

    def _on_finished(self, effect: FinishAction) -> None:
        self.finished[effect.action] = effect

    def _effects(self, effects: list[Effect]) -> None:
        if self._watch is not None:
            self._watch.effects(effects)

    def _observe(self, event: Happening, state: State) -> None:
        try:
            self._look(event, state)
        except (AssertionError, InvariantViolated) as error:
            raise Broken(str(error)) from error

    def _broken(self, error: Exception) -> None:
        raise Broken(f"{type(error).__name__}: {error}") from error

    def _look(self, event: Happening, state: State) -> None:
        if self._watch is not None:
            self._watch.observe(event, state)
        for device, info in state.devices.items():
            used = self.world.used_bytes(device)
            if used > info.capacity_bytes and not self.world.devices[device].foreign_bytes:
                raise AssertionError(f"{device} holds {used / GIB:.2f} of {info.capacity_bytes / GIB:.2f} GiB after {event}")

    async def crash(self) -> None:
        """kill -9."""
        self.world.crash()
        await self.kernel.crash()
        self.database.close()

    async def stop(self) -> None:
        """A clean end: engines keep running."""
        await self.kernel.stop()
        await self.writer.close()
        self.database.close()
        self.world.crash()

    async def restart(self) -> None:
        """Crash and boot."""
        await self.crash()
        await self.start()

    # --- what clients do --------------------------------------------------------------------------------------------

    async def chat(self, model: str, seconds: float = 0.5, *, wait_s: float = 600.0, tries: int = 2) -> str:
        """A request as the gateway makes it: held, leased, relayed, tried a second time when its engine died. Returns its end."""
        now = asyncio.get_running_loop().time()
        outcome = "engine_lost"
        for attempt in range(tries):
            want = Want(model=ModelName(model), arrived_s=now, deadline_s=now + wait_s, second_try=attempt > 0)
            ticket = self.kernel.desk.ask(want)
            try:
                grant = await ticket.granted()
            except HotseatError as error:
                outcome = error.code
                break
            except asyncio.CancelledError:
                ticket.cancel()
                raise
            ended = Outcome.CLIENT_GONE
            try:
                ended = await self.world.request(grant.base_url, seconds)
            finally:
                self.kernel.desk.release(grant.lease, ended, Usage(endpoint="chat/completions", status=200))
            outcome = ended.value
            if ended is not Outcome.ENGINE_LOST:
                break
        self.answers.append((model, outcome))
        return outcome

    async def act(self, verb: str, model: str, **options: object) -> FinishAction:
        """An operator's action, until it has ended."""
        action = self.ask(verb, model, **options)
        while action not in self.finished:
            await asyncio.sleep(0.05)
        return self.finished[action]

    def ask(self, verb: str, model: str, **options: object) -> str:
        """An operator's action; returns its id at once."""
        self._actions += 1
        action = f"a{self._actions}"
        now = asyncio.get_running_loop().time()
        self.kernel.post(Asked(at_s=now, action=action, verb=verb, model=ModelName(model), **options))  # type: ignore[arg-type]
        return action

    # --- what can be seen -------------------------------------------------------------------------------------------

    def instance(self, model: str) -> Instance:
        """The model's instance."""
        return self.kernel.state.instances[f"{model}#0"]  # type: ignore[index]

    def phase(self, model: str) -> Phase:
        """The model's phase."""
        found = self.kernel.state.instances.get(f"{model}#0")  # type: ignore[call-overload]
        return found.phase if found is not None else Phase.STOPPED

    async def until(self, seen: Callable[[], bool], *, within_s: float = 600.0) -> None:
        """Let virtual time pass until ``seen``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while not seen():
            if loop.time() > end:
                raise AssertionError(f"not seen within {within_s} s; phases {self.phases()}")
            await asyncio.sleep(0.05)

    def phases(self) -> Mapping[str, str]:
        """All phases, for messages."""
        return {i.id: i.phase.value for i in self.kernel.state.instances.values()}

    def ledger_matches(self) -> list[str]:
        """Differences between claims and what processes really hold, when nothing moves; empty = none."""
        wrong = []
        self.world.settle()
        for instance in self.kernel.state.instances.values():
            held = sum(self.world.own_bytes(d, frozenset(p.pid for p in self.world.engines(instance.model))) for d in instance.devices)
            if held > instance.claim.total_bytes:
                wrong.append(f"{instance.id} holds {held} and claims {instance.claim.total_bytes}")
            if not instance.has_process and self.world.engines(instance.model):
                wrong.append(f"{holder_of(instance.id)} is {instance.phase} but has a process")
        return wrong


def spec(name: str, **more: object) -> ModelSpec:
    """A model of the pretended engine."""
    return ModelSpec(name=ModelName(name), engine=ENGINE, model=f"/models/{name}", **more)  # type: ignore[arg-type]
