"""What aiohttp's server logs about connections, without alarms for what clients do."""

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

#: The logger of every server this daemon runs; aiohttp's own is left alone.
SERVER_LOG = logging.getLogger("scheduler.http")

_CLIENTS_DOING = (ConnectionError, HttpProcessingError, RequestPayloadError)


def _demote(record: logging.LogRecord) -> bool:
    """A client that left, or that broke the protocol, was answered if it could be: one line, no error, no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, _CLIENTS_DOING):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg, record.args = "connection of a client ended early (%s): %s", (type(error).__name__, error)
        record.exc_info = None
    return SERVER_LOG.isEnabledFor(record.levelno)


SERVER_LOG.addFilter(_demote)
