"""Who may do what, tried over real sockets: TCP, the control socket, other users, proxies, foreign pages and hosts."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.api.access import AccessPolicy, host_of
from scheduler.api.control_socket import bind_control_socket
from scheduler.domain.errors import Conflict, HotseatError, Permanent
from tests.support import worlds
from tests.support.fake_plane import FakePlane, PlaneServer

GROUP_GID = 54321
NOBODY = 65534


@pytest.fixture(scope="module")
def server() -> Iterator[PlaneServer]:
    folder = Path(tempfile.mkdtemp(prefix="hs-access-"))  # short, and reachable for other users
    folder.chmod(0o755)
    policy = AccessPolicy(daemon_uid=os.geteuid(), group_gid=GROUP_GID, own_hosts=frozenset({"srv1.example", "192.0.2.7"}))
    with PlaneServer(folder, FakePlane([worlds.awake_card()]), policy) as server:
        yield server
    shutil.rmtree(folder)


def ask(target: PlaneServer, request: str, *, tcp: bool = True) -> tuple[int, dict[str, object]]:
    """Send raw bytes; the status and the JSON body (empty when it is none)."""
    if tcp:
        sock = socket.create_connection(("127.0.0.1", target.port), 10)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(str(target.socket_path))
    with sock:
        sock.sendall(request.replace("\n", "\r\n").encode())
        raw = b""
        while chunk := sock.recv(65536):
            raw += chunk
    head, _, body = raw.partition(b"\r\n\r\n")
    try:
        return int(head.split()[1]), json.loads(body)
    except ValueError:
        return int(head.split()[1]), {}


def get(path: str, *headers: str, host: str | None = "localhost", version: str = "1.1") -> str:
    lines = [f"GET {path} HTTP/{version}", *([f"Host: {host}"] if host is not None else []), *headers, "Connection: close"]
    return "\n".join(lines) + "\n\n"


def post(path: str, *headers: str, host: str = "localhost") -> str:
    return "\n".join([f"POST {path} HTTP/1.1", f"Host: {host}", *headers, "Content-Length: 0", "Connection: close"]) + "\n\n"


STATUS = "/control/v1/status"
WAKE = "/control/v1/models/gemma-8k/wake"


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:11500", "[::1]:11500", "127.8.9.1", "LOCALHOST:1", "srv1.example", "192.0.2.7:80"]
)
def test_reading_on_loopback_is_open(server: PlaneServer, host: str) -> None:
    assert ask(server, get(STATUS, host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.0.2.8",
        "",
        "localhost@evil.example",
        "evil.example#localhost",
        "0.0.0.0",
    ],
)
def test_a_host_that_is_not_ours_counts_as_remote(server: PlaneServer, host: str) -> None:
    """DNS rebinding: the browser connects to us, but names the attacker's host."""
    status, body = ask(server, get(STATUS, host=host))
    assert (status, body["code"]) == (403, "not_permitted")


def test_no_host_or_two_hosts_count_as_remote(server: PlaneServer) -> None:
    assert ask(server, get(STATUS, host=None, version="1.0"))[0] == 403
    assert ask(server, get(STATUS, "Host: evil.example"))[0] in (400, 403)


@pytest.mark.parametrize(
    "header", ["Forwarded: for=203.0.113.1", "X-Forwarded-For: 127.0.0.1", "x-forwarded-for: ::1", "X-Real-IP: 127.0.0.1"]
)
@pytest.mark.parametrize("tcp", [True, False])
def test_what_a_proxy_passes_on_counts_as_remote(server: PlaneServer, header: str, tcp: bool) -> None:
    """On the control socket too: a proxy that runs as root would lend root's rights to the network."""
    status, body = ask(server, get(STATUS, header), tcp=tcp)
    assert (status, body["code"]) == (403, "not_permitted")
    assert ask(server, post(WAKE, header), tcp=tcp)[0] == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "http://localhost:3000", "file://"])
def test_a_foreign_web_page_counts_as_remote(server: PlaneServer, origin: str) -> None:
    assert ask(server, get(STATUS, f"Origin: {origin}", host="localhost:11500"))[0] == 403


def test_our_own_web_page_may_read(server: PlaneServer) -> None:
    assert ask(server, get(STATUS, "Origin: http://localhost:11500", host="localhost:11500"))[0] == 200


@pytest.mark.parametrize("verb", ["wake", "sleep", "stop", "restart"])
def test_changes_over_tcp_are_refused_and_the_fix_names_the_way(server: PlaneServer, verb: str) -> None:
    before = list(server.plane.acts)
    status, body = ask(server, post(f"/control/v1/models/gemma-8k/{verb}"))
    assert (status, body["code"], body["title"]) == (403, "not_permitted", "Not permitted")
    assert "hotseat command" in str(body["fix"])
    assert "control.sock" in str(body["fix"])
    assert server.plane.acts == before


