"""Whatever stands in the file, the loader answers with a configuration or with its own error."""

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.config.load import load_source
from scheduler.config.problems import ConfigInvalid
from scheduler.config.report import check_json, check_text
from scheduler.config.settings import Loaded
from scheduler.config.source import Source
from scheduler.config.walk import all_keys
from tests.support.config import facts

EXAMPLE = (Path(__file__).parents[2] / "examples/hotseat.yaml").read_text()
NAMES = sorted({part.removesuffix("[]") for key in all_keys() for part in key.path.split(".")} - {"*"})
WORDS = [
    "",
    "cpu",
    "cpu0",
    "llamacpp",
    "command",
    "auto",
    "always",
    "never",
    "5s",
    "16GiB",
    "16G",
    "2%",
    ">=1GiB",
    "/x",
    "127.0.0.1:1",
    "[::1]:1",
]
WORDS += ["${port}", "${x}", "$${port}", "${env:HOME}", "a b", "é", "\0", "x" * 200, "variants", "policy", "99999999999999999999", "1e999"]


def result_of(text: str) -> Loaded | ConfigInvalid:
    """Never anything else, and what comes can be shown."""
    result: Loaded | ConfigInvalid
    try:
        result = load_source(Source(Path("hotseat.yaml"), text), facts())
    except ConfigInvalid as error:
        result = error
    if isinstance(result, ConfigInvalid):
        assert all(problem.line >= 1 and problem.column >= 1 and problem.message for problem in result.problems)
    assert check_text(result)
    json.dumps(check_json(result))
    return result


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text(text: str) -> None:
    result_of(text)


@given(st.text(alphabet="ab:- \n\t{}[],'\"#&*!|>%@?~=<$0.5\\\r", max_size=60))
@settings(max_examples=200, deadline=None)
def test_text_of_yaml_punctuation(text: str) -> None:
    result_of(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
KEYS = st.sampled_from([*NAMES, *WORDS])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15
)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_known_keys_with_any_values(data: dict[str, Any]) -> None:
    result_of(json.dumps(data))


def at(path: list[str], value: Any) -> Any:
    for part in reversed(path):
        name, entry = part.removesuffix("[]"), part.endswith("[]")
        value = {"x" if name == "*" else name: [value] if entry else value}
    return value


@given(st.sampled_from([key.path.split(".") for key in all_keys()]), VALUES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_key_with_any_value(path: list[str], value: Any) -> None:
    result_of(json.dumps(at(path, value)))


@given(st.integers(0, len(EXAMPLE)), st.integers(0, 12), st.text(alphabet=" \n:-#{}[]'\"abc0*&\t", max_size=4))
@settings(max_examples=40, deadline=None)
def test_a_damaged_example(start: int, length: int, put: str) -> None:
    result_of(EXAMPLE[:start] + put + EXAMPLE[start + length :])


def test_the_undamaged_example_is_valid() -> None:
    assert isinstance(result_of(EXAMPLE), Loaded)
