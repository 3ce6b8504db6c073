"""The answer of ``hotseat config check``, as text and as JSON."""

from typing import Any

from scheduler.config.problems import ConfigInvalid
from scheduler.config.settings import Loaded


def check_text(result: Loaded | ConfigInvalid) -> str:
    """One line when all is well, else every error and their number."""
    if isinstance(result, ConfigInvalid):
        return result.report()
    listen = ", ".join(str(address) for address in result.settings.listen)
    models, devices = _count(len(result.models), "model"), _count(len(result.devices), "declared device")
    looked_for = f", looks for {' and '.join(result.settings.discover)}" if result.settings.discover else ""
    return f"{result.path or 'no configuration file'}: ok, {models}, {devices}{looked_for}, listening on {listen}"


def check_json(result: Loaded | ConfigInvalid) -> dict[str, Any]:
    """The same as data: ``file``, ``ok``, ``models``, ``devices``, ``discover``, ``listen`` (null when not ok), ``problems``.

    ``devices`` are the declared ones, ``discover`` the kinds that are looked for at start.
    """
    if isinstance(result, ConfigInvalid):
        nothing = dict.fromkeys(("models", "devices", "discover", "listen"))
        return {"file": str(result.path), "ok": False, **nothing, "problems": _problems(result)}
    return {
        "file": str(result.path) if result.path is not None else None,
        "ok": True,
        "models": list(result.models),
        "devices": [device.id for device in result.devices],
        "discover": list(result.settings.discover),
        "listen": [str(address) for address in result.settings.listen],
        "problems": [],
    }


def exit_code(result: Loaded | ConfigInvalid) -> int:
    """0 = valid, 1 = not."""
    return 1 if isinstance(result, ConfigInvalid) else 0


def _problems(error: ConfigInvalid) -> list[dict[str, Any]]:
    return [
        {
            "file": problem.file,
            "line": problem.line or None,
            "column": problem.column or None,
            "code": problem.code,
            "message": problem.message,
            "fix": problem.fix or None,
            "source": problem.source or None,
        }
        for problem in error.problems
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
