"""What a client says in headers about waiting, class and identity. Pure."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.domain.model import ModelClass
from scheduler.gateway.errors import BadHeader

#: Nobody waits longer, whatever the header says.
MAX_PATIENCE_S = 86_400.0
#: What an SDK needs to receive and report our answer before its own read timeout strikes.
SDK_MARGIN_S = 5.0

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """``patience_s``: how long the client waits at most; ``model_class`` None = the model's own."""

    patience_s: float
    model_class: ModelClass | None
    keepalive: bool


def read_wishes(headers: Mapping[str, str], *, default_patience_s: float) -> Wishes:
    """From ``x-hotseat-max-wait``, ``x-stainless-read-timeout``, ``x-hotseat-class``, ``x-hotseat-keepalive``.

    Raises Invalid (invalid_header) for a value of one of our own headers that means nothing; the SDK's header is
    ignored when it cannot be read.
    """
    return Wishes(patience_s=_patience(headers, default_patience_s), model_class=_class(headers), keepalive=_keepalive(headers))


def lower_class(own: ModelClass, wished: ModelClass | None) -> ModelClass:
    """A header may make a request less urgent than its model, never more."""
    return own if wished is None or wished.rank <= own.rank else wished


def sane_request_id(value: str | None) -> str | None:
    """The client's request id when it is safe to repeat in headers and logs."""
    return value if value is not None and _REQUEST_ID.fullmatch(value) else None


def _patience(headers: Mapping[str, str], default_s: float) -> float:
    own = headers.get("x-hotseat-max-wait")
    if own is not None:
        seconds = _seconds(own)
        if seconds is None or seconds < 0:
            raise BadHeader(f"x-hotseat-max-wait: {own[:40]!r} is not a number of seconds; write for example 30.")
        return min(seconds, MAX_PATIENCE_S)
    timeout = _seconds(headers.get("x-stainless-read-timeout", ""))
    if timeout is None or timeout <= 0:
        return default_s
    return min(max(timeout - SDK_MARGIN_S, timeout / 2), MAX_PATIENCE_S)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _class(headers: Mapping[str, str]) -> ModelClass | None:
    text = headers.get("x-hotseat-class")
    if text is None:
        return None
    try:
        return ModelClass(text.strip().lower())
    except ValueError:
        known = ", ".join(ModelClass)
        raise BadHeader(f"x-hotseat-class: {text[:40]!r} is not a class; classes are {known}.") from None


def _keepalive(headers: Mapping[str, str]) -> bool:
    text = headers.get("x-hotseat-keepalive")
    if text is None or text.strip().lower() == "on":
        return True
    if text.strip().lower() == "off":
        return False
    raise BadHeader(f"x-hotseat-keepalive: {text[:40]!r} means nothing; write off, or leave it out.")
