"""Engine ``command``: any program that serves the OpenAI API on ``${port}``.

The operator says how to run it, which path answers 200 when it is ready, and, if it can sleep, which POSTs put it to
sleep and wake it.
"""

import asyncio
from collections.abc import Mapping, Sequence

from adapters.engines.declared import with_declared
from adapters.engines.exits import explain
from adapters.engines.http import looked_at
from adapters.engines.placing import check_program, expand_all, values_of
from adapters.engines.steps import probe_by_path, sleep_by_steps, wake_by_steps
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import Permanent
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import GIB
from scheduler.ports.engine import CommandLine, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo

#: What an unknown program is taken for until it was measured or its sizes were declared.
GUESS_BYTES = GIB


class Command:
    """The adapter. Implements Engine and CanSleep."""

    @property
    def name(self) -> str:
        """``command``."""
        return "command"

    @property
    def device_kinds(self) -> tuple[str, ...]:
        """Whatever there is: the operator knows what the program runs on."""
        return ("nvidia", "amd", "rngd", "rbln", "cpu", "other")

    def owned_flags(self) -> Mapping[str, str]:
        """None: the whole command line is the operator's."""
        return {}

    def levels(self, spec: ModelSpec) -> tuple[int, ...]:
        """``levels`` of the model, or just level 1, when it has both kinds of steps."""
        if not spec.sleep_steps or not spec.wake_steps:
            return ()
        return (1,) if spec.levels is None else tuple(sorted(spec.levels))

    def served_model(self, spec: ModelSpec) -> str:
        """``upstream_model``, or the registered name."""
        return spec.upstream_model or spec.name

    def command(self, spec: ModelSpec, plan: LaunchPlan) -> CommandLine:
        """Raises Permanent ``executable_missing`` without a command, Invalid ``unknown_placeholder``."""
        words = (*_program(spec), *spec.engine_args, *spec.args)
        return CommandLine(argv=expand_all(words, values_of(spec, plan)))

    async def preflight(self, spec: ModelSpec) -> None:
        """Raises Permanent ``executable_missing``."""
        await asyncio.to_thread(check_program, _program(spec), spec)

    async def estimate(self, spec: ModelSpec) -> Footprint:
        """What is declared, else a guess of 1 GiB."""
        return with_declared(Footprint(awake_bytes=GUESS_BYTES, start_peak_bytes=GUESS_BYTES), spec)

    async def probe(self, endpoint: Endpoint, timeout_s: float) -> Probe:
        """The ready path: 200 = ready, 503 = starting. With sleep steps also whether it says that it sleeps."""
        return await looked_at(probe_by_path(endpoint, timeout_s), timeout_s)

    async def sleep(self, endpoint: Endpoint, level: int, timeout_s: float) -> int:
        """POST the sleep steps; see :func:`adapters.engines.steps.sleep_by_steps`."""
        return await sleep_by_steps(endpoint, level, timeout_s)

    async def wake(self, endpoint: Endpoint, level: int, timeout_s: float) -> None:
        """See :func:`adapters.engines.steps.wake_by_steps`."""
        await wake_by_steps(endpoint, timeout_s)

    def explain_exit(self, exit_info: ExitInfo, log_tail: Sequence[str]) -> Reason:
        """What any program may say, else its exit status."""
        return explain(exit_info, log_tail, (), "its command")


def _program(spec: ModelSpec) -> tuple[str, ...]:
    program = spec.command or spec.engine_command
    if not program:
        raise Permanent(f"{spec.name} has no command", code=Code.EXECUTABLE_MISSING, fix="set `command`")
    return program
