"""Request bodies: read within limits, accounted for as long as they are held."""

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

from scheduler.domain.errors import Invalid, Temporary
from scheduler.domain.units import human_bytes
from scheduler.gateway.errors import BodyTimeout, BodyTooLarge
from scheduler.gateway.settings import GatewaySettings


class BodyBudget:
    """Bytes of request bodies in memory, over all requests."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, count: int) -> None:
        """Account for ``count`` more bytes. Raises Temporary (queue_full) when they are too many."""
        if self.used_bytes + count > self.limit_bytes:
            raise Temporary(
                f"Request bodies that wait for their models already take {human_bytes(self.used_bytes)} of memory; "
                f"the limit is {human_bytes(self.limit_bytes)}.",
                code="queue_full",
                retry_after_s=5.0,
            )
        self.used_bytes += count

    def give_back(self, count: int) -> None:
        """These bytes are gone."""
        self.used_bytes -= count


class Body:
    """The body of one request; a context that returns its bytes to the budget."""

    __slots__ = ("_budget", "_taken", "data")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken = 0
        self.data = b""

    async def read(self, request: web.Request, settings: GatewaySettings) -> bytes:
        """Read it all.

        Raises BodyTooLarge, BodyTimeout, Temporary (queue_full), Invalid (invalid_json) when the transfer itself is
        malformed; ConnectionError when the client went away.
        """
        refuse_large(request, settings)
        parts: list[bytes] = []
        try:
            while part := await _next_part(request, settings.body_idle_s):
                self._take(len(part), settings.max_body_bytes)
                parts.append(part)
        except (RequestPayloadError, HttpProcessingError) as error:
            raise Invalid(f"The request body could not be read: {error}", code="invalid_json") from None
        self.data = parts[0] if len(parts) == 1 else b"".join(parts)
        return self.data

    def _take(self, count: int, limit_bytes: int) -> None:
        if self._taken + count > limit_bytes:
            raise _too_large(None, limit_bytes)
        self._budget.take(count)
        self._taken += count

    def drop(self) -> None:
        """The engine has it; it will not be sent again. Idempotent."""
        self._budget.give_back(self._taken)
        self._taken = 0
        self.data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.drop()


def refuse_large(request: web.Request, settings: GatewaySettings) -> None:
    """Refuse by Content-Length alone, before a byte is read. Raises BodyTooLarge."""
    length = request.content_length
    if length is not None and length > settings.max_body_bytes:
        raise _too_large(length, settings.max_body_bytes)


def _too_large(size_bytes: int | None, limit_bytes: int) -> BodyTooLarge:
    size = "more bytes" if size_bytes is None else f"{size_bytes} bytes"
    return BodyTooLarge(
        f"The request body has {size}; at most {limit_bytes} ({human_bytes(limit_bytes)}) are accepted.",
        fix="Send less, or raise gateway.max_body.",
    )


async def _next_part(request: web.Request, idle_s: float) -> bytes:
    content = request.content
    here = content.read_nowait()
    if here or content.at_eof():
        return here
    try:
        async with asyncio.timeout(idle_s):
            return await content.readany()
    except TimeoutError:
        raise BodyTimeout(f"Nothing of the request body arrived for {idle_s:g} s.") from None
