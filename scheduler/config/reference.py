"""The tables of docs/reference/configuration.md, rendered from the schema so that they cannot drift from it.

``python -m scheduler.config.reference docs/reference/configuration.md`` brings the file up to date.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from scheduler.config.fields import kind_of, shown_default
from scheduler.config.later import LATER
from scheduler.config.problems import CODES
from scheduler.config.walk import Key, all_keys
from scheduler.domain.placeholders import NAMES

_BLOCK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def update(text: str) -> str:
    """The page with every ``<!-- table NAME -->`` block rendered anew. Raises KeyError for an unknown table."""
    tables = {"settings": _settings(), "models": _models(), "placeholders": _placeholders(), "later": _later(), "codes": _codes()}
    return _BLOCK.sub(lambda match: match.group(1) + tables[match.group(2)] + match.group(3), text)


def shown_path(path: str) -> str:
    """A key's path as people read it: ``models.NAME.devices.kind``."""
    return path.replace("*", "NAME")


def _settings() -> str:
    return _keys(key for key in all_keys() if not key.path.startswith("models."))


def _models() -> str:
    return _keys(key for key in all_keys() if key.path.startswith("models."))


def _keys(keys: Iterable[Key]) -> str:
    rows = []
    for key in keys:
        default = shown_default(key.field)
        rows.append((f"`{shown_path(key.path)}`", kind_of(key.field), f"`{default}`" if default else "-", str(key.field.description)))
    return _table(("Key", "Type", "Default", "Meaning"), rows)


def _placeholders() -> str:
    rows = [(f"`${{{name}}}`", meaning) for name, meaning in NAMES.items()]
    rows += [("`${env:NAME}`", "the variable NAME of the daemon's environment"), ("`$$`", "a dollar sign")]
    return _table(("Placeholder", "Becomes"), rows)


def _later() -> str:
    return _table(("Key", "Until then"), [(f"`{shown_path(path)}`", later.advice) for path, later in LATER.items()])


def _codes() -> str:
    return _table(("Code", "Meaning"), [(f"`{code}`", meaning) for code, meaning in CODES.items()])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(update(page.read_text("utf-8")), "utf-8")
