"""The YAML layer: 1.2 core values, places, and everything that ends or bends a file."""

import random
from pathlib import Path
from typing import Any

import pytest

from scheduler.config.problems import ConfigInvalid, Problem
from scheduler.config.source import MAX_BYTES, Source, read_source
from scheduler.config.yaml_data import MAX_VALUES, Document, read_document
from scheduler.config.yaml_nodes import MAX_DEPTH


def read(text: str) -> tuple[Document, list[Problem]]:
    problems: list[Problem] = []
    return read_document(Source(Path("f.yaml"), text), problems), problems


def data_of(text: str) -> Any:
    document, problems = read(text)
    assert problems == []
    return document.data


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("22:30", "22:30"),
        ("1:2:3", "1:2:3"),
        ("2026-01-02", "2026-01-02"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("null", None),
        ("~", None),
        ("", None),
        ("none", "none"),
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("5.", 5.0),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("1.2.3", "1.2.3"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ('!!int "12"', 12),
        ("!!float 1", 1),
        ("! 12", "12"),
        ("|\n  12\n", "12\n"),
        ("=", "="),
        ("2%", "2%"),
        ("[a, 1, true]", ["a", 1, True]),
        ("{b: {c: d}}", {"b": {"c": "d"}}),
    ],
)
def test_yaml_1_2_core_values(written: str, value: object) -> None:
    found = data_of(f"a: {written}")["a"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read() -> None:
    value = data_of("a: .nan")["a"]
    assert value != value


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n", "\ufeff"])
def test_empty_files_hold_nothing(text: str) -> None:
    assert data_of(text) is None


def test_keys_are_text_whatever_they_look_like() -> None:
    assert data_of("1: a\ntrue: b\n22:30: c\n'q': d\n") == {"1": "a", "true": "b", "22:30": "c", "q": "d"}


def test_places_of_keys_and_values() -> None:
    document, _ = read("a:\n  b: [x,\n    y]\n  ключ:   z\n")
    source = document.source
    assert source.place(document.keys["a", "b"]) == (2, 3)
    assert source.place(document.values["a", "b", 1]) == (3, 5)
    assert source.place(document.values["a", "ключ"]) == (4, 11)
    assert source.place(document.offset(("a", "missing", 3))) == (1, 1)


def test_places_behind_crlf_and_a_byte_order_mark() -> None:
    document, _ = read("\ufeffa: 1\r\nb: 2\r\n")
    assert document.source.place(document.keys[("b",)]) == (2, 1)
    assert document.source.line(2) == "b: 2"


def test_duplicate_keys_name_both_lines_and_the_first_stays() -> None:
    document, problems = read("a: 1\nb: {c: 1, d: 2,\n  c: 3}\na: 2\n")
    assert document.data == {"a": 1, "b": {"c": 1, "d": 2}}
    assert [(p.line, p.column, p.code) for p in problems] == [(3, 3, "duplicate_key"), (4, 1, "duplicate_key")]
    assert "line 3" in problems[0].message
    assert "line 2" in problems[0].message
    assert "line 4" in problems[1].message
    assert "line 1" in problems[1].message


def test_duplicates_are_found_by_what_a_key_means_not_how_it_is_quoted() -> None:
    assert [p.code for p in read("a: 1\n'a': 2\n")[1]] == ["duplicate_key"]


def test_aliases_stand_for_whole_values_and_are_placed_where_they_stand() -> None:
    document, problems = read("x: &x {k: [1, 2]}\ny: *x\nz: &z q\n*z : v\n")
    assert problems == []
    assert document.data == {"x": {"k": [1, 2]}, "y": {"k": [1, 2]}, "z": "q", "q": "v"}
    assert document.source.place(document.values[("y",)]) == (2, 4)
    assert document.data["x"] is not document.data["y"]


def test_an_anchor_may_be_used_again() -> None:
    assert data_of("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a:\n\tb: 1\n", 2, 1, "a tab stands where YAML wants spaces"),
        ("a: 1\n  b: 2\n", 2, 4, "unexpected ':'"),
        ("a: b: c\n", 1, 5, "unexpected ':'"),
        ("a: [1, 2\n", 1, 4, "never closed"),
        ("a: {b: 1\n", 1, 4, "never closed"),
        ("a: [1\nb: 2\n", 2, 2, "a ',' or a closing bracket is missing"),
        ("{a: 1}}\n", 1, 7, "text after the end"),
        ("a: 'x\n", 1, 4, "never closed"),
        ('a: "\\q"\n', 1, 6, "unknown escape"),
        ("a: {b: >=4GiB}\n", 1, 8, "begins with '>'"),
        ("b: >=4GiB\n", 1, 4, "begins with '>'"),
        ("a: @x\n", 1, 4, "has a meaning in YAML"),
        ("a: `x`\n", 1, 4, "has a meaning in YAML"),
        ("- a\nb: 1\n", 2, 1, "indentation"),
        ("a: *nobody\n", 1, 4, "alias *nobody names nothing"),
        ("a: &x [1, *x]\n", 1, 11, "stands inside of what it names"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second YAML document"),
        ("%YAML 1.1\n---\na: 1\n", 1, 1, "YAML 1.1"),
        ("? [a]\n: 1\n", 1, 3, "a key must be plain text"),
        ("? {a: b}\n: 1\n", 1, 3, "a key must be plain text"),
        ("x: &x [1]\n*x : 1\n", 2, 1, "a key must be plain text"),
        (": 1\n", 1, 1, "a value without a key"),
        ("a: !frob 1\n", 1, 4, "unknown tag !frob"),
        ("a: !frob [1]\n", 1, 4, "unknown tag !frob"),
        ("a: !e!x 1\n", 1, 4, "unknown tag"),
        ("a: !!int x\n", 1, 4, "not what its tag says"),
        ("a: " + "9" * 5000, 1, 4, "a number of 5000 characters"),
        ("a: {<<: {b: 1}}\n", 1, 5, "merge keys"),
        ('a: "x\\uD800"\n', 1, 4, "half of a character"),
        ('"\\uDFFF": 1\n', 1, 1, "half of a character"),
        ("a: b\x07c\n", 1, 5, "U+0007 is not allowed"),
        ("a: \x00\n", 1, 4, "U+0000 is not allowed"),
        ("a: \ufeffb\n", 1, 4, "U+FEFF is not allowed"),
        ("a: \ud800\n", 1, 4, "U+D800 is not allowed"),
    ],
)
def test_what_is_not_the_yaml_we_read(text: str, line: int, column: int, message: str) -> None:
    _, problems = read(text)
    assert len(problems) == 1, problems
    assert (problems[0].line, problems[0].column) == (line, column)
    assert message in problems[0].message
    assert problems[0].fix


