"""Carries effects out: rows in one unit of work per pass, engine effects after their rows, answers at once.

Commit order (architecture.md section 4): the phase has moved in memory already; an engine effect waits for its row; grants
never wait; a failed commit refuses the intents of its pass and degrades the store until everything is caught up.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from scheduler.domain.device import Pin
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import DeviceId, InstanceId, model_of
from scheduler.domain.launch import LaunchRecord
from scheduler.domain.model import ModelSpec
from scheduler.domain.placeholders import expand
from scheduler.domain.reasons import Reason
from scheduler.orchestrator.backlog import Backlog, Pass
from scheduler.orchestrator.effects import (
    CutLeases,
    Effect,
    EngineEffect,
    FinishAction,
    GrantLease,
    Journal,
    Launch,
    Measure,
    RefuseHold,
    Tell,
)
from scheduler.orchestrator.events import EngineExited, Happening
from scheduler.orchestrator.executor import Executor
from scheduler.orchestrator.parts import Parts
from scheduler.orchestrator.silence import Pulses
from scheduler.orchestrator.state import State
from scheduler.orchestrator.supervisor import Supervisor, reason_of
from scheduler.ports.engine import Attaches, LaunchPlan

log = logging.getLogger(__name__)


class Desk(Protocol):
    """Where answers to waiting people go, and where is known which engines give none."""

    @property
    def pulses(self) -> Pulses:
        """When engines were last heard of."""
        ...

    def granted(self, effect: GrantLease, supervisor: Supervisor) -> None:
        """A lease."""
        ...

    def refused(self, effect: RefuseHold) -> None:
        """An error."""
        ...

    def cut(self, effect: CutLeases) -> None:
        """Requests to end with an error event."""
        ...

    def finished(self, effect: FinishAction) -> None:
        """An operator's action has ended."""
        ...

    def told(self, effect: Tell) -> None:
        """A line of the event feed."""
        ...

    def measure(self, devices: tuple[DeviceId, ...]) -> None:
        """Somebody waits for bytes."""
        ...


