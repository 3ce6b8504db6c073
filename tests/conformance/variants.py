"""Engines under the conformance suite: the fakes, a command, the real llama.cpp in its two forms, and a real vLLM if there is one."""

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from adapters.engines.command import Command
from adapters.engines.http import Reply, post
from adapters.engines.llamacpp import LlamaCpp, xllamacpp_command
from adapters.engines.vllm import Vllm
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeclaredFootprint, DeviceWish, HttpStep, ModelSpec
from scheduler.domain.placeholders import escape
from scheduler.domain.units import MIB
from scheduler.ports.engine import Endpoint, Engine, LaunchPlan
from scheduler.ports.launcher import ExitInfo
from tests.support.behaviour import Behaviour
from tests.support.fake_adapter import SCRIPT, FakeEngine, fake_spec
from tests.support.fake_knobs import Knobs, Speech
from tests.support.tiny_hf import CONTEXT
from tests.support.vllm_knobs import COMMAND, HEALTHY, VllmKnobs

T = TypeVar("T")
DEVICE = DeviceId("cpu0")
NAME = ModelName("org/small:1")
PATH = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
FAKE = Knobs(
    behaviour=Behaviour(start_s=0.05, listens_early=True, awake_bytes=32 << 20, residue_bytes={1: 8 << 20}, sleep_s=0.02, wake_s=0.02),
    speech=Speech(token_s=0.001),
)
ENDLESS = replace(FAKE, speech=Speech(tokens=1_000_000, token_s=0.005))
#: Names the real vLLM that the suite runs on as well; without it, it does not.
REAL_VLLM = "HOTSEAT_VLLM_BIN"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(slots=True)
class Running:
    """A started engine; its log is in a file, as under the daemon."""

    process: "subprocess.Popen[bytes]"
    endpoint: Endpoint
    log: Path
    patience_s: float = 15.0
    longest: int = 1_000_000

    def tail(self) -> list[str]:
        """The lines of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def ended(self, within_s: float | None = None) -> ExitInfo:
        """Wait for its end."""
        status = self.process.wait(self.patience_s if within_s is None else within_s)
        return ExitInfo(code=status if status >= 0 else None, signal=-status if status < 0 else None)

    def pss_bytes(self) -> int:
        """The proportional set size of it and of its children."""
        return sum(
            _pss_bytes(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_part(int(entry.name))
        )

    def _is_part(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.process.pid
        except OSError:
            return False


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0  # it has just ended
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)


@dataclass(frozen=True, slots=True)
class Variant:
    """One engine type with a model that it can serve, and specs that go wrong."""

    name: str
    engine: Engine
    spec: ModelSpec
    embedder: ModelSpec
    endless: ModelSpec  # its streams end only when somebody ends them
    missing_model: ModelSpec | None = None
    unknown_flag: ModelSpec | None = None
    estimate_factor: float = 2.0  # the most that an estimate may exceed what is measured
    knows_itself: bool = True  # can tell a stranger that answers 200 from itself
    no_room: ModelSpec | None = None  # its first wake finds no memory, the next one does
    forgetful: ModelSpec | None = None  # says something else after a wake from level 2
    frees: bool = True  # a sleep gives its memory back
    start_s: float = 20.0  # the longest that a start may take
    longest: int = 1_000_000  # tokens that a stream may ask for
    env: Mapping[str, str] = field(default_factory=lambda: PATH)

    @contextmanager
    def start(
        self, folder: Path, spec: ModelSpec | None = None, port: int | None = None, plan: LaunchPlan | None = None
    ) -> Iterator[Running]:
        """Start an engine with the adapter's own command line; it is killed at the end whatever happens."""
        spec = spec or self.spec
        plan = plan or LaunchPlan(port=port or free_port(), devices=(DEVICE,), device_index=(0,))
        port = plan.port
        line = self.engine.command(spec, plan)
        log = folder / f"engine-{port}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                line.argv,
                env={**self.env, **dict(spec.env), **line.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                start_new_session=True,
            )
        endpoint = Endpoint(
            base_url=f"http://127.0.0.1:{port}",
            served_model=self.engine.served_model(spec),
            ready_path=spec.ready_path,
            sleep_paths=tuple((step.path, step.timeout_s) for step in spec.sleep_steps),
            wake_paths=tuple((step.path, step.timeout_s) for step in spec.wake_steps),
        )
        try:
            yield Running(process, endpoint, log, patience_s=max(15.0, self.start_s), longest=self.longest)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # children outlive a leader that was killed
            except ProcessLookupError:
                pass
            process.wait(10)


def fake_variant() -> Variant:
    """The fake engine with its own adapter."""
    spec = fake_spec(NAME, FAKE)
    return Variant(
        name="fake",
        engine=FakeEngine(),
        spec=spec,
        embedder=spec,
        endless=fake_spec(NAME, ENDLESS),
        unknown_flag=replace(spec, args=(*spec.args, "--no-such-flag")),
        no_room=fake_spec(NAME, replace(FAKE, behaviour=replace(FAKE.behaviour, wake_errors=1))),
    )


