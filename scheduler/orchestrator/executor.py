"""Lanes: every engine effect waits for its journal row, then for its devices; a grow is alone there, shrinks may share."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from scheduler.domain.ids import DeviceId, InstanceId
from scheduler.orchestrator.effects import CheckNow, EngineEffect, Find, Launch, Sleep, Stop, Wake, WatchIdle
from scheduler.telemetry.tasks import TaskScope

_UNCONDITIONAL = (Stop, Find, WatchIdle, CheckNow)


@dataclass(slots=True)
class _Lane:
    """Who is on one device: any number of shrinks, or one grow."""

    shrinks: int = 0
    grow: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


#: Seconds that a stop or a look waits for its row on a disk that neither takes nor refuses it.
ROW_PATIENCE_S = 3.0


class Executor:
    """Carries out engine effects, many at once on disjoint devices.

    Stops are let through at once, whatever the lane holds: killing is always a safe exit, and a stop of what is being
    started must not wait for that start. Stops and looks do not depend on their rows either: what is not looked at is
    given up in the end, and one row that failed is no reason to kill a warm engine.
    """

    def __init__(self, carry_out: Callable[[EngineEffect], Awaitable[None]]) -> None:
        self._carry_out = carry_out
        self._lanes: dict[DeviceId, _Lane] = {}
        self._begun: dict[InstanceId, int] = {}  # the newest transition whose stop or find was carried out
        self._scope = TaskScope("lanes")

    def submit(self, effect: EngineEffect, devices: tuple[DeviceId, ...], committed: Awaitable[object]) -> None:
        """Queue an effect. ``committed`` resolves when its row is written; its failure drops what changes an engine but a stop."""
        self._scope.spawn(self._run(effect, devices, committed), f"{type(effect).__name__}:{effect.instance}")

    async def close(self) -> None:
        """Drop what is waiting, cancel what runs; engines are left as they are."""
        await self._scope.aclose()

    async def _run(self, effect: EngineEffect, devices: tuple[DeviceId, ...], committed: Awaitable[object]) -> None:
        if not await self._may_begin(effect, committed):
            return
        if isinstance(effect, (Launch, Wake)):
            await self._alone(effect, sorted(devices))
        elif isinstance(effect, Sleep):
            await self._together(effect, sorted(devices))
        else:
            assert isinstance(effect, _UNCONDITIONAL)
            if isinstance(effect, (Stop, Find)):
                self._begun[effect.instance] = max(effect.seq, self._begun.get(effect.instance, 0))
            await self._carry_out(effect)

    async def _may_begin(self, effect: EngineEffect, committed: Awaitable[object]) -> bool:
        """Wait for the row. Whoever submitted it handles its failure; here it only decides about the effect."""
        unconditional = isinstance(effect, _UNCONDITIONAL)
        try:
            async with asyncio.timeout(ROW_PATIENCE_S if unconditional else None):
                await committed
        except Exception:  # noqa: BLE001 - see above
            return unconditional
        return unconditional or effect.seq >= self._begun.get(effect.instance, 0)  # else overtaken while its row waited

    async def _alone(self, effect: EngineEffect, devices: list[DeviceId]) -> None:
        taken: list[_Lane] = []
        try:
            for device in devices:  # in id order: two effects never wait for each other
                lane = self._lanes.setdefault(device, _Lane())
                async with lane.changed:
                    await lane.changed.wait_for(lambda lane=lane: not lane.grow and lane.shrinks == 0)  # type: ignore[misc]
                    lane.grow = True
                taken.append(lane)
            await self._carry_out(effect)
        finally:
            for lane in taken:
                async with lane.changed:
                    lane.grow = False
                    lane.changed.notify_all()

    async def _together(self, effect: EngineEffect, devices: list[DeviceId]) -> None:
        taken: list[_Lane] = []
        try:
            for device in devices:
                lane = self._lanes.setdefault(device, _Lane())
                async with lane.changed:
                    await lane.changed.wait_for(lambda lane=lane: not lane.grow)  # type: ignore[misc]
                    lane.shrinks += 1
                taken.append(lane)
            await self._carry_out(effect)
        finally:
            for lane in taken:
                async with lane.changed:
                    lane.shrinks -= 1
                    lane.changed.notify_all()
