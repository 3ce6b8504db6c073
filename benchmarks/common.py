"""What benchmarks share: helper processes, CPU time, percentiles, and the committed record of a run.

A record holds figures and the kind of machine, never a host name or a path.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Helper:
    """A process of a benchmark and the port it listens on."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """CPU seconds used so far, all threads, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextmanager
def helper(module: str, *arguments: str, cpu: int | None = None) -> Iterator[Helper]:
    """Run ``python -m module arguments`` until the context ends.

    The process says the port it listens on as its first line of output; ``cpu`` pins it to one core.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE)
    try:
        if cpu is not None:
            os.sched_setaffinity(process.pid, {cpu})
        if process.stdout is None:
            raise RuntimeError("the helper has no output")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} {' '.join(arguments)} ended before it listened")
        yield Helper(process.pid, int(line))
    finally:
        process.terminate()
        process.wait(timeout=10)
        if process.stdout is not None:
            process.stdout.close()


def cores() -> tuple[int | None, int | None]:
    """Two cores to pin to: one for load and backend, one for what is measured; (None, None) on a single core."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of all lie (nearest rank); NaN when there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Any]:
    """What kind of machine this ran on."""
    return {"cpus": len(os.sched_getaffinity(0)), "architecture": platform.machine(), "python": platform.python_version()}


def save_record(name: str, figures: dict[str, Any], *, at_s: float) -> Path:
    """Write ``results/NAME.json``; ``at_s`` is the wall clock of the run."""
    RESULTS.mkdir(exist_ok=True)
    record = {"benchmark": name, "at": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds"), "machine": machine(), **figures}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path
