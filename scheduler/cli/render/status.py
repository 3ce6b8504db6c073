"""`hotseat status`: trouble first, stopped models folded (interfaces.md section 2)."""

from collections.abc import Iterable, Sequence

from scheduler.cli.render.facts import (
    MOVING,
    TROUBLE,
    Json,
    View,
    age,
    clock,
    gib,
    memory,
    requests,
    since,
    state,
    state_paint,
    where,
    whole_gib,
)
from scheduler.cli.render.table import Cell, Column, table
from scheduler.cli.render.text import clean, fit, join_wrapped, width, wrap

SeatNames = dict[str, tuple[str, str | None]]

DEVICE_COLUMNS = (
    Column("DEVICE", 6, give=1),
    Column("KIND", 5, give=2),
    Column("HEALTH", 6),
    Column("USED/TOTAL", 10, right=True),
    Column("FOREIGN", 7, right=True),
    Column("UTIL", 4, right=True),
    Column("W", 4, right=True, gap=2),
    Column("SEATED", 12, give=3),
)
MODEL_COLUMNS = (
    Column("MODEL", 10, give=2, name=True),
    Column("STATE", 14),
    Column("DEVICE", 6, give=1),
    Column("MEM", 5),
    Column("REQ", 4),
    Column("USED", 6),
    Column("WHY", 24, give=3),
)
NO_MODELS = "no models yet; next: write one under `models:` in hotseat.yaml, check it with hotseat config check FILE, restart the daemon"


def render_status(status: Json, host: str, view: View) -> list[str]:
    """The whole screen. ``host`` is how the machine is called."""
    lines = header(status, host, view) + trouble(status, view)
    if status.get("devices"):
        lines += devices(status, view)
    lines += models(status, view)
    return lines + footer(status, view)


def header(status: Json, host: str, view: View) -> list[str]:
    """Host, version, uptime, how many models are in which state, requests held and interrupted."""
    every: Sequence[Json] = status.get("models") or ()
    groups = {"awake": 0, "asleep": 0, "moving": 0, "stopped": 0, "failed": 0}
    for model in every:
        groups[_group(model)] += 1
    counts = "".join(f" {count} {word}" for word, count in groups.items() if count)
    total = f"{len(every)} model{'' if len(every) == 1 else 's'}"
    parts = [clean(host), clean(status.get("version", "?")), f"up {age(status.get('uptime_s'))}", total + (f":{counts}" if counts else "")]
    if not status.get("ready", True):
        parts.append("not ready")
    parts.append(f"held {sum(model.get('held', 0) for model in every)}")
    interrupted = status.get("interrupted", 0)
    if interrupted or view.columns is None or width("  ".join([*parts, "interrupted 0"])) <= view.columns:
        parts.append(f"interrupted {interrupted}")
    return join_wrapped(parts, view.columns)


def _group(model: Json) -> str:
    phase = model.get("phase")
    if phase in ("failed", "backoff"):
        return "failed"
    if phase in ("awake", "asleep", "stopped"):
        return str(phase)
    return "awake" if phase == "draining" else "moving"


#: A whole kind of device cannot be listed; the subject is the kind.
UNREADABLE = "devices_unreadable"


def trouble(status: Json, view: View) -> list[str]:
    """``!`` lines: what is degraded, lost or failed. One that has a fix stands alone, with the fix below."""
    return _told([*_degraded(status, view), *_lost_devices(status), *_failed_models(status, view)], view)


def device_trouble(status: Json, view: View) -> list[str]:
    """As :func:`trouble`, of devices only."""
    ids = {device.get("id") for device in status.get("devices") or ()}
    degraded = [item for item in status.get("degraded") or () if item.get("subject") in ids or item.get("code") == UNREADABLE]
    return _told([*_degraded({"degraded": degraded}, view), *_lost_devices(status)], view)


def _told(items: Sequence[tuple[str, str]], view: View) -> list[str]:
    lines: list[str] = []
    packed: list[str] = []
    for text, fix in items:
        if fix or (packed and view.columns is not None and width("! " + "; ".join([*packed, text])) > view.columns):
            lines += _packed(packed, view)
            packed = []
        packed.append(text)
        if fix:
            lines += _packed(packed, view) + [view.style.dim(line) for line in wrap(f"  fix: {fix}", view.columns, "       ")]
            packed = []
    return lines + _packed(packed, view)


