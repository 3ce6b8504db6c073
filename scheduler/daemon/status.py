"""The scheduling state as the control API shows it."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scheduler.api.schemas import (
    Counters,
    Degraded,
    Device,
    DeviceDetail,
    Disk,
    Failure,
    HostMemory,
    InstanceStatus,
    ModelStatus,
    Plan,
    Status,
    Step,
    Why,
)
from scheduler.daemon.device_status import degraded_devices, device_detail, device_of, missing_detail, missing_of
from scheduler.daemon.serving import can_serve, why_none
from scheduler.domain.ids import DeviceId, HoldId, InstanceId, ModelName, instance_id
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.lease import Hold
from scheduler.domain.model import ModelSpec
from scheduler.domain.plan import Move
from scheduler.domain.reasons import NO_REASON, Code, Reason
from scheduler.orchestrator.estimates import eta_seconds
from scheduler.orchestrator.state import State
from scheduler.orchestrator.supervisor import Supervisor
from scheduler.orchestrator.unfit import never_fits

_BROKEN = frozenset({Phase.BACKOFF, Phase.FAILED})


class StatusBuilder:
    """Reads the state between two events; everything comes from memory, but for the free disk space."""

    def __init__(
        self, state: State, supervisors: Mapping[InstanceId, Supervisor], *, version: str, started_wall: float, state_dir: Path
    ) -> None:
        self._state = state
        self._supervisors = supervisors
        self._version = version
        self._started_wall = started_wall
        self._state_dir = state_dir
        self.interrupted = 0

    def build(self, now_s: float, wall: float, *, ready: bool) -> Status:
        """GET status."""
        self._now_s, self._wall = now_s, wall
        return Status(
            version=self._version,
            uptime_s=round(wall - self._started_wall, 3),
            ready=ready,
            interrupted=self.interrupted,
            degraded=self.degraded(now_s),
            devices=self._devices(now_s),
            models=[self.model(name, now_s, wall) for name in self._state.models],
            host=HostMemory(sleep_bytes=self._state.host_claimed(), sleep_limit_bytes=self._state.host_limit_bytes, kv_bytes=0),
            disk=Disk(state_free_bytes=_free_bytes(self._state_dir)),
            plan=Plan(version=max((m.id for m in self._state.moves.values()), default=0), next=self._next_steps()),
        )

    def degraded(self, now_s: float) -> list[Degraded]:
        """What does not work as it should."""
        found = [
            Degraded(code=key.partition(":")[0], subject=key.partition(":")[2], since=since, message=message, fix=fix)
            for key, (message, fix, since) in self._state.degraded.items()
        ]
        found += degraded_devices(self._state, now_s, found)
        if not can_serve(self._state):
            found += [Degraded(code=r.code.value, subject=m, message=r.text, fix=r.fix) for m, r in why_none(self._state)]
        return found

    def _devices(self, now_s: float) -> list[Device]:
        present = [device_of(self._state, info, now_s, self._since) for info in self._state.devices.values()]
        return [*present, *missing_of(self._state)]

    def device(self, device: str, now_s: float, wall: float) -> DeviceDetail | None:
        """One device; None when there is none of this id, and none is missing."""
        self._now_s, self._wall = now_s, wall
        info = self._state.devices.get(DeviceId(device))
        if info is not None:
            return device_detail(self._state, info, now_s, self._since)
        return next((missing_detail(self._state, found) for found in missing_of(self._state) if found.id == device), None)

    def model(self, name: ModelName, now_s: float, wall: float) -> ModelStatus:
        """One model."""
        self._now_s, self._wall = now_s, wall
        spec = self._state.models[name]
        facts = self._state.facts_of(name)
        instance = self._state.instances.get(instance_id(name)) or Instance(id=instance_id(name), since_s=now_s)
        return ModelStatus(
            name=name,
            aliases=list(spec.aliases),
            engine=spec.engine,
            attached=self._state.facts_of(spec.name).attached,
            source=spec.source,
            enabled=spec.enabled,
            model_class=spec.model_class.value,
            phase=instance.phase.value,
            level=instance.level,
            goal=str(instance.goal),
            devices=list(instance.devices),
            claimed_bytes=instance.claim.total_bytes,
            used_bytes=self._used(instance),
            active=len(self._state.live_of(instance.id).leases),
            held=sum(1 for h in self._state.holds_of(name) if h.action is None),
            last_used_at=facts.last_used_wall,
            reason=self._why(instance, spec),
            eta_s=self._eta(instance),
            error=self._failure(instance),
            instances=[self._instance(instance)] if instance.has_process else [],
            counters=Counters(
                wakes=facts.wakes, sleeps=facts.sleeps, starts=facts.starts, cold_hits=facts.cold_hits, requests=facts.requests
            ),
        )

    # --- parts ------------------------------------------------------------------------------------------------------

    def _since(self, at_s: float) -> float:
        """A monotonic time as wall clock."""
        return self._wall - (self._now_s - at_s)

    def _used(self, instance: Instance) -> int | None:
        if not instance.has_process:
            return 0
        measured = self._state.measured_of(instance.id)
        return sum(measured.values()) if measured else None

    def _instance(self, instance: Instance) -> InstanceStatus:
        supervisor = self._supervisors.get(instance.id)
        handle = supervisor.handle if supervisor is not None else None
        return InstanceStatus(
            id=instance.id,
            phase=instance.phase.value,
            level=instance.level,
            goal=str(instance.goal),
            devices=list(instance.devices),
            claimed_bytes=instance.claim.total_bytes,
            used_bytes=self._used(instance),
            pid=handle.pid if handle is not None else None,
            since=self._since(instance.since_s),
        )

    def _why(self, instance: Instance, spec: ModelSpec) -> Why | None:
        waiting = bool(self._state.holds_of(spec.name)) and instance.phase is not Phase.AWAKE
        reason: Reason = self._state.hold_reasons.get(spec.name, NO_REASON) if waiting else instance.reason
        reason = instance.reason if reason.code in (Code.NONE, Code.WAITING_START) else reason
        if instance.phase is Phase.STOPPED and spec.enabled and not waiting and (never := never_fits(self._state, spec.name)) is not None:
            reason = replace(never, text=f"{never.text}; {never.fix}")
        return None if reason.code is Code.NONE else Why(code=reason.code.value, text=reason.text)

    def _eta(self, instance: Instance) -> float | None:
        holds = self._state.holds_of(instance.model)
        if not holds and instance.phase not in (Phase.LAUNCHING, Phase.WAKING):
            return None
        hold = holds[0] if holds else _nobody(instance, self._now_s)
        eta = eta_seconds(self._state, hold)
        return None if eta is None else round(eta, 1)

    def _failure(self, instance: Instance) -> Failure | None:
        if instance.phase not in _BROKEN:
            return None
        facts = self._state.facts_of(instance.model)
        again = instance.retry_at_s if instance.phase is Phase.BACKOFF else facts.half_open_at_s
        return Failure(
            code=instance.reason.code.value,
            message=instance.reason.text,
            fix=instance.reason.fix,
            at=self._since(instance.since_s),
            attempts=instance.failures.total,
            retry_at=None if again is None else self._since(again),
        )

    def _next_steps(self) -> list[Step]:
        """What open moves will still do, soonest first."""
        return [step for move in self._state.moves.values() for step in self._steps_of(move)]

    def _steps_of(self, move: Move) -> list[Step]:
        steps = []
        for step in move.steps:
            instance = self._state.instances[step.instance]
            if instance.phase is not step.goal.phase:
                up = "wake" if instance.phase is Phase.ASLEEP else "start"
                verb = {Phase.AWAKE: up, Phase.ASLEEP: "sleep"}.get(step.goal.phase, "stop")
                steps.append(Step(at=self._since(move.created_s), model=instance.model, action=verb))
        return steps


def _nobody(instance: Instance, now_s: float) -> Hold:
    return Hold(id=HoldId(0), model=instance.model, arrived_s=now_s, deadline_s=now_s, limit_s=now_s)


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
