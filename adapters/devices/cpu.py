"""Device family ``cpu``: budgets of host memory, measured by what our engines' processes really hold."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from adapters.procfs.memory import Resident, read_cpu_times, read_held_bytes, read_host_memory, read_resident
from adapters.procfs.processes import PROC, read_stat
from adapters.procfs.threads import outcome_of
from scheduler.domain.device import DeviceInfo, DeviceSample, Pin
from scheduler.domain.errors import Permanent
from scheduler.domain.ids import DeviceId, Holder
from scheduler.domain.units import MIB, human_bytes
from scheduler.ports.clock import Clock

_KIND = "cpu"
_TIMEOUT_S = 10.0
_MAX_USES = 10
_NOTICEABLE_BYTES = MIB

Groups = Mapping[DeviceId, Mapping[Holder, frozenset[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuBudget:
    """A declared device: how much host memory engines on it may hold together."""

    id: DeviceId
    name: str
    capacity_bytes: int
    headroom_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    """What a process held, and, if it was alone, its cheap counters: private ones of now, shared ones of the last look."""

    held_bytes: int
    resident: Resident | None
    uses: int = 0  # how often it was inferred since the last look at all pages


@dataclass(slots=True)
class _Memory:
    """What the last reading left: looks at processes, and processor times."""

    held: dict[int, _Held] = field(default_factory=dict)
    cpu_times: tuple[int, int] | None = None
    utilization_ratio: float | None = None


class CpuDevices:
    """All ``cpu`` devices of the configuration. They share one pool: the machine's memory."""

    def __init__(self, budgets: Sequence[CpuBudget], clock: Clock, *, proc: str = PROC, timeout_s: float = _TIMEOUT_S) -> None:
        self._budgets = tuple(budgets)
        self._clock = clock
        self._proc = proc
        self._timeout_s = timeout_s
        self._memory = _Memory()
        # A thread of its own: a process stuck in the kernel can block the reading for ever, which must not take
        # one more thread of the common pool at every sample.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hotseat-cpu")
        self._reading: Future[list[DeviceSample]] | None = None

    @property
    def kind(self) -> str:
        """Always ``cpu``."""
        return _KIND

    @property
    def generation(self) -> int:
        """Always 0: budgets change with the configuration only."""
        return 0

    def pins(self) -> Mapping[DeviceId, Pin]:
        """None: the scheduler of the operating system places processes."""
        return {}

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        """The declared budgets, in their order. Raises Permanent when the machine has less memory than they promise."""
        try:
            total = (await asyncio.to_thread(read_host_memory, self._proc)).total_bytes
        except (OSError, ValueError) as error:
            raise Permanent(f"cannot measure host memory: {error}", fix="mount /proc for the daemon") from error
        promised = sum(budget.capacity_bytes for budget in self._budgets)
        if promised > total:
            names = ", ".join(budget.id for budget in self._budgets)
            text = f"cpu devices ({names}) promise {human_bytes(promised)}, the machine has {human_bytes(total)}"
            raise Permanent(text, fix=f"lower their memory to {human_bytes(total)} or less in total")
        return [
            DeviceInfo(
                id=budget.id,
                kind=_KIND,
                name=budget.name,
                index=index,
                uuid=f"{_KIND}:{budget.id}",
                capacity_bytes=budget.capacity_bytes,
                headroom_bytes=budget.headroom_bytes,
                host_memory=True,
            )
            for index, budget in enumerate(self._budgets)
        ]

    async def sample(self, groups: Groups, moving: frozenset[Holder] = frozenset()) -> Sequence[DeviceSample]:
        """Measure all budgets now, every process by itself; empty while a reading hangs or fails, so that the devices become stale by age.

        Devices of other families in ``groups`` are ignored.
        """
        if not self._budgets or (self._reading is not None and not self._reading.done()):
            return []
        self._reading = self._thread.submit(self._read, groups)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await outcome_of(self._reading)
        except (TimeoutError, OSError, ValueError):
            return []

    def _read(self, groups: Groups) -> list[DeviceSample]:
        started_at_s = self._clock.monotonic()
        before = read_host_memory(self._proc).available_bytes
        held = self._read_held([pids for budget in self._budgets for pids in groups.get(budget.id, {}).values()])
        # The larger of two looks: what our own processes took or gave back in between must not look foreign.
        available = max(before, read_host_memory(self._proc).available_bytes)
        own = {
            budget.id: {holder: sum(held[pid] for pid in pids) for holder, pids in groups.get(budget.id, {}).items()}
            for budget in self._budgets
        }
        unused = {budget.id: max(0, budget.capacity_bytes - sum(own[budget.id].values())) for budget in self._budgets}
        pressure = share_pressure(unused, available)
        utilization = self._read_utilization()
        return [
            DeviceSample(
                device=budget.id,
                started_at_s=started_at_s,
                used_bytes=sum(own[budget.id].values()) + pressure[budget.id],
                free_bytes=unused[budget.id] - pressure[budget.id],
                foreign_bytes=pressure[budget.id],
                own=own[budget.id],
                utilization_ratio=utilization,
                source="procfs",
            )
            for budget in self._budgets
        ]

    def _read_held(self, sets: Sequence[frozenset[int]]) -> dict[int, int]:
        alone = {pid for pids in sets if len(pids) == 1 for pid in pids}
        looks: dict[int, _Held] = {}
        for pid in {pid for pids in sets for pid in pids}:
            last, resident = self._memory.held.get(pid), read_resident(pid, self._proc)
            inferred = _infer_held(last, resident) if pid in alone else None
            looks[pid] = inferred or _Held(self._look_at(pid, last), resident if pid in alone else None)
        self._memory.held = looks
        return {pid: look.held_bytes for pid, look in looks.items()}

    def _look_at(self, pid: int, last: _Held | None) -> int:
        held = read_held_bytes(pid, self._proc)
        if held is not None:
            return held
        # A process that is ending has no memory to look at any more while the kernel still takes it apart, which for
        # many GiB takes a while. Until it is dead it holds what it held, or its bytes would look foreign meanwhile.
        stat = read_stat(pid, self._proc)
        return 0 if last is None or stat is None or stat.dead else last.held_bytes

    def _read_utilization(self) -> float | None:
        """Busy share of all processors since the last sample; they are common to all budgets."""
        before, now = self._memory.cpu_times, read_cpu_times(self._proc)
        if before is None or now is None:
            self._memory.cpu_times = now
        elif now[1] > before[1]:  # else less than a clock tick ago: the last answer still stands
            self._memory.cpu_times = now
            self._memory.utilization_ratio = min(1.0, max(0.0, (now[0] - before[0]) / (now[1] - before[1])))
        return self._memory.utilization_ratio


