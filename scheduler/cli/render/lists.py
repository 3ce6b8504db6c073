"""Listings: models, story, events."""

from collections.abc import Sequence

from scheduler.cli.render.card import source
from scheduler.cli.render.facts import Json, View, age, clock, memory, requests, since, state, state_paint, where
from scheduler.cli.render.table import Cell, Column, table
from scheduler.cli.render.text import clean, wrap

MODEL_COLUMNS = (
    Column("MODEL", 12, give=2, name=True),
    Column("ENGINE", 8),
    Column("STATE", 9),
    Column("DEVICE", 6, give=1),
    Column("MEM", 5),
    Column("REQ", 4),
    Column("USED", 5),
    Column("SOURCE", 12, give=3, name=True),
)
STORY_COLUMNS = (
    Column("TIME", 8),
    Column("FROM", 9),
    Column("TO", 9),
    Column("EVENT", 8, give=1),
    Column("CAUSE", 6, give=2),
    Column("WHY", 16, give=3),
)
EVENT_COLUMNS = (Column("TIME", 8), Column("KIND", 8, give=1), Column("SUBJECT", 10, give=2, name=True), Column("TEXT", 24, give=3))


def render_models(models: Sequence[Json], view: View) -> list[str]:
    """`hotseat models ls`: every model in registry order, stopped ones too."""
    if not models:
        return ["no models"]
    rows: list[list[str | Cell]] = [
        [
            clean(model["name"]),
            clean(model.get("engine", "?")),
            Cell(state(model, view.now), state_paint(model, view.style)),
            where(model),
            memory(model),
            requests(model),
            age(since(model.get("last_used_at"), view.now)),
            source(model),
        ]
        for model in models
    ]
    return table(MODEL_COLUMNS, rows, view.columns)


def render_story(name: str, entries: Sequence[Json], more: bool, view: View) -> list[str]:
    """`hotseat story MODEL`: what happened to it, oldest first, and why."""
    if not entries:
        return wrap(f"{clean(name)}: nothing has happened yet", view.columns)
    rows = [
        [
            clock(entry.get("at"), view, seconds=True),
            clean(entry.get("from", "?")),
            clean(entry.get("to", "?")),
            clean(entry.get("event", "?")),
            clean(entry.get("cause") or "-"),
            clean(_reason(entry.get("reason"))),
        ]
        for entry in entries
    ]
    lines = table(STORY_COLUMNS, rows, view.columns)
    older = wrap("older entries exist: -n MORE", view.columns) if more else []
    return lines + [view.style.dim(line) for line in older]


def _reason(reason: Json | None) -> str:
    if not reason or reason.get("code") in (None, "none"):
        return "-"
    return f"{reason['code']}: {reason['text']}" if reason.get("text") else str(reason["code"])


def render_events(events: Sequence[Json], view: View, *, title: bool = True) -> list[str]:
    """`hotseat events`: one line each, oldest first. Without ``title`` (following) columns have fixed widths."""
    if title:
        return table(EVENT_COLUMNS, [_event(event, view) for event in events], view.columns) if events else ["no events yet"]
    lines: list[str] = []
    for event in events:
        at, kind, subject, text = _event(event, view)
        lines += wrap(f"{at} {kind:<8} {subject:<10} {text}", view.columns, " " * 9)
    return lines


def _event(event: Json, view: View) -> list[str]:
    at = clock(event.get("at"), view, seconds=True)
    return [at, clean(event.get("kind", "?")), clean(event.get("subject") or "-"), clean(event.get("text") or "")]
