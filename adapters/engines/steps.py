"""Sleep and wake procedures that an operator wrote: POSTs in a row, and what may be asked of an engine that has them."""

import asyncio
from collections.abc import Sequence

from adapters.engines.http import CallFailed, Reply, get, looked_at, post
from scheduler.domain.errors import Temporary
from scheduler.domain.reasons import Code
from scheduler.ports.engine import Answer, Endpoint, Probe

DEFAULT_READY_PATH = "/health"
WAKE_POLL_S = 0.1
#: Where vLLM, and whoever follows it, says whether it sleeps; asked only of engines that have sleep steps.
SLEEP_STATE_PATH = "/is_sleeping"


async def take_steps(endpoint: Endpoint, steps: Sequence[tuple[str, float]], timeout_s: float, code: Code) -> list[Reply]:
    """POST them one after the other, all within ``timeout_s``. Raises Temporary with ``code``."""
    replies: list[Reply] = []
    try:
        async with asyncio.timeout(timeout_s):
            for path, step_timeout_s in steps:
                reply = await post(endpoint.base_url, path, timeout_s=step_timeout_s, api_key=endpoint.api_key)
                if not 200 <= reply.status < 300:
                    raise Temporary(f"POST {path} answered {reply.status}: {reply.text()[:200]}", retry_after_s=1.0, code=code)
                replies.append(reply)
    except CallFailed as error:
        raise Temporary(error.message, retry_after_s=1.0, code=code) from error
    except TimeoutError:
        raise Temporary(f"{len(replies)} of {len(steps)} steps were done after {timeout_s:g} s", retry_after_s=1.0, code=code) from None
    return replies


async def sleep_by_steps(endpoint: Endpoint, level: int, timeout_s: float) -> int:
    """POST the sleep steps. The level of the last reply counts when it names one."""
    reached = level
    for reply in await take_steps(endpoint, endpoint.sleep_paths, timeout_s, Code.SLEEP_FAILED):
        body = reply.json()
        said = body.get("level") if isinstance(body, dict) else None
        if isinstance(said, int):
            reached = said
    return reached


async def wake_by_steps(endpoint: Endpoint, timeout_s: float) -> None:
    """POST the wake steps, then wait until it answers as ready. Raises Temporary ``wake_failed``."""
    try:
        async with asyncio.timeout(timeout_s):
            await take_steps(endpoint, endpoint.wake_paths, timeout_s, Code.WAKE_FAILED)
            while (seen := await looked_at(probe_by_path(endpoint, timeout_s), timeout_s)).answer is not Answer.READY:
                if seen.answer in (Answer.REFUSED, Answer.BROKEN):
                    raise Temporary(f"after the wake steps: {seen.detail}", retry_after_s=1.0, code=Code.WAKE_FAILED)
                await asyncio.sleep(WAKE_POLL_S)  # nothing tells us; a wake takes seconds
    except TimeoutError:
        raise Temporary(f"it did not wake within {timeout_s:g} s", retry_after_s=1.0, code=Code.WAKE_FAILED) from None


async def says_asleep(endpoint: Endpoint, timeout_s: float) -> bool:
    """Any answer but a plain yes is a no. Raises CallFailed without one: a sleeper that was not heard is not ready."""
    reply = await get(endpoint.base_url, SLEEP_STATE_PATH, timeout_s=timeout_s, api_key=endpoint.api_key)
    body = reply.json()
    return reply.status == 200 and isinstance(body, dict) and body.get("is_sleeping") is True


async def probe_by_path(endpoint: Endpoint, timeout_s: float) -> Probe:
    """The ready path: 200 = ready, 503 = starting. With sleep steps also whether it says that it sleeps. Raises CallFailed."""
    path = endpoint.ready_path or DEFAULT_READY_PATH
    reply = await get(endpoint.base_url, path, timeout_s=timeout_s, api_key=endpoint.api_key)
    if reply.status == 503:
        return Probe(answer=Answer.STARTING, detail=f"{path} answers 503")
    if reply.status != 200:
        return Probe(answer=Answer.BROKEN, detail=f"{path} answers {reply.status}; `ready: {{path: ...}}` names another path")
    asleep = bool(endpoint.sleep_paths) and await says_asleep(endpoint, timeout_s)
    return Probe(answer=Answer.ASLEEP if asleep else Answer.READY)
