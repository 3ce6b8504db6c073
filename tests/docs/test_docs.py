"""The documentation matches the code and its own links lead somewhere."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from scheduler.cli.commands.config import check_file
from scheduler.cli.registry import ALIASES, BY_NAME, GROUPS
from scheduler.config.report import check_text, exit_code
from scheduler.domain.device import Health
from scheduler.domain.instance import TRANSITIONS, Phase
from scheduler.domain.reasons import Code
from scheduler.orchestrator.devices import BLIND, HEALTH_CODES
from scheduler.telemetry.metric_list import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Words that follow the name of the program in sentences about it.
_PROSE = {"answers", "command", "configuration", "database", "decides", "into", "is", "itself", "may", "read", "reads", "sets", "with"}
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_parts_are_fresh(generator: ModuleType) -> None:
    stale = [str(path.relative_to(ROOT)) for path in generator.stale_files()]
    assert stale == [], "run: make docs"


def test_every_generator_has_a_place(generator: ModuleType) -> None:
    places = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name in generator.BLOCKS:
        assert places.count(f"<!-- generated: {name} -->") == 1, name


def test_a_stale_page_is_noticed_and_mended(generator: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: metrics -->\nold\n<!-- /generated -->\nafter\n", encoding="utf-8")
    (stale,) = generator.stale_files(tmp_path)
    assert stale == page
    right = generator.renewed(page.read_text(encoding="utf-8"))
    assert right.startswith("before\n")
    assert right.endswith("\nafter\n")
    assert f"`{METRICS[0].name}`" in right
    assert generator.renewed(right) == right
    with pytest.raises(KeyError, match="nobody"):
        generator.renewed("<!-- generated: nobody -->\n<!-- /generated -->")


def test_the_state_table_holds_every_transition(generator: ModuleType) -> None:
    rows = {row.split("`")[1]: row for row in generator.transitions().splitlines()[2:]}
    assert set(rows) == {phase.value for phase in Phase}
    for (source, event), targets in TRANSITIONS.items():
        for target in targets:
            cell = re.search(rf"`{target.value}` \(([^)]*)\)", rows[source.value])
            assert cell is not None
            assert event.__name__ in cell[1].split(", ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    dead = []
    for target in _LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        goal = (page.parent / file) if file else page
        if not goal.exists() or (anchor and anchor not in _anchors(goal)):
            dead.append(target)
    assert dead == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_leads_to_every_reference_and_decision() -> None:
    linked = set(_LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(ROOT)) for folder in ("reference", "adr") for page in (ROOT / "docs" / folder).glob("*.md")}
    assert pages - linked == set()


def test_the_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "hotseat.yaml"
    file.write_text(block, encoding="utf-8")
    result = check_file(file, {})
    assert exit_code(result) == 0, check_text(result)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_whole_configurations_in_the_text_are_valid(page: Path, tmp_path: Path) -> None:
    """Whole ones begin with their file's name."""
    file = tmp_path / "hotseat.yaml"
    for block in re.findall(r"```yaml\n(# hotseat\.yaml\n.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        file.write_text(block, encoding="utf-8")
        result = check_file(file, {})
        assert exit_code(result) == 0, check_text(result)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_text_exist(page: Path) -> None:
    """What the README says is not there yet may be named there."""
    text = page.read_text(encoding="utf-8")
    coming = text[text.find("It does not work yet") :].partition("\n")[0] if "It does not work yet" in text else ""
    known = {name.split()[0] for name in BY_NAME} | set(ALIASES) | GROUPS
    used = set(re.findall(r"(?:`|\$ |bin/)hotseat ([a-z][a-z-]+)", text.replace(coming, "") if coming else text))
    assert used - known == set()


def _told(source: Path) -> str:
    """All that a module can say: its strings without docstrings, a line each; ``{}`` stands for what is put in."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            silent.update(id(part) for part in node.values)
            lines.append("".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            lines.append(node.value)
    return "\n".join(lines)


@pytest.mark.parametrize("room", ["scheduler", "adapters"])
def test_commands_in_messages_exist(room: str) -> None:
    """A remedy that cannot be typed is none."""
    known = {name.split()[0] for name in BY_NAME} | set(ALIASES) | GROUPS
    used = {
        (word, source.name) for source in (ROOT / room).rglob("*.py") for word in re.findall(r"\bhotseat ([a-z][a-z-]+)", _told(source))
    }
    assert {(word, name) for word, name in used if word not in known | _PROSE} == set()


def _kinds_told() -> set[str]:
    """Kinds of events that stand as words in the code: what is told by ``tell``, and what devices report."""
    found = set()
    rooms = ("scheduler/orchestrator", "scheduler/daemon", "adapters")
    for source in [path for room in rooms for path in (ROOT / room).rglob("*.py")]:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
            given = [keyword.value for keyword in node.keywords if keyword.arg == "kind" and name in ("Tell", "DeviceNews")]
            words = node.args[:1] if name == "tell" and len(node.args) == 3 else given  # kind, subject, message
            found |= {str(word.value) for word in words if isinstance(word, ast.Constant)}
    return found


def test_every_kind_of_event_is_explained_and_no_other() -> None:
    page = (ROOT / "docs" / "reference" / "control-api.md").read_text(encoding="utf-8")
    rows = page.split("\n## Events\n")[1].split("|---|---|\n")[1].split("\n\n")[0].splitlines()
    explained = [kind for row in rows for kind in re.findall(r"`([a-z_]+)`", row.split("|")[1])]
    assert len(explained) == len(set(explained))
    assert set(explained) == _kinds_told() | set(HEALTH_CODES.values()) | {Code.DISK_LOW.value}


def test_every_code_of_what_is_degraded_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8")
    table = page.split("## What is degraded")[1].split("## ")[0]
    keys = {
        code
        for source in (ROOT / "scheduler" / "orchestrator").glob("*.py")
        for code in re.findall(r"""(?:degraded\[f?|key = f)"([a-z_]+)""", source.read_text(encoding="utf-8"))
    }
    assert {"over_capacity", "host_over_capacity", "store"} <= keys
    for code in keys | {f"device_{health.value}" for health in (Health.STALE,)} | set(HEALTH_CODES.values()) | {BLIND, Code.DISK_LOW.value}:
        assert re.search(rf"^\| `?{code}`? \|", table, re.MULTILINE), code


def test_every_reason_code_is_explained_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs" / "reference" / "reasons.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {code.value for code in Code} - {Code.NONE.value}
