"""Environment files: ``NAME=VALUE`` lines, ``#`` comments, optional quotes around a value. Nothing is expanded."""

import re
from pathlib import Path

from scheduler.config.problems import Problem
from scheduler.config.source import read_source

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = "HOTSEAT_"


def name_problem(name: str) -> tuple[str, str] | None:
    """What is wrong with the name of an environment variable: the cause and what to do; None = nothing."""
    if _NAME.fullmatch(name) is None:
        return f"{name!r} is not the name of an environment variable", "use letters, digits and _ only"
    if name.startswith(RESERVED):
        return f"{name}: variables that begin with {RESERVED} are never given to engines", "use another name"
    return None


def read_env_file(path: Path, problems: list[Problem]) -> dict[str, str]:
    """The variables of ``path``; bad lines go to ``problems``. Raises ConfigInvalid when the file cannot be read."""
    source = read_source(path)
    found: dict[str, str] = {}
    offset = 0
    for line in source.text.split("\n"):
        start, offset = offset, offset + len(line) + 1
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        trouble, name, value = _read_line(line)
        if trouble:
            problems.append(_without_source(source.problem(start, "env_file", *trouble)))
        else:
            found[name] = value
    return found


def _read_line(line: str) -> tuple[tuple[str, str] | None, str, str]:
    """What is wrong with a line, else its name and value. The text of a bad line is never repeated: it may be a secret."""
    name, equals, value = line.partition("=")
    name, value = name.strip(), value.strip()
    if name.startswith(("export ", "export\t")):
        name = name[6:].strip()
    if not equals or _NAME.fullmatch(name) is None:
        return ("expected NAME=VALUE", "use letters, digits and _ for the name; begin a comment with #"), "", ""
    if "\0" in value:
        return ("a NUL character cannot be passed to a program", "remove it"), "", ""
    return name_problem(name), name, _unquote(value)


def _without_source(problem: Problem) -> Problem:
    """Without the offending line: env files are where secrets live."""
    return Problem(file=problem.file, line=problem.line, column=1, code=problem.code, message=problem.message, fix=problem.fix)


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
