"""Read single gauges from a Prometheus text page."""

import math
import re
from collections.abc import Collection

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)


def sum_of(text: str, names: Collection[str]) -> int | None:
    """The sum of all samples of ``names``, over all labels; None when a name is missing or a value makes no sense."""
    seen: set[str] = set()
    total = 0.0
    for name, value in _SAMPLE.findall(text):
        if name not in names:
            continue
        try:
            number = float(value)
        except ValueError:
            return None
        if not math.isfinite(number) or number < 0:
            return None
        seen.add(name)
        total += number
    return math.ceil(total) if seen == set(names) else None
