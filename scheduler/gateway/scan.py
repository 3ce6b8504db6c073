"""Find the top-level ``model`` of a JSON body, checking the whole body on the way. Pure.

Bodies pass through byte for byte, so the body is never decoded into objects: a scan with compiled patterns needs no
memory beyond the nesting depth, has no recursion to overflow, and can run in a thread without keeping the interpreter
lock for long (each pattern works on a window of the body). `json.loads` offers none of the three, nor positions of
values, nor a refusal of duplicate keys.
"""

import codecs
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.domain.errors import Invalid
from scheduler.gateway.errors import BadRequest, UnknownModel

#: Deeper nesting than any real request has; engines would fail on it in worse ways.
MAX_DEPTH = 512
#: Lists and objects that hold more levels than the patterns see at once are walked one by one; so many of them are no
#: request but an attempt to keep a processor busy.
MAX_DEEP = 250_000
MAX_NAME = 128
_WINDOW = 64 << 10
_BEFORE_DIGIT = 2  # so near to its end ("e+", and the digit not seen) a number may go on behind a window
_BOM = b"\xef\xbb\xbf"
_LONGEST_NAME = 12 * MAX_NAME + 2  # in quotes, each character written as two \\u escapes
_LONGEST_KEY = 64  # enough for "model" and "stream" written in \\u escapes

_WS = rb"[ \t\n\r]*+"
_NUMBER = rb"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+"
_PLAIN = rb"[ !#-\[\]-\xff]*+"  # all but quote, backslash and control characters
_CHARS = _PLAIN + rb'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})' + _PLAIN + rb")*+"
_STRING = rb'"' + _CHARS + rb'"'
_SCALAR = _STRING + rb"|" + _NUMBER + rb"|true|false|null"


def _nested(value: bytes) -> bytes:
    """The pattern for scalars, and for lists and objects whose elements match ``value``."""
    item = value + _WS + rb"(?:," + _WS + rb"(?!\])|(?=\]))"
    member = _STRING + _WS + rb":" + _WS + value + _WS + rb"(?:," + _WS + rb"(?!\})|(?=\}))"
    in_list = rb"\[" + _WS + rb"(?:" + item + rb")*+\]"
    in_object = rb"\{" + _WS + rb"(?:" + member + rb")*+\}"
    return rb"(?:" + _SCALAR + rb"|" + in_list + rb"|" + in_object + rb")"


# Deep enough for messages with parts (a list of objects with a list of objects with an object) in one go.
_value = rb"(?:" + _SCALAR + rb")"
for _ in range(4):
    _value = _nested(_value)

_skip_ws = re.compile(_WS).match
_chars = re.compile(_CHARS).match
_scalar = re.compile(_NUMBER + rb"|true|false|null").match
_digits = re.compile(rb"[0-9]*+").match
# Many small elements at once, each with the comma behind it: messages, arrays of token ids, flat objects.
_items = re.compile(rb"(?:" + _WS + _value + _WS + rb",)*+").match
_members = re.compile(rb"(?:" + _WS + _STRING + _WS + rb":" + _WS + _value + _WS + rb",)*+").match

# A whole member of the outermost object, where its value is not nested too deeply: nearly always.
_top_member = re.compile(_WS + rb"(" + _STRING + rb")" + _WS + rb":" + _WS + rb"(" + _value + rb")" + _WS).match

# The usual body in one go: one "model", at most one "stream", nothing nested too deeply.
_usual = re.compile(
    _WS
    + rb"\{"
    + _WS
    + (rb'(?:(?:"model"' + _WS + rb":" + _WS + rb"(" + _STRING + rb')|"stream"' + _WS + rb":" + _WS + rb"(true)|")
    + (_STRING + _WS + rb":" + _WS + _value + rb")" + _WS + rb"(?:," + _WS + rb"(?!\})|(?=\})))*+\}" + _WS)
).fullmatch

_QUOTE, _COMMA, _COLON, _BACKSLASH = b'",:\\'
_MINUS, _ZERO, _POINT = b"-0."
_EXPONENT, _SIGNS = frozenset(b"eE"), frozenset(b"+-")
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"
_CLOSER = {_OPEN_LIST: _CLOSE_LIST, _OPEN_OBJECT: _CLOSE_OBJECT}


@dataclass(frozen=True, slots=True)
class Call:
    """What a body asks for: the model as named, where that value stands in the bytes, and whether to stream."""

    model: str
    start: int
    end: int
    stream: bool

    def spliced(self, body: bytes, served_model: str) -> tuple[bytes | memoryview, ...]:
        """The body with the model value replaced, as parts to send; nothing is copied but the new value."""
        view = memoryview(body)
        return view[: self.start], json.dumps(served_model).encode(), view[self.end :]


