"""Bytes and seconds inside, GiB and durations at the edges."""

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZES = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_size(text: str | int) -> int:
    """Bytes of ``"16GiB"``, ``"512MiB"``, ``"16GB"`` or a bare byte count; raises ValueError with the remedy.

    ``16G`` is refused on purpose: it means 16 GB to one tool and 16 GiB to another.
    """
    if isinstance(text, int):
        return _not_negative(text)
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r}; write bytes, or a number with GiB, MiB or GB")
    number, unit = match.groups()
    if unit == "" and "." not in number:
        return int(number)
    if unit in _SIZES:
        return int(float(number) * _SIZES[unit])
    if unit.upper() in ("K", "M", "G", "T"):
        raise ValueError(f"ambiguous size {text!r}; write {number}{unit.upper()}iB (binary) or {number}{unit.upper()}B (decimal)")
    raise ValueError(f"unknown unit in size {text!r}; use GiB, MiB, KiB, GB, MB or plain bytes")


def _not_negative(value: int) -> int:
    if value < 0:
        raise ValueError(f"a size cannot be negative: {value}")
    return value


def parse_duration(text: str | int | float) -> float:
    """Seconds of ``"30s"``, ``"5m"``, ``"2h"``, ``"1h30m"``; raises ValueError with the remedy."""
    if not isinstance(text, str):
        raise ValueError(f"a duration needs a unit: write {text}s, {text}m or {text}h")
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"not a duration: {text!r}; write for example 30s, 5m, 2h")
    return sum(float(number) * _DURATIONS[unit] for number, unit in parts)


def gib(value_bytes: int, digits: int = 1) -> str:
    """Bytes as GiB for people: ``gib(17_179_869_184) == "16.0"``."""
    return f"{value_bytes / GIB:.{digits}f}"


def human_bytes(value_bytes: int) -> str:
    """Bytes with a binary unit for a sentence: ``"512 MiB"``, ``"17.1 GiB"``."""
    if abs(value_bytes) < GIB:
        return f"{value_bytes / MIB:.0f} MiB"
    return f"{value_bytes / GIB:.1f} GiB"


def human_seconds(seconds: float) -> str:
    """Seconds for a sentence: ``"0.8 s"``, ``"12 s"``, ``"3 min"``, ``"2.5 h"``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
