"""The engines and devices behind :class:`tests.support.plain.Plain`: a few dictionaries that obey effects at once."""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.domain.device import DeviceInfo, DeviceSample, Health
from scheduler.domain.ids import DeviceId, Holder, InstanceId, LaunchId, model_of
from scheduler.domain.instance import GROWING_PHASES, SHRINKING_PHASES
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator import effects as fx
from scheduler.orchestrator import events as ev
from scheduler.orchestrator.state import State
from tests.support.behaviour import NEVER, Behaviour
from tests.support.engine_life import Ended, EngineLife, Stage
from tests.support.plain_around import Around

FAST_S = 0.25
PROGRESS_S = 30.0
FAST_FOR_S = 10.0


@dataclass(slots=True)
class Proc:
    """An engine process."""

    launch: LaunchId
    devices: tuple[DeviceId, ...]
    life: EngineLife
    order: int = 0  # replies to earlier orders are dropped, as a supervisor that was told something else does
    stopping: bool = False
    shown: dict[DeviceId, int] = field(default_factory=dict)


class PlainMachine:
    """Processes, memory and measurements. ``play`` and ``lost`` are supplied by :class:`tests.support.plain.Plain`."""

    def __init__(self, infos: Sequence[DeviceInfo], behaviours: Mapping[str, Behaviour], sample_period_s: float) -> None:
        self.infos = list(infos)
        self.behaviours = dict(behaviours)
        self.now_s = 0.0
        self.did: list[tuple[float, str, str]] = []  # (when, what, model): Launch, Sleep, Wake, Stop, Kill
        self.procs: dict[InstanceId, Proc] = {}
        self.foreign: dict[DeviceId, int] = {}
        self.lagging: list[tuple[float, DeviceId, int, LaunchId]] = []  # (free at, where, bytes, whose)
        self.overflows: list[str] = []
        self.unreadable: set[DeviceId] = set()
        self.around = Around()
        self.versions: dict[str, str] = {}  # of engines, by model; "" = they do not say
        self.sample_takes_s = 0.0
        self.state = State()
        self.sample_period_s = sample_period_s
        self._starts: dict[str, int] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count(1)
        self._measuring = False

    def play(self, event: ev.Happening) -> None:
        """Feed an event to the reducer."""
        raise AssertionError("supplied by Plain")

    def lost(self, iid: InstanceId) -> None:
        """Requests inside an engine that has ended are lost."""
        raise AssertionError("supplied by Plain")

    def used(self, name: str) -> int:
        """Bytes really used on a device."""
        where = DeviceId(name)
        held = sum(p.shown.get(where, 0) for p in self.procs.values())
        return held + sum(b for until, d, b, _ in self.lagging if d == where and until > self.now_s) + self.foreign.get(where, 0)

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Have something happen later."""
        if delay_s < NEVER:
            heapq.heappush(self._heap, (self.now_s + max(0.0, delay_s), next(self._serial), do))

    def command(self, effect: fx.EngineEffect) -> None:
        """Do what a supervisor would do."""
        iid = effect.instance
        name = "Kill" if isinstance(effect, fx.Stop) and effect.kill else type(effect).__name__
        self.did.append((self.now_s, name, model_of(iid)))
        if isinstance(effect, fx.Launch):
            self._launch(effect)
            return
        proc = self.procs.get(iid)
        if isinstance(effect, fx.Stop):
            self._stop(effect, proc)
            return
        if proc is None or proc.launch != effect.launch:
            self.later(0.0, lambda: self._tell_gone(effect))
            return
        proc.life.advance(self.now_s)
        if isinstance(effect, fx.CheckNow):
            self.later(0.1, lambda: self._answer_check(effect))
            return
        if isinstance(effect, fx.WatchIdle):
            self.later(2.0, lambda: self.play(ev.EngineIdle(at_s=self.now_s, instance=iid, launch=effect.launch)))
            return
        proc.order += 1
        if isinstance(effect, fx.Find):
            self._find(effect, proc, proc.order)
        elif isinstance(effect, fx.Sleep):
            self._sleep(effect, proc)
        elif isinstance(effect, fx.Wake):
            self._wake(effect, proc)

    def _tell_gone(self, effect: fx.EngineEffect) -> None:
        reason = Reason(Code.CRASHED, "no process")
        self.play(ev.EngineExited(at_s=self.now_s, instance=effect.instance, launch=effect.launch, reason=reason))

    def _answer_check(self, effect: fx.EngineEffect) -> None:
        if effect.instance in self.procs:
            self.play(ev.EngineSlow(at_s=self.now_s, instance=effect.instance, launch=effect.launch, slow=False))

    def _launch(self, effect: fx.Launch) -> None:
        name = model_of(effect.instance)
        knobs = self.behaviours.get(name, Behaviour())
        attempt = self._starts.get(name, 0)
        self._starts[name] = attempt + 1
        if knobs.executable_missing or knobs.preflight is not None:
            code = Code.EXECUTABLE_MISSING if knobs.executable_missing or knobs.preflight is None else knobs.preflight.code
            reason = Reason(code, f"pretended {code.value}", "mend it")
            event = ev.EngineExited(at_s=self.now_s, instance=effect.instance, launch=effect.launch, reason=reason)
            self.later(0.0, lambda: self.play(replace(event, at_s=self.now_s)))
            return
        if effect.kv_bytes is not None:
            knobs = replace(knobs, awake_bytes=knobs.awake_bytes - knobs.kv_bytes + effect.kv_bytes, kv_bytes=effect.kv_bytes)
        proc = Proc(effect.launch, effect.devices, EngineLife(knobs, attempt, self.now_s))
        if knobs.sleepy_start_fails is not None and not effect.sleepless:
            proc.life.fail_start(knobs.sleepy_start_fails)
        self.procs[effect.instance] = proc
        self._books(effect.instance, proc)
        self.arm(effect.instance, proc)
        self._progress(effect.instance, proc)

    def _progress(self, iid: InstanceId, proc: Proc) -> None:
        """Seldom enough for property tests, often enough for the window in which a start has to do something."""

        def look() -> None:
            if self.procs.get(iid) is proc and proc.life.is_busy():
                self.play(ev.StartProgressed(at_s=self.now_s, instance=iid, launch=proc.launch))
                self.later(PROGRESS_S, look)

        self.later(PROGRESS_S, look)

    def _stop(self, effect: fx.Stop, proc: Proc | None) -> None:
        if proc is None or proc.launch != effect.launch:
            self.later(0.0, lambda: self.play(ev.GroupEmpty(at_s=self.now_s, instance=effect.instance, launch=effect.launch)))
            return
        proc.order += 1
        proc.stopping = True
        if effect.kill:
            proc.life.end(Ended(signal=9))
            self.later(0.0, lambda: self.ended(effect.instance, proc))
        else:
            proc.life.term(self.now_s)
            self.arm(effect.instance, proc)

    def _sleep(self, effect: fx.Sleep, proc: Proc) -> None:
        reply, order, iid = proc.life.sleep(self.now_s, effect.level), proc.order, effect.instance
        self.arm(iid, proc)

        def answer() -> None:
            if proc.order != order or proc.life.stage is Stage.ENDED:
                return
            if reply.error:
                reason = Reason(Code.SLEEP_FAILED, reply.error)
                self.play(ev.SleepErrored(at_s=self.now_s, instance=iid, launch=effect.launch, reason=reason))
            else:
                self.play(ev.SleepReturned(at_s=self.now_s, instance=iid, launch=effect.launch, level=reply.level))

        self.later(reply.at_s - self.now_s, answer)

    def _wake(self, effect: fx.Wake, proc: Proc) -> None:
        reply, order, iid = proc.life.wake(self.now_s), proc.order, effect.instance
        self._books(iid, proc)
        self.arm(iid, proc)
        self.later(0.0, lambda: self.play(ev.WakeSent(at_s=self.now_s, instance=iid, launch=effect.launch)))

        def answer() -> None:
            if proc.order != order or proc.life.stage is Stage.ENDED:
                return
            error = reply.error
            if not error and effect.level == 2:
                error = proc.life.reload(self.now_s).error
            if error:
                reason = Reason(Code.DEVICE_OOM if "out of memory" in error else Code.WAKE_FAILED, error)
            elif proc.life.speaks_garbage:
                reason = Reason(Code.OUTPUT_WRONG, "it does not say what it said before it slept", "start it anew")
            else:
                self.play(self._ready(iid, proc))
                return
            self.play(ev.WakeErrored(at_s=self.now_s, instance=iid, launch=effect.launch, reason=reason))

        self.later(reply.at_s - self.now_s, answer)

    def _ready(self, iid: InstanceId, proc: Proc) -> ev.EngineReady:
        return ev.EngineReady(at_s=self.now_s, instance=iid, launch=proc.launch, version=self.versions.get(model_of(iid), ""))

    def _find(self, effect: fx.Find, proc: Proc, order: int) -> None:
        def look() -> None:
            if proc.order != order or proc.life.stage is Stage.ENDED:
                return
            proc.life.advance(self.now_s)
            states = {Stage.AWAKE: "awake", Stage.ASLEEP: "asleep"}
            found = states.get(proc.life.stage)
            if proc.life.silent:
                found = None
            elif proc.life.stage is Stage.LOADING and effect.started_before:
                found = "launching"
            if found is None:
                self.later(0.5, look)
            else:
                self.play(ev.Found(at_s=self.now_s, instance=effect.instance, launch=effect.launch, state=found, level=proc.life.level))

        self.later(0.1, look)

    def arm(self, iid: InstanceId, proc: Proc) -> None:
        """Be there when something changes inside an engine."""
        due = proc.life.next_change_s()
        self.later(due - self.now_s, lambda: self._evolve(iid, proc))

    def _evolve(self, iid: InstanceId, proc: Proc) -> None:
        """Something may be due inside an engine."""
        if self.procs.get(iid) is not proc or proc.life.next_change_s() > self.now_s:
            return
        before = proc.life.stage
        proc.life.advance(self.now_s)
        self._books(iid, proc)
        self.arm(iid, proc)
        if proc.life.stage is Stage.ENDED:
            self.ended(iid, proc)
        elif before is Stage.LOADING and proc.life.stage is Stage.AWAKE:
            self.play(self._ready(iid, proc))

    def ended(self, iid: InstanceId, proc: Proc) -> None:
        """Its process has ended: requests inside are lost, the exit is told, and that the group is empty when it was being stopped."""
        if self.procs.get(iid) is not proc:
            return
        del self.procs[iid]
        self._books(iid, proc)
        self.lost(iid)
        how = proc.life.ended
        assert how is not None
        code = how.code if how.code is not Code.NONE else Code.CRASHED
        reason = Reason(code, how.text or "it ended")
        self.play(ev.EngineExited(at_s=self.now_s, instance=iid, launch=proc.launch, reason=reason, exit_code=how.exit_code))
        if proc.stopping:
            self.later(0.0, lambda: self.play(ev.GroupEmpty(at_s=self.now_s, instance=iid, launch=proc.launch)))

    def _books(self, iid: InstanceId, proc: Proc) -> None:
        """Who holds what now; what is given back is seen free later; more than there is, is an overflow."""
        held = proc.life.device_bytes(self.now_s)
        lag = proc.life.behaviour.free_lag_s
        for where in proc.devices:
            before = proc.shown.get(where, 0)
            if held < before and lag > 0:
                self.lagging.append((self.now_s + lag, where, before - held, proc.launch))
            elif held > before:  # a process takes back first what it has just given up
                self._take_back(where, proc.launch, held - before)
            proc.shown[where] = held
            info = next((i for i in self.infos if i.id == where), None)  # None = it is not there any more
            if info is not None and held > before and self.used(where) > info.capacity_bytes:
                self.overflows.append(f"{iid} takes {held - before} on {where} at {self.now_s:g}")

    def _take_back(self, where: DeviceId, launch: LaunchId, wanted: int) -> None:
        kept = []
        for until, place, size, who in self.lagging:
            part = min(size, wanted) if (place, who) == (where, launch) else 0
            wanted -= part
            if size > part:
                kept.append((until, place, size - part, who))
        self.lagging = kept

    # --- measurements -----------------------------------------------------------------------------------------------

    def sample_every_period(self) -> None:
        """Start to measure regularly: faster while bytes move, as the sampler does (for a while: endless starts are told from the rest)."""
        moving = (i for i in self.state.instances.values() if i.phase in GROWING_PHASES | SHRINKING_PHASES)
        lately = any(self.now_s - i.since_s < FAST_FOR_S for i in moving)
        self.later(FAST_S if lately else self.sample_period_s, self._periodic)

    def _periodic(self) -> None:
        self.take_sample()
        self.sample_every_period()

    def measure_soon(self) -> None:
        """Somebody waits for bytes: one more measurement, shortly."""
        if not self._measuring:
            self._measuring = True
            self.later(0.05, self._measure_soon)

    def _measure_soon(self) -> None:
        self._measuring = False
        self.take_sample()

    def take_sample(self) -> None:
        """Read now; the result arrives ``sample_takes_s`` later."""
        for iid, proc in self.procs.items():
            self._books(iid, proc)
        samples = tuple(self._sample(info) for info in self.infos if info.id not in self.unreadable)
        copies = {iid: proc.life.host_bytes() for iid, proc in self.procs.items()}
        host = self.around.host_sample(self.now_s, copies)

        def arrive() -> None:
            self.play(ev.Sampled(at_s=self.now_s, samples=samples, host=host))

        if self.sample_takes_s > 0:
            self.later(self.sample_takes_s, arrive)
        else:
            arrive()

    def _sample(self, info: DeviceInfo) -> DeviceSample:
        self.lagging = [item for item in self.lagging if item[0] > self.now_s]
        seated = [instance for instance in self.state.with_process() if info.id in instance.devices]
        health = self.around.ill.get(info.id, Health.OK)
        if health not in (Health.OK, Health.DRAINING):
            return self.around.ill_sample(info.id, self.now_s, [Holder(instance.id) for instance in seated])
        used = self.used(info.id)
        own: dict[Holder, int] = {}
        for instance in seated:
            proc = self.procs.get(instance.id)
            late = sum(b for _, d, b, who in self.lagging if proc is not None and d == info.id and who == proc.launch)
            own[Holder(instance.id)] = late + (proc.shown.get(info.id, 0) if proc is not None else 0)
        text, fix = self.around.words(info.id)
        return DeviceSample(
            device=info.id,
            started_at_s=self.now_s,
            used_bytes=used,
            free_bytes=max(0, info.capacity_bytes - used),
            foreign_bytes=max(0, used - sum(own.values())),
            own=own,
            health=health,
            trouble=text,
            fix=fix,
            estimated=self.around.estimated,
            strangers=self.around.strangers.get(info.id, ()),
        )
