"""The ports of a daemon onto a :class:`tests.support.world.World`. After ``world.crash()`` they answer no more."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.domain.claims import Footprint
from scheduler.domain.device import DeviceInfo, DeviceSample, Health, HostSample, Pin
from scheduler.domain.errors import Permanent, Temporary
from scheduler.domain.ids import DeviceId, Holder, ModelName
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.ports.engine import Answer, CommandLine, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo, Owned, ProcessHandle, SpawnRequest
from tests.support.behaviour import Behaviour, StartFailure
from tests.support.engine_life import Fate, Reply
from tests.support.world import BOOT_ID, World, port_of
from tests.support.world_parts import Process, WorldDevice

ENGINE = "pretended"
VERSION = "1.0-pretended"
#: What an engine's processes keep in host memory whatever they do.
PROCESS_BYTES = GIB


class Daemon:
    """One daemon's ports. The code of a crashed one gets no further."""

    def __init__(self, world: World, kinds: Sequence[str] = ()) -> None:
        self.world = world
        self.launcher = WorldLauncher(self)
        found = {there.info.kind for there in world.devices.values()}
        self.sources = [WorldDevices(self, kind) for kind in (kinds or sorted(found))]
        self.engine = WorldEngine(self, tuple(sorted(found)))
        self.engines = {ENGINE: self.engine}
        self.host = None if world.host_total_bytes is None else WorldHost(self)
        world.attach(self)

    async def alive(self) -> None:
        """Go on while this daemon lives; a dead one's code ends here, as a cancelled task does."""
        if not self.world.is_attached(self):
            raise asyncio.CancelledError

    def read_log(self, path: str) -> Sequence[str]:
        """The lines of an engine's log."""
        return self.world.logs.get(path, ())


def spec_of_argv(argv: Sequence[str]) -> tuple[ModelName, tuple[DeviceId, ...], int]:
    """Model, devices and port of a command line that :meth:`WorldEngine.command` made."""
    _, name, devices, port = argv
    return ModelName(name), tuple(DeviceId(d) for d in devices.split(",") if d), int(port)


class WorldGate:
    """A child at its gate."""

    def __init__(self, daemon: Daemon, process: Process) -> None:
        self._daemon = daemon
        self._process = process

    @property
    def handle(self) -> ProcessHandle:
        """Its identity."""
        return self._daemon.world.handle_of(self._process)

    async def release(self) -> None:
        """Let it become the engine. Raises Permanent when there is no such program."""
        await self._daemon.alive()
        process = self._process
        if process.gated_by is None or process.request is None:
            raise Permanent(f"process {process.pid} is not at its gate any more", code=Code.CRASHED)
        name, _, port = spec_of_argv(process.request.argv)
        if self._daemon.world.behaviours.get(name, Behaviour()).executable_missing:
            self._daemon.world.close_gate(process)
            raise Permanent("no such program", code=Code.EXECUTABLE_MISSING, fix="install it")
        self._daemon.world.exec(process, port)

    async def abandon(self) -> None:
        """Close the gate; does nothing to an engine that runs."""
        await self._daemon.alive()
        if self._process.gated_by is self._daemon:
            self._daemon.world.close_gate(self._process)


