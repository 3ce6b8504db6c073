"""What the planner sees: a frozen picture of devices, seats and demand. Built by the orchestrator, read by nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.domain.claims import Claim
from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId, InstanceId, ModelName
from scheduler.domain.instance import Goal, Phase
from scheduler.domain.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device now. ``free_bytes`` is measured, None without a fresh sample.

    ``foreign_bytes`` is the current value for a reaction, the most of the last minutes for a plan. ``blocked`` says why nothing
    may grow there, whoever leaves; empty = it may.
    """

    info: DeviceInfo
    health: Health
    free_bytes: int | None
    foreign_bytes: int
    blocked: str = ""


class Availability(StrEnum):
    """Whether a seat may be asked to leave."""

    IDLE = "idle"  # at once
    DRAIN = "drain"  # busy, but its turn is over: gate it, let it finish
    LOCKED = "locked"  # not now


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One way to leave a seat: bytes given back per device (as claimed, and as measured), host bytes taken (+) or freed (-)."""

    goal: Goal
    claim_freed: Mapping[DeviceId, int]
    measured_freed: Mapping[DeviceId, int]
    host_delta_bytes: int
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """An instance that holds memory. ``exits`` empty or LOCKED = not a candidate; ``free_at_s`` = when that may change."""

    instance: InstanceId
    model: ModelName
    phase: Phase
    devices: tuple[DeviceId, ...]
    claim: Claim
    availability: Availability
    exits: tuple[Exit, ...] = ()
    why: Reason | None = None
    free_at_s: float | None = None
    last_used_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model that wants to be awake.

    ``sets`` are the device sets it may sit on, preferred first (one set when it sleeps there already);
    ``need_bytes`` per device: what it will claim; ``own_claim`` and ``own_measured`` are what it holds already.
    """

    instance: InstanceId
    model: ModelName
    sets: tuple[tuple[DeviceId, ...], ...]
    need_bytes: int
    own_claim: Claim
    own_measured: Mapping[DeviceId, int] = field(default_factory=dict)

    def found_on(self, device: DeviceId) -> int:
        """Bytes that it holds without a claim: it runs already, and counts among the others until it is taken in."""
        return 0 if self.own_claim.on(device) else self.own_measured.get(device, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """Host memory for level-1 copies: ``limit_bytes`` and what is claimed of it."""

    limit_bytes: int
    claimed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One consistent picture. ``blocked_devices`` are owned by an open move."""

    now_s: float
    devices: Mapping[DeviceId, DeviceView]
    seats: tuple[Seat, ...]
    host: HostView
    blocked_devices: frozenset[DeviceId] = frozenset()
    _claimed: dict[DeviceId, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def claimed_on(self, device: DeviceId) -> int:
        """Sum of all claims on ``device``; summed up once."""
        if not self._claimed:
            for seat in self.seats:
                for where, size in seat.claim.device_bytes.items():
                    self._claimed[where] = self._claimed.get(where, 0) + size
        return self._claimed.get(device, 0)
