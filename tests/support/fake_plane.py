"""A control plane in memory for tests of the API and the command line, served by the real application on real sockets."""

import asyncio
import difflib
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from scheduler.api.access import AccessPolicy, local_policy
from scheduler.api.app import build_control_app
from scheduler.api.control_socket import bind_control_socket
from scheduler.api.schemas import (
    Action,
    ActionError,
    Degraded,
    Device,
    DeviceDetail,
    Event,
    Logs,
    ModelDetail,
    ModelStatus,
    Progress,
    Ready,
    Status,
    StoryEntry,
    Verb,
    VersionInfo,
)
from scheduler.api.service import ActOptions, LogQuery
from scheduler.api.tail import read_from, read_tail
from scheduler.domain.errors import Conflict, HotseatError, NotFound

T = TypeVar("T")
T0 = 1_796_000_000.0  # 2026-11-30T00:53:20Z
AIMS = {"wake": "awake", "restart": "awake", "sleep": "asleep", "stop": "stopped"}


class FakePlane:
    """Actions end at once unless ``hold`` is set: then they run until :meth:`finish` or :meth:`fail`."""

    def __init__(self, models: Sequence[ModelDetail] = (), *, version: str = "0.1.0", logs: Path | None = None) -> None:
        self.models = {model.name: model for model in models}
        self.details: dict[str, DeviceDetail] = {}
        self.base = Status(version=version, uptime_s=3 * 86400.0, ready=True)
        self.logs_dir = logs
        self.launch = 1
        self.hold = False
        self.acts: list[tuple[Verb, str, ActOptions, str]] = []
        self.actions: dict[str, Action] = {}
        self.stories: dict[str, list[StoryEntry]] = {}
        self.feed: list[Event] = []
        self.degraded: list[Degraded] = []
        self.alive = self.is_ready = True
        self.break_with: BaseException | None = None
        self.changed = asyncio.Condition()
        self.waits = 0  # how many calls wait right now

    # --- what tests do to it (on the loop of the server) ---------------------------------------------------------

    def add_event(self, text: str, subject: str = "coder") -> None:
        seq = len(self.feed) + 1
        self.feed.append(Event(seq=seq, at=T0 + seq, kind="phase", subject=subject, text=text))

    def _end(self, action_id: str, **update: object) -> None:
        self.actions[action_id] = self.actions[action_id].model_copy(update={"finished_at": T0 + 5, "progress": None, **update})

    def finish(self, action_id: str, **update: object) -> None:
        action = self.actions[action_id]
        aim = AIMS[action.verb]
        level = (self.acts[-1][2].level or 1) if aim == "asleep" else None
        before = self.models[action.model].phase
        self.models[action.model] = self.models[action.model].model_copy(update={"phase": aim, "goal": aim, "level": level})
        facts: dict[str, object] = {
            "state": "done",
            "from_phase": before,
            "to_phase": aim,
            "level": level,
            "changed": before != aim,
            "devices": ["cpu0"],
            "freed_bytes": 18_361_000_000,
            "taken_bytes": 18_361_000_000,
            "duration_s": 2.9,
        }
        self._end(action_id, **{**facts, **update})

    def fail(self, action_id: str, error: ActionError) -> None:
        self._end(action_id, state="failed", error=error)

    def progress(self, action_id: str, progress: Progress) -> None:
        self.actions[action_id] = self.actions[action_id].model_copy(update={"progress": progress})

    # --- ControlPlane -------------------------------------------------------------------------------------------------

    def _find(self, name: str) -> ModelDetail:
        for model in self.models.values():
            if name == model.name or name in model.aliases:
                return model
        near = difflib.get_close_matches(name, self.models, n=1)
        raise NotFound(
            f"there is no model {name!r}", code="model_not_found", fix=f"did you mean {near[0]}?" if near else "hotseat models ls"
        )

    async def status(self) -> Status:
        if self.break_with is not None:
            raise self.break_with
        keep = set(ModelStatus.model_fields)
        models = [ModelStatus(**{key: getattr(model, key) for key in keep}) for model in self.models.values()]
        return self.base.model_copy(update={"models": models, "degraded": self.degraded, "ready": self.is_ready})

    async def model(self, name: str) -> ModelDetail:
        return self._find(name)

    async def device(self, device_id: str) -> DeviceDetail:
        for device in self.base.devices:
            if device.id == device_id:
                facts = {key: getattr(device, key) for key in Device.model_fields}
                return self.details.get(device_id) or DeviceDetail(**facts, margin_bytes=512 << 20)
        raise NotFound(f"there is no device {device_id!r}", code="device_not_found", fix="hotseat devices lists what there is")

    async def act(self, verb: Verb, name: str, options: ActOptions, principal: str) -> Action:
        model = self._find(name)
        if verb == "sleep" and model.engine == "llamacpp":
            raise Conflict(f"{model.name} cannot sleep: llamacpp has no sleep", code="sleep_unsupported", fix=f"hotseat stop {model.name}")
        self.acts.append((verb, model.name, options, principal))
        action = Action(id=f"a{len(self.acts)}", verb=verb, model=model.name, by=principal, state="running", created_at=T0)
        self.actions[action.id] = action
        if not self.hold:
            self.finish(action.id)
        await self.notify()
        return self.actions[action.id]

    async def action(self, action_id: str) -> Action:
        if action_id not in self.actions:
            raise NotFound(f"there is no action {action_id!r}", code="action_not_found")
        return self.actions[action_id]

    async def wait_action(self, action_id: str, seconds: float) -> Action:
        await self._wait(lambda: action_id not in self.actions or self.actions[action_id].state != "running", seconds)
        return await self.action(action_id)

    async def story(self, name: str, limit: int) -> Sequence[StoryEntry]:
        return self.stories.get(self._find(name).name, [])[-limit:]

    async def events(self, after: int | None, limit: int) -> Sequence[Event]:
        if after is None:
            return self.feed[-limit:]
        return [event for event in self.feed if event.seq > after][:limit]

    async def wait_events(self, after: int, seconds: float) -> bool:
        return await self._wait(lambda: bool(self.feed) and self.feed[-1].seq > after, seconds)

    async def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        self.waits += 1
        try:
            async with asyncio.timeout(seconds), self.changed:
                self.changed.notify_all()  # those who watch ``waits``
                await self.changed.wait_for(done)
            return True
        except TimeoutError:
            return done()
        finally:
            self.waits -= 1

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def log_file(self, name: str | None, launch: int) -> Path:
        assert self.logs_dir is not None
        return self.logs_dir / (f"{name}.{launch}.log" if name else "daemon.log")

    async def logs(self, name: str | None, query: LogQuery) -> Logs:
        model = None if name is None else self._find(name).name
        launch = None if model is None else query.launch or self.launch
        path = self.log_file(model, launch or 0)
        reading = (
            asyncio.to_thread(read_tail, path, query.lines) if query.offset is None else asyncio.to_thread(read_from, path, query.offset)
        )
        piece = await reading
        return Logs(model=model, launch=launch, offset=piece.offset, truncated=piece.truncated, lines=piece.lines)

    async def ready(self) -> Ready:
        return Ready(ready=self.is_ready, alive=self.alive, degraded=self.degraded)

    async def version(self) -> VersionInfo:
        return VersionInfo(version=self.base.version, pid=1, started_at=T0)

    async def metrics_text(self) -> str:
        return 'hotseat_build_info{version="0.1.0"} 1.0\n'


