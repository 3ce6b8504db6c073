"""What an engine adapter must supply: a small required interface, optional abilities apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from scheduler.domain.claims import Footprint
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import DeviceId
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Reason
from scheduler.ports.launcher import ExitInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What the daemon decided for one launch.

    ``device_index`` is in PCI order, ``device_uuid`` beside it; ``by_uuid`` = only the uuid names them (MIG).
    ``kv_bytes`` and ``claim_bytes`` (all that it may take) are per device, ``capacity_bytes`` is of the smallest of them.
    """

    port: int
    devices: tuple[DeviceId, ...]
    device_index: tuple[int, ...] = ()
    device_uuid: tuple[str, ...] = ()
    by_uuid: bool = False
    device_kind: str = ""
    capacity_bytes: int = 0
    claim_bytes: int = 0
    kv_bytes: int | None = None
    api_key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """How to run it. ``env`` holds only what the adapter adds to the built environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a launched engine answers, with the facts of its launch record (never today's config)."""

    base_url: str  # "http://127.0.0.1:PORT"
    served_model: str  # the value of "model" that the engine expects in request bodies
    ready_path: str = ""
    api_key: str = ""
    version: str = ""
    sleep_paths: tuple[tuple[str, float], ...] = ()  # (path, timeout_s), engine `command` only
    wake_paths: tuple[tuple[str, float], ...] = ()
    golden: str = ""  # what :class:`WarmsUp` returned after its start; empty = nothing to compare with


class Answer(StrEnum):
    """What a probe saw."""

    STARTING = "starting"  # listens, still loading
    READY = "ready"
    ASLEEP = "asleep"
    REFUSED = "refused"  # nobody listens
    SILENT = "silent"  # listens, but no answer in time
    BROKEN = "broken"  # answers, but not as this engine does


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A probe's finding; ``level`` only with ASLEEP (None = the engine cannot tell)."""

    answer: Answer
    level: int | None = None
    version: str = ""
    detail: str = ""


class Engine(Protocol):
    """One engine type. Stateless: everything about a running engine is in its Endpoint."""

    @property
    def name(self) -> str:
        """The adapter's type name, as in the configuration."""
        ...

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """Kinds of device this engine runs on, preferred first."""
        ...

    def owned_flags(self) -> Mapping[str, str]:
        """Flags the adapter sets itself -> the configuration key to use instead."""
        ...

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        """Sleep levels that can be tried for this model, shallowest first; empty = stop and start only."""
        ...

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        """The argv and extra environment of a launch. Pure; raises Permanent (executable_missing, ...)."""
        ...

    def served_model(self, spec: ModelSpec) -> str:
        """The model name the engine expects in request bodies."""
        ...

    async def preflight(self, spec: ModelSpec) -> None:
        """Cheap checks just before a launch; raises Permanent with model_missing, model_unreadable, ..."""
        ...

    async def estimate(self, spec: ModelSpec) -> Footprint:
        """Sizes before anything was measured, from the model's own files. Never raises for a missing file: guesses."""
        ...

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        """One cheap look that never wakes a sleeper and never raises."""
        ...

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        """Why a start failed or an engine died: code, sentence, fix, and the decisive log line."""
        ...


@runtime_checkable
class CanSleep(Protocol):
    """Ability: sleep and wake on demand."""

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        """Put it to sleep; returns the level the engine says it reached. Raises Temporary or Permanent."""
        ...

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        """Wake it from ``level``; returns when it answered a real probe.

        Raises Temporary ``wake_failed``, Temporary ``device_oom`` when it found no room (it is still asleep, parts of its memory
        may be mapped), and Permanent ``output_wrong`` when it answers, but not what it did before it slept: it must not serve.
        """
        ...


@runtime_checkable
class Attaches(Protocol):
    """Ability: the engine is somebody else's process. It is found by its port, never started and never stopped."""

    def port(self, spec: ModelSpec) -> int:
        """The loopback port it listens on. Raises Permanent when the model names none."""
        ...


@runtime_checkable
class RefusesVariables(Protocol):
    """Ability: there are environment variables with which it does not start its engine, which a check of the configuration finds."""

    def refused_variable(self, spec: ModelSpec) -> tuple[str, HotseatError] | None:
        """The first such variable of a model that sits on a card, and why; None = there is none."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """Ability: one request after a cold start, so that neither the first caller nor each wake pays for it."""

    async def warm_up(self, endpoint: Endpoint, timeout_s: float) -> str:
        """Returns the answer to compare with after each wake, as the engine's own text; empty = it has none.

        Raises Temporary when the engine does not answer, Permanent when it answers nothing that can be used.
        """
        ...


@runtime_checkable
class CountsRequests(Protocol):
    """Ability: say how many requests run or wait inside the engine."""

    async def running(self, endpoint: Endpoint, timeout_s: float) -> int | None:
        """Requests running or queued in the engine; None when it does not say."""
        ...
