"""A fake engine as a real process: ``python fake_engine.py --port 8001 --model NAME --knobs JSON``.

Standard library only, ready in about 0.2 s. One behaviour core (``tests/support/behaviour.py``) decides what it does
when; this file gives it a process, memory that it really touches, a port and signals. See ``tests/support/fake_knobs.py``
for what it can be told, and ``/admin/log`` for what it was asked.

Endpoints: ``/health``, ``/version``, ``/v1/models``, ``/v1/chat/completions``, ``/v1/completions``, ``/v1/embeddings``,
``/metrics``, ``/is_sleeping``, ``POST /sleep?level=``, ``POST /wake_up``, and under ``/admin``: ``log``, ``state``,
``speech`` (POST: change it), ``do?what=silent|refuse|crash|exit`` (POST).
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # isolated from the environment, so it has to find its own house
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.behaviour import Child
from tests.support.engine_life import Ended, EngineLife, Stage
from tests.support.fake_admin import AdminDesk
from tests.support.fake_http import Connection, Request
from tests.support.fake_knobs import Knobs, knobs_from_json
from tests.support.fake_life import FOREVER_S, count_start, erase_environment, say
from tests.support.fake_memory import Memory

VERSION = "fake-1.0"

CHILD_CODE = """
import mmap, os, signal, sys
size, deaf, lives_on = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3] == "1"
if deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = mmap.mmap(-1, max(size, 1))
for at in range(0, size, 1 << 20):
    memory[at:at + (1 << 20)] = b"\\1" * min(1 << 20, size - at)
sys.stdout.write("up\\n"); sys.stdout.flush()
os.close(1)
if lives_on:
    while True:
        signal.pause()
