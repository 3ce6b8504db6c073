"""How a pretended engine behaves: one pure core, driven by time alone.

``tests/support/world.py`` runs it in virtual time; a process-level fake can run the very same core on the real clock.
Nothing in here waits, draws or reads a clock: every method is told what time it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.engine import Answer

ALWAYS = 1_000_000
NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """A start that ends ``after_s`` seconds after exec with ``exit_code`` and a decisive log line of ``code``."""

    code: Code
    after_s: float = 1.0
    exit_code: int = 1
    text: str = "the engine could not start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child of the engine's leader. ``share`` of the engine's memory is held by it."""

    share: float = 0.0
    ignores_term: bool = False
    outlives: bool = False  # lives on when the leader dies; else it ends with it
    keeps_token: bool = True  # False = it overwrote its environment block


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Knobs of one engine; seconds, and bytes per device. Counts say how many of the first tries go wrong."""

    # start
    start_s: float = 3.0  # from exec to Ready; NEVER = it never becomes ready
    stalls: bool = False  # while loading it writes no log, reads nothing and takes no more memory, as one that is NEVER ready
    listens_early: bool = False  # answers "starting" while loading, as llama.cpp does; else the connection is refused
    start_failures: tuple[StartFailure, ...] = ()  # what happens to the first, second, ... start
    fails_always: StartFailure | None = None  # every start after those
    preflight: StartFailure | None = None  # found before anything is started
    executable_missing: bool = False
    port_taken: int = 0  # a stranger listens on the chosen port and answers as if it were ready
    # memory
    loading_bytes: int = 0  # while loading, when that is more than awake
    awake_bytes: int = 4 * GIB
    growth_bps: float = 0.0  # more and more while awake
    growth_limit_bytes: int = 0
    residue_bytes: Mapping[int, int] = field(default_factory=lambda: {1: GIB // 2, 2: GIB // 4})
    host_bytes: Mapping[int, int] = field(default_factory=dict)  # kept from the first sleep at that level to the end
    guess_bytes: int | None = None  # what the adapter estimates beforehand; None = the truth
    free_lag_s: float = 0.0  # memory given back is seen free this much later
    # sleep
    levels: tuple[int, ...] = (1,)
    sleep_s: float = 0.5
    wake_s: float = 1.0
    sleep_errors: int = 0
    sleep_hangs: int = 0
    sleep_frees_nothing: bool = False
    sleep_says_level: int | None = None  # what the reply says, whatever was asked
    wake_errors: int = 0
    wake_hangs: int = 0
    # the end
    crash_after_s: float = NEVER  # after it became ready
    silent_after_s: float = NEVER  # after it became ready: connections are accepted, nothing is answered
    term_s: float = 0.2  # from TERM to exit; NEVER = it ignores TERM
    children: tuple[Child, ...] = ()

    def __repr__(self) -> str:
        """Only what differs from the default: property tests print many of these."""
        plain = _DEFAULTS
        told = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != plain.get(f.name)]
        return f"Behaviour({', '.join(told)})"

    def failure_of(self, attempt: int) -> StartFailure | None:
        """What goes wrong with start number ``attempt`` (from 0); None = nothing."""
        return self.start_failures[attempt] if attempt < len(self.start_failures) else self.fails_always

    def estimate(self) -> Footprint:
        """What an adapter says before anything was measured: the truth, or ``guess_bytes`` for all it knows."""
        guess = self.guess_bytes
        return Footprint(
            awake_bytes=guess if guess is not None else self.awake_bytes,
            start_peak_bytes=0 if guess is not None else max(self.loading_bytes, self.awake_bytes),
            residue_bytes=dict(self.residue_bytes),
            host_bytes={level: self.host_bytes.get(level, 0) for level in self.levels},
            start_s=self.start_s if self.start_s < NEVER else 30.0,
            weights_bytes=self.awake_bytes,
            source=Source.ESTIMATED if guess is not None else Source.DECLARED,
        )


_DEFAULTS = {f.name: getattr(Behaviour(), f.name) for f in fields(Behaviour)}


class Stage(StrEnum):
    """What the engine is doing."""

    LOADING = "loading"
    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How its leader ended: an exit code or a signal, and the decisive log line's code and text."""

    exit_code: int | None = None
    signal: int | None = None
    code: Code = Code.NONE
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer to a control call: at ``at_s`` (NEVER = none), an ``error`` or the ``level`` it claims."""

    at_s: float
    level: int = 0
    error: str = ""


class EngineLife:
    """One run of an engine, from exec to its end. Call ``advance`` before looking at it."""

    def __init__(self, behaviour: Behaviour, attempt: int, now_s: float) -> None:
        self.behaviour = behaviour
        self.stage = Stage.LOADING
        self.level: int | None = None
        self.ended: Ended | None = None
        self.refuses = False  # at request: nobody listens any more, but the process lives
        self.silent = False  # at request: accepts connections and says nothing
        self._failure = behaviour.failure_of(attempt)
        if attempt < behaviour.port_taken:
            self._failure = StartFailure(code=Code.PORT_TAKEN, after_s=behaviour.start_s, text="address already in use")
        self._since_s = now_s
        self._ready_s = NEVER
        self._done_s = NEVER
        self._term_at_s = NEVER
        self._slept: set[int] = set()
        self._sleeps = self._wakes = 0
        self._partial = False
        self._wake_fails = False

    # --- time -------------------------------------------------------------------------------------------------------

    def next_change_s(self) -> float:
        """When it changes by itself; NEVER = not until something is asked of it."""
        return min(self._due())

    def _due(self) -> tuple[float, float, float]:
        own = self._done_s
        if self.stage is Stage.LOADING:
            own = self._since_s + (self._failure.after_s if self._failure is not None else self.behaviour.start_s)
        if self.stage is Stage.ENDED:
            return NEVER, NEVER, NEVER
        return own, self._ready_s + self.behaviour.crash_after_s, self._term_at_s

    def is_busy(self) -> bool:
        """Whether somebody who looks would see it do something while it loads."""
        return self.stage is Stage.LOADING and not self.behaviour.stalls and self.behaviour.start_s < NEVER

    def advance(self, now_s: float) -> bool:
        """Let everything happen that is due; True when something did."""
        changed = False
        while (due := self.next_change_s()) <= now_s:
            self._change(due)
            changed = True
        return changed

    def _change(self, at_s: float) -> None:
        _, crash_s, term_s = self._due()
        if at_s == term_s:
            self.end(Ended(exit_code=0))
        elif at_s == crash_s:
            self.end(Ended(signal=11, code=Code.CRASHED, text="segmentation fault"))
        elif self.stage is Stage.LOADING and self._failure is not None:
            failure = self._failure
            self.end(Ended(exit_code=failure.exit_code, code=failure.code, text=failure.text))
        elif self.stage is Stage.FALLING_ASLEEP:
            self._become(Stage.ASLEEP, at_s)
        elif self.stage is Stage.WAKING and self._wake_fails:
            self._partial = True
            self._become(Stage.ASLEEP, at_s)
        else:
            self._partial = False
            self.level = None
            if self.stage is Stage.LOADING:
                self._ready_s = at_s
            self._become(Stage.AWAKE, at_s)

    def _become(self, stage: Stage, at_s: float) -> None:
        self.stage, self._since_s, self._done_s = stage, at_s, NEVER

    # --- what is asked of it ----------------------------------------------------------------------------------------

    def sleep(self, now_s: float, level: int) -> Reply:
        """Asked to sleep. On a sleeper nothing happens, but the reply says the level that was asked for."""
        self.advance(now_s)
        said = self.behaviour.sleep_says_level if self.behaviour.sleep_says_level is not None else level
        if self.stage is Stage.ASLEEP:
            return Reply(at_s=now_s, level=said)
        if self.stage is not Stage.AWAKE:
            return Reply(at_s=now_s, error=f"cannot sleep while {self.stage}")
        self._sleeps += 1
        if self._sleeps <= self.behaviour.sleep_errors:
            return Reply(at_s=now_s, error="sleep failed: internal error")
        if self._sleeps <= self.behaviour.sleep_errors + self.behaviour.sleep_hangs:
            return Reply(at_s=NEVER)
        self._become(Stage.FALLING_ASLEEP, now_s)
        self._done_s = now_s + self.behaviour.sleep_s
        self.level = level
        self._slept.add(level)
        return Reply(at_s=self._done_s, level=said)

    def wake(self, now_s: float) -> Reply:
        """Asked to wake. A failed wake leaves half of the memory mapped and the engine asleep."""
        self.advance(now_s)
        if self.stage is Stage.AWAKE:
            return Reply(at_s=now_s)
        if self.stage is not Stage.ASLEEP:
            return Reply(at_s=now_s, error=f"cannot wake while {self.stage}")
        self._wakes += 1
        self._wake_fails = self._wakes <= self.behaviour.wake_errors
        if not self._wake_fails and self._wakes <= self.behaviour.wake_errors + self.behaviour.wake_hangs:
            return Reply(at_s=NEVER)
        self._become(Stage.WAKING, now_s)
        self._done_s = now_s + self.behaviour.wake_s
        return Reply(at_s=self._done_s, error="wake failed: out of memory" if self._wake_fails else "")

    def term(self, now_s: float) -> None:
        """It got TERM."""
        self.advance(now_s)
        self._term_at_s = min(self._term_at_s, now_s + self.behaviour.term_s)

    def end(self, how: Ended) -> None:
        """It ends now."""
        if self.stage is not Stage.ENDED:
            self.stage, self.ended = Stage.ENDED, how

    # --- what is seen of it -----------------------------------------------------------------------------------------

    def answer(self, now_s: float) -> Answer:
        """What a probe sees."""
        if self.stage is Stage.ENDED or self.refuses:
            return Answer.REFUSED
        if self.stage is Stage.LOADING:
            return Answer.STARTING if self.behaviour.listens_early else Answer.REFUSED
        if self.silent or now_s >= self._ready_s + self.behaviour.silent_after_s:
            return Answer.SILENT
        return Answer.READY if self.stage is Stage.AWAKE else Answer.ASLEEP

    def device_bytes(self, now_s: float) -> int:
        """Bytes it holds on each of its devices."""
        knobs = self.behaviour
        if self.stage is Stage.ENDED:
            return 0
        if self.stage is Stage.LOADING:
            return max(knobs.loading_bytes, knobs.awake_bytes)
        grown = min(knobs.growth_limit_bytes, int(knobs.growth_bps * max(0.0, now_s - self._ready_s)))
        if self.stage is not Stage.ASLEEP or knobs.sleep_frees_nothing:
            return knobs.awake_bytes + grown
        residue = knobs.residue_bytes.get(self.level or 1, 0)
        return max(residue, knobs.awake_bytes // 2) if self._partial else residue

    def host_bytes(self) -> int:
        """Bytes of host memory it holds for its copies."""
        if self.stage is Stage.ENDED:
            return 0
        return max((self.behaviour.host_bytes.get(level, 0) for level in self._slept), default=0)
