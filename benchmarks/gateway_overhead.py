"""What the gateway adds: latency of requests at 1, 32 and 256 connections, and paced streams.

Backend, bare TCP pass-through and gateway are processes of their own; every figure of the gateway stands beside the
pass-through's of the same run. With two cores or more, what is measured has one to itself.

    python -m benchmarks.gateway_overhead [--json] [--save] [--seconds 2]
"""

import argparse
import asyncio
import json
import os
from typing import Any

from benchmarks.common import Helper, cores, helper, percentile, save_record
from benchmarks.gateway_load import Tally, run_load
from benchmarks.gateway_roles import CHUNK_EVERY_S, MODEL
from scheduler.daemon.clock import SystemClock

CONNECTIONS = (1, 32, 256)
STREAMS = 256
ROLES = "benchmarks.gateway_roles"

Figures = dict[str, float]


def measure_requests(relay: Helper, connections: int, seconds: float) -> Figures:
    """Closed loop: each connection sends its next request when it has its answer."""
    before_s = relay.cpu_s()
    tally = asyncio.run(run_load(relay.port, MODEL, connections, seconds=seconds, stream=False))
    used_s = relay.cpu_s() - before_s
    return {
        "per_second": len(tally.requests) / seconds,
        "p50_ms": percentile(tally.requests, 0.50) * 1e3,
        "p99_ms": percentile(tally.requests, 0.99) * 1e3,
        "cpu_us": used_s / max(1, len(tally.requests)) * 1e6,
        "failures": tally.failures,
    }


def measure_streams(relay: Helper, streams: int) -> Figures:
    """Every stream gets a chunk each 10 ms; the delay of a chunk is from the backend's write to the client's read."""
    clock = SystemClock()
    before_s, start_s = relay.cpu_s(), clock.monotonic()
    tally: Tally = asyncio.run(run_load(relay.port, MODEL, streams, seconds=0, stream=True))
    took_s, used_s = clock.monotonic() - start_s, relay.cpu_s() - before_s
    chunks = len(tally.chunks)
    return {
        "chunks_per_second": chunks / took_s,
        "offered_per_second": streams / CHUNK_EVERY_S,
        "cpu_us": used_s / max(1, chunks) * 1e6,
        "core_share": used_s / took_s,
        "p50_ms": percentile(tally.chunks, 0.50) * 1e3,
        "p99_ms": percentile(tally.chunks, 0.99) * 1e3,
        "failures": tally.failures,
    }


def run(seconds: float) -> dict[str, Any]:
    """The whole benchmark; about 10 s plus ``seconds`` for each of nine cells."""
    load_cpu, relay_cpu = cores()
    # The load of other programs before the run: without a quiet machine, only the ratios mean anything.
    figures: dict[str, Any] = {"load_1m_before": os.getloadavg()[0], "seconds_per_cell": seconds, "requests": {}, "streams": {}}
    with (
        helper(ROLES, "backend", cpu=load_cpu) as backend,
        helper(ROLES, "pass-through", "--backend-port", str(backend.port), cpu=relay_cpu) as bare,
        helper(ROLES, "gateway", "--backend-port", str(backend.port), cpu=relay_cpu) as gateway,
    ):
        relays = {"direct": backend, "pass_through": bare, "gateway": gateway}
        for connections in CONNECTIONS:
            cells = {name: measure_requests(relay, connections, seconds) for name, relay in relays.items()}
            added_ms = cells["gateway"]["p50_ms"] - cells["direct"]["p50_ms"]
            figures["requests"][str(connections)] = {**cells, "added_p50_ms": added_ms, **_ratios(cells, "per_second")}
        cells = {name: measure_streams(relays[name], STREAMS) for name in ("pass_through", "gateway")}
        figures["streams"][str(STREAMS)] = {**cells, **_ratios(cells, "chunks_per_second")}
    return figures


def _ratios(cells: dict[str, Figures], rate: str) -> Figures:
    bare, ours = cells["pass_through"], cells["gateway"]
    return {
        "rate_ratio": ours[rate] / max(1e-9, bare[rate]),
        "p50_ratio": ours["p50_ms"] / max(1e-9, bare["p50_ms"]),
        "cpu_ratio": ours["cpu_us"] / max(1e-9, bare["cpu_us"]),
    }


def show(figures: dict[str, Any]) -> None:
    """For people."""
    print(f"{'requests':14} {'relay':13} {'per s':>8} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>7}")
    for connections, row in figures["requests"].items():
        for name in ("direct", "pass_through", "gateway"):
            cell = row[name]
            where = f"{connections} conn." if name == "direct" else ""
            print(f"{where:14} {name:13} {cell['per_second']:8.0f} {cell['p50_ms']:8.2f} {cell['p99_ms']:8.2f} {cell['cpu_us']:7.0f}")
        print(f"{'':14} gateway adds {row['added_p50_ms']:.2f} ms; against the pass-through: {_compared(row)}")
    print(f"{'streams':14} {'relay':13} {'chunk/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'CPU us':>7}")
    for streams, row in figures["streams"].items():
        for name in ("pass_through", "gateway"):
            cell = row[name]
            where = f"{streams} paced" if name == "pass_through" else ""
            print(
                f"{where:14} {name:13} {cell['chunks_per_second']:8.0f} {cell['p50_ms']:8.2f} {cell['p99_ms']:8.2f} {cell['cpu_us']:7.1f}"
            )
        print(f"{'':14} against the pass-through: {_compared(row)}")


def _compared(row: dict[str, Any]) -> str:
    return f"rate x{row['rate_ratio']:.2f}, p50 x{row['p50_ratio']:.2f}, CPU x{row['cpu_ratio']:.2f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="per cell of the request table")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/gateway_overhead.json")
    arguments = parser.parse_args()
    figures = run(arguments.seconds)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    if arguments.save:
        save_record("gateway_overhead", figures, at_s=SystemClock().wall())


if __name__ == "__main__":
    main()