def problem_of(code: str, message: str) -> HotseatError:
    return Conflict(message, code=code)


class PlaneServer:
    """The real application with a fake plane, on a control socket and on TCP, in a thread of its own."""

    def __init__(self, state_dir: Path, plane: FakePlane, policy: AccessPolicy | None = None, port: int = 0) -> None:
        self.state_dir, self.plane = state_dir, plane
        self.policy = policy or local_policy(["127.0.0.1"])
        self.socket_path = state_dir / "control.sock"
        self.port = port
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="plane-server")

    def _run(self) -> None:
        with asyncio.Runner() as runner:  # its end cancels what still runs, as the end of a process does
            self.loop = runner.get_loop()
            runner.run(self._serve())

    async def _serve(self) -> None:
        runner = web.AppRunner(build_control_app(self.plane, self.policy), shutdown_timeout=5.0)
        await runner.setup()
        sockets = [bind_control_socket(self.socket_path, None), socket.create_server(("127.0.0.1", self.port))]
        self.port = sockets[1].getsockname()[1]
        for sock in sockets:
            await web.SockSite(runner, sock).start()
        self._ready.set()
        await self._stop.wait()
        # asyncio leaks a connection that it has just accepted when the server closes, and only the end of the process
        # would close it; here the process goes on. So stop accepting, let the accepted ones settle, then close.
        for sock in sockets:
            self.loop.remove_reader(sock.fileno())
        for _ in range(5):
            await asyncio.sleep(0)
        await runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def do(self, change: Callable[[FakePlane], T]) -> T:
        """Run ``change`` on the server's loop and wake everybody who waits for a change."""

        async def work() -> T:
            result = change(self.plane)
            await self.plane.notify()
            return result

        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)

    def until(self, holds: Callable[[FakePlane], bool]) -> None:
        """Block until ``holds`` (looked at whenever the plane changes or somebody begins to wait)."""

        async def work() -> None:
            async with self.plane.changed:
                await self.plane.changed.wait_for(lambda: holds(self.plane))

        asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)

    def __enter__(self) -> "PlaneServer":
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(15)
        assert not self._thread.is_alive(), "the server did not stop"
