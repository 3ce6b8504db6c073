"""Golden screens: 80 columns as on a terminal, and piped. `UPDATE_GOLDEN=1 pytest tests/unit/test_cli_render.py` rewrites them."""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import pytest

from scheduler.api.schemas import Schema
from scheduler.cli.render import status as render
from scheduler.cli.render.actions import effect
from scheduler.cli.render.card import next_command, render_card, render_model
from scheduler.cli.render.facts import View, age, clock, duration, state
from scheduler.cli.render.status import render_status
from scheduler.cli.render.text import Style, clean, fit, fit_middle, pad, width, wrap
from scheduler.domain.units import GIB
from tests.support import worlds
from tests.support.fake_plane import T0

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
SCREENS: dict[str, Callable[[], Schema]] = {
    "healthy": worlds.healthy,
    "starting": worlds.starting,
    "trouble": worlds.broken,
    "forty": worlds.crowd,
    "unicode": worlds.strange,
}
CARDS: dict[str, Callable[[], Schema]] = {"card_failed": worlds.failing_card, "card_awake": worlds.awake_card}
WAYS = {"80": 80, "piped": None}


def as_json(value: Schema) -> dict[str, object]:
    found: dict[str, object] = json.loads(value.model_dump_json())
    return found


def compare(name: str, lines: list[str]) -> None:
    path = GOLDEN / f"{name}.txt"
    text = "".join(f"{line}\n" for line in lines)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCREENS)
def test_status_screen(name: str, way: str) -> None:
    lines = render_status(as_json(SCREENS[name]()), "srv1", View(T0, WAYS[way], zone=UTC))
    compare(f"status_{name}_{way}", lines)
    if WAYS[way]:
        assert [line for line in lines if width(line) > 80] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CARDS)
def test_card(name: str, way: str) -> None:
    lines = render_card(as_json(CARDS[name]()), View(T0, WAYS[way], zone=UTC))
    compare(f"{name}_{way}", lines)
    if WAYS[way]:
        assert [line for line in lines if width(line) > 80] == []


def test_models_show_adds_what_the_registry_knows() -> None:
    lines = render_model(as_json(worlds.awake_card()), View(T0, 80, zone=UTC))
    assert "description small and quick" in lines
    assert any(line.startswith("instance    gemma-8k#0  awake  pid 4711") for line in lines)


def test_the_example_of_the_interfaces_document_is_drawn_to_the_letter() -> None:
    """The two tables of interfaces.md section 2, column for column."""
    status = as_json(worlds.starting())
    models = status["models"]
    assert isinstance(models, list)
    kept = [model for model in models if model["name"] == "coder"]
    qwen = {**next(model for model in models if model["name"] == "qwen3-32b"), "instances": [{"id": "qwen3-32b#0", "phase": "awake"}]}
    sleepers = [model for model in models if model["phase"] == "asleep"]
    devices = status["devices"]
    assert isinstance(devices, list)
    devices[0]["instances"] = ["qwen3-32b#0", *(f"small-{i}#0" for i in range(1, 5))]
    lines = render_status({**status, "models": [*kept, qwen, *sleepers], "devices": devices[:1]}, "srv1", View(T0, 80, zone=UTC))
    assert lines[1:5] == [
        "DEVICE KIND  HEALTH USED/TOTAL FOREIGN UTIL    W  SEATED",
        "gpu0   A100  ok      71.2/80.0     0.4  62%  311  qwen3-32b +4 asleep",
        "MODEL      STATE          DEVICE MEM   REQ  USED   WHY",
        "coder      waking 3.2/5s  gpu1   18.0  0/1  8s     requested by key office",
    ]
    assert lines[-2:] == ["host sleep 44/64 GiB  disk 120 GiB free  batch 1 run 2 wait", "  next 07:45 sleep qwen3-32b"]


def test_no_models_says_what_to_do_next() -> None:
    lines = render_status(as_json(worlds.world([])), "srv1", View(T0, 80, zone=UTC))
    assert "0 models" in lines[0]
    assert any("next: write one under `models:`" in line for line in lines)


def test_only_stopped_models_are_folded_unless_somebody_wants_them() -> None:
    quiet, wanted, held = worlds.model("quiet"), worlds.model("wanted", goal="awake"), worlds.model("held", held=2)
    text = "\n".join(render_status(as_json(worlds.world([quiet, wanted, held])), "srv1", View(T0, 80, zone=UTC)))
    assert "1 stopped: quiet" in text
    assert "\nwanted" in text
    assert "\nheld" in text


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (None, "12 stopped: a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11"),
        (49, "12 stopped: a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11"),
        (48, "12 stopped: a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 +1"),
        (47, "12 stopped: a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 +2"),
        (20, "12 stopped: a0 +11"),
        (13, "12 stopped: …"),
    ],
)
def test_the_folded_line_names_as_many_as_fit(columns: int | None, line: str) -> None:
    status = {**as_json(worlds.world([worlds.model(f"a{i}") for i in range(12)])), "disk": None}
    assert render_status(status, "h", View(T0, columns, zone=UTC))[-1] == line


