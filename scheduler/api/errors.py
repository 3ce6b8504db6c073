"""Errors as problem+json (RFC 9457): one table from our error classes and codes to HTTP."""

import logging
import math

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import ValidationError

from scheduler.api.schemas import Problem
from scheduler.domain.errors import Conflict, HotseatError, Invalid, NotFound, Temporary

log = logging.getLogger(__name__)

#: Codes whose status does not follow from the error's class.
STATUS_BY_CODE: dict[str, int] = {
    "not_permitted": 403,
    "method_not_allowed": 405,
    "body_too_large": 413,
    "does_not_fit": 507,
    "model_failed": 503,
    "model_disabled": 409,
    "internal": 500,
    "invariant_violated": 500,
}
MAX_RETRY_AFTER_S = 120

_TITLES = {
    400: "Bad request",
    403: "Not permitted",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Body too large",
    422: "Cannot be done as things are",
    500: "Internal error",
    503: "Not now",
    507: "Does not fit",
}


class NotPermitted(HotseatError):
    """The caller may not do this."""

    code = "not_permitted"


def status_of(error: HotseatError) -> int:
    """The HTTP status for an error."""
    if error.code in STATUS_BY_CODE:
        return STATUS_BY_CODE[error.code]
    kinds: tuple[tuple[type[HotseatError], int], ...] = ((NotFound, 404), (Conflict, 409), (Invalid, 400), (Temporary, 503))
    return next((status for kind, status in kinds if isinstance(error, kind)), 422)


def problem(status: int, code: str, detail: str, *, fix: str = "", instance: str | None = None) -> web.Response:
    """A problem+json response."""
    body = Problem(
        type=f"urn:hotseat:problem:{code}",
        title=_TITLES.get(status, "Error"),
        status=status,
        detail=detail,
        instance=instance,
        code=code,
        fix=fix,
    )
    return web.Response(status=status, text=body.model_dump_json(), content_type="application/problem+json")


def problem_of(error: HotseatError, instance: str) -> web.Response:
    """The response for one of our errors; a temporary one says when to try again."""
    response = problem(status_of(error), error.code, error.message, fix=error.fix, instance=instance)
    if isinstance(error, Temporary):
        response.headers["Retry-After"] = str(max(1, min(MAX_RETRY_AFTER_S, math.ceil(error.retry_after_s))))
    return response


def explain_invalid(error: ValidationError) -> Invalid:
    """One sentence for pydantic's findings about a request body."""
    findings = [f"{'.'.join(str(part) for part in item['loc']) or 'body'}: {item['msg']}" for item in error.errors(include_url=False)]
    return Invalid("; ".join(findings), fix="see docs/reference/control-api.md for the body of this request")


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost middleware of the control API: whatever goes wrong is answered as problem+json."""
    try:
        return await handler(request)
    except HotseatError as error:
        return problem_of(error, request.path)
    except web.HTTPNotFound:
        fix = "a model name with a slash is written with %2F; the endpoints are listed in docs/reference/control-api.md"
        return problem(404, "no_such_endpoint", f"nothing at {request.path}", fix=fix, instance=request.path)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = problem(405, "method_not_allowed", f"{request.method} is not possible here; allowed: {allowed}", instance=request.path)
        response.headers["Allow"] = allowed
        return response
    except web.HTTPException:
        raise
    except Exception:  # the last line of defence: the traceback goes to the log, not to the caller
        log.exception("control API: %s %s failed", request.method, request.path)
        fix = "see the daemon's log: hotseat logs"
        return problem(500, "internal", "the daemon made a mistake while answering", fix=fix, instance=request.path)
