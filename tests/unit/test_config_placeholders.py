"""Placeholders of commands, arguments, environments and steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.errors import Invalid
from scheduler.domain.placeholders import NAMES, check, env_names, escape, expand, uses

VALUES = {"host": "127.0.0.1", "port": "8100", "model": "/m", "name": "a/b", "devices": "0,1", "kv_bytes": "5", "index": "0"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${port}", "8100"),
        ("http://${host}:${port}/${name}", "http://127.0.0.1:8100/a/b"),
        ("$$", "$"),
        ("$${port}", "${port}"),
        ("$$${port}", "$8100"),
        ("$$$$", "$$"),
        ("$HOME $1 $", "$HOME $1 $"),
        ('{"a": {"b": 1}, "p": ${port}}', '{"a": {"b": 1}, "p": 8100}'),
        ("{port} {} }{", "{port} {} }{"),
        ("${env:TOKEN}/${env:E}", "t$$${port}/"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    assert check(text) == []
    assert expand(text, VALUES, {"TOKEN": "t$$${port}", "E": ""}) == expanded


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("${prot}", "unknown placeholder ${prot}: did you mean ${port}?"),
        ("${zzzz}", "unknown placeholder ${zzzz}: known are ${host}, ${port}"),
        ("${}", "unknown placeholder ${}"),
        ("${PORT}", "unknown placeholder ${PORT}"),
        ("${ port }", "unknown placeholder ${ port }"),
        ("${port", "${ is never closed"),
        ("a ${", "${ is never closed"),
        ("${a{b}", "${ is never closed"),
        ("${env:}", "${env:} does not name an environment variable"),
        ("${env:1A}", "does not name"),
        ("${env:A B}", "does not name"),
    ],
)
def test_what_is_wrong(text: str, sentence: str) -> None:
    problems = check(text)
    assert len(problems) == 1
    assert sentence in problems[0]
    with pytest.raises(Invalid) as caught:
        expand(text, VALUES, {})
    assert caught.value.code == "unknown_placeholder"
    assert sentence in caught.value.message
    assert caught.value.fix


def test_every_problem_is_named() -> None:
    assert len(check("${a} ${port} ${b} ${")) == 3


def test_values_that_are_missing() -> None:
    with pytest.raises(Invalid, match=r"\$\{kv_bytes\} has no value here"):
        expand("${kv_bytes}", {"port": "1"}, {})
    with pytest.raises(Invalid, match="environment variable NOPE of"):
        expand("${env:NOPE}", VALUES, {})


def test_every_known_name_expands() -> None:
    for name in NAMES:
        assert expand(f"${{{name}}}", VALUES, {}) == VALUES[name]


def test_questions_about_a_text() -> None:
    assert env_names("${env:A} $${env:B} ${env:C} ${port}") == ["A", "C"]
    assert uses("x ${port}", "port")
    assert not uses("$${port}", "port")
    assert not uses("${host}", "port")


@given(st.text())
def test_escaped_text_comes_back_unchanged(text: str) -> None:
    assert check(escape(text)) == []
    assert expand(escape(text), {}, {}) == text


@given(st.text(alphabet="${}:envport "))
def test_expand_raises_only_its_own_error(text: str) -> None:
    if check(text):
        with pytest.raises(Invalid):
            expand(text, VALUES, {})
