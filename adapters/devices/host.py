"""The machine's own memory: what is left of it, and what engines keep there, their sleepers' copies above all."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future

from adapters.procfs.memory import read_host_memory, read_resident
from adapters.procfs.processes import PROC
from adapters.procfs.threads import LoneThread, outcome_of
from scheduler.domain.device import HostSample
from scheduler.domain.ids import Holder
from scheduler.ports.clock import Clock

_TIMEOUT_S = 2.0


class ProcHost:
    """Implements HostSource from /proc: counters that the kernel keeps anyway, one small file per process."""

    def __init__(self, clock: Clock, *, proc: str = PROC, timeout_s: float = _TIMEOUT_S) -> None:
        self._clock = clock
        self._proc = proc
        self._timeout_s = timeout_s
        self._thread = LoneThread("hotseat-host")
        self._reading: Future[HostSample] | None = None

    async def sample(self, groups: Mapping[Holder, frozenset[int]]) -> HostSample | None:
        """See the port; None while a reading hangs or fails."""
        if self._reading is not None and not self._reading.done():
            return None
        asked = dict(groups)
        self._reading = self._thread.submit(lambda: self._read(asked))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await outcome_of(self._reading)
        except (TimeoutError, OSError, ValueError):
            return None

    def _read(self, groups: Mapping[Holder, frozenset[int]]) -> HostSample:
        started_at_s = self._clock.monotonic()
        own = {holder: sum(self._held(pid) for pid in pids) for holder, pids in groups.items()}
        return HostSample(started_at_s=started_at_s, available_bytes=read_host_memory(self._proc).available_bytes, own=own)

    def _held(self, pid: int) -> int:
        """Anonymous and shared memory. Pinned memory is shared memory with the drivers that account for it at all."""
        resident = read_resident(pid, self._proc)
        return 0 if resident is None else resident.private_bytes + resident.shmem_bytes
