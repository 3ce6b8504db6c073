"""HTTP/1.1 on the wire, the half a client needs: request heads out, response bytes in. Pure; no I/O.

Why not a library: the relay has to know exactly whether an engine sent a single byte, must pass bodies on without
copying or decoding them, and spends most of its time here. Engines are ours and on loopback, so the grammar is kept
strict: anything odd is a :class:`WireError`, never a guess.
"""

import re
from collections.abc import Iterable
from enum import Enum, auto

Headers = list[tuple[str, str]]

MAX_HEAD_BYTES = 64 << 10
MAX_CHUNK_LINE_BYTES = 4 << 10

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # aiohttp would refuse to pass such a header on
_BODILESS = frozenset({204, 304})


class WireError(Exception):
    """What arrived is not a well-formed HTTP/1.1 response. ``pieces``: the body that came before it in the same read."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.pieces: list[bytes] = []


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()  # a body with Content-Length
    CHUNK_LINE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()  # the CRLF behind a chunk
    TRAILER = auto()
    TO_EOF = auto()  # a body that ends with the connection
    DONE = auto()


def request_head(method: str, target: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """The head of a request, blank line included. Raises ValueError when a part would break the framing."""
    lines = [f"{method} {target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text or " " in target:
        raise ValueError("a request line or header holds a line break, NUL or blank where none may be")
    return (text + "\r\n\r\n").encode("utf-8", "surrogateescape")


class ResponseParser:
    """Parses one response, fed in pieces of any size. Interim (1xx) responses are skipped.

    ``begun`` turns true with the first byte; ``status`` is 0 until the head is complete; ``done`` once the whole message
    has arrived. ``length`` is the announced size of the body, None when it has none; ``ends_by_close`` means that only
    the end of the connection ends the body, so that a cut cannot be told from it; ``reusable`` says whether the
    connection may carry another request afterwards: not when bytes follow the message, which are dropped.
    """

    __slots__ = ("_buffer", "_left", "_state", "begun", "ends_by_close", "headers", "length", "reusable", "status")

    def __init__(self) -> None:
        self.begun = False
        self.status = 0
        self.headers: Headers = []
        self.reusable = False
        self.length: int | None = None
        self.ends_by_close = False
        self._state = _State.HEAD
        self._left = 0
        self._buffer = b""

    @property
    def done(self) -> bool:
        """Whether the message is complete."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes from the engine; returns the pieces of body in them. Raises WireError, which has them too."""
        self.begun = True
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        pieces: list[bytes] = []
        pos = 0
        while pos < len(data):
            if self._state is _State.DONE:  # the message is whole and good, whatever stands behind it
                self.reusable = False
                break
            try:
                step = self._step(data, pos, pieces)
            except WireError as error:
                error.pieces = pieces
                raise
            if step < 0:
                self._buffer = data[pos:] if pos else data
                break
            pos = step
        return pieces

    def eof(self) -> bool:
        """The engine closed its side; returns whether the message is complete now."""
        if self._state is _State.TO_EOF:
            self._state = _State.DONE
        return self.done

    def _step(self, data: bytes, pos: int, pieces: list[bytes]) -> int:
        """Consume one element; returns the next position, or -1 when more bytes are needed."""
        state = self._state
        if state is _State.CHUNK_LINE:
            return self._chunk_line(data, pos)
        if state is _State.CHUNK_DATA or state is _State.LENGTH:
            end = min(pos + self._left, len(data))
            pieces.append(data[pos:end])
            self._left -= end - pos
            if self._left == 0:
                self._state = _State.CHUNK_END if state is _State.CHUNK_DATA else _State.DONE
            return end
        if state is _State.CHUNK_END:
            return self._chunk_end(data, pos)
        if state is _State.TO_EOF:
            pieces.append(data[pos:] if pos else data)
            return len(data)
        if state is _State.HEAD:
            return self._head(data, pos)
        return self._trailer(data, pos)

    def _chunk_line(self, data: bytes, pos: int) -> int:
        end = data.find(b"\r\n", pos)
        if end < 0:
            if len(data) - pos > MAX_CHUNK_LINE_BYTES:
                raise WireError("a chunk size line that does not end")
            return -1
        digits = data[pos:end].partition(b";")[0].strip(b" \t")
        if not digits or len(digits) > 16 or not digits.isalnum():
            raise WireError(f"not a chunk size: {digits[:20]!r}")
        try:
            self._left = int(digits, 16)
        except ValueError:
            raise WireError(f"not a chunk size: {digits[:20]!r}") from None
        self._state = _State.CHUNK_DATA if self._left else _State.TRAILER
        return end + 2

    def _chunk_end(self, data: bytes, pos: int) -> int:
        if len(data) - pos < 2:
            return -1
        if data[pos : pos + 2] != b"\r\n":
            raise WireError("a chunk longer than its announced size")
        self._state = _State.CHUNK_LINE
        return pos + 2

    def _trailer(self, data: bytes, pos: int) -> int:
        end = data.find(b"\r\n", pos)
        if end < 0:
            if len(data) - pos > MAX_HEAD_BYTES:
                raise WireError("a trailer line that does not end")
            return -1
        if end == pos:
            self._state = _State.DONE
        return end + 2  # trailer fields are dropped: nobody announced them to our client

    def _head(self, data: bytes, pos: int) -> int:
        end = data.find(b"\r\n\r\n", pos)
        if (len(data) if end < 0 else end) - pos > MAX_HEAD_BYTES:
            raise WireError(f"a response head of more than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            return -1
        lines = data[pos:end].decode("utf-8", "replace").split("\r\n")
        version, status = _status_line(lines[0])
        headers = [_field(line) for line in lines[1:]]
        if status >= 200:
            self.status, self.headers = status, headers
            self._frame(version)
        elif status == 101:
            raise WireError("the engine switched protocols, which nobody asked for")
        return end + 4

    def _frame(self, version: str) -> None:
        """Where the body ends, and whether the connection outlives it (RFC 9112 section 6)."""
        fields: dict[str, list[str]] = {}
        for name, value in self.headers:
            fields.setdefault(name.lower(), []).append(value)
        options = {part.strip().lower() for value in fields.get("connection", []) for part in value.split(",")}
        self.reusable = "close" not in options and (version == "HTTP/1.1" or "keep-alive" in options)
        encodings = [part.strip().lower() for value in fields.get("transfer-encoding", []) for part in value.split(",")]
        lengths = {part.strip() for value in fields.get("content-length", []) for part in value.split(",")}
        if self.status in _BODILESS:
            self._state = _State.DONE
        elif encodings:
            if encodings != ["chunked"] or lengths:
                raise WireError(f"cannot tell where the body ends: transfer-encoding {encodings}, content-length {sorted(lengths)}")
            self._state = _State.CHUNK_LINE
        elif lengths:
            self.length = self._left = _length(lengths)
            self._state = _State.LENGTH if self._left else _State.DONE
        else:
            self._state = _State.TO_EOF
            self.ends_by_close = True
            self.reusable = False


def _status_line(line: str) -> tuple[str, int]:
    version, _, rest = line.partition(" ")
    digits = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or len(digits) != 3 or not digits.isascii() or not digits.isdigit():
        raise WireError(f"not an HTTP/1.1 status line: {line[:60]!r}")
    if rest[3:4] not in ("", " ") or digits < "100":
        raise WireError(f"not an HTTP/1.1 status line: {line[:60]!r}")
    return version, int(digits)


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip() or _CONTROL.search(line):
        raise WireError(f"not a header field: {line[:60]!r}")
    return name, value.strip(" \t")


def _length(lengths: set[str]) -> int:
    text = lengths.pop()
    if lengths or not text.isascii() or not text.isdigit() or len(text) > 18:
        raise WireError("a content-length that is no number, or two that differ")
    return int(text)
