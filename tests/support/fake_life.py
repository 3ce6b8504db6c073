"""What fake engines have in common as processes: one life on the real clock, a port, signals, an end."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.behaviour import NEVER
from tests.support.engine_life import Ended, EngineLife, Stage
from tests.support.fake_http import Connection, Request, serve_connection

#: Replies that would never come are this late: longer than any test waits.
FOREVER_S = 86400.0
#: How often one that grows takes more.
GROWTH_LOOK_S = 0.1


def say(text: str) -> None:
    """A line of the log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def count_start(path: str) -> int:
    """How many starts there were before this one."""
    if not path:
        return 0
    with open(path, "ab") as file:
        before = file.tell()
        file.write(b".")
    return before


def erase_environment() -> None:
    """Overwrite this process's environment block, as some engines do when they set their title."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start, env_end: fields 50 and 51 of proc(5)
    ctypes.memset(start, 0, end - start)


class LivingProcess:
    """One run. Engines say how they hold memory, what they answer and how they speak of their end."""

    def __init__(self, life: EngineLife, host: str, port: int) -> None:
        self.life, self.host, self.port = life, host, port
        self.server: asyncio.Server | None = None
        self.terminated = False
        self._changed = asyncio.Condition()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, now_s: float) -> None:
        """Hold the memory that the life says."""
        raise NotImplementedError

    async def handle(self, request: Request, connection: Connection) -> None:
        """Answer a request."""
        raise NotImplementedError

    def tell(self, stage: Stage) -> None:
        """A stage was reached."""

    def explain(self, ended: Ended) -> None:
        """Say why it ends."""

    def let_go(self) -> None:
        """End what is left of it: children."""

    async def started(self) -> None:
        """It lives and has memory; it may listen early, or have children."""

    async def run(self) -> int:
        """Live until the end; returns the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.on_term)
        loop.add_signal_handler(signal.SIGINT, self.on_term)
        await self.started()
        self.settle()
        await self.until(lambda: self.server is not None or self.life.stage is not Stage.LOADING)
        if self.life.stage is not Stage.ENDED and not await self.listen():
            return 1
        await self.until(lambda: self.life.stage is Stage.ENDED)
        return self._end()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when something holds; it is looked at whenever the life has changed."""
        async with self._changed:
            await self._changed.wait_for(holds)

    def open_socket(self) -> socket.socket:
        """The socket that it will listen on. Raises OSError when the port is taken."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.host, self.port))
        except OSError:
            sock.close()
            raise
        return sock

    async def listen(self) -> bool:
        """Begin to answer; False when the port is taken."""
        if self.server is not None:
            return True
        try:
            sock = self.open_socket()
            self.server = await asyncio.start_server(lambda r, w: serve_connection(r, w, self.handle), sock=sock)
        except OSError as error:
            self.port_taken(error)
            return False
        return True

    def port_taken(self, error: OSError) -> None:
        """Somebody else has its port."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let what is due happen, hold as much memory as the core says, and come back when the next thing is due."""
        now_s = time.monotonic()
        if self.life.advance(now_s):
            self.tell(self.life.stage)
        self.hold(now_s)
        self.changed()
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.life.next_change_s()
        if self.life.behaviour.growth_bps and self.life.stage is Stage.AWAKE:
            due_s = min(due_s, now_s + GROWTH_LOOK_S)
        if due_s < min(now_s + FOREVER_S, NEVER):
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self.settle)

    def changed(self) -> None:
        """Wake whoever waits in :meth:`until`."""
        asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def on_term(self) -> None:
        """It got TERM."""
        self.terminated = True
        self.life.term(time.monotonic())
        self.settle()

    def _end(self) -> int:
        ended = self.life.ended
        assert ended is not None
        self.explain(ended)
        if self.server is not None:
            self.server.close()
        self.let_go()
        if ended.signal is not None:
            if ended.signal != signal.SIGKILL:
                signal.signal(ended.signal, signal.SIG_DFL)
            os.kill(os.getpid(), ended.signal)
        return ended.exit_code or 0
