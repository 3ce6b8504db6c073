"""docs/reference/database.md names every table and every error code of the store."""

import re
from pathlib import Path

from scheduler.store import tables

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs/reference/database.md").read_text()


def test_every_table_is_explained() -> None:
    assert [name for name in tables.metadata.tables if f"`{name}`" not in REFERENCE] == []


def test_every_error_code_is_explained_and_none_is_invented() -> None:
    sources = "".join(path.read_text() for path in sorted((ROOT / "scheduler/store").glob("*.py")))
    raised = set(re.findall(r'code="(\w+)"', sources))
    documented = set(re.findall(r"`((?:store|backup)_\w+|already_running)`", REFERENCE.partition("## Errors")[2]))
    assert raised == documented
