"""How vLLM is put to sleep and woken: the procedures that were measured to be safe (query parameters only, in this order).

Never ``/resume``: it would let requests run on memory that is gone. Never a second ``/sleep`` to go deeper or to put a failed
wake back: on a sleeper it does nothing and answers 200.
"""

import asyncio
import re

from adapters.engines.http import CallFailed, Reply, post
from adapters.engines.vllm_golden import ask, is_same, shown, way_of
from adapters.engines.vllm_quirks import Quirks, quirks_of
from adapters.engines.vllm_state import NO_DEV_MODE, answer_of, level_of, running, says, words
from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.reasons import Code
from scheduler.ports.engine import Answer, Endpoint

#: Part of the time that requests in flight get to finish. What is left is for aborting them and copying the weights.
WAIT_SHARE = 0.6
#: Part of the time of a wake that its real request may take: one that answers nothing is wedged, and restarting takes time too.
ANSWER_SHARE = 0.5
POLL_S = 0.1
RESETS = 30  # polls; a prefix cache cannot be reset while blocks are held, by a transfer that is under way for example

_OOM = re.compile(r"out of memory|out_of_memory", re.IGNORECASE)
_NO_RELOAD = re.compile(r"Model reloading with|not support\w* reload", re.IGNORECASE)


async def put_to_sleep(endpoint: Endpoint, level: int, timeout_s: float) -> int:
    """See :meth:`scheduler.ports.engine.CanSleep.sleep`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _sleep(endpoint, level, timeout_s)
    except CallFailed as error:
        raise _failed(error.message, Code.SLEEP_FAILED) from error
    except TimeoutError:
        raise _failed(f"it was not asleep after {timeout_s:g} s", Code.SLEEP_FAILED) from None


async def wake_up(endpoint: Endpoint, level: int, timeout_s: float) -> None:
    """See :meth:`scheduler.ports.engine.CanSleep.wake`."""
    try:
        async with asyncio.timeout(timeout_s):
            await _wake(endpoint, level, timeout_s)
            await _prove(endpoint, level, timeout_s)
    except CallFailed as error:
        raise _failed(error.message, Code.WAKE_FAILED) from error
    except TimeoutError:
        raise _failed(f"it was not awake after {timeout_s:g} s", Code.WAKE_FAILED) from None


# --- sleep ------------------------------------------------------------------------------------------------------------


async def _sleep(endpoint: Endpoint, level: int, timeout_s: float) -> int:
    quirks = quirks_of(endpoint.version)
    if level == 2 and not quirks.can_reload:
        text = f"vLLM {endpoint.version} cannot load its weights again, so it would not come back from level 2"
        raise Permanent(text, code=Code.SLEEP_UNSUPPORTED, fix="use a newer vLLM, or set `levels: [1]`")
    sleeping = await says(endpoint, "/is_sleeping", timeout_s)
    if sleeping is None:
        raise _no_dev_mode()
    if sleeping and (there := await _sleeps_already(endpoint, level, quirks, timeout_s)) is not None:
        return there
    reply = await (_by_modes if quirks.has_modes else _when_idle)(endpoint, level, timeout_s)
    if reply.status == 404:
        raise _no_dev_mode()
    if reply.status != 200:
        raise _failed(f"POST /sleep answered {reply.status}: {words(reply)}", Code.SLEEP_FAILED)
    reached = _level_in(reply, level, quirks)
    if not await says(endpoint, "/is_sleeping", timeout_s):
        raise _failed("it answered that it sleeps, but /is_sleeping says that it does not", Code.SLEEP_FAILED)
    return reached


async def _sleeps_already(endpoint: Endpoint, level: int, quirks: Quirks, timeout_s: float) -> int | None:
    """The level it is at; None when it is only paused, by an earlier try that waits for its requests for example."""
    there = await level_of(endpoint, timeout_s)
    if there == level:
        return level
    if there == 0 and quirks.sleep_pauses:
        return None
    at = f"at level {there}" if there else "at a level it does not tell"
    raise _failed(f"it sleeps {at} already, and cannot get to level {level} from there", Code.SLEEP_FAILED)


async def _by_modes(endpoint: Endpoint, level: int, timeout_s: float) -> Reply:
    """Let requests finish; those that have not after a while are aborted. The first call goes on in the engine, which does no harm."""
    try:
        return await _post(endpoint, f"/sleep?level={level}&mode=wait", timeout_s * WAIT_SHARE)
    except CallFailed as error:
        if error.kind is not Answer.SILENT:
            raise
    return await _post(endpoint, f"/sleep?level={level}&mode=abort", timeout_s)


async def _when_idle(endpoint: Endpoint, level: int, timeout_s: float) -> Reply:
    """Before there were modes, an engine that was put to sleep under a request crashed (vllm#28714)."""
    count = None
    try:
        async with asyncio.timeout(timeout_s * WAIT_SHARE):
            while count := await running(endpoint, timeout_s):  # noqa: ASYNC110 - another process, nothing tells us
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        text = f"{count} requests still run, and vLLM {endpoint.version} crashes when it is put to sleep under them"
        raise _failed(text, Code.SLEEP_FAILED) from None
    return await _post(endpoint, f"/sleep?level={level}", timeout_s)


def _level_in(reply: Reply, level: int, quirks: Quirks) -> int:
    """What it says it reached; engines that say nothing did what they were asked, as far as anybody knows."""
    said = answer_of(reply).get("level")
    if isinstance(said, int) and not isinstance(said, bool):
        return said
    if quirks.says_level:
        raise _failed(f"POST /sleep answered {words(reply)!r}, which does not say at which level it sleeps", Code.SLEEP_FAILED)
    return level


# --- wake -------------------------------------------------------------------------------------------------------------


async def _wake(endpoint: Endpoint, level: int, timeout_s: float) -> None:
    quirks = quirks_of(endpoint.version)
    if level == 2 and quirks.partial_wake:
        await _wake_call(endpoint, "/wake_up?tags=weights", ("sleeping", "awake"), quirks, timeout_s)
        await _reload(endpoint, timeout_s)
        await _wake_call(endpoint, "/wake_up?tags=kv_cache", ("awake",), quirks, timeout_s)
    else:
        await _wake_call(endpoint, "/wake_up", ("awake",), quirks, timeout_s)
        if level == 2:
            await _reload(endpoint, timeout_s)
    if not quirks.says_level and await says(endpoint, "/is_sleeping", timeout_s):
        raise _failed("it answered 200 to /wake_up, but /is_sleeping says that it still sleeps", Code.WAKE_FAILED)
    if level == 2:
        await _reset(endpoint, timeout_s)


async def _wake_call(endpoint: Endpoint, path: str, wanted: tuple[str, ...], quirks: Quirks, timeout_s: float) -> None:
    reply = await _post(endpoint, path, timeout_s)
    if reply.status != 200:
        raise _refused(reply, path)
    status = answer_of(reply).get("status")
    if status not in wanted and (quirks.says_level or status is not None):
        raise _failed(f"POST {path} answered {status!r} instead of {' or '.join(wanted)}", Code.WAKE_FAILED)


async def _reload(endpoint: Endpoint, timeout_s: float) -> None:
    """Level 2 dropped the weights, and nothing in the engine knows: without this it answers 200 and garbage."""
    reply = await _post(endpoint, "/collective_rpc", timeout_s, {"method": "reload_weights"})
    if reply.status != 200:
        raise _refused(reply, "/collective_rpc reload_weights")


async def _reset(endpoint: Endpoint, timeout_s: float) -> None:
    """Forget all cached prefixes: they were computed by weights that are gone."""
    for _ in range(RESETS):
        reply = await _post(endpoint, "/reset_prefix_cache", timeout_s)
        if reply.status != 200:
            raise _refused(reply, "/reset_prefix_cache")
        if answer_of(reply).get("success") is not False:
            return  # up to 0.25 it says nothing
        await asyncio.sleep(POLL_S)
    raise _failed(f"its prefix cache could not be reset in {RESETS} tries: blocks are held", Code.WAKE_FAILED)


async def _prove(endpoint: Endpoint, level: int, timeout_s: float) -> None:
    """A real request: /health answers 200 for a wedged engine and for one that lost its weights."""
    within_s = timeout_s * ANSWER_SHARE
    way = way_of(endpoint.golden)
    if way is None:
        await ask(endpoint, within_s, Code.WAKE_FAILED, tokens=1)
        return
    answer = await ask(endpoint, within_s, Code.WAKE_FAILED, way=way)
    if is_same(endpoint.golden, answer):
        return
    await _reset(endpoint, timeout_s)
    answer = await ask(endpoint, within_s, Code.WAKE_FAILED, way=way)
    if not is_same(endpoint.golden, answer):
        text = f"after its wake it answers {shown(answer)}, before it slept it answered {shown(endpoint.golden)}"
        raise Permanent(text, code=Code.OUTPUT_WRONG, fix="set `levels: [1]`" if level == 2 else "set `levels: []`")


# --- errors -----------------------------------------------------------------------------------------------------------


def _failed(text: str, code: Code) -> Temporary:
    return Temporary(text, retry_after_s=1.0, code=code)


def _no_dev_mode() -> HotseatError:
    fix = "let `command` pass its environment on to vLLM, or set `levels: []`"
    return Permanent(NO_DEV_MODE, code=Code.SLEEP_UNSUPPORTED, fix=fix)


def _refused(reply: Reply, what: str) -> Temporary:
    """A step of a wake that failed, in the engine's words."""
    said = words(reply)
    if _OOM.search(said):
        return Temporary(f"there was no room on the device to wake it: {said}", retry_after_s=1.0, code=Code.DEVICE_OOM)
    fix = "set `levels: [1]`" if _NO_RELOAD.search(said) else ""
    return Temporary(f"POST {what} answered {reply.status}: {said}", retry_after_s=1.0, code=Code.WAKE_FAILED, fix=fix)


async def _post(endpoint: Endpoint, path: str, timeout_s: float, body: object = None) -> Reply:
    return await post(endpoint.base_url, path, body, timeout_s=timeout_s, api_key=endpoint.api_key)
