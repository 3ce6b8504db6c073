"""What the composition root hands to the orchestrator: ports and places."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.domain.model import ModelSpec
from scheduler.ports.clock import Clock
from scheduler.ports.device import DeviceSource, HostSource
from scheduler.ports.engine import Engine
from scheduler.ports.launcher import Launcher
from scheduler.store.engine import Database
from scheduler.store.writer import Writer

#: Builds an engine's complete environment (nothing is inherited) from the model, what its adapter adds, and the values
#: behind placeholders; the daemon supplies it. Raises HotseatError.
Environment = Callable[[ModelSpec, Mapping[str, str], Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """``boundary`` is told the name of every effect before and after it: crash tests hook in there.
    ``read_log`` gives the last lines of an engine's log."""

    engines: Mapping[str, Engine]
    launcher: Launcher
    sources: Sequence[DeviceSource]
    clock: Clock
    database: Database
    writer: Writer
    state_uuid: str
    log_dir: Path
    environment: Environment
    boundary: Callable[[str], None] = field(default=lambda _name: None)
    host: HostSource | None = None
    read_log: Callable[[str], Awaitable[Sequence[str]]] = field(default=lambda _path: no_log())


async def no_log() -> Sequence[str]:
    """For worlds without log files."""
    return ()
