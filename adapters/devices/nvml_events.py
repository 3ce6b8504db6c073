"""What NVIDIA cards report by themselves: Xid errors, and what each means for the card."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.devices.nvml_calls import TIMEOUT, NvmlCalls, NvmlError, address_of
from adapters.devices.nvml_roll import GLOBAL, Seat

_XID = 0x8
_DOUBLE_BIT = 0x2
_NO_INSTANCE = 0xFFFFFFFF
_MAX_PER_LOOK = 64

#: Faults of a program, after which the card is as good as before (as NVIDIA's own device plugin for Kubernetes has it).
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
FELL_OFF_THE_BUS = 79
DOUBLE_BIT_XID = 48

_WORDS = {
    13: "graphics engine exception, a program's fault",
    31: "memory page fault, a program's fault",
    43: "a program stopped answering and was reset",
    45: "channels of a program were torn down",
    48: "double-bit memory error",
    63: "a memory row is to be remapped",
    64: "remapping a memory row failed",
    68: "video decoder exception, a program's fault",
    74: "NVLink error",
    79: "the card fell off the bus",
    92: "many single-bit memory errors",
    94: "memory error, contained",
    95: "memory error, not contained",
    109: "context switch timed out, a program's fault",
    119: "the card's own processor does not answer",
    120: "error in the card's own processor",
}


@dataclass(frozen=True, slots=True)
class Xid:
    """An event. ``gpu_instance`` < 0: it concerns the whole card."""

    uuid: str
    number: int
    gpu_instance: int = -1

    @property
    def sentence(self) -> str:
        """For people."""
        return f"Xid {self.number} ({_WORDS.get(self.number, 'see the Xid table of NVIDIA')})"


class Events:
    """The event set. Asked without waiting, in the one thread that makes all calls: the driver queues what happens."""

    def __init__(self, calls: NvmlCalls) -> None:
        self._calls = calls
        self._set: Any = None
        self._watched: dict[int, str] = {}

    def forget(self) -> None:
        """The driver was initialised anew: the old set is gone."""
        self._set, self._watched = None, {}

    def close(self) -> None:
        """Give the set back; the next ``watch`` makes another one."""
        if self._set is not None:
            try:
                self._calls.call("EventSetFree", self._set)
            except NvmlError:
                pass  # then the driver has forgotten it already
        self.forget()

    def watch(self, cards: Sequence[Seat]) -> None:
        """Register the cards that are not yet. One that has no events is simply never heard of. Raises NvmlError for the whole driver."""
        if self._set is None:
            self._set = self._calls.ask("EventSetCreate")
        known = set(self._watched.values())
        for card in cards:
            if self._set is None or card.uuid in known:
                continue
            self._watched[address_of(card.handle)] = card.uuid
            try:
                supported = self._calls.ask("DeviceGetSupportedEventTypes", card.handle, uuid=card.uuid) or 0
                if supported & (_XID | _DOUBLE_BIT):
                    self._calls.call("DeviceRegisterEvents", card.handle, supported & (_XID | _DOUBLE_BIT), self._set, uuid=card.uuid)
            except NvmlError as error:
                if error.number in GLOBAL:
                    raise

    def poll(self) -> Iterator[Xid]:
        """What happened since the last look. Raises NvmlError when waiting fails; then :meth:`close` and register again."""
        for _ in range(_MAX_PER_LOOK if self._set is not None else 0):
            try:
                event = self._calls.call("EventSetWait", self._set, 0)
            except NvmlError as error:
                if error.number == TIMEOUT:
                    return
                raise
            uuid = self._watched.get(address_of(event.device))
            if uuid is not None:
                number = DOUBLE_BIT_XID if event.eventType & _DOUBLE_BIT else int(event.eventData)
                yield Xid(uuid, number, -1 if event.gpuInstanceId == _NO_INSTANCE else int(event.gpuInstanceId))
