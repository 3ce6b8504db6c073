"""From a granted lease to the end of the answer: the awake path."""

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from scheduler.domain.lease import Outcome
from scheduler.gateway.answer import Answer, error_event
from scheduler.gateway.cut import CutWatch
from scheduler.gateway.headers import media_type, to_engine
from scheduler.gateway.intake import Body
from scheduler.gateway.leases import HeldLease
from scheduler.gateway.metrics import GatewayMetrics
from scheduler.gateway.scan import Call
from scheduler.gateway.settings import GatewaySettings
from scheduler.orchestrator.readiness import Grant, Usage
from scheduler.ports.clock import Clock
from scheduler.upstream.errors import EngineLost
from scheduler.upstream.meter import Tail, Tokens, tokens_in
from scheduler.upstream.pool import EnginePool, EngineRequest, Exchange
from scheduler.upstream.sse import EventGate, is_aborted, tells_error
from scheduler.upstream.wire import ResponseParser

#: A usage object stands at the end of an answer, or at its start (embeddings); the middle is not searched.
_USAGE_SPAN_BYTES = 64 << 10
_ABORTED = "it was put away meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, as far as the relay needs to know it."""

    model: str
    endpoint: str  # "chat/completions"
    path: str  # with the client's query
    request_id: str
    headers: Mapping[str, str]
    call: Call
    body: Body
    arrived_s: float


