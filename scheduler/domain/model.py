"""A model as its operator described it. Pure data; the config room builds it, the planner reads it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from scheduler.domain.ids import DeviceId, ModelName


class ModelClass(StrEnum):
    """Priority classes, most urgent first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 is the most urgent."""
        return list(ModelClass).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpStep:
    """One control call of a ``command`` engine's sleep or wake procedure: POST ``path``, within ``timeout_s``."""

    path: str
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredFootprint:
    """Sizes that the operator declared; None = not declared. All are bytes per device."""

    weights_bytes: int | None = None
    overhead_bytes: int | None = None
    kv_min_bytes: int | None = None
    kv_max_bytes: int | None = None
    residue_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWish:
    """Where a model may sit: ``kind`` None = whatever the engine runs on; ``ids`` empty = any of that kind."""

    kind: str | None = None
    count: int = 1
    ids: tuple[DeviceId, ...] = ()
    min_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One registered model.

    ``engine`` is the adapter's type name, ``engine_command`` the argv prefix that runs it (empty = the adapter's
    own search). ``max_wait_s`` None = auto. Fields marked *restart* in :data:`RESTART_FIELDS` make a running engine
    stale when they change; all others take effect at once.
    """

    name: ModelName
    engine: str
    engine_command: tuple[str, ...] = ()
    engine_args: tuple[str, ...] = ()
    model: str = ""
    aliases: tuple[str, ...] = ()
    description: str = ""
    enabled: bool = True
    unlisted: bool = False
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = ""
    url: str = ""  # engine `attached`: where somebody else's engine answers, http://127.0.0.1:PORT
    upstream_model: str = ""
    ready_path: str = ""
    sleep_steps: tuple[HttpStep, ...] = ()
    wake_steps: tuple[HttpStep, ...] = ()
    devices: DeviceWish = field(default_factory=DeviceWish)
    footprint: DeclaredFootprint = field(default_factory=DeclaredFootprint)
    levels: tuple[int, ...] | None = None
    always_awake: bool = False
    model_class: ModelClass = ModelClass.INTERACTIVE
    max_wait_s: float | None = None
    max_queued: int = 512
    max_concurrent: int | None = None
    min_awake_s: float = 30.0
    idle_sleep_after_s: float | None = None
    start_timeout_s: float = 900.0
    drain_timeout_s: float = 600.0
    source: str = "api"  # "file:PATH:LINE" or "api"

    def fingerprint(self) -> str:
        """Hash over what an engine process was started with; a different one means the process is stale."""
        parts = [f"{name}={getattr(self, name)!r}" for name in RESTART_FIELDS if getattr(self, name) != _NEUTRAL.get(name)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


#: Fields whose change needs a new engine process.
RESTART_FIELDS: tuple[str, ...] = (
    "engine",
    "engine_command",
    "engine_args",
    "model",
    "command",
    "args",
    "env",
    "cwd",
    "url",
    "upstream_model",
    "ready_path",
    "sleep_steps",
    "wake_steps",
    "devices",
    "footprint",
)

#: Values of fields that came later: with them a definition is the one it was before, and so is what was learned of it.
_NEUTRAL: Mapping[str, object] = {"url": ""}

assert set(RESTART_FIELDS) <= {f.name for f in fields(ModelSpec)}
