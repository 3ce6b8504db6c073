"""How far the estimate of a llama.cpp server's memory is from the truth, over contexts, slots and flags.

For each configuration a real server is started with the adapter's own command line, asked once, then filled: every slot
to the end of its context, and a growing conversation on every slot until its checkpoints are complete. The proportional
set size (PSS) is sampled all the while. Prints a table; ``--record NAME`` keeps it as ``results/NAME.json``.

    python -m benchmarks.llamacpp_footprint                      the demo's model
    python -m benchmarks.llamacpp_footprint --model FILE.gguf --program PATH/llama-server
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.engines.demo_model import demo_model_path
from adapters.engines.http import post
from adapters.engines.llamacpp import LlamaCpp, xllamacpp_command
from adapters.engines.llamacpp_flags import read_sizing
from benchmarks.common import save_record
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import ModelSpec
from scheduler.domain.units import MIB
from scheduler.ports.engine import Answer, Endpoint, LaunchPlan

CONFIGURATIONS = (
    "-c 512 -np 1",
    "-c 2048 -np 1",
    "-c 2048 -np 2",
    "-c 4096 -np 1 -ub 128",
    "-c 4096 -np 1 -ub 2048",
    "-c 4096 -np 1 --swa-full",
    "-c 4096",
    "-c 8192 -np 1",
    "-c 8192 -np 1 -ctk q8_0 -ctv q8_0",
    "-c 8192 -np 4",
    "-c 8192 -np 2 -fa off",
    "-c 1024 -np 1 --embeddings --pooling mean",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration: MiB, and how many percent the estimate lies above the most that was seen."""

    args: str
    ready_s: float
    ready_mib: int
    asked_mib: int
    full_mib: int
    peak_mib: int
    estimate_mib: int
    above_percent: int


class Sampler:
    """Samples a process's PSS until stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self.peak = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def now(self) -> int:
        """PSS in bytes; 0 when the process is gone."""
        try:
            text = Path(f"/proc/{self._pid}/smaps_rollup").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            return 0
        found = next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
        self.peak = max(self.peak, found)
        return found

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.now()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _ask(base_url: str, path: str, body: dict[str, object]) -> object:
    return asyncio.run(post(base_url, path, body, timeout_s=1800)).json()


def _fill(base_url: str, context: int, slots: int, *, pooled: bool) -> None:
    def one(slot: int) -> None:
        tokens = [1000 + (slot * 37 + index) % 5000 for index in range(context - 24)]
        if pooled:
            _ask(base_url, "/v1/embeddings", {"input": tokens[:500]})
        else:
            _ask(base_url, "/v1/completions", {"prompt": tokens, "max_tokens": 8, "temperature": 0})

    def talk(slot: int) -> None:
        messages: list[dict[str, str]] = []
        for turn in range(8):
            messages += [{"role": "user", "content": f"slot {slot} word {turn} " * 12}, {"role": "assistant", "content": "yes"}]
            if 100 * (turn + 1) < context:
                _ask(base_url, "/v1/chat/completions", {"messages": messages[:-1], "max_tokens": 4, "temperature": 0, "id_slot": slot})

    with ThreadPoolExecutor(slots) as pool:
        list(pool.map(one, range(slots)))
        if not pooled:
            list(pool.map(talk, range(slots)))


def measure(program: tuple[str, ...], model: Path, args: str) -> Row:
    """Start one server, fill it, end it."""
    engine = LlamaCpp()
    words = tuple(args.split())
    spec = ModelSpec(name=ModelName("measured"), engine="llamacpp", engine_command=program, model=str(model), args=(*words, "-t", "1"))
    port = _free_port()
    line = engine.command(spec, LaunchPlan(port=port, devices=(DeviceId("cpu0"),)))
    estimate = asyncio.run(engine.estimate(spec)).awake_bytes
    started = time.perf_counter()
    process = subprocess.Popen(
        line.argv, env={"PATH": os.environ["PATH"], **line.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    sampler = Sampler(process.pid)
    try:
        endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}", served_model="measured")
        while (seen := asyncio.run(engine.probe(endpoint, 5.0))).answer is not Answer.READY:
            if process.poll() is not None:
                raise SystemExit(f"{args}: ended with {process.returncode}: {seen.detail}")
            time.sleep(0.02)
        ready_s, ready = time.perf_counter() - started, sampler.now()
        sizing = read_sizing(words, {})
        path, body = ("/v1/embeddings", {"input": "hi"}) if sizing.pooled else ("/v1/completions", {"prompt": "hi", "max_tokens": 4})
        _ask(endpoint.base_url, path, dict(body))
        asked = sampler.now()
        each = sizing.context if sizing.unified and sizing.slots == 1 else sizing.context // sizing.slots
        _fill(endpoint.base_url, each, sizing.slots, pooled=sizing.pooled)
        full = sampler.now()
    finally:
        process.kill()
        process.wait()
        sampler.stop()
    return Row(
        args=args,
        ready_s=round(ready_s, 1),
        ready_mib=ready // MIB,
        asked_mib=asked // MIB,
        full_mib=full // MIB,
        peak_mib=sampler.peak // MIB,
        estimate_mib=estimate // MIB,
        above_percent=round(100 * (estimate / sampler.peak - 1)),
    )


def main() -> int:
    """Measure all configurations; exit status 1 when an estimate was exceeded or lies more than 25 % too high."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a .gguf file; default: the demo's model")
    parser.add_argument("--program", nargs="+", help="a llama-server; default: the one in the wheel xllamacpp")
    parser.add_argument("--only", help="just this configuration")
    parser.add_argument("--record", help="keep the figures under this name")
    options = parser.parse_args()
    model = options.model or demo_model_path()
    program = tuple(options.program) if options.program else xllamacpp_command()
    rows = []
    print(f"{'flags':44} ready s  ready  asked   full   peak  estimate  above")
    for args in [options.only] if options.only else CONFIGURATIONS:
        row = measure(program, model, args)
        rows.append(row)
        print(
            f"{row.args:44} {row.ready_s:7} {row.ready_mib:6} {row.asked_mib:6} {row.full_mib:6} {row.peak_mib:6} "
            f"{row.estimate_mib:9} {row.above_percent:5}%",
            flush=True,
        )
    if options.record:
        figures = {"model": model.name, "program": Path(program[-1]).name, "rows": [asdict(row) for row in rows]}
        save_record(options.record, figures, at_s=time.time())
    return 0 if all(0 <= row.above_percent <= 25 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
