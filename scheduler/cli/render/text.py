"""Cells of text: how wide they are on a terminal, cutting, wrapping, colour. No control character gets through."""

from collections.abc import Callable, Sequence

Paint = Callable[[str], str]

ELLIPSIS = "…"
#: Columns that an indent leaves at least for text.
LEAST_TEXT = 4
# Bidirectional overrides and isolates can make a line read differently from what it is.
_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def clean(text: object) -> str:
    """``text`` on one line, safe for a terminal: control characters and direction overrides become ``?``."""
    value = str(text)
    if value.isascii() and value.isprintable():
        return value
    return "".join(" " if char in "\t\r\n" else char if _harmless(char) else "?" for char in value)


def _harmless(char: str) -> bool:
    code = ord(char)
    return code >= 0x20 and not 0x7F <= code < 0xA0 and code not in _BIDI and code not in (0x2028, 0x2029) and not 0xD800 <= code < 0xE000


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal: wide characters count two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata  # a megabyte of tables, loaded only when a text needs them

    def one(char: str) -> int:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
            return 0
        return 2 if unicodedata.east_asian_width(char) in "WF" else 1

    return sum(one(char) for char in text)


def fit(text: str, columns: int) -> str:
    """``text`` cut at the end to at most ``columns``, with an ellipsis when something is lost."""
    if width(text) <= columns:
        return text
    return _head(text, columns - 1) + ELLIPSIS if columns > 0 else ""


def fit_middle(text: str, columns: int) -> str:
    """As :func:`fit`, but keeps both ends: names of models often differ in the last letters only."""
    if width(text) <= columns:
        return text
    if columns < 8:
        return fit(text, columns)
    tail = (columns - 1) // 2
    return _head(text, columns - 1 - tail) + ELLIPSIS + _head(text[::-1], tail)[::-1]


def _head(text: str, columns: int) -> str:
    used, kept = 0, 0
    for char in text:
        used += width(char)
        if used > columns:
            break
        kept += 1
    return text[:kept]


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """``text`` filled with blanks to ``columns``; ``right`` = aligned to the right."""
    blanks = " " * max(0, columns - width(text))
    return blanks + text if right else text + blanks


def wrap(text: str, columns: int | None, indent: str = "  ") -> list[str]:
    """``text`` broken at blanks; further lines begin with ``indent``. A word longer than a line is cut into pieces.

    No line is wider than ``columns``, if there are two at least: where there is little room, indents shrink.
    """
    if columns is None or width(text) <= columns:
        return [text]
    most = max(0, columns - LEAST_TEXT)
    indent, rest = indent[:most], text.lstrip(" ")
    lines, line = [], text[: len(text) - len(rest)][:most]
    for word in rest.split(" "):
        candidate = f"{line} {word}" if line.strip() else line + word
        if width(candidate) <= columns or not line.strip():
            line = candidate
        else:
            lines.append(line)
            line = indent + word
        while width(line) > columns:
            piece = _head(line, columns) or line[:1]
            lines.append(piece)
            line = indent + line[len(piece) :]
    return [*lines, line]


def flow(parts: Sequence[tuple[str, Paint | None]], columns: int | None, gap: str = "  ", indent: str = "  ") -> list[str]:
    """Parts side by side, each in its colour, broken only between them (and inside one that is longer than a line)."""
    lines: list[str] = []
    used = 0  # columns of the last line: codes of colours have no width
    for text, paint in parts:
        if lines and (columns is None or used + len(gap) + width(text) <= columns):
            lines[-1] += gap + (paint(text) if paint else text)
            used += len(gap) + width(text)
            continue
        pieces = wrap(indent + text if lines else text, columns, indent)
        used = width(pieces[-1])
        lines += [paint(piece) if paint else piece for piece in pieces]
    return lines


def join_wrapped(parts: Sequence[str], columns: int | None, gap: str = "  ", indent: str = "  ") -> list[str]:
    """As :func:`flow`, without colours."""
    return flow([(part, None) for part in parts], columns, gap, indent)


class Style:
    """Colour for people; :data:`PLAIN` for files, pipes and NO_COLOR. Apply after padding: codes have no width."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def bad(self, text: str) -> str:
        """Something needs somebody."""
        return self._paint("31", text)

    def moving(self, text: str) -> str:
        """On its way to another state."""
        return self._paint("33", text)

    def good(self, text: str) -> str:
        """Works."""
        return self._paint("32", text)

    def dim(self, text: str) -> str:
        """Less important."""
        return self._paint("2", text)


PLAIN = Style(False)
