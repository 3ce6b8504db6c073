"""Footprints (what a model takes) and claims (what a holder has reserved)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from scheduler.domain.ids import DeviceId
from scheduler.domain.units import GIB


class Source(StrEnum):
    """Where a footprint's numbers come from; later ones win."""

    DECLARED = "declared"
    ESTIMATED = "estimated"
    MEASURED = "measured"


#: Factor on the estimate of a model that was never measured, at its first launch (architecture.md section 3).
UNMEASURED_FACTOR = 1.3
RESIDUE_PRIOR_BYTES = 3 * GIB // 2  # scheduling.md section 1
#: A confirmed sleeper may hold this much more than expected (scheduling.md section 1),
RESIDUE_TOLERANCE = 1.2
#: or this part of its awake bytes more, whichever is larger: what a process keeps besides its weights (context, allocator, graphs)
#: differs by tens of MiB from run to run, a fifth of a small residue. An engine that kept its weights keeps many times more.
RESIDUE_MARGIN = 0.03
BANDWIDTH_PRIOR_BPS = 1_000_000_000  # storage, bytes per second, until a start was timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one instance of a model takes, bytes per device, seconds per transition.

    ``awake_bytes`` = weights + overhead + ``kv_bytes``, the KV cache it would be started with where there is room for it;
    ``kv_min_bytes`` is the least that makes sense (one request of full length). Both are 0 where the engine sizes its KV itself.
    ``start_peak_bytes`` is the most seen while starting.
    ``residue_bytes`` / ``host_bytes`` / ``wake_s`` / ``sleep_s`` are keyed by sleep level; a missing level = unknown.
    """

    awake_bytes: int
    start_peak_bytes: int = 0
    residue_bytes: Mapping[int, int] = field(default_factory=dict)
    host_bytes: Mapping[int, int] = field(default_factory=dict)
    wake_s: Mapping[int, float] = field(default_factory=dict)
    sleep_s: Mapping[int, float] = field(default_factory=dict)
    start_s: float = 0.0
    stop_s: float = 0.0
    weights_bytes: int = 0
    kv_bytes: int = 0
    kv_min_bytes: int = 0
    source: Source = Source.ESTIMATED

    def launch_bytes(self) -> int:
        """Device bytes to claim while launching, and for as long as nothing better is known."""
        return self._cautious(max(self.awake_bytes, self.start_peak_bytes))

    def seated_bytes(self) -> int:
        """Device bytes to claim while awake."""
        return self._cautious(self.awake_bytes)

    def caution_bytes(self) -> int:
        """The part of :meth:`launch_bytes` that is there only because nothing was measured."""
        return self.launch_bytes() - max(self.awake_bytes, self.start_peak_bytes)

    def _cautious(self, value_bytes: int) -> int:
        if self.source is not Source.ESTIMATED:
            return value_bytes
        return int((value_bytes - self.kv_bytes) * UNMEASURED_FACTOR) + self.kv_bytes  # KV is taken as told, to the byte

    def uncautious(self, claimed_bytes: int) -> int:
        """The most awake bytes that claim no more than ``claimed_bytes``."""
        if self.source is not Source.ESTIMATED:
            return claimed_bytes
        return int((claimed_bytes - self.kv_bytes) / UNMEASURED_FACTOR) + self.kv_bytes

    def residue(self, level: int) -> int:
        """Device bytes a sleeper keeps; the prior (at most half of awake, else it is no sleep) until measured."""
        return self.residue_bytes.get(level, min(RESIDUE_PRIOR_BYTES, self.awake_bytes // 2))

    def most_residue(self, level: int) -> int:
        """Device bytes above which a sleep at ``level`` is ineffective."""
        expected = self.residue(level)
        return int(max(expected * RESIDUE_TOLERANCE, expected + self.awake_bytes * RESIDUE_MARGIN))

    def host_copy(self, level: int) -> int:
        """Host bytes a sleeper holds: 1.35 x weights + 2 GiB at level 1 until measured, else nothing."""
        if level in self.host_bytes:
            return self.host_bytes[level]
        return int(self.weights_bytes * 1.35) + 2 * GIB if level == 1 else 0

    def start_seconds(self) -> float:
        """Expected seconds of a cold start."""
        return self.start_s or self.weights_bytes / BANDWIDTH_PRIOR_BPS + 30.0

    def wake_seconds(self, level: int) -> float:
        """Expected seconds of a wake from ``level``: bytes over 20 GB/s (level 1) or over storage, until timed."""
        known = self.wake_s.get(level)
        if known is not None:
            return known
        return self.weights_bytes / (20e9 if level == 1 else BANDWIDTH_PRIOR_BPS) + 1.0

    def leave_seconds(self, level: int | None) -> float:
        """Expected seconds to put it away: to sleep at ``level``, or stopped when None."""
        if level is None:
            return self.stop_s or 2.0
        return self.sleep_s.get(level, 3.0)


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes reserved by one holder: per device, and on host memory."""

    device_bytes: Mapping[DeviceId, int] = field(default_factory=dict)
    host_bytes: int = 0

    def on(self, device: DeviceId) -> int:
        """Bytes claimed on ``device``."""
        return self.device_bytes.get(device, 0)

    def at_least(self, measured: Mapping[DeviceId, int]) -> "Claim":
        """This claim raised to what was measured; never lowered."""
        raised = {d: max(b, measured.get(d, 0)) for d, b in self.device_bytes.items()}
        return self if raised == dict(self.device_bytes) else replace(self, device_bytes=raised)

    @property
    def total_bytes(self) -> int:
        """Sum over devices."""
        return sum(self.device_bytes.values())


NOTHING = Claim()


def even_claim(devices: Iterable[DeviceId], bytes_each: int, host_bytes: int = 0) -> Claim:
    """The same bytes on each device."""
    return Claim({device: bytes_each for device in devices}, host_bytes)
