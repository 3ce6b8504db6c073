"""Parsing of /proc, from real lines and from a made-up /proc."""

import os
import sys
from pathlib import Path

import pytest

from adapters.procfs.memory import HostMemory, Resident, read_cpu_times, read_held_bytes, read_host_memory, read_resident
from adapters.procfs.processes import (
    ProcessScanner,
    ProcessTable,
    Stat,
    parse_stat,
    read_activity,
    read_boot_id,
    read_origin,
    read_stat,
    read_token,
)

PAGE = os.sysconf("SC_PAGE_SIZE")


def stat_line(
    pid: int, name: str = "engine", state: str = "S", *, parent: int = 1, session: int = 0, ticks: int = 100, threads: int = 1, env: int = 7
) -> str:
    """A line as the kernel writes it: 52 fields."""
    fields = [state, parent, session or pid, session or pid, *[0] * 13, threads, 0, ticks, *[0] * 25, 0, 0, env, env + 9, 0]
    assert len(fields) == 50
    return f"{pid} ({name}) {' '.join(map(str, fields))}\n"


class FakeProc:
    """A /proc in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def add(self, pid: int, environ: bytes = b"", **facts) -> None:
        self.write(f"{pid}/stat", stat_line(pid, **facts))
        self.write(f"{pid}/environ", environ)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


# --- processes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine", "a b", "a) S 1 1 (", "((", "x\ny", "ü"])
def test_names_cannot_shift_the_fields(name: str) -> None:
    stat = parse_stat(stat_line(12, name, "R", parent=3, session=9, ticks=77, threads=2, env=5).encode())
    assert stat == Stat(pid=12, state="R", parent=3, group=9, session=9, threads=2, start_ticks=77, env_start=5)


def test_short_lines_of_old_kernels_are_understood() -> None:
    assert parse_stat(b" ".join(stat_line(12).encode().split()[:44])).env_start == 0


@pytest.mark.parametrize(
    ("state", "threads", "dead"),
    [("S", 1, False), ("D", 1, False), ("T", 1, False), ("Z", 1, True), ("Z", 0, True), ("Z", 2, False), ("X", 0, True)],
)
def test_dead_is_a_zombie_without_other_threads(state: str, threads: int, dead: bool) -> None:
    assert parse_stat(stat_line(5, state=state, threads=threads).encode()).dead is dead


def test_own_process_is_read_right() -> None:
    own = read_stat(os.getpid())
    assert own is not None
    assert (own.pid, own.parent, own.group, own.session) == (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    assert not own.dead
    assert len(read_boot_id()) == 36
    assert read_origin(os.getpid()) is not None


def test_nobody_there(tmp_path: Path) -> None:
    assert read_stat(5, str(tmp_path)) is None
    assert read_token(5, str(tmp_path)) is None
    assert read_origin(5, str(tmp_path)) is None


@pytest.mark.parametrize(
    ("block", "token"),
    [
        (b"_SEAT_TOKEN=u:1\0PATH=/bin\0", "u:1"),
        (b"PATH=/bin\0_SEAT_TOKEN=u:1", "u:1"),
        (b"X_SEAT_TOKEN=u:1\0A=_SEAT_TOKEN=u:1\0", None),
        (b"_SEAT_TOKEN=\0", None),
        (b"\0\0\0\0", None),
        (b"engine: working", None),
        (b"", None),
    ],
)
def test_token_is_a_whole_variable(proc: FakeProc, block: bytes, token: str | None) -> None:
    proc.add(5, block)
    assert read_token(5, str(proc.root)) == token


def test_scan_indexes_every_process(proc: FakeProc) -> None:
    proc.add(10, b"_SEAT_TOKEN=u:1\0", session=10)
    proc.add(11, b"_SEAT_TOKEN=u:1\0", session=10, parent=10)
    proc.add(12, session=12, parent=11)
    proc.write("meminfo", "")
    table = ProcessScanner(str(proc.root)).scan()
    assert sorted(table.by_pid) == [10, 11, 12]
    assert table.tokens == {10: "u:1", 11: "u:1"}
    assert {pid: sorted(stat.pid for stat in stats) for pid, stats in table.by_session.items()} == {10: [10, 11], 12: [12]}
    assert [stat.pid for stat in table.by_parent[11]] == [12]
    assert sorted(stat.pid for stat in table.by_token["u:1"]) == [10, 11]


def test_token_once_seen_is_remembered_until_the_next_exec(proc: FakeProc) -> None:
    scanner = ProcessScanner(str(proc.root))
    proc.add(10, b"_SEAT_TOKEN=u:1\0", env=100)
    assert scanner.scan().tokens == {10: "u:1"}
    proc.add(10, b"\0\0\0\0\0\0", env=100)  # a title was written over the block
    assert scanner.scan().tokens == {10: "u:1"}
    proc.add(10, b"PATH=/bin\0", env=200)  # another program
    assert scanner.scan().tokens == {}
    proc.add(10, b"_SEAT_TOKEN=u:2\0", env=200, ticks=101)  # another process
    assert scanner.scan().tokens == {10: "u:2"}


def test_environment_is_read_once_per_program(proc: FakeProc) -> None:
    scanner = ProcessScanner(str(proc.root))
    proc.add(10, b"PATH=/bin\0", env=100)
    assert scanner.scan().tokens == {}
    proc.add(10, b"_SEAT_TOKEN=u:1\0", env=100)
    assert scanner.scan().tokens == {}, "the block was read again, which may block on a stuck process"


def test_scan_follows_a_process_that_hands_over_and_ends_meanwhile(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(10)
    proc.add(20)
    listed: list[int] = []
    list_folder = os.listdir

    def end_one_after_listing(path: str) -> list[str]:
        names = list_folder(path)
        listed.append(len(names))
        if len(listed) == 1:  # the process forks a child with a lower number, and ends
            (proc.root / "20/stat").unlink()
            proc.add(5)
        return names

    monkeypatch.setattr(os, "listdir", end_one_after_listing)
    assert sorted(ProcessScanner(str(proc.root)).scan().by_pid) == [5, 10]
    assert len(listed) == 2


def test_table_of_nothing() -> None:
    assert ProcessTable.of((), {}).by_pid == {}


# --- memory -------------------------------------------------------------------------------------------------------------

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:  0\n"


def test_meminfo(proc: FakeProc) -> None:
    proc.write("meminfo", MEMINFO)
    assert read_host_memory(str(proc.root)) == HostMemory(total_bytes=1000 * 1024, available_bytes=400 * 1024)


@pytest.mark.parametrize("text", ["", "MemTotal: 1000 kB\nMemFree: 5 kB\n", "nonsense"])
def test_meminfo_that_says_too_little_is_refused(proc: FakeProc, text: str) -> None:
    proc.write("meminfo", text)
    with pytest.raises(ValueError, match="MemAvailable"):
        read_host_memory(str(proc.root))


def test_host_memory_of_this_machine() -> None:
    memory = read_host_memory()
    assert 0 < memory.available_bytes < memory.total_bytes


def _mount(proc: FakeProc, kind: str, options: str, root: str = "/") -> Path:
    mounted = proc.root / "mounted"
    mounted.mkdir()
    proc.write("meminfo", MEMINFO)
    proc.write(
        "self/mountinfo",
        f"31 23 0:28 / /sys rw - sysfs sysfs rw\n32 31 0:29 {root} {mounted} rw,relatime shared:5 - {kind} {kind} {options}\n",
    )
    return mounted


def test_limits_of_control_groups_version_2(proc: FakeProc) -> None:
    mounted = _mount(proc, "cgroup2", "rw,nsdelegate")
    proc.write("self/cgroup", "0::/system.slice/hotseat.service\n")
    own = mounted / "system.slice/hotseat.service"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (own / "memory.current").write_text("1\n")
    assert read_host_memory(str(proc.root)).total_bytes == 1000 * 1024
    parent = mounted / "system.slice"
    (parent / "memory.max").write_text("900000\n")
    (parent / "memory.high").write_text("800000\n")
    (parent / "memory.current").write_text("700000\n")
    assert read_host_memory(str(proc.root)) == HostMemory(800_000, 100_000)
    (parent / "memory.stat").write_text("anon 500000\ninactive_file 60000\nactive_file 40000\n")
    assert read_host_memory(str(proc.root)) == HostMemory(800_000, 200_000)
    (parent / "memory.current").write_text("990000\n")
    assert read_host_memory(str(proc.root)) == HostMemory(800_000, 0)


def test_limits_of_control_groups_version_1_in_a_container(proc: FakeProc) -> None:
    mounted = _mount(proc, "cgroup", "rw,memory", root="/docker/abc")
    proc.write("self/cgroup", "9:name=systemd:/\n4:memory:/docker/abc\n0::/\n")
    (mounted / "memory.limit_in_bytes").write_text("600000\n")
    (mounted / "memory.usage_in_bytes").write_text("500000\n")
    (mounted / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 2000\n")
    assert read_host_memory(str(proc.root)) == HostMemory(600_000, 103_000)
    (mounted / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert read_host_memory(str(proc.root)) == HostMemory(1000 * 1024, 400 * 1024)


def test_held_bytes_are_the_share_and_what_was_swapped_out(proc: FakeProc) -> None:
    proc.write(
        "7/smaps_rollup",
        "00-ff ---p 00000000 00:00 0    [rollup]\nRss: 900 kB\nPss: 300 kB\nPss_Anon: 200 kB\nSwap: 80 kB\nSwapPss: 20 kB\n",
    )
    assert read_held_bytes(7, str(proc.root)) == 320 * 1024


@pytest.mark.parametrize(("statm", "held"), [("900 50 9 1 0 1 0\n", 50 * PAGE), ("0 0 0 0 0 0 0\n", None), ("", None)])
def test_without_shares_all_resident_pages_count(proc: FakeProc, statm: str, held: int | None) -> None:
    proc.write("7/statm", statm)
    assert read_held_bytes(7, str(proc.root)) == held
    proc.write("7/smaps_rollup", "")
    assert read_held_bytes(7, str(proc.root)) == held


def test_resident_counters(proc: FakeProc) -> None:
    proc.write("7/status", "Name:\t1 2\nVmRSS:\t 100 kB\nRssAnon:\t 50 kB\nRssFile:\t 40 kB\nRssShmem:\t 10 kB\nVmSwap:\t 7 kB\n")
    assert read_resident(7, str(proc.root)) == Resident(private_bytes=57 * 1024, shared_bytes=50 * 1024, shmem_bytes=10 * 1024)
    proc.write("7/status", "Name:\tending\nState:\tR\n")
    assert read_resident(7, str(proc.root)) is None
    assert read_resident(8, str(proc.root)) is None


def test_held_bytes_of_nobody(tmp_path: Path) -> None:
    assert read_held_bytes(7, str(tmp_path)) is None


def test_held_bytes_of_this_process() -> None:
    held = read_held_bytes(os.getpid())
    assert held is not None
    assert held > sys.getsizeof("") + 1_000_000


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("cpu  10 1 5 100 20 2 3 4 9 9\ncpu0 1 1 1 1\n", (25, 145)),
        ("cpu 1 2\n", None),
        ("", None),
        ("cpu a b c d e\n", None),
    ],
)
def test_cpu_times(proc: FakeProc, text: str, times: tuple[int, int] | None) -> None:
    proc.write("stat", text)
    assert read_cpu_times(str(proc.root)) == times


def test_activity_is_what_was_read_from_disk_and_the_log(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.write("7/io", "rchar: 90\nwchar: 1\nread_bytes: 4096\nwrite_bytes: 5\n")
    proc.write("8/io", "rchar: 90\nread_bytes: 100\n")
    proc.write("9/io", "")  # another user's
    log = tmp_path / "engine.log"
    assert read_activity([7, 8, 9, 10], str(log), str(proc.root)) == 4196
    log.write_text("loading\n")
    assert read_activity([7], str(log), str(proc.root)) == 4104
    assert read_activity([], str(log), str(proc.root)) == 8
