"""A fake vLLM for tests that talk to it directly, without an adapter."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.engines.http import Reply, get, post
from scheduler.domain.errors import HotseatError
from tests.conformance.variants import free_port, wait_until
from tests.support.gpu_world import GpuWorld
from tests.support.vllm_knobs import COMMAND, VllmKnobs

MODEL = "org/tiny"
NAME = "tiny"


@dataclass(slots=True)
class VllmProcess:
    """One that was started."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Reply:
        """GET."""
        return asyncio.run(get(self.url, path, timeout_s=10.0))

    def post(self, path: str, body: object = None, timeout_s: float = 10.0) -> Reply:
        """POST."""
        return asyncio.run(post(self.url, path, body, timeout_s=timeout_s))

    def said(self, path: str, body: object = None) -> Any:
        """The JSON of a POST that has to be answered 200."""
        reply = self.post(path, body)
        assert reply.status == 200, reply.text()
        return reply.json()

    def complete(self, **body: object) -> Any:
        """The first choice of a completion."""
        return self.said("/v1/completions", {"model": NAME, "prompt": "1 2 3", "max_tokens": 4, **body})["choices"][0]

    def state(self) -> Any:
        """What it says to tests."""
        return self.get("/admin/state").json()

    def workers(self) -> list[int]:
        """Pids of its engine core and of its workers."""
        return list(self.state()["children"])

    def turn(self, **behaviour: object) -> None:
        """Turn knobs of its behaviour."""
        self.said("/admin/behaviour", behaviour)

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return self.get("/health").status == 200
        except HotseatError:
            return False

    def ended(self, within_s: float = 15.0) -> int:
        """Wait for its end; the status, negative for a signal."""
        return self.process.wait(within_s)

    def lines(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def fake_vllm(
    folder: Path, *args: str, knobs: VllmKnobs | None = None, world: GpuWorld | None = None, ready: bool = True, **env: str
) -> Iterator[VllmProcess]:
    """Start one with ``args`` behind those that every adapter gives; at the end it is killed, and whatever it left behind."""
    port = free_port()
    log = folder / f"vllm-{port}.log"
    variables: Mapping[str, str] = {
        "VLLM_SERVER_DEV_MODE": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({} if world is None else {"FAKE_NVML_WORLD": world.folder}),
        **(knobs or VllmKnobs()).env(),
        **env,
    }
    argv = [*COMMAND, "serve", MODEL, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME, *args]
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, env=dict(variables), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", start_new_session=True
        )
    running = VllmProcess(process, port, log)
    try:
        if ready:
            wait_until("it answers", lambda: _up_or_over(running))
        yield running
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(10)


def _up_or_over(running: VllmProcess) -> bool:
    assert running.process.poll() is None, running.lines()
    return running.is_up()


def run_to_end(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """One that ends by itself."""
    return subprocess.run([*COMMAND, *words], env=env, capture_output=True, text=True, timeout=20, check=False)


class Call:
    """A request whose answer is read piece by piece, while others are made."""

    def __init__(self, running: VllmProcess, path: str, body: dict[str, object] | None = None) -> None:
        payload = b"" if body is None else json.dumps(body).encode()
        self.seen = b""
        self._sock = socket.create_connection(("127.0.0.1", running.port), timeout=10)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
        self._sock.sendall(head.encode() + payload)

    def until(self, text: bytes) -> "Call":
        """Read on until it said this."""
        while text not in self.seen:
            data = self._sock.recv(65536)
            assert data, self.seen
            self.seen += data
        return self

    def rest(self) -> bytes:
        """Everything to the end."""
        try:
            while data := self._sock.recv(65536):
                self.seen += data
        except ConnectionError:
            pass
        self._sock.close()
        return self.seen

    def is_silent(self) -> bool:
        """Nothing came that was not read yet."""
        self._sock.setblocking(False)
        try:
            return self._sock.recv(1, socket.MSG_PEEK) is None
        except BlockingIOError:
            return True
        finally:
            self._sock.settimeout(10)

    def close(self) -> None:
        """The client goes away."""
        self._sock.close()


def stream(running: VllmProcess, tokens: int = 1000, prompt: str = "a") -> Call:
    """A completion as a stream."""
    return Call(running, "/v1/completions", {"model": NAME, "prompt": prompt, "stream": True, "max_tokens": tokens})


def finish_of(answer: bytes) -> str:
    """The last finish_reason that is told."""
    return answer.rpartition(b'"finish_reason": ')[2].partition(b"}")[0].strip(b'" ').decode()
