"""Token counts from what engines say, without parsing whole answers."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

#: How far back the last event with ``usage`` is looked for: this many reads, and more while they are small.
TAIL_READS = 4
TAIL_BYTES = 16 << 10
#: A usage object is small; more than this is not one.
MAX_OBJECT_BYTES = 8 << 10

_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts of one answer; None = the engine did not say."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None


UNKNOWN = Tokens()


class Tail:
    """Keeps the last reads of a stream by reference, TAIL_READS of them and TAIL_BYTES; costs next to nothing per chunk."""

    __slots__ = ("_bytes", "_reads")

    def __init__(self) -> None:
        self._reads: deque[bytes] = deque()
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Remember a read."""
        reads = self._reads
        reads.append(data)
        self._bytes += len(data)
        while len(reads) > TAIL_READS and self._bytes - len(reads[0]) >= TAIL_BYTES:
            self._bytes -= len(reads.popleft())

    def blob(self) -> bytes:
        """The last reads, joined."""
        return b"".join(self._reads)


def tokens_in(blob: bytes) -> Tokens:
    """Counts from the last ``usage`` object in an answer or the tail of a stream, else from llama.cpp's ``timings``."""
    usage = _last_object(blob, b'"usage"')
    if usage is not None:
        found = _from_usage(usage)
        if found != UNKNOWN:
            return found
    timings = _last_object(blob, b'"timings"')
    return UNKNOWN if timings is None else _from_timings(timings)


def _from_usage(usage: Mapping[str, object]) -> Tokens:
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    return Tokens(
        prompt=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        cached=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        completion=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
    )


def _from_timings(timings: Mapping[str, object]) -> Tokens:
    processed, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
    prompt = None if processed is None else processed + (cached or 0)
    return Tokens(prompt=prompt, cached=cached, completion=_count(timings.get("predicted_n")))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _last_object(blob: bytes, key: bytes) -> Mapping[str, object] | None:
    """The object behind the last ``key`` that has one. Generated text cannot fake it: its quotes are escaped."""
    end = len(blob)
    for _ in range(TAIL_READS * 4):  # `"usage": null` in later events is common, a thousand of them are not
        at = blob.rfind(key, 0, end)
        if at < 0:
            return None
        value = _object_at(blob[at + len(key) : at + len(key) + MAX_OBJECT_BYTES])
        if value is not None:
            return value
        end = at
    return None


def _object_at(piece: bytes) -> Mapping[str, object] | None:
    text = piece.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text.startswith(":"):
        return None
    try:
        value, _ = _DECODER.raw_decode(text[1:].lstrip(" \t\r\n"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
