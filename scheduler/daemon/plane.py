"""The control plane: what the control API asks, answered from the state, the store and the log files."""

import asyncio
import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from scheduler.api.schemas import (
    Action,
    DeviceDetail,
    Event,
    Logs,
    Memory,
    ModelDetail,
    Ready,
    Sleep,
    Start,
    Status,
    StoryEntry,
    Verb,
    VersionInfo,
    Why,
)
from scheduler.api.service import ActOptions, LogQuery
from scheduler.api.tail import Piece
from scheduler.daemon.actions import ActionBook
from scheduler.daemon.logfiles import read_piece
from scheduler.daemon.news import News
from scheduler.daemon.prometheus import Exposition
from scheduler.daemon.serving import can_serve
from scheduler.daemon.status import StatusBuilder
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import NotFound
from scheduler.domain.ids import ModelName, instance_id
from scheduler.domain.instance import Transition
from scheduler.domain.launch import LaunchEnd, LaunchRecord
from scheduler.domain.reasons import Code
from scheduler.orchestrator.events import Asked
from scheduler.orchestrator.kernel import Kernel
from scheduler.store.events import StoredEvent, list_events, newest_events
from scheduler.store.instances import recent_launches
from scheduler.store.journal import story

#: A control loop that has not turned for so long is stuck.
STUCK_S = 30.0


class DaemonPlane:
    """Implements ControlPlane."""

    def __init__(
        self,
        kernel: Kernel,
        status: StatusBuilder,
        actions: ActionBook,
        exposition: Exposition,
        *,
        version: str,
        started_wall: float,
        daemon_log: Path,
    ) -> None:
        self._kernel = kernel
        self._state = kernel.state
        self._status = status
        self.actions = actions
        self._exposition = exposition
        self._version = version
        self._started_wall = started_wall
        self._daemon_log = daemon_log
        self.news = News()

    def _name(self, name: str) -> ModelName:
        try:
            return self._kernel.desk.resolve(name).name
        except NotFound as error:
            raise NotFound(error.message, code=error.code, fix="hotseat models ls lists what there is") from None

    # --- reading ----------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """Everything at a glance."""
        clock = self._kernel.parts.clock
        return self._status.build(clock.monotonic(), clock.wall(), ready=(await self.ready()).ready)

    async def model(self, name: str) -> ModelDetail:
        """One model with its last starts and memory."""
        model = self._name(name)
        clock = self._kernel.parts.clock
        iid = instance_id(model)
        launches = await self._kernel.parts.database.read(lambda conn: recent_launches(conn, iid, 10))
        spec = self._state.models[model]
        base = self._status.model(model, clock.monotonic(), clock.wall())
        return ModelDetail(
            **base.model_dump(by_alias=False, exclude={"instances", "overrides", "reason", "error", "counters", "last_used_at"}),
            last_used_at=base.last_used_at,
            instances=base.instances,
            overrides=base.overrides,
            reason=base.reason,
            error=base.error,
            counters=base.counters,
            model=spec.model or spec.url or None,
            description=spec.description,
            unlisted=spec.unlisted,
            memory=self._memory(model),
            sleep=self._sleep(model),
            starts=[_start(record, end) for record, end in launches],
            log_line=self._log_line(model, launches) or None,
        )

    async def device(self, device_id: str) -> DeviceDetail:
        """One device with who sits there and what it is linked with."""
        clock = self._kernel.parts.clock
        found = self._status.device(device_id, clock.monotonic(), clock.wall())
        if found is not None:
            return found
        near = difflib.get_close_matches(device_id, self._state.devices, n=1)
        fix = f"did you mean {near[0]}?" if near else "hotseat devices lists what there is"
        raise NotFound(f"there is no device {device_id!r}", code="device_not_found", fix=fix)

    def _memory(self, model: ModelName) -> Memory:
        facts = self._state.facts_of(model)
        footprint: Footprint = facts.footprint
        spec = self._state.models.get(model)
        return Memory(
            devices=spec.devices.count if spec is not None else 1,
            source=footprint.source.value,
            measured_bytes=max(facts.learned.awake_bytes, default=None),
            estimated_bytes=facts.guess.awake_bytes,
            start_peak_bytes=footprint.start_peak_bytes or None,
            residue_bytes={level: max(runs) for level, runs in facts.learned.residue_bytes.items()},
        )

    def _sleep(self, model: ModelName) -> Sleep:
        facts = self._state.facts_of(model)
        usable, learned = facts.usable_levels(), facts.learned
        return Sleep(
            levels=list(usable),
            denied_levels=[level for level in facts.levels if level not in usable],
            version=learned.version or None,
            host_bytes={level: max(runs) for level, runs in learned.host_bytes.items()},
            sleep_s={level: round(max(runs), 3) for level, runs in learned.sleep_s.items() if runs},
            wake_s={level: round(max(runs), 3) for level, runs in learned.wake_s.items() if runs},
        )

    def _log_line(self, model: ModelName, launches: Sequence[tuple[LaunchRecord, LaunchEnd | None]]) -> str:
        instance = self._state.instances.get(instance_id(model))
        if instance is not None and instance.reason.log_line:
            return instance.reason.log_line
        return next((end.log_line for _, end in launches[:1] if end is not None), "")

    async def story(self, name: str, limit: int) -> Sequence[StoryEntry]:
        """The last transitions."""
        model = self._name(name)
        rows = await self._kernel.parts.database.read(lambda conn: story(conn, model, limit))
        return [_entry(row) for row in rows]

    async def events(self, after: int | None, limit: int) -> Sequence[Event]:
        """The event feed."""
        read = self._kernel.parts.database.read
        if after is None:
            rows = await read(lambda conn: newest_events(conn, limit))
        else:
            rows = await read(lambda conn: list_events(conn, after, limit))
        return [_event(row) for row in rows]

    async def wait_events(self, after: int, seconds: float) -> bool:
        """Whether something newer than ``after`` came within ``seconds``."""

        async def found() -> bool:
            return bool(await self.events(after, 1))

        return await self.news.until(found, seconds)

    async def logs(self, name: str | None, query: LogQuery) -> Logs:
        """A piece of a log."""
        if name is None:
            piece = await read_piece(self._daemon_log, query)
            return _logs(None, None, piece)
        model = self._name(name)
        launches = await self._kernel.parts.database.read(lambda conn: recent_launches(conn, instance_id(model), 100))
        chosen = [r for r, _ in launches if query.launch is None or r.id == query.launch]
        if not chosen:
            text = f"{model} was never started" if query.launch is None else f"{model} has no launch {query.launch}"
            raise NotFound(text, code="launch_not_found", fix=f"see `hotseat status {model}` for its last starts")
        piece = await read_piece(Path(chosen[0].log_path), query)
        return _logs(model, chosen[0].id, piece)

    async def ready(self) -> Ready:
        """Whether the control loop turns and chat can be served."""
        now = self._kernel.parts.clock.monotonic()
        alive = now - max(self._kernel.loop.turned_at_s, self._state.now_s) < STUCK_S
        return Ready(ready=alive and can_serve(self._state), alive=alive, degraded=self._status.degraded(now))

    async def version(self) -> VersionInfo:
        """Who answers."""
        return VersionInfo(version=self._version, pid=os.getpid(), started_at=self._started_wall)

    async def metrics_text(self) -> str:
        """The Prometheus exposition."""
        clock = self._kernel.parts.clock
        return self._exposition.scrape(self._status.build(clock.monotonic(), clock.wall(), ready=True))

    # --- acting -----------------------------------------------------------------------------------------------------

    async def act(self, verb: Verb, name: str, options: ActOptions, principal: str) -> Action:
        """Begin an action."""
        model = self._name(name)
        action = self.actions.open(verb, model, principal, options.level)
        spec = self._state.models[model]
        self._kernel.post(
            Asked(
                at_s=self._kernel.parts.clock.monotonic(),
                action=action,
                verb=verb,
                model=model,
                level=options.level,
                force=options.now,
                by=principal,
                patience_s=spec.start_timeout_s + spec.drain_timeout_s,
            )
        )
        await asyncio.sleep(0)  # the control loop's turn: most refusals are there already
        return self.actions.show(action)

    async def action(self, action_id: str) -> Action:
        """An action as it stands."""
        return self.actions.show(action_id)

    async def wait_action(self, action_id: str, seconds: float) -> Action:
        """An action when it has ended, or after ``seconds``."""
        return await self.actions.wait(action_id, seconds)


