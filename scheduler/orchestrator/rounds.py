"""Rounds: an engine that serves is looked at every few seconds, and one that was adopted until it is idle."""

import asyncio
from collections.abc import Awaitable, Callable

from scheduler.domain.ids import InstanceId, LaunchId
from scheduler.orchestrator.events import EngineRefused, EngineSlow, Happening
from scheduler.orchestrator.looks import Looks
from scheduler.orchestrator.silence import SILENT_S, Pulses, answers_nothing
from scheduler.ports.clock import Clock
from scheduler.ports.engine import Answer, CanSleep, CountsRequests, Endpoint, Engine, Probe
from scheduler.telemetry.tasks import TaskScope

HEALTH_EVERY_S = 5.0
REFUSALS = 2  # refused looks in a row before an engine whose process lives counts as lost
AGAIN_S = 0.1
IDLE_POLL_S = 1.0
IDLE_READINGS = 2
IDLE_BLIND_S = 5.0  # an engine that cannot count: the old daemon's connections died with it, engines notice within this
_COUNT_S = 2.0


class Rounds:
    """Looks at one instance's engine; at once when somebody lost a request to it."""

    def __init__(self, instance: InstanceId, looks: Looks, pulses: Pulses, clock: Clock, post: Callable[[Happening], None]) -> None:
        self._instance = instance
        self._looks = looks
        self._pulses = pulses
        self._clock = clock
        self._post = post
        self._look = asyncio.Event()

    def look_now(self) -> None:
        """Do not wait for the next round."""
        self._look.set()

    async def go(
        self, launch: LaunchId, engine: Engine, endpoint: Endpoint, probe: Callable[[], Awaitable[Probe]], scope: TaskScope
    ) -> float:
        """Look until there is an end to it: reported, or, for an engine that looks healthy and is mute, the seconds of its silence.

        Evidence of death is an exit or a refused connection; a slow answer only stops new grants. A process on its way out may
        still take connections and break them: one such look after a lost request clears nobody.
        """
        refused, broken, slow = 0, False, False
        while True:
            asked = await self._wait_for_round()
            found = await self._looks.attempt(probe())
            if found is None:
                if asked:
                    self._look.set()
                await asyncio.sleep(AGAIN_S)
                continue
            refused = refused + 1 if found.answer is Answer.REFUSED else 0
            asleep = found.answer is Answer.ASLEEP and isinstance(engine, CanSleep)  # others wake with the next request
            if refused >= REFUSALS or asleep:
                self._post(EngineRefused(at_s=self._clock.monotonic(), instance=self._instance, launch=launch, asleep=asleep))
                return 0.0
            broken = asked and not broken and found.answer is Answer.BROKEN
            if refused or broken:
                self._look.set()  # look again at once
                await asyncio.sleep(AGAIN_S)
                continue
            late = found.answer is Answer.SILENT
            if late != slow or asked:
                slow = late
                self._post(EngineSlow(at_s=self._clock.monotonic(), instance=self._instance, launch=launch, slow=slow))
            if found.answer is Answer.READY and await self._is_mute(engine, endpoint, scope):
                return self._pulses.silent_s(self._instance)

    async def _is_mute(self, engine: Engine, endpoint: Endpoint, scope: TaskScope) -> bool:
        """Whether an engine that looks healthy says nothing to anybody; one that answers us is heard of."""
        if self._pulses.silent_s(self._instance) < SILENT_S:
            return False
        nothing = await self._looks.attempt(answers_nothing(engine, endpoint, scope))
        if nothing and self._pulses.silent_s(self._instance) >= SILENT_S:
            return True
        self._pulses.hear(self._instance)
        return False

    async def _wait_for_round(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_EVERY_S):
                await self._look.wait()
        except TimeoutError:
            return False
        self._look.clear()
        return True


async def until_idle(engine: object, endpoint: Endpoint, looks: Looks) -> None:
    """An adopted engine may still run the old daemon's requests: wait for its own count to be zero, twice."""
    if not isinstance(engine, CountsRequests):
        await asyncio.sleep(IDLE_BLIND_S)
        return
    zeros, blind = 0, 0
    while zeros < IDLE_READINGS and blind < IDLE_BLIND_S / IDLE_POLL_S:
        running = await looks.attempt(engine.running(endpoint, _COUNT_S))
        zeros = zeros + 1 if running == 0 else 0
        blind = blind + 1 if running is None else 0
        await asyncio.sleep(IDLE_POLL_S)
