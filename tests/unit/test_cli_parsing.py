"""From words to commands: aliases, help, nearest words; where the daemon is looked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.cli.client import Target, model_path, targets
from scheduler.cli.failure import USAGE, CliError
from scheduler.cli.parsing import parse, parser_of
from scheduler.cli.registry import ALIASES, BY_NAME, COMMANDS, GROUPS, Command


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("status", "status"),
        ("ps", "status"),
        ("status -w coder", "status"),
        ("start coder", "wake"),
        ("models", "models ls"),
        ("model ls", "models ls"),
        ("devices", "devices ls"),
        ("devices --json", "devices ls"),
        ("device show gpu0", "devices show"),
        ("devices list", "devices ls"),
        ("models list", "models ls"),
        ("list", "models ls"),
        ("list --json", "models ls"),
        ("model show coder", "models show"),
        ("--url http://127.0.0.1:1 status", "status"),
        ("--state-dir /x models ls", "models ls"),
        ("config check file.yaml", "config check"),
        ("--version", "version"),
    ],
)
def test_commands_and_their_aliases(line: str, command: str) -> None:
    parsed = parse(line.split())
    assert parsed.command is BY_NAME[command]
    assert parsed.args is not None
    assert parsed.args.command == command


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("statsu", "did you mean 'status'"),
        ("wak coder", "did you mean 'wake'"),
        ("sotry", "did you mean 'story'"),
        ("modles ls", "did you mean 'models'"),
        ("models lst", "did you mean 'ls'"),
        ("devices shwo gpu0", "did you mean 'show'"),
        ("config chekc x", "did you mean 'check'"),
        ("config", "one of: check"),
        ("xyzzy", "there is no command 'xyzzy'"),
        ("", "usage"),
        ("status --jsn", "unrecognized arguments: --jsn"),
        ("status --js", "unrecognized arguments: --js"),
        ("wake", "the following arguments are required: MODEL"),
        ("sleep coder --level 3", "invalid choice"),
        ("logs -n x", "invalid lines value"),
        ("logs -n 10001", "between 0 and 10000"),
        ("logs coder --launch first", "a launch number, or last"),
        ("story coder -n 0", "between 1 and 1000"),
        ("status -w --interval 0", "between 0.05 and 3600"),
        ("status -w --interval nan", "between 0.05 and 3600"),
        ("--jsn status", "unrecognized arguments: --jsn"),
        ("serve --url http://x", "unrecognized arguments: --url"),
    ],
)
def test_mistakes_are_usage_errors_that_name_the_way_on(line: str, words: str) -> None:
    if not line:
        assert words in parse([]).text
        return
    with pytest.raises(CliError) as caught:
        parse(line.split())
    assert caught.value.exit_code == USAGE
    assert words in caught.value.message
    assert "--help" in caught.value.fix


@pytest.mark.parametrize("line", ["--help", "-h", "help", ""])
def test_the_overview_names_every_command(line: str) -> None:
    text = parse(line.split()).text
    assert all(f"  {command.name} " in text for command in COMMANDS)
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help_with_examples_that_parse(command: Command) -> None:
    text = parse([*command.name.split(), "--help"]).text
    assert f"usage: hotseat {command.name}" in text
    assert "examples:" in text
    for example in command.examples:
        assert example in text
        words = example.partition(" | ")[0].split()[1:]
        assert parse(words).command is command


def test_help_wins_over_missing_arguments() -> None:
    assert "usage: hotseat wake" in parse(["wake", "--help"]).text
    assert "usage: hotseat wake" in parse(["help", "wake"]).text
    assert "usage: hotseat models COMMAND" in parse(["models", "--help"]).text
    assert "usage: hotseat models COMMAND" in parse(["model", "-h"]).text


def test_groups_and_aliases_are_consistent() -> None:
    assert frozenset({"models", "devices", "config"}) == GROUPS
    assert all(target in BY_NAME or target in GROUPS for target in ALIASES.values())


def test_a_parser_of_a_command_that_talks_takes_the_way_to_the_daemon() -> None:
    parser, _ = parser_of(BY_NAME["wake"])
    args = parser.parse_args(["--url", "http://h:1", "coder"])
    assert (args.url, args.state_dir, args.model, args.no_wait) == ("http://h:1", None, "coder", False)


# --- where the daemon is -----------------------------------------------------------------------------------------------

LOOPBACK = Target("http://127.0.0.1:11500", host="127.0.0.1", port=11500)


def sock(path: str) -> Target:
    return Target(path, path=path)


@pytest.mark.parametrize(
    ("url", "state_dir", "environ", "euid", "expected"),
    [
        (None, None, {}, 0, [sock("/var/lib/hotseat/control.sock"), LOOPBACK]),
        (None, None, {}, 1000, [sock("/home/u/.local/state/hotseat/control.sock"), sock("/var/lib/hotseat/control.sock"), LOOPBACK]),
        (None, None, {"HOTSEAT_URL": "http://h:9"}, 0, [Target("http://h:9", host="h", port=9)]),
        ("http://a:1", "/x", {"HOTSEAT_URL": "http://h:9", "HOTSEAT_STATE_DIR": "/y"}, 0, [Target("http://a:1", host="a", port=1)]),
        (None, "/x", {"HOTSEAT_URL": "http://h:9"}, 0, [sock("/x/control.sock")]),
        (None, None, {"HOTSEAT_STATE_DIR": "/y"}, 0, [sock("/y/control.sock")]),
        (None, None, {"HOTSEAT_URL": "http://h:9", "HOTSEAT_STATE_DIR": "/y"}, 0, [Target("http://h:9", host="h", port=9)]),
        ("unix:/run/c.sock", None, {}, 0, [sock("/run/c.sock")]),
        ("unix:///run/c.sock", None, {}, 0, [sock("/run/c.sock")]),
        ("http://[::1]:7/", None, {}, 0, [Target("http://[::1]:7", host="::1", port=7)]),
        ("http://h", None, {}, 0, [Target("http://h", host="h", port=80)]),
    ],
)
def test_what_is_named_explicitly_is_the_only_place_to_look(
    url: str | None, state_dir: str | None, environ: dict[str, str], euid: int, expected: list[Target]
) -> None:
    assert targets(url, state_dir, environ, euid, "/home/u") == expected


@pytest.mark.parametrize(
    "url", ["localhost:11500", "https://h", "http://", "http://h:99999", "http://u:p@h", "http://h/path", "http://[::1", "ftp://h"]
)
def test_a_bad_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(CliError) as caught:
        targets(url, None, {}, 0, "/root")
    assert caught.value.exit_code == USAGE
    assert "http://HOST:PORT" in caught.value.fix


def test_names_in_paths() -> None:
    assert model_path("Qwen/Qwen3-8B:Q4@v+1", "/wake") == "/models/Qwen%2FQwen3-8B%3AQ4%40v%2B1/wake"
    assert model_path("../../etc") == "/models/..%2F..%2Fetc"


# --- the start ---------------------------------------------------------------------------------------------------------

HEAVY = (
    "aiohttp",
    "pydantic",
    "sqlalchemy",
    "alembic",
    "ruamel",
    "ortools",
    "asyncio",
    "adapters",
    "prometheus_client",
    "scheduler.config",
    "scheduler.store",
)


@pytest.mark.parametrize("words", [["status"], ["wake", "coder"], ["models", "ls"], ["logs"], ["events"], ["story", "coder"], ["--help"]])
def test_no_heavy_import_on_the_way_of_everyday_commands(words: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom scheduler.cli.main import main\n"
        f"code = main({[*words, *([] if words == ['--help'] else ['--state-dir', str(tmp_path)])]!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == f"[] {0 if words == ['--help'] else 3}", done.stderr
