"""The conversation with NVIDIA's driver: init, roll call, samples, faults. Everything here blocks and is called in one thread.

Trouble of one device is that device's; trouble of the driver is told for all. Nothing of it ends the daemon.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from adapters.devices.nvml_calls import GPU_IS_LOST, NOT_FOUND, UNINITIALIZED, VERSION_MISMATCH, NvmlCalls, NvmlError
from adapters.devices.nvml_events import Events
from adapters.devices.nvml_health import Trouble, Verdict, Wards, explain
from adapters.devices.nvml_holders import Attribution, Groups
from adapters.devices.nvml_inventory import Facts, Headroom, assign_ids, describe, merge_ids, number_pins, ours, read_facts
from adapters.devices.nvml_links import read_islands, read_numa_node
from adapters.devices.nvml_roll import GLOBAL, Roll, Seat, call_roll, find_again, find_part
from adapters.devices.nvml_sample import HOST, Memory, Reading, Sensors, read_device, read_memory, read_sensors
from adapters.procfs.processes import read_bytes
from scheduler.domain.device import DeviceInfo, DeviceSample, Health, Pin, Stranger
from scheduler.domain.errors import HotseatError, Permanent
from scheduler.domain.ids import DeviceId, Holder
from scheduler.ports.clock import Clock

log = logging.getLogger(__name__)

#: Seconds between looks at what changes rarely: modes, remapped rows, a driver that was not there.
SLOW_S = 10.0
#: Passes in which the whole driver failed, after which it is initialised anew.
_MAX_FAILURES = 3
#: Sensors are not read more often than about once a second, however fast memory is followed: some are slow, and their
#: own averages are no faster.
_SENSORS_S = 0.9

AllGroups = Mapping[DeviceId, Groups]


@dataclass(slots=True)
class _Known:
    """What is remembered of the devices."""

    ids: dict[str, DeviceId] = field(default_factory=dict)
    announced: dict[str, DeviceInfo] = field(default_factory=dict)  # as of the last inventory
    facts: dict[str, Facts] | None = None  # as of the last look; None = never looked
    expected: frozenset[str] = frozenset()  # known from before, by uuid, while no inventory succeeded
    islands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shares: dict[str, Attribution] = field(default_factory=dict)
    sensors: dict[str, Sensors] = field(default_factory=dict)


class NvmlSession:
    """See the module. ``generation``, ``pins`` and ``trouble`` may be read from other threads."""

    def __init__(self, clock: Clock, calls: NvmlCalls, headroom: Headroom, *, proc: str, sys: str) -> None:
        self.generation = 0
        self.pins: Mapping[DeviceId, Pin] = {}
        self.trouble: Trouble | None = None
        self._clock = clock
        self._calls = calls
        self._headroom = headroom
        self._proc = proc
        self._sys = sys
        self._known = _Known()
        self._events = Events(calls)
        self._wards = Wards()
        self._open = False
        self._retry_at_s = 0.0
        self._slow_at_s = 0.0
        self._failures = 0
        self._deaf = False
        self._driver = ""
        self._opaque: frozenset[str] = frozenset()
        self._silent: Mapping[str, str] = {}
        self._unusable: Mapping[str, str] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about cards that are in the machine and not in the inventory."""
        return (*self._silent.values(), *self._unusable.values())

    # --- init ---------------------------------------------------------------------------------------------------------

    def _ensure_open(self, at_once: bool = False) -> bool:
        if self._open:
            return True
        if not at_once and self._clock.monotonic() < self._retry_at_s:
            return False
        try:
            self._calls.load()
            self._calls.call("Init")
            self._driver = str(self._calls.ask("SystemGetDriverVersion") or "")
        except HotseatError as error:
            self._fail(explain(error))
            return False
        if self.trouble is not None:
            log.info("the NVIDIA driver answers again (version %s)", self._driver)
        self._open, self.trouble, self._failures, self._slow_at_s = True, None, 0, 0.0
        self._events.forget()
        self._wards.forget()
        self._known.islands.clear()  # links may have come up since
        return True

    def _fail(self, trouble: Trouble) -> None:
        if trouble != self.trouble:
            log.log(logging.INFO if trouble.absent and not self._known.announced else logging.ERROR, "%s", trouble.text)
        self.trouble = trouble
        self.pins = {}
        self._retry_at_s = self._clock.monotonic() + SLOW_S
        if self._known.facts is None:
            self._known.facts = {}  # cards that appear later are news

    def close(self) -> None:
        """End the conversation; the next call begins a new one."""
        if self._open:
            self._open = False
            try:
                self._calls.call("Shutdown")
            except NvmlError as error:
                log.debug("%s", error.message)

    # --- inventory ----------------------------------------------------------------------------------------------------

    def inventory(self, known: Mapping[str, DeviceId]) -> list[DeviceInfo]:
        """See the port. Empty where there is no driver. Raises Permanent when there is one that cannot be used."""
        self._known.ids = merge_ids(self._known.ids, ours(known))
        self._known.expected = frozenset(ours(known))
        try:
            roll = self._with_driver(self._look)
        except NvmlError as error:
            self.close()
            self._fail(explain(error))
            roll = None
        if roll is None:
            trouble = self.trouble
            if trouble is None or trouble.absent:
                return []
            raise Permanent(trouble.text, code=trouble.code, fix=trouble.fix)
        facts = self._known.facts or {}
        self._known.ids = assign_ids((seat for seat in roll.seats if seat.uuid in facts), self._known.ids)
        self.pins = number_pins(roll, facts, self._known.ids)
        order = {uuid: position for position, uuid in enumerate(facts)}
        cards = [uuid for uuid in order if facts[uuid].sub < 0]
        self._known.announced = {
            uuid: describe(uuid, each, self._known.ids, cards.index(uuid) if each.sub < 0 else each.sub, self._headroom)
            for uuid, each in facts.items()
        }
        self._known.expected = frozenset()
        self._known.shares = {uuid: each for uuid, each in self._known.shares.items() if uuid in facts}
        self._known.sensors.clear()
        return list(self._known.announced.values())

    def _with_driver(self, work: Callable[[], Roll]) -> Roll | None:
        """Do something with the driver open, once more if it was loaded anew; None = it cannot be opened. Raises NvmlError."""
        for attempt in (0, 1):
            if not self._ensure_open(at_once=True):
                return None
            try:
                return work()
            except NvmlError as error:
                self._open = self._open and error.number != UNINITIALIZED
                if error.number != UNINITIALIZED or attempt:
                    raise
        return None

    def _look(self) -> Roll:
        """Roll call, and the facts of all who answer: read for newcomers, and for everybody now and then."""
        roll = call_roll(self._calls)
        self._silent = {f"silent:{e.uuid}": f"an NVIDIA card does not answer: {e.message}" for e in roll.silent}
        self._wards.tell_all(self._silent, "silent:")
        before = self._known.facts or {}
        slow = self._clock.monotonic() >= self._slow_at_s
        if not slow and all(before.get(s.uuid) is not None and before[s.uuid].split == s.split for s in roll.seats):
            fresh = {seat.uuid: before[seat.uuid] for seat in roll.seats}
        else:
            self._slow_at_s = self._clock.monotonic() + SLOW_S
            fresh = self._read_all_facts(roll, before)
            self._wards.inspect(self._calls, roll.seats)
        # A card that is in the machine and does not answer is still one of the devices; one that is gone is not.
        kept = {uuid for uuid, facts in before.items() if facts.sub < 0 and uuid not in fresh and self._may_return(uuid, roll)}
        # Instances share the fate of their card, and stay while it does not list them.
        kept |= {uuid for uuid, facts in before.items() if uuid not in fresh and facts.parent in kept | roll.opaque}
        self._opaque = roll.opaque
        merged = fresh | {uuid: before[uuid] for uuid in kept}
        merged = dict(sorted(merged.items(), key=lambda item: (item[1].pci, item[1].sub)))
        if self._known.facts is not None and merged != self._known.facts:
            self.generation += 1
        self._known.facts = merged
        return roll

    def _read_all_facts(self, roll: Roll, before: Mapping[str, Facts]) -> dict[str, Facts]:
        cards, islands = roll.cards, self._known.islands
        numa = {card.uuid: read_numa_node(self._calls, card, self._sys) for card in cards}
        if any(card.uuid not in islands for card in cards):  # slow to ask, and wired for good
            islands.update(read_islands(self._calls, cards, numa))
        fresh, unusable = {}, {}
        for seat in roll.seats:
            old = before.get(seat.uuid)
            try:
                memory = read_memory(self._calls, seat, self._proc)
                doubt = memory.absurd or self._doubt(memory, old)
                if not doubt:
                    node = numa[seat.parent or seat.uuid]
                    names = islands.get(seat.uuid, ())
                    facts = read_facts(self._calls, seat, memory, driver=self._driver, islands=names, numa_node=node)
                    fresh[seat.uuid] = facts.steadied(old)
            except (NvmlError, OSError) as error:
                if isinstance(error, NvmlError) and error.number in GLOBAL:
                    raise
                doubt = str(error)
            if doubt and old is not None:
                fresh[seat.uuid] = old
            elif doubt:
                unusable[f"facts:{seat.uuid}"] = f"NVIDIA device {seat.uuid} cannot be used: {doubt}"
        self._unusable = unusable
        self._wards.tell_all(unusable, "facts:")
        return fresh

    @staticmethod
    def _doubt(memory: Memory, facts: Facts | None) -> str:
        """Why this cannot be the memory of a device that was looked at before; empty when it can."""
        changed = facts is not None and (memory.source == HOST) != (facts.source == HOST)
        return "its own memory and that of the host are mixed up" if changed else ""

    def _may_return(self, uuid: str, roll: Roll) -> bool:
        """Whether a card that did not answer the roll is still in the machine, rather than pulled out."""
        try:
            return bool(roll.silent) or find_again(self._calls, uuid) is not None
        except NvmlError as error:
            if error.number in GLOBAL:
                raise
            return True

    # --- samples ------------------------------------------------------------------------------------------------------

    def sample(self, groups: AllGroups, moving: frozenset[Holder], delivered: bool = True) -> list[DeviceSample]:
        """One pass over the devices of the last inventory. ``delivered`` = the last answer arrived: its news are no news any more."""
        if delivered:
            self._wards.delivered()
        if not self._ensure_open():
            return list(self._all_in_trouble(groups))
        try:
            roll = self._with_driver(self._look)
            if roll is None:
                return list(self._all_in_trouble(groups))
            self.pins = number_pins(roll, self._known.facts or {}, self._known.ids)
            self._hear(roll)
            seats = {seat.uuid: seat for seat in roll.seats}
            samples = [self._sample_one(info, seats.get(uuid), groups, moving) for uuid, info in self._known.announced.items()]
            if self._deaf:  # the driver forgets the events of a card that was away
                self._events.close()
                self._events.watch(roll.cards)
                self._deaf = False
            self._failures, self.trouble = 0, None
            self._wards.settle("pass")
        except NvmlError as error:
            return self._pass_failed(error, groups)
        return [sample for sample in samples if sample is not None]

    def _pass_failed(self, error: NvmlError, groups: AllGroups) -> list[DeviceSample]:
        self._failures += 1
        self._wards.tell("pass", f"NVIDIA devices cannot be measured: {error.message}")
        if error.number == VERSION_MISMATCH:
            self.close()
            self._fail(explain(error))
            return list(self._all_in_trouble(groups))
        if error.number == UNINITIALIZED:
            self._open = False
        elif self._failures >= _MAX_FAILURES:
            self.close()
        return []

    def _all_in_trouble(self, groups: AllGroups) -> Iterator[DeviceSample]:
        trouble = self.trouble
        if trouble is None or trouble.health is None:
            return
        for uuid in sorted(self._known.announced or self._known.expected):
            yield self._without_bytes(uuid, groups, trouble.health, trouble.text, trouble.fix)

    def _without_bytes(self, uuid: str, groups: AllGroups, health: Health, text: str, fix: str) -> DeviceSample:
        device = self._known.ids[uuid]
        return DeviceSample(
            device=device,
            started_at_s=self._clock.monotonic(),
            used_bytes=0,
            free_bytes=0,
            own={holder: 0 for holder in groups.get(device, {})},
            health=health,
            trouble=text,
            fix=fix,
            news=self._wards.news_of(uuid),
        )

    def _hear(self, roll: Roll) -> None:
        """Events since the last pass."""
        try:
            self._events.watch(roll.cards)
            for xid in self._events.poll():
                touched = [s.uuid for s in roll.seats if xid.uuid in (s.uuid, s.parent)]
                if xid.gpu_instance >= 0:
                    parts = {s.uuid for s in roll.seats if s.gpu_instance == xid.gpu_instance}
                    touched = [uuid for uuid in touched if uuid in parts] or touched
                self._wards.hear(xid, touched or [xid.uuid], self._clock.monotonic())
            self._wards.settle("events")
        except NvmlError as error:
            if error.number in GLOBAL:
                raise
            self._wards.tell("events", f"events of NVIDIA cards cannot be heard, they are asked for again: {error.message}")
            self._events.close()

    def _sample_one(self, info: DeviceInfo, seat: Seat | None, groups: AllGroups, moving: frozenset[Holder]) -> DeviceSample | None:
        if info.uuid not in (self._known.facts or {}):
            text = "it is not in this machine any more" if info.parent is None else "this MIG instance does not exist any more"
            return self._without_bytes(info.uuid, groups, Health.MISSING, text, "")
        began_s = self._clock.monotonic()
        seat, reading, error = self._read(info, seat)
        if reading is None and error is None:
            return None
        doubt = "" if reading is None else reading.absurd or self._doubt(reading.memory, (self._known.facts or {}).get(info.uuid))
        if doubt:
            self._wards.tell(f"absurd:{info.uuid}", f"device {info.id} is not believed: {doubt}")
            return None
        verdict = self._wards.judge(info, error, began_s)
        self._deaf = self._deaf or verdict.returned
        if reading is None or seat is None:
            if verdict.health is Health.DRAINING:
                return self._worst_case(info, groups, began_s, verdict)
            if verdict.health is None:
                return None
            self._known.shares.pop(info.uuid, None)
            return self._without_bytes(info.uuid, groups, verdict.health, verdict.text, verdict.fix)
        self._wards.settle(f"absurd:{info.uuid}")
        if verdict.health not in (Health.OK, Health.DRAINING):
            return self._without_bytes(info.uuid, groups, verdict.health or Health.LOST, verdict.text, verdict.fix)
        sensors = self._known.sensors.get(info.uuid)
        if sensors is None or began_s - sensors.at_s >= _SENSORS_S:
            sensors = self._known.sensors[info.uuid] = read_sensors(self._calls, seat, began_s)
        return self._tell(info, reading, sensors, groups, moving, verdict)

    def _read(self, info: DeviceInfo, seat: Seat | None) -> tuple[Seat | None, Reading | None, NvmlError | None]:
        """Read a device; one that fails is looked up again by its UUID, once. No reading and no error: the host cannot be read."""
        failure: NvmlError | None = None
        for handle in (seat, None):
            try:
                again = handle or self._find(info)
                if again is not None:
                    return again, read_device(self._calls, again, self._proc, self._clock.monotonic()), None
            except NvmlError as error:
                if error.number in GLOBAL:
                    raise
                failure = error
            except OSError as error:
                self._wards.tell(f"host:{info.uuid}", f"device {info.id} shares the host's memory, which cannot be read: {error}")
                return None, None, None
        facts = (self._known.facts or {})[info.uuid]
        number = NOT_FOUND if facts.parent in self._opaque else GPU_IS_LOST
        return None, None, failure or NvmlError(number, "DeviceGetHandleByUUID", info.uuid)

    def _find(self, info: DeviceInfo) -> Seat | None:
        facts = (self._known.facts or {})[info.uuid]
        if facts.sub < 0:
            return find_again(self._calls, info.uuid)
        return find_part(self._calls, Seat(info.uuid, facts.pci, (0, 0, 0), None, facts.parent, facts.sub))

    def _tell(
        self, info: DeviceInfo, reading: Reading, sensors: Sensors, groups: AllGroups, moving: frozenset[Holder], verdict: Verdict
    ) -> DeviceSample:
        remembered = self._known.shares.setdefault(info.uuid, Attribution())
        shares = remembered.divide(reading.settled_used, reading.processes, groups.get(info.id, {}), moving, reading.began_s)
        foreign, free = shares.foreign_bytes, reading.memory.free
        told = [held for held in shares.strangers.values() if held is not None]
        if not info.memory_drop_visible and remembered.lists and not shares.estimated and len(told) == len(shares.strangers):
            # What an ended process gives back may stay with the driver, which takes it for the next one: processes are what counts.
            foreign = min(foreign, sum(told))
            free = max(free, reading.memory.total - reading.memory.reserved - sum(shares.own.values()) - foreign)
        ours_anywhere = {pid for each in groups.values() for pids in each.values() for pid in pids}
        split = reading.processes is None and not info.allocatable and info.parent is None
        return DeviceSample(
            device=info.id,
            started_at_s=reading.began_s,
            used_bytes=reading.memory.used,
            free_bytes=free,
            foreign_bytes=0 if split else foreign,
            own=shares.own,
            utilization_ratio=sensors.utilization_ratio,
            power_w=sensors.power_w,
            health=verdict.health or Health.OK,
            trouble=verdict.text,
            fix=verdict.fix,
            estimated=shares.estimated,
            source=reading.memory.source,
            strangers=tuple(
                Stranger(pid=pid, used_bytes=held, name=self._name_of(pid))
                for pid, held in sorted(shares.strangers.items())
                if pid not in ours_anywhere
            ),
            energy_j=sensors.energy_j,
            temperature_c=sensors.temperature_c,
            throttle=sensors.throttle,
            news=self._wards.news_of(info.uuid),
        )

    def _worst_case(self, info: DeviceInfo, groups: AllGroups, began_s: float, verdict: Verdict) -> DeviceSample:
        """A card that hides its memory until it is reset: nothing is free, and holders have what they had until they end."""
        remembered = self._known.shares.setdefault(info.uuid, Attribution())
        asked = groups.get(info.id, {})
        own = {holder: remembered.last_own.get(holder, 0) if pids else 0 for holder, pids in asked.items()}
        return DeviceSample(
            device=info.id,
            started_at_s=began_s,
            used_bytes=info.capacity_bytes - info.reserved_bytes,
            free_bytes=0,
            foreign_bytes=max(0, (remembered.last_used or 0) - sum(own.values())),
            own=own,
            health=Health.DRAINING,
            trouble=verdict.text,
            fix=verdict.fix,
            estimated=True,
            news=self._wards.news_of(info.uuid),
        )

    def _name_of(self, pid: int) -> str:
        """Of a stranger; empty when it is not of this system's /proc (a container, a virtual machine) or just ended."""
        try:
            return read_bytes(f"{self._proc}/{pid}/comm").decode("utf-8", "replace").strip()
        except OSError:
            return ""
