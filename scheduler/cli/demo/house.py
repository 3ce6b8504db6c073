"""The demo's daemon: its folder, its configuration, its process."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from scheduler.domain.errors import Permanent
from scheduler.domain.units import MIB

#: What the three models may hold together. Each takes between BUDGET/3 and BUDGET/2: two small ones fit, the large one needs room.
BUDGET_BYTES = 950 * MIB
#: Model name -> context size in tokens. The context decides most of the difference in memory.
MODELS: dict[str, int] = {"short-talk": 1024, "long-talk": 8192, "whole-book": 24576}
START_S = 60.0


@dataclass(slots=True)
class House:
    """``folder`` holds everything; ``port`` stays the same when the daemon is started again."""

    folder: Path
    port: int
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where the daemon answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def config(self) -> Path:
        """The configuration that a reader may copy."""
        return self.folder / "hotseat.yaml"

    async def start(self) -> float:
        """Start the daemon; returns the seconds until it said that it serves. Raises Permanent with the end of its log."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        log = self.folder / "daemon.out"
        with log.open("ab") as sink:
            command = [sys.executable, "-P", "-m", "scheduler.cli.main", "serve", "--config", str(self.config), "--log-level", "warning"]
            self.process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=sink, env=_environment())
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await self.process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line.startswith(b"hotseat"):
            tail = log.read_text(errors="replace")[-2000:]
            raise Permanent(f"the daemon did not start:\n{tail}", code="crashed", fix="run `hotseat doctor`")
        return loop.time() - begun

    def kill(self) -> None:
        """As if the power of one process went out: kill -9."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """Stop all engines, then the daemon."""
        if self.process is None or self.process.returncode is not None:
            return
        await self.stop_engines()
        self.process.terminate()
        await self.process.wait()

    async def stop_engines(self) -> None:
        """Over the control socket: only the daemon's user may stop models."""
        connector = aiohttp.UnixConnector(path=str(self.folder / "state" / "control.sock"))
        try:
            async with aiohttp.ClientSession(connector=connector) as client:
                for model in MODELS:
                    async with client.post(f"http://hotseat/control/v1/models/{model}/stop?wait=60", json={"now": True}) as answer:
                        await answer.read()
        except (aiohttp.ClientError, OSError):
            return  # it is gone already; its engines are found at the next start


def make_house(folder: Path, model_file: Path) -> House:
    """Write the configuration."""
    house = House(folder, _free_port())
    lines = [
        "# Written by `hotseat demo`. Three chat models on one CPU budget that holds one or two of them.",
        f"listen: 127.0.0.1:{house.port}",
        f"state_dir: {json.dumps(str(folder / 'state'))}",
        "gateway: {on_exit: stop}",
        "devices:",
        "  discover: []",
        "  declared:",
        f"    - {{id: cpu0, kind: cpu, memory: {BUDGET_BYTES // MIB}MiB}}",
        "models:",
    ]
    for name, context in MODELS.items():
        lines += [
            f"  {name}:",
            "    engine: llamacpp",
            f"    model: {json.dumps(str(model_file))}",
            f"    args: {json.dumps(_flags(name, context))}",
        ]
    house.config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return house


def _flags(name: str, context: int) -> list[str]:
    """llama-server's own flags; the first model answers /v1/embeddings too."""
    threads = max(1, (os.cpu_count() or 2) // 2)
    embeddings = ["--embeddings", "--pooling", "mean", "-b", "128", "-ub", "128"] if name == next(iter(MODELS)) else []
    return ["-c", str(context), "-np", "1", "-t", str(threads), *embeddings]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("HOTSEAT_")}


def own_command() -> str:
    """How this very command is typed here: a virtual environment that is not active is not on PATH."""
    started = Path(sys.argv[0]).resolve()
    found = shutil.which("hotseat")
    if found is not None and Path(found).resolve() == started:
        return "hotseat"
    near = os.path.relpath(started)
    return near if started.name == "hotseat" and not near.startswith("..") else str(started)


def curl_lines(house: House) -> Sequence[str]:
    """What to try by hand."""
    body = json.dumps({"model": "short-talk", "messages": [{"role": "user", "content": "Tell me a story"}], "stream": True})
    command, state = own_command(), f"--state-dir {house.folder / 'state'}"
    return [
        f"curl -N {house.url}/v1/chat/completions -d '{body}'",
        f"{command} status -w {state}",
        f"{command} story long-talk {state}",
        f"{command} stop short-talk {state}",
    ]