def _start(record: LaunchRecord, end: LaunchEnd | None) -> Start:
    return Start(
        launch=record.id,
        at=record.created_at,
        duration_s=end.duration_s if end is not None else None,
        result=end.result if end is not None else "running",  # type: ignore[arg-type]  # the store keeps it as text
        exit=_exit_words(end),
        reason=Why(code=end.reason.value, text=end.log_line) if end is not None and end.reason is not Code.NONE else None,
    )


def _exit_words(end: LaunchEnd | None) -> str | None:
    if end is None or (end.exit_code is None and end.exit_signal is None):
        return None
    return f"signal {end.exit_signal}" if end.exit_signal is not None else f"exit {end.exit_code}"


def _entry(row: Transition) -> StoryEntry:
    why = None if row.reason.code is Code.NONE else Why(code=row.reason.code.value, text=row.reason.text)
    return StoryEntry(
        seq=row.seq,
        at=row.at,
        instance=row.instance,
        from_phase=row.source.value,
        to_phase=row.target.value,
        event=row.event,
        cause=row.cause or None,
        reason=why,
    )


def _event(row: StoredEvent) -> Event:
    return Event(seq=row.seq, at=row.at, kind=row.kind, subject=row.subject, text=row.message)


def _logs(model: str | None, launch: int | None, piece: Piece) -> Logs:
    return Logs(model=model, launch=launch, offset=piece.offset, truncated=piece.truncated, lines=piece.lines)
