"""/control/v1/events: pages, long polling, and server-sent events that a client can resume."""

import logging

from aiohttp import web

from scheduler.api.schemas import Event, Page
from scheduler.api.service import ControlPlane
from scheduler.api.wire import PLANE, integer, known_parameters, limit_of, reply, wait_of, waiting
from scheduler.domain.errors import Invalid

log = logging.getLogger(__name__)

PING_S = 15.0
BATCH = 500
_MAX_SEQ = 1 << 62


async def get_events(request: web.Request) -> web.StreamResponse:
    """GET events: a stream for ``Accept: text/event-stream``, else a page; ``?wait=`` holds an empty page back."""
    known_parameters(request, "after", "limit", "wait")
    if "text/event-stream" in request.headers.get("Accept", ""):
        return await _stream(request)
    after, limit, seconds, plane = integer(request, "after", None, high=_MAX_SEQ), limit_of(request), wait_of(request), request.app[PLANE]
    items = await _page(plane, after, limit)
    if not items and seconds > 0:
        with waiting(request):
            await plane.wait_events(after or 0, seconds)
        items = await _page(plane, after or 0, limit)
    more = len(items) > limit
    items = items[:limit]
    cursor = str(items[-1].seq) if items else (str(after) if after is not None else None)
    return reply(Page[Event](items=items, has_more=more, after=cursor))


async def _page(plane: ControlPlane, after: int | None, limit: int) -> list[Event]:
    # One more than asked tells whether there are more; the newest page has nothing after it.
    return list(await plane.events(after, limit if after is None else limit + 1))


async def _stream(request: web.Request) -> web.StreamResponse:
    plane = request.app[PLANE]
    position = await _position(request, plane)
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    try:
        await response.write(b"retry: 2000\n\n")
        with waiting(request):
            while True:
                items = await plane.events(position, BATCH)
                for event in items:
                    await response.write(f"id: {event.seq}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n".encode())
                    position = event.seq
                if not items and not await plane.wait_events(position, PING_S):
                    await response.write(b": ping\n\n")
    except ConnectionError:
        pass  # the reader left
    except Exception:  # the answer has begun: all that is left is to end it, and the reader resumes after what it saw
        log.exception("event stream ended early")
    return response


async def _position(request: web.Request, plane: ControlPlane) -> int:
    """Where the stream begins: after Last-Event-ID, else after ``?after=``, else with the next event to come."""
    text = request.headers.get("Last-Event-ID", "").strip()
    if text:
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise Invalid(f"Last-Event-ID {text[:40]!r} is not an event number", fix="send the id of the last event you saw, or none")
        return int(text)
    after = integer(request, "after", None, high=_MAX_SEQ)
    if after is not None:
        return after
    newest = await plane.events(None, 1)
    return newest[-1].seq if newest else 0


def add_event_routes(router: web.UrlDispatcher) -> None:
    """Register this module's endpoint, relative to /control/v1."""
    router.add_get("/events", get_events)
