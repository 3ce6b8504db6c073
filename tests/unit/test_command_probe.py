"""Engine `command` with sleep steps: ready is what answers on its ready path and does not say that it sleeps."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from adapters.engines.command import Command
from scheduler.domain.ids import ModelName
from scheduler.domain.model import DeclaredFootprint, ModelSpec
from scheduler.domain.units import MIB
from scheduler.ports.engine import Answer, Endpoint
from tests.support.gateway_rig import serving

Handler = Callable[[web.Request], Awaitable[web.Response]]


def says(text: str, status: int = 200) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return answer


async def hangs_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def says_nothing(_request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("is_sleeping", "expected"),
    [
        (says('{"is_sleeping": true}'), Answer.ASLEEP),
        (says('{"is_sleeping": false}'), Answer.READY),
        (says("{}"), Answer.READY),
        (says("no JSON"), Answer.READY),
        (says("there is no such path", 404), Answer.READY),
        (hangs_up, Answer.BROKEN),
        (says_nothing, Answer.SILENT),
    ],
)
async def test_a_sleeper_that_is_not_heard_is_not_ready(is_sleeping: Handler, expected: Answer) -> None:
    app = web.Application()
    app.router.add_get("/health", says("ok"))
    app.router.add_get("/is_sleeping", is_sleeping)
    async with serving(app) as url:
        endpoint = Endpoint(base_url=url, served_model="m", sleep_paths=(("/sleep", 1.0),), wake_paths=(("/wake_up", 1.0),))
        assert (await Command().probe(endpoint, 0.3)).answer is expected


async def test_what_is_declared_of_a_command_is_all_there_is() -> None:
    """Nothing was worked out, so there is no rest to be added to the declared part; it counts until it was measured."""

    async def awake(**declared: int) -> int:
        spec = ModelSpec(name=ModelName("m"), engine="command", command=("serve",), footprint=DeclaredFootprint(**declared))
        return (await Command().estimate(spec)).awake_bytes

    assert await awake() == 1024 * MIB
    assert await awake(weights_bytes=100 * MIB) == 100 * MIB
    assert await awake(weights_bytes=100 * MIB, overhead_bytes=20 * MIB) == 120 * MIB
    assert await awake(kv_max_bytes=30 * MIB) == 30 * MIB
