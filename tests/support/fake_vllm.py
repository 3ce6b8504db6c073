"""A fake vLLM as a real process: ``python -I -S fake_vllm.py serve MODEL --port 8001 ...``, as an adapter starts the real one.

It takes vLLM's flags and environment, refuses others as argparse does, answers as vLLM does, and holds memory on the cards
of a world folder (``FAKE_NVML_WORLD``, see ``gpu_world.py``), in workers of their own; without one it touches real memory.
``FAKE_VLLM_KNOBS`` (see ``vllm_knobs.py``) says what goes wrong. One behaviour core decides what happens when
(``engine_life.py``). Tests find what it was asked under ``/admin/log`` (see ``fake_admin.py``).
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # isolated from the environment, so it has to find its own house
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scheduler.domain.reasons import Code
from tests.support import vllm_metrics, vllm_words
from tests.support.behaviour import StartFailure
from tests.support.engine_life import ILLEGAL, Ended, EngineLife, Fate, Stage
from tests.support.fake_http import Connection, Request
from tests.support.fake_life import FOREVER_S, count_start, say
from tests.support.fake_memory import Memory
from tests.support.gpu_world import GpuWorld
from tests.support.vllm_argv import Options, VersionAsked, missing_model, parse
from tests.support.vllm_control import ControlDesk
from tests.support.vllm_knobs import VllmKnobs, behaviour_of, knobs_from_env, since
from tests.support.vllm_memory import Cards, NoDevice, fork_workers, visible_devices
from tests.support.vllm_speech import LOOK_S, Flight, Question, TooLong, Traffic, error, vector

WORLD = "FAKE_NVML_WORLD"
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
PERMISSION = {"id": "modelperm-1", "object": "model_permission", "created": 0, "allow_sampling": True, "is_blocking": False}
PAUSED = "Generation is paused. Please retry after it resumes."

Route = Callable[[Request, Connection], Awaitable[None] | None]


class FakeVllm(ControlDesk):
    """One run."""

    def __init__(self, options: Options, knobs: VllmKnobs, life: EngineLife, workers: Sequence[int], cards: Cards | None) -> None:
        super().__init__(life, options.host, options.port)
        self.options, self.knobs, self.speech = options, knobs, knobs.speech
        self.log: list[Request] = []
        self.traffic = Traffic(life)
        self.last_level = 0
        self.counters = {"vllm:prompt_tokens": 0, "vllm:generation_tokens": 0, "vllm:request_success": 0}
        self.engine_dead = False
        self._orders: set[asyncio.Task[None]] = set()
        self._workers, self._cards = list(workers), cards
        self._memory = Memory()
        self._socket = self.open_socket()
        self._dev = knobs.dev_mode and os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        self._keys = options.api_keys or tuple(key for key in [os.environ.get("VLLM_API_KEY", "")] if key)
        self._routes = self._all_routes()

    def _all_routes(self) -> dict[str, Route]:
        routes: dict[str, Route] = {
            "GET /health": self._health,
            "GET /ping": self._health,
            "GET /version": lambda _, c: c.send_json(200, {"version": self.knobs.engine_version}),
            "GET /load": lambda _, c: c.send_json(200, {"server_load": len(self.traffic.flights)}),
            "GET /v1/models": self._models,
            "GET /metrics": self._metrics,
            "GET /admin/log": self.show_log,
            "GET /admin/state": self._state,
            "POST /admin/speech": self.change_speech,
            "POST /admin/behaviour": self.change_behaviour,
            "POST /admin/do": self.do,
        }
        if self.options.embeds:
            routes["POST /v1/embeddings"] = self._embed
        else:
            routes.update({"POST /v1/chat/completions": self._complete, "POST /v1/completions": self._complete})
        return routes | self._dev_routes() if self._dev else routes

    def _dev_routes(self) -> dict[str, Route]:
        routes: dict[str, Route] = {
            "POST /sleep": self.sleep,
            "POST /wake_up": self.wake,
            "GET /is_sleeping": self.is_sleeping,
            "POST /reset_prefix_cache": self.reset_prefix_cache,
            "GET /server_info": self.server_info,
        }
        if since(self.knobs, 0, 10, 2):
            routes["POST /collective_rpc"] = self.collective_rpc
        if since(self.knobs, 0, 12):
            routes |= {"POST /pause": self.pause, "POST /resume": self.resume, "GET /is_paused": self.is_paused}
        if since(self.knobs, 0, 32):
            routes |= {"POST /abort_requests": self.abort_requests, "POST /release_kv_cache_memory": self.release_kv}
        return routes

    # --- life -------------------------------------------------------------------------------------------------------

    async def started(self) -> None:
        """Its workers live already."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._on_child)

    def open_socket(self) -> Any:
        """Bound before anything is loaded, and listening only when it is ready, as vLLM does it."""
        return self.__dict__.get("_socket") or super().open_socket()

    def tell(self, stage: Stage) -> None:
        """Lines of the log."""
        if stage is Stage.AWAKE and self.server is None:
            say(f"(APIServer pid={os.getpid()}) INFO:     Application startup complete.")
        elif stage is not Stage.ENDED:
            say(f"(EngineCore_DP0 pid={self._workers[0]}) INFO 11-30 12:00:00 [abstract.py:306] The engine is {stage}.")

    def hold(self, now_s: float) -> None:
        """On the cards; without them, and for copies on the host, in its own memory."""
        size = self.life.device_bytes(now_s)
        cards = self._cards
        self._memory.set(self.life.host_bytes() + (0 if cards is not None else size))
        if cards is None or size == cards.held or self.life.stage is Stage.ENDED:
            return
        before = cards.held
        if not cards.take(size, self.knobs.behaviour.free_lag_s):
            words = vllm_words.out_of_memory(size - before, cards.world.capacity(cards.uuids[0]), cards.room() - before)
            self.life.end(Ended(exit_code=1, code=Code.DEVICE_OOM, text=words))
            self.changed()

    def on_term(self) -> None:
        """Drain as long as it was told; then what is under way is aborted, and it ends."""
        self.terminated = True
        drain = asyncio.create_task(self._drain())
        self._orders.add(drain)
        drain.add_done_callback(self._orders.discard)

    async def _drain(self) -> None:
        until_s = time.monotonic() + self.options.shutdown_s
        while self.traffic.flights and time.monotonic() < until_s:
            await asyncio.sleep(0.01)
        self.traffic.abort()
        while self.traffic.flights and not self.engine_dead:
            await asyncio.sleep(LOOK_S)  # they are told before it ends
        self.life.term(time.monotonic())
        self.settle()

    def _on_child(self) -> None:
        """A worker is gone: the server goes on for a while, and says so."""
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid not in self._workers or self.life.stage is Stage.ENDED or self.engine_dead:
            return
        if self.knobs.death_unnoticed:
            self.life.wedge()
            return
        self.engine_dead = True
        say(f"(APIServer pid={os.getpid()}) ERROR 11-30 12:00:00 [core_client.py:600] Engine core proc EngineCore_DP0 died unexpectedly.")
        ended = Ended(exit_code=1, code=Code.CRASHED, text="vllm.v1.engine.exceptions.EngineDeadError: a worker has died")
        asyncio.get_running_loop().call_later(self.knobs.watchdog_s, self._give_up, ended)

    def _give_up(self, ended: Ended) -> None:
        self.life.end(ended)
        self.settle()

    def port_taken(self, error: OSError) -> None:
        """It is bound before; this cannot happen."""
        raise error

    def explain(self, ended: Ended) -> None:
        """The decisive lines, where there are any."""
        for line in vllm_words.last_words(ended, os.getpid(), self._workers[0]):
            say(line)

    def let_go(self) -> None:
        """Its workers end with it, unless they are of the kind that lives on when it dies of a signal."""
        if self.knobs.workers_outlive and self.life.ended is not None and self.life.ended.signal is not None:
            return
        if self._cards is not None:
            self._cards.release(self.knobs.behaviour.free_lag_s)
        for pid in self._workers:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue  # it was taken from the process table when it died

    # --- requests ---------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, connection: Connection) -> None:
        """One request."""
        if self.life.silent or self.life.answer(time.monotonic()).value == "silent":
            await connection.pause(FOREVER_S)
            return
        if not request.path.startswith("/admin/"):
            self.log.append(request)
        found = self._routes.get(f"{request.method} {request.path}")
        if self._keys and request.path.startswith("/v1"):
            key = request.headers.get("authorization", "").removeprefix("Bearer ")
            if key not in self._keys:
                connection.send_json(401, {"error": "Unauthorized"})
                return
        if found is not None:
            answer = found(request, connection)
            if answer is not None:
                await answer
        elif any(route.endswith(f" {request.path}") for route in self._routes):
            connection.send_json(405, {"detail": "Method Not Allowed"})
        else:
            connection.send_json(404, {"detail": "Not Found"})
        if request.outcome == "open":
            request.outcome = "client_gone" if connection.gone.is_set() else "done"

    def _health(self, _request: Request, connection: Connection) -> None:
        connection.send(503 if self.engine_dead else 200, b"")

    def _models(self, _request: Request, connection: Connection) -> None:
        entries: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "vllm",
                "root": self.options.model,
                "parent": None,
                "max_model_len": self.options.max_model_len or 4096,
                "permission": [PERMISSION],
            }
            for name in self.options.served
        ]
        connection.send_json(200, {"object": "list", "data": entries})

    def _metrics(self, _request: Request, connection: Connection) -> None:
        running, waiting = self.traffic.gauges(stale=self.knobs.stale_gauges)
        gauges = {"vllm:num_requests_running": running, "vllm:num_requests_waiting": waiting, "vllm:kv_cache_usage_perc": running / 256}
        paused = self.life.paused and not self.life.gone_tags
        state = None if paused else vllm_metrics.STATES[self.last_level]
        counters = dict(self.counters)
        body = vllm_metrics.text(self.options.served[0], gauges, counters, state, old_names=self.knobs.old_metric_names)
        connection.send(200, body.encode(), "text/plain; version=0.0.4")

    def _state(self, _request: Request, connection: Connection) -> None:
        document = {
            "model": self.options.served[0],
            "stage": self.life.stage,
            "level": self.life.level,
            "gone": sorted(self.life.gone_tags),
        }
        uuids = self._cards.uuids if self._cards is not None else ()
        connection.send_json(200, {**document, "pid": os.getpid(), "children": self._workers, "devices": uuids})

    # --- inference --------------------------------------------------------------------------------------------------

    async def _body(self, request: Request, connection: Connection) -> dict[str, Any] | None:
        try:
            body = json.loads(request.body)
        except ValueError as wrong:
            self.bad(connection, 400, f"1 validation error:\n  JSON decode error: {wrong}", "Bad Request", "body")
            return None
        model = body.get("model", self.options.served[0]) if isinstance(body, dict) else None
        if model not in self.options.served:
            text = f"The model `{model}` does not exist. Valid aliases: {', '.join(self.options.served)}"
            self.bad(connection, 404, text, "NotFoundError", "model")
            return None
        if self.engine_dead:
            self.bad(connection, 500, DEAD, "InternalServerError")
            return None
        if await self.is_troubled(request, connection, lambda status, text: error(status, text, "InternalServerError")):
            return None
        return dict(body)

    async def _embed(self, request: Request, connection: Connection) -> None:
        body = await self._body(request, connection)
        if body is None:
            return
        given = body.get("input")
        texts = given if isinstance(given, list) else [given]
        flight = Flight(connection)
        fate = await self._admit(flight, connection, stream=False)
        if fate not in (Fate.ANSWERED, Fate.GARBAGE):
            return
        try:
            numbers = [vector(self.options.model, str(each), self.speech.dimensions, garbage=fate is Fate.GARBAGE) for each in texts]
        finally:
            self.traffic.flights.discard(flight)
        data = [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(numbers)]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts), "completion_tokens": 0}
        connection.send_json(200, {"id": "embd-1", "object": "list", "created": 0, "model": body["model"], "data": data, "usage": usage})

    async def _complete(self, request: Request, connection: Connection) -> None:
        body = await self._body(request, connection)
        if body is None:
            return
        chat = request.path == "/v1/chat/completions"
        try:
            question = Question.of(body, chat=chat, spoken=self.speech.tokens, context=self.options.max_model_len)
        except (ValueError, TypeError) as wrong:
            self.bad(connection, 400, str(wrong), "BadRequestError", "max_tokens" if isinstance(wrong, TooLong) else None)
            return
        flight = Flight(connection)
        try:
            fate = await self._admit(flight, connection, stream=question.stream)
            if flight.aborted and fate is None and self.terminated:
                self.bad(connection, 500, DEAD, "InternalServerError")
            elif flight.aborted and fate is None:
                await self._speak(flight, request, question, garbage=False)
            elif fate in (Fate.ANSWERED, Fate.GARBAGE):
                await self._speak(flight, request, question, garbage=fate is Fate.GARBAGE)
        finally:
            self.traffic.flights.discard(flight)

    async def _admit(self, flight: Flight, connection: Connection, *, stream: bool) -> Fate | None:
        """Take it in, and answer it where that is an error. A stream that has to wait gets its headers at once, and then silence."""
        now_s = time.monotonic()
        self.traffic.flights.add(flight)
        first = self.life.request(now_s)
        if stream and first in (Fate.QUEUED, Fate.HANGS):
            connection.start_stream()
            await connection.writer.drain()
            flight.streaming = True
        fate = first if first is not Fate.QUEUED else await self.traffic.admitted(flight, lambda: self.life.request(time.monotonic()))
        flight.running = fate in (Fate.ANSWERED, Fate.GARBAGE)
        if fate is Fate.HANGS:
            while await connection.pause(LOOK_S * 10) and not flight.aborted:
                pass
            connection.cut()
        elif fate is Fate.UNAVAILABLE:
            self.bad(connection, 503, PAUSED, "ServiceUnavailableError")
        elif fate is Fate.FAILS_AND_ENDS:
            self.bad(connection, 500, DEAD, "InternalServerError")
            await connection.writer.drain()
            self.life.end(ILLEGAL)
            self.settle()
        elif fate is Fate.ENDS:
            connection.cut()
            self.settle()
        if fate not in (Fate.ANSWERED, Fate.GARBAGE):
            self.traffic.flights.discard(flight)
        return fate

    async def _speak(self, flight: Flight, request: Request, question: Question, *, garbage: bool) -> None:
        """The answer, in one piece or as it comes; ``abort`` with what there is when somebody ended it."""
        connection = flight.connection
        self.counters["vllm:prompt_tokens"] += question.prompt_tokens
        words: list[str] = []
        if question.stream and not flight.streaming:
            connection.start_stream()
        while len(words) < question.count:
            if not await self.traffic.step(flight, self.speech.token_s if words else self.speech.first_token_s):
                break
            if question.stream and await self.is_broken_off(request, connection, len(words)):
                return
            words.append(question.word(self.options.model, len(words), garbage=garbage))
            self.counters["vllm:generation_tokens"] += 1
            if question.stream:
                self._event(connection, question, words[-1], None)
                await connection.writer.drain()
        if connection.gone.is_set():
            return
        whole = len(words) == question.count and not flight.aborted
        reason = question.reason if whole else "abort"
        self.counters["vllm:request_success"] += 1
        if question.stream:
            self._event(connection, question, "", reason)
            if question.usage_in_stream:
                connection.event(json.dumps({**self._head(question), "choices": [], "usage": question.usage(len(words))}))
            connection.event("[DONE]")
            connection.end_stream()
            await connection.writer.drain()
            return
        text = "".join(words)
        part = {"message": {"role": "assistant", "content": text}} if question.chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        connection.send_json(200, {**self._head(question), "choices": [choice], "usage": question.usage(len(words))})

    def _head(self, question: Question) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if question.stream else "chat.completion") if question.chat else "text_completion"
        return {"id": "chatcmpl-1" if question.chat else "cmpl-1", "object": kind, "created": 0, "model": self.options.served[0]}

    def _event(self, connection: Connection, question: Question, word: str, reason: str | None) -> None:
        piece: dict[str, Any] = {"delta": {"content": word} if word else {}} if question.chat else {"text": word}
        choice = {"index": 0, **piece, "logprobs": None, "finish_reason": reason}
        connection.event(json.dumps({**self._head(question), "choices": [choice]}))