def test_a_syntax_error_does_not_hide_what_was_found_before_it() -> None:
    _, problems = read("a: 1\na: 2\nb: [\n")
    assert [p.code for p in problems] == ["duplicate_key", "yaml_syntax"]


def test_all_characters_that_are_not_allowed_are_named_up_to_a_limit() -> None:
    assert len(read("a: \x01\nb: \x02\n")[1]) == 2
    assert len(read("\x01" * 500)[1]) == 20


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "[a, ", "? "])
def test_deep_nesting_ends_quickly(opening: str) -> None:
    _, problems = read(opening * 5_000)
    assert "nested deeper" in problems[0].message or "plain text" in problems[0].message


def test_nesting_up_to_the_limit_is_read() -> None:
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH)[1] == []
    assert read("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))[1] != []


def test_nested_aliases_cannot_grow_without_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    _, problems = read("\n".join(lines))
    assert f"more than {MAX_VALUES} values" in problems[0].message


def test_chained_aliases_cannot_nest_without_bound() -> None:
    lines = ["a0: &a0 x", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 300))]
    assert "levels" in read("\n".join(lines))[1][0].message


def test_aliases_within_reason_are_read() -> None:
    lines = ["a: &a [" + ", ".join(["x"] * 100) + "]", *(f"b{n}: *a" for n in range(100))]
    assert len(data_of("\n".join(lines))) == 101


def problem_of_file(path: Path) -> Problem:
    with pytest.raises(ConfigInvalid) as caught:
        read_source(path)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no such file" in problem_of_file(tmp_path / "none.yaml").message
    assert "is a directory" in problem_of_file(tmp_path).message
    assert problem_of_file(tmp_path / "none.yaml").text() == f"{tmp_path}/none.yaml: no such file\n  fix: check the path"
    (tmp_path / "plain").write_text("")
    assert "cannot be read" in problem_of_file(tmp_path / "plain" / "x.yaml").message


def test_files_that_are_too_large(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_source(path).text) == MAX_BYTES
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert problem_of_file(path).code == "file_too_large"
    assert problem_of_file(Path("/dev/zero")).code == "file_too_large"


@pytest.mark.parametrize(
    ("data", "line", "column", "message"),
    [
        ("a: б\n".encode() + b"b: \xff\n", 2, 4, "byte 0xFF is not valid UTF-8"),
        (b"a: caf\xe9\n", 1, 7, "byte 0xE9"),
        (b"\xef\xbb\xbfa: \xc3", 1, 4, "byte 0xC3"),
        ("a: 1".encode("utf-16"), 0, 0, "UTF-16"),
    ],
)
def test_files_that_are_not_utf8(tmp_path: Path, data: bytes, line: int, column: int, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    problem = problem_of_file(path)
    assert (problem.line, problem.column, problem.code) == (line, column, "encoding")
    assert message in problem.message


def test_no_bytes_raise_anything_else(tmp_path: Path) -> None:
    generator = random.Random(7)
    path = tmp_path / "f.yaml"
    for _ in range(100):
        path.write_bytes(bytes(generator.choices(b"\x00\x09\x0a\x20\"'#&*:-,[]{}!|>%@az09\xc3\xa9\xff", k=40)))
        try:
            source = read_source(path)
        except ConfigInvalid:
            continue
        read_document(source, [])
