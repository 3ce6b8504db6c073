"""A machine with NVIDIA cards, as a folder: who holds how much of which card, and what fails.

Tests write it, fake engines (processes of their own, isolated with ``-I -S``: standard library only here) hold memory in
it, and the stand-in of ``tests/support/nvml`` tells of it through the real ``pynvml``:

``devices``      the cards and their troubles, one fact a line (:func:`gpu`, :func:`mig`, :func:`proc`, ...)
``procs/<pid>``  what a process holds: lines ``<uuid> <bytes|na> [kinds]``; counts while the process is alive and no zombie
``linger/<n>``   ``<uuid> <bytes> <until>``: still taken though nobody holds it, until that CLOCK_MONOTONIC second
``peak``         the most that was ever taken, per device
``oom.log``      one line per allocation that was refused
``sys``          the part of /sys that tells the NUMA node of a card

Taken on a device = its ``used`` (nobody's) + processes + what lingers; free = total - reserved - taken.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

Facts = str | int | float | bool | None

#: Error codes of NVML that tests use.
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 1, 3, 4, 7, 9, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 999

_WORDS = {"gpu", "mig", "proc", "link", "topo", "event", "err", "delay", "driver"}


def _text(value: Facts) -> str:
    return str(int(value)) if isinstance(value, bool) else "na" if value is None else str(value).replace(" ", "_")


def _line(*words: Facts, **facts: Facts) -> str:
    return " ".join([*map(_text, words), *(f"{key}={_text(value)}" for key, value in facts.items())])


def gpu(index: int, **facts: Facts) -> str:
    """A card: uuid name serial bus minor cc, total reserved used (bytes), power cap (mW) energy (mJ) temp util throttle,
    compute_mode persistence mig, ecc remap ("corrected,uncorrected,pending,failure"), numa, affinity (mask of near nodes), numa_memory (the
    card is itself a NUMA node), unified=1 (its memory is host memory: Not Supported), hide=1 (bytes of processes are not told), hide=2
    (processes are not listed at all). What is not named: 24 GiB and empty, other numbers Not Supported.
    """
    return _line("gpu", index, **facts)


def mig(index: int, sub: int, **facts: Facts) -> str:
    """MIG instance ``sub`` of a card that has ``mig=1``: uuid name total reserved used gi ci."""
    return _line("mig", index, sub, **facts)


def proc(where: int | str, pid: int, used: int | None, **facts: Facts) -> str:
    """A process that is there until the line goes, alive or not: ``where`` is a card, or "card.sub" for a MIG instance.

    ``used`` None = the driver does not say; ``held`` = what it takes, when that is not what the driver says; ``kind`` =
    the lists it is in: C(ompute), G(raphics), M(PS), or several.
    """
    return _line("proc", where, pid=pid, used=used, **facts)


def link(index: int, number: int, peer: int | str, **facts: Facts) -> str:
    """NVLink ``number`` of a card leads to the card ``peer``, or to "switch"; ``state=0`` = it is down."""
    return _line("link", index, number, peer, **facts)


def topo(index: int, peer: int, level: int) -> str:
    """The nearest common ancestor on PCIe: 0 same board, 10 one switch, 20 several, 30 host bridge, 40 node, 50 system."""
    return _line("topo", index, peer, level)


def driver(**facts: Facts) -> str:
    """``version``; another ``epoch`` = the driver was loaded again: Uninitialized until the next init."""
    return _line("driver", **facts)


class GpuWorld:
    """The folder. Every method is one transaction; any number of processes may use the same folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        for name in ("", "procs", "linger"):
            os.makedirs(self._path(name), exist_ok=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._path("lock"), "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _replace(self, name: str, text: str) -> None:
        draft = self._path(f".{name.replace('/', '-')}.{os.getpid()}")
        with open(draft, "w") as file:
            file.write(text)
        os.replace(draft, self._path(name))

    def _read(self, name: str) -> str:
        try:
            with open(self._path(name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    # --- the cards --------------------------------------------------------------------------------------------------

    def write(self, *lines: str) -> None:
        """Describe the machine anew. Raises ValueError for a line that the stand-in would not understand."""
        self.edit(lambda _: lines)

    def edit(self, change: Callable[[list[str]], Sequence[str]]) -> None:
        """Replace the lines by what ``change`` makes of them."""
        with self._locked():
            lines = [line for text in change(self.lines()) for line in text.splitlines() if line.strip()]
            unknown = [line for line in lines if line.split()[0] not in _WORDS]
            if unknown:
                raise ValueError(f"not a line of a world: {unknown[0]!r}")
            # Cards first, then their parts: the other lines speak of them.
            order = ("driver", "gpu", "mig")
            lines.sort(key=lambda line: order.index(word) if (word := line.split()[0]) in order else len(order))
            self._write_sys(lines)
            self._replace("devices", "".join(f"{line}\n" for line in lines))
            self._note_peak()

    def lines(self) -> list[str]:
        """As they are now."""
        return self._read("devices").splitlines()

    def add(self, *lines: str) -> None:
        """More lines."""
        self.edit(lambda old: [*old, *lines])

    def remove(self, *begin: str) -> None:
        """Without the lines that begin with one of these words: ``remove("err")``, ``remove("proc 1 ")``."""
        self.edit(lambda old: [line for line in old if not f"{line} ".startswith(begin)])

    def set(self, index: int, **facts: Facts) -> None:
        """Change facts of a card."""

        def change(old: list[str]) -> list[str]:
            if not any(line.split()[:2] == ["gpu", str(index)] for line in old):
                raise ValueError(f"no gpu {index} in this world")
            kept = []
            for line in old:
                words = line.split()
                if words[:2] == ["gpu", str(index)]:
                    line = _line("gpu", index, **{**dict(word.split("=", 1) for word in words[2:]), **facts})
                kept.append(line)
            return kept

        self.edit(change)

    def set_error(self, function: str, where: int | str, code: int, *, times: int | None = None) -> None:
        """Calls fail: a symbol without "nvml" or "*"; a card, "card.sub" or "*"; ``times`` = only so often."""
        self.add(_line("err", function, where, code, **({} if times is None else {"times": times})))

    def clear_errors(self) -> None:
        """Nothing fails any more."""
        self.remove("err ")

    def set_delay(self, function: str, where: int | str, milliseconds: int) -> None:
        """Calls take so long; they end at once when the delay is cleared."""
        self.add(_line("delay", function, where, milliseconds))

    def clear_delays(self) -> None:
        """Nothing is slow any more; calls that hang go on."""
        self.remove("delay ")

    def event(self, index: int, data: int, kind: int = 8, **facts: Facts) -> None:
        """Something happened to a card: by default an Xid (8) of number ``data``; ``gi`` = to that GPU instance of it."""

        def change(old: list[str]) -> list[str]:
            last = max((int(line.split()[1]) for line in old if line.startswith("event ")), default=0)
            return [*old, _line("event", last + 1, index, type=kind, data=data, **facts)]

        self.edit(change)

    # --- memory -----------------------------------------------------------------------------------------------------

    def allocate(self, pid: int, wanted: Mapping[str, int], *, kinds: str = "C", lag_s: float = 0.0) -> dict[str, int]:
        """From now on the process holds exactly this, by uuid; nothing changes when it does not fit somewhere.

        What it gives back stays taken for ``lag_s`` seconds.

        Returns the bytes that were missing, per uuid; empty = done. A refusal is one line in the log. Raises ValueError
        for a device that is not in this world, and for bytes below zero.
        """
        with self._locked():
            devices = self._devices()
            for uuid, held in wanted.items():
                if uuid not in devices or held < 0:
                    raise ValueError(f"cannot hold {held} bytes of {uuid}; there are {', '.join(devices) or 'no devices'}")
            missing = {}
            for uuid, held in wanted.items():
                free = self._room(devices[uuid]) - self._taken(uuid, devices, without=pid)
                if held > free:
                    missing[uuid] = held - free
                    self._log(pid, uuid, held, free)
            if not missing:
                self._keep(pid, wanted, lag_s)
                self._replace(f"procs/{pid}", "".join(f"{uuid} {held} {kinds}\n" for uuid, held in wanted.items() if held))
                self._note_peak()
            return missing

    def release(self, pid: int, *, lag_s: float = 0.0) -> None:
        """The process holds nothing any more; what it held stays taken for ``lag_s`` seconds."""
        with self._locked():
            self._keep(pid, {}, lag_s)
            try:
                os.unlink(self._path(f"procs/{pid}"))
            except FileNotFoundError:
                pass

    def holdings(self, pid: int) -> dict[str, int]:
        """What a process holds, by uuid, alive or not."""
        return _sums(self._read(f"procs/{pid}"))

    def linger(self, name: str, uuid: str, held: int, seconds: float) -> None:
        """Bytes stay taken for a while, though nobody holds them."""
        with self._locked():
            self._replace(f"linger/{name}", f"{uuid} {held} {time.monotonic() + seconds:.6f}\n")
            self._note_peak()

    def used(self, uuid: str) -> int:
        """Bytes taken on a device now, by anybody."""
        with self._locked():
            return self._taken(uuid, self._devices())

    def capacity(self, uuid: str) -> int:
        """Bytes that can be taken at most: total - reserved."""
        with self._locked():
            return self._room(self._devices()[uuid])

    def peak(self) -> dict[str, int]:
        """The most that was ever taken, by uuid."""
        with self._locked():
            return _sums(self._read("peak"))

    def oom_log(self) -> list[str]:
        """A line per refused allocation: ``at=<s> pid= uuid= wanted= free=``."""
        return self._read("oom.log").splitlines()

    # --- inside (the lock is held) -----------------------------------------------------------------------------------

    def _devices(self) -> dict[str, dict[str, str]]:
        found = {}
        for line in self.lines():
            words = line.split()
            if words[0] not in ("gpu", "mig"):
                continue
            facts = dict(word.split("=", 1) for word in words if "=" in word)
            place = ".".join(word for word in words[1:3] if "=" not in word)
            default = f"GPU-fake-{place}" if words[0] == "gpu" else f"MIG-fake-{place.replace('.', '-')}"
            found[facts.get("uuid", default)] = {**facts, "place": place}
        return found

    def _keep(self, pid: int, wanted: Mapping[str, int], lag_s: float) -> None:
        """What a process gives back lingers, without a moment in which it counts twice or not at all."""
        for uuid, held in _sums(self._read(f"procs/{pid}")).items() if lag_s else ():
            if held > wanted.get(uuid, 0):
                self._replace(f"linger/{pid}-{uuid}", f"{uuid} {held - wanted.get(uuid, 0)} {time.monotonic() + lag_s:.6f}\n")

    @staticmethod
    def _room(facts: Mapping[str, str]) -> int:
        return int(facts.get("total", 24 << 30)) - int(facts.get("reserved", 0))

    def _taken(self, uuid: str, devices: Mapping[str, Mapping[str, str]], without: int | None = None) -> int:
        place = devices[uuid]["place"]
        inside = {u for u, facts in devices.items() if facts["place"] == place or facts["place"].startswith(f"{place}.")}
        total = sum(int(devices[u].get("used", 0)) for u in inside)
        for line in self.lines():
            words = line.split()
            if words[0] == "proc":
                facts = dict(word.split("=", 1) for word in words if "=" in word)
                said = facts.get("used", "0")
                where = next((u for u, each in devices.items() if each["place"] == words[1]), "")
                total += int(facts.get("held", 0 if said == "na" else said)) if where in inside else 0
        for name in os.listdir(self._path("procs")):
            if name.isdigit() and int(name) != without and _alive(name):
                total += sum(held for u, held in _sums(self._read(f"procs/{name}")).items() if u in inside)
        for name in os.listdir(self._path("linger")):
            words = self._read(f"linger/{name}").split()
            if len(words) == 3 and words[0] in inside and float(words[2]) > time.monotonic():
                total += int(words[1])
        return total

    def _note_peak(self) -> None:
        devices, peak = self._devices(), _sums(self._read("peak"))
        for uuid in devices:
            peak[uuid] = max(peak.get(uuid, 0), self._taken(uuid, devices))
        self._replace("peak", "".join(f"{uuid} {most}\n" for uuid, most in peak.items()))

    def _log(self, pid: int, uuid: str, held: int, free: int) -> None:
        with open(self._path("oom.log"), "a") as file:
            file.write(f"at={time.monotonic():.3f} pid={pid} uuid={uuid} wanted={held} free={max(0, free)}\n")

    def _write_sys(self, lines: Sequence[str]) -> None:
        for line in lines:
            facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if line.startswith("gpu ") and "numa" in facts:
                bus = facts.get("bus", f"0000:{16 + int(line.split()[1]):02x}:00.0").lower()
                folder = f"sys/bus/pci/devices/{bus}"
                os.makedirs(self._path(folder), exist_ok=True)
                with open(self._path(f"{folder}/numa_node"), "w") as file:
                    file.write(f"{facts['numa']}\n")


def _sums(text: str) -> dict[str, int]:
    """Lines ``uuid bytes ...`` as a mapping; ``na`` counts nothing."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        found[words[0]] = found.get(words[0], 0) + (int(words[1]) if words[1] != "na" else 0)
    return found


def _alive(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X", b"x")
    except OSError:
        return False
