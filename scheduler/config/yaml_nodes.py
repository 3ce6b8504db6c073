"""YAML text to nodes that know where they stand.

Built from ruamel's parser events rather than with its constructors: those are YAML 1.1 in places, keep no positions of
keys, recurse without bound, and expand aliases without counting.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from scheduler.config.problems import Problem
from scheduler.config.source import Source

MAX_DEPTH = 32  # the schema is 6 deep; ruamel's scanner is quadratic in the depth of flow collections

_SURROGATE = re.compile("[\ud800-\udfff]")

# A malformed text makes the parser raise these too (seen in fuzzing); for a user they are all "not YAML".
_PARSER_ERRORS = (YAMLError, ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)


@dataclass(slots=True)
class Scalar:
    """``plain`` = without quotes and not a block, so that its text decides what it is; ``tag`` = an explicit one."""

    offset: int
    text: str
    plain: bool
    tag: str | None = None


@dataclass(slots=True)
class Sequence:
    """A list."""

    offset: int
    items: "list[Node]" = field(default_factory=list)


@dataclass(slots=True)
class Mapping:
    """A mapping; of duplicate keys it holds the first."""

    offset: int
    entries: "dict[str, tuple[Scalar, Node]]" = field(default_factory=dict)


@dataclass(slots=True)
class Alias:
    """``*name``: the place of the alias and the node it stands for."""

    offset: int
    target: "Node"


Node = Scalar | Sequence | Mapping | Alias


class Unparsable(Exception):
    """Nothing after this place can be read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_nodes(source: Source, problems: list[Problem]) -> Node | None:
    """The root node of the one document in ``source``; None = nothing there.

    Errors go to ``problems``: after a syntax error nothing is returned, duplicate keys and the like do not end the reading.
    """
    reader = _Reader(source, problems)
    try:
        reader.read()
    except Unparsable as stop:
        problems.append(stop.problem)
        return None
    return reader.root


class _Reader:
    def __init__(self, source: Source, problems: list[Problem]) -> None:
        self.source = source
        self.problems = problems
        self.root: Node | None = None
        self._open: list[tuple[Sequence | Mapping, str | None]] = []
        self._keys: list[Scalar | None] = []  # per open collection: the key that waits for its value
        self._anchors: dict[str, Node] = {}
        self._unfinished: set[str] = set()  # anchors of collections that are still open
        self._documents = 0

    def read(self) -> None:
        handlers: dict[str, Callable[[Any], None]] = {
            "DocumentStartEvent": self._document,
            "ScalarEvent": self._scalar,
            "AliasEvent": self._alias,
            "SequenceStartEvent": lambda event: self._start(event, Sequence(event.start_mark.index)),
            "MappingStartEvent": lambda event: self._start(event, Mapping(event.start_mark.index)),
            "SequenceEndEvent": self._end,
            "MappingEndEvent": self._end,
        }
        try:
            for event in YAML(typ="safe", pure=True).parse(self.source.text):
                handler = handlers.get(type(event).__name__)
                if handler is not None:
                    handler(event)
        except _PARSER_ERRORS as error:
            raise Unparsable(_syntax_problem(self.source, error)) from error

    def _stop(self, offset: int, message: str, fix: str) -> Unparsable:
        return Unparsable(self.source.problem(offset, "yaml_syntax", message, fix))

    def _report(self, offset: int, code: str, message: str, fix: str) -> None:
        self.problems.append(self.source.problem(offset, code, message, fix))

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._stop(event.start_mark.index, "a second YAML document begins here", "keep one document; remove this ---")
        if event.version not in (None, (1, 2)):
            version = ".".join(str(part) for part in event.version)
            raise self._stop(0, f"the file asks for YAML {version}; hotseat reads YAML 1.2", "remove the %YAML line")

    def _scalar(self, event: Any) -> None:
        plain = event.style is None and event.tag in (None, "!") and event.implicit[0]
        node = Scalar(event.start_mark.index, event.value, plain, event.tag)
        if _SURROGATE.search(node.text):  # cannot be written to a file, a terminal or an argument
            self._report(node.offset, "yaml_syntax", "an escape for half of a character (a surrogate)", "write the character itself")
            node.text = _SURROGATE.sub("\ufffd", node.text)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
            self._unfinished.discard(event.anchor)
        self._place(node)

    def _alias(self, event: Any) -> None:
        offset, name = event.start_mark.index, event.anchor
        if name in self._unfinished:
            raise self._stop(offset, f"alias *{name} stands inside of what it names", "write the value out")
        if name not in self._anchors:
            raise self._stop(offset, f"alias *{name} names nothing: there is no &{name} above", "quote a value that begins with *")
        self._place(Alias(offset, self._anchors[name]))

    def _start(self, event: Any, node: Sequence | Mapping) -> None:
        offset = event.start_mark.index
        if len(self._open) >= MAX_DEPTH:
            raise self._stop(offset, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        if event.tag not in (None, "!", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"):
            self._report(offset, "yaml_syntax", f"unknown tag {event.tag}", "remove it")
        if self._waits_for_key():
            raise self._stop(offset, "a key must be plain text, not a list or mapping", "quote a key or value that begins with [ or {")
        if event.anchor is not None:
            self._unfinished.add(event.anchor)
        self._open.append((node, event.anchor))
        self._keys.append(None)

    def _end(self, _event: Any) -> None:
        node, anchor = self._open.pop()
        self._keys.pop()
        if anchor is not None:
            self._anchors[anchor] = node
            self._unfinished.discard(anchor)
        self._place(node)

    def _waits_for_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1][0], Mapping) and self._keys[-1] is None

    def _place(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1][0]
        if isinstance(parent, Sequence):
            parent.items.append(node)
            return
        key = self._keys[-1]
        if key is None:
            self._keys[-1] = self._key(node)
            return
        self._keys[-1] = None
        self._add(parent, key, node)

    def _key(self, node: Node) -> Scalar:
        if isinstance(node, Alias) and isinstance(node.target, Scalar):
            return Scalar(node.offset, node.target.text, node.target.plain, node.target.tag)
        if not isinstance(node, Scalar):
            raise self._stop(node.offset, "a key must be plain text, not an alias of a list or mapping", "write the key out")
        if node.plain and node.text in ("", "~"):
            self._report(node.offset, "yaml_syntax", "a value without a key", "write KEY: VALUE")
        return node

    def _add(self, parent: Mapping, key: Scalar, node: Node) -> None:
        if key.text in parent.entries:
            first = parent.entries[key.text][0]
            line = self.source.place(first.offset)[0]
            here = self.source.place(key.offset)[0]
            message = f"key {key.text!r} on line {here} was already given on line {line}"
            self._report(key.offset, "duplicate_key", message, "keep one of the two")
        elif key.text == "<<" and key.plain:
            self._report(key.offset, "yaml_syntax", "merge keys (<<) are not part of YAML 1.2", "alias whole values (key: *name) instead")
        else:
            parent.entries[key.text] = (key, node)


