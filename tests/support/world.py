"""A pretended machine in virtual time: devices, processes and engines that outlive the daemon.

The machine (:class:`World`) is what really exists; a daemon sees it through the ports of :mod:`tests.support.world_ports`
(``world.daemon()``). ``world.crash()`` takes the daemon away: its ports never answer again, children that still wait at
their gate end, everything else goes on. Physics is the world's own: memory is where the live processes are, freed memory
is seen free only after a lag, and taking more than a device has kills the taker and is recorded (``world.overflows``).
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from scheduler.domain.device import DeviceInfo, Health
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.lease import Outcome
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.launcher import ExitInfo, ProcessHandle, SpawnRequest
from tests.support.behaviour import NEVER, Behaviour, StartFailure
from tests.support.engine_life import ILLEGAL, Ended, EngineLife, Fate, Stage
from tests.support.world_parts import Entry, Process, WorldDevice, WorldGround

BOOT_ID = "11111111-2222-4333-8444-555555555555"
FIRST_PORT = 20_000


class World:
    """See the module's docstring. Make it inside a running loop; ``behaviours`` are looked up at each exec."""

    def __init__(self, devices: Sequence[DeviceInfo], behaviours: Mapping[str, Behaviour] | None = None) -> None:
        self.devices = {info.id: WorldDevice(info) for info in devices}
        self.behaviours = {ModelName(name): knobs for name, knobs in (behaviours or {}).items()}
        self.processes: dict[int, Process] = {}
        self._open: dict[int, Process] = {}  # those that live or whose memory is still in the books
        self.listeners: dict[int, Process | None] = {}  # port -> who listens; None = a stranger that answers 200
        self.logs: dict[str, list[str]] = {}  # log path -> lines
        self.log: list[Entry] = []
        self.starts: Counter[ModelName] = Counter()
        self.generation = 0  # of the set of devices
        self.host_peak_bytes = 0
        self.host_total_bytes: int | None = None  # of the machine; None = nobody measures it
        self.host_others_bytes = 0
        self.versions: dict[ModelName, str] = {}  # of engines, where they are not the usual one
        self.sample_s = 0.0  # how long a measurement takes
        self.on_change: Callable[[], None] = lambda: None  # called after every change, for checks
        self._loop = asyncio.get_running_loop()
        self._pids = itertools.count(1000)
        self._ports = itertools.count(FIRST_PORT)
        self._held: dict[tuple[int, DeviceId], int] = {}
        self._daemon: object | None = None

    # --- looking ----------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """The loop's time."""
        return self._loop.time()

    @property
    def overflows(self) -> list[Entry]:
        """Every time that more was taken than there is; must stay empty unless a test lies about sizes."""
        return [entry for entry in self.log if entry.what == "out_of_memory"]

    @property
    def misdirected(self) -> list[Entry]:
        """Requests that reached an engine which was not awake; must stay empty."""
        return [entry for entry in self.log if entry.what == "misdirected"]

    def happened(self, what: str, model: str = "") -> list[Entry]:
        """Log entries of one kind, of one model or of all."""
        return [entry for entry in self.log if entry.what == what and model in ("", entry.subject)]

    def used_bytes(self, device: DeviceId) -> int:
        """What is really used: live processes, memory not yet seen free, others."""
        self.settle()
        return self._used(device)

    def _used(self, device: DeviceId) -> int:
        held = sum(value for (_, where), value in self._held.items() if where == device)
        there = self.devices[device]
        return held + sum(value for _, value, _ in there.lagging) + there.foreign_bytes

    def _capacity(self, device: DeviceId) -> int:
        return self.devices[device].info.capacity_bytes

    def room(self, device: DeviceId, without: int = 0) -> int:
        """Bytes free on a device, when the processes of the session ``without`` held nothing."""
        there = self.devices[device]
        there.lagging = [item for item in there.lagging if item[0] > self.now_s]
        own = {pid for pid, process in self._open.items() if without and process.session == without}
        held = sum(size for (pid, where), size in self._held.items() if where == device and pid in own)
        held += sum(size for _, size, pid in there.lagging if without and self.processes[pid].session == without)
        return self._capacity(device) - self._used(device) + held

    def own_bytes(self, device: DeviceId, pids: frozenset[int]) -> int:
        """What these processes hold on a device, as a driver would say: a dead process holds nothing. Settle first."""
        held = sum(value for (pid, where), value in self._held.items() if where == device and pid in pids)
        return held + sum(value for _, value, pid in self.devices[device].lagging if pid in pids and self.processes[pid].alive)

    def activity(self, pid: int) -> int:
        """Bytes of log and disk reads of the engine with this leader."""
        life = self.processes[pid].life
        return int(self.now_s * 1000) if life is not None and life.is_busy() else 0

    def host_bytes(self) -> int:
        """Host memory held by copies of sleepers."""
        return sum(p.life.host_bytes() for p in self._live() if p.life is not None and p.role is None)

    def engines(self, model: str = "") -> list[Process]:
        """Live leaders past their gate, of one model or of all."""
        return [p for p in self._live() if p.role is None and p.gated_by is None and model in ("", p.model)]

    def engine(self, model: str) -> Process:
        """The one live leader of a model. Raises LookupError when there is none, or more than one."""
        found = self.engines(model)
        if len(found) != 1:
            raise LookupError(f"{len(found)} live engines of {model}")
        return found[0]

    def group(self, session: int) -> list[Process]:
        """Live processes of a session."""
        return [p for p in self._live() if p.session == session]

    def _live(self) -> list[Process]:
        return [p for p in self._open.values() if p.alive]

    # --- the daemon's coming and going ------------------------------------------------------------------------------

    def attach(self, daemon: object) -> None:
        """A daemon starts to use the machine; the one before must be gone."""
        if self._daemon is not None:
            raise AssertionError("the machine has a daemon already; crash it first")
        self._daemon = daemon

    def is_attached(self, daemon: object) -> bool:
        """Whether this daemon is the living one."""
        return daemon is self._daemon

    def crash(self) -> None:
        """kill -9 of the daemon: its ports fall silent, children at their gates see the end of the pipe and exit."""
        gone, self._daemon = self._daemon, None
        for process in self._live():
            if gone is not None and process.gated_by is gone:
                self.close_gate(process)

    # --- processes --------------------------------------------------------------------------------------------------

    def spawn(self, request: SpawnRequest, model: ModelName, devices: tuple[DeviceId, ...], daemon: object) -> Process:
        """A child in a session of its own, waiting at its gate."""
        process = self._new_process(model, request.token, devices)
        process.request, process.gated_by = request, daemon
        self.note("spawned", model, request.token)
        return process

    def _new_process(self, model: ModelName, token: str | None, devices: tuple[DeviceId, ...], session: int = 0) -> Process:
        pid = next(self._pids)
        process = Process(pid=pid, start_ticks=100 * pid, session=session or pid, model=model, token=token, devices=devices)
        self.processes[pid] = self._open[pid] = process
        return process

    def close_gate(self, process: Process) -> None:
        """A child whose gate closes ends without ever having been an engine."""
        self.note("gate_closed", process.model, str(process.pid))
        self._bury(process, ExitInfo(code=0))

    def exec(self, process: Process, port: int) -> None:
        """The child becomes the engine."""
        knobs = self.behaviours.get(process.model, Behaviour())
        attempt = self.starts[process.model]
        self.starts[process.model] += 1
        process.gated_by = None
        process.life = EngineLife(knobs, attempt, self.now_s, WorldGround(self, process))
        short = [str(device) for device in process.devices if self.room(device) < knobs.start_needs_share * self._capacity(device)]
        if short:
            text = f"Free memory on device {short[0]} is less than desired GPU memory utilization"
            process.life.fail_start(StartFailure(code=Code.DEVICE_OOM, after_s=0.0, text=text))
        process.share = 1.0 - sum(child.share for child in knobs.children)
        self.listeners[port] = None if attempt < knobs.port_taken else process
        for role in knobs.children:
            child = self._new_process(process.model, process.token if role.keeps_token else None, process.devices, process.session)
            child.role, child.share, child.life = role, role.share, process.life
        self.note("started", process.model, f"pid {process.pid} on {','.join(process.devices)}")
        self.settle(taker=process)
        self._arm(process)

    def terminate(self, session: int, *, kill: bool) -> None:
        """TERM or KILL for every process of a session."""
        for process in self.group(session):
            if kill or process.gated_by is not None:
                self._kill(process)
            elif process.role is None and process.life is not None:
                process.life.term(self.now_s)
                self._arm(process)
            elif process.role is not None and not process.role.ignores_term and process.role.outlives:
                self._bury(process, ExitInfo(signal=15))  # the others are ended by their leader

    def kill(self, model: str) -> None:
        """kill -9 of a model's leader by somebody else."""
        self._kill(self.engine(model))

    def end(self, model: str, how: Ended) -> None:
        """A model's leader ends by itself."""
        process = self.engine(model)
        assert process.life is not None
        self._remember_share(process)
        process.life.end(how)
        self._leader_ended(process)

    def _kill(self, process: Process) -> None:
        self.note("killed", process.model, f"pid {process.pid}")
        if process.role is None and process.life is not None:
            self._remember_share(process)
            process.life.end(Ended(signal=9))
            self._leader_ended(process)
        else:
            self._bury(process, ExitInfo(signal=9))

    def _remember_share(self, leader: Process) -> None:
        """What survivors hold is what they held when their leader died."""
        assert leader.life is not None
        for process in self.group(leader.session):
            process.frozen_bytes = int(leader.life.device_bytes(self.now_s) * process.share)

    def _leader_ended(self, leader: Process) -> None:
        assert leader.life is not None
        how = leader.life.ended
        assert how is not None
        if how.code is not Code.NONE and leader.request is not None:
            self.logs.setdefault(leader.request.log_path, []).append(f"fatal {how.code.value}: {how.text}")
        self._bury(leader, ExitInfo(code=how.exit_code, signal=how.signal))
        for process in self.group(leader.session):
            if process.role is not None and not process.role.outlives:
                self._bury(process, ExitInfo(signal=9))

    def _bury(self, process: Process, how: ExitInfo) -> None:
        process.alive, process.exit, process.gated_by = False, how, None
        if process.timer is not None:
            process.timer.cancel()
        self.listeners = {port: who for port, who in self.listeners.items() if who is not process}
        self.note("ended", process.model, f"pid {process.pid} code {how.code} signal {how.signal}")
        self.settle()
        process.ended.set()

    # --- time -------------------------------------------------------------------------------------------------------

    def _arm(self, process: Process) -> None:
        if process.timer is not None:
            process.timer.cancel()
            process.timer = None
        assert process.life is not None
        due = process.life.next_change_s()
        if process.alive and due < NEVER:
            process.timer = self._loop.call_at(due, self.catch_up, process)

    def catch_up(self, process: Process) -> None:
        """Let what is due inside an engine happen; to be called before its life is looked at or talked to."""
        life = process.life
        assert life is not None
        if not process.alive or life.next_change_s() > self.now_s:
            return
        self._remember_share(process)
        before = life.stage
        life.advance(self.now_s)
        if life.stage is Stage.ENDED:
            self._leader_ended(process)
            return
        if life.stage is not before:
            names = {Stage.AWAKE: "ready" if before is Stage.LOADING else "woken", Stage.ASLEEP: "asleep"}
            self.note(names.get(life.stage, life.stage.value), process.model, f"level {life.level}")
        self.settle(taker=process)
        self._arm(process)

    def settle(self, taker: Process | None = None) -> None:
        """Bring the books up to date: who holds what, what is not seen free yet, peaks; an overflow ends the ``taker``."""
        now = self.now_s
        grew = self._account(now)
        self.host_peak_bytes = max(self.host_peak_bytes, self.host_bytes())
        for device, there in self.devices.items():
            there.lagging = [item for item in there.lagging if item[0] > now]
            used = self._used(device)
            there.peak_bytes = max(there.peak_bytes, used)
            if used > there.info.capacity_bytes and device in grew:
                self.note("out_of_memory", str(device), f"{used - there.info.capacity_bytes} bytes too many, taken by {grew[device]}")
                if taker is not None and taker.alive and taker.life is not None and device in taker.devices:
                    taker.life.end(Ended(exit_code=1, code=Code.DEVICE_OOM, text=f"out of memory on {device}"))
                    self._leader_ended(taker)
                    return
        self.on_change()

    def _account(self, now: float) -> dict[DeviceId, ModelName]:
        grew: dict[DeviceId, ModelName] = {}
        for process in list(self._open.values()):
            if not process.alive:
                del self._open[process.pid]
            for device in process.devices:
                key = (process.pid, device)
                held, before = (0 if device in process.torn else process.device_bytes(now)), self._held.get(key, 0)
                if held > before:
                    grew[device] = process.model
                    self._take_back(self.devices[device], process.pid, held - before)
                lag = self.behaviours.get(process.model, Behaviour()).free_lag_s
                if held < before and lag > 0:
                    self.devices[device].lagging.append((now + lag, before - held, process.pid))
                if held:
                    self._held[key] = held
                else:
                    self._held.pop(key, None)
        return grew

    @staticmethod
    def _take_back(there: WorldDevice, pid: int, wanted: int) -> None:
        """A process takes first what it has itself just given up."""
        kept = []
        for until, size, who in there.lagging:
            part = min(size, wanted) if who == pid else 0
            wanted -= part
            if size > part:
                kept.append((until, size - part, who))
        there.lagging = kept

    # --- requests, and other people's doings ------------------------------------------------------------------------

    async def request(self, base_url: str, seconds: float) -> Outcome:
        """An inference request of that duration, as a client of the engine lives it."""
        process = self.listeners.get(port_of(base_url))
        if process is None or process.life is None or process.life.refuses:
            return Outcome.ENGINE_LOST
        self.catch_up(process)
        if process.life.stage is not Stage.AWAKE:
            self.note("misdirected", process.model, f"a request reached it while {process.life.stage}")
        match self.ask(process):
            case Fate.ENDS:
                return Outcome.ENGINE_LOST
            case Fate.QUEUED | Fate.UNAVAILABLE | Fate.FAILS_AND_ENDS:
                return Outcome.ENGINE_ERROR
            case Fate.HANGS:
                await process.ended.wait()
                return Outcome.ENGINE_LOST
            case Fate.GARBAGE:
                self.note("garbage", process.model, "a request was answered with nonsense")
        cuts = process.cuts
        process.running += 1
        try:
            async with asyncio.timeout(seconds):
                await process.ended.wait()
        except TimeoutError:
            if process.torn:  # no answer comes from a device that is lost
                await process.ended.wait()
                return Outcome.ENGINE_LOST
            return Outcome.OK if process.cuts == cuts else Outcome.ABORTED
        finally:
            process.running -= 1
        return Outcome.ENGINE_LOST

    def ask(self, process: Process) -> Fate:
        """What becomes of an inference request to this engine; some end it."""
        assert process.life is not None
        self._remember_share(process)
        fate = process.life.request(self.now_s)
        if fate is Fate.FAILS_AND_ENDS:
            process.life.end(ILLEGAL)
        if process.life.stage is Stage.ENDED:
            self._leader_ended(process)
        return fate

    def cut_requests(self, process: Process) -> None:
        """Requests inside end with a partial answer: the engine is being put to sleep under them."""
        if process.running:
            process.cuts += 1
            self.note("cut", process.model, f"{process.running} requests")

    def set_foreign(self, device: DeviceId, foreign_bytes: int) -> None:
        """Somebody else uses so much of a device."""
        self.devices[device].foreign_bytes = foreign_bytes
        self.settle()

    def lose(self, device: DeviceId, trouble: str = "it fell off the bus") -> None:
        """A device falls off the bus: what engines held there is gone, and whoever asks one of them waits in vain."""
        there = self.devices[device]
        there.health, there.trouble, there.lagging = Health.LOST, trouble, []
        for process in self._live():
            if device in process.devices:
                process.torn.add(device)
                if process.role is None and process.life is not None:
                    process.life.wedge()
        self.note("lost", str(device))
        self.settle()

    def ail(self, device: DeviceId, health: Health, trouble: str = "") -> None:
        """A device has another health, or (OK) is well again."""
        self.devices[device].health, self.devices[device].trouble = health, trouble
        self.settle()

    def vanish(self, device: DeviceId, *, absent: bool = True) -> None:
        """A device leaves the list, or (False) is there again; engines on it lose what they held."""
        if absent:
            self.lose(device, "it vanished")
        self.devices[device].absent, self.devices[device].health = absent, Health.OK
        self.generation += 1

    def poke(self, process: Process) -> None:
        """Its life was changed from outside (a control call): re-arm its timer and the books."""
        if process.alive and process.life is not None and process.life.stage is Stage.ENDED:
            self._leader_ended(process)
            return
        self.settle(taker=process)
        if process.alive:
            self._arm(process)

    def free_port(self) -> int:
        """A port nobody listens on."""
        return next(port for port in self._ports if port not in self.listeners)

    def handle_of(self, process: Process) -> ProcessHandle:
        """Its identity."""
        return ProcessHandle(boot_id=BOOT_ID, pid=process.pid, start_ticks=process.start_ticks)

    def note(self, what: str, subject: str, detail: str = "") -> None:
        """An entry of the log."""
        self.log.append(Entry(self.now_s, what, subject, detail))


def port_of(base_url: str) -> int:
    """The port of ``http://127.0.0.1:PORT``."""
    return int(base_url.rstrip("/").rpartition(":")[2])


def device(
    name: str, capacity_gib: float, *, kind: str = "nvidia", index: int = 0, host_memory: bool = False, islands: tuple[str, ...] = ()
) -> DeviceInfo:
    """A device without reserve or headroom."""
    return DeviceInfo(
        id=DeviceId(name),
        kind=kind,
        name=f"pretended {kind}",
        index=index,
        uuid=f"uuid-{name}",
        capacity_bytes=int(capacity_gib * GIB),
        host_memory=host_memory,
        islands=islands,
    )
