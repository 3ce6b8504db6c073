"""One daemon per state directory: an flock that ends with the process, however it ends."""

import fcntl
import os
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from scheduler.domain.errors import Conflict, HotseatError, Permanent

NAME = "lock"


class StateLock:
    """The lock on a state directory, held until ``release`` or the end of the process. Also a context manager.

    The file holds the owner's pid for people and for the refusal of a second daemon; it is never deleted, and what an
    older owner left in it is no obstacle: only the flock counts.
    """

    def __init__(self, state_dir: Path) -> None:
        """Take the lock. Raises Conflict (``already_running``, with the pid) or Permanent (``store_io``)."""
        path = state_dir / NAME
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(state_dir, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            refusal = _refusal(self._fd, path) if isinstance(error, BlockingIOError) else unusable(state_dir, error)
            os.close(self._fd)
            raise refusal from error
        _held.add(self)

    def release(self) -> None:
        """Let go. Idempotent."""
        if self in _held:
            _held.discard(self)
            os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


#: A child made by fork alone (multiprocessing's old default, a gated spawn before its exec) shares our flock: it would
#: keep a dead daemon's state directory locked. So a fork closes its copies; exec is covered by O_CLOEXEC.
_held: "weakref.WeakSet[StateLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_in_child)


def unusable(folder: Path, error: OSError) -> HotseatError:
    """The error for a state directory that cannot be made or opened."""
    return Permanent(
        f"the state directory {folder} cannot be used: {error.strerror or error}",
        code="store_io",
        fix="check that state_dir exists and belongs to the daemon's user, or set state_dir to another folder",
    )


def _refusal(fd: int, path: Path) -> Conflict:
    pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    if not pid.isdecimal():
        who, fix = "another process", f"find it with: fuser {path}"
    elif Path(f"/proc/{pid}").exists():
        who, fix = f"process {pid}", f"use the daemon that runs, or end it first: kill {pid}"
    else:
        who, fix = f"a process left behind by {pid}, which has ended,", f"find it with: fuser {path}"
    return Conflict(f"{who} already holds the state directory {path.parent}", code="already_running", fix=fix)