class WorldLauncher:
    """Implements scheduler.ports.launcher.Launcher."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._world = daemon.world
        self._ours: set[int] = set()

    @property
    def boot_id(self) -> str:
        """The one boot of this world."""
        return BOOT_ID

    async def spawn(self, request: SpawnRequest) -> WorldGate:
        """A child at its gate."""
        await self._daemon.alive()
        name, devices, _ = spec_of_argv(request.argv)
        process = self._world.spawn(request, name, devices, self._daemon)
        self._ours.add(process.pid)
        return WorldGate(self._daemon, process)

    async def members(self, handle: ProcessHandle) -> frozenset[int]:
        """Live processes of the session."""
        await self._daemon.alive()
        return frozenset(p.pid for p in self._group(handle))

    def _group(self, handle: ProcessHandle) -> list[Process]:
        leader = self._world.processes.get(handle.pid)
        if handle.boot_id != BOOT_ID or leader is None or leader.start_ticks != handle.start_ticks:
            return []
        return self._world.group(leader.session)

    async def leader_alive(self, handle: ProcessHandle) -> bool:
        """Whether the leader lives."""
        await self._daemon.alive()
        return any(p.pid == handle.pid for p in self._group(handle))

    async def wait_leader(self, handle: ProcessHandle) -> ExitInfo:
        """Return when the leader has ended; nobody saw how one of an earlier daemon did."""
        await self._daemon.alive()
        process = self._world.processes.get(handle.pid)
        if process is None or handle.boot_id != BOOT_ID or process.start_ticks != handle.start_ticks:
            return ExitInfo()
        await process.ended.wait()
        await self._daemon.alive()
        return process.exit if process.pid in self._ours else ExitInfo()

    async def terminate(self, handle: ProcessHandle, *, kill: bool) -> None:
        """TERM or KILL for the group."""
        await self._daemon.alive()
        if self._group(handle):
            self._world.terminate(handle.pid, kill=kill)

    async def activity(self, handle: ProcessHandle, log_path: str) -> int:
        """What it reads and writes while it loads."""
        await self._daemon.alive()
        return self._world.activity(handle.pid) if self._group(handle) else 0

    async def owns_port(self, handle: ProcessHandle, port: int) -> bool | None:
        """Whether the group listens there."""
        await self._daemon.alive()
        listener = self._world.listeners.get(port)
        return listener is not None and listener.session == handle.pid

    async def listener(self, port: int) -> ProcessHandle | None:
        """The leader of whoever listens there."""
        await self._daemon.alive()
        found = self._world.listeners.get(port)
        if found is None or not found.alive:
            return None
        return ProcessHandle(boot_id=self.boot_id, pid=found.pid, start_ticks=found.start_ticks)

    async def owned(self, state_uuid: str) -> Sequence[Owned]:
        """Live leaders that carry a token of this state directory; carriers where the leader is gone."""
        await self._daemon.alive()
        found: dict[int, Owned] = {}
        for process in self._world.processes.values():
            if not process.alive or process.token is None or not process.token.startswith(f"{state_uuid}:"):
                continue
            leader = self._world.processes[process.session]
            shown = leader if leader.alive else process
            found[shown.pid] = Owned(handle=self._world.handle_of(shown), token=process.token)
        return list(found.values())

    def free_port(self) -> int:
        """A port nobody listens on."""
        return self._world.free_port()


class WorldEngine:
    """Implements Engine, CanSleep, WarmsUp and CountsRequests; finds the engine behind an endpoint by its port."""

    def __init__(self, daemon: Daemon, kinds: tuple[str, ...]) -> None:
        self._daemon = daemon
        self._world = daemon.world
        self._kinds = kinds

    @property
    def name(self) -> str:
        """The type name."""
        return ENGINE

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """Whatever the world has."""
        return self._kinds

    def owned_flags(self) -> Mapping[str, str]:
        """None."""
        return {}

    def _knobs(self, name: ModelName) -> Behaviour:
        return self._world.behaviours.get(name, Behaviour())

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        """Those of its behaviour that the operator allows."""
        own = self._knobs(spec.name).levels
        return own if spec.levels is None else tuple(level for level in own if level in spec.levels)

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        """A command line that the world's launcher understands."""
        return CommandLine(argv=(ENGINE, spec.name, ",".join(plan.devices), str(plan.port)))

    def served_model(self, spec: ModelSpec) -> str:
        """Its own name."""
        return spec.upstream_model or spec.name

    async def preflight(self, spec: ModelSpec) -> None:
        """Raises what the behaviour says."""
        await self._daemon.alive()
        found = self._knobs(spec.name).preflight
        if found is not None:
            raise Permanent(found.text, code=found.code.value, fix="see the behaviour")

    async def estimate(self, spec: ModelSpec) -> Footprint:
        """The guess of its behaviour."""
        await self._daemon.alive()
        return self._knobs(spec.name).estimate()

    def _find(self, endpoint: Endpoint) -> Process | None:
        return self._world.listeners.get(port_of(endpoint.base_url))

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        """One look; a silent engine costs the time-out."""
        await self._daemon.alive()
        port = port_of(endpoint.base_url)
        if port in self._world.listeners and self._world.listeners[port] is None:
            return Probe(answer=Answer.READY)  # a stranger
        process = self._find(endpoint)
        if process is None or process.life is None:
            return Probe(answer=Answer.REFUSED)
        self._world.catch_up(process)
        answer = process.life.answer(self._world.now_s)
        level = process.life.level if answer is Answer.ASLEEP else None
        if answer is Answer.SILENT:
            await asyncio.sleep(timeout_s)
        return Probe(
            answer=answer,
            level=level,
            version=self._world.versions.get(process.model, VERSION) if answer in (Answer.READY, Answer.ASLEEP) else "",
        )

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        """From the decisive line, else a crash."""
        for line in reversed(log_tail):
            if line.startswith("fatal "):
                code, _, text = line.removeprefix("fatal ").partition(": ")
                return Reason(Code(code), text, "see the behaviour", line)
        how = f"signal {exit_info.signal}" if exit_info.signal is not None else f"code {exit_info.code}"
        return Reason(Code.CRASHED, f"the engine ended with {how}")

    async def running(self, endpoint: Endpoint, timeout_s: float) -> int | None:
        """Requests inside."""
        await self._daemon.alive()
        process = self._find(endpoint)
        return process.running if process is not None else None

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        """Ask it to sleep; the engine goes on by itself when nobody waits for the answer."""
        await self._daemon.alive()
        process = self._need(endpoint)
        assert process.life is not None
        self._world.cut_requests(process)
        running = process.running  # as many as are cut now
        return (await self._answer(process, process.life.sleep(self._world.now_s, level, running), timeout_s)).level

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        """Ask it to wake, to read its weights again after level 2, and to say what it said before."""
        await self._daemon.alive()
        process = self._need(endpoint)
        assert process.life is not None
        await self._answer(process, process.life.wake(self._world.now_s), timeout_s)
        if level == 2:
            await self._answer(process, process.life.reload(self._world.now_s), timeout_s)
        if endpoint.golden and await self.warm_up(endpoint, timeout_s) != endpoint.golden:
            raise Permanent("it does not say what it said before it slept", code=Code.OUTPUT_WRONG, fix="start it anew")

    async def warm_up(self, endpoint: Endpoint, timeout_s: float) -> str:
        """One request that takes no time; an engine that is wedged costs the time-out."""
        await self._daemon.alive()
        process = self._need(endpoint)
        fate = self._world.ask(process)
        if fate is Fate.HANGS:
            await asyncio.sleep(timeout_s)
        if fate not in (Fate.ANSWERED, Fate.GARBAGE):
            raise Temporary(f"the request {fate.replace('_', ' ')}", retry_after_s=1.0, code=Code.WAKE_FAILED)
        return f"{process.model} speaks" if fate is Fate.ANSWERED else "!!!!"

    def _need(self, endpoint: Endpoint) -> Process:
        process = self._find(endpoint)
        if process is None or process.life is None or process.life.refuses:
            raise Temporary("connection refused", retry_after_s=1.0)
        self._world.catch_up(process)
        return process

    async def _answer(self, process: Process, reply: Reply, timeout_s: float) -> Reply:
        self._world.poke(process)
        delay = reply.at_s - self._world.now_s
        if delay <= 0:
            pass
        elif delay > timeout_s:
            await asyncio.sleep(timeout_s)
            raise Temporary(f"no answer within {timeout_s:g} s", retry_after_s=1.0)
        else:
            try:
                async with asyncio.timeout(delay):
                    await process.ended.wait()
            except TimeoutError:
                pass
        await self._daemon.alive()
        self._world.catch_up(process)
        if not process.alive:
            raise Temporary("connection reset", retry_after_s=1.0)
        if reply.error:
            code = Code.DEVICE_OOM if "out of memory" in reply.error else None
            raise Temporary(reply.error, retry_after_s=1.0, code=code)
        return reply