# (what the parser says, what we say, what to do, whether the place to show is where the construct began).
# The first whose key occurs in the parser's sentence counts.
_HINTS: tuple[tuple[str, str, str, bool], ...] = (
    ("found character '\\t'", "a tab stands where YAML wants spaces", "indent with spaces", False),
    ("found a tab", "a tab stands where YAML wants spaces", "indent with spaces", False),
    ("mapping values are not allowed here", "unexpected ':'", "check the indentation here and one line above, or quote the value", False),
    ("could not find expected ':'", "a key without ':'", "write KEY: VALUE", True),
    ("found character '>'", "a value begins with '>'", 'quote it, for example ">=40GiB"', False),
    ("chomping or indentation", "a value begins with '>' or '|'", 'quote it, for example ">=40GiB"', True),
    ("that cannot start any token", "a value begins with a character that has a meaning in YAML", "quote the value", False),
    ("unexpected end of stream", "a quoted text is never closed", "close the quotes", True),
    ("unknown escape character", "unknown escape in double quotes", "use single quotes for text with backslashes", False),
    ("but got '<stream end>'", "a [ or { is never closed", "close it", True),
    ("but found '<stream end>'", "a [ or { is never closed", "close it", True),
    ("expected ',' or", "a ',' or a closing bracket is missing", "separate entries with commas and close the bracket", False),
    ("expected <block end>", "the indentation does not match what stands above", "align keys that belong together", False),
    ("expected '<document start>'", "text after the end of the configuration", "check brackets and indentation", False),
    ("undefined tag handle", "unknown tag", "quote a value that begins with !", False),
)


def _syntax_problem(source: Source, error: BaseException) -> Problem:
    said, here, began = "not valid YAML", None, None
    if isinstance(error, MarkedYAMLError):
        said = ", ".join(str(part) for part in (error.context, error.problem) if part)
        here, began = error.problem_mark or error.context_mark, error.context_mark
    for needle, message, fix, at_begin in _HINTS:
        if needle in said:
            mark = began if at_begin and began is not None else here
            return source.problem(_index(mark), "yaml_syntax", message, fix)
    return source.problem(_index(here), "yaml_syntax", said.replace("\n", " "), "check the YAML around here")


def _index(mark: Any) -> int:
    return int(mark.index) if mark is not None else 0
