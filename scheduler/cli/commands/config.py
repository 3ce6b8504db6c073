"""`hotseat config check FILE`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.cli.context import Context
from scheduler.cli.render.text import wrap

if TYPE_CHECKING:  # the schema is worth half a second: not for --help
    from scheduler.config.problems import ConfigInvalid
    from scheduler.config.report import Remark
    from scheduler.config.settings import Loaded


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `config check`."""
    parser.add_argument("file", metavar="FILE", help="the configuration file")
    parser.add_argument("--json", action="store_true", help="as JSON")


def check_file(path: Path, environ: Mapping[str, str]) -> "Loaded | ConfigInvalid":
    """The file against the schema and against what the adapters know of their engines."""
    from scheduler.config.load import check
    from scheduler.daemon.engine_facts import engine_facts, refused_variable

    known, owned = engine_facts()
    return check(path, owned_flags=owned, known_engines=known, environ=environ, refused_variable=refused_variable)


def _remarks(result: "Loaded | ConfigInvalid") -> "list[Remark]":
    from scheduler.config.settings import Loaded
    from scheduler.daemon.remarks import remarks

    return remarks(result) if isinstance(result, Loaded) else []


def _fitted(lines: list[str], columns: int | None) -> list[str]:
    """Broken at blanks where the terminal ends, but for lines of the file: the caret below them shows a place."""
    return [part for line in lines for part in ([line] if line.startswith("    ") else wrap(line, columns, _below(line)))]


def _below(line: str) -> str:
    return " " * 7 if line.startswith("  fix: ") else "  "


def run(context: Context) -> int:
    """0 = valid, 1 = not; all errors at once."""
    from scheduler.config.report import check_json, check_text, exit_code

    result = check_file(Path(context.args.file), context.environ)
    found = _remarks(result)
    if context.args.json:
        context.say_json(check_json(result, found))
    else:
        context.say(_fitted(check_text(result, found).splitlines(), context.columns()))
    return exit_code(result)
