"""Puts the orchestrator together and runs it: the same for the daemon and for the crash tests."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scheduler.domain.claims import Footprint
from scheduler.domain.device import DeviceInfo
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import CauseId, DeviceId, ModelName, instance_id
from scheduler.domain.instance import ConfigChanged, Phase
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator import devices
from scheduler.orchestrator.applier import Applier
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.desk import Listeners, ReadinessDesk
from scheduler.orchestrator.effects import Effect, FinishAction, Tell
from scheduler.orchestrator.events import DevicesChanged, Happening, ModelsChanged
from scheduler.orchestrator.loop import ControlLoop
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.recovery import close_moves, load_rows, reap, restart, seed
from scheduler.orchestrator.sampling import Sampler
from scheduler.orchestrator.state import Policy, State
from scheduler.ports.device import DeviceSource
from scheduler.ports.engine import Attaches
from scheduler.store.connection import Connection
from scheduler.store.devices import load_devices, save_devices
from scheduler.store.events import append_event
from scheduler.store.meta import next_epoch
from scheduler.store.models import load_models, mark_removed, save_models
from scheduler.store.retention import prune
from scheduler.store.usage import add_usage
from scheduler.telemetry.tasks import TaskScope

log = logging.getLogger(__name__)

#: Families whose devices have the ids that the configuration gives them.
NAMED_BY_FILE = frozenset({"cpu", "other"})

FLUSH_USAGE_S = 10.0
PRUNE_S = 3600.0
PRUNE_PAUSE_S = 1.0
REAP_AGAIN_S = 10.0


@dataclass(slots=True)
class Hooks:
    """Who listens: the daemon's action book, event feed and metrics; the tests' invariant checks."""

    finished: Callable[[FinishAction], None] = lambda _e: None
    told: Callable[[Tell], None] = lambda _e: None
    interrupted: Callable[[CauseId, int], None] = lambda _c, _n: None
    observe: Callable[[Happening, State], None] = lambda _e, _s: None
    broken: Callable[[Exception], None] = lambda _e: None
    effects: Callable[[list[Effect]], None] = field(default=lambda _e: None)


class Kernel:
    """See the module. ``start`` recovers and returns once the first sample is in; holds wait for the rest."""

    def __init__(self, parts: Parts, policy: Policy, hooks: Hooks | None = None) -> None:
        self.parts = parts
        self.hooks = hooks or Hooks()
        self.state = State(policy=policy, now_s=parts.clock.monotonic(), wall=parts.clock.wall())
        listeners = Listeners(finished=self.hooks.finished, told=self.hooks.told, cut=self.hooks.interrupted)
        self.desk = ReadinessDesk(self.state, parts.clock, listeners)
        self.applier = Applier(self.state, parts, self.desk, self.post)
        self.loop = ControlLoop(self.state, parts.clock, self._apply, self.hooks.observe, self.hooks.broken)
        self.desk.post = self.post
        self.sampler = Sampler(self.state, parts, self.applier.supervisors, self.post, self.devices_changed)
        listeners.measure = lambda _devices: self.sampler.poke()
        self._scope = TaskScope("kernel")
        self._families: set[str] = set()  # kinds of which this host has devices, or had some, or may have some that cannot be listed

    def post(self, event: Happening) -> None:
        """Feed an event to the control loop."""
        self.loop.post(event)

    def _apply(self, effects: list[Effect]) -> None:
        try:
            self.hooks.effects(effects)
        except Exception as error:  # who only listens keeps nothing from being done
            log.exception("a listener failed")
            self.hooks.broken(error)
        self.applier.apply(effects)

    async def start(
        self, models: Mapping[ModelName, ModelSpec], host_limit_bytes: int = 0, unused: Collection[DeviceId] = frozenset()
    ) -> None:
        """Recover from the journal, take one fresh sample, and run. Nobody misses the devices that are ``unused``."""
        state, parts = self.state, self.parts
        state.host_limit_bytes = host_limit_bytes
        changed = await self._register(models)
        for source in parts.sources:
            for info in await self.devices_of(source):
                state.devices[info.id] = info
        await self._note_missing(unused)
        registry = await self.registry_event(models)
        await parts.writer.submit(next_epoch, "epoch")
        await parts.writer.submit(lambda conn: close_moves(conn, parts.clock.wall()), "moves")
        rows = await parts.writer.submit(load_rows, "load")
        state.now_s, state.wall = parts.clock.monotonic(), parts.clock.wall()
        alive = seed(state, rows, parts.launcher.boot_id)
        # First of all the rows become unknown: their deadlines are the last daemon's and decide nothing any more.
        self._apply(restart(state, alive, self.applier))
        self.loop.step(registry)
        self._apply(self._retry_changed(changed))
        await self.sampler.once()
        self._scope.spawn(self.loop.run(), "control")
        self._scope.spawn(self.sampler.run(), "sampler")
        self._scope.spawn(self._flush_usage(), "usage")
        self._scope.spawn(self._reap(), "reap")
        self._scope.spawn(self._prune(), "prune")

    async def stop(self) -> None:
        """Stop acting and write what is still in memory; engines keep running."""
        await self._scope.aclose()
        await self.sampler.close()
        await self.applier.close()
        await self._write_usage()

    async def crash(self) -> None:
        """For tests: everything of this process is gone at once."""
        await self._scope.aclose()
        await self.sampler.close()
        await self.applier.close()

    # --- devices ----------------------------------------------------------------------------------------------------

    async def devices_of(self, source: DeviceSource) -> Sequence[DeviceInfo]:
        """A family's devices under the names they had before; new names are written down before they are used."""
        parts = self.parts
        if source.kind in NAMED_BY_FILE:
            found = await source.inventory({})
            self._families |= {info.kind for info in found}
            return found
        known = await parts.writer.submit(lambda conn: load_devices(conn, source.kind), "devices")
        try:
            found = await source.inventory(known)
        except HotseatError as error:
            self._families.add(source.kind)  # a broken driver is no reason to start on the CPU
            log.error("devices of kind %s cannot be listed: %s", source.kind, error.message)
            return devices.blind(self.state, source.kind, known, error)
        self._families |= {source.kind} if known or found else set()
        self.state.degraded.pop(f"{devices.BLIND}:{source.kind}", None)
        wall = parts.clock.wall()
        if {info.uuid: info.id for info in found}.items() - known.items():
            await parts.writer.submit(lambda conn: save_devices(conn, found, wall), "devices")
        return found

    async def devices_changed(self, source: DeviceSource) -> None:
        """A family says that its devices are others now; with the first of its kind, models may sit elsewhere than before."""
        before = len(self._families)
        found = await self.devices_of(source)
        self.post(DevicesChanged(at_s=self.parts.clock.monotonic(), kind=source.kind, devices=tuple(found)))
        if len(self._families) > before:
            self.post(await self.registry_event(self.state.models))

    async def _note_missing(self, unused: Collection[DeviceId]) -> None:
        """Devices that an earlier daemon knew and this one does not find are shown, not forgotten, unless they are not to be used."""
        for kind in {source.kind for source in self.parts.sources} - NAMED_BY_FILE:
            known = await self.parts.writer.submit(partial(load_devices, kind=kind), "devices")
            for device in sorted(set(known.values()) - self.state.devices.keys() - set(unused)):
                devices.miss(self.state, device)

    # --- the registry -----------------------------------------------------------------------------------------------

    async def change_models(self, models: Mapping[ModelName, ModelSpec]) -> None:
        """A new registry while running."""
        await self._register(models)
        self.post(await self.registry_event(models))

    async def registry_event(self, models: Mapping[ModelName, ModelSpec]) -> ModelsChanged:
        """The registry with what the adapters say about each model."""
        guesses: dict[ModelName, Footprint] = {}
        levels: dict[ModelName, tuple[int, ...]] = {}
        kinds: dict[ModelName, tuple[str, ...]] = {}
        kind_of = {info.id: info.kind for info in self.state.devices.values()}
        for name, configured in models.items():
            engine = self.parts.engines[configured.engine]
            kinds[name] = devices.seat_kinds(configured.devices, engine.device_kinds, self._families, kind_of)
            # What an adapter says about a model depends on where it sits, so it is told that before it is asked.
            spec = replace(configured, devices=replace(configured.devices, kind=next(iter(kinds[name]), None)))
            able = engine.levels(spec)
            levels[name] = able if spec.levels is None else tuple(n for n in able if n in spec.levels)
            guesses[name] = await engine.estimate(spec)
        foreign = frozenset(name for name, spec in models.items() if isinstance(self.parts.engines[spec.engine], Attaches))
        now_s = self.parts.clock.monotonic()
        return ModelsChanged(at_s=now_s, models=models, levels=levels, guesses=guesses, kinds=kinds, attached=foreign)

    async def _register(self, models: Mapping[ModelName, ModelSpec]) -> set[ModelName]:
        """Write the registry; returns the models whose definition is another than the stored one."""
        wall = self.parts.clock.wall()
        wanted = dict(models)

        def unit(conn: Connection) -> set[ModelName]:
            before = {m.spec.name: m.spec for m in load_models(conn)}
            save_models(conn, wanted.values(), wall)
            for name in before.keys() - wanted.keys():
                mark_removed(conn, name, wall)
            return {n for n, s in wanted.items() if n in before and before[n].fingerprint() != s.fingerprint()}

        return await self.parts.writer.submit(unit, "registry")

    def _retry_changed(self, changed: set[ModelName]) -> list[Effect]:
        """What failed under an older definition may work now."""
        ctx = Context(self.state)
        for name in changed:
            instance = self.state.instances.get(instance_id(name))
            if instance is not None and instance.phase in (Phase.BACKOFF, Phase.FAILED):
                reason = Reason(Code.SPEC_STALE, "its configuration changed")
                ctx.transition(instance.id, ConfigChanged(at_s=ctx.now_s, reason=reason))
        return ctx.effects

    # --- background -------------------------------------------------------------------------------------------------

    async def _reap(self) -> None:
        """Until it was done once without a failure; what is found ended meanwhile is not told twice."""
        while True:
            if await self._reaped():
                return self.sampler.poke()
            await asyncio.sleep(REAP_AGAIN_S)

    async def _reaped(self) -> bool:
        try:
            async for line in reap(self.state, self.parts):
                log.warning(line)
                self.hooks.told(Tell(kind="orphan", subject="", message=line))
                await self._write_orphan(line)
        except Exception:
            log.exception("orphans of a crash are looked for again in %.0f s", REAP_AGAIN_S)
            return False
        return True

    async def _write_orphan(self, line: str) -> None:
        wall = self.parts.clock.wall()
        try:
            await self.parts.writer.submit(lambda conn: append_event(conn, at=wall, kind="orphan", subject="", message=line), "orphan")
        except HotseatError as error:
            log.warning("event not written: %s", error)

    async def _prune(self) -> None:
        """Keep the journal and usage within their retention, a bounded piece at a time."""
        while True:
            await asyncio.sleep(PRUNE_S)
            try:
                while await self.parts.writer.submit(lambda conn: prune(conn, self.parts.clock.wall()), "prune"):  # noqa: ASYNC110
                    await asyncio.sleep(PRUNE_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - the next round comes
                log.warning("old rows not pruned: %s: %s", type(error).__name__, error)

    async def _flush_usage(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_USAGE_S)
            await self._write_usage()

    async def _write_usage(self) -> None:
        rows = self.desk.usage.take()
        if not rows:
            return
        try:
            await self.parts.writer.submit(lambda conn: add_usage(conn, rows), "usage")
        except Exception as error:  # noqa: BLE001 - it is kept for the next round
            log.warning("usage not written yet: %s: %s", type(error).__name__, error)
            self.desk.usage.put_back(rows)
