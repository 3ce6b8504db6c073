"""Errors as clients of the inference API see them: one table from codes to HTTP, one envelope."""

import json
import math
from dataclasses import dataclass

from scheduler.domain.errors import Conflict, HotseatError, Invalid, NotFound, Permanent, Temporary

MAX_RETRY_AFTER_S = 120
#: Recorded as the status of a request whose client went away; never sent.
CLIENT_CLOSED = 499


@dataclass(frozen=True, slots=True)
class Rule:
    """How a code is told: HTTP status, envelope ``type``, the offending parameter, and what clients should do.

    ``retry``: True = Retry-After is sent; None = clients decide by the status; False = ``x-should-retry: false``.
    """

    status: int
    type: str
    retry: bool | None = None
    param: str | None = None


_REQUEST, _RATE, _SERVER = "invalid_request_error", "rate_limit_error", "server_error"

#: Mirrored by docs/reference/errors.md; a test compares the two.
RULES: dict[str, Rule] = {
    "invalid_json": Rule(400, _REQUEST),
    "invalid_header": Rule(400, _REQUEST),
    "context_length_exceeded": Rule(400, _REQUEST, param="messages"),
    "not_permitted": Rule(403, _REQUEST),
    "model_not_found": Rule(404, _REQUEST, param="model"),
    "unknown_url": Rule(404, _REQUEST),
    "body_timeout": Rule(408, _REQUEST),
    "body_too_large": Rule(413, _REQUEST),
    "queue_full": Rule(429, _RATE, retry=True),
    "rate_limited": Rule(429, _RATE, retry=True),
    "quota_exceeded": Rule(429, _RATE, retry=True),
    "internal": Rule(500, _SERVER),
    "bad_engine_url": Rule(500, _SERVER),
    "engine_error": Rule(502, _SERVER),
    "engine_lost": Rule(502, _SERVER),
    "model_starting": Rule(503, _SERVER, retry=True, param="model"),
    "wait_timeout": Rule(503, _SERVER, retry=True, param="model"),
    "model_backoff": Rule(503, _SERVER, retry=True, param="model"),
    "store_unavailable": Rule(503, _SERVER, retry=True),
    "model_failed": Rule(503, _SERVER, retry=False, param="model"),
    "model_disabled": Rule(503, _SERVER, retry=False, param="model"),
    "does_not_fit": Rule(507, _SERVER, retry=False, param="model"),
}

#: Codes without a row follow their class.
_BY_CLASS: tuple[tuple[type[HotseatError], Rule], ...] = (
    (Temporary, Rule(503, _SERVER, retry=True)),
    (NotFound, Rule(404, _REQUEST)),
    (Invalid, Rule(400, _REQUEST)),
    (Conflict, Rule(409, _REQUEST)),
    (Permanent, Rule(503, _SERVER, retry=False)),
)
_INTERNAL = RULES["internal"]


class BadRequest(Invalid):
    """A request body that cannot be served; ``param`` names the key at fault."""

    code = "invalid_json"

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class BadHeader(Invalid):
    """A request header of ours with a value we do not know."""

    code = "invalid_header"


class UnknownModel(NotFound):
    """No model has this name, or ever could."""

    code = "model_not_found"


class BodyTooLarge(Invalid):
    """More bytes than a request body may have."""

    code = "body_too_large"


class BodyTimeout(Invalid):
    """The client stopped sending its request body."""

    code = "body_timeout"


def rule_of(error: HotseatError) -> Rule:
    """The row for an error."""
    by_code = RULES.get(error.code)
    if by_code is not None:
        return by_code
    return next((rule for kind, rule in _BY_CLASS if isinstance(error, kind)), _INTERNAL)


def envelope(error: HotseatError) -> bytes:
    """The OpenAI error body: ``{"error": {"message", "type", "param", "code"}}``, all four keys, in one line."""
    rule = rule_of(error)
    message = _sentence(error)
    param = error.param if isinstance(error, BadRequest) else rule.param
    return json.dumps({"error": {"message": message, "type": rule.type, "param": param, "code": error.code}}).encode()


def _sentence(error: HotseatError) -> str:
    """Cause and remedy as one text."""
    if not error.fix:
        return error.message
    joint = " " if error.message.endswith((".", "?", "!")) else "; "
    return f"{error.message}{joint}{error.fix}"


def retry_headers(error: HotseatError) -> dict[str, str]:
    """``Retry-After`` (whole seconds, at most 120) or ``x-should-retry: false``, where the rule says so."""
    retry = rule_of(error).retry
    if retry is False:
        return {"x-should-retry": "false"}
    if retry is None:
        return {}
    after_s = error.retry_after_s if isinstance(error, Temporary) else 1.0
    return {"Retry-After": str(max(1, math.ceil(min(MAX_RETRY_AFTER_S, after_s))))}
