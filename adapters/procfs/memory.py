"""Host memory: what the machine still has to give, and what a process holds of it. Blocks; call it in a thread."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from adapters.procfs.processes import PROC, read_bytes

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of this machine or, where that is less, of the control groups this process lives in."""

    total_bytes: int
    available_bytes: int  # without swapping; includes what the page cache can give back


def read_host_memory(proc: str = PROC) -> HostMemory:
    """Measure now. Raises OSError or ValueError when /proc/meminfo is missing or too old (before Linux 3.14)."""
    facts = _read_pairs(f"{proc}/meminfo")
    if "MemTotal" not in facts or "MemAvailable" not in facts:
        raise ValueError(f"{proc}/meminfo does not say MemTotal and MemAvailable")
    total, available = facts["MemTotal"] * _KIB, facts["MemAvailable"] * _KIB
    for limit, used in _read_limits(proc):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return HostMemory(total, available)


def _read_limits(proc: str) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of every control group above this process that has a limit."""
    for folder, version in _memory_groups(proc):
        limits = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
        prefix = "" if version == 2 else "total_"
        limit = min((value for name in limits if (value := _read_number(f"{folder}/{name}")) is not None), default=None)
        usage = _read_number(f"{folder}/{'memory.current' if version == 2 else 'memory.usage_in_bytes'}")
        if limit is None or usage is None:
            continue
        try:
            facts = _read_pairs(f"{folder}/memory.stat")
        except OSError:
            facts = {}
        yield limit, usage - facts.get(f"{prefix}inactive_file", 0) - facts.get(f"{prefix}active_file", 0)


def _memory_groups(proc: str) -> Iterator[tuple[str, int]]:
    """Folders of this process's memory control group and its parents, as far as they are mounted, with the version."""
    try:
        mounts = read_bytes(f"{proc}/self/mountinfo").decode("utf-8", "surrogateescape").splitlines()
        paths = read_bytes(f"{proc}/self/cgroup").decode("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    for line in mounts:
        fields = line.split(" ")
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup2":
            version, path = 2, next((text.removeprefix("0::") for text in paths if text.startswith("0::")), None)
        elif kind == "cgroup" and "memory" in options:
            version, path = 1, next((text.split(":", 2)[2] for text in paths if "memory" in text.split(":")[1].split(",")), None)
        else:
            continue
        if path is not None:
            yield from ((folder, version) for folder in _folders_up(fields[4], fields[3], path))


def _folders_up(mount_point: str, mounted_root: str, path: str) -> Iterator[str]:
    inside = os.path.relpath(path, mounted_root)
    parts = [] if inside.startswith("..") or inside == "." else inside.split("/")
    for length in range(len(parts), -1, -1):
        yield "/".join([mount_point, *parts[:length]])


def _read_number(path: str) -> int | None:
    try:
        text = read_bytes(path).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" = no limit


def _read_pairs(path: str) -> dict[str, int]:
    """Lines "name: number unit" or "name number"; units are not applied."""
    pairs = {}
    for line in read_bytes(path).decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            pairs[words[0].rstrip(":")] = int(words[1])
    return pairs


def read_held_bytes(pid: int, proc: str = PROC) -> int | None:
    """Bytes that a process holds: its proportional share (PSS) of resident pages, plus its swapped ones.

    Where the kernel does not let us see shares, all its resident pages. None when it has no memory (any more):
    ended, ending, or a kernel thread. Walks all pages: measured 13 ms of processor time per GiB in small pages.
    """
    try:
        facts = _read_pairs(f"{proc}/{pid}/smaps_rollup")
    except ProcessLookupError:
        return None
    except OSError:
        return _read_resident_bytes(pid, proc)
    if "Pss" not in facts:
        return _read_resident_bytes(pid, proc)
    return (facts["Pss"] + facts.get("SwapPss", 0)) * _KIB


@dataclass(frozen=True, slots=True)
class Resident:
    """Counters that the kernel keeps anyway, so that reading them costs nothing."""

    private_bytes: int  # anonymous pages, in memory or swapped out; shared with nobody unless it forked
    shared_bytes: int  # file and shared-memory pages, resident; others may have them mapped as well
    shmem_bytes: int = 0  # of them the shared-memory pages, which no file gives back


def read_resident(pid: int, proc: str = PROC) -> Resident | None:
    """The counters of a process; None when it has no memory, or the kernel does not tell the kinds apart (before 4.5)."""
    try:
        facts = _read_pairs(f"{proc}/{pid}/status")
    except OSError:
        return None
    if not {"RssAnon", "RssFile", "RssShmem"} <= facts.keys():
        return None
    shared = (facts["RssFile"] + facts["RssShmem"]) * _KIB
    return Resident((facts["RssAnon"] + facts.get("VmSwap", 0)) * _KIB, shared, facts["RssShmem"] * _KIB)


def _read_resident_bytes(pid: int, proc: str) -> int | None:
    try:
        resident = int(read_bytes(f"{proc}/{pid}/statm").split()[1])
    except (OSError, IndexError):
        return None
    return resident * _PAGE_BYTES or None


def read_cpu_times(proc: str = PROC) -> tuple[int, int] | None:
    """(busy, total) clock ticks of all processors since boot; None when the kernel does not say."""
    try:
        fields = [int(word) for word in read_bytes(f"{proc}/stat").split(b"\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(fields) < 5:
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)
