"""/control/v1/devices and devices/{id}."""

from aiohttp import web

from scheduler.api.schemas import Device, Page
from scheduler.api.wire import PLANE, known_parameters, page_of, reply
from scheduler.domain.errors import Invalid

MAX_ID_CHARS = 63


async def list_devices(request: web.Request) -> web.Response:
    """GET devices: all there are, those that are no seats, lost or missing too."""
    known_parameters(request, "limit", "after")
    devices = (await request.app[PLANE].status()).devices
    start, stop, cursor = page_of(request, [device.id for device in devices])
    return reply(Page[Device](items=devices[start:stop], has_more=cursor is not None, after=cursor))


async def get_device(request: web.Request) -> web.Response:
    """GET devices/{id}."""
    known_parameters(request)
    device_id = request.match_info["id"]
    if len(device_id) > MAX_ID_CHARS or not device_id.isprintable():
        fix = f"ids have at most {MAX_ID_CHARS} printable characters, for example gpu0"
        raise Invalid(f"not a device id: {device_id[:40]!r} ({len(device_id)} characters)", fix=fix)
    return reply(await request.app[PLANE].device(device_id))


def add_device_routes(router: web.UrlDispatcher) -> None:
    """Register this module's endpoints, relative to /control/v1."""
    router.add_get("/devices", list_devices)
    router.add_get("/devices/{id}", get_device)
