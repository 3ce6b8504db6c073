"""Connections to engines, pooled per address, and the exchange that hides a pooled connection's death."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from scheduler.domain.errors import Invalid
from scheduler.upstream.connection import Connection
from scheduler.upstream.errors import EngineLost
from scheduler.upstream.wire import ResponseParser, request_head

#: Engines close idle connections after 5 s (uvicorn, cpp-httplib); staying below avoids most races with that.
IDLE_S = 4.0
MAX_IDLE_PER_ENGINE = 256


@dataclass(frozen=True, slots=True)
class Target:
    """An engine's address, from its ``base_url``."""

    host: str
    port: int
    prefix: str  # path of the base URL without a trailing slash

    @classmethod
    def of(cls, base_url: str) -> Self:
        """Parse ``http://HOST:PORT[/PREFIX]``; raises Invalid (bad_engine_url) for anything else."""
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise Invalid(f"not an engine URL: {base_url!r} ({error})", code="bad_engine_url") from None
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment or parts.username:
            raise Invalid(f"not an engine URL: {base_url!r}; write http://HOST:PORT", code="bad_engine_url")
        return cls(parts.hostname, port if port is not None else 80, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as it goes to an engine: ``path`` with query, headers without framing, body in parts."""

    method: str
    path: str
    headers: Sequence[tuple[str, str]]
    body: tuple[bytes | memoryview, ...] = ()

    def parts(self, target: Target) -> list[bytes | memoryview]:
        """The bytes to send; a small body travels in the same write as the head."""
        size = sum(len(part) for part in self.body)
        framing = [("Host", target.authority), ("Content-Length", str(size))]
        head = request_head(self.method, target.prefix + self.path, [*framing, *self.headers])
        return [b"".join((head, *self.body))] if size < 64 << 10 else [head, *self.body]


class EnginePool:
    """All connections to engines. Bound to the running loop; ``close`` before the loop ends."""

    def __init__(self, *, connect_timeout_s: float = 5.0, idle_s: float = IDLE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Target, list[Connection]] = {}
        self._targets: dict[str, Target] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def exchange(self, base_url: str, request: EngineRequest, *, fresh: bool = False) -> "Exchange":
        """One request to one engine; use as an async context manager.

        ``fresh``: on a new connection, so that the request is sent once and no more.
        """
        target = self._targets.get(base_url)
        if target is None:
            if len(self._targets) > 1024:  # engines get new ports as they restart
                self._targets.clear()
            target = self._targets[base_url] = Target.of(base_url)
        return Exchange(self, target, request, fresh=fresh)

    def take_idle(self, target: Target) -> Connection | None:
        """The most recently used idle connection that is fresh enough."""
        stack = self._idle.get(target)
        oldest = self._loop.time() - self._idle_s
        while stack:
            connection = stack.pop()
            if connection.usable and connection.idle_since_s >= oldest:
                return connection
            connection.close()
        return None

    async def connect(self, target: Target) -> Connection:
        """A new connection. Raises EngineLost when nobody listens, or does not accept within the time limit."""
        if self._closed:
            raise EngineLost("the gateway is shutting down", answered=False)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await self._loop.create_connection(lambda: Connection(self._loop, self._forget), target.host, target.port)
        except TimeoutError:
            why = f"the engine at {target.authority} did not accept a connection within {self._connect_timeout_s:g} s"
            raise EngineLost(why, answered=False) from None
        except OSError as error:
            raise EngineLost(f"the engine at {target.authority} cannot be reached: {error.strerror or error}", answered=False) from None
        return connection

    def give_back(self, target: Target, connection: Connection) -> None:
        """An exchange is over: keep its connection when it can carry another."""
        if not connection.finish():
            return
        stack = self._idle.setdefault(target, [])
        if self._closed or len(stack) >= MAX_IDLE_PER_ENGINE:
            connection.close()
            return
        connection.idle_since_s = self._loop.time()
        connection.home = stack
        stack.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._idle_s, self._sweep)

    def close(self) -> None:
        """Close every idle connection; exchanges in flight end when their owners do. Idempotent."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for stack in self._idle.values():
            for connection in stack:
                connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        """Close connections that idled too long, so that a sleeping engine is left alone."""
        self._sweeper = None
        oldest = self._loop.time() - self._idle_s
        for target, stack in list(self._idle.items()):
            stale = [c for c in stack if c.idle_since_s < oldest or not c.usable]
            stack[:] = [c for c in stack if c not in stale]
            for connection in stale:
                connection.close()
            if not stack:
                del self._idle[target]
        if self._idle and not self._closed:
            self._sweeper = self._loop.call_later(self._idle_s / 2, self._sweep)

    def _forget(self, connection: Connection) -> None:
        """An idle connection died: most likely its engine closed it or exited."""
        stack = connection.home
        if stack is not None and connection in stack:
            stack.remove(connection)


class Exchange:
    """One request and its response.

    ``open`` connects and begins to send; ``head`` waits for status and headers; ``read`` returns body until b"". ``head`` and
    ``read`` may be cancelled and called again. Leaving the context gives the connection back, or closes it at once
    when the response was not read to its end: that is how a generation is aborted. An EngineLost that leaves the context
    says whether the request had been sent twice (``resent``).
    """

    def __init__(self, pool: EnginePool, target: Target, request: EngineRequest, *, fresh: bool) -> None:
        self._pool = pool
        self._target = target
        self._request: EngineRequest | None = request
        self._connection: Connection | None = None
        self._fresh = fresh
        self._reused = False
        self._resent = False
        self._reconnects = 0
        self._cut: EngineLost | None = None

    async def open(self) -> None:
        """Connect (or take an idle connection), and let the request go out as fast as the engine reads. Raises EngineLost."""
        idle = None if self._fresh else self._pool.take_idle(self._target)
        self._reused = idle is not None
        self._send(idle or await self._pool.connect(self._target))

    async def head(self) -> ResponseParser:
        """Status and headers.

        A pooled connection that dies before its first byte says nothing about the engine: the request is sent once
        more on a fresh one. Raises EngineLost.
        """
        while True:
            if self._cut is not None:
                raise self._cut
            connection = self._connection or await self._reconnect()
            try:
                head = await connection.head()
            except EngineLost as lost:
                if self._cut is not None:
                    raise self._cut from None
                if lost.answered or not self._reused:
                    raise
                self._reused = False
                connection.close()
                self._connection = None
            else:
                self._request = None  # will not be sent again: a large body need not live as long as its stream
                return head

    async def read(self) -> bytes:
        """The next bytes of body; b"" at its end. Raises EngineLost when it was cut."""
        if self._connection is None:
            raise RuntimeError("read before head")
        try:
            return await self._connection.read()
        except EngineLost:
            if self._cut is not None:
                raise self._cut from None
            raise

    def cut(self, why: str) -> None:
        """Break the exchange off from outside: whoever waits in ``head`` or ``read`` gets EngineLost with ``cut``."""
        self._cut = EngineLost(why, answered=True, cut=True)
        if self._connection is not None:
            self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, EngineLost):
            error.resent = self._resent
        self.close()

    def close(self) -> None:
        """End the exchange; idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(self._target, connection)

    async def _reconnect(self) -> Connection:
        # A waiter that only looks in now and then (to write a comment) cancels this and calls again: bounded.
        self._reconnects += 1
        if self._reconnects > 3:
            raise EngineLost(f"the engine at {self._target.authority} does not accept connections any more", answered=False)
        connection = await self._pool.connect(self._target)
        self._resent = True
        return self._send(connection)

    def _send(self, connection: Connection) -> Connection:
        if self._request is None:
            raise RuntimeError("the request was answered already")
        try:
            if self._cut is not None:
                raise self._cut
            connection.begin(self._request.parts(self._target))
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection
