"""The door of the inference API on an open port: programs of this machine may pass, web pages of others may not.

Browsers let any page send requests to 127.0.0.1, and a name that a stranger's DNS points there makes a page and the
daemon look like one site. Both show: in ``Origin``, and in ``Host``. What a proxy passed on stays welcome: whoever put
one in front of a loopback port meant it (the control API is stricter).
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from scheduler.api.access import AccessPolicy, foreign_page
from scheduler.api.errors import NotPermitted
from scheduler.gateway.models import error_response

_FIX = "use the daemon's own address (127.0.0.1) as host, and call it from a program, not from a page of another site"


def no_foreign_pages(policy: AccessPolicy) -> Middleware:
    """Middleware: refuse inference (403, the OpenAI envelope) to pages of other sites and to foreign host names."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            why = foreign_page(request, policy)
            if why:
                return error_response(NotPermitted(f"This request is refused because {why}", fix=_FIX))
        return await handler(request)

    return middleware
