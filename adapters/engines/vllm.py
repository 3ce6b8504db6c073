"""Engine ``vllm``: one ``vllm serve`` per model, with its sleep mode and its own opinion about nothing.

Sizes are given in bytes, so that neither a neighbour's nor a sleeper's memory changes what an engine takes. Dev mode is on,
since sleeping needs it; its routes have no key, which is why the engine listens on loopback only.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adapters.engines import vllm_size
from adapters.engines.http import looked_at
from adapters.engines.placing import LOOPBACK, check_program, expand_all, values_of
from adapters.engines.vllm_exits import explain_exit
from adapters.engines.vllm_flags import FIXED_ENV, OWNED, expandable_segments, levels_of, owned_in
from adapters.engines.vllm_golden import ask, is_same, way_of
from adapters.engines.vllm_sleep import put_to_sleep, wake_up
from adapters.engines.vllm_state import probe, running
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.ports.engine import CommandLine, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo

PROGRAM = "vllm"
#: Device bytes that a process holds before vLLM looks at what is free: its context, and NCCL's buffers with several devices.
CONTEXT_BYTES = GIB
CONTEXT_BYTES_OF_GANG = 2 * GIB

_ENV: Mapping[str, str] = {
    "VLLM_SERVER_DEV_MODE": "1",  # /sleep, /wake_up, /is_sleeping, /collective_rpc
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


class Vllm:
    """The adapter. Implements Engine, CanSleep, WarmsUp and CountsRequests."""

    @property
    def name(self) -> str:
        """``vllm``."""
        return "vllm"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """NVIDIA cards; the CPU when there is none, or when the model asks for it."""
        return ("nvidia", "cpu")

    def owned_flags(self) -> Mapping[str, str]:
        """The flags of :data:`adapters.engines.vllm_flags.OWNED` and the variables of FIXED_ENV; an empty key = hotseat decides alone."""
        return {**OWNED, **FIXED_ENV}

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        """From its flags. On the CPU level 1, of which measurement will tell that it frees nothing.

        With a command of the operator's own only when that command has sleep mode, or ``levels`` says so.
        """
        if spec.command and spec.levels is None and not any(word.startswith("--enable-sleep-mode") for word in spec.command):
            return ()
        found = levels_of((*spec.command, *spec.engine_args, *spec.args), spec.model)
        return found[:1] if spec.devices.kind == "cpu" else found

    def served_model(self, spec: ModelSpec) -> str:
        """The one name it is started with."""
        return spec.upstream_model or spec.name

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        """Raises Permanent (executable_missing, model_missing, unknown_flag) and Invalid (unknown_placeholder)."""
        values = values_of(spec, plan)
        given = expand_all((*spec.engine_args, *spec.args), values)
        kind = plan.device_kind or spec.devices.kind or self.device_kinds[0]
        sleeps = kind != "cpu" and bool(self._wanted_levels(spec))
        _refuse_owned(given, spec)
        if sleeps and (refused := self.refused_variable(spec)) is not None:
            raise refused[1]
        env = _environment(plan, kind)
        if spec.command:
            return CommandLine(argv=(*expand_all(spec.command, values), *given), env=env)
        own = ("serve", model_argument(spec), "--host", LOOPBACK, "--port", str(plan.port), "--served-model-name", self.served_model(spec))
        sized = () if kind == "cpu" else _sizes(plan)
        sleep = ("--enable-sleep-mode",) if sleeps else ()
        gang = ("--tensor-parallel-size", str(len(plan.devices))) if len(plan.devices) > 1 else ()
        return CommandLine(argv=(*find_program(spec), *own, *sleep, *sized, *gang, *given), env=env)

    def refused_variable(self, spec: ModelSpec) -> tuple[str, HotseatError] | None:
        """The variable with which a model that may sleep is not started on a card, and why; None = all may stay."""
        name = expandable_segments(dict(spec.env)) if self._wanted_levels(spec) else ""
        if not name:
            return None
        text = f"{name} turns on expandable_segments, whose memory a sleeping vLLM does not give back"
        fix = "remove expandable_segments:True from it, or set `levels: []` so that the model is only started and stopped"
        return name, Permanent(text, code=Code.UNKNOWN_FLAG, fix=fix)

    def _wanted_levels(self, spec: ModelSpec) -> tuple[int, ...]:
        able = self.levels(spec)
        return able if spec.levels is None else tuple(level for level in able if level in spec.levels)

    async def preflight(self, spec: ModelSpec) -> None:
        """Raises Permanent: executable_missing, model_missing, model_unreadable."""
        await asyncio.to_thread(_check, spec)

    async def estimate(self, spec: ModelSpec) -> Footprint:
        """From the model's folder and the flags; see :mod:`adapters.engines.vllm_size`."""
        found = await asyncio.to_thread(vllm_size.estimate, spec)
        return _in_whole_gib(found) if spec.devices.kind == "cpu" else found

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        """See :func:`adapters.engines.vllm_state.probe`."""
        return await looked_at(probe(endpoint, timeout_s), timeout_s)

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        """See :mod:`adapters.engines.vllm_sleep`. Raises Temporary ``sleep_failed`` and Permanent ``sleep_unsupported``."""
        return await put_to_sleep(endpoint, level, timeout_s)

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        """See :mod:`adapters.engines.vllm_sleep`. Raises as :meth:`scheduler.ports.engine.CanSleep.wake` says."""
        await wake_up(endpoint, level, timeout_s)

    async def warm_up(self, endpoint: Endpoint, timeout_s: float) -> str:
        """The golden question, twice: the first answer pays for what is compiled late, the second is kept.

        Empty when the two differ (then there is nothing to compare with), or when it can be asked in no way.
        """
        try:
            async with asyncio.timeout(timeout_s):
                first = await ask(endpoint, timeout_s, Code.ENGINE_LOST)
                if not first:
                    return ""
                second = await ask(endpoint, timeout_s, Code.ENGINE_LOST, way=way_of(first))
                return second if is_same(first, second) else ""
        except TimeoutError:
            text = f"it is ready, but did not answer its first request within {timeout_s:g} s"
            raise Temporary(text, retry_after_s=1.0, code=Code.ENGINE_LOST) from None

    async def running(self, endpoint: Endpoint, timeout_s: float) -> int | None:
        """From ``/metrics``; None while it sleeps."""
        return await running(endpoint, timeout_s)

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        """See :mod:`adapters.engines.vllm_exits`."""
        return explain_exit(exit_info, log_tail)


