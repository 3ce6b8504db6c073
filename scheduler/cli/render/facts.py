"""Small facts in the words people read: ages, sizes, times of day, states."""

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from scheduler.cli.render.text import PLAIN, Paint, Style, clean

Json = Mapping[str, Any]
GIB = 1 << 30

EMPTY = ("stopped",)
TROUBLE = ("failed", "backoff", "unknown")
MOVING = ("launching", "waking", "falling_asleep", "stopping", "draining")


class View(NamedTuple):
    """How to draw: ``now`` is POSIX seconds, ``columns`` None = as wide as needed, ``zone`` None = the host's."""

    now: float
    columns: int | None = None
    style: Style = PLAIN
    zone: tzinfo | None = None


def parse_time(text: object) -> float | None:
    """POSIX seconds of an RFC 3339 time (a number is one already); None when there is none."""
    if isinstance(text, int | float):
        return float(text)
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def since(text: object, now: float) -> float | None:
    """Seconds from an RFC 3339 time until ``now``, never negative; None when unknown."""
    at = parse_time(text)
    return None if at is None else max(0.0, now - at)


def age(seconds: float | None) -> str:
    """``8s``, ``4m``, ``3h``, ``2d``; ``-`` when unknown."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def clock(text: object, view: View, *, seconds: bool = False) -> str:
    """Local time of day; with the date when it is not within the last or next 20 hours. ``-`` when unknown."""
    at = parse_time(text)
    if at is None:
        return "-"
    local = datetime.fromtimestamp(at, view.zone).astimezone(view.zone)
    day = "" if abs(view.now - at) < 20 * 3600 else f"{local:%Y-%m-%d} "
    return day + (f"{local:%H:%M:%S}" if seconds else f"{local:%H:%M}")


def gib(value: object) -> str:
    """Bytes as GiB with one digit; ``-`` when unknown."""
    return f"{value / GIB:.1f}" if isinstance(value, int | float) else "-"


def whole_gib(value: object) -> str:
    """Bytes as whole GiB; ``-`` when unknown."""
    return f"{value / GIB:.0f}" if isinstance(value, int | float) else "-"


def size(value: object) -> str:
    """Bytes for a sentence: ``512 MiB`` or ``17.1 GiB``; ``unknown`` when unknown."""
    if not isinstance(value, int | float):
        return "unknown"
    return f"{value / (1 << 20):.0f} MiB" if abs(value) < GIB else f"{value / GIB:.1f} GiB"


def duration(seconds: object) -> str:
    """Seconds for a sentence: ``2.9 s``, ``45 s``, ``3 min``; ``?`` when unknown."""
    if not isinstance(seconds, int | float):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def short(seconds: float) -> str:
    """Seconds without a unit: one digit below ten."""
    return f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"


def entered_at(model: Json) -> object:
    """When the model's best instance entered its phase."""
    for instance in model.get("instances") or ():
        if instance.get("phase") == model.get("phase"):
            return instance.get("since")
    return None


def state(model: Json, now: float) -> str:
    """``awake``, ``asleep 1``, ``waking 3.2/5s`` (elapsed of expected), ``backoff 12s`` (until the next try)."""
    phase = clean(model.get("phase") or "unknown")
    if not model.get("enabled", True) and phase == "stopped":
        return "disabled"
    if phase == "asleep" and model.get("level") is not None:
        return f"asleep {model['level']}"
    if phase == "backoff":
        retry = parse_time((model.get("error") or {}).get("retry_at"))
        return "backoff" if retry is None else f"backoff {age(max(0.0, retry - now))}"
    elapsed = since(entered_at(model), now)
    if phase in MOVING and phase != "falling_asleep" and elapsed is not None:
        eta = model.get("eta_s") if phase in ("launching", "waking") else None
        if eta is not None:
            return f"{phase} {short(elapsed)}/{elapsed + max(0.0, eta):.0f}s"
        return f"{phase} {age(elapsed) if elapsed >= 600 else short(elapsed) + 's'}"
    return phase.replace("_", " ")


def state_paint(model: Json, style: Style) -> Paint | None:
    """The colour of a model's state."""
    phase = model.get("phase")
    if phase in TROUBLE:
        return style.bad
    if phase in MOVING:
        return style.moving
    return style.good if phase == "awake" else None


def requests(model: Json) -> str:
    """``running/waiting``."""
    return f"{model.get('active', 0)}/{model.get('held', 0)}"


def where(model: Json) -> str:
    """Devices, joined by commas."""
    return clean(",".join(model.get("devices") or ()) or "-")


def memory(model: Json) -> str:
    """Measured GiB, else claimed GiB; ``-`` when it takes nothing."""
    used, claimed = model.get("used_bytes"), model.get("claimed_bytes")
    return gib(used) if used else gib(claimed) if claimed else "-"