def scan(body: bytes) -> Call:
    """Check a body and find its model.

    Raises Invalid (invalid_json) naming the position, or the missing, doubled or mistyped ``model``;
    UnknownModel (model_not_found) for a name no model can have.
    """
    _check_utf8(body)
    start, end, stream = _at_once(body) or _Scanner(body).top_level()
    model = _text(body[start:end]) if end - start <= _LONGEST_NAME else None
    if not model or len(model) > MAX_NAME:
        what = "is empty" if model == "" else f"has more than {MAX_NAME} characters, which no name has"
        raise UnknownModel(f'The value of "model" {what}.')
    return Call(model, start, end, stream)


def _at_once(body: bytes) -> tuple[int, int, bool] | None:
    """What ``top_level`` would find, three times faster; None for any body that is not plainly the usual one."""
    if len(body) > _WINDOW or body.count(b'"model"') != 1 or body.count(b'"stream"') > 1 or b"\\u00" in body:
        return None
    found = _usual(body)
    if found is None or found.start(1) < 0:
        return None
    return found.start(1), found.end(1), found.start(2) >= 0


def _check_utf8(body: bytes) -> None:
    if body.isascii():
        return
    if body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Invalid("The request body is UTF-16 or UTF-32; send UTF-8.", code="invalid_json")
    decoder = codecs.getincrementaldecoder("utf-8")()
    pos = 0
    while pos < len(body):
        pending = len(decoder.getstate()[0])
        piece = body[pos : pos + (1 << 20)]
        try:
            decoder.decode(piece, final=pos + len(piece) == len(body))
        except UnicodeDecodeError as error:
            raise _bad(body, pos - pending + error.start, "a byte that is not UTF-8") from None
        pos += len(piece)


def _bad(body: bytes, pos: int, what: str) -> Invalid:
    return Invalid(f"The request body is not valid JSON: {what} at {_place(body, pos)}.", code="invalid_json")


def _place(body: bytes, pos: int) -> str:
    line = 1 + sum(body.count(b"\n", at, min(at + _WINDOW, pos)) for at in range(0, pos, _WINDOW))
    column = pos - body.rfind(b"\n", 0, pos)
    return f"line {line}, column {column} (byte {pos})"


def _key_name(body: bytes, start: int, end: int) -> str:
    """A key in quotes as text; "" when it is too long to be one we look for."""
    return _text(body[start:end]) if end - start <= _LONGEST_KEY else ""


def _text(raw: bytes) -> str:
    """A string in quotes as text."""
    return str(json.loads(raw)) if b"\\" in raw else raw[1:-1].decode()