# --- start ------------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Run one engine."""
    knobs = knobs_from_env(os.environ)
    try:
        options = parse(argv)
    except VersionAsked:
        sys.stdout.write(f"{knobs.engine_version}\n")
        return 0
    attempt = count_start(knobs.starts_file)
    if knobs.says:
        say(knobs.says)
    lost = missing_model(options.model)
    if lost is not None:
        say(f"(APIServer pid={os.getpid()}) ValueError: {lost}")
        return 1
    on_cpu = os.environ.get("CUDA_VISIBLE_DEVICES") == ""  # hidden from it, so it is a vLLM for the CPU
    if on_cpu and options.sleep_mode:
        for line in vllm_words.last_words(Ended(exit_code=1, code=Code.SLEEP_UNSUPPORTED), os.getpid(), os.getpid()):
            say(line)
        return 1
    folder = os.environ.get(WORLD)
    world = GpuWorld(folder) if folder and not on_cpu else None
    parallel = options.tensor_parallel
    try:
        uuids = visible_devices(world, os.environ, parallel) if world is not None else []
    except NoDevice as wrong:
        say(f"(EngineCore_DP0 pid={os.getpid()}) RuntimeError: {wrong}")
        return 1
    titles = ["VLLM::EngineCore", *(f"VLLM::Worker_TP{n}" for n in range(parallel) if parallel > 1)]
    workers = fork_workers(titles, outlive=knobs.workers_outlive)
    cards = Cards(world, uuids, workers[-parallel:]) if world is not None else None
    return asyncio.run(_live(options, knobs, attempt, workers, cards))


