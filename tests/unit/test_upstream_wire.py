"""HTTP/1.1 responses in pieces of any size; anything odd is an error, never a guess."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.upstream.wire import MAX_HEAD_BYTES, ResponseParser, WireError, request_head

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;ext=1\r\n \r\n0B\r\nworld\r\n\r\n\r\n\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nX-A: 1\r\nX-A: 2\r\n\r\nhello"
TO_EOF = b"HTTP/1.0 200 OK\r\n\r\nhello"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED
EMPTY = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


def parse(data: bytes, cuts: list[int] | None = None) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    body = b"".join(b"".join(parser.feed(data[start:end])) for start, end in pairwise(edges) if end > start)
    parser.eof()
    return parser, body


@given(st.sampled_from([CHUNKED, SIZED, TO_EOF, INTERIM, EMPTY]), st.lists(st.integers(0, 10_000), max_size=12))
def test_cutting_the_bytes_anywhere_changes_nothing(data: bytes, cuts: list[int]) -> None:
    whole, whole_body = parse(data)
    cut, cut_body = parse(data, cuts)
    assert (cut.status, cut.headers, cut_body, cut.done, cut.reusable) == (whole.status, whole.headers, whole_body, True, whole.reusable)


@pytest.mark.parametrize(
    ("data", "status", "body", "reusable"),
    [
        (CHUNKED, 200, b"hello world\r\n\r\n\r\n", True),
        (SIZED, 404, b"hello", True),
        (TO_EOF, 200, b"hello", False),
        (INTERIM, 404, b"hello", True),
        (EMPTY, 204, b"", False),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nok", 200, b"ok", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 200, b"ok", True),
    ],
)
def test_what_a_response_is(data: bytes, status: int, body: bytes, reusable: bool) -> None:
    parser, found = parse(data)
    assert (parser.status, found, parser.done, parser.reusable) == (status, body, True, reusable)


@pytest.mark.parametrize("data", [CHUNKED, SIZED, INTERIM])
def test_a_response_that_ends_early_is_never_complete(data: bytes) -> None:
    for end in range(len(data)):
        parser = ResponseParser()
        if end:
            parser.feed(data[:end])
        assert parser.begun is (end > 0)
        assert parser.eof() is False


def test_a_body_without_a_length_says_so() -> None:
    parser, _ = parse(TO_EOF)
    assert (parser.ends_by_close, parser.length) == (True, None)
    parser, _ = parse(SIZED)
    assert (parser.ends_by_close, parser.length) == (False, 5)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 X\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: empty name\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\nB: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Bell: \a\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: ２\r\n\r\n".encode(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_anything_odd_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        parse(data)


@given(st.sampled_from([CHUNKED, SIZED, INTERIM, EMPTY]), st.sampled_from([b"\r\n", SIZED]), st.lists(st.integers(0, 10_000), max_size=3))
def test_bytes_behind_a_response_spoil_the_connection_and_not_the_response(data: bytes, stray: bytes, cuts: list[int]) -> None:
    whole, whole_body = parse(data)
    parser, body = parse(data + stray, cuts)
    assert (parser.status, body, parser.done, parser.reusable) == (whole.status, whole_body, True, False)


def test_body_before_an_error_in_the_same_read_is_kept() -> None:
    with pytest.raises(WireError, match="not a chunk size") as caught:
        parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n")
    assert caught.value.pieces == [b"hello"]


def test_a_request_head_cannot_be_broken_out_of() -> None:
    assert (
        request_head("POST", "/v1/x?a=1", [("Host", "h"), ("X-A", "caf\u00e9")])
        == "POST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nX-A: caf\u00e9\r\n\r\n".encode()
    )
    for target, value in [("/x y", "1"), ("/x", "1\r\nEvil: 2"), ("/x", "1\n"), ("/x", "1\r"), ("/x\r\n", "1"), ("/x", "\0")]:
        with pytest.raises(ValueError, match="line break"):
            request_head("POST", target, [("X-A", value)])
