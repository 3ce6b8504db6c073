"""Who may use the control API (interfaces.md section 5).

Until keys exist there are two doors. The control socket tells us who calls (SO_PEERCRED): root, the daemon's user and
members of the group ``hotseat`` may write. Over TCP only reading is possible, and only for callers on this machine;
whatever looks forwarded, comes from a foreign web page, or names a host that is not ours counts as remote.
"""

import grp
import ipaddress
import os
import pwd
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from scheduler.api.errors import NotPermitted

GROUP = "hotseat"
_SO_PEERGROUPS = 59  # Linux >= 4.13, asm-generic; the socket module has no name for it
_MOST_GROUP_BYTES = 1024  # the most that getsockopt takes here: 256 groups
_READS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """``own_hosts``: hosts of the listen addresses, lower case, without port. ``group_gid`` None = no such group here."""

    daemon_uid: int
    group_gid: int | None = None
    own_hosts: frozenset[str] = frozenset()


def local_policy(listen_hosts: Iterable[str]) -> AccessPolicy:
    """The policy of this process: its user, the group ``hotseat`` if there is one, and the hosts it listens on."""
    try:
        gid = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        gid = None
    hosts = frozenset(host.strip("[]").lower() for host in listen_hosts)
    return AccessPolicy(daemon_uid=os.geteuid(), group_gid=gid, own_hosts=hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request. ``remote`` = why it counts as remote, empty when it does not; ids only over the socket."""

    remote: str = ""
    uid: int | None = None
    gids: frozenset[int] = frozenset()

    @property
    def principal(self) -> str:
        """The name under which actions of this caller are recorded."""
        return "local" if self.uid is None else f"uid:{_user_name(self.uid)}"


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


CALLER = web.RequestKey("hotseat.caller", Caller)


def _socket_caller(sock: socket.socket, remote: str) -> Caller:
    _pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    gids = {gid}
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUP_BYTES)
        gids.update(struct.unpack(f"{len(raw) // 4}I", raw))
    except OSError:
        pass  # an old kernel, or more than 256 groups: the primary group must do
    return Caller(uid=uid & 0xFFFFFFFF, gids=frozenset(gids), remote=remote)


def host_of(netloc: str) -> str:
    """The host part of ``host[:port]``, lower case, without brackets; empty when it is not well-formed."""
    try:
        parts = urlsplit(f"//{netloc}")
        return (parts.hostname or "") if parts.netloc == netloc and "@" not in netloc and parts.port != 0 else ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _forwarded(request: web.BaseRequest) -> str:
    for name in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"):
        if name in request.headers:
            return f"it carries the header {name}, so a proxy passed it on"
    return ""


def _foreign_origin(request: web.BaseRequest) -> str:
    origin = request.headers.get("Origin")
    if origin is None:
        return ""
    parts = origin.partition("://")
    if parts[0] in ("http", "https") and parts[2] and parts[2].lower() == request.headers.get("Host", "").lower():
        return ""
    return f"its Origin {origin[:80]!r} is another web page"


def _foreign_host(request: web.BaseRequest, policy: AccessPolicy) -> str:
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1:
        return "it names no host" if not hosts else "it names more than one host"
    host = host_of(hosts[0])
    if is_loopback(host) or host in policy.own_hosts:
        return ""
    return f"its Host {hosts[0][:80]!r} is neither loopback nor an address the daemon listens on"


def foreign_page(request: web.BaseRequest, policy: AccessPolicy) -> str:
    """Why this request may come from a web page that is not ours; empty when nothing speaks for it."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    named = "Host" in request.headers and (sock is None or sock.family != socket.AF_UNIX)
    return _foreign_origin(request) or (_foreign_host(request, policy) if named else "")


def _foreign_peer(sock: socket.socket) -> str:
    peer = str(sock.getpeername()[0]).partition("%")[0].removeprefix("::ffff:")
    return "" if is_loopback(peer) else f"it comes from {peer}"


def identify(request: web.BaseRequest, policy: AccessPolicy) -> Caller:
    """Who sent this request. A connection that is gone counts as remote."""
    sock = request.transport.get_extra_info("socket") if request.transport is not None else None
    if sock is None:
        return Caller(remote="its connection is gone")
    passed_on = _forwarded(request) or _foreign_origin(request)
    try:
        if sock.family == socket.AF_UNIX:
            return _socket_caller(sock, passed_on)
        return Caller(remote=passed_on or _foreign_host(request, policy) or _foreign_peer(sock))
    except OSError:
        return Caller(remote="its connection is gone")


def check(caller: Caller, policy: AccessPolicy, *, write: bool) -> None:
    """Raise NotPermitted when this caller may not read (or write)."""
    if caller.remote:
        raise NotPermitted(
            f"the control API answers only callers on this machine; this request counts as remote because {caller.remote}",
            fix="use the hotseat command on the machine itself (it talks to the control socket)",
        )
    if not write:
        return
    if caller.uid is None:
        raise NotPermitted(
            "changes are not accepted over TCP",
            fix="use the hotseat command on this machine, or send the request to <state_dir>/control.sock (curl --unix-socket)",
        )
    if caller.uid in (0, policy.daemon_uid) or (policy.group_gid is not None and policy.group_gid in caller.gids):
        return
    raise NotPermitted(
        f"user {_user_name(caller.uid)} may read but not change anything",
        fix=f"run it as root or as {_user_name(policy.daemon_uid)}, or join the group {GROUP}",
    )


def guard(policy: AccessPolicy) -> Middleware:
    """Middleware: identify the caller, refuse what is not permitted, and keep the caller for the handler."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = identify(request, policy)
        check(caller, policy, write=request.method not in _READS)
        request[CALLER] = caller
        return await handler(request)

    return middleware