def test_unknown_paths_tell_a_remote_caller_nothing(server: PlaneServer) -> None:
    assert ask(server, get("/control/v1/models/no-such-model", host="evil.example"))[0] == 403


def test_root_may_change_things_over_the_socket(server: PlaneServer) -> None:
    status, body = ask(server, post("/control/v1/models/gemma-8k/stop"), tcp=False)
    assert (status, body["state"]) == (200, "done")
    assert body["by"] == f"uid:{'root' if os.geteuid() == 0 else __import__('pwd').getpwuid(os.geteuid()).pw_name}"


@pytest.mark.parametrize(("path", "status"), [("/livez", 200), ("/readyz", 200), ("/metrics", 403), (STATUS, 403)])
def test_health_is_open_to_everybody_but_metrics_are_reading(server: PlaneServer, path: str, status: int) -> None:
    assert ask(server, get(path, "X-Forwarded-For: 203.0.113.1", host="evil.example"))[0] == status


# It drops its rights itself: the interpreter may lie where other users cannot reach it.
AS_ANOTHER_USER = """
import os, socket, sys
path, request, uid, gid, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups])
os.setgid(int(gid))
os.setuid(int(uid))
sock = socket.socket(socket.AF_UNIX)
sock.connect(path)
sock.sendall(request.replace("\\n", "\\r\\n").encode())
raw = b""
while chunk := sock.recv(65536):
    raw += chunk
sys.stdout.buffer.write(raw)
"""


def as_user(server: PlaneServer, request: str, *, gid: int = NOBODY, groups: tuple[int, ...] = ()) -> tuple[int, str]:
    words = [str(server.socket_path), request, str(NOBODY), str(gid), *map(str, groups)]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", AS_ANOTHER_USER, *words], capture_output=True, text=True, timeout=20)
    if done.returncode:
        return 0, done.stderr
    return int(done.stdout.split()[1]), done.stdout


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@needs_root
def test_the_socket_is_closed_to_other_users(server: PlaneServer) -> None:
    assert server.socket_path.stat().st_mode & 0o777 == 0o660
    status, text = as_user(server, get(STATUS))
    assert status == 0
    assert "PermissionError" in text


@needs_root
class TestOtherUsersThatReachTheSocket:
    """Even if somebody opened the socket to all: the daemon asks the kernel who calls."""

    @pytest.fixture(autouse=True)
    def _opened(self, server: PlaneServer) -> Iterator[None]:
        server.socket_path.chmod(0o666)
        yield
        server.socket_path.chmod(0o660)

    def test_anybody_may_read(self, server: PlaneServer) -> None:
        assert as_user(server, get(STATUS))[0] == 200

    def test_a_stranger_may_not_change(self, server: PlaneServer) -> None:
        status, text = as_user(server, post(WAKE))
        assert status == 403
        assert "join the group hotseat" in text

    def test_a_member_of_the_group_may_change(self, server: PlaneServer) -> None:
        assert as_user(server, post(WAKE), gid=GROUP_GID)[0] == 200
        assert as_user(server, post(WAKE), groups=(100, GROUP_GID))[0] == 200

    def test_another_group_does_not_help(self, server: PlaneServer) -> None:
        assert as_user(server, post(WAKE), groups=(100, GROUP_GID + 1))[0] == 403


@pytest.mark.parametrize(
    ("netloc", "host"),
    [
        ("localhost:11500", "localhost"),
        ("[::1]", "::1"),
        ("LocalHost", "localhost"),
        ("a@localhost", ""),
        ("localhost/x", ""),
        ("localhost:99999", ""),
        ("", ""),
    ],
)
def test_host_of(netloc: str, host: str) -> None:
    assert host_of(netloc) == host


def test_a_dead_daemons_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    first = bind_control_socket(path, None)
    with pytest.raises(Conflict, match="another daemon listens"):
        bind_control_socket(path, None)
    first.close()
    second = bind_control_socket(path, None)
    assert path.stat().st_mode & 0o777 == 0o660
    second.close()


def test_a_socket_with_a_full_backlog_is_alive(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(Conflict):
            bind_control_socket(path, None)
        for client in clients:
            client.close()


def test_what_is_not_a_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(Permanent, match="is not a socket"):
        bind_control_socket(path, None)
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_explained(tmp_path: Path) -> None:
    with pytest.raises(HotseatError, match="longer than 107 bytes") as caught:
        bind_control_socket(tmp_path / ("x" * 120) / "control.sock", None)
    assert caught.value.code == "socket_path"


def test_a_missing_directory_is_explained(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="cannot listen on"):
        bind_control_socket(tmp_path / "missing" / "control.sock", None)
