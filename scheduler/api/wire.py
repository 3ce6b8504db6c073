"""Small shared parts of the routes: the plane's key, query parameters, JSON answers, handlers that wait."""

import asyncio
import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel, ValidationError

from scheduler.api.errors import explain_invalid
from scheduler.api.service import ControlPlane
from scheduler.domain.errors import Invalid

M = TypeVar("M", bound=BaseModel)

# A type cannot be read off a Protocol by AppKey, so the key is named and the type declared.
PLANE: web.AppKey[ControlPlane] = web.AppKey("hotseat.plane", ControlPlane)
WAITING: web.AppKey[set[asyncio.Task[None]]] = web.AppKey("hotseat.waiting", set)

MAX_BODY_BYTES = 64 * 1024
MAX_WAIT_S = 600.0
MAX_LIMIT = 1000
MAX_NAME_CHARS = 128


def reply(body: BaseModel, status: int = 200) -> web.Response:
    """A model as JSON, never cached."""
    headers = {"Cache-Control": "no-store"}
    return web.Response(text=body.model_dump_json(), status=status, content_type="application/json", headers=headers)


def integer(request: web.Request, name: str, default: int | None, *, low: int = 0, high: int = MAX_LIMIT) -> int | None:
    """An integer query parameter; raises Invalid outside ``low`` .. ``high``."""
    text = request.query.get(name)
    if text is None:
        return default
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
    if value is None or not low <= value <= high:
        raise Invalid(f"{name}={text[:40]!r} is not a whole number from {low} to {high}", fix=f"leave {name} out for the default")
    return value


def limit_of(request: web.Request, default: int = 100) -> int:
    """``?limit=``: 1 to 1000."""
    value = integer(request, "limit", default, low=1)
    assert value is not None
    return value


def page_of(request: web.Request, names: Sequence[str]) -> tuple[int, int, str | None]:
    """Where ``?limit=`` and ``?after=`` cut a list of named things: (first, one after the last, cursor if there is more).

    The cursor names the last one seen, so a change of the list in between skips none. Raises Invalid for a bad one.
    """
    start = _after(request.query.get("after"), names)
    stop = min(len(names), start + limit_of(request))
    return start, stop, _cursor(names[stop - 1]) if stop < len(names) else None


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _after(cursor: str | None, names: Sequence[str]) -> int:
    if cursor is None:
        return 0
    try:
        name = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise Invalid("?after= is not one that this list gave out", fix="start again without it") from error
    if name not in names:
        raise Invalid(f"the entry where this list went on is gone: {name[:128]}", fix="start again without ?after=")
    return names.index(name) + 1


def wait_of(request: web.Request) -> float:
    """``?wait=SECONDS``: 0 (do not wait) to 600; always 0 for HEAD, which asks how an answer would look."""
    text = request.query.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= MAX_WAIT_S:  # not-a-number fails this too
        raise Invalid(f"wait={text[:40]!r} is not a number of seconds from 0 to {MAX_WAIT_S:.0f}", fix="poll again for longer waits")
    return 0.0 if request.method == "HEAD" else seconds


def known_parameters(request: web.Request, *names: str) -> None:
    """Raise Invalid for a query parameter that this endpoint does not have: a typo must not be ignored silently."""
    for name in request.query:
        if name not in names:
            offered = ", ".join(names) or "none"
            raise Invalid(f"unknown query parameter {name[:40]!r}", fix=f"this endpoint takes: {offered}")


def name_of(request: web.Request) -> str:
    """The model name (or alias) in the path."""
    name = request.match_info["name"]
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise Invalid(f"not a model name: {name[:40]!r} ({len(name)} characters)", fix="names have at most 128 printable characters")
    return name


async def body_of(request: web.Request, schema: type[M]) -> M:
    """The request's JSON body as ``schema``; an empty body counts as ``{}``. Raises Invalid."""
    raw = await _bounded(request)
    try:
        data = json.loads(raw) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}", fix="send a JSON object, or no body") from error
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise explain_invalid(error) from error


async def _bounded(request: web.Request) -> bytes:
    """The body as sent. Raises Invalid when it is too large, broken as a transfer (chunks, compression), or cut off."""
    # Not request.read(): its limit is that of the outer application, which takes the gateway's large bodies.
    raw = bytearray()
    try:
        async for chunk in request.content.iter_any():
            raw += chunk
            if len(raw) > MAX_BODY_BYTES:
                message = f"a control request has a body of at most {MAX_BODY_BYTES // 1024} KiB"
                raise Invalid(message, code="body_too_large", fix="send only the documented keys")
    except (web.RequestPayloadError, HttpProcessingError, ConnectionError) as error:
        text = " ".join(str(error).split())
        raise Invalid(f"the body could not be read: {text}", fix="send a JSON object, or no body") from None
    return bytes(raw)


@contextmanager
def waiting(request: web.Request) -> Iterator[None]:
    """Mark this handler as one that only waits: shutdown cancels it instead of waiting for it."""
    task = asyncio.current_task()
    assert task is not None
    request.app[WAITING].add(task)
    try:
        yield
    finally:
        request.app[WAITING].discard(task)


async def cancel_waiting(app: web.Application) -> None:
    """on_shutdown: end the handlers that wait."""
    tasks = app[WAITING]
    for task in tuple(tasks):
        task.cancel("the daemon shuts down")
