"""The answer of ``hotseat config check``, as text and as JSON."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from scheduler.config.problems import ConfigInvalid
from scheduler.config.settings import Loaded


class Remark(NamedTuple):
    """What a valid configuration gives cause to say: a warning with what to do, or a note about what was not looked at."""

    level: Literal["warning", "note"]
    message: str
    fix: str = ""


def check_text(result: Loaded | ConfigInvalid, remarks: Sequence[Remark] = ()) -> str:
    """One line when all is well, with the remarks below, else every error and their number."""
    if isinstance(result, ConfigInvalid):
        return result.report()
    listen = ", ".join(str(address) for address in result.settings.listen)
    models, devices = _count(len(result.models), "model"), _count(len(result.devices), "declared device")
    looked_for = f", looks for {' and '.join(result.settings.discover)}" if result.settings.discover else ""
    lines = [f"{result.path or 'no configuration file'}: ok, {models}, {devices}{looked_for}, listening on {listen}"]
    for remark in remarks:
        lines += [f"{remark.level}: {remark.message}", *([f"  fix: {remark.fix}"] if remark.fix else [])]
    return "\n".join(lines)


def check_json(result: Loaded | ConfigInvalid, remarks: Sequence[Remark] = ()) -> dict[str, Any]:
    """The same as data: ``file``, ``ok``, ``models``, ``devices``, ``discover``, ``listen`` (null when not ok), ``problems``, ``remarks``.

    ``devices`` are the declared ones, ``discover`` the kinds that are looked for at start.
    """
    if isinstance(result, ConfigInvalid):
        nothing = dict.fromkeys(("models", "devices", "discover", "listen"))
        return {"file": str(result.path), "ok": False, **nothing, "problems": _problems(result), "remarks": []}
    return {
        "file": str(result.path) if result.path is not None else None,
        "ok": True,
        "models": list(result.models),
        "devices": [device.id for device in result.devices],
        "discover": list(result.settings.discover),
        "listen": [str(address) for address in result.settings.listen],
        "problems": [],
        "remarks": [{**remark._asdict(), "fix": remark.fix or None} for remark in remarks],
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
