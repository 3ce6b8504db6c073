"""Finding the model in a body: every byte but the value unchanged, nothing doubtful accepted."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import HotseatError, Invalid, NotFound
from scheduler.gateway.errors import BadRequest
from scheduler.gateway.scan import MAX_DEPTH, scan


def spliced(body: bytes, served: str = "served") -> bytes:
    return b"".join(scan(body).spliced(body, served))


def test_only_the_value_of_the_top_level_model_changes() -> None:
    body = b'{ "x" : {"model":"inner"}, "model"\t:\r\n"a/b" , "messages":[{"model":"deep"}],"n":1.50e+2}\n'
    assert spliced(body) == body.replace(b'"a/b"', b'"served"')
    assert scan(body).model == "a/b"


def test_a_served_name_is_escaped() -> None:
    assert json.loads(spliced(b'{"model":"a"}', 'q"\\\u00e9')) == {"model": 'q"\\\u00e9'}


@pytest.mark.parametrize(
    ("value", "model"),
    [(rb'"Qwen\/Qwen3"', "Qwen/Qwen3"), (rb'"\u0061b"', "ab"), ('"d\u00e9j\u00e0"'.encode(), "d\u00e9j\u00e0"), (b'"a b"', "a b")],
)
def test_escapes_in_the_value_are_read(value: bytes, model: str) -> None:
    body = b'{"model":' + value + b',"stream":true}'
    assert scan(body).model == model
    assert spliced(body) == b'{"model":"served","stream":true}'


def test_an_escaped_key_is_the_same_key() -> None:
    assert scan(rb'{"m\u006fdel":"a","str\u0065am":true}').stream is True


@pytest.mark.parametrize("first", [b'"model"', rb'"m\u006fdel"', rb'"\u006d\u006f\u0064\u0065\u006c"'])
def test_a_second_model_is_refused_however_it_is_written(first: bytes) -> None:
    with pytest.raises(BadRequest, match="second") as caught:
        scan(b"{" + first + b':"a","model":"b"}')
    assert (caught.value.code, caught.value.param) == ("invalid_json", "model")


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b'{"model":"a"}', False),
        (b'{"model":"a","stream":true}', True),
        (b'{"model":"a","stream": true }', True),
        (b'{"model":"a","stream":false}', False),
        (b'{"model":"a","stream":null}', False),
        (b'{"model":"a","stream":1}', False),
        (b'{"model":"a","stream":"true"}', False),
        (b'{"model":"a","x":{"stream":true}}', False),
        (b'{"model":"a","stream":true,"stream":false}', False),
    ],
)
def test_streaming_is_what_the_top_level_key_says(body: bytes, stream: bool) -> None:
    assert scan(body).stream is stream


def test_a_byte_order_mark_is_passed_on() -> None:
    assert spliced(b'\xef\xbb\xbf{"model":"a"}') == b'\xef\xbb\xbf{"model":"served"}'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "must be a JSON object"),
        (b'"model"', "must be a JSON object"),
        (b"nul", "expected a value at line 1, column 1 (byte 0)"),
        (b"{}", '"model" is missing'),
        (b'{"Model":"a"}', '"model" is missing'),
        (b'{"x":{"model":"a"}}', '"model" is missing'),
        (b'{"model":1}', "must be a string"),
        (b'{"model":null}', "must be a string"),
        (b'{"model":["a"]}', "must be a string"),
        (b'{"model":"a"', "ends where"),
        (b'{"model":"a', "ends inside a string"),
        (b'{"model":"a\\', "escape"),
        (b'{"model":"a",}', "expected a string at line 1, column 14 (byte 13)"),
        (b'{"model":"a"} {}', "behind the end of the object at line 1, column 15 (byte 14)"),
        (b'{"model":"a"}\x00', "behind the end"),
        (b'{\n "model":"a",\n "x":tru}', "expected a value at line 3, column 6 (byte 21)"),
        (b'{"model":"a","x":NaN}', "expected a value"),
        (b'{"model":"a","x":01}', 'expected "," or "}"'),
        (b'{"model":"a","x":1.}', 'expected "," or "}"'),
        (b'{"model":"a","x":+1}', "expected a value"),
        (b'{"model":"a","x":[1,]}', "expected a value at line 1, column 21 (byte 20)"),
        (b'{"model":"a","x":[1 2]}', 'expected "," or "]"'),
        (b'{"model":"a","x":{"y" 1}}', 'expected ":"'),
        (b'{"model":"a","x":[}', "expected a value"),
        (b'{"model":"a","x":"\t"}', "control character"),
        (b'{"model":"a","x":"\\x"}', "escape that JSON does not have"),
        (b"{model:1}", "expected a string"),
        (b"{'model':'a'}", "expected a string"),
        (b'{"model":"a"} // why', "behind the end"),
        (b'{"model":"\xff"}', "not UTF-8 at line 1, column 11 (byte 10)"),
        ('{"model":"a"}'.encode("utf-16"), "UTF-16"),
        ('{"model":"a"}'.encode("utf-16-le"), "expected a string"),
    ],
)
def test_bad_bodies_are_refused_with_the_place(body: bytes, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        scan(body)
    assert words in caught.value.message
    assert caught.value.code == "invalid_json"


def test_a_broken_byte_far_behind_is_named() -> None:
    body = b'{"model":"a","x":"' + "\u00e9".encode() * 700_000 + b'\xff"}'
    with pytest.raises(Invalid, match=rf"byte {body.index(0xFF)}\)"):
        scan(body)


@pytest.mark.parametrize("name", ["", "a" * 129, "\u00e9" * 1000])
def test_names_no_model_can_have_are_not_repeated(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        scan(json.dumps({"model": name}).encode())
    assert caught.value.code == "model_not_found"
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_bounded_without_recursion(opening: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return b'{"model":"a","x":' + opening * depth + b"1" + closing * depth + b"}"

    assert scan(nested(MAX_DEPTH)).model == "a"
    with pytest.raises(Invalid, match=f"deeper than {MAX_DEPTH}"):
        scan(nested(MAX_DEPTH + 1))
    with pytest.raises(Invalid, match="deeper"):
        scan(nested(1_000_000))


def _strict(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _expected(body: bytes) -> tuple[str, bool] | None:
    """What the standard library says about a body; None = refused."""
    try:
        pairs = json.loads(body.decode("utf-8-sig"), parse_constant=_strict, object_pairs_hook=lambda pairs: pairs)
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, list) or not body.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return None
    models = [value for key, value in pairs if key == "model"]
    if len(models) != 1 or not isinstance(models[0], str) or not 0 < len(models[0]) <= 128:
        return None
    streams = [value for key, value in pairs if key == "stream"]
    return models[0], bool(streams) and streams[-1] is True


def _agree(body: bytes) -> None:
    expected = _expected(body)
    try:
        call = scan(body)
    except HotseatError:
        assert expected is None, body
        return
    assert (call.model, call.stream) == expected
    assert json.loads(body[call.start : call.end]) == call.model


_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4), max_leaves=20
)
_bodies = st.fixed_dictionaries(
    {"model": st.text(min_size=1, max_size=10)}, optional={"stream": _leaves, "messages": _values, "x": _values, "mode": _values}
)


@given(_bodies, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_every_good_body_is_understood_as_the_standard_library_does(
    body: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    _agree(text)


@given(_bodies, st.data())
def test_every_broken_body_is_refused_as_the_standard_library_does(body: dict[str, Any], data: st.DataObject) -> None:
    text = bytearray(json.dumps(body).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        edit = data.draw(
            st.sampled_from([b"", b",", b"{", b"}", b"[", b"]", b'"', b":", b"\\", b"0", b"-", b"e", b"model", b"\x00", b"\xc3", b" "])
        )
        text[at : at + data.draw(st.integers(0, 2))] = edit
    _agree(bytes(text))


@pytest.mark.parametrize("shift", range(6))
@pytest.mark.parametrize(
    "number", [b"1.%b", b"-0.%be-7", b"%b.5e+%b", b"1.5E0%b", b"%b.", b"0%b", b"1.%be+1", b"1e%b.", b"1.%be", b"1.%be-", b"-%b.1e1%b"]
)
def test_a_number_longer_than_a_window_of_the_patterns(number: bytes, shift: int) -> None:
    for size in (65_530 + shift, 131_066 + shift):
        digits = number.replace(b"%b", b"1" * size)
        _agree(b'{"model":"m","n":' + digits + b"}")
        _agree(b'{"model":"m","n":[[[[[[' + digits + b' ]]]]]],"stream":true}')
    _agree(b'{"model":"m"' + b" " * (65_530 + shift) + b',"n":' + b"\n" * 140_000 + number.replace(b"%b", b"1") + b"}")


@settings(max_examples=20)
@given(st.integers(0, 9), st.sampled_from([b'"%s"', b"[%s]", b'{"a":%s}', b"[1,[2,[3,[%s]]]]"]))
def test_a_value_across_the_windows_of_the_patterns(shift: int, shape: bytes) -> None:
    """Patterns work on 64 KiB at a time; what lies across an edge must not be misread."""
    for filler in (b"1234567890,", b'"text\\n",', b'{"a":[true]},', b"-1.5e10,", b'"\\u00e9",'):
        inner = b"x" * (65_500 + shift) if shape == b'"%s"' else b" " * shift + filler * (140_000 // len(filler)) + b"1"
        _agree(b'{"model":"m","x":' + shape.replace(b"%s", inner) + b',"stream":true}')
    _agree(b'{"model":"m","n":1.' + b"1" * (65_535 - shift) + b"}")


def test_scanning_time_is_bounded() -> None:
    """Deep nesting is the one thing that is slow per byte; so much of it that it costs seconds is refused."""
    with pytest.raises(Invalid, match="deeply nested"):
        scan(b'{"model":"a","x":[' + b'[[[[[["x"]]]]]],' * 1_000_000 + b"1]}")


LARGE = 60 << 20


def _image_parts() -> bytes:
    part = json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "A" * 50_000}}]}] * 10)[1:-1].encode()
    return b'{"model":"a","messages":[' + (part + b",") * 120 + b"1]}"


@pytest.fixture(
    params=[
        _image_parts,
        lambda: b'{"model":"a"' + b" " * LARGE + b"}",
        lambda: b'{"model":"a","x":' + b"1" * LARGE + b"}",
        lambda: b'{"model":"a","x":[[[[[[[-0.' + b"1" * LARGE + b"]]]]]]]}",
        lambda: b'{"model":"a","' + b"k" * LARGE + b'":1}',
        lambda: b'{"model":"' + b"\\n" * (LARGE // 2) + b'"}',
        lambda: b'{"model":"a"' + b"\n" * LARGE + b"x",
    ],
    ids=["images", "blanks", "digits", "fraction", "key", "name", "lines"],
)
def largest_body(request: pytest.FixtureRequest) -> bytes:
    """Made here, because a test's own callbacks are watched as well."""
    body = request.param()
    assert isinstance(body, bytes)
    assert 56 << 20 < len(body) < 64 << 20
    return body


async def test_a_large_body_is_scanned_in_a_thread_without_stopping_the_loop(largest_body: bytes) -> None:
    """The interpreter lock is let go between patterns: the largest body there can be, and the loop keeps ticking."""
    with ThreadPoolExecutor(1) as threads:
        scanning = asyncio.get_running_loop().run_in_executor(threads, scan, largest_body)
        ticks = 0
        while not scanning.done():
            await asyncio.sleep(0.001)
            ticks += 1
        with suppress(HotseatError):  # some are refused, all are looked through
            assert (await scanning).model == "a"
    assert ticks > 5
