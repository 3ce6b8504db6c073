"""What is wrong with a configuration: one problem per place, and the error that carries them all."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.domain.errors import Invalid

#: Every code a problem can have, with its meaning.
CODES: Mapping[str, str] = {
    "file_unreadable": "The file does not exist or cannot be read.",
    "file_too_large": "The file is larger than any configuration should be.",
    "encoding": "Not UTF-8, or a character that YAML does not allow.",
    "yaml_syntax": "Not YAML 1.2, or a part of YAML that is not allowed here.",
    "duplicate_key": "A key stands twice in one mapping.",
    "unknown_key": "There is no such key.",
    "wrong_type": "The value is of another kind than the key wants.",
    "bad_value": "The kind is right, the value is not.",
    "not_supported_yet": "The key or value is specified, but this version cannot do it.",
    "missing_key": "A key that is needed here is not given.",
    "bad_name": "A name has characters that it may not have.",
    "name_taken": "A name, alias or device id means two things.",
    "unknown_engine": "There is no such engine.",
    "unknown_device": "There is no such device.",
    "owned_flag": "An argument or a variable sets what the engine's adapter sets itself.",
    "engine_refuses": "The engine would not start with this variable.",
    "unknown_placeholder": "A `${...}` that is not known, or an environment variable that is not set.",
    "missing_port": "A command that does not pass `${port}` on.",
    "env_file": "A line of an env file is not NAME=VALUE.",
}

_WINDOW = 68  # characters of an offending line that are shown: with what stands around them, the width of a terminal
_WORD = re.compile(r"[\w.-]+")
_SECRET = re.compile(r"token|key|secret|password", re.IGNORECASE)
_VALUE = re.compile(r"[\"']?\s*[:=,]\s*([^\s,}\]#][^,}\]#]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error of a configuration file. ``line`` and ``column`` count from 1; 0 = the file as a whole.

    ``source`` is the offending line as it stands in the file (secrets masked), empty when there is none.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    fix: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code

    def text(self) -> str:
        """``FILE:LINE:COL: message``, the line with a caret under the place, and the fix."""
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        rows = [f"{where}: {self.message}"]
        if self.source.strip():
            shown, caret = _excerpt(self.source, self.column)
            rows += [f"    {shown}", f"    {caret}"]
        if self.fix:
            rows.append(f"  fix: {self.fix}")
        return "\n".join(rows)


class ConfigInvalid(Invalid):
    """A configuration file that cannot be used; ``problems`` holds all of its errors in the order of the file."""

    code = "config_invalid"

    def __init__(self, path: Path, problems: Iterable[Problem]) -> None:
        main = str(path)
        self.path = path
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.file != main, p.file, p.line, p.column, p.message)))
        first = self.problems[0]
        where = f"{first.file}:{first.line}" if first.line else first.file
        count = len(self.problems)
        lead = f"{count} errors, first " if count > 1 else ""
        super().__init__(f"{lead}{where}: {first.message}", fix=f"run: hotseat config check {main}")

    def report(self) -> str:
        """All problems as text, and their number."""
        count = len(self.problems)
        total = f"{self.path}: {count} {'error' if count == 1 else 'errors'}"
        return "\n".join([*(problem.text() for problem in self.problems), total])


def mask_secrets(line: str) -> str:
    """``line`` with the values of keys and flags named like secrets replaced by asterisks of the same length."""
    shown, done = [], 0
    for word in _WORD.finditer(line):
        if word.start() < done or _SECRET.search(word.group()) is None:
            continue
        value = _VALUE.match(line, word.end())
        if value is not None:
            shown.append(line[done : value.start(1)] + "*" * len(value.group(1)))
            done = value.end(1)
    return "".join(shown) + line[done:]


def _excerpt(line: str, column: int) -> tuple[str, str]:
    """The part of ``line`` around ``column``, and a caret that stands under that column on a terminal."""
    at = min(max(column - 1, 0), len(line))
    start = max(0, at - _WINDOW // 2) if len(line) > _WINDOW else 0
    head = "... " if start else ""
    tail = " ..." if start + _WINDOW < len(line) else ""
    shown = "".join(_printable(c) for c in line[start : start + _WINDOW])
    caret = "".join(_blank(c) for c in shown[: at - start]) + "^"
    return head + shown + tail, " " * len(head) + caret


def _printable(char: str) -> str:
    return char if char == "\t" or char.isprintable() else "?"


def _blank(char: str) -> str:
    """White space as wide as ``char`` on a terminal."""
    if char == "\t":
        return "\t"
    if unicodedata.combining(char):
        return ""
    return "  " if unicodedata.east_asian_width(char) in "WF" else " "
