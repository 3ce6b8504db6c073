"""Launcher ``process``: engines as plain process groups, each in a session of its own."""

import asyncio
import os
import signal
from collections.abc import Sequence

from adapters.launchers.gate import WaitingChild, open_gate, start_waiting
from adapters.launchers.groups import GroupMemory, find_members, find_owned
from adapters.launchers.leaders import Leaders
from adapters.launchers.ports import PortChooser, find_holders, find_listeners, holds_all
from adapters.launchers.scans import SharedScans
from adapters.launchers.signals import signal_members
from adapters.procfs.processes import PROC, ProcessScanner, ProcessTable, Stat, read_activity, read_boot_id, read_origin
from scheduler.domain.errors import Conflict, HotseatError, Permanent
from scheduler.domain.reasons import Code
from scheduler.ports.launcher import ExitInfo, Owned, ProcessHandle, SpawnRequest

_OOM_SCORE = 500  # of -1000..1000: when memory runs out, an engine goes before the daemon
_MAX_SWEEPS = 20
_REMEMBERED_GROUPS = 256


class ProcessGate:
    """A child of this process at its gate."""

    def __init__(self, leaders: Leaders, handle: ProcessHandle, child: WaitingChild, request: SpawnRequest) -> None:
        self._leaders = leaders
        self._handle = handle
        self._child = child
        self._request = request
        self._passed = False

    @property
    def handle(self) -> ProcessHandle:
        """Identity of the child; stays the same when it becomes the engine."""
        return self._handle

    async def release(self) -> None:
        """Let it become the engine; returns when it has. Raises Permanent when it cannot, Conflict when used before.

        After a cancelled release the engine may run or not: terminate the group to be sure.
        """
        if self._child.gate.closed:
            raise Conflict(f"the gate of process {self._handle.pid} was used before")
        self._passed = True
        try:
            await open_gate(self._child, self._request)
        except HotseatError:
            await self._leaders.wait(self._handle)
            raise
        finally:
            self._child.errors.close()

    async def abandon(self) -> None:
        """End a child that still waits, and bury it; does nothing to one that was released."""
        if self._passed:
            return
        self.drop()
        self._leaders.kill(self._handle)
        await self._leaders.wait(self._handle)

    def drop(self) -> None:
        """Close the gate without waiting: the child ends by itself."""
        self._child.gate.close()
        self._child.errors.close()


