"""What a configuration comes to: plain frozen data without pydantic, cheap to import from every room."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import ModelSpec
from scheduler.domain.units import GIB, MIB

DEFAULT_PORT = 11500


@dataclass(frozen=True, slots=True, order=True)
class Listen:
    """A TCP address to listen on; port 0 = any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of something: a fixed number of bytes, or a ratio of the whole."""

    size_bytes: int | None = None
    ratio: float | None = None

    def of(self, total_bytes: int) -> int:
        """Bytes of a whole of ``total_bytes``."""
        return self.size_bytes if self.size_bytes is not None else int(total_bytes * (self.ratio or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """``interrupt``: never | after_max_wait. ``on_exit``: keep | stop."""

    keepalive_s: float = 5.0
    max_body_bytes: int = 64 * MIB
    interrupt: str = "never"
    turn_factor: float = 4.0
    on_exit: str = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The section ``defaults``: what a model gets that does not say. ``max_wait_s`` None = auto."""

    max_wait_s: float | None = None
    max_queued: int = 512
    min_awake_s: float = 30.0
    start_timeout_s: float = 900.0
    drain_timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Logs of engines: at most ``size_bytes`` per file, ``keep`` old ones per model, ``total_bytes`` in all."""

    size_bytes: int = 64 * MIB
    keep: int = 5
    total_bytes: int = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOverride:
    """What the operator said about one device, declared or discovered. ``headroom`` None = as all others.

    ``use`` False = watched, never scheduled.
    """

    use: bool = True
    headroom: Share | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredDevice:
    """A device the operator declared. ``use`` False = watched, never scheduled. ``source`` = "file:PATH:LINE"."""

    id: DeviceId
    kind: str
    memory_bytes: int
    headroom_bytes: int
    use: bool = True
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything but models and declared devices. ``timezone`` None = the host's.

    ``discover`` = kinds of device that are looked for; ``host_sleep_bytes`` None = half of what is available at start.
    """

    state_dir: Path
    listen: tuple[Listen, ...] = (Listen("127.0.0.1", DEFAULT_PORT),)
    timezone: str | None = None
    plan_interval_s: float = 60.0
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    limits: Limits = field(default_factory=Limits)
    logs: LogSettings = field(default_factory=LogSettings)
    disk_min_free: Share = field(default_factory=lambda: Share(ratio=0.05))
    discover: tuple[str, ...] = ("nvidia",)
    headroom: Share = field(default_factory=lambda: Share(ratio=0.02))
    overrides: Mapping[DeviceId, DeviceOverride] = field(default_factory=lambda: MappingProxyType({}))
    host_sleep_bytes: int | None = None

    def override_of(self, device: DeviceId) -> DeviceOverride:
        """What was said about a device; nothing special when nothing was."""
        return self.overrides.get(device, DeviceOverride())

    def headroom_of(self, device: DeviceId, total_bytes: int) -> int:
        """Bytes of a device of ``total_bytes`` that stay empty, all of it at most."""
        own = self.override_of(device).headroom
        return min(total_bytes, (self.headroom if own is None else own).of(total_bytes))


class Origin(StrEnum):
    """Where an effective value comes from. ``override`` is for what the daemon keeps in its store, above the file."""

    DEFAULT = "default"
    FILE = "file"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Provenance:
    """An effective value as text, its origin, and the line of the file that set it (0 = none)."""

    text: str
    origin: Origin
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A valid configuration. ``path`` None = no file: all defaults, no models.

    ``provenance`` has one entry per effective value, by dotted path (``gateway.keepalive``, ``models.NAME.engine``).
    """

    path: Path | None
    settings: Settings
    models: Mapping[ModelName, ModelSpec] = field(default_factory=lambda: MappingProxyType({}))
    devices: tuple[DeclaredDevice, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=lambda: MappingProxyType({}))
