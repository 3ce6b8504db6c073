"""The adapter of the fake engine: Engine, CanSleep and CountsRequests, used in tests only."""

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.engines.http import CallFailed, get, post
from adapters.engines.metrics_text import sum_of
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.ids import ModelName
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.ports.engine import Answer, CommandLine, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo
from tests.support.fake_knobs import Knobs, knobs_from_json

SCRIPT = Path(__file__).with_name("fake_engine.py")
#: The interpreter and the loop of the fake itself.
BASE_BYTES = 24 << 20
_EXIT = re.compile(r"fake-exit (\w+): (.*)")
_STAGES = {"loading": Answer.STARTING, "awake": Answer.READY, "asleep": Answer.ASLEEP}


def fake_spec(name: str, knobs: Knobs | None = None, **changes: object) -> ModelSpec:
    """A model served by a fake engine with these knobs; ``changes`` are fields of ModelSpec."""
    knobs = knobs or Knobs()
    spec: dict[str, object] = {"name": ModelName(name), "engine": "fake", "args": ("--knobs", knobs.to_json())}
    return ModelSpec(**{**spec, **changes})  # type: ignore[arg-type]


class FakeEngine:
    """Stateless, like every adapter: what the fake does is in its ``--knobs``."""

    @property
    def name(self) -> str:
        return "fake"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        return ("cpu",)

    def owned_flags(self) -> Mapping[str, str]:
        return {"--port": "", "--model": "upstream_model"}

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        able = _knobs(spec).behaviour.levels
        return able if spec.levels is None else tuple(level for level in able if level in spec.levels)

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        if _knobs(spec).behaviour.executable_missing:
            raise Permanent("the fake's program was not found", code=Code.EXECUTABLE_MISSING, fix="turn the knob")
        argv = (sys.executable, "-I", "-S", str(SCRIPT), "--port", str(plan.port), "--model", self.served_model(spec), *spec.args)
        return CommandLine(argv=argv, env={"FAKE_ENGINE": spec.name})

    def served_model(self, spec: ModelSpec) -> str:
        return spec.upstream_model or spec.name

    async def preflight(self, spec: ModelSpec) -> None:
        failure = _knobs(spec).behaviour.preflight
        if failure is not None:
            raise Permanent(failure.text, code=failure.code, fix="turn the knob")

    async def estimate(self, spec: ModelSpec) -> Footprint:
        behaviour = _knobs(spec).behaviour
        guess = behaviour.estimate()
        if behaviour.guess_bytes is not None:
            return guess
        return Footprint(
            awake_bytes=guess.awake_bytes + BASE_BYTES,
            start_peak_bytes=guess.start_peak_bytes + BASE_BYTES,
            residue_bytes={level: size + BASE_BYTES for level, size in guess.residue_bytes.items()},
            host_bytes=guess.host_bytes,
            start_s=guess.start_s,
            weights_bytes=guess.weights_bytes,
            source=guess.source,
        )

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        try:
            reply = await get(endpoint.base_url, "/admin/state", timeout_s=timeout_s)
        except CallFailed as error:
            return Probe(answer=error.kind, detail=error.message)
        except HotseatError as error:
            return Probe(answer=Answer.BROKEN, detail=error.message)
        state = reply.json()
        if reply.status != 200 or not isinstance(state, dict) or state.get("model") != endpoint.served_model:
            return Probe(answer=Answer.BROKEN, detail=f"a stranger answers {reply.status}")
        answer = _STAGES.get(state["stage"], Answer.READY)
        return Probe(answer=answer, level=state["level"] if answer is Answer.ASLEEP else None, version=state["version"])

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        reply = await self._post(endpoint, f"/sleep?level={level}", timeout_s, Code.SLEEP_FAILED)
        return int(reply["level"])

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        await self._post(endpoint, "/wake_up", timeout_s, Code.WAKE_FAILED)
        if (await self.probe(endpoint, timeout_s)).answer is not Answer.READY:
            raise Temporary("it says awake but is not", retry_after_s=1.0, code=Code.WAKE_FAILED)

    async def _post(self, endpoint: Endpoint, path: str, timeout_s: float, code: Code) -> dict[str, Any]:
        try:
            reply = await post(endpoint.base_url, path, timeout_s=timeout_s)
        except CallFailed as error:
            raise Temporary(error.message, retry_after_s=1.0, code=code) from error
        if reply.status != 200:
            raise Temporary(f"{path} answered {reply.status}: {reply.text()}", retry_after_s=1.0, code=code)
        return dict(reply.json())

    async def running(self, endpoint: Endpoint, timeout_s: float) -> int | None:
        try:
            reply = await get(endpoint.base_url, "/metrics", timeout_s=timeout_s)
        except HotseatError:
            return None
        return sum_of(reply.text(), ("fake:requests_running", "fake:requests_waiting"))

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        if exit_info.oom_killed:
            return Reason(Code.HOST_OOM, "the kernel killed it for memory", "turn the knob")
        for line in reversed(log_tail):
            match = _EXIT.search(line)
            if match:
                return Reason(Code(match[1]), match[2], "turn the knob", line)
        how = f"signal {exit_info.signal}" if exit_info.signal is not None else f"status {exit_info.code}"
        return Reason(Code.CRASHED, f"the fake ended with {how}", "turn the knob", log_tail[-1] if log_tail else "")


def _knobs(spec: ModelSpec) -> Knobs:
    args = list(spec.args)
    return knobs_from_json(args[args.index("--knobs") + 1]) if "--knobs" in args else Knobs()


async def requests_seen(base_url: str) -> list[dict[str, Any]]:
    """What a fake engine was asked so far, bodies as base64."""
    reply = await get(base_url, "/admin/log", timeout_s=5.0)
    return list(json.loads(reply.body)["requests"])


async def tell(base_url: str, **speech: object) -> None:
    """Change how a fake engine talks."""
    await post(base_url, "/admin/speech", speech, timeout_s=5.0)


async def wait_ready(engine: FakeEngine, endpoint: Endpoint, within_s: float = 10.0) -> None:
    """Return when it is ready."""
    async with asyncio.timeout(within_s):
        while (await engine.probe(endpoint, 2.0)).answer is not Answer.READY:
            await asyncio.sleep(0.01)
