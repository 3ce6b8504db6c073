"""What clients do is no error of ours; everything else of aiohttp's server stays one."""

import asyncio
import logging

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, ContentEncodingError
from aiohttp.web import RequestPayloadError

from scheduler.gateway.server_log import SERVER_LOG
from tests.support.gateway_rig import RawClient, serving


def logged(error: Exception) -> None:
    """As aiohttp does it."""
    try:
        raise error
    except Exception:
        SERVER_LOG.exception("Error handling request from %s", "127.0.0.1")


@pytest.mark.parametrize(
    "error", [ConnectionResetError("Cannot write"), BadHttpMessage("x"), ContentEncodingError("gzip"), RequestPayloadError("cut")]
)
def test_clients_doings_are_one_line_of_information(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, SERVER_LOG.name)
    logged(error)
    assert [(r.levelname, r.exc_info) for r in caplog.records] == [("INFO", None)]
    assert type(error).__name__ in caplog.text
    caplog.clear()
    caplog.set_level(logging.WARNING, SERVER_LOG.name)
    logged(error)
    assert caplog.records == []


@pytest.mark.may_fail_tasks
def test_a_bug_stays_an_error_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    logged(ValueError("ours"))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None


async def test_our_server_uses_it(caplog: pytest.LogCaptureFixture) -> None:
    """A client that is gone is noticed when it is written to; aiohttp alone makes a traceback of that."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.set()
        await gone.wait()
        raise ConnectionResetError("Cannot write to closing transport")

    caplog.set_level(logging.INFO, SERVER_LOG.name)
    app = web.Application()
    app.router.add_get("/", handle)
    async with serving(app, own_runner=True) as url:
        client = await RawClient.connect(url)
        client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        gone.set()
        assert "500" in await client.head()
        await client.close()
    assert [r.levelname for r in caplog.records] == ["INFO"]