class Applier:
    """See the module. ``post`` feeds events back into the control loop."""

    def __init__(self, state: State, parts: Parts, desk: Desk, post: Callable[[Happening], None]) -> None:
        self._state = state
        self._parts = parts
        self._desk = desk
        self._post = post
        self._backlog = Backlog(state, parts, post)
        self._executor = Executor(self._carry_out)
        self.supervisors: dict[InstanceId, Supervisor] = {}

    def supervisor(self, instance: InstanceId) -> Supervisor:
        """The supervisor of an instance, made when first asked for."""
        found = self.supervisors.get(instance)
        if found is None:
            found = self.supervisors[instance] = Supervisor(instance, self._parts, self._post, self._backlog.trouble, self._desk.pulses)
        return found

    async def close(self) -> None:
        """Stop acting; engines are left as they are."""
        await self._executor.close()
        for supervisor in self.supervisors.values():
            await supervisor.close()
        await self._backlog.close()

    def apply(self, effects: list[Effect]) -> None:
        """Carry out the effects of one pass, in order; never blocks.

        One that fails keeps the others from nothing; the first failure is raised once they are on their way.
        """
        rows = Pass()
        failures: list[Exception] = []
        for effect in effects:
            try:
                self._sort(effect, rows)
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
        if rows.rows or rows.engine:
            self._submit(rows)
        if failures:
            raise failures[0]

    def _sort(self, effect: Effect, rows: Pass) -> None:
        match effect:
            case Launch():
                self._prepare(effect, rows)
            case EngineEffect():
                rows.engine.append(effect)
            case GrantLease():
                self._desk.granted(effect, self.supervisor(effect.lease.instance))
            case RefuseHold():
                self._desk.refused(effect)
            case CutLeases():
                self._desk.cut(effect)
            case FinishAction():
                self._desk.finished(effect)
            case Measure():
                self._desk.measure(effect.devices)
            case Tell():
                self._desk.told(effect)
                rows.rows.append(effect)
            case Journal():
                rows.rows.append(effect)
                if effect.prior is not None:
                    rows.intents.append(effect)
            case _:
                rows.rows.append(effect)

    # --- launch records ---------------------------------------------------------------------------------------------

    def _prepare(self, effect: Launch, rows: Pass) -> None:
        """Build the launch record that is committed with the intent; what cannot be built ends as a failed start."""
        spec = self._state.models[model_of(effect.instance)]
        try:
            record, environment = self._record(effect)
        except Exception as error:
            if not isinstance(error, HotseatError):  # out of descriptors, for example
                log.exception("the start of %s could not be prepared", spec.name)
            reason = reason_of(error)
            record = self._record_of_nothing(effect)
            rows.records.append(record)
            self.supervisor(effect.instance).prepare(record, spec, {})
            rows.unbuilt.append(lambda: self._unbuilt(effect, reason))
            return
        rows.records.append(record)
        self.supervisor(effect.instance).prepare(record, spec, environment)
        rows.engine.append(effect)

    def _unbuilt(self, effect: Launch, reason: Reason) -> None:
        """After its row, as with every effect: whatever follows refers to the record."""
        self._post(EngineExited(at_s=self._parts.clock.monotonic(), instance=effect.instance, launch=effect.launch, reason=reason))

    def _record(self, effect: Launch) -> tuple[LaunchRecord, Mapping[str, str]]:
        """The record and the environment of a launch, which is kept in memory only: it may hold secrets."""
        spec = self._state.models[model_of(effect.instance)]
        engine = self._parts.engines[spec.engine]
        plan = self._plan(effect)
        line = engine.command(replace(spec, levels=()) if effect.sleepless else spec, plan)
        values = _values(spec, plan)
        environment = self._parts.environment(spec, line.env, values)
        digest = hashlib.sha256("\0".join(f"{k}={v}" for k, v in sorted(environment.items())).encode()).hexdigest()[:16]
        base = self._record_of_nothing(effect)
        record = LaunchRecord(
            id=base.id,
            instance=base.instance,
            engine=spec.engine,
            argv=line.argv,
            env=tuple(sorted(line.env.items())),
            env_hash=digest,
            cwd=spec.cwd or str(self._parts.log_dir),
            devices=effect.devices,
            port=plan.port,
            kv_bytes=plan.kv_bytes,
            footprint=effect.footprint,
            token=base.token,
            fingerprint=base.fingerprint,
            served_model=engine.served_model(spec),
            ready_path=spec.ready_path,
            sleep_paths=tuple((expand(s.path, values, environment), s.timeout_s) for s in spec.sleep_steps),
            wake_paths=tuple((expand(s.path, values, environment), s.timeout_s) for s in spec.wake_steps),
            log_path=base.log_path,
            boot_id=base.boot_id,
            created_at=base.created_at,
        )
        return record, environment

    def _plan(self, effect: Launch) -> LaunchPlan:
        """The order of devices may have changed since they were listed: they are addressed as they were last seen, a moment ago.

        One whose place in the order is not known at this moment goes by its uuid: an index of before may be its neighbour's now.
        """
        infos = [self._state.devices[d] for d in effect.devices]
        pins = {device: pin for source in self._parts.sources for device, pin in source.pins().items()}
        found = [pins.get(info.id, Pin(index=info.index, uuid=info.uuid, by_uuid=True)) for info in infos]
        spec = self._state.models[model_of(effect.instance)]
        engine: object = self._parts.engines[spec.engine]
        return LaunchPlan(
            port=engine.port(spec) if isinstance(engine, Attaches) else self._parts.launcher.free_port(),
            devices=effect.devices,
            device_index=tuple(pin.index for pin in found),
            device_uuid=tuple(pin.uuid for pin in found),
            by_uuid=any(pin.by_uuid for pin in found),
            device_kind=infos[0].kind,
            capacity_bytes=min(info.capacity_bytes for info in infos),
            claim_bytes=effect.claim_bytes,
            kv_bytes=effect.kv_bytes,
        )

    def _record_of_nothing(self, effect: Launch) -> LaunchRecord:
        """A record for a start that failed before there was anything to run."""
        spec = self._state.models[model_of(effect.instance)]
        name = hashlib.sha256(spec.name.encode()).hexdigest()[:12]  # model names never become paths
        return LaunchRecord(
            id=effect.launch,
            instance=effect.instance,
            engine=spec.engine,
            argv=(),
            env=(),
            env_hash="",
            cwd="",
            devices=effect.devices,
            port=0,
            kv_bytes=None,
            footprint=effect.footprint,
            token=f"{self._parts.state_uuid}:{effect.launch}",
            fingerprint=spec.fingerprint(),
            served_model="",
            ready_path="",
            sleep_paths=(),
            wake_paths=(),
            log_path=str(self._parts.log_dir / f"{name}-{effect.launch}.log"),
            boot_id=self._parts.launcher.boot_id,
            created_at=self._parts.clock.wall(),
        )

    # --- rows -------------------------------------------------------------------------------------------------------

    def _submit(self, rows: Pass) -> None:
        if rows.rows or rows.records:
            committed = self._backlog.write(rows)
        else:
            committed = asyncio.get_running_loop().create_future()
            committed.set_result(None)
        for tell in rows.unbuilt:
            committed.add_done_callback(lambda done, tell=tell: None if done.cancelled() or done.exception() else tell())  # type: ignore[misc]
        for effect in rows.engine:
            self._executor.submit(effect, self._devices_of(effect), asyncio.shield(committed))

    def _devices_of(self, effect: EngineEffect) -> tuple[DeviceId, ...]:
        if isinstance(effect, Launch):
            return effect.devices
        found = self._state.instances.get(effect.instance)
        return found.devices if found is not None else ()

    async def _carry_out(self, effect: EngineEffect) -> None:
        await self.supervisor(effect.instance).carry_out(effect)


def _values(spec: ModelSpec, plan: LaunchPlan) -> dict[str, str]:
    """What stands behind the placeholders in a model's environment."""
    return {
        "host": "127.0.0.1",
        "port": str(plan.port),
        "model": spec.model,
        "name": spec.name,
        "devices": ",".join(plan.devices),
        "kv_bytes": "" if plan.kv_bytes is None else str(plan.kv_bytes),
        "index": str(plan.device_index[0]) if plan.device_index else "0",
    }
