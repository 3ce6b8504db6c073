"""What a pretended machine consists of: its log, its devices, its processes, and the ground under an engine."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.ports.launcher import ExitInfo, SpawnRequest
from tests.support.behaviour import Child
from tests.support.engine_life import EngineLife, Stage

if TYPE_CHECKING:
    from tests.support.world import World


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the world's own log: what really happened, whatever the daemon believes."""

    at_s: float
    what: str  # spawned started ready asleep woken ended killed out_of_memory cut misdirected garbage gate_closed
    subject: str  # model or device
    detail: str = ""


@dataclass(slots=True)
class WorldDevice:
    """A device. ``foreign_bytes`` is used by somebody else; an unreadable one gives no samples."""

    info: DeviceInfo
    foreign_bytes: int = 0
    readable: bool = True
    health: Health = Health.OK
    trouble: str = ""
    absent: bool = False  # not in the list of devices, and not measured
    lagging: list[tuple[float, int, int]] = field(default_factory=list)  # (free at, bytes, pid that held them)
    peak_bytes: int = 0  # most ever used on it


@dataclass(slots=True)
class Process:
    """A process. ``life`` and ``share``: how much of an engine's memory it holds; ``frozen`` after that engine's end."""

    pid: int
    start_ticks: int
    session: int
    model: ModelName
    token: str | None
    devices: tuple[DeviceId, ...] = ()
    life: EngineLife | None = None
    share: float = 1.0
    frozen_bytes: int = 0
    role: Child | None = None  # None = the leader
    gated_by: object | None = None  # the daemon that holds its gate
    request: SpawnRequest | None = None
    alive: bool = True
    exit: ExitInfo = field(default_factory=ExitInfo)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None
    running: int = 0  # requests inside
    torn: set[DeviceId] = field(default_factory=set)  # devices that were lost under it: it holds nothing there any more
    cuts: int = 0  # how often requests inside were cut by a sleep

    def device_bytes(self, now_s: float) -> int:
        """Bytes on each of its devices."""
        if not self.alive or self.gated_by is not None:
            return 0
        if self.life is None or self.life.stage is Stage.ENDED:
            return self.frozen_bytes
        return int(self.life.device_bytes(now_s) * self.share)


@dataclass(frozen=True, slots=True)
class WorldGround:
    """The devices under one engine: what it takes is booked when its life says so, here it is only asked whether there is room."""

    world: "World"
    leader: Process

    def _room(self) -> int:
        return min((self.world.room(device, self.leader.session) for device in self.leader.devices), default=0)

    def take(self, size: int) -> bool:
        """Whether so much fits; a refusal is an entry of the log."""
        if size <= self._room():
            return True
        for device in self.leader.devices:
            if size > (room := self.world.room(device, self.leader.session)):
                self.world.note("out_of_memory", str(device), f"{size - room} bytes too many, refused to {self.leader.model}")
        return False

    def squeeze(self, size: int) -> int:
        """What fits of it."""
        return max(0, min(size, self._room()))

    def others(self) -> int:
        """The most that others use."""
        rooms = ((self.world.devices[device].info.capacity_bytes, device) for device in self.leader.devices)
        return max((capacity - self.world.room(device, self.leader.session) for capacity, device in rooms), default=0)
