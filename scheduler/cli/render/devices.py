"""`hotseat devices` and the card of one device."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scheduler.cli.render.facts import Json, View, age, gib, since, size
from scheduler.cli.render.status import SeatNames, device_trouble, health_cell, product, seat_names, seated
from scheduler.cli.render.table import Cell, Column, table
from scheduler.cli.render.text import Paint, clean, fit_middle, flow, pad, width, wrap

COLUMNS = (
    Column("ID", 4),
    Column("KIND", 4),
    Column("NAME", 5, give=3),
    Column("HEALTH", 6),
    Column("USED/TOTAL", 10, right=True),
    Column("FOREIGN", 7, right=True),
    Column("CLAIMED", 7, right=True),
    Column("UTIL", 4, right=True),
    Column("W", 3, right=True),
    Column("TEMP", 4, right=True),
    Column("SEATED", 8, give=4),
)
NO_DEVICES = (
    "no devices: no NVIDIA card was found and none is declared; next: hotseat doctor says what this machine has; "
    "a CPU is declared in hotseat.yaml: devices: {declared: [{id: cpu0, kind: cpu, memory: 8GiB}]}"
)
WIDE = 120  # columns at which names are whole
LABEL = 12
AMOUNT = 9  # "140.0 GiB"
_INDENT = " " * LABEL
_LINKS = {"nvlink": "same NVLink island as", "pcie": "same PCIe root as", "numa": "same NUMA node as", "host": "same host as"}


def render_devices(status: Json, view: View) -> list[str]:
    """The table, trouble first; below it why a device is no seat, where its line had to be cut."""
    devices: Sequence[Json] = status.get("devices") or ()
    if not devices:  # nobody can say that there is none while the driver does not tell
        return device_trouble(status, view) or wrap(NO_DEVICES, view.columns)
    names = seat_names(status)
    rows = table(COLUMNS, [_row(device, names, view) for device in devices], view.columns)
    cut = [device for device, row in zip(devices, rows[1:], strict=True) if row.endswith("…")]
    notes = [
        line
        for device in cut
        if device.get("allocatable") is False and not device.get("instances")
        for line in wrap(clean(f"{device.get('id', '?')} is {seated(device, names)}"), view.columns, "  ")
    ]
    return device_trouble(status, view) + rows + notes


def _row(device: Json, names: SeatNames, view: View) -> list[str | Cell]:
    ratio, watts, celsius = device.get("utilization_ratio"), device.get("power_w"), device.get("temperature_c")
    return [
        clean(device.get("id", "?")),
        clean(device.get("kind") or "?"),
        clean(_name(device, view)),
        health_cell(device, view),
        f"{gib(device.get('used_bytes'))}/{gib(device.get('total_bytes'))}",
        gib(device.get("foreign_bytes")),
        gib(device.get("claimed_bytes")),
        "-" if ratio is None else f"{ratio * 100:.0f}%",
        "-" if watts is None else f"{watts:.0f}",
        "-" if celsius is None else f"{celsius:.0f}",
        seated(device, names),
    ]


def _name(device: Json, view: View) -> str:
    """The product; where there is little room without its variant: ``A100`` for ``A100-SXM4-80GB``."""
    name = product(device) or "-"
    if view.columns is None or view.columns >= WIDE:
        return name
    words = name.split(" ")
    return " ".join([words[0].partition("-")[0] or words[0], *words[1:]])


# --- the card ------------------------------------------------------------------------------------------------------------


def render_device(device: Json, view: View) -> list[str]:
    """`hotseat devices show ID`: which one, its health, its memory line by line, what it is linked with, its modes."""
    lines = _headline(device, view)
    for label, text in _identity(device, view):
        lines += _labelled(label, text, view)
    lines += _memory(device, view)
    for label, text in _rest(device):
        lines += _labelled(label, text, view)
    return lines


def _labelled(label: str, text: str, view: View) -> list[str]:
    return wrap(f"{label:<{LABEL}}{clean(text)}", view.columns, _INDENT)


def _headline(device: Json, view: View) -> list[str]:
    health = health_cell(device, view)
    parts: list[tuple[str, Paint | None]] = [
        (clean(device.get("id", "?")), None),
        (clean(device.get("name") or device.get("kind") or "?"), None),
        (health.text, health.paint or view.style.good),
    ]
    if device.get("allocatable") is False:
        parts.append(("no seat", view.style.moving))
    return flow(parts, view.columns)


def _identity(device: Json, view: View) -> Iterator[tuple[str, str]]:
    if device.get("trouble"):
        yield "trouble", str(device["trouble"])
    if device.get("fix"):
        yield "fix", str(device["fix"])
    if device.get("allocatable") is False:
        yield "no seat", str(device.get("why_not") or "it is only watched")
    parts = [str(device.get("kind") or "unknown")]
    parts += [f"index {device['index']}"] if device.get("index") is not None else []
    parts += [f"PCI {device['pci']}"] if device.get("pci") else []
    parts += [f"NUMA node {device['numa_node']}"] if device.get("numa_node") is not None else []
    parts += [f"part of {device['parent']}"] if device.get("parent") else []
    yield "identity", ", ".join(parts)
    if device.get("uuid"):
        yield "uuid", str(device["uuid"])
    measured = since(device.get("sampled_at"), view.now)
    if measured is not None:
        source = f" from {device['source']}" if device.get("source") else ""
        doubt = "; some processes have no number of their own, so theirs is inferred" if device.get("estimated") else ""
        yield "measured" if device.get("free_bytes") is not None else "looked at", f"{age(measured)} ago{source}{doubt}"


class _Line(NamedTuple):
    """One line of the account of memory; ``deep`` ones are parts of the line above."""

    name: str
    amount: object
    note: str = ""
    deep: bool = False


def _memory(device: Json, view: View) -> list[str]:
    lines = list(_account(device))
    longest = max(width(line.name) + 2 * line.deep for line in lines)
    # On a terminal, names give way before notes do.
    room = longest if view.columns is None else min(longest, max(8, view.columns - LABEL - AMOUNT - 32))
    drawn: list[str] = []
    for index, line in enumerate(lines):
        label = "memory" if index == 0 else ""
        inner = room - 2 * line.deep
        name = "  " * line.deep + pad(fit_middle(line.name, inner), inner)
        amount = size(line.amount) if line.amount is not None else "?"
        drawn += wrap(f"{label:<{LABEL}}{name}  {amount:>{AMOUNT}}  {line.note}".rstrip(), view.columns, " " * (LABEL + room + AMOUNT + 4))
    return drawn


def _account(device: Json) -> Iterator[_Line]:
    """Capacity, what stays empty, what is ours, what is foreign, what is free."""
    yield _Line("capacity", device.get("total_bytes"))
    if device.get("reserved_bytes"):
        yield _Line("reserved", device["reserved_bytes"], "by the driver")
    yield _Line("headroom", device.get("headroom_bytes") or 0, "kept free by configuration")
    yield _Line("ours", device.get("claimed_bytes") or 0, "claimed")
    claims: Sequence[Json] = device.get("claims") or ()
    for claim in sorted(claims, key=lambda claim: -(claim.get("claimed_bytes") or 0)):
        yield _Line(clean(claim.get("model", "?")), claim.get("claimed_bytes"), _claim_note(claim), deep=True)
    yield _Line("foreign", device.get("foreign_bytes"), "" if device.get("foreign_bytes") is not None else "not measured")
    strangers: Sequence[Json] = device.get("strangers") or ()
    for stranger in sorted(strangers, key=lambda process: -(process.get("used_bytes") or 0)):
        note = clean(stranger.get("name") or "name unknown") + ("" if stranger.get("used_bytes") is not None else ", size not told")
        yield _Line(f"pid {stranger.get('pid', '?')}", stranger.get("used_bytes"), note, deep=True)
    yield _Line("free", device.get("free_bytes"), "measured" if device.get("free_bytes") is not None else "not measured")
    if device.get("margin_bytes") is not None:
        yield _Line("margin", device["margin_bytes"], "kept free when growing")


def _claim_note(claim: Json) -> str:
    level = f" {claim['level']}" if claim.get("level") is not None else ""
    used = f", uses {size(claim['used_bytes'])}" if claim.get("used_bytes") is not None else ", not measured"
    return clean(f"{str(claim.get('phase', '?')).replace('_', ' ')}{level}{used}")


def _rest(device: Json) -> Iterator[tuple[str, str]]:
    links: Sequence[Json] = device.get("links") or ()
    for index, link in enumerate(links):
        words = _LINKS.get(str(link.get("kind")), "linked with")
        yield "" if index else "links", f"{words} {', '.join(map(str, link.get('devices') or ()))}"
    if device.get("max_processes") is not None:
        count = device["max_processes"]
        yield "processes", f"at most {count} engine process{'' if count == 1 else 'es'} at a time, sleepers included"
    use = []
    if device.get("utilization_ratio") is not None:
        use.append(f"{device['utilization_ratio'] * 100:.0f}% busy")
    if device.get("power_w") is not None:
        use.append(f"{device['power_w']:.0f} W")
    if device.get("temperature_c") is not None:
        use.append(f"{device['temperature_c']:.0f} degrees C")
    if device.get("throttle"):
        use.append(f"slowed down by: {', '.join(map(str, device['throttle']))}")
    if use:
        yield "load", ", ".join(use)
    facts: Json = device.get("facts") or {}
    if facts:
        yield "modes", ", ".join(f"{name} {value}" for name, value in facts.items())
