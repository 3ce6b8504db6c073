"""What surrounds the engines of a plain world: devices that fall ill, get lost, vanish and come back, strangers, host memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.domain.device import DeviceInfo, DeviceSample, Health, HostSample, Stranger
from scheduler.domain.ids import DeviceId, Holder, InstanceId
from scheduler.domain.units import GIB

#: What an engine's processes keep in host memory whatever their phase.
PROCESS_BYTES = GIB
_WORDS = {Health.LOST: "it fell off the bus (Xid 79)", Health.DRAINING: "an uncorrectable memory error (Xid 48)"}


@dataclass(slots=True)
class Around:
    """Turned by tests at any time; seen in the next sample."""

    ill: dict[DeviceId, Health] = field(default_factory=dict)  # health other than ok
    absent: dict[DeviceId, DeviceInfo] = field(default_factory=dict)  # known before, not there now
    strangers: dict[DeviceId, tuple[Stranger, ...]] = field(default_factory=dict)
    estimated: bool = False  # some processes have no number of their own
    host_bytes: int | None = None  # the machine's memory; None = nobody measures it
    host_others_bytes: int = 0  # used by others
    copies_hidden: bool = False  # pinned memory is not seen in an engine's resident set

    def host_sample(self, at_s: float, copies: Mapping[InstanceId, int]) -> HostSample | None:
        """Host memory now; ``copies`` of sleepers by instance, of all that have a process."""
        if self.host_bytes is None:
            return None
        used = self.host_others_bytes + sum(PROCESS_BYTES + copy for copy in copies.values())
        own = {Holder(iid): PROCESS_BYTES + (0 if self.copies_hidden else copy) for iid, copy in copies.items()}
        return HostSample(started_at_s=at_s, available_bytes=max(0, self.host_bytes - used), own=own)

    def ill_sample(self, device: DeviceId, at_s: float, holders: Iterable[Holder]) -> DeviceSample:
        """What is said of a device whose memory means nothing any more."""
        health = self.ill[device]
        text, fix = self.words(device)
        own = dict.fromkeys(holders, 0)
        return DeviceSample(device=device, started_at_s=at_s, used_bytes=0, free_bytes=0, own=own, health=health, trouble=text, fix=fix)

    def words(self, device: DeviceId) -> tuple[str, str]:
        """Trouble and fix of an ill device."""
        health = self.ill.get(device, Health.OK)
        return ("", "") if health is Health.OK else (_WORDS.get(health, health.value), "look at dmesg")
