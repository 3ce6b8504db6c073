"""Common to adapters that start programs: finding them, and filling in placeholders."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.domain.errors import Permanent
from scheduler.domain.model import ModelSpec
from scheduler.domain.placeholders import expand
from scheduler.domain.reasons import Code
from scheduler.ports.engine import LaunchPlan

LOOPBACK = "127.0.0.1"


def values_of(spec: ModelSpec, plan: LaunchPlan) -> dict[str, str]:
    """What stands behind the placeholders of one launch."""
    return {
        "host": LOOPBACK,
        "port": str(plan.port),
        "model": spec.model,
        "name": spec.name,
        "devices": ",".join(plan.devices),
        "kv_bytes": "" if plan.kv_bytes is None else str(plan.kv_bytes),
        "index": str(plan.device_index[0]) if plan.device_index else "0",
    }


def expand_all(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Every word with its placeholders replaced. Raises Invalid (``unknown_placeholder``)."""
    return tuple(expand(word, values, os.environ) for word in words)


def check_program(argv: Sequence[str], spec: ModelSpec) -> None:
    """Raises Permanent ``executable_missing`` when the first word names nothing that can be run."""
    program = argv[0] if argv else ""
    search = dict(spec.env).get("PATH", os.environ.get("PATH"))
    base = Path(spec.cwd) if spec.cwd and os.sep in program else Path()
    if program and shutil.which(base / program if base != Path() else program, path=search):
        return
    there = os.sep in program and (base / program).exists()
    raise Permanent(
        f"{program!r} {'cannot be executed' if there else 'was not found'}",
        code=Code.EXECUTABLE_MISSING,
        fix="chmod +x it, or correct `command`" if there else "install it, or correct `command`",
    )