def fake_vllm_variant(model: Path) -> Variant:
    """The fake vLLM with the real one's adapter."""

    def spec_for(knobs: VllmKnobs, *args: str) -> ModelSpec:
        return ModelSpec(
            name=NAME,
            engine="vllm",
            engine_command=COMMAND,
            model=str(model),
            args=args,
            env=tuple(knobs.env().items()),
            footprint=DeclaredFootprint(weights_bytes=24 * MIB, overhead_bytes=40 * MIB, kv_min_bytes=8 * MIB, kv_max_bytes=8 * MIB),
        )

    quick = VllmKnobs(speech=Speech(token_s=0.001))
    spec = spec_for(quick)
    return Variant(
        name="fake vllm",
        engine=Vllm(),
        spec=spec,
        embedder=spec_for(quick, "--runner", "pooling"),
        endless=spec_for(VllmKnobs(speech=Speech(token_s=0.005))),
        missing_model=replace(spec, model=str(model.with_name("missing"))),
        unknown_flag=replace(spec, args=("--no-such-flag",)),
        no_room=spec_for(replace(quick, behaviour=replace(HEALTHY, wake_errors=1))),
        forgetful=spec_for(replace(quick, behaviour=replace(HEALTHY, garbage_levels=(2,)))),
        estimate_factor=3.0,
    )


def real_vllm_variant(program: str, model: Path) -> Variant:
    """A real vLLM: on a card where there is one, else on the CPU, where a sleep frees nothing."""
    on_cpu = not Path("/dev/nvidiactl").exists()
    plain = ("--max-model-len", str(CONTEXT), "--max-num-seqs", "8", "--enforce-eager", "--dtype", "bfloat16")
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    spec = ModelSpec(
        name=NAME,
        engine="vllm",
        engine_command=(program,),
        model=str(model),
        args=plain,
        env=tuple(offline.items()),
        devices=DeviceWish(kind="cpu" if on_cpu else ""),
    )
    return Variant(
        name="real vllm",
        engine=Vllm(),
        spec=spec,
        embedder=replace(spec, args=(*plain, "--runner", "pooling", "--convert", "embed")),
        endless=spec,
        missing_model=replace(spec, model=str(model.with_name("missing"))),
        unknown_flag=replace(spec, args=(*plain, "--no-such-flag")),
        estimate_factor=3.0,
        frees=not on_cpu,
        start_s=300.0,
        longest=CONTEXT - 16,
        env={**PATH, "HOME": os.environ.get("HOME", "/")},
    )


def command_variant() -> Variant:
    """The fake engine as somebody's program under the engine ``command``, with steps to sleep and wake."""

    def spec_for(knobs: Knobs) -> ModelSpec:
        program = (sys.executable, "-I", "-S", str(SCRIPT), "--port", "${port}", "--model", "${name}")
        return ModelSpec(
            name=NAME,
            engine="command",
            command=(*program, "--knobs", escape(knobs.to_json())),
            sleep_steps=(HttpStep(path="/sleep?level=1", timeout_s=10.0),),
            wake_steps=(HttpStep(path="/wake_up", timeout_s=10.0),),
        )

    spec = spec_for(FAKE)
    return Variant(
        name="command",
        engine=Command(),
        spec=spec,
        embedder=spec,
        endless=spec_for(ENDLESS),
        estimate_factor=100.0,  # a guess of 1 GiB, as documented
        knows_itself=False,
    )


def llamacpp_variant(name: str, program: tuple[str, ...], model: Path, *, tiny: bool) -> Variant:
    """A real llama.cpp server with a small context and one thread."""
    args = ("-c", "2048", "-np", "2", "-t", "1")
    spec = ModelSpec(name=NAME, engine="llamacpp", engine_command=program, model=str(model), args=args)
    return Variant(
        name=name,
        engine=LlamaCpp(),
        spec=spec,
        embedder=replace(spec, args=("-c", "512", "-np", "1", "-t", "1", "-ub", "64", "--embeddings", "--pooling", "mean")),
        missing_model=replace(spec, model=str(model.with_name("missing.gguf"))),
        unknown_flag=replace(spec, args=(*args, "--no-such-flag")),
        endless=replace(spec, args=(*args, "--context-shift")),
        estimate_factor=4.0 if tiny else 1.25,  # the fixed parts outweigh half a MiB of model
    )


def programs() -> dict[str, tuple[str, ...]]:
    """The llama.cpp servers that there are here: ``llama-server`` on PATH, and the wheel."""
    found: dict[str, tuple[str, ...]] = {}
    server = shutil.which("llama-server")
    if server is not None:
        found["llama-server"] = (server,)
    if importlib.util.find_spec("xllamacpp") is not None:
        found["xllamacpp"] = xllamacpp_command()
    return found


def do(work: Coroutine[Any, Any, T]) -> T:
    """Run a call of an adapter."""
    return asyncio.run(work)


def ask(running: Running, path: str, **body: object) -> Reply:
    """A request that has to be answered 200."""
    reply = do(post(running.endpoint.base_url, path, {"model": running.endpoint.served_model, **body}, timeout_s=30))
    assert reply.status == 200, reply.text()
    return reply


def wait_until(what: str, holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Poll a condition of another process; the time limit only ends a failing test."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.01)


class Stream:
    """A streaming completion that stays open until it is closed or the engine ends it."""

    def __init__(self, running: Running) -> None:
        model, tokens = running.endpoint.served_model, running.longest
        body = {"model": model, "prompt": "a", "stream": True, "max_tokens": tokens, "ignore_eos": True}
        payload = json.dumps(body).encode()
        port = int(running.endpoint.base_url.rpartition(":")[2])
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        self._sock.sendall(head.encode() + payload)
        self._seen = b""
        while self._seen.count(b"data: ") < 3:
            self._seen += self._need()

    def _need(self) -> bytes:
        data = self._sock.recv(65536)
        assert data, f"the stream ended: {self._seen!r}"
        return data

    def rest(self) -> bytes:
        """Everything until the end of the connection, however it ends."""
        try:
            while data := self._sock.recv(65536):
                self._seen += data
        except ConnectionError:
            pass
        return self._seen

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
