"""Server-sent events on their way through: whole events only, and none that passes a cut answer off as a whole one."""

import re

#: Bytes of one unfinished event that may be held back; beyond that they go through unseen.
MAX_EVENT_BYTES = 1 << 20

_SEPARATORS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Inside a JSON string every quote is escaped, so this can only be a real key and value, never generated text.
_ABORT = re.compile(rb'"finish_reason"\s*:\s*"abort"')


def is_aborted(blob: bytes) -> bool:
    """Whether a response body or event says that the engine cut the generation short."""
    return b'abort"' in blob and _ABORT.search(blob) is not None


class EventGate:
    """Lets whole events pass; stops before the event that says ``finish_reason: "abort"``.

    ``aborted`` turns true there; what came before it in the same read has been passed on, nothing after it is.
    """

    __slots__ = ("_held", "aborted", "midway")

    def __init__(self) -> None:
        self.aborted = False
        self.midway = False  # an oversized event went through in part
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Bytes from the engine in, bytes that may go to the client out (maybe b"")."""
        if self._held:
            data = self._held + data
            self._held = b""
        self.midway = False
        if not data.endswith((b"\n\n", b"\r\n\r\n")):
            data = self._hold_back(data)
        if b'abort"' in data and _ABORT.search(data) is not None:
            return self._before_abort(data)
        return data

    def flush(self) -> bytes:
        """The unfinished event at the end of the stream, if any."""
        data, self._held = self._held, b""
        return self._before_abort(data) if is_aborted(data) else data

    def _hold_back(self, data: bytes) -> bytes:
        cut = _end_of_last_event(data)
        if len(data) - cut > MAX_EVENT_BYTES:
            self.midway = True
            return data
        self._held = data[cut:]
        return data[:cut]

    def _before_abort(self, data: bytes) -> bytes:
        self.aborted = True
        self.midway = False
        self._held = b""
        found = _ABORT.search(data)
        return data[: _end_of_last_event(data[: found.start()])] if found is not None else data


def _end_of_last_event(data: bytes) -> int:
    """Where the last whole event ends; 0 when there is none."""
    end = 0
    for separator in _SEPARATORS:
        at = data.rfind(separator)
        if at >= 0:
            end = max(end, at + len(separator))
    return end


def event(data: bytes) -> bytes:
    """One event with a payload that holds no line breaks."""
    return b"data: " + data + b"\n\n"
