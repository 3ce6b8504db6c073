"""From the words of the command line to one command and its arguments.

Two stages instead of one big argparse tree: only the command that is used is imported and gets a parser, so that the
start stays fast, and a wrong word gets a suggestion.
"""

import argparse
import importlib
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from scheduler.cli.failure import USAGE, CliError
from scheduler.cli.registry import ALIASES, BY_NAME, COMMANDS, DEFAULTS, GROUPS, Command

_WITH_VALUE = ("--url", "--state-dir")
HELP = "help"


class Parsed(NamedTuple):
    """What to run; ``command`` None = print ``text`` and end well."""

    command: Command | None
    module: Any
    args: argparse.Namespace | None
    text: str = ""


class _Parser(argparse.ArgumentParser):
    """argparse whose mistakes end in our own error, with the way to the help."""

    def error(self, message: str) -> NoReturn:
        raise CliError(USAGE, message, fix=f"{self.prog} --help")


def parse(argv: Sequence[str]) -> Parsed:
    """The command of ``argv`` (without the program's name). Raises CliError (usage) naming the nearest command."""
    options, words = _split(argv)
    if not words:
        if "--version" in options:
            return parse(["version"])
        if not options or "-h" in options or "--help" in options:
            return Parsed(None, None, None, overview())
        raise CliError(USAGE, "no command given", fix="hotseat --help")
    if words[0] == HELP:
        return parse([*words[1:], "--help"])
    command, rest = _resolve(words)
    if command is None:
        return Parsed(None, None, None, group_help(words[0]))
    parser, module = parser_of(command)
    if "-h" in rest or "--help" in rest:
        # Before the arguments are checked: whoever asks for help has not got them right yet.
        before = rest[: rest.index("--")] if "--" in rest else rest
        if "-h" in before or "--help" in before:
            return Parsed(None, None, None, parser.format_help().rstrip("\n"))
    return Parsed(command, module, parser.parse_args([*options, *rest]))


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options that stand before the command, and the rest."""
    i = 0
    while i < len(argv) and argv[i].startswith("-"):
        i += 2 if argv[i] in _WITH_VALUE else 1
    return list(argv[:i]), list(argv[i:])


def _resolve(words: Sequence[str]) -> tuple[Command | None, list[str]]:
    word, rest = ALIASES.get(words[0], words[0]), list(words[1:])
    if word in BY_NAME:
        return BY_NAME[word], rest
    if word in GROUPS:
        return _resolve_in_group(word, rest)
    raise CliError(USAGE, f"there is no command {words[0]!r}{_nearest(words[0], _heads())}", fix="hotseat --help")


def _resolve_in_group(head: str, rest: list[str]) -> tuple[Command | None, list[str]]:
    if rest and rest[0] in ("-h", "--help"):
        return None, rest
    if not rest or rest[0].startswith("-"):
        if head in DEFAULTS:
            return BY_NAME[DEFAULTS[head]], rest
        raise CliError(USAGE, f"{head}: which command? one of: {', '.join(_members(head))}", fix=f"hotseat {head} --help")
    name = ALIASES.get(f"{head} {rest[0]}", f"{head} {rest[0]}")
    if name not in BY_NAME:
        members = _members(head)
        raise CliError(USAGE, f"there is no command '{head} {rest[0]}'{_nearest(rest[0], members)}", fix=f"hotseat {head} --help")
    return BY_NAME[name], rest[1:]


def _heads() -> list[str]:
    return [*dict.fromkeys(name.split()[0] for name in BY_NAME), *(name for name in ALIASES if " " not in name), HELP]


def _members(group: str) -> list[str]:
    return [name.split()[1] for name in BY_NAME if name.startswith(f"{group} ")]


def _nearest(word: str, names: Sequence[str]) -> str:
    close = get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def parser_of(command: Command) -> tuple[argparse.ArgumentParser, Any]:
    """The parser of one command, and its module."""
    module = importlib.import_module(command.module)
    parser = _Parser(
        prog=f"hotseat {command.name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in command.examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if command.talks:
        parser.add_argument("--url", metavar="URL", help="where the daemon is (else HOTSEAT_URL, else its control socket, else loopback)")
        parser.add_argument("--state-dir", metavar="DIR", help="state directory of the daemon (else HOTSEAT_STATE_DIR)")
    parser.set_defaults(command=command.name)
    module.arguments(parser, command.name)
    return parser, module


def overview() -> str:
    """`hotseat --help`."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [
        "usage: hotseat COMMAND [OPTIONS]",
        "",
        "One daemon for one machine: each seat goes to the model that works now.",
        "",
        "commands:",
    ]
    lines += [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    lines += ["", "also understood: ps (status), start (wake), list (models ls), model (models),", "device (devices)"]
    lines += ["", "first steps:", "  hotseat doctor", "  hotseat serve --config hotseat.yaml", "  hotseat status -w", ""]
    lines += ["hotseat COMMAND --help explains a command. Exit codes: 0 ok, 1 failed, 2 usage,"]
    lines += ["3 daemon unreachable, 4 not found, 5 not permitted, 6 conflict or wrong state,", "7 refused."]
    return "\n".join(lines)


def group_help(group: str) -> str:
    """`hotseat models --help`."""
    group = ALIASES.get(group, group)
    lines = [f"usage: hotseat {group} COMMAND", "", "commands:"]
    lines += [f"  {command.name:<14}  {command.summary}" for command in COMMANDS if command.name.startswith(f"{group} ")]
    return "\n".join(lines)
