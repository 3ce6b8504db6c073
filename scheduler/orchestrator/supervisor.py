"""One supervisor per instance: the only caller of its engine. It does one thing at a time and reports what happened."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.domain.claims import Source
from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.ids import InstanceId, LaunchId
from scheduler.domain.launch import LaunchRecord
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator.backlog import RETRY_STORE_S, is_fault_of_row
from scheduler.orchestrator.effects import CheckNow, EngineEffect, Find, Launch, Sleep, Stop, Wake, WatchIdle
from scheduler.orchestrator.events import (
    EngineExited,
    EngineIdle,
    EngineReady,
    Found,
    GroupEmpty,
    Happening,
    SleepErrored,
    SleepReturned,
    StartAnswered,
    StartProgressed,
    WakeErrored,
    WakeSent,
)
from scheduler.orchestrator.looks import Looks
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.rounds import Rounds, until_idle
from scheduler.orchestrator.silence import Pulses, mute
from scheduler.ports.engine import Answer, Attaches, CanSleep, Endpoint, Engine, Probe, WarmsUp
from scheduler.ports.launcher import ExitInfo, Gate, ProcessHandle, SpawnRequest
from scheduler.store.instances import set_launch_process
from scheduler.telemetry.tasks import TaskScope

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 2.0
READY_POLL_S = 0.1
READY_POLL_MOST_S = 0.5
PROGRESS_EVERY_S = 5.0
FIND_WARM_UP_S = 10.0  # it was ready before, so it should be quick; a look at an unknown engine has little time
WARM_UP_TIMEOUT_S = 300.0  # kernels may be compiled for it


@dataclass(slots=True)
class Progress:
    """What the last look at a start saw (see ``Launcher.activity``), and when to look again."""

    seen: int | None = None
    odd: str = ""
    look_at_s: float = 0.0


class Supervisor:
    """Owns one instance's process handle and everything that talks to its engine."""

    def __init__(
        self,
        instance: InstanceId,
        parts: Parts,
        post: Callable[[Happening], None],
        store_failed: Callable[[Exception], None] = lambda _error: None,
        pulses: Pulses | None = None,
    ) -> None:
        self.instance = instance
        self._parts = parts
        self._post = post
        self._store_failed = store_failed
        self._scope = TaskScope(f"supervisor:{instance}")
        self._doing: asyncio.Task[Any] | None = None
        self._watch: asyncio.Task[Any] | None = None
        self._health: asyncio.Task[Any] | None = None
        self.record: LaunchRecord | None = None
        self.handle: ProcessHandle | None = None
        self._engine: Engine | None = None
        self._exit_told = False
        self._looks = Looks(instance, parts.launcher)
        self._rounds = Rounds(instance, self._looks, pulses or Pulses(parts.clock), parts.clock, post)
        self._ended = False  # a stop of the present launch was asked for: nothing else is done with it

    # --- entry ------------------------------------------------------------------------------------------------------

    def adopt(self, record: LaunchRecord) -> None:
        """Take over what an earlier daemon launched."""
        self._take(record)
        if record.pid is not None and record.start_ticks is not None:
            self.handle = ProcessHandle(boot_id=record.boot_id, pid=record.pid, start_ticks=record.start_ticks)
            self._watch = self._scope.spawn(self._watch_leader(record.id, self.handle), "watch")

    def prepare(self, record: LaunchRecord, spec: ModelSpec, environment: Mapping[str, str]) -> None:
        """Before a launch: what the next Launch effect will start, and in which environment."""
        self._take(record)
        self.handle = None
        self._spec = spec
        self._environment = environment

    async def carry_out(self, effect: EngineEffect) -> None:
        """Do one thing; whatever was being done before is cancelled. Returns when it is done (or was cancelled)."""
        if self.record is None or effect.launch != self.record.id:
            return
        if isinstance(effect, CheckNow):
            self._rounds.look_now()
            return
        if isinstance(effect, WatchIdle):
            self._scope.spawn(self._watch_idle(effect.launch), "idle")
            return
        if isinstance(effect, Stop):
            self._ended = True
        elif self._ended:
            return  # it was stopped while this waited for its row or its lane
        await self._stop_doing()
        self._doing = self._scope.spawn(self._work(effect), type(effect).__name__.lower())
        await asyncio.wait([self._doing])

    async def close(self) -> None:
        """Let go of the engine without touching it."""
        await self._scope.aclose()

    def endpoint(self) -> Endpoint:
        """Where its engine answers, from the launch record."""
        record = self._need_record()
        return Endpoint(
            base_url=f"http://127.0.0.1:{record.port}",
            served_model=record.served_model,
            ready_path=record.ready_path,
            version=record.version,
            sleep_paths=record.sleep_paths,
            wake_paths=record.wake_paths,
            golden=record.golden or "",
        )

    # --- internals --------------------------------------------------------------------------------------------------

    def _take(self, record: LaunchRecord) -> None:
        for task in (self._watch, self._health):
            if task is not None:
                task.cancel()
        self.record = record
        self._engine = self._parts.engines[record.engine]
        self._exit_told = self._ended = False

    def _need_record(self) -> LaunchRecord:
        if self.record is None:
            raise AssertionError(f"{self.instance} was never launched")
        return self.record

    def _sleeper(self) -> CanSleep:
        engine: object = self._engine
        if not isinstance(engine, CanSleep):
            raise Permanent(f"{self.instance}: its engine cannot sleep, yet it was asked to")
        return engine

    def _now(self) -> float:
        return self._parts.clock.monotonic()

    async def _stop_doing(self) -> None:
        while self._doing is not None and not self._doing.done():
            self._doing.cancel()
            await asyncio.wait([self._doing])

    def _work(self, effect: EngineEffect) -> Coroutine[Any, Any, None]:
        match effect:
            case Launch():
                return self._launch(effect)
            case Sleep():
                return self._sleep(effect)
            case Wake():
                return self._wake(effect)
            case Stop():
                return self._stop(effect)
            case Find():
                return self._find(effect)
            case _:
                raise AssertionError(f"no supervisor does {effect}")

    # --- launch -----------------------------------------------------------------------------------------------------

    async def _launch(self, effect: Launch) -> None:
        engine, record = self._engine, self._need_record()
        assert engine is not None
        try:
            await engine.preflight(self._spec)
            await (self._attach(record) if self._is_attached() else self._exec(record))
        except Exception as error:
            if not isinstance(error, HotseatError):
                log.exception("%s: its start failed", self.instance)
            self._tell_exit(effect.launch, reason_of(error))
            return
        self._health_off()
        await self._until_ready(effect.launch, record)

    async def _exec(self, record: LaunchRecord) -> None:
        """Spawn at the gate, commit the process identity, then let it run: no process without a row."""
        request = SpawnRequest(
            argv=record.argv,
            env=self._environment,
            cwd=record.cwd,
            log_path=record.log_path,
            token=record.token,
        )
        self._parts.boundary(f"spawn:{record.instance}")
        gate = await self._spawn(request)
        handle = gate.handle
        self.handle = handle
        try:
            await self._commit_process(record.id, handle)
            self._watch = self._scope.spawn(self._watch_leader(record.id, handle), "watch")
            self._parts.boundary(f"release:{record.instance}")
            await gate.release()
            self._parts.boundary(f"released:{record.instance}")
        except BaseException:
            await gate.abandon()
            raise

    async def _attach(self, record: LaunchRecord) -> None:
        """Take in a process that somebody else has started."""
        handle = await self._parts.launcher.listener(record.port)
        if handle is None:
            text = f"nobody listens on port {record.port}, or it is another user's process that cannot be looked at"
            fix = "start the engine, it is not started here; run both as the same user, or the daemon as root"
            raise Temporary(text, retry_after_s=5.0, code=Code.ENGINE_LOST, fix=fix)
        self.handle = handle
        await self._commit_process(record.id, handle)
        self._watch = self._scope.spawn(self._watch_leader(record.id, handle), "watch")

    async def _commit_process(self, launch: LaunchId, handle: ProcessHandle) -> None:
        """A store that takes no rows is no fault of the engine: the child waits at its gate, where it holds next to nothing.

        A stop ends the wait, and so does the deadline of the start.
        """
        told = False
        while True:
            try:
                await self._parts.writer.submit(
                    lambda conn: set_launch_process(conn, launch, handle.boot_id, handle.pid, handle.start_ticks), "process"
                )
            except Exception as error:
                if is_fault_of_row(error):
                    raise
                if not told:
                    self._store_failed(error)
                told = True
                await asyncio.sleep(RETRY_STORE_S)
            else:
                return

    async def _spawn(self, request: SpawnRequest) -> Gate:
        """A spawn that is cancelled half-way must not leave a child at a gate that nobody holds."""
        spawning = self._scope.spawn(self._parts.launcher.spawn(request), "spawn", expected=(Exception,))
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:
            spawning.add_done_callback(self._abandon_late)
            raise

    def _abandon_late(self, spawned: "asyncio.Task[Gate]") -> None:
        if not spawned.cancelled() and spawned.exception() is None and not self._scope.closed:
            self._scope.spawn(spawned.result().abandon(), "abandon")

    async def _until_ready(self, launch: LaunchId, record: LaunchRecord) -> None:
        pause, progress = READY_POLL_S, Progress()
        while True:
            if await self._looks.attempt(self._is_decided(launch, record, progress)):
                return
            await asyncio.sleep(pause)
            pause = min(READY_POLL_MOST_S, pause * 1.3)

    async def _is_decided(self, launch: LaunchId, record: LaunchRecord, progress: "Progress") -> bool:
        """One look at a start; True once it was reported as ready or as failed."""
        found = await self._probe()
        if await self._has_progressed(progress, record):
            self._post(StartProgressed(at_s=self._now(), instance=self.instance, launch=launch))
        odd = found.detail if found.answer is Answer.BROKEN else ""
        if odd != progress.odd:
            progress.odd = odd
            self._post(StartAnswered(at_s=self._now(), instance=self.instance, launch=launch, detail=odd))
        theirs = found.answer is not Answer.REFUSED and await self._port_is_not_ours(record.port)
        # An engine that ended between its answer and the look at its port listens nowhere; a stranger still answers.
        if theirs and (await self._probe()).answer is not Answer.REFUSED:
            self._tell_exit(launch, _stranger(record.port, ours=not self._is_attached()))
            return True
        if theirs or found.answer not in (Answer.READY, Answer.ASLEEP):
            return False
        if found.answer is Answer.ASLEEP and self._is_attached():
            return await self._wake_found(found, progress, launch)
        self.record = replace(record, version=found.version or record.version)
        golden = await self._warm_up(found, progress, launch)
        if golden is None:
            return False
        self.record = replace(self.record, golden=golden or None)
        self._post(EngineReady(at_s=self._now(), instance=self.instance, launch=launch, version=found.version, golden=golden))
        self._health_on(launch)
        return True

    async def _warm_up(self, found: Probe, progress: "Progress", launch: LaunchId) -> str | None:
        """The first request of a cold start, which nobody else shall pay for; None = it did not work, and is tried again."""
        engine: object = self._engine
        if not isinstance(engine, WarmsUp) or found.answer is not Answer.READY:
            return ""
        try:
            return await engine.warm_up(self.endpoint(), WARM_UP_TIMEOUT_S)
        except HotseatError as error:
            if error.message != progress.odd:
                progress.odd = error.message
                self._post(StartAnswered(at_s=self._now(), instance=self.instance, launch=launch, detail=error.message))
            return None

    async def _wake_found(self, found: Probe, progress: "Progress", launch: LaunchId) -> bool:
        """An engine that slept when it was taken in: there is room for it now, so it is woken first.

        As long as nobody knows how much it takes awake, there may be no room: then it is not.
        """
        if self._need_record().footprint.source is Source.ESTIMATED:
            self._tell_exit(launch, _OF_UNKNOWN_SIZE)
            return True
        try:
            await self._sleeper().wake(self.endpoint(), found.level or 1, WARM_UP_TIMEOUT_S)
        except HotseatError as error:
            if error.message != progress.odd:
                progress.odd = error.message
                self._post(StartAnswered(at_s=self._now(), instance=self.instance, launch=launch, detail=error.message))
        return False  # the next look sees it awake

    async def _has_progressed(self, progress: "Progress", record: LaunchRecord) -> bool:
        """Whether a start did something since the last look; looked at every few seconds only."""
        if self.handle is None or self._now() < progress.look_at_s:
            return False
        before, progress.seen = progress.seen, await self._parts.launcher.activity(self.handle, record.log_path)
        progress.look_at_s = self._now() + PROGRESS_EVERY_S
        return before is not None and progress.seen > before

    async def _port_is_not_ours(self, port: int) -> bool:
        """A 200 proves nothing: whoever listens must be one of our processes (None = it cannot be told: believe it)."""
        return self.handle is not None and await self._parts.launcher.owns_port(self.handle, port) is False

    # --- sleep, wake, stop ------------------------------------------------------------------------------------------

    async def _sleep(self, effect: Sleep) -> None:
        self._health_off()
        self._parts.boundary(f"sleep:{self.instance}")
        try:
            engine = self._sleeper()
            level = await asyncio.wait_for(engine.sleep(self.endpoint(), effect.level, effect.timeout_s), effect.timeout_s + 1.0)
        except TimeoutError:
            return  # the reducer's own deadline sees to it
        except Exception as error:  # noqa: BLE001 - whatever it was, it is told to whoever decides
            self._post(
                SleepErrored(at_s=self._now(), instance=self.instance, launch=effect.launch, reason=reason_of(error, Code.SLEEP_FAILED))
            )
            return
        self._parts.boundary(f"slept:{self.instance}")
        self._post(SleepReturned(at_s=self._now(), instance=self.instance, launch=effect.launch, level=level))

    async def _wake(self, effect: Wake) -> None:
        self._parts.boundary(f"wake:{self.instance}")
        self._post(WakeSent(at_s=self._now(), instance=self.instance, launch=effect.launch))
        try:
            engine = self._sleeper()
            await asyncio.wait_for(engine.wake(self.endpoint(), effect.level, effect.timeout_s), effect.timeout_s + 1.0)
        except TimeoutError:
            return
        except Exception as error:  # noqa: BLE001 - as above
            self._post(
                WakeErrored(at_s=self._now(), instance=self.instance, launch=effect.launch, reason=reason_of(error, Code.WAKE_FAILED))
            )
            return
        self._parts.boundary(f"woken:{self.instance}")
        self._post(EngineReady(at_s=self._now(), instance=self.instance, launch=effect.launch))
        self._health_on(effect.launch)

    async def _stop(self, effect: Stop) -> None:
        """TERM or KILL the whole group, then report when no member is left; the reducer escalates."""
        self._health_off()
        handle = self.handle
        if self._is_attached():
            self._let_go()
        elif handle is not None:
            self._parts.boundary(f"stop:{self.instance}")
            await self._looks.terminate(handle, kill=effect.kill)
            await self._looks.leader_end(handle)
            await self._looks.group_end(handle)
            # What left its leader's session can be told by its token alone once the leader died unseen, between two daemons.
            await self._looks.strays_end(self._parts.state_uuid, self._need_record().token, kill=effect.kill)
        self._parts.boundary(f"stopped:{self.instance}")
        self._post(GroupEmpty(at_s=self._now(), instance=self.instance, launch=effect.launch))

    def _is_attached(self) -> bool:
        engine: object = self._engine
        return isinstance(engine, Attaches)

    def _let_go(self) -> None:
        """What is not ours is not ended: its memory is somebody else's use from now on."""
        if self._watch is not None:
            self._watch.cancel()
        self.handle = None

    async def _find(self, effect: Find) -> None:
        """Look until there is something to say: the exit watcher tells of a death, the reducer's deadline ends a silence."""
        if self.handle is None:
            self._tell_exit(effect.launch, Reason(Code.RESTARTED, "its process was never let through the gate"))
            return
        pause = READY_POLL_S
        while True:
            looked = await self._looks.attempt(self._look_once(effect))
            if looked is not None and looked[0] is not None:
                state, found = looked
                golden = await self._missed_golden(effect, found) if state == "awake" else ""
                self._post(
                    Found(
                        at_s=self._now(),
                        instance=self.instance,
                        launch=effect.launch,
                        state=state,
                        level=found.level,
                        version=found.version,
                        golden=golden,
                    )
                )
                if state == "launching":
                    await self._until_ready(effect.launch, self._need_record())
                elif state == "awake":
                    self._health_on(effect.launch)
                return
            await asyncio.sleep(pause)
            pause = min(READY_POLL_MOST_S, pause * 1.3)

    async def _missed_golden(self, effect: Find, found: Probe) -> str:
        """What an engine says whose start was over while no daemon was there: its later wakes are compared with it.

        Empty when it does not say it soon: it is adopted all the same.
        """
        engine: object = self._engine
        if not effect.started_before or self._need_record().golden or found.answer is not Answer.READY or not isinstance(engine, WarmsUp):
            return ""
        try:
            golden = await asyncio.wait_for(engine.warm_up(self.endpoint(), FIND_WARM_UP_S), FIND_WARM_UP_S + 1.0)
        except (HotseatError, TimeoutError) as error:
            log.warning("%s did not answer its first request: %s", self.instance, error)
            return ""
        self.record = replace(self._need_record(), golden=golden or None)
        return golden

    async def _look_once(self, effect: Find) -> tuple[str | None, Probe]:
        record = self._need_record()
        assert self.handle is not None
        found = await self._probe()
        owned = await self._parts.launcher.owns_port(self.handle, record.port)
        if found.answer in (Answer.READY, Answer.ASLEEP) and owned is False:
            return None, found
        states = {Answer.READY: "awake", Answer.ASLEEP: "asleep", Answer.STARTING: "launching"}
        state = states.get(found.answer)
        if found.answer is Answer.ASLEEP and not isinstance(self._engine, CanSleep):
            state = "awake"  # it wakes by itself with the next request
        if state is None and effect.started_before and found.answer is Answer.REFUSED:
            state = "launching"  # most engines listen only when they are loaded
        if state == "launching" and not effect.started_before:
            state = None
        return state, found

    # --- watching ---------------------------------------------------------------------------------------------------

    async def _probe(self) -> Probe:
        engine = self._engine
        assert engine is not None
        return await engine.probe(self.endpoint(), PROBE_TIMEOUT_S)

    async def _watch_leader(self, launch: LaunchId, handle: ProcessHandle) -> None:
        ended = await self._looks.leader_end(handle)
        reason = await self._looks.attempt(self._explain(ended)) or Reason(Code.CRASHED, "it ended, and its log could not be read")
        self._tell_exit(launch, reason, ended.code, ended.signal)

    async def _explain(self, ended: ExitInfo) -> Reason:
        assert self._engine is not None
        return self._engine.explain_exit(ended, await self._parts.read_log(self._need_record().log_path))

    def _tell_exit(self, launch: LaunchId, reason: Reason, code: int | None = None, signal: int | None = None) -> None:
        if self._exit_told:
            return
        self._exit_told = True
        self._post(EngineExited(at_s=self._now(), instance=self.instance, launch=launch, reason=reason, exit_code=code, exit_signal=signal))

    def _health_on(self, launch: LaunchId) -> None:
        self._health_off()
        self._health = self._scope.spawn(self._health_rounds(launch), "health")

    def _health_off(self) -> None:
        if self._health is not None:
            self._health.cancel()

    async def _health_rounds(self, launch: LaunchId) -> None:
        assert self._engine is not None
        silent_s = await self._rounds.go(launch, self._engine, self.endpoint(), self._probe, self._scope)
        if silent_s:
            self._tell_exit(launch, mute(silent_s))

    async def _watch_idle(self, launch: LaunchId) -> None:
        await until_idle(self._engine, self.endpoint(), self._looks)
        self._post(EngineIdle(at_s=self._now(), instance=self.instance, launch=launch))


_OF_UNKNOWN_SIZE = Reason(
    Code.ENGINE_LOST,
    "the attached engine sleeps, and how much memory it takes awake was never measured: it might find no room, or take that of others",
    "wake it once where it was started (vLLM: POST /wake_up), or declare its `footprint`",
)


def reason_of(error: Exception, fallback: Code = Code.CRASHED) -> Reason:
    """An error as a reason: its code where there is such a reason, in its own words when nobody expected it."""
    if not isinstance(error, HotseatError):
        return Reason(fallback, f"{type(error).__name__}: {error}", "look at `hotseat logs` (without a model) for what the daemon lacks")
    try:
        code = Code(error.code)
    except ValueError:
        code = fallback
    return Reason(code, error.message, error.fix)


def _stranger(port: int, *, ours: bool) -> Reason:
    if not ours:
        return Reason(Code.PORT_TAKEN, f"port {port} is answered by another process than the one that was taken in", "correct `url`")
    text = f"port {port} is answered by a process that is not ours"
    return Reason(Code.PORT_TAKEN, text, "nothing to do: another port is tried at once")
