"""Roll call: which NVIDIA cards and MIG instances answer at this moment, and where they are."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from adapters.devices.nvml_calls import INVALID_ARGUMENT, NOT_FOUND, UNINITIALIZED, VERSION_MISMATCH, NvmlCalls, NvmlError

#: These concern the driver as a whole, whichever call they come from.
GLOBAL = frozenset({UNINITIALIZED, VERSION_MISMATCH})
_NOT_THERE = frozenset({NOT_FOUND, INVALID_ARGUMENT})


@dataclass(frozen=True, slots=True)
class Seat:
    """A card, or a MIG instance (``sub`` >= 0) of the card ``parent``, that answered just now."""

    uuid: str
    pci: str  # "0000:3b:00.0", as sysfs spells it
    place: tuple[int, int, int]  # domain, bus, device: the order of CUDA_DEVICE_ORDER=PCI_BUS_ID
    handle: Any = field(compare=False, repr=False)
    parent: str = ""
    sub: int = -1
    gpu_instance: int = -1
    split: bool = False  # a card in MIG mode: its instances are the devices


@dataclass(frozen=True, slots=True)
class Roll:
    """Who answered, cards in order of the bus and each followed by its instances; and what the others answered.

    ``opaque`` are cards (by uuid) that answered, but did not list their instances.
    """

    seats: tuple[Seat, ...]
    silent: tuple[NvmlError, ...]
    opaque: frozenset[str] = frozenset()

    @property
    def cards(self) -> list[Seat]:
        """Without MIG instances."""
        return [seat for seat in self.seats if seat.sub < 0]


def place_of(pci: Any) -> tuple[int, int, int]:
    """(domain, bus, device) of NVML's structure."""
    return int(pci.domain), int(pci.bus), int(pci.device)


def call_roll(calls: NvmlCalls) -> Roll:
    """Ask every index. A card that fails is in ``silent``; NvmlError is raised only for the whole driver."""
    cards, silent = [], []
    for index in range(int(calls.call("DeviceGetCount"))):
        try:
            cards.append(look_at(calls, calls.call("DeviceGetHandleByIndex", index, uuid=f"index {index}")))
        except NvmlError as error:
            if error.number in GLOBAL:
                raise
            silent.append(error)
    seats: list[Seat] = []
    opaque = set()
    for card in sorted(cards, key=lambda card: card.place):
        seats.append(card)
        try:
            seats += _parts_of(calls, card) if card.split else ()
        except NvmlError as error:
            if error.number in GLOBAL:
                raise
            opaque.add(card.uuid)
            silent.append(error)
    return Roll(tuple(seats), tuple(silent), frozenset(opaque))


def look_at(calls: NvmlCalls, handle: Any) -> Seat:
    """Identify a card. Raises NvmlError."""
    uuid = str(calls.call("DeviceGetUUID", handle))
    pci = calls.call("DeviceGetPciInfo", handle, uuid=uuid)
    place = place_of(pci)
    mode = calls.ask("DeviceGetMigMode", handle, uuid=uuid)
    # Without the function number: no card of NVIDIA answers on another one than 0.
    name = "{:04x}:{:02x}:{:02x}.0".format(*place)
    return Seat(uuid, name, place, handle, split=bool(mode and mode[0]))


def _parts_of(calls: NvmlCalls, card: Seat) -> Iterator[Seat]:
    """MIG instances; their numbers have holes, and one may be taken apart while we look. Raises NvmlError when they cannot be listed."""
    for sub in range(int(calls.call("DeviceGetMaxMigDeviceCount", card.handle, uuid=card.uuid))):
        try:
            handle = calls.call("DeviceGetMigDeviceHandleByIndex", card.handle, sub, uuid=card.uuid)
            uuid = str(calls.call("DeviceGetUUID", handle, uuid=card.uuid))
        except NvmlError as error:
            if error.number in _NOT_THERE:
                continue
            raise
        number = calls.ask("DeviceGetGpuInstanceId", handle, uuid=uuid)
        yield Seat(uuid, card.pci, card.place, handle, card.uuid, sub, -1 if number is None else int(number))


def find_part(calls: NvmlCalls, part: Seat) -> Seat | None:
    """As :func:`find_again`, for a MIG instance of which all but the handle is known."""
    try:
        return replace(part, handle=calls.call("DeviceGetHandleByUUID", part.uuid, uuid=part.uuid))
    except NvmlError as error:
        if error.number in _NOT_THERE:
            return None
        raise


def find_again(calls: NvmlCalls, uuid: str) -> Seat | None:
    """A fresh handle of a card by its UUID; None = it is not there any more. Raises NvmlError when it is there and does not answer."""
    try:
        return look_at(calls, calls.call("DeviceGetHandleByUUID", uuid, uuid=uuid))
    except NvmlError as error:
        if error.number in _NOT_THERE:
            return None
        raise
