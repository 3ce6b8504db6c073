"""Feeds the metrics: from the event feed, from the status at each scrape, and from the event loop itself."""

import asyncio
from collections.abc import Callable

from scheduler.api.schemas import Status
from scheduler.domain.instance import Phase
from scheduler.orchestrator.effects import Tell
from scheduler.orchestrator.state import State
from scheduler.telemetry.metrics import Metrics

#: Seconds between two looks at who uses which seat, and at how late the loop is.
EVERY_S = 1.0


class Exposition(Metrics):
    """The daemon's metrics; reading them touches no model."""

    def told(self, effect: Tell) -> None:
        """Count what the event feed says."""
        data = dict(effect.data)
        match effect.kind:
            case "started":
                self.started(effect.subject, "ready")
            case "woke":
                self.woke(effect.subject, int(data["level"]), float(data["seconds"]))
            case "sleep_ineffective":
                self.sleep_ineffective(effect.subject)
            case "engine_failed" | "model_failed":
                self.failed(effect.subject, data["code"])
                if data.get("while") == "launch":
                    self.started(effect.subject, data["code"])
            case _:
                pass

    def committed(self, seconds: float, _units: int) -> None:
        """A commit of the store; called by the writer's thread (the library's counters are thread-safe)."""
        self.db_commit(seconds)

    def scrape(self, status: Status) -> str:
        """The text exposition, with gauges as of ``status``."""
        for device in status.devices:
            self.device(
                device.id,
                total_bytes=device.total_bytes,
                used_bytes=device.used_bytes,
                foreign_bytes=device.foreign_bytes,
                claimed_bytes=device.claimed_bytes,
                up=device.health == "ok",
            )
        for model in status.models:
            self.phase(model.name, Phase(model.phase))
            self.held(model.name, model.held)
        self.degraded(sorted({entry.code for entry in status.degraded}))
        self.disk_free("state", status.disk.state_free_bytes)
        return self.text()

    async def watch(self, state: State, now: Callable[[], float]) -> None:
        """For ever: how late the loop is, and who uses which seat."""
        while True:
            due = now() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self.loop_lag(max(0.0, now() - due))
            for instance in state.with_process():
                if instance.claim.total_bytes == 0:
                    continue
                asleep = instance.phase is Phase.ASLEEP
                use = "asleep" if asleep else "active" if state.busy(instance.id) else "idle"
                self.seat(instance.model, use, EVERY_S)
