"""Static facts of NVIDIA devices, and the ids they keep."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from adapters.devices.nvml_calls import NvmlCalls
from adapters.devices.nvml_roll import Roll, Seat
from adapters.devices.nvml_sample import HOST, Memory
from scheduler.domain.device import DeviceInfo, Pin
from scheduler.domain.ids import DeviceId
from scheduler.domain.units import GIB, MIB

KIND = "nvidia"

_OURS = re.compile(r"gpu\d+(m\d+)?")
_EXCLUSIVE_MODES = frozenset({1, 3})  # EXCLUSIVE_THREAD (old drivers), EXCLUSIVE_PROCESS
_PROHIBITED = 2
_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS
_RESERVED_NOISE_BYTES = 64 * MIB

Headroom = Callable[[DeviceId, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What does not change from sample to sample."""

    name: str
    pci: str
    parent: str
    sub: int
    split: bool
    total: int
    reserved: int
    source: str
    compute_mode: int | None
    coherent: bool
    numa_node: int | None
    islands: tuple[str, ...]
    details: tuple[tuple[str, str], ...]

    def steadied(self, before: "Facts | None") -> "Facts":
        """With the reserved bytes of before where they differ by noise only, so that noise is no news."""
        if before is None or abs(before.reserved - self.reserved) >= _RESERVED_NOISE_BYTES:
            return self
        return replace(self, reserved=before.reserved)


def read_facts(calls: NvmlCalls, seat: Seat, memory: Memory, *, driver: str, islands: tuple[str, ...], numa_node: int | None) -> Facts:
    """Ask a device who it is. Raises NvmlError when it is in trouble."""

    def ask(function: str) -> object:
        return calls.ask(function, seat.handle, uuid=seat.uuid)

    mode, capability, persistence = ask("DeviceGetComputeMode"), ask("DeviceGetCudaComputeCapability"), ask("DeviceGetPersistenceMode")
    serial, minor = ask("DeviceGetSerial"), ask("DeviceGetMinorNumber")
    # The card's memory is a NUMA node of the host: the system may keep pages there that engines gave back.
    coherent = memory.source != HOST and (ask("DeviceGetNumaNodeId") is not None or ask("DeviceGetAddressingMode") == _ATS)
    details = {
        "driver": driver,
        "compute capability": ".".join(str(part) for part in capability) if isinstance(capability, tuple) else "",
        "compute mode": _MODES.get(mode, str(mode)) if isinstance(mode, int) else "",
        "persistence": {0: "off", 1: "on"}.get(persistence, "") if isinstance(persistence, int) else "",
        "mig": "on" if seat.split else "",
        "memory": {HOST: "shared with the host"}.get(memory.source, "coherent with the host" if coherent else ""),
        "serial": str(serial or ""),
        "node": f"/dev/nvidia{minor}" if isinstance(minor, int) and seat.sub < 0 else "",
    }
    return Facts(
        name=str(ask("DeviceGetName") or "NVIDIA device"),
        pci=seat.pci,
        parent=seat.parent,
        sub=seat.sub,
        split=seat.split,
        total=memory.total,
        reserved=memory.reserved,
        source=memory.source,
        compute_mode=mode if isinstance(mode, int) else None,
        coherent=coherent,
        numa_node=numa_node,
        islands=islands,
        details=tuple((name, value) for name, value in details.items() if value),
    )


def ours(known: Mapping[str, DeviceId]) -> dict[str, DeviceId]:
    """The ids of this family among all that are known."""
    return {uuid: device for uuid, device in known.items() if _OURS.fullmatch(device)}


def merge_ids(own: Mapping[str, DeviceId], known: Mapping[str, DeviceId]) -> dict[str, DeviceId]:
    """Ids that we gave out and nobody wrote down yield to those that are known."""
    taken = set(known.values())
    return {uuid: device for uuid, device in own.items() if device not in taken} | dict(known)


def assign_ids(seats: Iterable[Seat], known: Mapping[str, DeviceId]) -> dict[str, DeviceId]:
    """Ids by uuid. Who had one keeps it, wherever it sits now; others get the lowest number that nobody has or had."""
    ids = dict(known)
    for seat in seats:
        if seat.uuid not in ids:
            stem = f"{ids[seat.parent]}m" if seat.parent else "gpu"
            taken = set(ids.values())
            ids[seat.uuid] = next(name for number in range(len(taken) + 1) if (name := DeviceId(f"{stem}{number}")) not in taken)
    return ids


def describe(uuid: str, facts: Facts, ids: Mapping[str, DeviceId], index: int, headroom: Headroom) -> DeviceInfo:
    """The device as the daemon knows it."""
    shared = facts.source == HOST
    kept_free = headroom(ids[uuid], facts.total)
    why_not = ""
    if facts.split:
        why_not = "MIG is on: its instances are the devices"
    elif facts.compute_mode == _PROHIBITED:
        why_not = f"its compute mode is PROHIBITED; nvidia-smi -i {facts.pci} -c DEFAULT allows engines"
    return DeviceInfo(
        id=ids[uuid],
        kind=KIND,
        name=facts.name,
        index=index,
        uuid=uuid,
        capacity_bytes=facts.total,
        reserved_bytes=facts.reserved,
        # One memory for all: the host must stay alive beside the engines.
        headroom_bytes=max(kept_free, min(facts.total // 10, 8 * GIB)) if shared else kept_free,
        host_memory=shared,
        parent=ids.get(facts.parent),
        islands=facts.islands,
        max_processes=1 if facts.compute_mode in _EXCLUSIVE_MODES else None,
        allocatable=not why_not,
        why_not=why_not,
        memory_drop_visible=not facts.coherent,
        pci=facts.pci,
        numa_node=facts.numa_node,
        facts=facts.details,
    )


def number_pins(roll: Roll, facts: Mapping[str, Facts], ids: Mapping[str, DeviceId]) -> dict[DeviceId, Pin]:
    """How CUDA is told of each device at this moment: by its place in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID.

    MIG instances go by UUID. So do whole cards beside them: CUDA does not count those any more once it sees an instance. And
    so do all while a card does not answer: whether CUDA counts it depends on how it failed, and a wrong guess is another card.
    """
    index = {card.uuid: position for position, card in enumerate(roll.cards)}
    mixed = bool(roll.silent) or any(each.sub >= 0 for each in facts.values())
    places = {uuid: index.get(each.parent or uuid) for uuid, each in facts.items()}
    return {ids[uuid]: Pin(index=at, uuid=uuid, by_uuid=mixed) for uuid, at in places.items() if at is not None and uuid in ids}
