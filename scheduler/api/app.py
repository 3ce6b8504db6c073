"""Puts the control API together. The daemon mounts it beside the gateway, and serves the result on TCP and on the socket."""

from aiohttp import web

from scheduler.api.access import AccessPolicy, guard
from scheduler.api.devices import add_device_routes
from scheduler.api.errors import problems
from scheduler.api.events import add_event_routes
from scheduler.api.models import add_model_routes
from scheduler.api.operations import POLICY, add_operation_routes, get_version
from scheduler.api.service import ControlPlane
from scheduler.api.wire import PLANE, WAITING, cancel_waiting

PREFIX = "/control/v1"


def mount_control(app: web.Application, plane: ControlPlane, policy: AccessPolicy) -> None:
    """Add /control/v1/*, /livez, /health, /healthz, /readyz and /metrics to ``app``, which must not be frozen yet."""
    app[PLANE] = plane
    app[POLICY] = policy
    add_operation_routes(app.router)
    control = web.Application(middlewares=[problems, guard(policy)])
    control[PLANE] = plane
    control[WAITING] = set()
    control.on_shutdown.append(cancel_waiting)
    add_model_routes(control.router)
    add_device_routes(control.router)
    add_event_routes(control.router)
    control.router.add_get("/version", get_version)
    app.add_subapp(PREFIX, control)


def build_control_app(plane: ControlPlane, policy: AccessPolicy) -> web.Application:
    """An application with the control API alone."""
    app = web.Application()
    mount_control(app, plane, policy)
    return app


def endpoints(app: web.Application) -> list[tuple[str, str]]:
    """(method, path) of everything this application answers, HEAD left out; for the documentation and its test."""
    found = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource and route.method != "HEAD"}
    return sorted(found, key=lambda item: (item[1], item[0]))
