"""`hotseat doctor`: works without a daemon, and tells more with one."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from scheduler.cli.client import SYSTEM_STATE_DIR, user_state_dir
from scheduler.cli.context import Context
from scheduler.cli.doctor.engines import check_engines
from scheduler.cli.doctor.finding import Finding
from scheduler.cli.doctor.gpu import check_nvidia, look_at_host
from scheduler.cli.doctor.installation import check_packages, check_python, check_sqlite
from scheduler.cli.doctor.machine import check_limits, check_memory, check_shm, check_sleep_memory, check_state_dir
from scheduler.cli.doctor.running import check_config, check_daemon, cpu_budget
from scheduler.cli.failure import FAILED, OK
from scheduler.cli.render.facts import View
from scheduler.cli.render.text import clean, wrap
from scheduler.version import VERSION


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `doctor`."""
    parser.add_argument("--config", metavar="FILE", help="configuration file to check (default: the one serve would take)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(context: Context) -> int:
    """All checks; 1 when one of them failed."""
    findings = examine(context)
    failed = any(finding.state == "fail" for finding in findings)
    if context.args.json:
        context.say_json({"ok": not failed, "findings": [finding._asdict() for finding in findings]})
    else:
        context.say(render(findings, context.view()))
    return FAILED if failed else OK


def examine(context: Context) -> list[Finding]:
    """Every finding, installation first, the running daemon last."""
    from scheduler.daemon.gpu_facts import nvidia_facts  # it brings event loop and driver with it: not for --help

    args, environ = context.args, context.environ
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    config = check_config(args.config, environ, os.geteuid(), home)
    running = check_daemon(context.daemon, VERSION)
    total, own = cpu_budget(running.status)
    facts = nvidia_facts({d["uuid"]: d["id"] for d in (running.status or {}).get("devices", ()) if d.get("uuid")})
    seats = [device for device in facts.devices if device.allocatable] if "vllm" in config.engines and config.discovers else []
    largest = max((device.capacity_bytes for device in seats), default=0)
    sleep_bytes = running.status["host"]["sleep_limit_bytes"] if running.status is not None else config.sleep_bytes
    default = SYSTEM_STATE_DIR if os.geteuid() == 0 else user_state_dir(str(home))
    state_dir = Path(args.state_dir or environ.get("HOTSEAT_STATE_DIR") or config.state_dir or default)
    return [
        check_python(),
        check_sqlite(),
        *check_packages(),
        *check_nvidia(look_at_host(), lambda: facts, discovers=config.discovers),
        *check_engines(environ.get("PATH"), config.engines),
        *config.findings,
        *check_state_dir(state_dir.expanduser().absolute()),
        *check_memory(total or config.cpu_bytes, own),
        *check_sleep_memory(sleep_bytes, largest),
        check_shm(),
        *check_limits(),
        *running.findings,
    ]


def render(findings: Sequence[Finding], view: View) -> list[str]:
    """A line each, with the fix below; the count of what is wrong at the end."""
    paints = {"ok": view.style.good, "warn": view.style.moving, "fail": view.style.bad}
    lines = []
    for finding in findings:
        first, *more = wrap(f"{finding.state:<4}  {finding.name:<10}  {clean(finding.text)}", view.columns, " " * 18)
        lines += [paints[finding.state](finding.state) + first[len(finding.state) :], *more]
        if finding.fix:
            lines += wrap(f"{'':<18}fix: {clean(finding.fix)}", view.columns, " " * 23)
    counts = {state: sum(finding.state == state for finding in findings) for state in ("fail", "warn")}
    warnings = f"{counts['warn']} warning{'' if counts['warn'] == 1 else 's'}"
    return [*lines, f"{counts['fail']} failed, {warnings}" if any(counts.values()) else "all is well"]
