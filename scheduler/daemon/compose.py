"""The composition root: the only place where adapters meet the scheduler."""

from dataclasses import dataclass

from adapters.devices.cpu import CpuBudget, CpuDevices
from adapters.devices.host import ProcHost
from adapters.devices.nvml import NvmlDevices
from adapters.launchers.process import ProcessLauncher
from adapters.registry import engines
from scheduler.config.settings import Loaded, Settings
from scheduler.daemon.clock import SystemClock
from scheduler.daemon.environment import build_environment
from scheduler.daemon.logfiles import read_lines
from scheduler.daemon.machine_facts import host_memory
from scheduler.daemon.overrides import Overridden
from scheduler.domain.errors import Permanent
from scheduler.orchestrator.kernel import Hooks, Kernel
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.state import Policy
from scheduler.ports.device import DeviceSource
from scheduler.store.engine import NAME, Database, open_database
from scheduler.store.writer import Writer


@dataclass(frozen=True, slots=True)
class House:
    """What was put together."""

    kernel: Kernel
    database: Database
    writer: Writer
    clock: SystemClock


def compose(loaded: Loaded, hooks: Hooks, on_commit: object = None) -> House:
    """Open the database and put the kernel together. Raises HotseatError (store_*, ...)."""
    settings = loaded.settings
    clock = SystemClock()
    database = open_database(settings.state_dir / NAME, clock=clock)
    writer = Writer(database, on_commit=on_commit if callable(on_commit) else None)
    for folder in ("home", "logs"):
        (settings.state_dir / folder).mkdir(mode=0o700, exist_ok=True)
    parts = Parts(
        engines=engines(),
        launcher=ProcessLauncher(),
        sources=device_sources(loaded, clock),
        clock=clock,
        database=database,
        writer=writer,
        state_uuid=database.state_uuid,
        log_dir=settings.state_dir / "logs",
        environment=lambda spec, added, values: build_environment(settings.state_dir, spec, added, values),
        read_log=read_lines,
        host=ProcHost(clock),
    )
    return House(Kernel(parts, policy_of(settings), hooks), database, writer, clock)


def policy_of(settings: Settings) -> Policy:
    """The configuration's numbers that decisions need."""
    return Policy(turn_factor=settings.gateway.turn_factor, interrupt=settings.gateway.interrupt != "never")


def device_sources(loaded: Loaded, clock: SystemClock) -> list[DeviceSource]:
    """The families of devices of the configuration."""
    settings = loaded.settings
    budgets = [
        CpuBudget(id=d.id, name="CPU", capacity_bytes=d.memory_bytes, headroom_bytes=d.headroom_bytes)
        for d in loaded.devices
        if d.kind == "cpu"
    ]
    families: list[DeviceSource] = [CpuDevices(budgets, clock)] if budgets else []
    if "nvidia" in settings.discover:
        families.append(NvmlDevices(clock, settings.headroom_of))
    return [Overridden(family, settings) for family in families]


def host_limit_bytes(settings: Settings) -> int:
    """Host memory for level-1 copies: what the operator says, else half of what is available now, within the limit of the
    control group. Raises Permanent when the system does not tell."""
    if settings.host_sleep_bytes is not None:
        return settings.host_sleep_bytes
    memory = host_memory()
    if memory is None:
        text = "/proc/meminfo does not tell how much memory is available"
        raise Permanent(text, code="host_memory", fix="mount /proc, or write host: {sleep_memory: SIZE}")
    return memory[1] // 2
