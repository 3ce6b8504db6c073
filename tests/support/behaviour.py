"""The knobs of a pretended engine. What they do is in ``tests/support/engine_life.py``, the one core.

``tests/support/world.py`` runs it in virtual time, ``fake_engine.py`` and ``fake_vllm.py`` run it as processes. Every knob's
default is a healthy engine, so a test turns what it is about and nothing else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from scheduler.domain.claims import Footprint, Source
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB

ALWAYS = 1_000_000
NEVER = math.inf


#: What vLLM answers when a wake finds no memory, and when its caches cannot be set to zero.
NO_ROOM = "CUDA Error: out of memory at csrc/cumem_allocator.cpp:163"
NO_ZERO = "'list' object has no attribute 'zero_'"
#: What it answers when the weights' loader cannot load twice.
NO_RELOAD = "Model reloading with `runai_streamer` format"


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
    sleepy_start_fails: StartFailure | None = None  # every start that is made with what sleeping needs
    preflight: StartFailure | None = None  # found before anything is started
    executable_missing: bool = False
    port_taken: int = 0  # a stranger listens on the chosen port and answers as if it were ready
    start_needs_share: float = 0.0  # ends at once with DEVICE_OOM when less than this share of a device is free
    profiling: str = ""  # a neighbour that gives memory back while this one starts: "abort" ends it, "inflate" grows its KV cache
    # memory
    loading_bytes: int = 0  # while loading, when that is more than awake
    awake_bytes: int = 4 * GIB
    growth_bps: float = 0.0  # more and more while awake
    growth_limit_bytes: int = 0
    kv_bytes: int = 0  # the part of awake_bytes that comes back with the tag kv_cache
    kv_min_bytes: int = 0  # it can be started with a KV cache of any size from this to kv_bytes; 0 = it sizes its cache itself
    kv_dtype: str = "auto"
    residue_bytes: Mapping[int, int] = field(default_factory=lambda: {1: GIB // 2, 2: GIB // 4})
    host_bytes: Mapping[int, int] = field(default_factory=dict)  # kept from the first sleep at that level to the end
    guess_bytes: int | None = None  # what the adapter estimates beforehand; None = the truth
    free_lag_s: float = 0.0  # memory given back is seen free this much later, by the driver
    free_delay_s: float = 0.0  # it gives memory back only so long after its reply to a sleep
    free_fraction: float = 1.0  # of what a sleep should free; the rest stays
    residue_growth_bytes: int = 0  # more residue at each sleep than at the one before
    host_copy_stays: bool = True  # its pinned memory is kept while it is awake
    # sleep
    levels: tuple[int, ...] = (1,)
    sleep_enabled: bool = True  # else it says that it sleeps, and frees nothing
    sleep_s: float = 0.5
    sleep_bps: float = 0.0  # level 1 takes as long as this many bytes a second need, instead of sleep_s
    first_sleep_extra_s: float = 0.0  # the first at level 1 allocates the pinned memory, too
    sleep_errors: int = 0
    sleep_hangs: int = 0
    sleep_frees_nothing: bool = False
    sleep_says_level: int | None = None  # what the reply says, whatever was asked
    sleep_while_running_crashes: bool = False  # 200, and two seconds later it is gone
    sleep_after_requests_crashes: bool = False  # once it has answered one, it dies when it is put to sleep
    # wake
    wake_s: float = 1.0
    wake_bps: float = 0.0  # instead of wake_s
    wake_errors: int = 0
    wake_error_text: str = NO_ROOM
    wake_hangs: int = 0
    wake_needs_room: bool = False  # a wake that finds no room fails and leaves a part mapped; else it takes it, and dies of it
    crash_after_cycles: int = 0  # dies in that wake; 0 = never
    kv_first_wake_crashes: bool = False  # at level 2
    reload_s: float = 0.0
    reload_error: str = ""  # of every reload of weights
    # after a wake
    wedged_after_wake: bool = False  # healthy, but requests hang
    garbage_levels: tuple[int, ...] = ()  # nonsense for ever after a sleep at one of these, reload or not
    fp8_kv_garbage: bool = False  # nonsense after level 2 when kv_dtype is an fp8
    stale_cache_garbage: bool = False  # nonsense after a wake until the prefix cache was reset
    first_generation_fails: bool = False  # after level 2 the first one is answered 500, then it ends
    dies_on_first_request_after_wake: bool = False
    slow_after_level_2: float = 1.0  # tokens take so many times as long
    # while it is not awake
    crash_on_request_while_asleep: bool = False
    crash_on_partial_wake_request: bool = False
    resumed_asleep_crashes: bool = True  # a request to a sleeper whose scheduler was resumed: the memory is gone
    rejects_while_paused: bool = True  # 503 at once, as 0.33 does; else requests hang, as in 0.32
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
            kv_bytes=self.kv_bytes if self.kv_min_bytes else 0,
            kv_min_bytes=self.kv_min_bytes,
            source=Source.ESTIMATED if guess is not None else Source.DECLARED,
        )


_DEFAULTS = {f.name: getattr(Behaviour(), f.name) for f in fields(Behaviour)}
