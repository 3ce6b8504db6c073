"""The data plane as an aiohttp application, or as routes of a larger one."""

from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from scheduler.domain.errors import NotFound
from scheduler.gateway.inference import Inference
from scheduler.gateway.metrics import GatewayMetrics, NoMetrics
from scheduler.gateway.models import error_response, list_models, one_model
from scheduler.gateway.server_log import SERVER_LOG
from scheduler.gateway.settings import GatewaySettings
from scheduler.orchestrator.readiness import Readiness
from scheduler.ports.clock import Clock

READINESS = web.AppKey("gateway_readiness", Readiness)
INFERENCE = web.AppKey("gateway_inference", Inference)

#: An idle client connection, or one that never completes its request head, is closed after so long. Longer than what
#: reverse proxies keep theirs, so that it is them who close.
IDLE_S = 150.0

#: Routes that wake models; the path below /v1/ is also the ``endpoint`` of metrics and usage.
ENDPOINTS = ("chat/completions", "completions", "embeddings")


def build_app(
    readiness: Readiness, clock: Clock, settings: GatewaySettings | None = None, metrics: GatewayMetrics | None = None
) -> web.Application:
    """An application that is nothing but the data plane."""
    app = web.Application()
    mount(app, readiness, clock, settings, metrics)
    mount_fallback(app)
    return app


def mount(
    app: web.Application, readiness: Readiness, clock: Clock, settings: GatewaySettings | None = None, metrics: GatewayMetrics | None = None
) -> None:
    """Add the data plane's routes to ``app``; run it with :func:`make_runner`. Connections close with the app's cleanup."""
    inference = Inference(readiness, clock, settings or GatewaySettings(), metrics or NoMetrics())
    app[READINESS] = readiness
    app[INFERENCE] = inference
    app.on_startup.append(_start)
    app.on_cleanup.append(_close)
    app.router.add_get("/v1/models", _list_models)
    app.router.add_get("/v1/models/{id:.+}", _one_model)
    for endpoint in ENDPOINTS:
        early = partial(inference.refuse_early, endpoint=endpoint)
        app.router.add_post(f"/v1/{endpoint}", _inference_handler(inference, endpoint), expect_handler=early)


def mount_fallback(app: web.Application) -> None:
    """Answer every other /v1 URL with the OpenAI envelope. To be called after all other /v1 routes were added."""
    app.router.add_route("*", "/v1/{tail:.*}", _unknown_url)


def make_runner(app: web.Application, *, shutdown_timeout_s: float = 60.0) -> web.AppRunner:
    """The runner the gateway needs.

    ``handler_cancellation`` is how a client that goes away while it is held, or while its answer is generated, is
    noticed at all: without it aiohttp lets handlers run on.
    """
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=SERVER_LOG,
        shutdown_timeout=shutdown_timeout_s,
        keepalive_timeout=IDLE_S,
    )


def _inference_handler(inference: Inference, endpoint: str) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await inference.serve(request, endpoint)

    return handle


async def _list_models(request: web.Request) -> web.StreamResponse:
    return await list_models(request.app[READINESS])


async def _one_model(request: web.Request) -> web.StreamResponse:
    return await one_model(request.app[READINESS], request.match_info["id"])


async def _unknown_url(request: web.Request) -> web.StreamResponse:
    known = ", ".join(f"POST /v1/{endpoint}" for endpoint in ENDPOINTS)
    message = f"Unknown request: {request.method} {request.path[:200]}. There are {known}, GET /v1/models and GET /v1/models/ID."
    return error_response(NotFound(message, code="unknown_url"))


async def _start(app: web.Application) -> None:
    app[INFERENCE].start()


async def _close(app: web.Application) -> None:
    app[INFERENCE].close()
