"""Sockets, applications and background tasks of the daemon, started and stopped in order."""

import asyncio
import logging
import os
import socket

from aiohttp import web

from scheduler.api.access import local_policy
from scheduler.api.app import mount_control
from scheduler.api.control_socket import NAME as CONTROL_SOCKET
from scheduler.api.control_socket import bind_control_socket
from scheduler.api.service import ActOptions
from scheduler.config.settings import Listen, Loaded
from scheduler.daemon.actions import KEPT, LOST, ActionBook
from scheduler.daemon.compose import compose, host_limit_bytes
from scheduler.daemon.doors import no_foreign_pages
from scheduler.daemon.logfiles import LogKeeper
from scheduler.daemon.plane import DaemonPlane
from scheduler.daemon.prometheus import Exposition
from scheduler.daemon.self_check import SelfCheck
from scheduler.daemon.status import StatusBuilder
from scheduler.domain.device import DeviceInfo
from scheduler.domain.errors import Conflict, Permanent, Temporary
from scheduler.domain.ids import CauseId, ModelName, instance_id
from scheduler.domain.reasons import Code
from scheduler.gateway.app import make_runner, mount, mount_fallback
from scheduler.gateway.settings import GatewaySettings
from scheduler.orchestrator.crowds import crowds
from scheduler.orchestrator.effects import Effect, FinishAction, SaveMove, Tell
from scheduler.orchestrator.events import Closing, Complained
from scheduler.orchestrator.kernel import Hooks
from scheduler.ports.clock import Clock
from scheduler.store.actions import StoredAction, close_actions, recent_actions, save_action
from scheduler.store.journal import last_ids
from scheduler.telemetry.tasks import TaskScope
from scheduler.version import VERSION

log = logging.getLogger(__name__)

#: How long requests in flight may go on when the daemon stops.
DRAIN_S = 10.0
#: Before that is over, those that still run are told so in an error event.
LAST_CALL_S = 1.0
#: How long one engine may take to stop with ``on_exit: stop``.
ON_EXIT_S = 30.0


