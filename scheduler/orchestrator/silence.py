"""Engines whose server is well and whose core is not: nothing comes back for the requests inside, and nothing for one of ours."""

import asyncio
from collections import Counter

from scheduler.domain.errors import HotseatError, Temporary
from scheduler.domain.ids import InstanceId
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_seconds
from scheduler.ports.clock import Clock
from scheduler.ports.engine import Attaches, CountsRequests, Endpoint, WarmsUp
from scheduler.telemetry.tasks import TaskScope

#: Nothing from an engine with requests inside for so long, and it is asked something: a long prompt takes less.
SILENT_S = 120.0
#: How long it may take over our own question, whose answer is a few tokens.
ANSWER_S = 60.0
COUNT_S = 5.0


class Pulses:
    """When each engine that has requests inside was last heard of: a byte of an answer, or an answer in full."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inside: Counter[InstanceId] = Counter()
        self._heard_s: dict[InstanceId, float] = {}

    def enter(self, instance: InstanceId) -> None:
        """A request goes to it; a silence begins with the first one at the earliest."""
        if not self._inside[instance]:
            self.hear(instance)
        self._inside[instance] += 1

    def leave(self, instance: InstanceId, *, answered: bool) -> None:
        """A request has ended."""
        self._inside[instance] -= 1
        if answered:
            self.hear(instance)
        if self._inside[instance] <= 0:
            del self._inside[instance]
            self._heard_s.pop(instance, None)

    def hear(self, instance: InstanceId) -> None:
        """Something came from it."""
        self._heard_s[instance] = self._clock.monotonic()

    def silent_s(self, instance: InstanceId) -> float:
        """Seconds since something came from it; 0 while nobody waits for anything."""
        return self._clock.monotonic() - self._heard_s[instance] if self._inside[instance] else 0.0


async def answers_nothing(engine: object, endpoint: Endpoint, scope: TaskScope) -> bool:
    """Whether an engine that looks healthy does not answer a request of ours.

    One that only has no turn for it is not dead: it counts our request among those that wait. Engines that cannot be asked, and
    those of somebody else, are believed.
    """
    if not isinstance(engine, WarmsUp) or isinstance(engine, Attaches):
        return False
    before = await _count(engine, endpoint)
    asking = scope.spawn(engine.warm_up(endpoint, ANSWER_S), "ask", expected=(HotseatError,))
    try:
        done, _ = await asyncio.wait([asking], timeout=ANSWER_S - 2 * COUNT_S)
        if not done:
            within = await _count(engine, endpoint)
            if before is not None and within is not None and within > before:
                return False
            await asyncio.wait([asking])
        return isinstance(asking.exception(), Temporary)
    finally:
        asking.cancel()  # whoever stops looking takes the question back


async def _count(engine: object, endpoint: Endpoint) -> int | None:
    return await engine.running(endpoint, COUNT_S) if isinstance(engine, CountsRequests) else None


def mute(silent_s: float) -> Reason:
    """Why it is ended."""
    text = f"nothing came from it for {human_seconds(silent_s)} with requests inside, nor to one of our own, though it looks healthy"
    return Reason(Code.ENGINE_LOST, text, "look at the end of its log for what its core hangs at; a request starts it afresh")
