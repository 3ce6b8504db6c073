"""Engine ``attached``: a server that somebody else started on this host. It is measured, put to sleep and woken, nothing more.

With ``sleep_steps`` and ``wake_steps`` of its own it does those; without, it is spoken to as vLLM is.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from adapters.engines.declared import with_declared
from adapters.engines.exits import explain
from adapters.engines.http import looked_at
from adapters.engines.placing import LOOPBACK
from adapters.engines.steps import probe_by_path, sleep_by_steps, wake_by_steps
from adapters.engines.vllm_golden import ask, is_same, way_of
from adapters.engines.vllm_sleep import put_to_sleep, wake_up
from adapters.engines.vllm_state import probe as probe_vllm
from adapters.engines.vllm_state import running as running_in_vllm
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import Permanent
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.ports.engine import CommandLine, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo

#: What an engine that was never measured is taken for.
GUESS_BYTES = GIB


class Attached:
    """The adapter. Implements Engine, Attaches, CanSleep, WarmsUp and CountsRequests."""

    @property
    def name(self) -> str:
        """``attached``."""
        return "attached"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """Whatever it runs on: the model names the devices."""
        return ("nvidia", "amd", "rngd", "rbln", "cpu", "other")

    def owned_flags(self) -> Mapping[str, str]:
        """None: it is not started here."""
        return {}

    def port(self, spec: ModelSpec) -> int:
        """From ``url``. Raises Permanent when that is no plain HTTP address of this host."""
        try:
            parts = urlsplit(spec.url)
            found = parts.port if parts.scheme == "http" and parts.hostname in (LOOPBACK, "localhost") else None
        except ValueError:
            found = None
        if not found:
            text = f"{spec.url!r} is not the address of an engine on this host"
            raise Permanent(text, code=Code.ENGINE_LOST, fix=f"write url: http://{LOOPBACK}:PORT")
        return found

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        """Those the model names; else level 1. What frees nothing is found out and not used again."""
        return (1,) if spec.levels is None else tuple(sorted(spec.levels))

    def served_model(self, spec: ModelSpec) -> str:
        """``upstream_model``, or the registered name."""
        return spec.upstream_model or spec.name

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        """Nothing is run."""
        return CommandLine(argv=())

    async def preflight(self, spec: ModelSpec) -> None:
        """Raises Permanent for a bad ``url``."""
        self.port(spec)

    async def estimate(self, spec: ModelSpec) -> Footprint:
        """What is declared, else a guess of 1 GiB until it was measured. It has no start to speak of."""
        return with_declared(Footprint(awake_bytes=GUESS_BYTES, start_peak_bytes=GUESS_BYTES, start_s=1.0, stop_s=0.1), spec)

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        """With steps of its own as ``command``, else as ``vllm``."""
        return await looked_at((probe_by_path if endpoint.sleep_paths else probe_vllm)(endpoint, timeout_s), timeout_s)

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        """See :class:`scheduler.ports.engine.CanSleep`."""
        if endpoint.sleep_paths:
            return await sleep_by_steps(endpoint, level, timeout_s)
        return await put_to_sleep(endpoint, level, timeout_s)

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        """See :class:`scheduler.ports.engine.CanSleep`."""
        await (wake_by_steps(endpoint, timeout_s) if endpoint.wake_paths else wake_up(endpoint, level, timeout_s))

    async def warm_up(self, endpoint: Endpoint, timeout_s: float) -> str:
        """One golden question, so that a wake to wrong answers is noticed; it was warm before."""
        if endpoint.sleep_paths:
            return ""
        first = await ask(endpoint, timeout_s, Code.ENGINE_LOST)
        second = await ask(endpoint, timeout_s, Code.ENGINE_LOST, way=way_of(first)) if first else ""
        return second if first and is_same(first, second) else ""

    async def running(self, endpoint: Endpoint, timeout_s: float) -> int | None:
        """From vLLM's metrics where it has them: others than our requests may run in it."""
        return await running_in_vllm(endpoint, timeout_s)

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        """How it ended is its owner's business; that it did is what matters here."""
        found = explain(exit_info, log_tail, (), "the attached engine")
        return Reason(Code.ENGINE_LOST, "the attached engine has ended", "start it again; it is taken in again by itself", found.log_line)
