"""Two times of the gateway that are no matter of throughput, each beside a baseline of the same run.

    python -m benchmarks.gateway_body [--json]

*Scan*: finding model and stream flag in a body, against ``json.loads`` of the same body. *Client gone*: from the moment
a client closes its connection until the engine sees its own closed, against the same without a gateway in between.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from aiohttp import web

from benchmarks.common import percentile, save_record
from scheduler.gateway.scan import scan
from tests.support.gateway_rig import ChatEngine, RawClient, begin_stream, chunk, engine, gateway, new_desk

RUNS = 40
GONE_LIMIT_MS = 1000.0
CHAT = "/v1/chat/completions"


def chat_of(mebibytes: int) -> bytes:
    """A conversation of ordinary text of about this size."""
    text = "A line of ordinary text with a \n break and some \u00fcnicode. " * 10
    messages = [{"role": "user", "content": text}] * (1700 * mebibytes)
    return json.dumps({"model": "a", "messages": messages, "stream": True}, ensure_ascii=False).encode()


def least_ms(work: Callable[[bytes], object], body: bytes) -> float:
    """CPU milliseconds of the fastest of seven runs."""
    taken = []
    for _ in range(7):
        begin = time.process_time()
        work(body)
        taken.append((time.process_time() - begin) * 1000)
    return min(taken)


def measure_scan() -> dict[str, Any]:
    """Both readers on bodies of 1 and 16 MiB."""
    found = {}
    for size in (1, 16):
        body = chat_of(size)
        ours, theirs = least_ms(scan, body), least_ms(json.loads, body)
        found[f"{size} MiB"] = {"scan_ms": round(ours, 2), "json_loads_ms": round(theirs, 2), "ratio": round(ours / theirs, 2)}
    return found


async def _stream_without_end(request: web.Request, chat: ChatEngine) -> web.StreamResponse:
    response = await begin_stream(request)
    await response.write(chunk("m", "one"))
    await chat.go_on.wait()
    return response


async def _gone_ms(url: str, chat: ChatEngine) -> float:
    chat.cancelled.clear()
    client = await RawClient.connect(url)
    client.post(CHAT, json.dumps({"model": "m", "stream": True, "messages": []}).encode())
    await client.head()
    await client.chunk()
    begin = time.perf_counter()
    client.writer.close()
    await chat.cancelled.wait()
    return (time.perf_counter() - begin) * 1000


async def measure_gone() -> dict[str, Any]:
    """Alternating with and without the gateway."""
    desk = new_desk()
    async with engine(_stream_without_end) as (chat, engine_url), gateway(desk) as url:
        desk.add("m", engine_url)
        pairs = [(await _gone_ms(url, chat), await _gone_ms(engine_url, chat)) for _ in range(RUNS)]
    through, direct = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    figures = {"gateway_median": median(through), "gateway_max": max(through), "direct_median": median(direct)}
    return {f"{name}_ms": round(value, 3) for name, value in figures.items()} | {"p99_ms": round(percentile(through, 0.99), 3)}


def main() -> int:
    """Print the figures and keep the record; 1 when a closed connection takes a second to be passed on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = {"scan": measure_scan(), "client_gone": asyncio.run(measure_gone())}
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        for size, row in result["scan"].items():
            print(f"scan of {size}: " + "  ".join(f"{name} {value}" for name, value in row.items()))
        print("client gone: " + "  ".join(f"{name} {value}" for name, value in result["client_gone"].items()))
    save_record("gateway_body", result, at_s=time.time())
    return 0 if result["client_gone"]["gateway_max_ms"] < GONE_LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
