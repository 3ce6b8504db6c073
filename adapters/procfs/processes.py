"""Reading /proc: what runs on this machine, and who it belongs to. Everything here blocks; call it in a thread."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

PROC = "/proc"

#: Environment variable that marks every process of a launch: "<state-dir uuid>:<launch id>".
TOKEN_VARIABLE = "_SEAT_TOKEN"

#: How often a scan lists /proc again because processes ended while it ran.
_MAX_PASSES = 8


@dataclass(frozen=True, slots=True)
class Stat:
    """The part of /proc/PID/stat that identifies a process and its family."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    threads: int
    start_ticks: int
    env_start: int  # changes with every exec; 0 when we may not look, or the memory is already gone

    @property
    def dead(self) -> bool:
        """Whether it has ended; a main thread that left while others run shows as a zombie and is not dead."""
        return self.state in "ZXx" and self.threads <= 1

    @property
    def key(self) -> tuple[int, int]:
        """Identity that survives the reuse of the number."""
        return self.pid, self.start_ticks


def parse_stat(text: bytes) -> Stat:
    """One line of /proc/PID/stat; the name in parentheses may itself hold spaces and parentheses."""
    head, _, rest = text.rpartition(b")")
    fields = rest.split()
    return Stat(
        pid=int(head.partition(b"(")[0]),
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        env_start=int(fields[47]) if len(fields) > 47 else 0,
    )


def read_bytes(path: str) -> bytes:
    """A whole file of /proc; raises OSError (ProcessLookupError when the process ended while being read)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    finally:
        os.close(fd)
    return b"".join(chunks)


def read_stat(pid: int, proc: str = PROC) -> Stat | None:
    """The process of this number now, a zombie included; None when there is none, or when /proc hides it from us."""
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        return parse_stat(os.read(fd, 4096))  # one read: a scan does this a thousand times
    except (ProcessLookupError, PermissionError):
        return None
    finally:
        os.close(fd)


def read_boot_id(proc: str = PROC) -> str:
    """The identity of this boot of the kernel."""
    return read_bytes(f"{proc}/sys/kernel/random/boot_id").decode("ascii").strip()


def read_token(pid: int, proc: str = PROC) -> str | None:
    """The launch token in a process's environment block; None without one, or when it cannot be read."""
    try:
        block = read_bytes(f"{proc}/{pid}/environ")
    except OSError:
        return None
    prefix = TOKEN_VARIABLE.encode() + b"="
    for entry in block.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :]) or None
    return None


def read_origin(pid: int, proc: str = PROC) -> tuple[bytes, bytes] | None:
    """Who a process runs as and in which control groups: (user ids, cgroup file); None when it is gone."""
    try:
        status = read_bytes(f"{proc}/{pid}/status")
        users = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"")
        return users, read_bytes(f"{proc}/{pid}/cgroup")
    except OSError:
        return None


def read_activity(pids: Iterable[int], log_path: str, proc: str = PROC) -> int:
    """Bytes that processes had read from disk so far, and the size of their log."""
    total = 0
    try:
        total = os.stat(log_path).st_size
    except OSError:
        pass
    for pid in pids:
        try:
            lines = read_bytes(f"{proc}/{pid}/io").splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith(b"read_bytes:")), 0)
    return total


def count_oom_kills(proc: str = PROC) -> int:
    """Processes the kernel killed for want of memory since boot; 0 when it does not say."""
    try:
        lines = read_bytes(f"{proc}/vmstat").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """All processes at one moment, with the indexes that membership questions need."""

    by_pid: dict[int, Stat]
    tokens: dict[int, str] = field(default_factory=dict)
    by_session: dict[int, list[Stat]] = field(default_factory=dict)
    by_group: dict[int, list[Stat]] = field(default_factory=dict)
    by_parent: dict[int, list[Stat]] = field(default_factory=dict)
    by_token: dict[str, list[Stat]] = field(default_factory=dict)

    @staticmethod
    def of(stats: Iterable[Stat], tokens: dict[int, str]) -> "ProcessTable":
        """Index ``stats``; ``tokens`` maps process ids to the tokens they carry."""
        table = ProcessTable({stat.pid: stat for stat in stats}, tokens)
        for stat in table.by_pid.values():
            table.by_session.setdefault(stat.session, []).append(stat)
            table.by_group.setdefault(stat.group, []).append(stat)
            table.by_parent.setdefault(stat.parent, []).append(stat)
            if stat.pid in tokens:
                table.by_token.setdefault(tokens[stat.pid], []).append(stat)
        return table


class ProcessScanner:
    """Scans /proc and remembers the tokens it has seen. Use from one thread at a time.

    A token is read once per program image, because engines overwrite their environment block later, and because
    reading it takes a lock that a process stuck in a driver may hold for ever.
    """

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._tokens: dict[tuple[int, int, int], str | None] = {}
        self._zombies: frozenset[tuple[int, int]] = frozenset()

    def scan(self) -> ProcessTable:
        """Every process that was alive during the whole call is in the result."""
        stats = self._read_all()
        tokens: dict[tuple[int, int, int], str | None] = {}
        for stat in stats:
            # Without a readable environment (kernel threads, zombies, other users) there is nothing to look up.
            if stat.env_start:
                image = (stat.pid, stat.start_ticks, stat.env_start)
                tokens[image] = self._tokens[image] if image in self._tokens else read_token(stat.pid, self._proc)
        self._tokens = tokens
        return ProcessTable.of(stats, {image[0]: token for image, token in tokens.items() if token is not None})

    def _read_all(self) -> list[Stat]:
        seen: dict[int, Stat | None] = {}
        for _ in range(_MAX_PASSES):
            fresh = [int(name) for name in os.listdir(self._proc) if name.isdecimal() and int(name) not in seen]
            seen.update((pid, read_stat(pid, self._proc)) for pid in fresh)
            # One that ended just now may have handed over to a child that this listing does not show: list again.
            if not any(self._ended_just_now(seen[pid]) for pid in fresh):
                break
        stats = [stat for stat in seen.values() if stat is not None]
        self._zombies = frozenset(stat.key for stat in stats if stat.dead)
        return stats

    def _ended_just_now(self, stat: Stat | None) -> bool:
        return stat is None or (stat.dead and stat.key not in self._zombies)
