"""Server-sent events on their way through: whole events only, and none that passes a cut answer off as a whole one."""

import json
import re

#: An engine's word about an error is short; a longer event is not looked into for one.
MAX_ERROR_BYTES = 64 << 10
#: Bytes of one unfinished event that may be held back; beyond that they go through unseen.
MAX_EVENT_BYTES = 1 << 20

# An event ends with a blank line: two line ends (LF, CR or CRLF, in any mixture) in a row. Each of these pairs is one,
# with the LF of a last CRLF to come, and no blank line lacks all three.
_BLANK_LINES = (b"\n\n", b"\n\r", b"\r\r")
# Inside a JSON string every quote is escaped, so this can only be a real key and value, never generated text.
_ABORT = re.compile(rb'"finish_reason"\s*:\s*"abort"')


def is_aborted(blob: bytes) -> bool:
    """Whether a response body or event says that the engine cut the generation short."""
    return b'abort"' in blob and _ABORT.search(blob) is not None


def tells_error(blob: bytes) -> bool:
    """Whether one of these events is an engine's error, however it is spelt.

    That is an event with the name ``error``, a field ``error`` (as llama.cpp had it), or data whose top level has an
    ``error`` or is an object of that kind.
    """
    if b"error" not in blob:
        return False
    return any(_is_error_line(line) for line in blob.splitlines() if b"error" in line)


def _is_error_line(line: bytes) -> bool:
    field, colon, value = line.partition(b":")
    if field == b"error":
        return bool(colon)
    if field == b"event":
        return value.strip() == b"error"
    if field != b"data" or b'"error"' not in value or len(value) > MAX_ERROR_BYTES:
        return False
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and (bool(data.get("error")) or data.get("object") == "error")


class EventGate:
    """Lets whole events pass; stops before the event that says ``finish_reason: "abort"``.

    ``aborted`` turns true there; what came before it in the same read has been passed on, nothing after it is.
    ``midway``: an oversized event went through in part, and its end has not yet.
    """

    __slots__ = ("_held", "_held_bytes", "_last", "aborted", "midway")

    def __init__(self) -> None:
        self.aborted = False
        self.midway = False
        self._held: list[bytes] = []  # the unfinished event; joined once, when its end is there
        self._held_bytes = 0
        self._last = b""  # the last byte of an unfinished event, held back or not: its end may lie across two reads

    def feed(self, data: bytes) -> bytes:
        """Bytes from the engine in, bytes that may go to the client out (maybe b"")."""
        end = len(data) if data.endswith((b"\n\n", b"\r\n\r\n")) else self._end_in(data)
        rest = len(data) - end
        if rest + (0 if end else self._held_bytes) > MAX_EVENT_BYTES:
            return self._pass(data, midway=True)
        if end == 0:
            self._hold(data)
            return b""
        passed = self._pass(data[:end] if rest else data, midway=False)
        if rest and not self.aborted:
            self._hold(data[end:])
        return passed

    def flush(self) -> bytes:
        """The unfinished event at the end of the stream, if any."""
        return self._pass(b"", midway=self.midway)

    def _end_in(self, data: bytes) -> int:
        """Behind the last whole event in ``data``, that of an event from earlier reads included; 0 = none ends in it."""
        return _end_of_last_event(data) or max(_end_of_last_event(self._last + data[:2]) - len(self._last), 0)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self._last = data[-1:]

    def _pass(self, data: bytes, *, midway: bool) -> bytes:
        """What is held back and ``data``, as far as it may go out."""
        if self._held:
            data = b"".join((*self._held, data))
            self._held.clear()
            self._held_bytes = 0
        self._last = data[-1:] if midway else b""
        if not is_aborted(data):
            self.midway = midway
            return data
        self.aborted = True
        end = _end_of_last_event(data[: _abort_at(data)])
        if end:
            self.midway = False
        return data[:end]


def _abort_at(data: bytes) -> int:
    found = _ABORT.search(data)
    return len(data) if found is None else found.start()


def _end_of_last_event(data: bytes) -> int:
    """Where the last whole event ends; 0 when there is none."""
    at = max(data.rfind(pair) for pair in _BLANK_LINES)
    if at < 0:
        return 0
    return at + 3 if data[at + 1 : at + 3] == b"\r\n" else at + 2


def event(data: bytes) -> bytes:
    """One event with a payload that holds no line breaks."""
    return b"data: " + data + b"\n\n"
