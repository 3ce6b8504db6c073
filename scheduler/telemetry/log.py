"""Logging set-up of the daemon: one event a line on standard error, as key=value or as JSON, without secrets.

Pass facts as ``extra={"model": name, "device": ...}``: they become fields of their own. Bodies of requests and answers
are never logged.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from scheduler.domain.errors import Invalid
from scheduler.telemetry.redact import redact_text, redact_value

LEVELS = ("debug", "info", "warning", "error")

# What every record has; anything else came through ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(*, as_json: bool = False, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging to ``stream`` (standard error by default); replaces what an earlier call set up.

    Raises Invalid for an unknown level.
    """
    if level not in LEVELS:
        raise Invalid(f"unknown log level {level!r}", fix=f"use one of {', '.join(LEVELS)}")
    handler = _Handler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # One line per request belongs into metrics and usage, not into the log of a daemon that serves streams.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that setting up twice replaces instead of doubling."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """A reader of standard error that went away must not end the daemon, and there is nobody left to tell."""
        if not isinstance(sys.exc_info()[1], OSError | ValueError):
            super().handleError(record)


class LineFormatter(logging.Formatter):
    """``2026-01-05T00:00:00.000Z info scheduler.store message model=coder``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; line breaks in the message and tracebacks are escaped, so that a line is an event."""
        fields = _fields(record)
        head = f"{_at(record)} {record.levelname.lower()} {record.name} {_flat(fields.pop('message'))}"
        return " ".join([head, *(f"{name}={_quoted(value)}" for name, value in fields.items())])


class JsonFormatter(logging.Formatter):
    """The same as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON with at, level, logger, message, the extra fields, and exception."""
        head = {"at": _at(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps({**head, **_fields(record)}, default=str)


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"message": redact_text(record.getMessage())}
    for name, value in vars(record).items():
        if name not in _STANDARD:
            fields[name] = _shown(name, value)
    if record.exc_info:
        fields["exception"] = redact_text(logging.Formatter().formatException(record.exc_info))
    return fields


def _shown(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact_value(name, redact_text(str(value)))


def _flat(text: str) -> str:
    """Control characters escaped: a model's name or an engine's output must not forge a line or move a cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quoted(value: object) -> str:
    text = _flat("null" if value is None else str(value))
    return json.dumps(text, ensure_ascii=False) if not text or any(c in text for c in ' "=') else text