class Server:
    """The whole daemon on one event loop."""

    def __init__(self, loaded: Loaded, clock: Clock) -> None:
        self._loaded = loaded
        self._scope = TaskScope("daemon")
        self._runner: web.AppRunner | None = None
        self.addresses: list[str] = []
        started = clock.wall()
        self._exposition = Exposition(VERSION)
        self._self_check = SelfCheck()
        hooks = Hooks(
            finished=self._finished,
            told=self._told,
            effects=self._effects,
            interrupted=self._interrupted,
            observe=self._self_check.observe,
        )
        self._house = compose(loaded, hooks, on_commit=self._committed)
        kernel = self._house.kernel
        self._status = StatusBuilder(
            kernel.state,
            kernel.applier.supervisors,
            version=VERSION,
            started_wall=started,
            state_dir=loaded.settings.state_dir,
        )
        first = self._house.database.read_now(last_ids).action + 1
        past = self._house.database.read_now(lambda conn: recent_actions(conn, KEPT))
        self._actions = ActionBook(kernel.state, clock, first, self._log_line, self._save_action, past)
        self.plane = DaemonPlane(
            kernel,
            self._status,
            self._actions,
            self._exposition,
            version=VERSION,
            started_wall=started,
            daemon_log=loaded.settings.state_dir / "daemon.log",
        )

    @property
    def devices(self) -> list[DeviceInfo]:
        """Those that were found or declared, in order."""
        return list(self._house.kernel.state.devices.values())

    # --- hooks ------------------------------------------------------------------------------------------------------

    def _finished(self, effect: FinishAction) -> None:
        self._actions.finish(effect)

    def _told(self, effect: Tell) -> None:
        log.info("%s", effect.message, extra={"kind": effect.kind, "subject": effect.subject})
        self._exposition.told(effect)

    def _committed(self, seconds: float, units: int) -> None:
        """By the writer's thread. Told here and not with the effects: who waits for an event reads it from the store."""
        self._exposition.committed(seconds, units)
        self.plane.news.ring()

    def _effects(self, effects: list[Effect]) -> None:
        self._self_check.effects(effects)
        for effect in effects:
            if isinstance(effect, SaveMove):
                self._actions.note_move(effect.move)

    def _interrupted(self, cause: CauseId, count: int) -> None:
        self._status.interrupted += count
        self._actions.note_cut(cause, count)

    def _disk_low(self, message: str, fix: str) -> None:
        kernel = self._house.kernel
        kernel.post(Complained(at_s=self._house.clock.monotonic(), code=Code.DISK_LOW, message=message, fix=fix))

    def _save_action(self, action: StoredAction) -> None:
        saved = self._house.writer.submit(lambda conn: save_action(conn, action), "action")
        saved.add_done_callback(lambda done: done.cancelled() or done.exception())  # a full disk is told of elsewhere

    def _log_line(self, model: ModelName) -> str:
        found = self._house.kernel.state.instances.get(instance_id(model))
        return found.reason.log_line if found is not None else ""

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, recover, serve: the addresses are taken first, so that nothing is started in vain."""
        settings = self._loaded.settings
        sockets = [bind_tcp(listen) for listen in settings.listen]
        policy = local_policy([listen.host for listen in settings.listen])
        sockets.append(bind_control_socket(settings.state_dir / CONTROL_SOCKET, policy.group_gid))
        kernel = self._house.kernel
        unused = {device for device, said in settings.overrides.items() if not said.use}
        await kernel.start(self._loaded.models, host_limit_bytes(settings), unused)
        self._self_check.begin(kernel.state)
        for crowd in crowds(kernel.state):
            log.warning("%s (%s)", crowd.text, crowd.fix)
        await self._house.writer.submit(lambda conn: close_actions(conn, self._house.clock.wall(), LOST), "actions")
        app = web.Application(middlewares=[no_foreign_pages(policy)])
        gateway = GatewaySettings(keepalive_s=settings.gateway.keepalive_s, max_body_bytes=settings.gateway.max_body_bytes)
        mount_control(app, self.plane, policy)
        mount(app, kernel.desk, self._house.clock, gateway, self._exposition)
        mount_fallback(app)
        self._runner = make_runner(app, shutdown_timeout_s=DRAIN_S)
        await self._runner.setup()
        for sock in sockets:
            await web.SockSite(self._runner, sock).start()
        self.addresses = [_url(sock) for sock in sockets if sock.family is not socket.AF_UNIX]
        keeper = LogKeeper(settings.state_dir / "logs", settings.logs, settings.disk_min_free, self._disk_low)
        self._scope.spawn(keeper.run(), "logs")
        self._scope.spawn(self._exposition.watch(kernel.state, self._house.clock.monotonic), "metrics")

    async def stop(self) -> None:
        """Refuse new work, let answers end, write what is in memory, let go of the engines."""
        await self._scope.aclose()
        kernel = self._house.kernel
        kernel.desk.refuse_all(Temporary("the daemon is shutting down", code="model_starting", retry_after_s=5.0, fix="retry in a moment"))
        if self._runner is not None:
            last_call = asyncio.get_running_loop().call_later(DRAIN_S - LAST_CALL_S, kernel.desk.cut_all, CauseId("shutdown"))
            await self._runner.cleanup()
            last_call.cancel()
        try:
            if self._loaded.settings.gateway.on_exit == "stop":
                await self._stop_engines()
        finally:
            await kernel.stop()
        await self._house.writer.close()
        self._house.database.close()
        (self._loaded.settings.state_dir / CONTROL_SOCKET).unlink(missing_ok=True)

    async def _stop_engines(self) -> None:
        """``on_exit: stop``: put everything away, within a bound; what resists is found again at the next start."""
        kernel = self._house.kernel
        kernel.post(Closing(at_s=self._house.clock.monotonic()))
        for instance in list(kernel.state.with_process()):
            if instance.model in kernel.state.models:  # a model that was removed is on its way out already
                await self.plane.act("stop", instance.model, ActOptions(now=True), "daemon")
        try:
            async with asyncio.timeout(ON_EXIT_S):
                while any(kernel.state.with_process()):  # noqa: ASYNC110 - a matter of seconds, once
                    await asyncio.sleep(0.05)
        except TimeoutError:
            left = ", ".join(instance.id for instance in kernel.state.with_process())
            log.warning("still running after %.0f s: %s; the next daemon finds and ends them", ON_EXIT_S, left)


def bind_tcp(listen: Listen) -> socket.socket:
    """A listening TCP socket. Raises Conflict when the port is taken, Permanent when the address is not ours."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((listen.host, listen.port))
        sock.listen(1024)
    except OSError as error:
        sock.close()
        text = f"cannot listen on {listen}: {os.strerror(error.errno or 0)}"
        if error.errno == 98:
            raise Conflict(text, code="port_taken", fix="stop what listens there, or set another `listen`") from error
        raise Permanent(text, code="listen", fix="use an address of this machine, for example 127.0.0.1") from error
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
