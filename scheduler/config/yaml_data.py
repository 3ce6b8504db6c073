"""Nodes to plain values under the YAML 1.2 core schema, with the place of every key and value."""

import re
from dataclasses import dataclass, field
from typing import Any

from scheduler.config.problems import Problem
from scheduler.config.source import Source
from scheduler.config.yaml_nodes import MAX_DEPTH, Alias, Mapping, Node, Scalar, Sequence, Unparsable, read_nodes

Loc = tuple[str | int, ...]

MAX_VALUES = 50_000  # after aliases are expanded: bounds what a few lines of nested aliases can become
_MAX_NUMBER = 40  # characters

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_BASES = ((re.compile(r"0o[0-7]+"), 8), (re.compile(r"0x[0-9a-fA-F]+"), 16))
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)(\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN")
_TAGS = {
    "tag:yaml.org,2002:null": type(None),
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
}


@dataclass(slots=True)
class Document:
    """A configuration as plain values. Offsets are those of the source, by path; ``texts`` = scalars as written."""

    source: Source
    data: Any = None
    keys: dict[Loc, int] = field(default_factory=dict)
    values: dict[Loc, int] = field(default_factory=dict)
    texts: dict[Loc, str] = field(default_factory=dict)

    def offset(self, loc: Loc, *, key: bool = False) -> int:
        """Where the value (or key) at ``loc`` stands; the nearest thing around it when it is not in the file."""
        if key and loc in self.keys:
            return self.keys[loc]
        if loc in self.values:
            return self.values[loc]
        while loc:
            loc = loc[:-1]
            if loc in self.texts:  # one value where a list may stand: the value is its only entry
                return self.values[loc]
            if loc in self.keys:
                return self.keys[loc]
            if loc in self.values:
                return self.values[loc]
        return 0

    def get(self, loc: Loc) -> Any:
        """The value at ``loc`` as YAML gave it; None when there is none."""
        value = self.data
        for part in loc:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return None
        return value

    def line(self, loc: Loc) -> int:
        """Line of the key (or list entry) at ``loc``."""
        return self.source.place(self.offset(loc, key=True))[0]

    def problem(self, loc: Loc, code: str, message: str, fix: str = "", *, key: bool = False) -> Problem:
        """A problem at a value, or at its key."""
        return self.source.problem(self.offset(loc, key=key), code, message, fix)


def read_document(source: Source, problems: list[Problem]) -> Document:
    """The document of ``source``; what is wrong with its YAML goes to ``problems``. Nothing there = no data (None)."""
    document = Document(source)
    problems += source.character_problems()
    if problems:
        return document
    root = read_nodes(source, problems)
    if root is None:
        return document
    try:
        document.data = _Flattener(document, problems).value(root, (), root.offset)
    except Unparsable as stop:
        problems.append(stop.problem)
    return document


class _Flattener:
    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self.document = document
        self.problems = problems
        self._count = 0

    def value(self, node: Node, loc: Loc, offset: int) -> Any:
        if isinstance(node, Alias):
            return self.value(node.target, loc, offset)
        self._count += 1
        if self._count > MAX_VALUES or len(loc) > MAX_DEPTH:
            message = f"aliases make this configuration too large: more than {MAX_VALUES} values or {MAX_DEPTH} levels"
            raise Unparsable(self.document.source.problem(offset, "yaml_syntax", message, "write the values out"))
        self.document.values[loc] = offset
        if isinstance(node, Scalar):
            self.document.texts[loc] = node.text
            return self._scalar(node, offset)
        if isinstance(node, Sequence):
            return [self.value(item, (*loc, index), item.offset) for index, item in enumerate(node.items)]
        return self._mapping(node, loc)

    def _mapping(self, node: Mapping, loc: Loc) -> dict[str, Any]:
        data = {}
        for name, (key, child) in node.entries.items():
            self.document.keys[(*loc, name)] = key.offset
            data[name] = self.value(child, (*loc, name), child.offset)
        return data

    def _scalar(self, node: Scalar, offset: int) -> Any:
        if node.tag not in (None, "!", "tag:yaml.org,2002:str", *_TAGS):
            self._report(offset, f"unknown tag {node.tag}", "remove it, or quote a value that begins with !")
            return node.text
        if node.tag in _TAGS:
            value = self._resolve(node.text, offset)
            wanted = _TAGS[str(node.tag)]
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                self._report(offset, f"{node.text!r} is not what its tag says", "remove the tag")
            return value
        return self._resolve(node.text, offset) if node.plain and node.tag is None else node.text

    def _resolve(self, text: str, offset: int) -> Any:
        if text in _NULL:
            return None
        if text in _BOOLS:
            return _BOOLS[text]
        special = _SPECIAL.fullmatch(text)
        if special is not None:
            return float(text.replace(".", ""))
        if _FLOAT.fullmatch(text) is None and not any(pattern.fullmatch(text) for pattern, _base in _BASES):
            return text
        if len(text) > _MAX_NUMBER:
            self._report(offset, f"a number of {len(text)} characters", "quote it if it is text")
            return text
        return _number(text)

    def _report(self, offset: int, message: str, fix: str) -> None:
        self.problems.append(self.document.source.problem(offset, "yaml_syntax", message, fix))


def _number(text: str) -> int | float:
    for pattern, base in _BASES:
        if pattern.fullmatch(text):
            return int(text[2:], base)
    return int(text) if _INT.fullmatch(text) else float(text)
