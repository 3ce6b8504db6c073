"""Cells of text: how wide they are on a terminal, cutting, wrapping, colour. No control character gets through."""

from collections.abc import Sequence

ELLIPSIS = "…"
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
    """``text`` broken at blanks; further lines begin with ``indent``. A word longer than a line is cut into pieces."""
    if columns is None or width(text) <= columns:
        return [text]
    rest = text.lstrip(" ")
    lines, line = [], text[: len(text) - len(rest)]
    for word in rest.split(" "):
        candidate = f"{line} {word}" if line.strip() else line + word
        if width(candidate) <= columns or not line.strip():
            line = candidate
        else:
            lines.append(line)
            line = indent + word
        while width(line) > columns > width(indent):
            piece = _head(line, columns)
            lines.append(piece)
            line = indent + line[len(piece) :]
    return [*lines, line]


def join_wrapped(parts: Sequence[str], columns: int | None, gap: str = "  ", indent: str = "  ") -> list[str]:
    """``parts`` side by side, broken only between them (and inside one that is longer than a line)."""
    lines: list[str] = []
    line = ""
    for part in parts:
        candidate = f"{line}{gap}{part}" if line else part
        if columns is None or not line or width(candidate) <= columns:
            line = candidate
        else:
            lines.append(line)
            line = indent + part
    return [piece for whole in [*lines, line] for piece in wrap(whole, columns, indent)]


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
