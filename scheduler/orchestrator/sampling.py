"""Measures devices: every period, and at once when somebody waits for bytes."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from scheduler.domain.device import DeviceSample
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import DeviceId, Holder, InstanceId, holder_of
from scheduler.domain.instance import GROWING_PHASES, SHRINKING_PHASES
from scheduler.orchestrator.events import Happening, Sampled
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.state import State
from scheduler.orchestrator.supervisor import Supervisor

log = logging.getLogger(__name__)

#: Seconds between samples while bytes are moving.
FAST_S = 0.25


class Sampler:
    """Posts ``Sampled``. A family of devices that cannot be read is left out; its devices become stale by age."""

    def __init__(self, state: State, parts: Parts, supervisors: Mapping[InstanceId, Supervisor], post: Callable[[Happening], None]) -> None:
        self._state = state
        self._parts = parts
        self._supervisors = supervisors
        self._post = post
        self._poked = asyncio.Event()
        self._complained = False

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
        """One round over all families."""
        groups = await self._groups()
        samples: list[DeviceSample] = []
        for source in self._parts.sources:
            try:
                samples += await source.sample(groups)
            except HotseatError as error:
                if not self._complained:
                    log.error("devices of kind %s cannot be measured: %s", source.kind, error)
                self._complained = True
            else:
                self._complained = False
        self._post(Sampled(at_s=self._parts.clock.monotonic(), samples=tuple(samples)))

    async def _groups(self) -> dict[DeviceId, dict[Holder, frozenset[int]]]:
        """Process ids per device and holder; every holder with a claim is asked for, with or without processes."""
        groups: dict[DeviceId, dict[Holder, frozenset[int]]] = {d: {} for d in self._state.devices}
        for instance in list(self._state.with_process()):
            supervisor = self._supervisors.get(instance.id)
            handle = supervisor.handle if supervisor is not None else None
            pids = await self._parts.launcher.members(handle) if handle is not None else frozenset[int]()
            for device in instance.devices:
                groups.setdefault(device, {})[holder_of(instance.id)] = pids
        return groups