def test_thousands_of_stopped_models_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = 0

    def counting(text: str) -> int:
        nonlocal measured
        measured += len(text)
        return width(text)

    monkeypatch.setattr(render, "width", counting)
    quiet = as_json(worlds.model("quiet"))
    names = [f"model-{i:05d}-한국" for i in range(5000)]
    status = {**as_json(worlds.world([])), "models": [{**quiet, "name": name} for name in names]}
    for columns in (80, 10**6):
        measured = 0
        render_status(status, "h", View(T0, columns, zone=UTC))
        assert measured <= 2 * len(" ".join(names))


def test_a_status_with_keys_missing_or_unknown_is_still_drawn() -> None:
    lines = render_status({"models": [{"name": "a", "phase": "awake", "new": 1}], "devices": [{"id": "x"}], "novel": []}, "h", View(T0, 80))
    assert any(line.startswith("a ") for line in lines)


def test_colour_changes_nothing_but_the_codes() -> None:
    status = as_json(worlds.broken())
    plain = render_status(status, "srv1", View(T0, 80, zone=UTC))
    painted = render_status(status, "srv1", View(T0, 80, Style(True), UTC))
    assert [re.sub(r"\x1b\[\d*m", "", line).rstrip() for line in painted] == [line.rstrip() for line in plain]
    assert any("\x1b[31m" in line for line in painted)


@pytest.mark.parametrize("columns", [2, 3, 5, 10, 20, 29, 30, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("name", SCREENS)
def test_no_line_is_wider_than_the_terminal(name: str, columns: int) -> None:
    lines = render_status(as_json(SCREENS[name]()), "srv1", View(T0, columns, zone=UTC))
    assert [line for line in lines if width(line) > columns] == []


@pytest.mark.parametrize("columns", [2, 3, 5, 10, 20, 29, 30, 40, 80])
@pytest.mark.parametrize("name", ["Qwen/" + "q" * 123, "한국" * 64, "a"])
@pytest.mark.parametrize("card", CARDS)
def test_no_line_of_a_card_is_wider_than_the_terminal(card: str, name: str, columns: int) -> None:
    model = {**as_json(CARDS[card]()), "name": name}
    plain = render_model(model, View(T0, columns, zone=UTC))
    assert [line for line in plain if width(line) > columns] == []
    painted = render_model(model, View(T0, columns, Style(True), UTC))
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in painted] == plain


def test_the_headline_of_a_card_is_broken_between_its_parts_and_keeps_its_colour() -> None:
    model = {**as_json(worlds.failing_card()), "name": "failed-" + "q" * 60}
    lines = render_card(model, View(T0, 80, Style(True), UTC))
    assert lines[0] == f"{model['name']}  \x1b[31mfailed\x1b[0m"
    assert lines[1].startswith("  ")


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("awake", "hotseat stop coder gives back unknown"),
        ("stopped", "hotseat wake coder (a request to it does the same)"),
        ("failed", "hotseat logs coder, mend the cause, then hotseat restart coder"),
        ("launching", "hotseat logs coder -f"),
    ],
)
def test_next_command(phase: str, expected: str) -> None:
    assert next_command({"name": "coder", "phase": phase}) == expected


@pytest.mark.parametrize("phase", ["stopped", "asleep"])
def test_one_that_waits_already_is_not_to_be_woken(phase: str) -> None:
    waiting = {"name": "coder", "phase": phase, "reason": {"code": "waiting_memory", "text": "10.1 GiB short"}}
    assert next_command(waiting) == "it comes as soon as nothing is in its way; hotseat devices shows who holds what"


def test_the_memory_of_a_model_on_two_cards_says_what_is_of_each_and_what_of_both() -> None:
    known = {"devices": 2, "measured_bytes": 18 * GIB, "estimated_bytes": 22 * GIB, "source": "measured"}
    model = {"name": "coder", "phase": "awake", "memory": known, "claimed_bytes": 38 * GIB, "used_bytes": 36 * GIB}
    lines = render_card(model, View(T0, None, zone=UTC))
    expected = "memory      on each of 2 devices measured 18.0 GiB (estimated 22.0 GiB); claims 38.0 GiB now, uses 36.0 GiB, together"
    assert expected in lines
    stopped = {**model, "phase": "stopped", "claimed_bytes": 0, "memory": {**known, "measured_bytes": None}}
    assert "memory      on each of 2 devices estimated 22.0 GiB, never measured" in render_card(stopped, View(T0, None, zone=UTC))


def test_a_restart_of_one_that_was_awake_tells_no_difference_in_bytes() -> None:
    action = {"model": "coder", "verb": "restart", "changed": True, "devices": ["gpu0"], "taken_bytes": 805306368, "duration_s": 6.5}
    assert effect({**action, "from_phase": "awake"}) == ["restarted coder on gpu0 in 6.5 s; nothing to undo"]
    assert effect({**action, "from_phase": "stopped"}) == ["restarted coder on gpu0: 768 MiB in 6.5 s; nothing to undo"]