def _packed(texts: Sequence[str], view: View) -> list[str]:
    return [view.style.bad(line) for line in wrap("! " + "; ".join(texts), view.columns)] if texts else []


def _degraded(status: Json, view: View) -> Iterable[tuple[str, str]]:
    """What is said alike of several is said once, with the names of all."""
    alike: dict[tuple[str, str, str, str], list[str]] = {}
    for item in status.get("degraded") or ():
        code, subject = str(item.get("code", "")), str(item.get("subject", ""))
        word = code.removeprefix("device_").removeprefix(f"{subject}_").replace("_", " ")
        at = clock(item.get("since"), view) if item.get("since") else ""
        message = str(item.get("message") or "").removeprefix(f"{subject}: ").removeprefix(f"{subject} ")
        alike.setdefault((word, at, f"({message})" if message else "", str(item.get("fix") or "")), []).append(subject)
    for (word, at, message, fix), subjects in alike.items():
        yield clean(" ".join(part for part in (", ".join(filter(None, subjects)), word, at, message) if part)), clean(fix)


def _lost_devices(status: Json) -> Iterable[tuple[str, str]]:
    told = {item.get("subject") for item in status.get("degraded") or ()}
    for device in status.get("devices") or ():
        if device.get("health", "ok") != "ok" and device.get("id") not in told:
            why = f" ({device['trouble']})" if device.get("trouble") else ""
            yield clean(f"{device.get('id')} {str(device['health']).replace('_', ' ')}{why}"), clean(device.get("fix") or "")


def _failed_models(status: Json, view: View) -> Iterable[tuple[str, str]]:
    told = {item.get("subject") for item in status.get("degraded") or ()}
    for model in status.get("models") or ():
        error, phase = model.get("error"), model.get("phase")
        if phase not in ("failed", "backoff") or model.get("name") in told:
            continue
        message = (error or {}).get("message") or (model.get("reason") or {}).get("text") or "no reason known"
        attempts = (error or {}).get("attempts") or 0
        tries = f" ({attempts} tries)" if attempts > 1 else ""
        retry = (error or {}).get("retry_at") if phase == "backoff" else None  # a failed one is not tried again by itself
        again = f", again at {clock(retry, view, seconds=True)}" if retry else ""
        yield clean(f"{model['name']} {'failed' if phase == 'failed' else 'does not start'}{tries}{again}: {message}"), ""


def devices(status: Json, view: View) -> list[str]:
    """The device table."""
    names = seat_names(status)
    return table(DEVICE_COLUMNS, [_device_row(device, names, view) for device in status["devices"]], view.columns)


def _device_row(device: Json, names: SeatNames, view: View) -> list[str | Cell]:
    ratio, watts = device.get("utilization_ratio"), device.get("power_w")
    return [
        clean(device.get("id", "?")),
        _kind(device),
        health_cell(device, view),
        f"{gib(device.get('used_bytes'))}/{gib(device.get('total_bytes'))}",
        gib(device.get("foreign_bytes")),
        "-" if ratio is None else f"{ratio * 100:.0f}%",
        "-" if watts is None else f"{watts:.0f}",
        seated(device, names),
    ]


def health_cell(device: Json, view: View) -> Cell:
    """``ok``, or what is wrong, in red."""
    health = clean(device.get("health", "ok")).replace("_", " ") + ("+cordoned" if device.get("cordoned") else "")
    return Cell(health, None if health == "ok" else view.style.bad)


def product(device: Json) -> str:
    """The product's name without its maker's: ``A100-SXM4-80GB``."""
    return " ".join(word for word in str(device.get("name") or "").split() if word not in ("NVIDIA", "Tesla", "GeForce", "Quadro"))


def _kind(device: Json) -> str:
    """The product's short name for NVIDIA cards (``A100``), the kind of device for others."""
    if device.get("kind") != "nvidia":
        return clean(device.get("kind") or "?")
    return clean(fit(product(device).partition("-")[0] or "nvidia", 12))


