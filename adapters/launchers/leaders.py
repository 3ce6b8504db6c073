"""Leaders of groups: are they alive, wait for their end, bury our own children and remember how they ended."""

import os
import signal
from dataclasses import dataclass, replace

from adapters.launchers.waiting import wait_readable
from adapters.procfs.processes import PROC, Stat, count_oom_kills, read_stat
from scheduler.ports.launcher import ExitInfo, ProcessHandle

_REMEMBERED_EXITS = 256


@dataclass(slots=True)
class _Child:
    """A child not yet buried; until then nobody else can get its number."""

    handle: ProcessHandle
    oom_kills: int  # the kernel's count when it started
    killed: bool = False  # by us


class Leaders:
    """Knows leaders by handle; the only place that waits for or reaps processes."""

    def __init__(self, boot_id: str, proc: str = PROC) -> None:
        self._boot_id = boot_id
        self._proc = proc
        self._children: dict[int, _Child] = {}
        self._exits: dict[ProcessHandle, ExitInfo] = {}

    def add_child(self, pid: int) -> ProcessHandle | None:
        """Note a new child of this process; None when somebody else has reaped it already."""
        stat = read_stat(pid, self._proc)
        if stat is None:
            return None
        handle = ProcessHandle(boot_id=self._boot_id, pid=pid, start_ticks=stat.start_ticks)
        self._children[pid] = _Child(handle, count_oom_kills(self._proc))
        return handle

    def stat(self, handle: ProcessHandle) -> Stat | None:
        """The very process of this handle, alive or zombie; None when it is gone."""
        if handle.boot_id != self._boot_id:
            return None
        stat = read_stat(handle.pid, self._proc)
        return stat if stat is not None and stat.start_ticks == handle.start_ticks else None

    async def wait(self, handle: ProcessHandle) -> ExitInfo:
        """Return when it has ended; how is known only of our own children."""
        pidfd = self._open(handle)
        if pidfd is not None:
            try:
                await wait_readable(pidfd)
            finally:
                os.close(pidfd)
        self.bury()
        return self._exits.get(handle, ExitInfo())

    def kill(self, handle: ProcessHandle) -> None:
        """KILL this process alone."""
        self.note_killed(handle)
        pidfd = self._open(handle)
        if pidfd is None:
            return
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # ended meanwhile
        finally:
            os.close(pidfd)

    def note_killed(self, handle: ProcessHandle) -> None:
        """Remember that a KILL of this child is ours, not the kernel's for want of memory."""
        child = self._children.get(handle.pid)
        if child is not None and child.handle == handle:
            child.killed = True

    def bury(self) -> None:
        """Reap every child of ours that has ended, and keep how it ended."""
        for pid, child in list(self._children.items()):
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                ended, info = None, ExitInfo()  # somebody else in this process reaped it
            else:
                if ended is None:
                    continue
                info = self._describe(ended, child)
            del self._children[pid]
            self._exits[child.handle] = info
        while len(self._exits) > _REMEMBERED_EXITS:
            del self._exits[next(iter(self._exits))]

    def _describe(self, ended: os.waitid_result, child: _Child) -> ExitInfo:
        if ended.si_code == os.CLD_EXITED:
            return ExitInfo(code=ended.si_status)
        info = ExitInfo(signal=ended.si_status)
        if info.signal != signal.SIGKILL or child.killed or count_oom_kills(self._proc) <= child.oom_kills:
            return info
        # Each kill that the kernel counted explains one death only.
        for other in self._children.values():
            other.oom_kills += 1
        return replace(info, oom_killed=True)

    def _open(self, handle: ProcessHandle) -> int | None:
        """A process descriptor that certainly means this handle's process."""
        if handle.boot_id != self._boot_id or handle.pid <= 1:
            return None
        try:
            pidfd = os.pidfd_open(handle.pid)
        except ProcessLookupError:
            return None
        # Opened first, compared second: a number that changed hands before or in between shows other start ticks.
        if self.stat(handle) is None:
            os.close(pidfd)
            return None
        return pidfd
