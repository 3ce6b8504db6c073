"""The control socket: a Unix socket in the state directory that only its owner, root and the group may open."""

import errno
import os
import socket
import stat
from pathlib import Path

from scheduler.domain.errors import Conflict, Permanent

NAME = "control.sock"
MAX_PATH_BYTES = 107  # sun_path holds 108 bytes with the final NUL
BACKLOG = 128


def bind_control_socket(path: Path, group_gid: int | None) -> socket.socket:
    """A listening, non-blocking socket at ``path`` with mode 0660 and group ``group_gid`` (None = unchanged).

    A socket left behind by a dead daemon is replaced. Raises Conflict when a live daemon listens there, Permanent when
    the path is too long, taken by something else, or not writable.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        fix = "choose a shorter state_dir"
        raise Permanent(f"the path of the control socket is longer than {MAX_PATH_BYTES} bytes: {path}", code="socket_path", fix=fix)
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Between bind and listen nobody can connect, so the mode is right before the first caller comes.
        sock.bind(str(path))
        if group_gid is not None and os.geteuid() == 0:
            os.chown(path, -1, group_gid)
        os.chmod(path, 0o660)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        fix = "make the state directory writable for the daemon's user"
        raise Permanent(f"cannot listen on {path}: {error.strerror}", code="socket_path", fix=fix) from error
    return sock


def _clear(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise Permanent(f"cannot look at {path}: {error.strerror}", code="socket_path") from error
    if not stat.S_ISSOCK(mode):
        raise Permanent(f"{path} exists and is not a socket", code="socket_path", fix=f"move {path} away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog answers EAGAIN: somebody is there
        result = probe.connect_ex(str(path))
    if result in (errno.ECONNREFUSED, errno.ENOENT):
        path.unlink(missing_ok=True)
        return
    raise Conflict(f"another daemon listens on {path}", code="socket_in_use", fix="stop it first, or use another state_dir")
