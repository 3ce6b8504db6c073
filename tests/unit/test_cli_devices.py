"""Golden screens of `hotseat devices` and of a device's card, as in test_cli_render."""

import json
from collections.abc import Callable
from datetime import UTC

import pytest

from scheduler.api.schemas import DeviceDetail
from scheduler.cli.render.devices import render_device, render_devices
from scheduler.cli.render.facts import View
from scheduler.cli.render.status import render_status
from scheduler.cli.render.text import Style, width
from tests.support import world_devices, worlds
from tests.support.fake_plane import T0
from tests.unit.test_cli_render import WAYS, as_json, compare

CARDS: dict[str, Callable[[], DeviceDetail]] = {
    "device_missing": lambda: world_devices.detail(world_devices.missing()),
    "device_busy": world_devices.busy_card,
    "device_lost": world_devices.lost_card,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_table(way: str) -> None:
    lines = render_devices(as_json(world_devices.machine()), View(T0, WAYS[way], zone=UTC))
    compare(f"devices_{way}", lines)
    if WAYS[way]:
        assert [line for line in lines if width(line) > 80] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CARDS)
def test_the_card(name: str, way: str) -> None:
    lines = render_device(as_json(CARDS[name]()), View(T0, WAYS[way], zone=UTC))
    compare(f"{name}_{way}", lines)
    if WAYS[way]:
        assert [line for line in lines if width(line) > 80] == []


@pytest.mark.parametrize("columns", [1, 2, 20, 40, 60, 79, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    view = View(T0, columns, zone=UTC)
    table = render_devices(as_json(world_devices.machine()), view)
    cards = [line for make in CARDS.values() for line in render_device(as_json(make()), view)]
    assert [line for line in [*table, *cards] if width(line) > max(2, columns)] == []


def test_trouble_of_others_is_not_a_matter_of_devices() -> None:
    lines = render_devices(as_json(world_devices.machine()), View(T0, None, zone=UTC))
    told = [line for line in lines if line[0] == "!"]
    assert told == [
        "! gpu3 lost 23:53 (it fell off the bus (Xid 79))",
        "! gpu9 missing 00:52 (was there before and is not now)",
        "! gpu4 stale (was not measured for 42 s: nothing grows there)",
    ]
    assert any("disk low" in line for line in render_status(as_json(world_devices.machine()), "h", View(T0, None, zone=UTC)))


def test_without_devices_the_next_step_is_named() -> None:
    text = " ".join(render_devices(as_json(worlds.world([], devices=[])), View(T0, None, zone=UTC)))
    assert "hotseat doctor" in text
    assert "kind: cpu" in text


def test_what_ails_several_cards_alike_is_said_once() -> None:
    trouble = {"code": "driver_mismatch", "message": "library and module differ", "fix": "reboot", "since": T0}
    cards = [{"id": f"gpu{n}", "kind": "nvidia"} for n in range(3)]
    degraded = [{**trouble, "subject": card["id"]} for card in cards]
    lines = render_devices({"devices": cards, "degraded": degraded}, View(T0, None, zone=UTC))
    assert lines[:2] == ["! gpu0, gpu1, gpu2 driver mismatch 00:53 (library and module differ)", "  fix: reboot"]
    gone = {"code": "device_missing", "fix": "look", "since": T0}
    missing = [{**gone, "subject": card["id"], "message": f"{card['id']} was there before"} for card in cards]
    lines = render_devices({"devices": cards, "degraded": missing}, View(T0, None, zone=UTC))
    assert lines[:2] == ["! gpu0, gpu1, gpu2 missing 00:53 (was there before)", "  fix: look"]
    degraded[1]["since"] = T0 + 60
    told = [line for line in render_devices({"devices": cards, "degraded": degraded}, View(T0, None, zone=UTC)) if line[0] == "!"]
    assert [line.partition(" (")[0] for line in told] == ["! gpu0, gpu2 driver mismatch 00:53", "! gpu1 driver mismatch 00:54"]


def test_no_card_is_said_to_be_missing_that_nobody_can_look_for() -> None:
    trouble = {"code": "devices_unreadable", "subject": "nvidia", "message": "library and module differ", "fix": "reboot", "since": T0}
    lines = render_devices({"devices": [], "degraded": [trouble]}, View(T0, None, zone=UTC))
    assert lines == ["! nvidia devices unreadable 00:53 (library and module differ)", "  fix: reboot"]


def test_a_device_of_another_version_is_shown_as_far_as_it_goes() -> None:
    """Every key but the three that the command relies on may be missing or null."""
    card = render_device({"id": "x0", "kind": "other", "health": "ok"}, View(T0, 80, zone=UTC))
    assert card[0] == "x0  other  ok"
    full = as_json(world_devices.busy_card())
    hollow = {key: value if key in ("id", "kind", "health") else None for key, value in full.items()}
    assert render_device(hollow, View(T0, 80, zone=UTC))[0] == "gpu0  nvidia  ok"
    rows = render_devices({"devices": [{"id": "x0", "kind": "other", "health": "ok"}]}, View(T0, 80, zone=UTC))
    assert rows[1].split() == ["x0", "other", "-", "ok", "-/-", "-", "-", "-", "-", "-", "-"]


def test_colours_mark_health_and_have_no_width() -> None:
    status = as_json(world_devices.machine())
    plain = render_devices(status, View(T0, 80, zone=UTC))
    painted = render_devices(status, View(T0, 80, style=Style(True), zone=UTC))
    assert "\x1b[31mlost" in "\n".join(painted)
    assert [line.replace("\x1b[31m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in painted] == plain


def test_names_of_strangers_cannot_move_the_cursor() -> None:
    assert "\x1b" in json.loads(world_devices.busy_card().model_dump_json())["strangers"][1]["name"]
    assert not any("\x1b" in line for line in render_device(as_json(world_devices.busy_card()), View(T0, None, zone=UTC)))
