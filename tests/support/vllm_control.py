"""The fake vLLM's control endpoints: sleep, wake, pause and the rest of what VLLM_SERVER_DEV_MODE=1 opens."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.engine_life import KV_CACHE, Reply, Stage
from tests.support.fake_admin import AdminDesk
from tests.support.fake_http import Connection, Request
from tests.support.fake_life import FOREVER_S
from tests.support.vllm_argv import Options
from tests.support.vllm_knobs import VllmKnobs, since
from tests.support.vllm_speech import LOOK_S, Traffic, error

MODES = ("abort", "wait", "keep")
RPCS = ("reload_weights", "reset_mm_cache", "reset_encoder_cache", "check_health", "get_model", "list_loras", "determine_available_memory")


class ControlDesk(AdminDesk):
    """What an engine that runs has, and what is asked of it."""

    knobs: VllmKnobs
    options: Options
    traffic: Traffic
    last_level: int  # as the metric tells it: what was asked for last
    _orders: set[asyncio.Task[None]]

    def bad(self, connection: Connection, status: int, message: str, kind: str, param: str | None = None) -> None:
        """An error in vLLM's shape."""
        connection.send_json(status, error(status, message, kind, param))

    async def ordered(self, connection: Connection, work: Coroutine[Any, Any, None]) -> None:
        """Do it to the end even when nobody waits for the answer any more."""
        task = asyncio.create_task(work)
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)
        gone = asyncio.create_task(connection.gone.wait())
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if task.done():
            task.result()

    async def steady(self) -> None:
        """Orders come one after the other."""
        await self.until(lambda: self.life.stage not in (Stage.FALLING_ASLEEP, Stage.WAKING))

    async def answered(self, connection: Connection, reply: Reply, document: Callable[[], object]) -> None:
        """Answer when the engine has done it."""
        self.settle()
        await asyncio.sleep(min(max(0.0, reply.at_s - time.monotonic()), FOREVER_S))
        self.settle()
        if self.life.stage is Stage.ENDED:
            connection.cut()
        elif reply.error:
            self.bad(connection, 500, reply.error, "InternalServerError")
        elif since(self.knobs, 0, 32):
            connection.send_json(200, document())
        else:
            connection.send(200, b"")

    # --- sleep and wake ---------------------------------------------------------------------------------------------

    async def sleep(self, request: Request, connection: Connection) -> None:
        """Query parameters only: what a body says is not read."""
        level, mode = request.query.get("level", "1"), request.query.get("mode", "abort")
        if not level.removeprefix("-").isdigit() or not 0 <= int(level) <= 2:
            self.bad(connection, 400, f"1 validation error:\n  Input should be 0, 1 or 2, input: {level}", "Bad Request", "query.level")
            return
        if not since(self.knobs, 0, 17):
            mode = "keep"  # there were no modes: requests went on, on memory that was gone
        elif mode not in MODES:
            text = f"1 validation error:\n  Input should be 'abort', 'wait' or 'keep', input: {mode}"
            self.bad(connection, 400, text, "Bad Request", "query.mode")
            return
        await self.ordered(connection, self._sleep(connection, int(level), mode))

    async def _sleep(self, connection: Connection, level: int, mode: str) -> None:
        await self.steady()
        running = len(self.traffic.running())
        if self.life.stage is Stage.AWAKE:
            await self._quiet(mode)
            await self.steady()
        if level:
            self.last_level = level
        else:
            self.last_level = 0 if self.life.stage is Stage.AWAKE else self.last_level
        reply = self.life.sleep(time.monotonic(), level, running if mode == "keep" else 0)
        await self.answered(connection, reply, lambda: {"status": "sleeping", "level": reply.level})

    async def _quiet(self, mode: str, *, rejects: bool = False) -> None:
        """Stop the scheduler: ``abort`` ends what is inside, ``wait`` lets it end, ``keep`` freezes it."""
        running = self.traffic.running()
        self.traffic.draining = mode == "wait"
        self.life.pause(rejects=rejects and mode != "keep")
        if mode == "abort":
            self.traffic.abort()
        while mode != "keep" and self.life.stage is not Stage.ENDED and any(flight in self.traffic.flights for flight in running):
            await asyncio.sleep(LOOK_S)
        self.traffic.draining = False

    async def wake(self, request: Request, connection: Connection) -> None:
        """Tags may be repeated; none = all."""
        tags = list(request.repeated.get("tags", ())) or None
        await self.ordered(connection, self._wake(connection, tags))

    async def _wake(self, connection: Connection, tags: list[str] | None) -> None:
        await self.steady()
        reply = self.life.wake(time.monotonic(), tags)

        def document() -> object:
            if self.life.stage is Stage.AWAKE:
                self.last_level = 0
            return {"status": "sleeping" if self.life.gone_tags else "awake", "tags": tags}

        await self.answered(connection, reply, document)

    def is_sleeping(self, _request: Request, connection: Connection) -> None:
        """Paused, or asleep."""
        connection.send_json(200, {"is_sleeping": self.life.is_sleeping if since(self.knobs, 0, 17) else bool(self.life.gone_tags)})

    async def release_kv(self, _request: Request, connection: Connection) -> None:
        """Frees the KV cache of an engine that is paused and has no requests."""
        text = "Call to release_kv_cache_memory method failed: release_kv_cache_memory() requires"
        if not self.life.paused or self.traffic.flights:
            self.bad(connection, 500, f"{text} a completed pause first", "InternalServerError")
        elif self.life.gone_tags:
            self.bad(connection, 500, f"{text} all executor memory to be resident", "InternalServerError")
        else:
            self.life.discard(time.monotonic(), KV_CACHE)
            self.settle()
            connection.send_json(200, {"status": "kv_cache_released"})

    # --- pause ------------------------------------------------------------------------------------------------------

    async def pause(self, request: Request, connection: Connection) -> None:
        """Stop the scheduler and keep the memory."""
        mode = request.query.get("mode", "abort")
        if mode not in MODES:
            self.bad(connection, 400, f"1 validation error:\n  input: {mode}", "Bad Request", "query.mode")
            return

        async def quiet() -> None:
            await self._quiet(mode, rejects=True)
            connection.send_json(200, {"status": "paused"})

        await self.ordered(connection, quiet())

    def resume(self, _request: Request, connection: Connection) -> None:
        """Whether the memory is there or not."""
        self.life.resume()
        connection.send_json(200, {"status": "resumed"})

    def is_paused(self, _request: Request, connection: Connection) -> None:
        """The scheduler alone."""
        connection.send_json(200, {"is_paused": self.life.paused})

    def abort_requests(self, request: Request, connection: Connection) -> None:
        """All of them. Of those that are named none, since the fake gives its requests no names; it says what vLLM says."""
        try:
            body = json.loads(request.body)
        except ValueError:
            self.bad(connection, 400, "Invalid JSON format", "Bad Request")
            return
        if not isinstance(body, dict):
            self.bad(connection, 400, "Request body must be a JSON object", "Bad Request")
            return
        named = body.get("request_ids")
        connection.send_json(200, {"status": "aborted", "aborted": len(named) if named else self.traffic.abort()})

    # --- others -----------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self, _request: Request, connection: Connection) -> None:
        """Not while requests hold a part of it."""
        done = not self.traffic.running()
        if done:
            self.life.reset_cache()
        connection.send_json(200, {"success": done}) if since(self.knobs, 0, 26) else connection.send(200, b"")

    async def collective_rpc(self, request: Request, connection: Connection) -> None:
        """One result per worker."""
        try:
            body = json.loads(request.body)
        except ValueError as wrong:
            self.bad(connection, 400, f"JSON decode error: {wrong}", "Bad Request")
            return
        method = body.get("method") if isinstance(body, dict) else None
        if method is None:
            text = "Missing 'method' in request body" if isinstance(body, dict) else "Request body must be a JSON object"
            self.bad(connection, 400, text, "Bad Request")
        elif method not in RPCS:
            text = f"Call to collective_rpc method failed: 'Worker' object has no attribute '{method}'"
            self.bad(connection, 500, text, "InternalServerError")
        else:
            await self.ordered(connection, self._rpc(connection, method))

    async def _rpc(self, connection: Connection, method: str) -> None:
        await self.steady()
        now_s = time.monotonic()
        reply = self.life.reload(now_s) if method == "reload_weights" else Reply(at_s=now_s)
        self.settle()
        await asyncio.sleep(max(0.0, reply.at_s - time.monotonic()))
        if self.life.stage is Stage.ENDED:
            connection.cut()
        elif reply.error:
            self.bad(connection, 500, f"Call to collective_rpc method failed: {reply.error}", "InternalServerError")
        else:
            connection.send_json(200, {"results": [None] * self.options.tensor_parallel})

    def server_info(self, _request: Request, connection: Connection) -> None:
        """Its configuration as text."""
        text = f"model={self.options.model!r}, tensor_parallel_size={self.options.tensor_parallel}, kv_dtype={self.options.kv_dtype}"
        connection.send_json(200, {"vllm_config": text})
