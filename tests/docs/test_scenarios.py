"""The table of scenarios is whole, and names tests that exist."""

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = tomllib.loads((ROOT / "tests" / "data" / "scenarios.toml").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = DATA["row"]
KEYS = {"source", "issues", "behaviour"}


@cache
def _tests_in(file: str) -> frozenset[str]:
    """Names of the test functions at the top of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _missing(row: dict[str, Any]) -> list[str]:
    """Tests that a row names and that are not there."""
    found = []
    for test in row.get("tests", []):
        file, _, name = test.partition("::")
        if not (ROOT / file).is_file() or not name.startswith("test_") or name not in _tests_in(file):
            found.append(test)
    return found


def test_every_number_of_every_source_is_there_once() -> None:
    wanted = {f"{source} {number}": 1 for source, numbers in DATA["sources"].items() for number in numbers}
    assert Counter(row["source"] for row in ROWS) == wanted
    assert set(DATA["sources"]) == {"engines", "devices", "peers"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["source"].replace(" ", "_"))
def test_a_row_has_tests_that_exist_or_a_reason(row: dict[str, Any]) -> None:
    assert ("tests" in row) != ("why_not" in row)
    assert set(row) - {"tests", "why_not"} == KEYS
    assert row["behaviour"].strip().endswith(".")
    assert row.get("tests") or row.get("why_not", "").strip()
    assert _missing(row) == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    here = "tests/docs/test_scenarios.py"
    named = ["test_every_number_of_every_source_is_there_once", "test_of_nothing", "_missing"]
    assert _missing({"tests": [f"{here}::{name}" for name in named]}) == [f"{here}::test_of_nothing", f"{here}::_missing"]
    assert _missing({"tests": ["tests/docs/test_nowhere.py::test_x"]}) == ["tests/docs/test_nowhere.py::test_x"]


def test_every_file_of_the_table_is_a_test_of_the_product() -> None:
    """Tests of the pretended engines alone hold nothing."""
    pretended = {"test_behaviour_sleep.py", "test_world.py", "test_world_engines.py", "test_fake_engine.py", "test_fake_vllm.py"}
    pretended |= {"test_fake_vllm_memory.py", "test_fake_vllm_troubles.py", "test_gpu_world.py"}
    assert not [test for row in ROWS for test in row.get("tests", []) if Path(test.partition("::")[0]).name in pretended]