class Relay:
    """Sends a request to the leased engine and its answer to the client.

    Raises EngineLost, with nothing of the answer passed on (``answer.relaying`` false) or with a part of it.
    """

    def __init__(self, pool: EnginePool, clock: Clock, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self._pool = pool
        self._clock = clock
        self._settings = settings
        self._metrics = metrics

    async def run(self, job: Job, lease: HeldLease, answer: Answer, spent_s: float, *, last_try: bool) -> web.StreamResponse:
        """Relay one exchange; ``spent_s`` is the gateway's own time before the lease, for the overhead metric.

        ``last_try``: the request may be sent once and no more.
        """
        started_s = self._clock.monotonic()
        async with self._pool.exchange(lease.grant.base_url, _request(job, lease.grant), fresh=last_try) as exchange:
            with CutWatch(lease, exchange, job.endpoint):
                return await self._exchange(job, lease, answer, exchange, spent_s - started_s)

    async def _exchange(self, job: Job, lease: HeldLease, answer: Answer, exchange: Exchange, offset_s: float) -> web.StreamResponse:
        await exchange.open()
        self._metrics.overhead(self._clock.monotonic() + offset_s)
        head = await answer.patiently(exchange.head, _working)
        lease.grant.heard()
        if head.status == 200 and media_type(head.headers) == "text/event-stream":
            return await self._stream(job, lease, answer, exchange, head)
        return await self._whole(job, lease, answer, exchange, head)

    async def _stream(self, job: Job, lease: HeldLease, answer: Answer, exchange: Exchange, head: ResponseParser) -> web.StreamResponse:
        gate, tail = EventGate(), Tail()
        ttft_s: float | None = None
        try:
            while data := await answer.patiently(exchange.read, _working):
                lease.grant.heard()
                passed = gate.feed(data)
                if passed:
                    tail.add(passed)
                    if ttft_s is None:
                        ttft_s = await self._first_event(job, lease, answer, head)
                    await answer.write(passed)
                if gate.aborted:
                    raise EngineLost(_ABORTED, answered=True, aborted=True)
            await self._finish_stream(answer, head, gate, tail)
        except EngineLost as lost:
            if not answer.relaying:
                raise
            lease.finish(lost.outcome, _usage(job.endpoint, 502, tokens_in(tail.blob()), ttft_s))
            self._metrics.interrupted(lost.cause)
            return await answer.fail(told(job, lost), midway=gate.midway)
        exchange.close()
        blob = tail.blob()
        failed = tells_error(blob)
        self._account(job, lease, Outcome.ENGINE_ERROR if failed else Outcome.OK, _usage(job.endpoint, 200, tokens_in(blob), ttft_s))
        return await answer.end()

    async def _first_event(self, job: Job, lease: HeldLease, answer: Answer, head: ResponseParser) -> float:
        ttft_s = self._clock.monotonic() - job.arrived_s
        self._metrics.ttft(job.model, lease.grant.woke, ttft_s)
        await answer.begin(head.status, head.headers)
        job.body.drop()
        return ttft_s

    async def _finish_stream(self, answer: Answer, head: ResponseParser, gate: EventGate, tail: Tail) -> None:
        """The engine closed the stream in good order: what is left, unless it was no end at all."""
        rest = gate.flush()
        if gate.aborted:
            raise EngineLost(_ABORTED, answered=True, aborted=True)
        tail.add(rest)
        if head.ends_by_close and b"[DONE]" not in tail.blob():
            raise EngineLost("the engine closed the connection before the end of the stream", answered=True)
        if not answer.relaying:
            await answer.begin(head.status, head.headers)
        if rest:
            await answer.write(rest)

    async def _whole(self, job: Job, lease: HeldLease, answer: Answer, exchange: Exchange, head: ResponseParser) -> web.StreamResponse:
        parts: list[bytes] = []
        size = 0
        while data := await answer.patiently(exchange.read, _working):
            lease.grant.heard()
            parts.append(data)
            size += len(data)
            if size > self._settings.answer_buffer_bytes:
                if answer.begun:
                    break  # no stream, and far too large for the error event that this becomes
                return await self._pass_on(job, lease, answer, exchange, head, parts)
        exchange.close()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if head.status == 200 and is_aborted(body):
            raise EngineLost(_ABORTED, answered=True, aborted=True)
        if head.ends_by_close and media_type(head.headers) == "application/json" and not body.rstrip().endswith((b"}", b"]")):
            raise EngineLost("the engine closed the connection in the middle of its answer", answered=True)
        # The engine is done: a client that reads slowly does not keep the seat.
        outcome = _outcome(head.status)
        self._account(job, lease, outcome, _usage(job.endpoint, head.status, _tokens_of(body)))
        if answer.begun:
            answer.status = head.status if head.status >= 400 else 502
            return await answer.last_event(
                error_event(head.status, body if head.status >= 400 else b"no event stream, though one was asked for")
            )
        return await answer.whole(head.status, head.headers, body)

    async def _pass_on(
        self, job: Job, lease: HeldLease, answer: Answer, exchange: Exchange, head: ResponseParser, parts: list[bytes]
    ) -> web.StreamResponse:
        """An answer too large to keep back goes out as it comes; when it is cut, the client's connection is cut too."""
        await answer.begin(head.status, head.headers, head.length)
        start, tail = b"", Tail()
        for part in parts:
            if len(start) < _USAGE_SPAN_BYTES:
                start += part[:_USAGE_SPAN_BYTES]
            tail.add(part)
            await answer.write(part)
        parts.clear()
        while data := await exchange.read():
            lease.grant.heard()
            tail.add(data)
            await answer.write(data)
        outcome = _outcome(head.status)
        exchange.close()
        self._account(job, lease, outcome, _usage(job.endpoint, head.status, _tokens_at_ends(start, tail.blob())))
        return await answer.end()

    def _account(self, job: Job, lease: HeldLease, outcome: Outcome, usage: Usage) -> None:
        lease.finish(outcome, usage)
        cached = usage.cached_tokens or 0
        counts = (
            ("prompt_uncached", (usage.prompt_tokens or 0) - cached),
            ("prompt_cached", cached),
            ("completion", usage.completion_tokens or 0),
        )
        for kind, count in counts:
            if count > 0:
                self._metrics.tokens(job.model, kind, count)


def _request(job: Job, grant: Grant) -> EngineRequest:
    headers = to_engine(job.headers, api_key=grant.api_key, request_id=job.request_id)
    return EngineRequest("POST", job.path, headers, job.call.spliced(job.body.data, grant.served_model))


def may_retry(lost: EngineLost, answer: Answer, *, stream: bool) -> bool:
    """Whether a request may go to an engine once more: none of the answer was passed on, nobody cut it, it went out once.

    A stream is given out event by event, so nothing passed on means that nothing was there. An answer in one piece
    that broke off half-way cost the engine its full time; the client decides whether to ask again (502).
    """
    return not answer.relaying and not lost.cut and not lost.resent and (stream or lost.aborted or not lost.answered)


def _outcome(status: int) -> Outcome:
    """Whether an engine's own answer speaks against the engine; 501 only says that it lacks the ability."""
    return Outcome.ENGINE_ERROR if status >= 500 and status != 501 else Outcome.OK


def told(job: Job, lost: EngineLost) -> EngineLost:
    """The same loss in words for the client."""
    what = f"The engine of model {job.model} was lost before its answer was complete: {lost.message.rstrip('.')}."
    return EngineLost(what, answered=lost.answered, aborted=lost.aborted, cut=lost.cut)


def _working() -> str:
    return "working"


def _tokens_of(body: bytes) -> Tokens:
    if len(body) <= 2 * _USAGE_SPAN_BYTES:
        return tokens_in(body)
    return _tokens_at_ends(body[:_USAGE_SPAN_BYTES], body[-_USAGE_SPAN_BYTES:])


def _tokens_at_ends(start: bytes, end: bytes) -> Tokens:
    at_end = tokens_in(end)
    return at_end if at_end != Tokens() else tokens_in(start)


def _usage(endpoint: str, status: int, tokens: Tokens, ttft_s: float | None = None) -> Usage:
    return Usage(
        endpoint=endpoint,
        status=status,
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        completion_tokens=tokens.completion,
        ttft_s=ttft_s,
    )