def find_program(spec: ModelSpec) -> tuple[str, ...]:
    """The words before ``serve``. Raises Permanent ``executable_missing``."""
    if spec.engine_command:
        check_program(spec.engine_command, spec)
        return spec.engine_command
    found = shutil.which(PROGRAM, path=dict(spec.env).get("PATH", os.environ.get("PATH")))
    if found is not None:
        return (os.path.abspath(found),)
    raise Permanent(
        f"there is no {PROGRAM} on PATH",
        code=Code.EXECUTABLE_MISSING,
        fix="install vLLM (pip install vllm, in an environment of its own) and set engines.vllm.command to its bin/vllm",
    )


def model_argument(spec: ModelSpec) -> str:
    """A folder or file as an absolute path, counted from the model's ``cwd``; anything else is the id of a repository."""
    if not spec.model:
        raise Permanent(f"{spec.name} has no model", code=Code.MODEL_MISSING, fix="set `model` to a folder or to a repository's id")
    path = Path(spec.cwd) / spec.model
    return os.path.abspath(path) if path.exists() else spec.model


def _check(spec: ModelSpec) -> None:
    if spec.command:
        check_program(spec.command, spec)
    else:
        find_program(spec)
    if spec.model or not spec.command:
        vllm_size.check(spec)


def _sizes(plan: LaunchPlan) -> tuple[str, ...]:
    """The KV cache in bytes, and the share of the device that vLLM requires to be free when it starts.

    That share is checked with a KV cache in bytes as well, and its default is 0.92: beside sleepers, no engine would start. It
    decides nothing else then, so it may say less than the claim by what the process holds already when it is checked.
    """
    kv = () if plan.kv_bytes is None else ("--kv-cache-memory-bytes", str(plan.kv_bytes))
    if plan.claim_bytes <= 0 or plan.capacity_bytes <= 0:
        return kv
    held = 0 if plan.kv_bytes is None else CONTEXT_BYTES_OF_GANG if len(plan.devices) > 1 else CONTEXT_BYTES
    thousandths = max(plan.claim_bytes - held, 0) * 1000 // plan.capacity_bytes
    return (*kv, "--gpu-memory-utilization", f"{min(max(thousandths, 10), 1000) / 1000:g}")


def _gib(kv_bytes: int) -> int:
    """GiB of KV cache on the CPU: whole ones, at least one; rounded up, since less than one request does not start."""
    return max(1, -(-kv_bytes // GIB))


def _in_whole_gib(found: Footprint) -> Footprint:
    """An estimate with the KV cache that the CPU's variable can say."""
    if found.kv_bytes <= 0:
        return found  # an encoder, which has none
    more = _gib(found.kv_bytes) * GIB - found.kv_bytes
    return replace(
        found,
        awake_bytes=found.awake_bytes + more,
        start_peak_bytes=max(found.start_peak_bytes, found.awake_bytes + more),
        kv_bytes=found.kv_bytes + more,
        kv_min_bytes=_gib(found.kv_min_bytes) * GIB,
    )


def _environment(plan: LaunchPlan, kind: str) -> dict[str, str]:
    env = dict(_ENV)
    if plan.api_key:
        env["VLLM_API_KEY"] = plan.api_key
    if kind == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""  # a seat on the CPU must not spill on a graphics card
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # else each engine binds its threads to the same cores
        env["VLLM_CPU_KVCACHE_SPACE"] = str(_gib(plan.kv_bytes or 0))  # its own default is most of the host
        return env
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    visible = plan.device_uuid if plan.by_uuid or not plan.device_index else tuple(str(index) for index in plan.device_index)
    if visible:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
    return env


def _refuse_owned(args: Sequence[str], spec: ModelSpec) -> None:
    found, owned = owned_in(args, (name for name, _ in spec.env))
    if found:
        key = OWNED.get(owned, FIXED_ENV.get(owned, ""))
        means = "" if found.startswith(owned) else f" means {owned}, which"
        raise Permanent(
            f"{found}{means} is set by hotseat itself",
            code=Code.UNKNOWN_FLAG,
            fix=f"remove it and use `{key}`" if key else "remove it",
        )
