"""GET /v1/models and /v1/models/{id}. Neither wakes a model nor touches its last-used time."""

from typing import Any

from aiohttp import web

from scheduler.domain.errors import HotseatError
from scheduler.gateway.errors import envelope, retry_headers, rule_of
from scheduler.orchestrator.readiness import Listed, Readiness


async def list_models(readiness: Readiness) -> web.Response:
    """All models but unlisted ones, in registry order."""
    return web.json_response(
        {"object": "list", "data": [_model(listed, listed.name) for listed in readiness.listed() if not listed.unlisted]}
    )


async def one_model(readiness: Readiness, name: str) -> web.Response:
    """One model by name or alias, unlisted ones too; the answer carries the id that was asked for."""
    try:
        return web.json_response(_model(readiness.resolve(name), name))
    except HotseatError as error:
        return error_response(error)


def error_response(error: HotseatError) -> web.Response:
    """An error of a route that has no long answer."""
    return web.Response(status=rule_of(error).status, body=envelope(error), headers=retry_headers(error), content_type="application/json")


def _model(listed: Listed, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": listed.created_at,
        "owned_by": "hotseat",
        "aliases": list(listed.aliases),
        "description": listed.description,
    }
