"""/livez, /readyz, /metrics for machines that watch the daemon, and /control/v1/version."""

from aiohttp import web

from scheduler.api.access import AccessPolicy, check, identify
from scheduler.api.errors import problem_of
from scheduler.api.schemas import Ready
from scheduler.api.wire import PLANE, reply
from scheduler.domain.errors import HotseatError

POLICY: web.AppKey[AccessPolicy] = web.AppKey("hotseat.access", AccessPolicy)


async def get_live(request: web.Request) -> web.Response:
    """GET /livez (/health, /healthz): 200 while the control loop turns, else 503. Open to everybody; says nothing else."""
    alive = (await request.app[PLANE].ready()).alive
    return web.Response(text="ok\n" if alive else "the control loop does not turn\n", status=200 if alive else 503)


async def get_ready(request: web.Request) -> web.Response:
    """GET /readyz: 200 while chat can be served, else 503; details only for callers on this machine."""
    report = await request.app[PLANE].ready()
    if identify(request, request.app[POLICY]).remote:
        terse = [item.model_copy(update={"message": "", "fix": ""}) for item in report.degraded]
        report = Ready(ready=report.ready, alive=report.alive, degraded=terse)
    return reply(report, status=200 if report.ready else 503)


async def get_metrics(request: web.Request) -> web.Response:
    """GET /metrics: Prometheus text. It names models, so it counts as reading."""
    try:
        check(identify(request, request.app[POLICY]), request.app[POLICY], write=False)
        text = await request.app[PLANE].metrics_text()
    except HotseatError as error:
        return problem_of(error, request.path)
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def get_version(request: web.Request) -> web.Response:
    """GET /control/v1/version."""
    return reply(await request.app[PLANE].version())


def add_operation_routes(router: web.UrlDispatcher) -> None:
    """Register the endpoints at the root."""
    for path in ("/livez", "/health", "/healthz"):
        router.add_get(path, get_live)
    router.add_get("/readyz", get_ready)
    router.add_get("/metrics", get_metrics)