async def _live(options: Options, knobs: VllmKnobs, attempt: int, workers: Sequence[int], cards: Cards | None) -> int:
    card_bytes = min(cards.world.capacity(uuid) for uuid in cards.uuids) if cards is not None else None
    life = EngineLife(behaviour_of(knobs, options, card_bytes), attempt, time.monotonic(), cards)
    if knobs.sleep_mode_breaks_start and options.sleep_mode:
        text = "RuntimeError: CUDA error: an illegal instruction was encountered"
        life.fail_start(StartFailure(code=Code.CRASHED, after_s=0.0, text=text))
    elif cards is not None and card_bytes is not None and cards.room() < card_bytes * options.utilization:
        text = vllm_words.too_little_free(cards.room(), card_bytes, options.utilization)
        life.fail_start(StartFailure(code=Code.DEVICE_OOM, after_s=0.0, text=text))
    try:
        engine = FakeVllm(options, knobs, life, workers, cards)
    except OSError as error:
        say(f"(APIServer pid={os.getpid()}) OSError: [Errno {error.errno}] {error.strerror}")
        return 1
    say(f"(APIServer pid={os.getpid()}) INFO 11-30 12:00:00 [api_server.py:1272] vLLM API server version {knobs.engine_version}")
    return await engine.run()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # connections that are still open are not waited for
