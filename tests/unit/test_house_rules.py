"""Rules of the house that no linter knows. Each names the file and what to do."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("scheduler", "adapters", "migrations")
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

#: Modules of the orchestrator that may do I/O. Everything else there is pure and belongs into the contract `pure`.
SHELL_OF_ORCHESTRATOR = {
    "applier",
    "backlog",
    "desk",
    "executor",
    "kernel",
    "looks",
    "loop",
    "parts",
    "readiness",
    "recovery",
    "rounds",
    "rows",
    "sampling",
    "silence",
    "supervisor",
    "usage",
}


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def settings() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def contract(ident: str) -> dict[str, list[str]]:
    tool = settings()["tool"]
    assert isinstance(tool, dict)
    (found,) = [each for each in tool["importlinter"]["contracts"] if each["id"] == ident]
    return dict(found)


def test_files_stay_readable_in_one_sitting() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(*PRODUCT, "benchmarks", "docs")}
    assert lengths, "no source found"
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_stay_on_one_screen() -> None:
    too_long = {}
    for path in sources(*PRODUCT, "benchmarks", "docs"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    too_long[f"{name_of(path)}:{node.lineno} {node.name}"] = lines
    assert too_long == {}


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sources(*PRODUCT, "benchmarks", "docs")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_tasks_are_made_in_one_module() -> None:
    """What ruff's banned API cannot see: ``loop.create_task``. A TaskGroup owns its tasks and is fine."""
    found = []
    for path in sources(*PRODUCT):
        if name_of(path) == "scheduler/telemetry/tasks.py":
            continue
        found += [
            f"{name_of(path)}:{node.lineno}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.Attribute) and node.attr == "create_task" and "loop" in ast.unparse(node.value)
        ]
    assert found == [], "use scheduler.telemetry.tasks.spawn or a TaskScope"


def _sleeps(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "sleep"} and node.args:
            seconds = node.args[0]
            if not (isinstance(seconds, ast.Constant) and isinstance(seconds.value, int | float) and seconds.value < SHORTEST_SLEEP_S):
                yield node


#: Below this a pause is a tick of a measurement, not a hope that something will have happened.
SHORTEST_SLEEP_S = 0.05
#: Programs that tests run, in which a pause is the behaviour under test; stories that run in virtual time as a whole.
MAY_SLEEP = ("tests/support/", "tests/simulation/", "tests/unit/test_virtual_time.py")


def test_tests_never_sleep_to_synchronise() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources("tests")
        if not name_of(path).startswith(MAY_SLEEP)
        for node in _sleeps(tree_of(path))
    ]
    assert found == [], "wait for an event, a pipe or a line; in virtual time use scheduler.simulator.virtual_time.elapse"


def test_every_module_says_what_it_is_for() -> None:
    bare = [
        name_of(path) for path in sources(*PRODUCT, "benchmarks") if path.stem != "__init__" and ast.get_docstring(tree_of(path)) is None
    ]
    assert bare == []


def test_committed_text_names_no_machine() -> None:
    places = (f"{ROOT}/", "/" + "work/")
    texts = [
        path for folder in (*PRODUCT, "tests", "benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*") if path.is_file()
    ]
    texts += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml"]
    found = []
    for path in texts:
        if "__pycache__" in path.parts or path.suffix in {".db", ".gz", ".gguf", ".pyc"} or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if any(place in line for place in places):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:100]}")
    assert found == []


@pytest.mark.parametrize("package", PRODUCT)
def test_packages_declare_their_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
    missing = {name_of(path.parent) for path in sources(package) if not (path.parent / "__init__.py").is_file()}
    assert missing == set(), "a folder without __init__.py is invisible to the import contracts"


def test_every_room_is_closed_to_adapters_but_two() -> None:
    rooms = {path.parent.name for path in (ROOT / "scheduler").glob("*/__init__.py")}
    closed = {
        name.removeprefix("scheduler.") for name in contract("adapters-know-ports")["forbidden_modules"] if name.startswith("scheduler.")
    }
    assert closed == rooms - {"ports", "domain"}


def test_every_module_of_the_orchestrator_is_pure_or_shell() -> None:
    modules = {path.stem for path in (ROOT / "scheduler" / "orchestrator").glob("*.py")} - {"__init__"}
    pure = {name.rpartition(".")[2] for name in contract("pure")["source_modules"] if name.startswith("scheduler.orchestrator.")}
    assert pure & SHELL_OF_ORCHESTRATOR == set()
    assert modules - SHELL_OF_ORCHESTRATOR == pure, "list it in the contract `pure` of pyproject.toml, or above as shell"
