"""Time, as an argument."""

from typing import Protocol


class Clock(Protocol):
    """``monotonic`` survives a daemon restart (not a reboot); ``wall`` is for windows, schedules and display only."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back."""
        ...

    def wall(self) -> float:
        """POSIX seconds, UTC."""
        ...
