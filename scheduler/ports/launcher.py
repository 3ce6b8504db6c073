"""What starts, watches and ends engine processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHandle:
    """Identity of a process group leader that survives pid reuse and reboots."""

    boot_id: str
    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """``env`` is the complete environment (nothing is inherited); ``token`` is added to it by the launcher."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log_path: str
    token: str  # "<state-dir uuid>:<launch id>"
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """How a leader ended; both None = it was not our child, or nobody saw it."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A live process that carries our state directory's uuid in its token."""

    handle: ProcessHandle
    token: str


class Gate(Protocol):
    """A child that exists but has not exec'd yet: commit ``handle`` first, then ``release``."""

    @property
    def handle(self) -> ProcessHandle:
        """Identity of the waiting child; the same after exec."""
        ...

    async def release(self) -> None:
        """Let it exec. Raises Permanent (executable_missing, ...) with the cause when exec itself fails."""
        ...

    async def abandon(self) -> None:
        """Close the gate: the child ends without ever running the engine. Idempotent."""
        ...


class Launcher(Protocol):
    """Process groups. A group = every process whose session is the leader's, alive even after the leader died."""

    @property
    def boot_id(self) -> str:
        """This boot; a handle with another one is dead."""
        ...

    async def spawn(self, request: SpawnRequest) -> Gate:
        """Fork a child in a session of its own that waits at its gate. Raises Temporary or Permanent."""
        ...

    async def members(self, handle: ProcessHandle) -> frozenset[int]:
        """Live (not zombie) process ids of the group, children that lost the token included; empty = gone."""
        ...

    async def leader_alive(self, handle: ProcessHandle) -> bool:
        """Whether the very process of this handle still lives; a zombie counts as dead."""
        ...

    async def wait_leader(self, handle: ProcessHandle) -> ExitInfo:
        """Return when the leader has ended (at once when it already has). Cancellable; never polls."""
        ...

    async def terminate(self, handle: ProcessHandle, *, kill: bool) -> None:
        """Send TERM (or KILL) to every member of the group. No error when it is gone."""
        ...

    async def activity(self, handle: ProcessHandle, log_path: str) -> int:
        """A number that grows while the group does something that can be seen: bytes of its log and bytes it read from disk.

        It may fall, when a member ends or the log is cut.
        """
        ...

    async def owns_port(self, handle: ProcessHandle, port: int) -> bool | None:
        """Whether a member of the group listens on loopback ``port``; None when it cannot be told."""
        ...

    async def listener(self, port: int) -> ProcessHandle | None:
        """Whoever listens on loopback ``port``; its ``members`` are it and its descendants. None: nobody, or it cannot be told."""
        ...

    async def owned(self, state_uuid: str) -> Sequence[Owned]:
        """Live session leaders (or token carriers) started with a token of this state directory."""
        ...

    def free_port(self) -> int:
        """A loopback TCP port nobody listens on now (it may be taken later: see owns_port)."""
        ...