sys.stdin.read()
"""


class FakeProcess(AdminDesk):
    """One run."""

    def __init__(self, port: int, model: str, knobs: Knobs, attempt: int) -> None:
        super().__init__(EngineLife(knobs.behaviour, attempt, time.monotonic()), "127.0.0.1", port)
        self.model, self.knobs = model, knobs
        self.speech = knobs.speech
        self.log: list[Request] = []
        self.running = self.waiting = 0
        self._memory = Memory()
        self._children: list[subprocess.Popen[bytes]] = []

    # --- life -------------------------------------------------------------------------------------------------------

    async def started(self) -> None:
        """It may listen already."""
        if self.knobs.behaviour.listens_early and not await self.listen():
            self.life.end(Ended(exit_code=1))
            return
        self._children = [self._spawn(child) for child in self.knobs.behaviour.children]

    async def listen(self) -> bool:
        """Say so in the log."""
        late = self.server is None
        listening = await super().listen()
        if listening and late:
            say(f"fake: listening on {self.port}")
        return listening

    def on_term(self) -> None:
        """Say so in the log."""
        say("fake: TERM")
        super().on_term()

    def port_taken(self, error: OSError) -> None:
        """Somebody else has its port."""
        say(f"fake: fake-exit port_taken: {error.strerror}")

    def tell(self, stage: Stage) -> None:
        """A line of the log."""
        say(f"fake: stage {stage}")

    def hold(self, now_s: float) -> None:
        """Its own part of the memory; children hold theirs."""
        shared = sum(child.share for child in self.knobs.behaviour.children)
        self._memory.set(int((self.life.device_bytes(now_s) + self.life.host_bytes()) * (1 - shared)))

    def _is(self, stage: Stage) -> bool:
        return self.life.stage is stage

    def explain(self, ended: Ended) -> None:
        """The decisive line."""
        if ended.text:
            say(f"fake: fake-exit {ended.code}: {ended.text}")

    def let_go(self) -> None:
        """Children that do not outlive it see the end of a pipe."""
        for child in self._children:
            if child.stdin is not None:
                child.stdin.close()

    def _spawn(self, child: Child) -> "subprocess.Popen[bytes]":
        size = int(self.knobs.behaviour.awake_bytes * child.share)
        argv = [sys.executable, "-I", "-S", "-c", CHILD_CODE, str(size), str(int(child.ignores_term)), str(int(child.outlives))]
        env = dict(os.environ) if child.keeps_token else {}
        session = self.knobs.child_session
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=session)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        return process

    # --- requests ---------------------------------------------------------------------------------------------------

    async def handle(self, request: Request, connection: Connection) -> None:
        """One request."""
        if self.life.silent or self.life.answer(time.monotonic()).value == "silent":
            await connection.pause(FOREVER_S)
            return
        if self.knobs.stranger:
            connection.send_json(200, {"status": "ok"})
            return
        if not request.path.startswith("/admin/"):
            self.log.append(request)
        key = f"{request.method} {request.path}"
        plain = {
            "GET /health": self._health,
            "GET /version": self._version,
            "GET /v1/models": self._models,
            "GET /metrics": self._metrics,
            "GET /is_sleeping": self._is_sleeping,
            "GET /admin/log": self.show_log,
            "GET /admin/state": self._state,
            "POST /admin/speech": self.change_speech,
            "POST /admin/do": self.do,
        }
        slow = {
            "POST /sleep": self._sleep,
            "POST /wake_up": self._wake,
            "POST /v1/chat/completions": self._infer,
            "POST /v1/completions": self._infer,
            "POST /v1/embeddings": self._infer,
        }
        if key in plain:
            plain[key](request, connection)
        elif key in slow:
            await slow[key](request, connection)
        else:
            connection.send_json(404, {"detail": "Not Found"})
        if request.outcome == "open":
            request.outcome = "client_gone" if connection.gone.is_set() else "done"

    def _health(self, _request: Request, connection: Connection) -> None:
        loading = self.life.stage is Stage.LOADING
        connection.send_json(503 if loading else 200, {"status": "loading" if loading else "ok"})

    def _version(self, _request: Request, connection: Connection) -> None:
        connection.send_json(200, {"version": VERSION})

    def _models(self, _request: Request, connection: Connection) -> None:
        entry = {"id": self.model, "object": "model", "created": 0, "owned_by": "fake"}
        connection.send_json(200, {"object": "list", "data": [entry]})

    def _metrics(self, _request: Request, connection: Connection) -> None:
        connection.send(200, f"fake:requests_running {self.running}\nfake:requests_waiting {self.waiting}\n".encode())

    def _is_sleeping(self, _request: Request, connection: Connection) -> None:
        connection.send_json(200, {"is_sleeping": self.life.stage in (Stage.ASLEEP, Stage.FALLING_ASLEEP)})

    def _state(self, _request: Request, connection: Connection) -> None:
        document = {"model": self.model, "stage": self.life.stage, "level": self.life.level, "version": VERSION}
        connection.send_json(200, {**document, "pid": os.getpid(), "children": [child.pid for child in self._children]})

    async def _sleep(self, request: Request, connection: Connection) -> None:
        reply = self.life.sleep(time.monotonic(), int(request.query.get("level", "1")))
        self.settle()
        await self._answer_at(connection, reply.at_s, reply.error, {"status": "sleeping", "level": reply.level})

    async def _wake(self, _request: Request, connection: Connection) -> None:
        reply = self.life.wake(time.monotonic())
        self.settle()
        await self._answer_at(connection, reply.at_s, reply.error, {"status": "awake", "tags": None})

    async def _answer_at(self, connection: Connection, at_s: float, error: str, document: dict[str, Any]) -> None:
        if await connection.pause(min(at_s - time.monotonic(), FOREVER_S)):
            self.settle()
            connection.send_json(500, {"error": {"message": error}}) if error else connection.send_json(200, document)

    # --- inference --------------------------------------------------------------------------------------------------

    async def _infer(self, request: Request, connection: Connection) -> None:
        try:
            body = json.loads(request.body)
        except ValueError:
            connection.send_json(400, _error(400, "invalid JSON"))
            return
        if not await self._may_answer(request, connection, body):
            return
        self.running += 1
        try:
            await self._answer(request, connection, body)
        finally:
            self.running -= 1

    async def _may_answer(self, request: Request, connection: Connection, body: dict[str, Any]) -> bool:
        if body.get("model") != self.model:
            connection.send_json(404, _error(404, f"The model `{body.get('model')}` does not exist."))
            return False
        return not await self.is_troubled(request, connection, _error) and await self._is_awake_for(connection)

    async def _is_awake_for(self, connection: Connection) -> bool:
        if self._is(Stage.AWAKE):
            return True
        if self._is(Stage.LOADING) or not self.speech.holds_while_asleep:
            connection.send_json(503, _error(503, f"{self.life.stage}"))
            return False
        self.waiting += 1
        try:
            while not self._is(Stage.AWAKE):
                if not await connection.pause(0.01):
                    return False
        finally:
            self.waiting -= 1
        return True

    async def _answer(self, request: Request, connection: Connection, body: dict[str, Any]) -> None:
        if request.path == "/v1/embeddings":
            texts = body["input"] if isinstance(body.get("input"), list) else [body.get("input")]
            data = [{"object": "embedding", "index": n, "embedding": [0.5] * self.speech.dimensions} for n in range(len(texts))]
            connection.send_json(200, {"object": "list", "model": self.model, "data": data, "usage": _usage(len(texts), 0)})
            return
        count = min(self.speech.tokens, int(body.get("max_tokens") or self.speech.tokens))
        chat = request.path == "/v1/chat/completions"
        if body.get("stream"):
            await self._stream(request, connection, count, chat=chat)
        elif (sent := await self._speak(connection, count)) is not None:
            reason = "stop" if sent == count else "abort"
            text = " ".join(f"t{n}" for n in range(sent))
            part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": reason, **part}
            connection.send_json(200, self._document(chat=chat, stream=False, choice=choice, tokens=sent))

    async def _speak(self, connection: Connection, count: int) -> int | None:
        """Take the time that ``count`` tokens take; how many it became, None when the client went away."""
        for number in range(count):
            if not await connection.pause(self.speech.token_s if number else self.speech.first_token_s):
                return None
            if self._aborts():
                return number
        return count

    def _aborts(self) -> bool:
        return self.terminated and self.speech.abort_on_term

    async def _stream(self, request: Request, connection: Connection, count: int, *, chat: bool) -> None:
        speech = self.speech
        connection.start_stream()
        for number in range(count):
            if not await connection.pause(speech.token_s if number else speech.first_token_s):
                return
            if self._aborts():
                self._last_event(connection, "abort", number, chat=chat)
                return
            if await self.is_broken_off(request, connection, number):
                return
            piece = {"delta": {"content": f"t{number} "}} if chat else {"text": f"t{number} "}
            choice = {"index": 0, "finish_reason": None, **piece}
            connection.event(json.dumps(self._document(chat=chat, stream=True, choice=choice)))
            await connection.writer.drain()
        self._last_event(connection, "stop", count, chat=chat)

    def _last_event(self, connection: Connection, reason: str, tokens: int, *, chat: bool) -> None:
        piece: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        choice = {"index": 0, "finish_reason": reason, **piece}
        connection.event(json.dumps(self._document(chat=chat, stream=True, choice=choice, tokens=tokens)))
        connection.event("[DONE]")
        connection.end_stream()

    def _document(self, *, chat: bool, stream: bool, choice: dict[str, Any], tokens: int | None = None) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else "text_completion"
        document = {"id": "fake-1", "object": kind, "created": 0, "model": self.model, "choices": [choice]}
        return document if tokens is None else {**document, "usage": _usage(3, tokens)}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "FakeError", "param": None, "code": status}}


def main() -> int:
    """Run one engine."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--knobs", default="{}")
    options, unknown = parser.parse_known_args()
    if unknown:
        say(f"fake: fake-exit unknown_flag: unknown argument {unknown[0]}")
        return 2
    knobs = knobs_from_json(options.knobs)
    attempt = count_start(knobs.starts_file)
    if knobs.says:
        say(f"fake: {knobs.says}")
    if knobs.erases_environment:
        erase_environment()

    async def live() -> int:
        return await FakeProcess(options.port, options.model, knobs, attempt).run()

    return asyncio.run(live())


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # connections that are still open are not waited for