@dataclass(slots=True)
class WorldDevices:
    """Implements DeviceSource for one kind of device."""

    daemon: Daemon
    kind: str

    @property
    def generation(self) -> int:
        """Grows when a test changes the set of devices."""
        return self.daemon.world.generation

    def pins(self) -> Mapping[DeviceId, Pin]:
        """By index, as they are listed."""
        there = [each.info for each in self.daemon.world.devices.values() if not each.absent]
        return {info.id: Pin(index=info.index, uuid=info.uuid) for info in there}

    async def inventory(self, known: Mapping[str, DeviceId]) -> Sequence[DeviceInfo]:
        """All devices of the kind; this world names them itself."""
        await self.daemon.alive()
        there = [each for each in self.daemon.world.devices.values() if not each.absent]
        return [each.info for each in there if each.info.kind == self.kind]

    async def sample(
        self, groups: Mapping[DeviceId, Mapping[Holder, frozenset[int]]], moving: frozenset[Holder] = frozenset()
    ) -> Sequence[DeviceSample]:
        """Measure; unreadable devices are left out."""
        await self.daemon.alive()
        world = self.daemon.world
        started_at_s = world.now_s
        if world.sample_s > 0:
            await asyncio.sleep(world.sample_s)
        return [
            self._sample(world, there, groups.get(there.info.id, {}), started_at_s)
            for there in world.devices.values()
            if there.info.kind == self.kind and there.readable and not there.absent
        ]

    @staticmethod
    def _sample(world: World, there: WorldDevice, holders: Mapping[Holder, frozenset[int]], started_at_s: float) -> DeviceSample:
        world.settle()
        device, bytes_known = there.info.id, there.health in (Health.OK, Health.DRAINING)
        used = world.used_bytes(device) if bytes_known else 0
        own = {holder: world.own_bytes(device, pids) if bytes_known else 0 for holder, pids in holders.items()}
        return DeviceSample(
            device=device,
            started_at_s=started_at_s,
            used_bytes=used,
            free_bytes=max(0, there.info.capacity_bytes - used) if bytes_known else 0,
            foreign_bytes=max(0, used - sum(own.values())),
            own=own,
            health=there.health,
            trouble=there.trouble,
            fix="look at dmesg" if there.trouble else "",
        )


@dataclass(slots=True)
class WorldHost:
    """Implements HostSource: what engines keep there is a little for each, and the copies of sleepers."""

    daemon: Daemon

    async def sample(self, groups: Mapping[Holder, frozenset[int]]) -> HostSample | None:
        """Measure now."""
        await self.daemon.alive()
        world = self.daemon.world
        held = {p.pid: PROCESS_BYTES + p.life.host_bytes() for p in world.engines() if p.life is not None}
        own = {holder: sum(held.get(pid, 0) for pid in pids) for holder, pids in groups.items()}
        left = (world.host_total_bytes or 0) - world.host_others_bytes - sum(held.values())
        return HostSample(started_at_s=world.now_s, available_bytes=max(0, left), own=own)


def fails(code: Code, *, after_s: float = 1.0, text: str = "") -> StartFailure:
    """A start that fails with ``code``."""
    return StartFailure(code=code, after_s=after_s, text=text or f"pretended {code.value}")
