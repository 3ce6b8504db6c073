"""Measures devices: every period, and at once when somebody waits for bytes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from scheduler.domain.device import DeviceSample, HostSample
from scheduler.domain.ids import DeviceId, Holder, InstanceId, ModelName, holder_of, instance_id
from scheduler.domain.instance import GROWING_PHASES, SHRINKING_PHASES
from scheduler.domain.model import ModelSpec
from scheduler.orchestrator.devices import BLIND
from scheduler.orchestrator.events import Happening, Sampled
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.state import State
from scheduler.orchestrator.supervisor import Supervisor
from scheduler.ports.device import DeviceSource
from scheduler.ports.engine import Attaches
from scheduler.ports.launcher import ProcessHandle
from scheduler.telemetry.tasks import TaskScope

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Seconds between samples while bytes are moving.
FAST_S = 0.25
#: Seconds between attempts to list devices that could not be listed.
BLIND_S = 10.0
#: Seconds between looks for an attached engine that is not there: each looks into every process.
LISTENER_EVERY_S = 5.0


class Sampler:
    """Posts ``Sampled``. A family of devices that cannot be read is left out; its devices become stale by age."""

    def __init__(
        self,
        state: State,
        parts: Parts,
        supervisors: Mapping[InstanceId, Supervisor],
        post: Callable[[Happening], None],
        changed: Callable[[DeviceSource], Awaitable[None]],
    ) -> None:
        self._state = state
        self._parts = parts
        self._supervisors = supervisors
        self._post = post
        self._poked = asyncio.Event()
        self._changed = changed
        self._failing: set[str] = set()
        self._strangers: dict[ModelName, tuple[ProcessHandle | None, float]] = {}
        self._scope = TaskScope("sampler")
        self._listing: dict[int, asyncio.Task[None]] = {}
        self._list_at_s = parts.clock.monotonic() + BLIND_S
        self._generations = {id(source): source.generation for source in parts.sources}

    async def close(self) -> None:
        """Stop looking for devices."""
        await self._scope.aclose()

    def poke(self) -> None:
        """Measure at once."""
        self._poked.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.once()
            moving = any(i.phase in GROWING_PHASES | SHRINKING_PHASES for i in self._state.instances.values())
            try:
                async with asyncio.timeout(FAST_S if moving else self._state.policy.sample_period_s):
                    await self._poked.wait()
            except TimeoutError:
                continue
            self._poked.clear()
            await asyncio.sleep(FAST_S / 5)  # bytes need a moment; and never a busy loop of measurements

    async def once(self) -> None:
        """One round over all families. Whatever fails, the next round comes."""
        groups = await self._try("processes", self._groups())
        if groups is None:
            return  # without them every byte would count as somebody else's
        samples: list[DeviceSample] = []
        moving = frozenset(holder_of(i.id) for i in self._state.instances.values() if i.phase in GROWING_PHASES | SHRINKING_PHASES)
        for source in self._parts.sources:
            samples += await self._try(f"devices of kind {source.kind}", source.sample(groups, moving)) or ()
            self._list_again(source)
        host = await self._try("host memory", self._host(groups)) if self._parts.host is not None else None
        self._post(Sampled(at_s=self._parts.clock.monotonic(), samples=tuple(samples), host=host))

    async def _host(self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]]) -> HostSample | None:
        assert self._parts.host is not None
        return await self._parts.host.sample({holder: pids for holders in groups.values() for holder, pids in holders.items()})

    async def _try(self, what: str, look: Awaitable[T]) -> T | None:
        """The result; None when it failed, which is logged when it begins and when it ends."""
        try:
            found = await look
        except Exception as error:  # noqa: BLE001 - out of descriptors, for example: it may work in the next round
            if what not in self._failing:
                log.error("%s cannot be measured: %s: %s", what, type(error).__name__, error)
            self._failing.add(what)
            return None
        if what in self._failing:
            log.info("%s can be measured again", what)
            self._failing.discard(what)
        return found

    def _list_again(self, source: DeviceSource) -> None:
        """Where the set of devices has changed, and every so often where it could not be listed.

        Beside the measurements: a driver that hangs takes a minute to say nothing, and other families have to be measured meanwhile.
        """
        if (under_way := self._listing.get(id(source))) is not None and not under_way.done():
            return
        blind, now_s = f"{BLIND}:{source.kind}" in self._state.degraded, self._parts.clock.monotonic()
        seen = source.generation
        if seen == self._generations[id(source)] and not (blind and now_s >= self._list_at_s):
            return
        self._list_at_s = now_s + BLIND_S
        self._listing[id(source)] = self._scope.spawn(self._look_again(source, seen), f"list:{source.kind}")

    async def _look_again(self, source: DeviceSource, seen: int) -> None:
        if await self._try(f"the list of {source.kind} devices", self._changed_to(source)):
            self._generations[id(source)] = seen

    async def _changed_to(self, source: DeviceSource) -> bool:
        await self._changed(source)
        return True

    async def _groups(self) -> dict[DeviceId, dict[Holder, frozenset[int]]]:
        """Process ids per device and holder; every holder with a claim is asked for, with or without processes."""
        groups: dict[DeviceId, dict[Holder, frozenset[int]]] = {d: {} for d in self._state.devices}
        for instance in list(self._state.with_process()):
            supervisor = self._supervisors.get(instance.id)
            handle = supervisor.handle if supervisor is not None else None
            pids = await self._parts.launcher.members(handle) if handle is not None else frozenset[int]()
            for device in instance.devices:
                groups.setdefault(device, {})[holder_of(instance.id)] = pids
        for name, spec in self._state.models.items():
            if self._state.facts_of(name).attached and not self._state.has_process(instance_id(name)):
                pids = await self._found(name, spec)
                for device in spec.devices.ids:
                    groups.setdefault(device, {})[holder_of(instance_id(name))] = pids
        return groups

    async def _found(self, name: ModelName, spec: ModelSpec) -> frozenset[int]:
        """Processes of an attached engine that was not taken in yet: what it holds is its own already, not somebody else's."""
        engine: object = self._parts.engines[spec.engine]
        if not isinstance(engine, Attaches):
            return frozenset()
        known, at_s = self._strangers.get(name, (None, float("-inf")))
        now_s = self._parts.clock.monotonic()
        if known is None and now_s < at_s + LISTENER_EVERY_S:
            return frozenset()
        if known is None or not await self._parts.launcher.leader_alive(known):
            known = await self._parts.launcher.listener(engine.port(spec))
            self._strangers[name] = (known, now_s)
        return await self._parts.launcher.members(known) if known is not None else frozenset()
