"""Which headers cross the gateway, in either direction. Pure."""

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict

from scheduler.upstream.wire import Headers

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The client's credentials are for us, never for an engine; the framing is ours; an engine must not compress, or a cut
# answer could not be told from a whole one.
_NOT_TO_ENGINES = _HOP_BY_HOP | {
    "accept-encoding",
    "api-key",
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "x-api-key",
    "x-request-id",
}
_NOT_TO_CLIENTS = _HOP_BY_HOP | {"content-length", "x-request-id"}
_OURS = "x-hotseat-"
#: Engines tell browsers that any page may read their answers; that is for us to say.
_CORS = "access-control-"


def to_engine(headers: Mapping[str, str], *, api_key: str, request_id: str) -> Headers:
    """The client's headers as an engine gets them; the body is known to be JSON by now."""
    named = _named_by_connection(", ".join(value for name, value in headers.items() if name.lower() == "connection"))
    kept = [(name, value) for name, value in headers.items() if _passes(name.lower(), _NOT_TO_ENGINES, named)]
    kept += [("Content-Type", "application/json"), ("Accept-Encoding", "identity"), ("X-Request-Id", request_id)]
    if api_key:
        kept.append(("Authorization", f"Bearer {api_key}"))
    return kept


def to_client(headers: Iterable[tuple[str, str]], own: Mapping[str, str]) -> CIMultiDict[str]:
    """The engine's headers as the client gets them, and our own."""
    listed = list(headers)
    named = _named_by_connection(", ".join(value for name, value in listed if name.lower() == "connection"))
    passed = CIMultiDict(
        (name, value) for name, value in listed if _passes(name.lower(), _NOT_TO_CLIENTS, named) and not name.lower().startswith(_CORS)
    )
    passed.update(own)
    return passed


def media_type(headers: Iterable[tuple[str, str]]) -> str:
    """The bare, lower-case media type; "" when there is none."""
    for name, value in headers:
        if name.lower() == "content-type":
            return value.partition(";")[0].strip().lower()
    return ""


def _passes(name: str, dropped: frozenset[str], named: frozenset[str]) -> bool:
    return name not in dropped and name not in named and not name.startswith(_OURS)


def _named_by_connection(value: str) -> frozenset[str]:
    return frozenset(part.strip().lower() for part in value.split(","))