def _infer_held(last: _Held | None, resident: Resident | None) -> _Held | None:
    """What a process without company holds now, from its counters; None when only a look at its pages can tell.

    A look costs much processor time for a large process. Without forked company its private pages are its own
    alone, so their change is exact; its shares of common pages stay as they were unless its own part moved, and
    are looked at again every so often, because others may have come or gone.
    """
    if last is None or last.resident is None or resident is None or last.uses >= _MAX_USES:
        return None
    if abs(resident.shared_bytes - last.resident.shared_bytes) > _NOTICEABLE_BYTES:
        return None
    held_bytes = max(0, last.held_bytes + resident.private_bytes - last.resident.private_bytes)
    return _Held(held_bytes, replace(last.resident, private_bytes=resident.private_bytes), last.uses + 1)


def share_pressure(unused: Mapping[DeviceId, int], available_bytes: int) -> dict[DeviceId, int]:
    """Foreign bytes per budget: how much of its unused part the machine cannot give any more.

    A budget is a promise that engines may grow by its unused part. The promises of all budgets are kept from one
    pool, the available memory; what is missing there is pressed out by others. Each budget bears it in proportion
    to its unused part, so that the free bytes of all budgets together never exceed the available memory, and a
    full budget - which asks for nothing more - bears nothing. Rounded against us.
    """
    total = sum(unused.values())
    missing = max(0, total - available_bytes)
    return {device: -(-missing * part // total) if total else 0 for device, part in unused.items()}
