"""Who listens on a port, read from a made-up /proc/net; which ports are handed out; what cannot be looked into."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.launchers.ports import PortChooser, find_listeners, holds_all
from scheduler.domain.errors import Temporary

REPOSITORY = Path(__file__).parents[2]
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LOOPBACK, ANY, LAN = "0100007F", "00000000", "0500A8C0"
ANY6, LOOPBACK6, MAPPED = "0" * 32, "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F"
LISTEN, ESTABLISHED = "0A", "01"


def row(address: str, port: int, inode: int, state: str = LISTEN) -> str:
    return f"   0: {address}:{port:04X} {ANY}:0000 {state} 00000000:00000000 00:00000000 00000000  0 0 {inode} 1 0000 100 0 0 10 0\n"


def listeners(root: Path, tcp: str, tcp6: str | None = None) -> set[int]:
    (root / "net").mkdir()
    (root / "net/tcp").write_text(HEAD + tcp)
    if tcp6 is not None:
        (root / "net/tcp6").write_text(HEAD + tcp6)
    return {int(inode) for inode in find_listeners(8000, str(root))}


@pytest.mark.skipif(sys.byteorder != "little", reason="the rows above are written in little-endian order")
@pytest.mark.parametrize(
    ("tcp", "tcp6", "found"),
    [
        ("", None, set()),
        (row(LOOPBACK, 8000, 1), None, {1}),
        (row(LOOPBACK, 8001, 1) + row(LOOPBACK, 8000, 2, ESTABLISHED), "", set()),
        (row(LAN, 8000, 1), row(LOOPBACK6, 8000, 2), set()),
        (row(ANY, 8000, 1), row(ANY6, 8000, 2), {1}),
        ("", row(ANY6, 8000, 2), {2}),
        (row(ANY, 8000, 1) + row(LOOPBACK, 8000, 3), row(ANY6, 8000, 2) + row(MAPPED, 8000, 4), {3, 4}),
        (row(LOOPBACK, 8000, 1) + row(LOOPBACK, 8000, 2), "", {1, 2}),
    ],
)
def test_listeners_are_those_that_a_loopback_connection_reaches(tmp_path: Path, tcp: str, tcp6: str | None, found: set[int]) -> None:
    assert listeners(tmp_path, tcp, tcp6) == found


def test_all_sockets_must_be_held_by_the_group() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        inodes = find_listeners(server.getsockname()[1])
        assert len(inodes) == 1
        assert holds_all([os.getpid()], inodes) is True
        assert holds_all([2**22 + 1, os.getpid()], inodes) is True
        assert holds_all([os.getpid()], inodes | {b"1"}) is False
        assert holds_all([2**22 + 1], inodes) is False
        assert holds_all([], inodes) is False


HIDDEN = """
import os
from adapters.launchers.ports import holds_all
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(holds_all([1], frozenset({b"1"})), holds_all([1, os.getpid()], frozenset({b"1"})), holds_all([], frozenset({b"1"})))
"""


def test_process_that_hides_its_files_leaves_the_question_open() -> None:
    run = subprocess.run([sys.executable, "-c", HIDDEN], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout == "None None False\n"


def _proc(root: Path, local_range: str | None, reserved: str = "") -> str:
    folder = root / "sys/net/ipv4"
    folder.mkdir(parents=True)
    if local_range is not None:
        (folder / "ip_local_port_range").write_text(local_range)
        (folder / "ip_local_reserved_ports").write_text(reserved + "\n")
    return str(root)


def test_reserved_ports_are_left_alone_and_each_comes_back_only_after_the_others(tmp_path: Path) -> None:
    chooser = PortChooser(_proc(tmp_path, "21100\t60999\n", "20000-20999,21050"))
    first = [chooser.choose() for _ in range(99)]
    assert set(first) <= {*range(21000, 21050), *range(21051, 21100)}
    assert len(set(first)) >= 90, "a few may be in use on this machine; the others come once each"


@pytest.mark.parametrize("local_range", ["1024 65535\n", "rubbish\n", "\n", None])
def test_without_room_below_outgoing_ports_any_free_one_will_do(tmp_path: Path, local_range: str | None) -> None:
    port = PortChooser(_proc(tmp_path, local_range)).choose()
    assert 20000 <= port < 65536


def test_used_ports_are_skipped_and_none_left_is_temporary(tmp_path: Path) -> None:
    chooser = PortChooser(_proc(tmp_path, "21000\t60999\n", "20000-20998"))
    port = chooser.choose()
    assert port == 20999
    assert chooser.choose() == port, "the only one comes back at once"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Temporary, match="none of 1 loopback ports is free") as failure:
        chooser.choose()
    assert failure.value.code == "port_taken"
