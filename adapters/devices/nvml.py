"""Device family ``nvidia``: cards and MIG instances, measured through the real ``pynvml``.

One thread of its own makes every call. A call that hangs - the driver waits for a dying card, or tears down and sets up
again with every client because persistence is off - keeps that thread and makes the devices stale; it never keeps the
event loop, no second thread follows it, and the daemon can end all the same.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from adapters.devices.nvml_calls import NvmlCalls, Timing
from adapters.devices.nvml_inventory import KIND, Headroom
from adapters.devices.nvml_links import SYS
from adapters.devices.nvml_session import AllGroups, NvmlSession
from adapters.procfs.processes import PROC
from adapters.procfs.threads import LoneThread, outcome_of
from scheduler.domain.device import DeviceInfo, DeviceSample, Pin
from scheduler.domain.errors import Temporary
from scheduler.domain.ids import DeviceId, Holder
from scheduler.domain.units import human_seconds
from scheduler.ports.clock import Clock

log = logging.getLogger(__name__)

_SAMPLE_TIMEOUT_S = 2.0
#: The first init sets up every card: one to three seconds each without persistence.
_INVENTORY_TIMEOUT_S = 60.0


def no_headroom(_device: DeviceId, _capacity_bytes: int) -> int:
    """Nothing is kept free."""
    return 0


class NvmlDevices:
    """All NVIDIA devices of the machine. ``headroom`` says how many bytes of a device (its id, its size) stay empty."""

    def __init__(
        self,
        clock: Clock,
        headroom: Headroom = no_headroom,
        *,
        proc: str = PROC,
        sys: str = SYS,
        sample_timeout_s: float = _SAMPLE_TIMEOUT_S,
        inventory_timeout_s: float = _INVENTORY_TIMEOUT_S,
    ) -> None:
        self._calls = NvmlCalls(clock)
        self._session = NvmlSession(clock, self._calls, headroom, proc=proc, sys=sys)
        self._sample_timeout_s = sample_timeout_s
        self._inventory_timeout_s = inventory_timeout_s
        self._thread = LoneThread("hotseat-nvml")
        self._reading: Future[list[DeviceSample]] | None = None
        self._delivered = True
        self._slow = False

    @property
    def kind(self) -> str:
        """Always ``nvidia``."""
        return KIND

    @property
    def generation(self) -> int:
        """Grows with every card or MIG instance that comes or goes, and with every changed mode."""
        return self._session.generation

    @property
    def trouble(self) -> str:
        """Why there are no NVIDIA devices, or why they cannot be measured; empty when they can."""
        return self._session.trouble.text if self._session.trouble is not None else ""

    @property
    def fix(self) -> str:
        """What to do about the trouble."""
        return self._session.trouble.fix if self._session.trouble is not None else ""

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each card that is in the machine, but cannot be told apart or used, and so is no device."""
        return self._session.problems

    def pins(self) -> Mapping[DeviceId, Pin]:
        """As of the last look; a card that does not answer has none."""
        return self._session.pins

    def timings(self) -> Mapping[str, Timing]:
        """How long the driver takes, by function."""
        return self._calls.timings()

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        """See the port. Empty without a driver. Raises Permanent when the driver cannot be used, Temporary when it hangs."""
        return await self._within(lambda: self._session.inventory(known), self._inventory_timeout_s)

    async def _within(self, work: Callable[[], list[DeviceInfo]], timeout_s: float) -> list[DeviceInfo]:
        job = self._thread.submit(work)
        try:
            async with asyncio.timeout(timeout_s):
                return await outcome_of(job)
        except TimeoutError:
            job.cancel()  # it may still be waiting behind the call that hangs
            text = f"the NVIDIA driver has not answered for {human_seconds(timeout_s)}"
            raise Temporary(text, retry_after_s=timeout_s, code="driver_hangs", fix="sudo dmesg | grep NVRM") from None

    async def sample(self, groups: AllGroups, moving: frozenset[Holder] = frozenset()) -> Sequence[DeviceSample]:
        """See the port. Empty while a call hangs; what the devices reported meanwhile comes with the next answer."""
        if self._reading is not None and not self._reading.done():
            return []
        groups = {device: dict(holders) for device, holders in groups.items()}  # the thread must not see the caller's change
        delivered, self._delivered = self._delivered, False
        self._reading = self._thread.submit(lambda: self._session.sample(groups, moving, delivered))
        try:
            async with asyncio.timeout(self._sample_timeout_s):
                samples = await outcome_of(self._reading)
        except TimeoutError:
            if not self._slow:
                log.warning("the NVIDIA driver has not answered for %s", human_seconds(self._sample_timeout_s))
            self._slow = True
            return []
        self._delivered, self._slow = True, False
        return samples

    async def close(self) -> None:
        """Give the driver back. The next call of anything opens it again."""
        try:
            async with asyncio.timeout(self._sample_timeout_s):
                await outcome_of(self._thread.submit(self._session.close))
        except TimeoutError:
            log.warning("the NVIDIA driver does not let go")