class _Scanner:
    """One pass over one body."""

    __slots__ = ("_body", "_deep", "_size")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._deep = 0
        self._size = len(body)

    def top_level(self) -> tuple[int, int, bool]:
        """Walk the outermost object; returns the span of the model value and whether to stream."""
        body = self._body
        pos = self._ws(len(_BOM) if body.startswith(_BOM) else 0)
        if pos == self._size:
            raise Invalid("The request body is empty; send a JSON object.", code="invalid_json")
        if body[pos] != _OPEN_OBJECT:
            self._value(pos)  # say where it is broken, if it is not JSON at all
            raise Invalid("The request body must be a JSON object.", code="invalid_json")
        span: tuple[int, int] | None = None
        stream = False
        pos = self._ws(pos + 1)
        more = self._at(pos) != _CLOSE_OBJECT
        while more:
            key, start, end = self._member(pos)
            if key == "model":
                span = self._model(start, end, doubled=span is not None)
            elif key == "stream":
                stream = body.startswith(b"true", start, end)
            pos = self._ws(end)
            more = self._at(pos) == _COMMA
            pos = self._ws(pos + 1) if more else pos
        if self._at(pos) != _CLOSE_OBJECT:
            raise self._expected(pos, '"," or "}"')
        pos = self._ws(pos + 1)
        if pos < self._size:
            raise _bad(body, pos, "something behind the end of the object")
        if span is None:
            raise BadRequest('The request body names no model: the key "model" is missing.', param="model")
        return *span, stream

    def _member(self, pos: int) -> tuple[str, int, int]:
        """Key of the member at ``pos`` ("" when it is none we look for), and the span of its value."""
        limit = min(pos + _WINDOW, self._size)
        found = _top_member(self._body, pos, limit)
        if found is not None and found.end() < limit - _BEFORE_DIGIT:
            start, end = found.span(2)
            return _key_name(self._body, *found.span(1)), start, end
        key, start = self._key(pos)
        return key, start, self._value(start)

    def _model(self, start: int, end: int, *, doubled: bool) -> tuple[int, int]:
        if doubled:
            where = _place(self._body, start)
            raise BadRequest(f'The request body has a second "model" at {where}; which of the two is meant cannot be told.', param="model")
        if self._body[start] != _QUOTE:
            raise BadRequest('The value of "model" must be a string.', param="model")
        return start, end

    def _at(self, pos: int) -> int:
        return self._body[pos] if pos < self._size else -1

    def _ws(self, pos: int) -> int:
        if pos < self._size and self._body[pos] > 32:
            return pos
        return self._run(_skip_ws, pos)

    def _run(self, match: Callable[[bytes, int, int], re.Match[bytes] | None], pos: int) -> int:
        """Behind everything from ``pos`` on that a repeated pattern matches, window by window."""
        while True:
            limit = min(pos + _WINDOW, self._size)
            found = match(self._body, pos, limit)
            end = found.end() if found is not None else pos
            if end < limit or end == pos:
                return end
            pos = end

    def _expected(self, pos: int, what: str) -> Invalid:
        if pos >= self._size:
            return _bad(self._body, self._size, f"it ends where {what} should be")
        return _bad(self._body, pos, f"expected {what}")

    def _string(self, pos: int) -> int:
        """Behind the string that opens at ``pos``."""
        if self._at(pos) != _QUOTE:
            raise self._expected(pos, "a string")
        pos += 1
        while True:
            found = _chars(self._body, pos, min(pos + _WINDOW, self._size))
            end = found.end() if found is not None else pos
            if self._at(end) == _QUOTE:
                return end + 1
            if end == pos:
                raise self._broken_string(pos)
            pos = end

    def _broken_string(self, pos: int) -> Invalid:
        if pos >= self._size:
            return _bad(self._body, pos, "it ends inside a string")
        if self._body[pos] == _BACKSLASH:
            return _bad(self._body, pos, "an escape that JSON does not have")
        return _bad(self._body, pos, "a control character inside a string")

    def _key(self, pos: int) -> tuple[str, int]:
        """The key at ``pos`` ("" when it is none we look for) and where its value starts."""
        end = self._string(pos)
        colon = self._ws(end)
        if self._at(colon) != _COLON:
            raise self._expected(colon, '":"')
        return _key_name(self._body, pos, end), self._ws(colon + 1)

    def _value(self, pos: int) -> int:
        """Behind the value that starts at ``pos``; nesting is kept on a list, not on the call stack."""
        open_: list[int] = []
        while True:
            first = self._at(pos)
            if first in _CLOSER:
                open_.append(first)
                self._deep += 1
                if len(open_) > MAX_DEPTH:
                    raise _bad(self._body, pos, f"nesting deeper than {MAX_DEPTH} levels")
                if self._deep > MAX_DEEP:
                    raise _bad(self._body, pos, f"more than {MAX_DEEP} deeply nested lists and objects")
                pos = self._ws(pos + 1)
                if self._at(pos) != _CLOSER[first]:
                    pos = self._next_value(pos, first)
                    continue
            else:
                pos = self._leaf(pos, first)
            inner = self._close(pos, open_)
            if inner < 0:
                return ~inner
            pos = inner

    def _close(self, pos: int, open_: list[int]) -> int:
        """After a value: close what ends here. The start of the next value, or ``~end`` when all is closed."""
        while open_:
            pos = self._ws(pos)
            sign = self._at(pos)
            if sign == _COMMA:
                return self._next_value(self._ws(pos + 1), open_[-1])
            if sign != _CLOSER[open_[-1]]:
                raise self._expected(pos, f'"," or "{chr(_CLOSER[open_[-1]])}"')
            open_.pop()
            pos += 1
        return ~pos

    def _next_value(self, pos: int, container: int) -> int:
        """Where the next value starts that is not part of a run of small elements."""
        run = _items if container == _OPEN_LIST else _members
        while True:
            found = run(self._body, pos, min(pos + _WINDOW, self._size))
            end = found.end() if found is not None else pos
            if end == pos:
                break
            pos = end
        pos = self._ws(pos)
        return pos if container == _OPEN_LIST else self._key(pos)[1]

    def _leaf(self, pos: int, first: int) -> int:
        if first == _QUOTE:
            return self._string(pos)
        limit = min(pos + _WINDOW, self._size)
        found = _scalar(self._body, pos, limit)
        if found is None:
            raise self._expected(pos, "a value")
        whole = found.end() < limit - _BEFORE_DIGIT or limit == self._size
        return found.end() if whole else self._long_number(pos)

    def _long_number(self, pos: int) -> int:
        """Behind a number that fills a window; what ``_NUMBER`` says, in steps."""
        pos += self._at(pos) == _MINUS
        pos = pos + 1 if self._at(pos) == _ZERO else self._run(_digits, pos)
        if self._at(pos) == _POINT:
            end = self._run(_digits, pos + 1)
            if end == pos + 1:
                return pos
            pos = end
        if self._at(pos) not in _EXPONENT:
            return pos
        start = pos + 2 if self._at(pos + 1) in _SIGNS else pos + 1
        end = self._run(_digits, start)
        return end if end > start else pos
