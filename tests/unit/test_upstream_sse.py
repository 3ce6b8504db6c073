"""Events pass whole; the one that says ``finish_reason: "abort"`` does not; tokens are counted without parsing answers."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.upstream.meter import TAIL_BYTES, TAIL_READS, Tail, Tokens, tokens_in
from scheduler.upstream.sse import MAX_EVENT_BYTES, EventGate, is_aborted, tells_error

ONE = b'data: {"choices":[{"index":0,"delta":{"content":"please abort\\" it"},"finish_reason":null}]}\n\n'
ABORT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason": "abort"}]}\n\n'
CRLF = b': ping\r\n\r\ndata: {"a":1}\r\ndata: 2\r\n\r\n'
DONE = b"data: [DONE]\n\n"


def feed(data: bytes, cuts: list[int]) -> tuple[list[bytes], EventGate]:
    gate = EventGate()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out: list[bytes] = []
    for start, end in pairwise(edges):
        if end > start and not gate.aborted:
            out.append(gate.feed(data[start:end]))
    if not gate.aborted:
        out.append(gate.flush())
    return [part for part in out if part], gate


cut_lists = st.lists(st.integers(0, 5000), max_size=10)


ENDS = [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\r\n\r", b"\n\r"]


@given(
    st.lists(st.sampled_from([ONE, CRLF, DONE, *(b"data: x" + end for end in ENDS)]), max_size=6),
    st.sampled_from([b"", b"data: unfinished"]),
    cut_lists,
)
def test_everything_passes_unchanged_and_in_whole_events(events: list[bytes], rest: bytes, cuts: list[int]) -> None:
    data = b"".join(events) + rest
    out, gate = feed(data, cuts)
    assert b"".join(out) == data
    assert not gate.aborted
    for part in out[:-1]:
        assert part.endswith(tuple(ENDS))


@given(st.lists(st.sampled_from([ONE, CRLF]), max_size=4), st.sampled_from([b"", DONE, ONE + DONE]), cut_lists)
def test_nothing_from_the_abort_on_passes(before: list[bytes], after: bytes, cuts: list[int]) -> None:
    out, gate = feed(b"".join(before) + ABORT + after, cuts)
    assert gate.aborted
    assert not gate.midway
    assert b"".join(out) == b"".join(before)


def test_an_abort_without_its_blank_line_is_seen_at_the_end() -> None:
    out, gate = feed(ONE + ABORT.rstrip(), [])
    assert gate.aborted
    assert out == [ONE]


def test_whole_events_are_not_delayed() -> None:
    gate = EventGate()
    assert gate.feed(ONE) == ONE
    assert gate.feed(ONE[:30]) == b""
    assert gate.feed(ONE[30:] + CRLF + b"da") == ONE + CRLF
    assert gate.feed(b"ta: 1\n") == b""
    assert gate.feed(b"\n") == b"data: 1\n\n"


def test_an_endless_event_is_not_kept_in_memory() -> None:
    gate = EventGate()
    piece = b"x" * 60_000
    passed = sum(len(gate.feed(piece)) for _ in range(40))
    assert passed >= 40 * 60_000 - MAX_EVENT_BYTES
    assert len(gate.feed(b"x" * (MAX_EVENT_BYTES + 1))) > MAX_EVENT_BYTES
    assert gate.midway
    assert gate.feed(b"\n\n" + ONE) == b"\n\n" + ONE
    assert not gate.midway


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_an_event_passes_as_soon_as_its_blank_line_is_there(end: bytes, cut: int) -> None:
    gate = EventGate()
    passed = gate.feed(b"data: 1" + end[:cut]) + gate.feed(end[cut:] + b"data: 2")
    assert passed.startswith(b"data: 1")
    assert passed[7:] in ENDS  # a CR ends the line, even if its LF comes with the next read
    assert end.startswith(passed[7:])


@pytest.mark.parametrize(("end", "midway"), [(b"x", True), (b"\n", True), (b"\r\n", True), (b"\n\ndata: 2", False), (b"\r\r", False)])
def test_an_oversized_event_is_midway_until_its_end_has_passed(end: bytes, midway: bool) -> None:
    gate = EventGate()
    assert gate.feed(b"x" * (MAX_EVENT_BYTES + 1))
    gate.feed(end)
    assert gate.midway is midway


def test_an_oversized_event_that_is_aborted_stays_midway() -> None:
    gate = EventGate()
    assert gate.feed(b"x" * (MAX_EVENT_BYTES + 1))
    assert gate.feed(ABORT) == b""
    assert (gate.aborted, gate.midway) == (True, True)


def test_the_end_of_an_oversized_event_may_lie_across_two_reads() -> None:
    gate = EventGate()
    assert gate.feed(b"x" * MAX_EVENT_BYTES + b"\n")
    assert gate.feed(b"\ndata: 2") == b"\n"
    assert not gate.midway


def test_a_read_of_a_large_event_does_not_touch_the_ones_before_it() -> None:
    """Else an event of 1 MiB in small reads is copied and searched a thousand times."""
    gate = EventGate()
    for _ in range(1000):
        gate.feed(b"x" * 1000)
    tracemalloc.start()
    try:
        gate.feed(b"x" * 1000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert len(gate.feed(b"\n\n")) == 1_001_002


@pytest.mark.parametrize(
    ("body", "aborted"),
    [
        (b'{"choices":[{"finish_reason":"abort"}]}', True),
        (b'{"choices":[{"finish_reason" :\n "abort"}]}', True),
        (b'{"choices":[{"finish_reason":"stop"}]}', False),
        (json.dumps({"choices": [{"finish_reason": "stop", "text": '"finish_reason":"abort"'}]}).encode(), False),
        (json.dumps({"choices": [{"finish_reason": "stop", "text": "abort"}]}).encode(), False),
        (b'{"reason":"abort"}', False),
    ],
)
def test_generated_text_cannot_look_like_an_abort(body: bytes, aborted: bool) -> None:
    assert is_aborted(body) is aborted


@pytest.mark.parametrize(
    ("last", "failed"),
    [
        (b'data: {"error": {"message": "x"}}\n\n', True),
        (b'data:{"error":{"message":"x"}}\r\n\r\n', True),
        (b'data: { "error" : "x" }\n\n', True),
        (b'data: {"id":"c1","error":{"message":"x"},"choices":[]}\n\n', True),
        (b'data: {"object":"error","message":"x","code":400}\n\n', True),
        (b'error: {"code":500,"message":"x"}\n\n', True),
        (b'event: error\ndata: {"message":"x"}\n\n', True),
        (b"event:error\rdata: x\r\r", True),
        (b'data: {"error":null,"choices":[]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"data: {\\"error\\": 1}"}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"\\nerror: x\\nevent: error"}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"tool":{"error":"x"}}}]}\n\n', False),
        (b": error\n\n", False),
        (b"error\n\n", False),
        (b'data: {"error": "half\n\n', False),
        (b'data: ["error"]\n\n', False),
    ],
)
def test_an_error_event_is_known_in_every_spelling_and_never_in_generated_text(last: bytes, failed: bool) -> None:
    assert tells_error(ONE + last + DONE) is failed


@pytest.mark.parametrize(
    ("blob", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":7,"completion_tokens":3}}', Tokens(prompt=7, completion=3)),
        (b'{"usage": {"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens":3}}', Tokens(7, 5, 3)),
        (b'{"usage":{"prompt_tokens":7,"prompt_tokens_details":null,"total_tokens":7}}', Tokens(prompt=7)),
        (b'{"usage":{"input_tokens":7,"output_tokens":2,"input_tokens_details":{"cached_tokens":1}}}', Tokens(7, 1, 2)),
        (b'{"timings":{"cache_n":10,"prompt_n":2,"predicted_n":4,"prompt_ms":1.5}}', Tokens(12, 10, 4)),
        (b'{"timings":{"prompt_n":2,"predicted_n":4},"usage":{"prompt_tokens":1,"completion_tokens":1}}', Tokens(prompt=1, completion=1)),
        (
            b'data: {"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
            Tokens(1, None, 2),
        ),
        (b'data: {"usage":{"prompt_tokens":1,"completion_tokens":9}}\n\ndata: {"usage":null}\n\ndata: [DONE]\n\n', Tokens(1, None, 9)),
        (json.dumps({"text": '"usage":{"prompt_tokens":666}'}).encode(), Tokens()),
        (b'{"usage":{"prompt_tokens":-1,"completion_tokens":true}}', Tokens()),
        (b'{"usage":{"prompt_tokens":"7","completion_tokens":1.5}}', Tokens()),
        (b'{"usage":[1]}', Tokens()),
        (b'{"usage":{"prompt_tok', Tokens()),
        (b'"usage"', Tokens()),
        (b'"usage":' * 100, Tokens()),
        (b'{"usage":' + b'{"a":' * 1600, Tokens()),
        (b"", Tokens()),
    ],
)
def test_tokens_are_what_the_engine_said(blob: bytes, tokens: Tokens) -> None:
    assert tokens_in(blob) == tokens


@pytest.mark.parametrize(("size", "kept"), [(100_000, TAIL_READS), (TAIL_BYTES // 8, 8), (1, TAIL_BYTES)])
def test_the_tail_of_a_stream_keeps_the_last_reads_and_more_of_small_ones(size: int, kept: int) -> None:
    tail = Tail()
    reads = [b"%d" % (number % 10) * size for number in range(2 * kept)]
    for read in reads:
        tail.add(read)
    assert tail.blob() == b"".join(reads[-kept:])