def seat_names(status: Json) -> SeatNames:
    """Instance -> (its model, its phase)."""
    return {i["id"]: (m["name"], i.get("phase")) for m in status.get("models") or () for i in m.get("instances") or ()}


def seated(device: Json, names: SeatNames) -> str:
    """Models that sit on a device, sleepers counted; why nobody can, where it is no seat and nobody does."""
    seats = [names.get(id_, (id_.rpartition("#")[0] or id_, None)) for id_ in device.get("instances") or ()]
    if not seats and device.get("allocatable") is False:
        return clean(f"no seat: {device.get('why_not') or 'not allocatable'}")
    sitting = [name for name, phase in seats if phase != "asleep"]
    asleep = len(seats) - len(sitting)
    if not sitting:
        return f"{asleep} asleep" if asleep else "-"
    return clean(", ".join(sitting)) + (f" +{asleep} asleep" if asleep else "")


def models(status: Json, view: View) -> list[str]:
    """The model table, trouble first, and one line for all that are stopped and wanted by nobody."""
    every: Sequence[Json] = status.get("models") or ()
    if not every:
        return wrap(NO_MODELS, view.columns)
    shown = sorted((model for model in every if not _foldable(model)), key=_rank)
    folded = [clean(model["name"]) for model in every if _foldable(model)]
    lines = table(MODEL_COLUMNS, [_model_row(model, view) for model in shown], view.columns) if shown else []
    return lines + ([view.style.dim(_folded_line(folded, view))] if folded else [])


def _foldable(model: Json) -> bool:
    return model.get("phase") == "stopped" and not model.get("held") and not model.get("error") and model.get("goal") != "awake"


def _rank(model: Json) -> int:
    phase = model.get("phase")
    if phase in TROUBLE or model.get("error"):
        return 0
    if model.get("held") and phase not in ("awake", "waking", "launching"):
        return 1
    if phase in MOVING:
        return 2
    return {"awake": 3, "asleep": 4}.get(str(phase), 5)


def _model_row(model: Json, view: View) -> list[str | Cell]:
    error, reason = model.get("error") or {}, model.get("reason") or {}
    why = error.get("code") or reason.get("text") or reason.get("code") or "-"
    return [
        clean(model["name"]),
        Cell(state(model, view.now), state_paint(model, view.style)),
        where(model),
        memory(model),
        requests(model),
        age(since(model.get("last_used_at"), view.now)),
        clean("-" if why == "none" else why),
    ]


def _folded_line(names: Sequence[str], view: View) -> str:
    """As many names as there is room for, at least one, and how many more there are; linear in their number."""
    head = f"{len(names)} stopped: "
    if view.columns is None:
        return head + " ".join(names)
    used, shown = width(head) - 1, 0  # a blank stands before every name but the first
    for count, name in enumerate(names, 1):
        used += 1 + width(name)
        if used > view.columns:
            break
        if used + len(_more(len(names) - count)) <= view.columns:
            shown = count
    shown = max(1, shown)
    return fit(head + " ".join(names[:shown]) + _more(len(names) - shown), view.columns)


def _more(count: int) -> str:
    return f" +{count}" if count else ""


def footer(status: Json, view: View) -> list[str]:
    """Host memory of sleepers, disk, batch, and what the plan does next; only what there is."""
    parts = []
    host, disk, jobs = status.get("host") or {}, status.get("disk") or {}, status.get("jobs") or {}
    if host.get("sleep_limit_bytes"):
        parts.append(f"host sleep {whole_gib(host.get('sleep_bytes'))}/{whole_gib(host['sleep_limit_bytes'])} GiB")
    if disk.get("state_free_bytes") is not None:
        parts.append(f"disk {whole_gib(disk['state_free_bytes'])} GiB free")
    if jobs.get("running") or jobs.get("queued"):
        parts.append(f"batch {jobs.get('running', 0)} run {jobs.get('queued', 0)} wait")
    steps = (status.get("plan") or {}).get("next") or ()
    if steps:
        parts.append(clean(f"next {clock(steps[0].get('at'), view)} {steps[0].get('action')} {steps[0].get('model')}"))
    return join_wrapped(parts, view.columns) if parts else []
