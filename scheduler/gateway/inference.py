"""POST /v1/chat/completions, /v1/completions, /v1/embeddings: from the body to the last byte of the answer."""

import asyncio
import logging
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from aiohttp import HttpVersion11, web

from scheduler.domain.errors import HotseatError
from scheduler.gateway.answer import Answer, BrokenOff
from scheduler.gateway.errors import CLIENT_CLOSED
from scheduler.gateway.hold import hold
from scheduler.gateway.intake import Body, BodyBudget, refuse_large
from scheduler.gateway.leases import HeldLease
from scheduler.gateway.metrics import GatewayMetrics
from scheduler.gateway.relay import Job, Relay, may_retry, told
from scheduler.gateway.scan import Call, scan
from scheduler.gateway.settings import GatewaySettings
from scheduler.gateway.wishes import Wishes, lower_class, read_wishes, sane_request_id
from scheduler.orchestrator.readiness import Readiness, Usage, Want
from scheduler.ports.clock import Clock
from scheduler.upstream.errors import EngineLost
from scheduler.upstream.pool import EnginePool

log = logging.getLogger(__name__)

_INTERNAL = "The gateway failed on this request; the daemon's log has the details under its request id."


@dataclass(slots=True)
class _Label:
    """What the metrics call a request; a model's name only once it is known to exist."""

    model: str = ""


class Inference:
    """Handler of the inference routes. One instance per application; ``close`` ends its threads and connections."""

    def __init__(self, readiness: Readiness, clock: Clock, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._readiness = readiness
        self._clock = clock
        self._settings = settings
        self._metrics = metrics
        self._budget = BodyBudget(settings.total_body_bytes)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="scan")
        self._relay: Relay | None = None
        self._pool: EnginePool | None = None

    @property
    def budget(self) -> BodyBudget:
        """Bytes of request bodies in memory."""
        return self._budget

    def start(self) -> None:
        """Bind to the running loop."""
        self._pool = EnginePool(connect_timeout_s=self._settings.connect_timeout_s)
        self._relay = Relay(self._pool, self._clock, self._settings, self._metrics)

    def close(self) -> None:
        """Close idle connections to engines; does not wait for threads, which only compute."""
        if self._pool is not None:
            self._pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def serve(self, request: web.Request, endpoint: str) -> web.StreamResponse:
        """Answer one request; every error of ours becomes an envelope with its status."""
        request_id = _request_id(request)
        answer = Answer(request, request_id)
        label = _Label()
        done = False
        try:
            response = await self._guarded(request, endpoint, request_id, answer, label)
            done = True
        except BrokenOff:
            done = True  # by us; the status is the error's
            raise
        finally:
            self._metrics.request(label.model, endpoint, answer.status if done else CLIENT_CLOSED)
        return response

    async def refuse_early(self, request: web.Request, endpoint: str) -> web.StreamResponse | None:
        """For ``Expect: 100-continue``: refuse an announced size before the client sends it, else let it go on."""
        if request.headers.get("Expect", "").lower() != "100-continue" or request.version < HttpVersion11:
            return None
        try:
            refuse_large(request, self._settings)
        except HotseatError as error:
            answer = Answer(request, _request_id(request))
            response = await answer.fail(error)
            self._metrics.request("", endpoint, answer.status)
            return response
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        return None

    async def _guarded(self, request: web.Request, endpoint: str, request_id: str, answer: Answer, label: _Label) -> web.StreamResponse:
        try:
            with Body(self._budget) as body:
                return await self._serve(request, endpoint, request_id, answer, label, body)
        except HotseatError as error:
            return await answer.fail(error)
        except ConnectionError:
            raise  # the client is gone, nobody is left to be told
        except Exception:
            log.exception("request %s failed", request_id)
            return await answer.fail(HotseatError(_INTERNAL))

    async def _serve(
        self, request: web.Request, endpoint: str, request_id: str, answer: Answer, label: _Label, body: Body
    ) -> web.StreamResponse:
        arrived_s = self._clock.monotonic()
        wishes = read_wishes(request.headers, default_patience_s=self._settings.patience_s)
        await body.read(request, self._settings)
        read_s = self._clock.monotonic()
        call = await self._scan(body.data)
        listed = self._readiness.resolve(call.model)
        label.model = answer.headers["x-hotseat-model"] = listed.name
        patience_s = wishes.patience_s if listed.max_wait_s is None else min(wishes.patience_s, listed.max_wait_s)
        want = Want(
            model=listed.name,
            arrived_s=arrived_s,
            deadline_s=arrived_s + patience_s,
            model_class=lower_class(listed.model_class, wishes.model_class),
        )
        job = Job(
            model=listed.name,
            endpoint=endpoint,
            path=_path(request, endpoint),
            request_id=request_id,
            headers=request.headers,
            call=call,
            body=body,
            arrived_s=arrived_s,
        )
        self._prepare_comments(answer, call, wishes)
        return await self._attempts(job, want, answer, self._clock.monotonic() - read_s)

    async def _attempts(self, job: Job, want: Want, answer: Answer, spent_s: float) -> web.StreamResponse:
        """Once, and once more when the engine was lost before anything of its answer was passed on: it is sent twice at most."""
        try:
            return await self._attempt(job, want, answer, spent_s)
        except EngineLost as lost:
            if want.second_try or not may_retry(lost, answer, stream=job.call.stream):
                if answer.relaying:
                    self._metrics.interrupted(lost.cause)
                raise told(job, lost) from lost
            log.info("request %s: %s; trying once more", job.request_id, lost.message)
        return await self._attempts(job, replace(want, second_try=True), answer, spent_s)

    async def _attempt(self, job: Job, want: Want, answer: Answer, spent_s: float) -> web.StreamResponse:
        if self._relay is None:
            raise RuntimeError("the gateway was not started")
        grant = await hold(self._readiness.ask(want), answer)
        with HeldLease(self._readiness, grant, job.endpoint) as lease:
            self._metrics.hold(grant.waited_s)
            answer.headers["x-hotseat-instance"] = grant.instance
            answer.headers["x-hotseat-wait"] = f"{grant.waited_s:.3f}"
            answer.headers["x-hotseat-woke"] = "1" if grant.woke else "0"
            try:
                return await self._relay.run(job, lease, answer, spent_s, last_try=want.second_try)
            except EngineLost as lost:
                again = not want.second_try and may_retry(lost, answer, stream=job.call.stream)
                lease.finish(lost.outcome, Usage(endpoint=job.endpoint, status=502, again=again))
                raise

    def _prepare_comments(self, answer: Answer, call: Call, wishes: Wishes) -> None:
        if call.stream and wishes.keepalive and self._settings.keepalive_s > 0:
            answer.comment_every(self._settings.keepalive_s)

    async def _scan(self, data: bytes) -> Call:
        if len(data) <= self._settings.scan_in_thread_bytes:
            return scan(data)
        return await asyncio.get_running_loop().run_in_executor(self._threads, scan, data)


def _path(request: web.Request, endpoint: str) -> str:
    query = request.rel_url.raw_query_string
    return f"/v1/{endpoint}?{query}" if query else f"/v1/{endpoint}"


def _request_id(request: web.Request) -> str:
    return sane_request_id(request.headers.get("x-request-id")) or f"req-{secrets.token_hex(12)}"
