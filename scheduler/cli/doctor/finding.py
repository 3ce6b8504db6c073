"""What a check found."""

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """``name`` = what was looked at, ``text`` = what is there, ``fix`` = what to do (empty when ok)."""

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


def ok(name: str, text: str) -> Finding:
    """As it should be."""
    return Finding(name, "ok", text)


def warn(name: str, text: str, fix: str = "") -> Finding:
    """Works, but somebody should know."""
    return Finding(name, "warn", text, fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """Will not work."""
    return Finding(name, "fail", text, fix)
