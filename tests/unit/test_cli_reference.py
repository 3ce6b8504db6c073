"""The reference pages name every command, option, exit code, endpoint, key and parameter there is, and no other."""

import re
from pathlib import Path

import pytest

from scheduler.api import schemas
from scheduler.api.access import local_policy
from scheduler.api.app import build_control_app, endpoints
from scheduler.api.errors import STATUS_BY_CODE
from scheduler.cli import failure
from scheduler.cli.parsing import parser_of
from scheduler.cli.registry import ALIASES, COMMANDS, Command
from scheduler.domain.instance import Phase
from tests.support.fake_plane import FakePlane

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
CLI = (REFERENCE / "cli.md").read_text(encoding="utf-8")
API = (REFERENCE / "control-api.md").read_text(encoding="utf-8")
TABLE = CLI.partition("## Commands")[2].partition("\n## ")[0]


def options(command: Command) -> set[str]:
    parser, _ = parser_of(command)
    # Only what stands at the beginning of a help line is an option of this command; examples and texts name others.
    found = set()
    for line in parser.format_help().partition("options:")[2].partition("examples:")[0].splitlines():
        if re.match(r"  -", line):
            found |= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line.strip().partition("  ")[0]))
    return found - {"-h", "--help"}


def rows(command: Command) -> str:
    """The table rows of one command."""
    pattern = re.compile(rf"^\| `{re.escape(command.name)}(?: [A-Z]+)?` \|.*$", re.MULTILINE)
    return "\n".join(pattern.findall(TABLE))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_and_option_is_in_the_reference(command: Command) -> None:
    text = rows(command)
    assert text, f"{command.name} has no row"
    named = {name for name in options(command) if f"`{name}" not in text}
    if command.talks:
        named -= {"--url", "--state-dir"}  # described once, for all
    assert named == set()
    assert "`--url URL`" in CLI
    assert "`--state-dir DIR`" in CLI


def test_the_reference_names_no_option_that_does_not_exist() -> None:
    existing = {name for command in COMMANDS for name in options(command)} | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", CLI)) - existing == set()
    for command in COMMANDS:
        assert set(re.findall(r"`(--?[a-z][a-z-]*)", rows(command))) - options(command) == set()


def test_aliases_and_exit_codes_are_in_the_reference() -> None:
    assert [alias for alias in ALIASES if f"`{alias.split()[0]}`" not in CLI] == []
    codes = {value for name, value in vars(failure).items() if name.isupper() and isinstance(value, int)}
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE)}
    assert codes <= listed
    assert listed - codes == {78}


def test_every_endpoint_is_in_the_reference_and_no_other() -> None:
    listed = set(re.findall(r"`((?:GET|POST|PUT|DELETE) /[^`?]*)`", API.partition("## Endpoints")[2].partition("\n## ")[0]))
    real = {
        f"{method} {path.replace(':wake|sleep|stop|restart', '')}"
        for method, path in endpoints(build_control_app(FakePlane(), local_policy([])))
    }
    assert listed == real


@pytest.mark.parametrize(
    "schema",
    [
        schemas.Status,
        schemas.Degraded,
        schemas.Device,
        schemas.DeviceDetail,
        schemas.Stranger,
        schemas.Claim,
        schemas.Link,
        schemas.ModelStatus,
        schemas.ModelDetail,
        schemas.InstanceStatus,
        schemas.Failure,
        schemas.Override,
        schemas.Counters,
        schemas.HostMemory,
        schemas.Disk,
        schemas.Jobs,
        schemas.Plan,
        schemas.Step,
        schemas.Memory,
        schemas.Start,
        schemas.StoryEntry,
        schemas.Event,
        schemas.Logs,
        schemas.Page,
        schemas.Action,
        schemas.ActionError,
        schemas.Progress,
        schemas.SideEffect,
        schemas.Ready,
        schemas.VersionInfo,
        schemas.Problem,
    ],
    ids=lambda schema: schema.__name__,
)
def test_every_key_is_in_the_reference(schema: type[schemas.Schema]) -> None:
    keys = {field.alias or name for name, field in schema.model_fields.items()}
    missing = {key for key in keys if f"`{key}`" not in API and f"`{key}[]`" not in API and f'"{key}"' not in API}
    assert missing == set()


def test_every_phase_and_verb_is_in_the_reference() -> None:
    assert [word for word in (*Phase, *schemas.VERBS) if f"`{word}`" not in API] == []


def test_codes_and_parameters_are_in_the_reference() -> None:
    assert {code for code in STATUS_BY_CODE if f"`{code}`" not in API} - {"invariant_violated"} == set()
    for parameter in ("limit", "after", "wait", "lines", "launch", "offset"):
        assert f"`{parameter}`" in API
