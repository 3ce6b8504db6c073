"""Tables that know how wide the terminal is; piped ones are as wide as they need to be."""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.cli.render.text import Paint, fit, fit_middle, pad, width


class Column(NamedTuple):
    """``least`` columns are always kept; ``give`` > 0 may shrink down to ``least``, the highest first."""

    title: str
    least: int
    give: int = 0
    right: bool = False
    name: bool = False  # cut in the middle
    gap: int = 1  # blanks after it


class Cell(NamedTuple):
    """A cell with a colour."""

    text: str
    paint: Paint | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], columns_wide: int | None) -> list[str]:
    """Header and rows. Cells must be clean text; the last column takes what is left and has no blanks after it."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    widths = [max([width(column.title), *(width(row[i].text) for row in cells)]) for i, column in enumerate(columns)]
    widths = [max(column.least if i < len(columns) - 1 else 0, w) for i, (column, w) in enumerate(zip(columns, widths, strict=True))]
    if columns_wide is not None:
        _shrink(columns, widths, columns_wide)
    header = [Cell(column.title) for column in columns]
    return [_line(columns, widths, row, columns_wide) for row in [header, *cells]]


def _shrink(columns: Sequence[Column], widths: list[int], columns_wide: int) -> None:
    gaps = sum(column.gap for column in columns[:-1])
    for i in sorted((i for i, column in enumerate(columns) if column.give), key=lambda i: -columns[i].give):
        over = sum(widths) + gaps - columns_wide
        if over <= 0:
            return
        widths[i] = max(columns[i].least, widths[i] - over)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[Cell], columns_wide: int | None) -> str:
    parts, left = [], columns_wide
    for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
        room = widths[i] if left is None else max(0, min(widths[i], left))
        text = (fit_middle if column.name else fit)(cell.text, room)
        last = i == len(columns) - 1
        filled = text if last else pad(text, room, right=column.right)
        parts.append((cell.paint(filled) if cell.paint else filled) + ("" if last else " " * column.gap))
        if left is not None:
            left -= room + column.gap
    return "".join(parts).rstrip()
