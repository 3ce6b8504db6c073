"""What state a running vLLM is in, asked without waking it and without touching it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from adapters.engines.http import CallFailed, Reply, get
from adapters.engines.metrics_text import sum_of
from adapters.engines.vllm_quirks import quirks_of
from scheduler.domain.errors import HotseatError
from scheduler.ports.engine import Answer, Endpoint, Probe

_SLEEP_STATE = re.compile(r'^vllm[:_]engine_sleep_state\{[^}]*\bsleep_state="(\w+)"[^}]*\}\s+(\S+)', re.MULTILINE)
#: The gauge's labels -> the level last asked for. Neither is set while it is only paused (level 0).
_LEVELS: Mapping[str, int] = {"weights_offloaded": 1, "discard_all": 2}
#: Requests in the engine, under each of the names that they had.
_COUNTS = (
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("vllm_num_requests_running", "vllm_num_requests_waiting"),
)

PAUSED = "it is paused, but not asleep: it takes requests and does not answer them"
RESUMED = "it sleeps and yet lets requests run (somebody called /resume): its memory is gone, the next request would crash it"
NO_DEV_MODE = "it was started without VLLM_SERVER_DEV_MODE=1, so it cannot be put to sleep"


@dataclass(frozen=True, slots=True)
class State:
    """``sleeping`` as ``/is_sleeping`` says it, which is also true of an engine that is only paused; None = it cannot be asked.

    ``level``: 1 or 2, 0 when it is only paused, None when it does not tell. ``fault`` says why it must not be used.
    """

    sleeping: bool | None
    level: int | None = None
    fault: str = ""


async def probe(endpoint: Endpoint, timeout_s: float) -> Probe:
    """Who answers, whether it is ready, and whether it sleeps. Raises CallFailed and whatever :func:`get` raises."""
    path = endpoint.ready_path or "/health"
    health = await _ask(endpoint, path, timeout_s)
    if health.status == 503:
        return _broken(f"{path} answers 503: its engine process has died, the server ends by itself")
    if health.status != 200:
        return _broken(f"{path} answers {health.status}: {words(health)}")
    stranger = await _stranger(endpoint, timeout_s)
    if stranger:
        return _broken(stranger)
    version = endpoint.version or await version_of(endpoint, timeout_s)
    state = await look(endpoint, version, timeout_s)
    if state.fault:
        return Probe(answer=Answer.BROKEN, version=version, detail=state.fault)
    if state.sleeping:
        return Probe(answer=Answer.ASLEEP, level=state.level or None, version=version)
    return Probe(answer=Answer.READY, version=version, detail=NO_DEV_MODE if state.sleeping is None else "")


async def look(endpoint: Endpoint, version: str, timeout_s: float) -> State:
    """Asleep, paused, awake, or something that must not be used.

    Before 0.17 sleeping and being paused had nothing to do with each other; since then a sleeper is paused, and one that is
    not was resumed by somebody. A wake that ends between two questions looks like that, so the first is asked once more.
    """
    sleeping = await says(endpoint, "/is_sleeping", timeout_s)
    pauses = quirks_of(version).sleep_pauses
    paused = await says(endpoint, "/is_paused", timeout_s) if sleeping or not pauses else None
    if not sleeping:
        return State(sleeping, level=0 if paused else None, fault=PAUSED if paused else "")
    if pauses and paused is False:
        if not await says(endpoint, "/is_sleeping", timeout_s):
            return State(sleeping=False)
        if await says(endpoint, "/is_paused", timeout_s) is False:
            return State(sleeping=True, fault=RESUMED)
    level = await level_of(endpoint, timeout_s)
    return State(sleeping=True, level=level, fault=PAUSED if level == 0 and pauses else "")


async def says(endpoint: Endpoint, path: str, timeout_s: float) -> bool | None:
    """The one truth value that ``path`` answers; None where there is no such path. Raises CallFailed (BROKEN) for other answers."""
    reply = await _ask(endpoint, path, timeout_s)
    if reply.status == 404:
        return None
    value = answer_of(reply).get(path.removeprefix("/"))
    if reply.status != 200 or not isinstance(value, bool):
        raise CallFailed(Answer.BROKEN, f"{path} answers {reply.status}: {words(reply)}")
    return value


async def level_of(endpoint: Endpoint, timeout_s: float) -> int | None:
    """The level it was last put to, from its metrics: what was asked for, not what was done. 0 = to none; None = it does not say."""
    seen = {}
    for state, value in _SLEEP_STATE.findall(await _metrics(endpoint, timeout_s)):
        seen[state] = value not in ("0", "0.0")
    if not seen:
        return None
    return next((level for state, level in _LEVELS.items() if seen.get(state)), 0)


async def running(endpoint: Endpoint, timeout_s: float) -> int | None:
    """Requests that run or wait, over all its engines. None while it sleeps: its gauges then stand still (0 with a queue)."""
    try:
        if await says(endpoint, "/is_sleeping", timeout_s):
            return None
        text = await _metrics(endpoint, timeout_s)
    except HotseatError:
        return None
    return next((count for count in (sum_of(text, names) for names in _COUNTS) if count is not None), None)


async def version_of(endpoint: Endpoint, timeout_s: float) -> str:
    """What ``/version`` says, or empty."""
    value = answer_of(await _ask(endpoint, "/version", timeout_s)).get("version")
    return value if isinstance(value, str) else ""


def answer_of(reply: Reply) -> Mapping[str, object]:
    """Its JSON object, or an empty one."""
    body = reply.json()
    return body if isinstance(body, dict) else {}


def words(reply: Reply) -> str:
    """An error in the engine's own words: ``{"error": {"message": ...}}``, ``{"detail": ...}``, or the beginning of the body."""
    body = answer_of(reply)
    error = body.get("error", body)
    found = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return " ".join(str(found or reply.text()).split())[:300]


async def _stranger(endpoint: Endpoint, timeout_s: float) -> str:
    """Why this is not the engine that was launched, or empty."""
    reply = await _ask(endpoint, "/v1/models", timeout_s)
    entries = answer_of(reply).get("data")
    if reply.status in (401, 403):
        return f"/v1/models answers {reply.status}: it does not take the key it was started with"
    if reply.status != 200 or not isinstance(entries, list):
        return f"/v1/models answers {reply.status}: this is not vLLM"
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return "" if endpoint.served_model in names else f"it serves {names}, expected was {endpoint.served_model!r}"[:300]


def _broken(detail: str) -> Probe:
    return Probe(answer=Answer.BROKEN, detail=detail)


async def _ask(endpoint: Endpoint, path: str, timeout_s: float) -> Reply:
    return await get(endpoint.base_url, path, timeout_s=timeout_s, api_key=endpoint.api_key)


async def _metrics(endpoint: Endpoint, timeout_s: float) -> str:
    reply = await _ask(endpoint, "/metrics", timeout_s)
    return reply.text() if reply.status == 200 else ""
