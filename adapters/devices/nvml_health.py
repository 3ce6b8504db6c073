"""What is wrong with NVIDIA devices, what was said about it already, and what they report."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.devices.nvml_calls import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    NvmlCalls,
    NvmlError,
)
from adapters.devices.nvml_events import APPLICATION_XIDS, FELL_OFF_THE_BUS, Xid
from adapters.devices.nvml_roll import GLOBAL, Seat
from scheduler.domain.device import DeviceInfo, DeviceNews, Health
from scheduler.domain.errors import HotseatError

log = logging.getLogger(__name__)

#: A card that reported its fall is not believed to be back for so long, whatever it answers.
_FALL_S = 10.0
#: So many unknown errors in a row are a lost card; one alone is a bad moment.
_MAX_UNKNOWN = 3

_ROWS, _ECC, _XID = "rows", "ecc", "xid"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Health of a device now; None = it could not be read, which time will make stale. ``returned`` = it was lost before."""

    health: Health | None
    text: str = ""
    fix: str = ""
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no conversation. ``health`` is what it means for devices that were there; None = they are merely stale."""

    health: Health | None
    text: str
    fix: str
    absent: bool = False
    code: str = "nvml"


def explain(error: HotseatError) -> Trouble:
    """What a failed init means."""
    if not isinstance(error, NvmlError):
        return Trouble(None, error.message, error.fix, code=error.code)
    number = error.number
    if number == LIBRARY_NOT_FOUND:
        return Trouble(Health.LOST, "no NVIDIA driver is installed", "", absent=True)
    if number == DRIVER_NOT_LOADED:
        return Trouble(Health.LOST, "the NVIDIA driver is not loaded", "sudo modprobe nvidia", absent=True)
    if number == VERSION_MISMATCH:
        text = "the NVIDIA library and the kernel module are of different versions: the driver was upgraded while it was in use"
        modules = "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia"
        fix = f"reboot; or stop everything on the cards, reload the kernel modules ({modules}) and restart hotseat"
        return Trouble(Health.DRIVER_MISMATCH, text, fix, code="driver_mismatch")
    fix = "sudo dmesg | grep NVRM tells more; nvidia-smi should fail in the same way"
    return Trouble(None, f"the NVIDIA driver cannot be used: {error.message}", fix)


class Wards:
    """Keeps the faults of devices by uuid, and says each spell of trouble once in the log."""

    def __init__(self) -> None:
        self._faults: dict[str, dict[str, str]] = {}
        self._fallen: dict[str, float] = {}
        self._lost: set[str] = set()
        self._unknown: dict[str, int] = {}
        self._uncorrected: dict[str, int] = {}
        self._news: dict[str, list[DeviceNews]] = {}
        self._shown: dict[str, int] = {}
        self._spells: set[str] = set()

    def forget(self) -> None:
        """The driver was loaded anew, and with it every card set up: old faults are history."""
        self._faults.clear()
        self._fallen.clear()
        self._unknown.clear()
        self._uncorrected.clear()

    # --- the log ----------------------------------------------------------------------------------------------------

    def tell(self, spell: str, sentence: str) -> None:
        """Say it, unless this spell of trouble was told already."""
        if spell not in self._spells:
            self._spells.add(spell)
            log.warning("%s", sentence)

    def tell_all(self, sentences: Mapping[str, str], prefix: str) -> None:
        """All spells with this prefix that go on; the others of them are over."""
        self._spells = {spell for spell in self._spells if not spell.startswith(prefix) or spell in sentences}
        for spell, sentence in sentences.items():
            self.tell(spell, sentence)

    def settle(self, spell: str) -> None:
        """The trouble is over; the next time is a new spell."""
        self._spells.discard(spell)

    # --- faults -----------------------------------------------------------------------------------------------------

    def hear(self, xid: Xid, uuids: Iterable[str], now_s: float) -> None:
        """An event: news of a device, and mostly a fault of it."""
        for uuid in uuids:
            self._report(uuid, DeviceNews(kind="xid", message=xid.sentence))
            if xid.number in APPLICATION_XIDS:
                continue
            if xid.number == FELL_OFF_THE_BUS:
                self._fallen[uuid] = now_s
            else:
                self._faults.setdefault(uuid, {})[_XID] = f"it reported {xid.sentence}"

    def inspect(self, calls: NvmlCalls, seats: Sequence[Seat]) -> None:
        """Look for worn memory of cards; their instances share it. Raises NvmlError for the whole driver only."""
        for card in (seat for seat in seats if seat.sub < 0):
            try:
                rows = calls.ask("DeviceGetRemappedRows", card.handle, uuid=card.uuid)
                errors = calls.ask("DeviceGetTotalEccErrors", card.handle, 1, 0, uuid=card.uuid)  # uncorrected, since the driver was loaded
            except NvmlError as error:
                if error.number in GLOBAL:
                    raise
                continue
            found = {}
            if rows is not None and rows[3]:
                found[_ROWS] = "remapping worn memory rows failed: the card must be replaced"
            elif rows is not None and rows[2]:
                found[_ROWS] = "worn memory rows wait to be remapped at the next reset"
            if errors is not None and errors > self._uncorrected.setdefault(card.uuid, int(errors)):
                found[_ECC] = f"{errors - self._uncorrected[card.uuid]} memory errors that could not be corrected"
            for seat in seats:
                if card.uuid in (seat.uuid, seat.parent):
                    faults = self._faults.setdefault(seat.uuid, {})
                    faults.pop(_ROWS, None)
                    faults.update(found)

    def judge(self, info: DeviceInfo, error: NvmlError | None, now_s: float) -> Verdict:
        """What the outcome of a reading means for the device, with all that is known about it."""
        uuid = info.uuid
        if error is None or error.number != UNKNOWN:
            self._unknown.pop(uuid, None)
        if error is None:
            return self._judge_answering(info, now_s)
        if error.number == UNKNOWN:
            self._unknown[uuid] = self._unknown.get(uuid, 0) + 1
        if error.number == GPU_IS_LOST or self._unknown.get(uuid, 0) >= _MAX_UNKNOWN:
            return self._lose(info, f"it does not answer any more: {error.message}")
        if error.number == RESET_REQUIRED:
            return Verdict(Health.DRAINING, "the driver demands a reset of this card, and does not tell its memory before", _reset(info))
        self.tell(f"read:{uuid}", f"device {info.id} cannot be measured: {error.message}")
        return Verdict(None)

    def _judge_answering(self, info: DeviceInfo, now_s: float) -> Verdict:
        uuid = info.uuid
        self.settle(f"read:{uuid}")
        fallen_at_s = self._fallen.get(uuid)
        if fallen_at_s is not None and now_s - fallen_at_s < _FALL_S:
            return self._lose(info, "it fell off the bus (Xid 79)")
        self._fallen.pop(uuid, None)
        returned = uuid in self._lost
        if returned:
            self._lost.discard(uuid)
            self._report(uuid, DeviceNews(kind="returned", message="it answers again"))
            log.info("device %s answers again", info.id)
        faults = self._faults.get(uuid)
        if faults:
            # Instances have no reset of their own; with the card's address the sentence is right for them too.
            return Verdict(Health.DRAINING, "; ".join(faults.values()), _reset(info), returned)
        return Verdict(Health.OK, returned=returned)

    def _lose(self, info: DeviceInfo, text: str) -> Verdict:
        if info.uuid not in self._lost:
            self._lost.add(info.uuid)
            log.error("device %s (%s, %s) is lost: %s", info.id, info.name, info.pci, text)
        fix = f"sudo dmesg | grep -i {info.pci} shows why (power, seating, a broken card); a reboot may bring it back"
        return Verdict(Health.LOST, text, fix)

    # --- news -------------------------------------------------------------------------------------------------------

    def _report(self, uuid: str, news: DeviceNews) -> None:
        self._news.setdefault(uuid, []).append(news)

    def news_of(self, uuid: str) -> tuple[DeviceNews, ...]:
        """What a device reported and nobody has got yet."""
        found = self._news.get(uuid, [])
        self._shown[uuid] = len(found)
        return tuple(found)

    def delivered(self) -> None:
        """What was shown has arrived, and is not shown again."""
        for uuid, count in self._shown.items():
            del self._news.get(uuid, [])[:count]
        self._shown.clear()


def _reset(info: DeviceInfo) -> str:
    stop, start = "sudo systemctl stop hotseat", "sudo systemctl start hotseat"  # our own handle keeps a card in use
    return f"when nothing runs there any more: {stop}; sudo nvidia-smi --gpu-reset -i {info.pci}; {start}"
