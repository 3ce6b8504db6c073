"""What the control API asks of the daemon. The daemon implements it; the routes only translate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.api.schemas import Action, DeviceDetail, Event, Logs, ModelDetail, Ready, Status, StoryEntry, Verb, VersionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
    """``level``: for sleep, None = the scheduler chooses. ``now``: for stop, do not wait for running requests."""

    level: int | None = None
    now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which part of a log: the last ``lines``, or everything from byte ``offset`` on. ``launch`` None = the last one."""

    lines: int = 100
    launch: int | None = None
    offset: int | None = None


class ControlPlane(Protocol):
    """All methods raise HotseatError: NotFound ``model_not_found``, ``device_not_found`` (naming the nearest), ``action_not_found``,
    Conflict for a state that does not allow the verb, Temporary (with retry_after_s), Permanent. ``name`` may be an alias.
    Status, readiness and version come from memory: they must never wait for the store or an engine.
    """

    async def status(self) -> Status:
        """Everything at a glance; models in registry order."""
        ...

    async def model(self, name: str) -> ModelDetail:
        """One model with its last starts (at most 10, newest first) and memory."""
        ...

    async def device(self, device_id: str) -> DeviceDetail:
        """One device with who sits there and what it is linked with."""
        ...

    async def act(self, verb: Verb, name: str, options: ActOptions, principal: str) -> Action:
        """Begin an action and return at once; it goes on whoever waits for it."""
        ...

    async def action(self, action_id: str) -> Action:
        """An action as it stands now."""
        ...

    async def wait_action(self, action_id: str, seconds: float) -> Action:
        """As :meth:`action`, but returns when it has ended or after ``seconds``. Cancelling the waiter changes nothing."""
        ...

    async def story(self, name: str, limit: int) -> Sequence[StoryEntry]:
        """The last ``limit`` transitions, oldest first."""
        ...

    async def events(self, after: int | None, limit: int) -> Sequence[Event]:
        """Ascending: the first ``limit`` with ``seq > after``; with ``after`` None the last ``limit`` of all."""
        ...

    async def wait_events(self, after: int, seconds: float) -> bool:
        """Return True as soon as an event with ``seq > after`` exists, False after ``seconds``."""
        ...

    async def logs(self, name: str | None, query: LogQuery) -> Logs:
        """A piece of a model's engine log, or of the daemon's own when ``name`` is None."""
        ...

    async def ready(self) -> Ready:
        """Whether chat can be served, and whether the control loop turns."""
        ...

    async def version(self) -> VersionInfo:
        """Who answers."""
        ...

    async def metrics_text(self) -> str:
        """The Prometheus text exposition, format 0.0.4."""
        ...
