"""How a pretended engine lives: one pure core, driven by time alone.

Nothing in here waits, draws or reads a clock: every method is told what time it is. What it holds of a device's memory is
either taken for granted (nobody is asked) or asked of a :class:`Ground` that may refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from scheduler.domain.reasons import Code
from scheduler.ports.engine import Answer
from tests.support.behaviour import NEVER, NO_ROOM, Behaviour, StartFailure

WEIGHTS, KV_CACHE, SCHEDULING = "weights", "kv_cache", "scheduling"
#: After a sleep with requests inside, an engine that does not stand it is gone this much later.
CRASH_LATER_S = 2.0
SEGFAULT = 11


class Stage(StrEnum):
    """What the engine is doing."""

    LOADING = "loading"
    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    ENDED = "ended"


class Fate(StrEnum):
    """What becomes of an inference request that arrives now."""

    ANSWERED = "answered"
    GARBAGE = "garbage"  # answered with nonsense
    QUEUED = "queued"  # until it is awake; then it is to be asked again
    UNAVAILABLE = "unavailable"  # 503: paused
    HANGS = "hangs"
    FAILS_AND_ENDS = "fails_and_ends"  # 500, and the engine is gone after it
    ENDS = "ends"  # the engine is gone already


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


class Ground(Protocol):
    """The memory under an engine."""

    def take(self, size: int) -> bool:
        """Hold ``size`` bytes on each of its devices from now on; False = refused, and nothing changed."""
        ...

    def squeeze(self, size: int) -> int:
        """Hold as much of ``size`` bytes as there is room for on each of its devices; returns how much that is."""
        ...

    def others(self) -> int:
        """Bytes that others use of the device where they use most."""
        ...


CRASHED = Ended(signal=SEGFAULT, code=Code.CRASHED, text="segmentation fault")
ILLEGAL = Ended(exit_code=1, code=Code.CRASHED, text="CUDA error: an illegal memory access was encountered")


class EngineLife:
    """One run of an engine, from exec to its end. Call ``advance`` before looking at it."""

    def __init__(self, behaviour: Behaviour, attempt: int, now_s: float, ground: Ground | None = None) -> None:
        self.behaviour = behaviour
        self.stage = Stage.LOADING
        self.level: int | None = None
        self.ended: Ended | None = None
        self.refuses = False  # at request: nobody listens any more, but the process lives
        self.silent = False  # at request: accepts connections and says nothing
        self.paused = False  # its scheduler; a sleep pauses it, too
        self.gone_tags: set[str] = set()  # kinds of memory that are not mapped
        self.inflated_bytes = 0  # too much KV cache, of a profiling that a neighbour disturbed
        self._ground = ground
        self._failure = behaviour.failure_of(attempt)
        if attempt < behaviour.port_taken:
            self._failure = StartFailure(code=Code.PORT_TAKEN, after_s=behaviour.start_s, text="address already in use")
        self._others = ground.others() if ground is not None and behaviour.profiling else 0
        self._since_s = now_s
        self._ready_s = NEVER
        self._done_s = NEVER
        self._term_at_s = NEVER
        self._crash_at_s = NEVER
        self._falls_at_s = NEVER  # when memory is given back that is late
        self._slept: set[int] = set()
        self._sleeps = self._wakes = self._cycles = 0
        self._partial_bytes = 0  # what a failed wake left mapped
        self._wake_fails = self._refused = False
        self._rejects = False
        self._waking_tags: frozenset[str] = frozenset()
        self._weights_lost = self._spoiled = self._stale_cache = self._wedged = False
        self._fresh = False  # no request since a wake ...
        self._fresh_from = 0  # ... from this level
        self._slowed = self._answered = False

    # --- time -------------------------------------------------------------------------------------------------------

    def next_change_s(self) -> float:
        """When it changes by itself; NEVER = not until something is asked of it."""
        return min(self._due())

    def _due(self) -> tuple[float, float, float, float]:
        own = self._done_s
        if self.stage is Stage.LOADING:
            own = self._since_s + (self._failure.after_s if self._failure is not None else self.behaviour.start_s)
        if self.stage is Stage.ENDED:
            return NEVER, NEVER, NEVER, NEVER
        crash_s = min(self._ready_s + self.behaviour.crash_after_s, self._crash_at_s)
        return own, crash_s, self._term_at_s, self._falls_at_s

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
        _, crash_s, term_s, falls_s = self._due()
        if at_s == term_s:
            self.end(Ended(exit_code=0))
        elif at_s == crash_s:
            self.end(CRASHED)
        elif at_s == falls_s:
            self._falls_at_s = NEVER
        elif self.stage is Stage.LOADING and self._failure is not None:
            failure = self._failure
            self.end(Ended(exit_code=failure.exit_code, code=failure.code, text=failure.text))
        elif self.stage is Stage.FALLING_ASLEEP:
            self._fall_asleep(at_s)
        elif self.stage is Stage.WAKING:
            self._wake_up(at_s)
        elif self._profiled():
            self._ready_s = at_s
            self._become(Stage.AWAKE, at_s)

    def _profiled(self) -> bool:
        """It takes for its own doing what its neighbours did meanwhile; False = it gave up."""
        if self._ground is None or not self.behaviour.profiling:
            return True
        given_back = self._others - self._ground.others()
        if given_back > 0 and self.behaviour.profiling == "abort":
            text = f"Error in memory profiling. Others have released {given_back} bytes meanwhile."
            self.end(Ended(exit_code=1, code=Code.CRASHED, text=text))
            return False
        self.inflated_bytes = max(0, given_back)
        return True

    def _fall_asleep(self, at_s: float) -> None:
        self.gone_tags = {WEIGHTS, KV_CACHE}
        if self.behaviour.free_delay_s > 0:
            self._falls_at_s = at_s + self.behaviour.free_delay_s
        if self._frees():
            self._weights_lost |= self.level == 2
            self._spoiled |= self.level in self.behaviour.garbage_levels
            self._spoiled |= self.level == 2 and self.behaviour.fp8_kv_garbage and self.behaviour.kv_dtype.startswith("fp8")
            self._stale_cache = self.behaviour.stale_cache_garbage
            self._slowed |= self.level == 2 and self.behaviour.slow_after_level_2 != 1.0
        self._become(Stage.ASLEEP, at_s)

    def _wake_up(self, at_s: float) -> None:
        if self._wake_fails:
            self._become(Stage.ASLEEP, at_s)
            return
        self.gone_tags -= self._waking_tags
        if self.gone_tags:
            self._become(Stage.ASLEEP, at_s)
            return
        self._cycles += 1
        if self._cycles == self.behaviour.crash_after_cycles:
            self.end(ILLEGAL)
            return
        self._fresh, self._fresh_from = True, self.level or 0
        self._wedged = self.behaviour.wedged_after_wake
        if not self.behaviour.host_copy_stays:
            self._slept.clear()
        self._partial_bytes, self.level, self.paused = 0, None, False
        self._become(Stage.AWAKE, at_s)

    def _become(self, stage: Stage, at_s: float) -> None:
        self.stage, self._since_s, self._done_s = stage, at_s, NEVER

    def fail_start(self, failure: StartFailure) -> None:
        """Its start comes to this instead."""
        self._failure = failure

    # --- what is asked of it ----------------------------------------------------------------------------------------

    def sleep(self, now_s: float, level: int, running: int = 0) -> Reply:
        """Asked to sleep with ``running`` requests inside. On a sleeper nothing happens, but the reply says the level asked for."""
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
        self.paused, self._rejects = True, False
        if self._answered and self.behaviour.sleep_after_requests_crashes:
            self.end(ILLEGAL)
            return Reply(at_s=now_s, error=ILLEGAL.text)
        if level == 0:
            return Reply(at_s=now_s, level=said)
        takes_s = self._sleep_takes_s(level)
        self._become(Stage.FALLING_ASLEEP, now_s)
        self._done_s = now_s + takes_s
        self.level = level
        self._slept.add(level)
        if running and self.behaviour.sleep_while_running_crashes:
            self._crash_at_s = self._done_s + CRASH_LATER_S
        return Reply(at_s=self._done_s, level=said)

    def _sleep_takes_s(self, level: int) -> float:
        knobs = self.behaviour
        takes_s = self._movable(level) / knobs.sleep_bps if knobs.sleep_bps and level == 1 else knobs.sleep_s
        return takes_s + (knobs.first_sleep_extra_s if level == 1 and 1 not in self._slept else 0.0)

    def wake(self, now_s: float, tags: Sequence[str] | None = None) -> Reply:
        """Asked to wake, or to map the memory of some ``tags`` only. A failed wake leaves a part of it mapped and the engine asleep.

        One tag that is not asleep makes the whole call do nothing. Look at ``stage`` afterwards: with tags it may sleep on.
        """
        self.advance(now_s)
        if self.stage is Stage.AWAKE:
            self.paused = False
            return Reply(at_s=now_s)
        if self.stage is not Stage.ASLEEP:
            return Reply(at_s=now_s, error=f"cannot wake while {self.stage}")
        wanted = frozenset(tags or ()) - {SCHEDULING} if tags is not None else frozenset(self.gone_tags)
        if not wanted <= self.gone_tags or not wanted:
            return Reply(at_s=now_s)
        if self.level == 2 and self.behaviour.kv_first_wake_crashes and KV_CACHE in wanted and WEIGHTS in self.gone_tags - wanted:
            self.end(ILLEGAL)
            return Reply(at_s=now_s, error=ILLEGAL.text)
        self._wakes += 1
        return self._begin_wake(now_s, wanted)

    def _begin_wake(self, now_s: float, wanted: frozenset[str]) -> Reply:
        knobs = self.behaviour
        self._wake_fails = self._wakes <= knobs.wake_errors
        error = knobs.wake_error_text
        if not self._wake_fails and self._wakes <= knobs.wake_errors + knobs.wake_hangs:
            return Reply(at_s=NEVER)
        held = self.device_bytes(now_s)
        takes_s = self._wake_takes_s(wanted)
        self._become(Stage.WAKING, now_s)
        self._waking_tags, self._refused = wanted, False
        if knobs.wake_needs_room and self._ground is not None and not self._wake_fails and not self._ground.take(self.device_bytes(now_s)):
            self._wake_fails, error = True, NO_ROOM
            self._partial_bytes = self._ground.squeeze((held + self.device_bytes(now_s)) // 2)
            self._refused = True
        elif self._wake_fails and error == NO_ROOM:
            self._partial_bytes = knobs.awake_bytes // 2
        self._done_s = now_s + takes_s
        return Reply(at_s=self._done_s, error=f"Call to wake_up method failed: {error}" if self._wake_fails else "")

    def _wake_takes_s(self, wanted: frozenset[str]) -> float:
        if WEIGHTS not in wanted:
            return 0.0
        return self._movable(self.level or 1) / self.behaviour.wake_bps if self.behaviour.wake_bps else self.behaviour.wake_s

    def _movable(self, level: int) -> int:
        return self.behaviour.awake_bytes - self.behaviour.kv_bytes - self.behaviour.residue_bytes.get(level, 0)

    def reload(self, now_s: float) -> Reply:
        """Asked to read its weights from disk again, into memory that has to be mapped."""
        self.advance(now_s)
        if self.behaviour.reload_error:
            return Reply(at_s=now_s, error=self.behaviour.reload_error)
        if WEIGHTS in self.gone_tags and self._frees():
            self.end(ILLEGAL)
            return Reply(at_s=now_s, error=ILLEGAL.text)
        self._weights_lost = False
        return Reply(at_s=now_s + self.behaviour.reload_s)

    def discard(self, now_s: float, tag: str) -> None:
        """Give back one kind of memory, without a copy."""
        self.gone_tags.add(tag)
        self._become(Stage.ASLEEP, now_s)

    def wedge(self) -> None:
        """From now on requests hang, and nothing else tells."""
        self._wedged = True

    def reset_cache(self) -> None:
        """Its prefix cache is emptied."""
        self._stale_cache = False

    def pause(self, *, rejects: bool = True) -> None:
        """Its scheduler takes no step more; new requests are refused, where its version does that, or wait."""
        self.paused, self._rejects = True, rejects

    def resume(self) -> None:
        """Its scheduler goes on, whether the memory is there or not: nothing guards it."""
        self.paused = False

    def request(self, now_s: float) -> Fate:
        """What an inference request that arrives now meets; some end the engine."""
        self.advance(now_s)
        knobs = self.behaviour
        if self.stage is Stage.ENDED:
            return Fate.ENDS
        if self.stage is not Stage.AWAKE:
            return self._request_asleep()
        if self.paused:
            return Fate.UNAVAILABLE if self._rejects and knobs.rejects_while_paused else Fate.QUEUED
        if self._wedged:
            return Fate.HANGS
        fresh, self._fresh = self._fresh, False
        self._answered = True
        if fresh and knobs.dies_on_first_request_after_wake:
            self.end(ILLEGAL)
            return Fate.ENDS
        if fresh and self._fresh_from == 2 and knobs.first_generation_fails:
            return Fate.FAILS_AND_ENDS
        return Fate.GARBAGE if self.speaks_garbage else Fate.ANSWERED

    def _request_asleep(self) -> Fate:
        knobs = self.behaviour
        partly = self.stage is Stage.ASLEEP and len(self.gone_tags) == 1
        deadly = (
            knobs.crash_on_request_while_asleep
            or (partly and knobs.crash_on_partial_wake_request)
            or (not self.paused and knobs.resumed_asleep_crashes and self._frees())
        )
        if deadly and self.stage is not Stage.LOADING:
            self.end(ILLEGAL)
            return Fate.ENDS
        return Fate.QUEUED if self.paused or self.stage is Stage.LOADING else Fate.ANSWERED

    def term(self, now_s: float) -> None:
        """It got TERM."""
        self.advance(now_s)
        self._term_at_s = min(self._term_at_s, now_s + self.behaviour.term_s)

    def end(self, how: Ended) -> None:
        """It ends now."""
        if self.stage is not Stage.ENDED:
            self.stage, self.ended = Stage.ENDED, how

    # --- what is seen of it -----------------------------------------------------------------------------------------

    @property
    def speaks_garbage(self) -> bool:
        """Whether what it says is nonsense."""
        return self._weights_lost or self._spoiled or self._stale_cache

    @property
    def slowness(self) -> float:
        """How many times as long a token takes as it should."""
        return self.behaviour.slow_after_level_2 if self._slowed else 1.0

    @property
    def is_sleeping(self) -> bool:
        """What it says about itself: paused, or not all of its memory is mapped."""
        return self.paused or bool(self.gone_tags)

    def answer(self, now_s: float) -> Answer:
        """What a probe sees."""
        if self.stage is Stage.ENDED or self.refuses:
            return Answer.REFUSED
        if self.stage is Stage.LOADING:
            return Answer.STARTING if self.behaviour.listens_early else Answer.REFUSED
        if self.silent or now_s >= self._ready_s + self.behaviour.silent_after_s:
            return Answer.SILENT
        return Answer.READY if self.stage is Stage.AWAKE and not self.paused else Answer.ASLEEP

    def _frees(self) -> bool:
        return self.behaviour.sleep_enabled and not self.behaviour.sleep_frees_nothing

    def device_bytes(self, now_s: float) -> int:
        """Bytes it holds on each of its devices."""
        knobs = self.behaviour
        if self.stage is Stage.ENDED:
            return 0
        if self.stage is Stage.LOADING:
            return max(knobs.loading_bytes, knobs.awake_bytes)
        grown = min(knobs.growth_limit_bytes, int(knobs.growth_bps * max(0.0, now_s - self._ready_s)))
        full = knobs.awake_bytes + grown + self.inflated_bytes
        gone = self.gone_tags if self.stage is Stage.ASLEEP or self._refused else self.gone_tags - self._waking_tags
        if self.stage not in (Stage.ASLEEP, Stage.WAKING) or not gone or not self._frees() or now_s < self._falls_at_s < NEVER:
            return full
        return max(self._partial_bytes, self._asleep_bytes(full, gone))

    def _asleep_bytes(self, full: int, gone: set[str]) -> int:
        knobs = self.behaviour
        residue = knobs.residue_bytes.get(self.level or 1, 0) + knobs.residue_growth_bytes * max(0, self._cycles)
        held = full - int(knobs.free_fraction * (full - min(residue, full)))
        if gone == {KV_CACHE}:
            return max(held, full - knobs.kv_bytes)
        return held + knobs.kv_bytes if gone == {WEIGHTS} else held

    def host_bytes(self) -> int:
        """Bytes of host memory it holds for its copies."""
        if self.stage is Stage.ENDED:
            return 0
        return max((self.behaviour.host_bytes.get(level, 0) for level in self._slept), default=0)