def test_no_command_is_named_that_is_refused_for_somebody_elses_process() -> None:
    theirs = {"name": "coder", "attached": True}
    assert next_command({**theirs, "phase": "awake"}).startswith("hotseat sleep coder")
    assert next_command({**theirs, "phase": "failed"}) == "mend the cause, then hotseat wake coder (a request to it does the same)"
    began = {"model": "coder", "verb": "wake", "from_phase": "stopped", "changed": True, "attached": True, "duration_s": 0.2}
    assert effect(began) == ["started coder in 0.2 s; undo: hotseat sleep coder"]


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({"phase": "asleep", "level": 2}, "asleep 2"),
        ({"phase": "asleep", "level": None}, "asleep"),
        ({"phase": "stopped", "enabled": False}, "disabled"),
        ({"phase": "backoff", "error": {"retry_at": T0 + 75}}, "backoff 1m"),
        ({"phase": "backoff"}, "backoff"),
        ({"phase": "launching", "instances": [{"phase": "launching", "since": T0 - 12}], "eta_s": 28.0}, "launching 12/40s"),
        ({"phase": "launching", "instances": [{"phase": "launching", "since": T0 - 1200}]}, "launching 20m"),
        ({"phase": "waking", "instances": [{"phase": "waking", "since": T0 + 5}], "eta_s": 2.0}, "waking 0.0/2s"),
        ({"phase": "waking", "instances": [{"phase": "waking", "since": T0 - 6.1}], "eta_s": -1.0}, "waking 6.1/6s"),
        ({"phase": "falling_asleep"}, "falling asleep"),
        ({}, "unknown"),
    ],
)
def test_state(update: dict[str, object], expected: str) -> None:
    assert state({"name": "coder", **update}, T0) == expected


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h"), (86400 * 3.5, "3d")])
def test_age(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (2.94, "2.9 s"), (45.0, "45 s"), (600, "10 min"), (36000, "10.0 h")])
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_times_of_other_days_carry_their_date() -> None:
    view = View(T0, 80, zone=UTC)
    assert clock(T0 - 60, view) == "00:52"
    assert clock(T0 - 3 * 86400, view) == "2026-11-27 00:53"
    assert clock("nonsense", view) == "-"


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("a\x1b[2Jb", "a?[2Jb"),
        ("a\nb\tc", "a b c"),
        ("\u202eabc", "?abc"),
        ("\x9b31m", "?31m"),
        ("naïve 日本", "naïve 日本"),
        (None, "None"),
    ],
)
def test_clean_lets_no_control_character_through(raw: object, safe: str) -> None:
    assert clean(raw) == safe


def test_width_counts_terminal_columns() -> None:
    assert width("日本") == 4
    assert width("e\u0301") == 1
    assert pad("日本", 6) == "日本  "


def test_cutting_keeps_within_the_width_and_says_so() -> None:
    assert fit("abcdef", 4) == "abc…"
    assert width(fit("日本語モデル", 6)) <= 6
    assert fit_middle("Qwen/Qwen3-235B-A22B-Q4_K_M", 15) == "Qwen/Qw…-Q4_K_M"
    assert fit_middle("short", 15) == "short"


def test_wrap_keeps_indents_and_breaks_words_that_are_too_long() -> None:
    assert wrap("  fix: one two three", 12, "       ") == ["  fix: one", "       two", "       three"]
    assert wrap("x" * 25, 10) == ["x" * 10, "  " + "x" * 8, "  " + "x" * 7]
    assert wrap("as it is", None) == ["as it is"]


def test_a_failed_model_that_keeps_the_daemon_from_being_ready_is_told_of_once() -> None:
    status = as_json(worlds.world([worlds.model("a", "failed"), worlds.model("b", "failed")]))
    trouble = {"code": "model_missing", "subject": "a", "message": "/m/a.gguf does not exist", "fix": "correct `model`", "since": None}
    lines = render_status({**status, "degraded": [trouble]}, "srv1", View(T0, None, zone=UTC))
    assert [line for line in lines if "model missing" in line or "a failed" in line] == ["! a model missing (/m/a.gguf does not exist)"]
    assert "  fix: correct `model`" in lines
    assert any("b failed" in line for line in lines)


def test_a_model_that_failed_and_waits_for_something_else_says_both() -> None:
    reason = {"code": "waiting_memory", "text": "4.5 GiB short; 12.0 GiB are used by others"}
    lines = render_card({**as_json(worlds.failing_card()), "phase": "backoff", "reason": reason}, View(T0, None, zone=UTC))
    assert any(line.startswith("why") and "model_missing" in line for line in lines)
    assert any(line.startswith("waits") and line.endswith("waiting_memory: 4.5 GiB short; 12.0 GiB are used by others") for line in lines)
