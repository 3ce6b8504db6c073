"""The configuration and the running daemon."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.cli.answers import STATUS, VERSION
from scheduler.cli.client import Daemon
from scheduler.cli.doctor.finding import Finding, fail, ok, warn
from scheduler.cli.failure import CliError, DaemonUnreachable

if TYPE_CHECKING:
    from scheduler.domain.model import ModelSpec


class Configured(NamedTuple):
    """What the file says, as far as the doctor cares; ``state_dir`` None = no file, or a broken one."""

    findings: list[Finding]
    cpu_bytes: int = 0
    state_dir: Path | None = None
    engines: Mapping[str, frozenset[str]] = MappingProxyType({})  # type -> programs that enabled models need; "" = what is found
    discovers: bool = True  # NVIDIA cards are looked for
    sleep_bytes: int | None = None  # host.sleep_memory; None = auto


def check_config(argument: str | None, environ: Mapping[str, str], euid: int, home: Path) -> Configured:
    """The configuration file that `serve` would take."""
    from scheduler.cli.commands.config import check_file
    from scheduler.config.find import find_config
    from scheduler.config.settings import Loaded
    from scheduler.daemon.engine_facts import lacking_models

    path = find_config(argument, environ, euid, home)
    if path is None:
        return Configured([ok("config", "no file: the daemon would start without models")])
    result = check_file(path, environ)
    if not isinstance(result, Loaded):
        count = len(result.problems)
        text = f"{path}: {count} error{'' if count == 1 else 's'}"
        return Configured([fail("config", text, f"hotseat config check {path}")])
    cpu = sum(device.memory_bytes for device in result.devices if device.kind == "cpu" and device.use)
    count = len(result.models)
    enabled = [spec for spec in result.models.values() if spec.enabled]
    lacking = [warn("models", f"{name}: {error.message}", error.fix or "correct its model") for name, error in lacking_models(enabled)]
    return Configured(
        [ok("config", f"{path}: {count} model{'' if count == 1 else 's'}"), *lacking],
        cpu,
        result.settings.state_dir,
        _programs(enabled),
        "nvidia" in result.settings.discover,
        result.settings.host_sleep_bytes,
    )


def _programs(specs: "Iterable[ModelSpec]") -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for spec in specs:
        found.setdefault(spec.engine, set()).add(next(iter(spec.command or spec.engine_command), ""))
    return {engine: frozenset(programs) for engine, programs in found.items()}


class Running(NamedTuple):
    """What the daemon says; ``status`` None = it does not answer."""

    findings: list[Finding]
    status: Any = None


def check_daemon(daemon: Daemon, own_version: str) -> Running:
    """Whether a daemon answers, is ours in version, can serve chat, and what it says is degraded."""
    try:
        status = daemon.get("/status", STATUS)
        version = daemon.get("/version", VERSION)["version"]
    except DaemonUnreachable as error:
        return Running([_unreachable(error)])
    except CliError as error:
        return Running([fail("daemon", error.message, error.fix)])
    where = daemon.answered.label if daemon.answered else "?"
    findings = [ok("daemon", f"{version} answers at {where}")]
    if version != own_version:
        findings = [
            warn("daemon", f"{version} answers at {where}, this command is {own_version}", "restart the daemon; engines keep running")
        ]
    if not status.get("ready", False):
        findings.append(fail("daemon", "not ready: it cannot serve chat now", "see what is degraded below, and hotseat logs"))
    findings += _degraded(status.get("degraded") or ())
    told = {item.get("subject") for item in status.get("degraded") or ()}
    broken = [model["name"] for model in status.get("models") or () if model.get("phase") in ("failed", "backoff")]
    failed = [name for name in broken if name not in told]
    findings += [warn("models", f"{name} does not start", f"hotseat status {name}") for name in failed]
    return Running(findings, status)


def _unreachable(error: DaemonUnreachable) -> Finding:
    if error.detail:  # nobody accepted a connection: it simply does not run
        return warn("daemon", f"not running ({'; '.join(line.removeprefix('tried ') for line in error.detail)})", "hotseat serve")
    return fail("daemon", error.message, error.fix)


def _degraded(items: Iterable[Any]) -> Iterator[Finding]:
    """What is said alike of several devices or models is one finding that names them all."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        subject, message = str(item.get("subject")), str(item.get("message"))
        told = (
            str(item.get("code")),
            message.removeprefix(f"{subject}: ").removeprefix(f"{subject} "),
            item.get("fix") or "hotseat events",
        )
        alike.setdefault(told, []).append(subject)
    for (code, message, fix), subjects in alike.items():
        yield fail("daemon", f"degraded: {code} ({', '.join(subjects)}): {message}", fix)


def cpu_budget(status: Any) -> tuple[int, int]:
    """Bytes of all devices of kind cpu, and how many of them our own engines use."""
    devices = [device for device in (status or {}).get("devices") or () if device.get("kind") == "cpu"]
    total = sum(device.get("total_bytes") or 0 for device in devices)
    own = sum(max(0, (device.get("used_bytes") or 0) - (device.get("foreign_bytes") or 0)) for device in devices)
    return total, own
