"""A configuration file as text, with positions."""

import bisect
import re
from pathlib import Path

from scheduler.config.problems import ConfigInvalid, Problem, mask_secrets

MAX_BYTES = 512 * 1024  # the parser needs about 10 s per MiB; a file of 1,000 models has 200 KiB

# What YAML 1.2 allows in a stream. The byte order mark is removed at the start and refused elsewhere.
_NOT_ALLOWED = re.compile("[^\\x09\\x0A\\x0D\\x20-\\x7E\\x85\\xA0-\\uD7FF\\uE000-\\uFEFE\\uFF00-\\uFFFD\\U00010000-\\U0010FFFF]")
_MAX_CHARACTER_PROBLEMS = 20
_MAX_SENTENCE = 600
_MAX_SHOWN = 2000  # characters of a line that a problem keeps


class Source:
    """The text of one file; offsets into it become lines and columns, both counted from 1."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.name = str(path)
        self.text = text.removeprefix("\ufeff")
        self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of the character at ``offset``."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[self._starts[number - 1] : end].rstrip("\r\n")

    def problem(self, offset: int, code: str, message: str, fix: str = "") -> Problem:
        """A problem at ``offset``."""
        line, column = self.place(min(offset, len(self.text)))
        # Thousands of problems on one very long line must not hold thousands of copies of it.
        source = mask_secrets(self.line(line)[:_MAX_SHOWN]) if column <= _MAX_SHOWN else ""
        return Problem(file=self.name, line=line, column=column, code=code, message=_cut(message), fix=_cut(fix), source=source)

    def character_problems(self) -> list[Problem]:
        """Characters that YAML does not allow (control characters above all), the first twenty of them."""
        found = []
        for match in _NOT_ALLOWED.finditer(self.text):
            message = f"character U+{ord(match.group()):04X} is not allowed in a configuration file"
            found.append(self.problem(match.start(), "encoding", message, "remove it, or write it as an escape in double quotes"))
            if len(found) == _MAX_CHARACTER_PROBLEMS:
                break
        return found


def _cut(sentence: str) -> str:
    """A sentence that quotes something endless, made short."""
    return sentence if len(sentence) <= _MAX_SENTENCE else sentence[:_MAX_SENTENCE] + "..."


def read_source(path: Path) -> Source:
    """The file as text. Raises ConfigInvalid when it cannot be read, is too large, or is not UTF-8."""
    try:
        with path.open("rb") as file:
            # A pipe or device has no honest size: read one byte more than allowed instead of asking for it.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _whole_file(path, "file_unreadable", *_why_unreadable(error)) from error
    if len(data) > MAX_BYTES:
        raise _whole_file(path, "file_too_large", f"larger than {MAX_BYTES // 1024} KiB", "is this really a hotseat configuration?")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _whole_file(path, "encoding", "the file is UTF-16", "save it as UTF-8")
    try:
        return Source(path, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _bad_utf8(path, data, error)


def _bad_utf8(path: Path, data: bytes, error: UnicodeDecodeError) -> Source:
    source = Source(path, data.decode("utf-8", "replace"))
    offset = len(data[: error.start].decode("utf-8", "replace").removeprefix("\ufeff"))
    problem = source.problem(offset, "encoding", f"byte 0x{data[error.start]:02X} is not valid UTF-8", "save the file as UTF-8")
    raise ConfigInvalid(path, [problem]) from error


def _why_unreadable(error: OSError) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return "no such file", "check the path"
    if isinstance(error, IsADirectoryError):
        return "is a directory", "name the file in it"
    if isinstance(error, PermissionError):
        return "permission denied", "let the user that runs hotseat read it"
    return f"cannot be read: {error.strerror or error}", ""


def _whole_file(path: Path, code: str, message: str, fix: str) -> ConfigInvalid:
    return ConfigInvalid(path, [Problem(file=str(path), line=0, column=0, code=code, message=message, fix=fix)])
