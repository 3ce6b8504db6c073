"""/control/v1/status, models, models/{name}, its verbs, story and logs."""

from typing import Annotated, cast

from aiohttp import web
from pydantic import ConfigDict, Field

from scheduler.api.access import CALLER
from scheduler.api.schemas import VERBS, Action, ModelStatus, Page, Schema, StoryEntry, Verb
from scheduler.api.service import ActOptions, LogQuery
from scheduler.api.wire import PLANE, body_of, integer, known_parameters, limit_of, name_of, page_of, reply, wait_of, waiting

MAX_LOG_LINES = 10_000


class Options(Schema):
    """Base of what callers send: no value of another kind is taken for one of the right kind ("yes", 1 and 1.0 are not true)."""

    model_config = ConfigDict(strict=True)


class NoOptions(Options):
    """Body of wake and restart: nothing to choose."""


class SleepOptions(Options):
    """Body of sleep. ``level`` null or absent = the scheduler chooses."""

    # Not a Literal: those compare, and true equals 1.
    level: Annotated[int, Field(ge=1, le=2)] | None = None


class StopOptions(Options):
    """Body of stop. ``now`` true = running requests are cut short instead of waited for."""

    now: bool = False


async def get_status(request: web.Request) -> web.Response:
    """GET status."""
    known_parameters(request)
    return reply(await request.app[PLANE].status())


async def list_models(request: web.Request) -> web.Response:
    """GET models: in registry order; the cursor names the last model seen, so a reload in between skips none."""
    known_parameters(request, "limit", "after")
    models = (await request.app[PLANE].status()).models
    start, stop, cursor = page_of(request, [model.name for model in models])
    return reply(Page[ModelStatus](items=models[start:stop], has_more=cursor is not None, after=cursor))


async def get_model(request: web.Request) -> web.Response:
    """GET models/{name}."""
    known_parameters(request)
    return reply(await request.app[PLANE].model(name_of(request)))


async def act(request: web.Request) -> web.Response:
    """POST models/{name}/wake|sleep|stop|restart: 202 and the action, or 200 when it ended within ``?wait=``."""
    known_parameters(request, "wait")
    verb = cast(Verb, request.match_info["verb"])
    seconds, options = wait_of(request), await _options(request, verb)
    plane = request.app[PLANE]
    action = await plane.act(verb, name_of(request), options, request[CALLER].principal)
    if action.state == "running" and seconds > 0:
        with waiting(request):
            action = await plane.wait_action(action.id, seconds)
    return action_reply(action)


async def _options(request: web.Request, verb: Verb) -> ActOptions:
    if verb == "sleep":
        return ActOptions(level=(await body_of(request, SleepOptions)).level)
    if verb == "stop":
        return ActOptions(now=(await body_of(request, StopOptions)).now)
    await body_of(request, NoOptions)
    return ActOptions()


def action_reply(action: Action) -> web.Response:
    """202 while it runs, 200 when it has ended (well or not: ``state`` tells); Location in both cases."""
    response = reply(action, status=202 if action.state == "running" else 200)
    response.headers["Location"] = f"/control/v1/actions/{action.id}"
    return response


async def get_action(request: web.Request) -> web.Response:
    """GET actions/{id}; ``?wait=`` returns when it ends."""
    known_parameters(request, "wait")
    plane, action_id, seconds = request.app[PLANE], request.match_info["id"][:64], wait_of(request)
    if seconds > 0:
        with waiting(request):
            return reply(await plane.wait_action(action_id, seconds))
    return reply(await plane.action(action_id))


async def get_story(request: web.Request) -> web.Response:
    """GET models/{name}/story: the last ``limit`` transitions, oldest first."""
    known_parameters(request, "limit")
    limit = limit_of(request)
    entries = list(await request.app[PLANE].story(name_of(request), limit + 1))
    more = len(entries) > limit
    return reply(Page[StoryEntry](items=entries[-limit:], has_more=more, after=None))


async def get_model_logs(request: web.Request) -> web.Response:
    """GET models/{name}/logs: the engine's log."""
    return await _logs(request, name_of(request))


async def get_daemon_logs(request: web.Request) -> web.Response:
    """GET logs: the daemon's own log."""
    return await _logs(request, None)


async def _logs(request: web.Request, name: str | None) -> web.Response:
    known_parameters(request, "lines", "launch", "offset")
    lines = integer(request, "lines", 100, high=MAX_LOG_LINES)
    launch = None if request.query.get("launch") == "last" else integer(request, "launch", None, low=1, high=1 << 62)
    offset = integer(request, "offset", None, high=1 << 62)
    assert lines is not None
    return reply(await request.app[PLANE].logs(name, LogQuery(lines=lines, launch=launch, offset=offset)))


def add_model_routes(router: web.UrlDispatcher) -> None:
    """Register this module's endpoints, relative to /control/v1."""
    router.add_get("/status", get_status)
    router.add_get("/models", list_models)
    router.add_get("/models/{name}", get_model)
    router.add_post(f"/models/{{name}}/{{verb:{'|'.join(VERBS)}}}", act)
    router.add_get("/models/{name}/story", get_story)
    router.add_get("/models/{name}/logs", get_model_logs)
    router.add_get("/logs", get_daemon_logs)
    router.add_get("/actions/{id}", get_action)