class ProcessLauncher:
    """Starts, watches and ends process groups of this machine. Belongs to one event loop.

    ``oom_score``: what engines' oom_score_adj is raised to (0..1000).
    """

    def __init__(self, *, oom_score: int = _OOM_SCORE, proc: str = PROC) -> None:
        self._proc = proc
        self._oom_score = oom_score
        self._boot_id = read_boot_id(proc)
        self._ports = PortChooser(proc)
        self._scans = SharedScans(ProcessScanner(proc).scan)
        self._leaders = Leaders(self._boot_id, proc)
        self._groups: dict[ProcessHandle, GroupMemory] = {}

    @property
    def boot_id(self) -> str:
        """This boot; a handle with another one is dead."""
        return self._boot_id

    async def spawn(self, request: SpawnRequest) -> ProcessGate:
        """Start a child that waits at its gate. Raises Temporary (resources) or Permanent (input, log file)."""
        self._leaders.bury()
        starting = asyncio.get_running_loop().run_in_executor(None, start_waiting, request, self._oom_score)
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(lambda done: self._drop(done, request))
            raise
        return self._adopt(child, request)

    def _adopt(self, child: WaitingChild, request: SpawnRequest) -> ProcessGate:
        handle = self._leaders.add_child(child.pid)
        if handle is None:
            child.gate.close()
            child.errors.close()
            raise Permanent(f"the new process {child.pid} was reaped by somebody else in this daemon", code=Code.CRASHED)
        self._groups[handle] = GroupMemory(token=request.token, attested=True)
        return ProcessGate(self._leaders, handle, child, request)

    def _drop(self, done: asyncio.Future[WaitingChild], request: SpawnRequest) -> None:
        if not done.cancelled() and done.exception() is None:
            self._adopt(done.result(), request).drop()

    async def members(self, handle: ProcessHandle) -> frozenset[int]:
        """Live process ids of the group; empty = gone. The rules are those of ``groups.find_members``."""
        members, _ = await self._look(handle)
        return frozenset(stat.pid for stat in members)

    async def _look(self, handle: ProcessHandle) -> tuple[list[Stat], ProcessTable]:
        self._leaders.bury()
        if handle.boot_id != self._boot_id or handle.pid <= 1:
            return [], ProcessTable.of((), {})
        table = await self._scans.table()
        return find_members(handle, table, self._memory_of(handle), self._has_our_origin), table

    def _memory_of(self, handle: ProcessHandle) -> GroupMemory:
        memory = self._groups.setdefault(handle, GroupMemory())
        if len(self._groups) > _REMEMBERED_GROUPS:
            ended = [key for key, value in self._groups.items() if value.gone and key != handle]
            for key in ended[: len(ended) // 2 + 1]:
                del self._groups[key]
        return memory

    def _has_our_origin(self, pid: int) -> bool:
        origin = read_origin(pid, self._proc)
        return origin is not None and origin == read_origin(os.getpid(), self._proc)

    async def leader_alive(self, handle: ProcessHandle) -> bool:
        """Whether the very process of this handle still lives; a zombie counts as dead."""
        stat = self._leaders.stat(handle)
        return stat is not None and not stat.dead

    async def wait_leader(self, handle: ProcessHandle) -> ExitInfo:
        """Return when the leader has ended, at once when it already has. Cancellable; waits on a process descriptor."""
        return await self._leaders.wait(handle)

    async def terminate(self, handle: ProcessHandle, *, kill: bool) -> None:
        """Send TERM once, or KILL until nobody new appears, to every member of the group.

        No error when it is gone; Permanent when a member runs as another user and may not be signalled.
        """
        number = signal.SIGKILL if kill else signal.SIGTERM
        if kill:
            self._leaders.note_killed(handle)
        reached: set[tuple[int, int]] = set()
        denied: list[int] = []
        for _ in range(_MAX_SWEEPS if kill else 1):
            members, table = await self._look(handle)
            fresh = [stat for stat in members if stat.key not in reached]
            if not fresh:
                break
            denied += signal_members(fresh, table, number, self._proc)
            reached.update(stat.key for stat in members)
        if denied:
            raise Permanent(
                f"not permitted to send {number.name} to {len(denied)} of the group's processes (first: {denied[0]})",
                code=Code.MEMORY_NOT_FREED,
                fix=f"end process {denied[0]} as its own user; engines must not change their user",
            )

    async def owns_port(self, handle: ProcessHandle, port: int) -> bool | None:
        """Whether the group takes connections to 127.0.0.1:``port``; None when a member hides its files from us."""
        members, _ = await self._look(handle)
        return await asyncio.to_thread(self._owns_port, [stat.pid for stat in members], port)

    def _owns_port(self, pids: Sequence[int], port: int) -> bool | None:
        inodes = find_listeners(port, self._proc)
        return holds_all(pids, inodes, self._proc) if inodes and pids else False

    async def listener(self, port: int) -> ProcessHandle | None:
        """See the port. Of several that share the socket (a server and its forked children) the topmost one."""
        table = await self._scans.table()
        pids = await asyncio.to_thread(find_holders, port, list(table.by_pid), self._proc)
        top = [pid for pid in pids if table.by_pid[pid].parent not in pids and not table.by_pid[pid].dead]
        if not top:
            return None
        stat = min((table.by_pid[pid] for pid in top), key=lambda found: found.start_ticks)
        return ProcessHandle(boot_id=self._boot_id, pid=stat.pid, start_ticks=stat.start_ticks)

    async def activity(self, handle: ProcessHandle, log_path: str) -> int:
        """See the port. What cannot be read (another user's process) counts as nothing."""
        members, _ = await self._look(handle)
        return await asyncio.to_thread(read_activity, [stat.pid for stat in members], log_path, self._proc)

    async def owned(self, state_uuid: str) -> Sequence[Owned]:
        """Live session leaders (or carriers, where the leader is gone) of launches of this state directory."""
        self._leaders.bury()
        return find_owned(self._boot_id, state_uuid, await self._scans.table())

    def free_port(self) -> int:
        """A loopback TCP port nobody uses now; the same one comes back only after all the others."""
        return self._ports.choose()
