"""Loopback ports: choosing a free one, and finding out who listens on one. Blocks; call it in a thread."""

import os
import socket
import sys
from collections.abc import Iterable

from adapters.procfs.processes import PROC, read_bytes
from scheduler.domain.errors import Temporary
from scheduler.domain.reasons import Code

_LISTEN = b"0A"
_FIRST_PORT = 20000
_MIN_PORTS = 1000


def _hex_address(family: socket.AddressFamily, text: str) -> bytes:
    packed = socket.inet_pton(family, text)
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return b"".join(b"%08X" % int.from_bytes(word, sys.byteorder) for word in words)


#: Local addresses at which a connection to 127.0.0.1 arrives; the kernel prefers the earlier ones.
_REACHED_BY_LOOPBACK = (
    (_hex_address(socket.AF_INET, "127.0.0.1"), _hex_address(socket.AF_INET6, "::ffff:127.0.0.1")),
    (_hex_address(socket.AF_INET, "0.0.0.0"),),  # compared with, not bound to
    (_hex_address(socket.AF_INET6, "::"),),
)


def find_listeners(port: int, proc: str = PROC) -> frozenset[bytes]:
    """Inodes of the sockets that take a connection to 127.0.0.1:``port``; empty when nobody listens."""
    ending = b":%04X" % port
    inodes: dict[bytes, set[bytes]] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = read_bytes(f"{proc}/net/{table}").splitlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        for line in lines:
            fields = line.split(maxsplit=10)
            if fields[3] == _LISTEN and fields[1].endswith(ending):
                inodes.setdefault(fields[1].removesuffix(ending), set()).add(fields[9])
    for addresses in _REACHED_BY_LOOPBACK:
        found = frozenset().union(*(inodes.get(address, set()) for address in addresses))
        if found:
            return found
    return frozenset()


def holds_all(pids: Iterable[int], inodes: frozenset[bytes], proc: str = PROC) -> bool | None:
    """Whether every one of these sockets is open in one of the processes; None when a process cannot be looked into."""
    wanted = {b"socket:[%s]" % inode for inode in inodes}
    hidden = False
    for pid in pids:
        try:
            wanted -= _open_files(f"{proc}/{pid}/fd")
        except PermissionError:
            hidden = True
        except OSError:
            continue  # ended meanwhile
    if wanted:
        return None if hidden else False
    return True


def find_holders(port: int, pids: Iterable[int], proc: str = PROC) -> frozenset[int]:
    """Which of these processes hold a socket that takes connections to 127.0.0.1:``port``; those we may not look into do not count."""
    wanted = {b"socket:[%s]" % inode for inode in find_listeners(port, proc)}
    found = set()
    for pid in pids if wanted else ():
        try:
            if wanted & _open_files(f"{proc}/{pid}/fd"):
                found.add(pid)
        except OSError:
            continue  # ended meanwhile, or another user's
    return frozenset(found)


def _open_files(folder: str) -> set[bytes]:
    links = set()
    for name in os.listdir(folder):
        try:
            links.add(os.fsencode(os.readlink(f"{folder}/{name}")))
        except FileNotFoundError:
            continue  # closed meanwhile
    return links


class PortChooser:
    """Hands out ports nobody uses, each again only after all the others.

    They come from below the range that the kernel gives to outgoing connections: a port from inside it could be
    taken by one of the gateway's own connections during the minute that an engine may need until it listens.
    """

    def __init__(self, proc: str = PROC) -> None:
        first, last = _port_range(proc)
        reserved = _reserved_ports(proc)
        self._ports = [port for port in range(first, last) if port not in reserved]
        self._next = os.getpid() * 61 % max(1, len(self._ports))  # two daemons should not start at the same one

    def choose(self) -> int:
        """A port that can be bound on loopback now; raises Temporary when there is none."""
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            if _can_bind(port):
                return port
        text = f"none of {len(self._ports)} loopback ports is free"
        raise Temporary(text, retry_after_s=10.0, code=Code.PORT_TAKEN, fix="see `ss -ltn` for who holds them")


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _port_range(proc: str) -> tuple[int, int]:
    try:
        lowest = int(read_bytes(f"{proc}/sys/net/ipv4/ip_local_port_range").split()[0])
    except (OSError, ValueError, IndexError):
        lowest = 32768
    return (_FIRST_PORT, lowest) if lowest - _FIRST_PORT >= _MIN_PORTS else (_FIRST_PORT, 65536)


def _reserved_ports(proc: str) -> set[int]:
    try:
        text = read_bytes(f"{proc}/sys/net/ipv4/ip_local_reserved_ports").decode("ascii").strip()
    except OSError:
        return set()
    reserved: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        reserved.update(range(int(first), int(last or first) + 1))
    return reserved
