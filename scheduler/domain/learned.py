"""What was measured on a model, and how it replaces guesses."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from scheduler.domain.claims import Footprint, Source

#: How many runs are remembered; the largest of them counts (close to a p95, and never below what was seen lately).
RUNS = 5
#: Room above the largest measurement, since a process still grows a little with its first requests.
GROWTH = 1.05
#: Wakes in a row that may fail for no lack of room before the level is denied: one may be bad luck.
MOST_FAILED_WAKES = 2

_N = TypeVar("_N", bound=float)


def _with(runs: tuple[_N, ...], value: _N) -> tuple[_N, ...]:
    longer: tuple[_N, ...] = (*runs, value)
    return longer[-RUNS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The last runs of one model on one kind of device, with one fingerprint and engine version: bytes and seconds, oldest first.

    ``kv_bytes`` is the KV cache it was started with, part of ``awake_bytes`` (0 = not ours to say). ``failed_wakes`` counts
    wakes per level that failed for no lack of room, since the last one that did not. ``sleepless`` is the engine version that
    only started without what sleeping needs (None = none did): it is started and stopped, and another version is tried anew.
    """

    fingerprint: str = ""
    version: str = ""
    kv_bytes: int = 0
    awake_bytes: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    start_s: tuple[float, ...] = ()
    stop_s: tuple[float, ...] = ()
    residue_bytes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    wake_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    sleep_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    host_bytes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    failed_wakes: Mapping[int, int] = field(default_factory=dict)
    denied_levels: tuple[int, ...] = ()  # sleep levels that do not work with this engine version and flags
    sleepless: str | None = None

    def renewed(self, version: str) -> "Learned":
        """What is left when the engine has another version: sizes and times of starts as a guess, nothing about sleep.

        A level that was denied is tried again, and is denied anew if it still does not work.
        """
        if version in ("", self.version):
            return self
        if not self.version:
            return replace(self, version=version)
        none: Mapping[int, tuple[float, ...]] = {}
        fresh = replace(self, version=version, wake_s=none, sleep_s=none, failed_wakes={}, denied_levels=())
        return replace(fresh, residue_bytes={}, host_bytes={})

    def with_start(self, seconds: float) -> "Learned":
        """After a start that became ready."""
        return replace(self, start_s=_with(self.start_s, seconds))

    def with_run(self, awake_bytes: int, peak_bytes: int, kv_bytes: int = 0) -> "Learned":
        """After a run was measured for the first time, awake and while starting. Runs with another KV cache are forgotten."""
        old = self if kv_bytes == self.kv_bytes else replace(self, awake_bytes=(), peak_bytes=(), kv_bytes=kv_bytes)
        return replace(old, awake_bytes=_with(old.awake_bytes, awake_bytes), peak_bytes=_with(old.peak_bytes, max(peak_bytes, awake_bytes)))

    def with_more(self, awake_bytes: int) -> "Learned":
        """The present run grew: its entry is raised, never lowered."""
        if not self.awake_bytes or awake_bytes <= self.awake_bytes[-1]:
            return self
        return replace(self, awake_bytes=(*self.awake_bytes[:-1], awake_bytes))

    def with_stop(self, seconds: float) -> "Learned":
        """After a stop whose bytes were seen free."""
        return replace(self, stop_s=_with(self.stop_s, seconds))

    def with_sleep(self, level: int, seconds: float | None, residue_bytes: int) -> "Learned":
        """After a confirmed sleep; ``seconds`` None = nobody saw when it was through."""
        timed = {} if seconds is None else {level: _with(self.sleep_s.get(level, ()), seconds)}
        return replace(
            self,
            sleep_s={**self.sleep_s, **timed},
            residue_bytes={**self.residue_bytes, level: _with(self.residue_bytes.get(level, ()), residue_bytes)},
        )

    def with_wake(self, level: int, seconds: float) -> "Learned":
        """After a wake that ended ready."""
        timed = {**self.wake_s, level: _with(self.wake_s.get(level, ()), seconds)}
        return replace(self, wake_s=timed, failed_wakes={n: c for n, c in self.failed_wakes.items() if n != level})

    def with_host(self, level: int, host_bytes: int) -> "Learned":
        """After a sleeper's copy in host memory was measured."""
        return replace(self, host_bytes={**self.host_bytes, level: _with(self.host_bytes.get(level, ()), host_bytes)})

    def with_failed_wake(self, level: int) -> "Learned":
        """After a wake that failed for no lack of room; the second one in a row denies the level."""
        failed = self.failed_wakes.get(level, 0) + 1
        counted = replace(self, failed_wakes={**self.failed_wakes, level: failed})
        return counted.with_denied(level) if failed >= MOST_FAILED_WAKES else counted

    def with_sleepless(self, sleepless: bool) -> "Learned":
        """After a start that went well: with what sleeping needs, or only without it."""
        return replace(self, sleepless=self.version if sleepless else None)

    def tried_again(self) -> "Learned":
        """An operator wants to know: the next start is made with what sleeping needs, as if the engine were another version."""
        return self if self.sleepless is None else replace(self, sleepless=f"not {self.version}")

    def with_denied(self, level: int) -> "Learned":
        """After an ineffective sleep, or a wake to wrong answers: this level is not tried again with this version and fingerprint."""
        return self if level in self.denied_levels else replace(self, denied_levels=(*self.denied_levels, level))


def combine(guess: Footprint, learned: Learned) -> Footprint:
    """The footprint to plan with: measurements where there are any, the guess elsewhere."""
    guess = replace(guess, host_bytes={**guess.host_bytes, **{level: max(runs) for level, runs in learned.host_bytes.items()}})
    if not learned.awake_bytes:
        return _timed(guess, learned)
    awake = int(max(learned.awake_bytes) * GROWTH)
    measured = replace(
        guess,
        awake_bytes=awake,
        start_peak_bytes=max(awake, max(learned.peak_bytes, default=0)),
        residue_bytes={**guess.residue_bytes, **{level: max(runs) for level, runs in learned.residue_bytes.items()}},
        kv_bytes=learned.kv_bytes or guess.kv_bytes,
        kv_min_bytes=min(guess.kv_min_bytes, learned.kv_bytes or guess.kv_bytes),
        source=Source.MEASURED,
    )
    return _timed(measured, learned)


def _timed(footprint: Footprint, learned: Learned) -> Footprint:
    return replace(
        footprint,
        start_s=max(learned.start_s, default=footprint.start_s),
        stop_s=max(learned.stop_s, default=footprint.stop_s),
        wake_s={**footprint.wake_s, **{level: max(runs) for level, runs in learned.wake_s.items()}},
        sleep_s={**footprint.sleep_s, **{level: max(runs) for level, runs in learned.sleep_s.items()}},
    )
