"""The control task: the only writer of the scheduling state."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from scheduler.orchestrator.effects import Effect
from scheduler.orchestrator.events import Happening, Tick
from scheduler.orchestrator.reducer import next_deadline, reduce
from scheduler.orchestrator.state import State
from scheduler.ports.clock import Clock

log = logging.getLogger(__name__)


class ControlLoop:
    """Takes events, reduces, applies; wakes itself at the next deadline.

    ``observe`` sees every event with the state after it (invariant checks in tests, debug checks in production);
    ``broken`` hears of an event that could not be carried through, which is a bug: tests end there.
    """

    def __init__(
        self,
        state: State,
        clock: Clock,
        apply: Callable[[list[Effect]], None],
        observe: Callable[[Happening, State], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self.state = state
        self._clock = clock
        self._apply = apply
        self._observe = observe
        self._broken = broken
        self._queue: deque[Happening] = deque()
        self._wake = asyncio.Event()
        self.turned_at_s = clock.monotonic()

    def post(self, event: Happening) -> None:
        """Queue an event; returns at once."""
        self._queue.append(event)
        self._wake.set()

    async def run(self) -> None:
        """For ever. An event that breaks the reducer is logged; the next one looks at everything again."""
        loop = asyncio.get_running_loop()
        while True:
            self._drain()
            due = next_deadline(self.state)
            timer = None if due is None else loop.call_later(max(0.0, due - self._clock.monotonic()), self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()
            self._wake.clear()
            if not self._queue:
                self._queue.append(Tick(at_s=self._clock.monotonic()))

    def _drain(self) -> None:
        while self._queue:
            self.step(self._queue.popleft())
        self.turned_at_s = self._clock.monotonic()

    def step(self, event: Happening) -> None:
        """One event, now. A bug must not make the daemon deaf: the next event looks at everything again."""
        try:
            effects = reduce(self.state, event, self._clock.wall())
        except Exception as error:  # noqa: BLE001 - logged there
            self._failed(event, "reduce", error)
            return
        try:
            self._apply(effects)
        except Exception as error:  # noqa: BLE001 - logged there
            self._failed(event, "apply", error)
        try:
            self._observe(event, self.state)
        except Exception as error:  # noqa: BLE001 - logged there
            self._failed(event, "observe", error)

    def _failed(self, event: Happening, step: str, error: Exception) -> None:
        log.error("event %s was not carried through (%s): %s", type(event).__name__, step, error, exc_info=error)
        self._broken(error)
