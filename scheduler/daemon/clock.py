"""The only place that reads time."""

import time


class SystemClock:
    """The machine's clocks, as a :class:`scheduler.ports.clock.Clock`.

    ``monotonic`` is CLOCK_MONOTONIC, which counts from boot: values stored by one daemon can be compared by the next
    one on the same boot. It is also the time base of asyncio's timers.
    """

    def monotonic(self) -> float:
        """Seconds since boot, never going back."""
        return time.monotonic()

    def wall(self) -> float:
        """POSIX seconds, UTC; may jump when the host's clock is set."""
        return time.time()
