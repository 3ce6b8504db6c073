"""Write the generated parts of the documentation: what stands between the marks comes from the code.

    <!-- generated: NAME -->
    ...
    <!-- /generated -->

``python docs/generate.py`` writes, ``--check`` only compares (exit 1 with the names of stale files).
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.domain import instance
from scheduler.domain.instance import TRANSITIONS, Phase
from scheduler.telemetry.metric_list import METRICS

DOCS = Path(__file__).resolve().parent
SCENARIOS = DOCS.parent / "tests" / "data" / "scenarios.toml"
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def transitions() -> str:
    """What may follow what, one row a phase."""
    rows = ["| phase | next phase (events) |", "|---|---|"]
    for phase in Phase:
        targets: dict[Phase, list[str]] = {}
        for (source, event), nexts in TRANSITIONS.items():
            if source is phase:
                for target in sorted(nexts, key=list(Phase).index):
                    targets.setdefault(target, []).append(event.__name__)
        cells = [
            f"`{target}` ({', '.join(events)})" for target, events in sorted(targets.items(), key=lambda item: list(Phase).index(item[0]))
        ]
        rows.append(f"| `{phase}` | {' · '.join(cells)} |")
    return "\n".join(rows)


def events() -> str:
    """What each event means, in the order of the code."""
    used = {event for _, event in TRANSITIONS}
    declared = [value for value in vars(instance).values() if isinstance(value, type) and value in used]
    rows = ["| event | meaning |", "|---|---|"]
    rows += [f"| {event.__name__} | {_cell((event.__doc__ or '').strip())} |" for event in declared]
    return "\n".join(rows)


def metrics() -> str:
    """Every metric, in the order of the list."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.help)} |")
    return "\n".join(rows)


def scenarios() -> str:
    """What was reported elsewhere, the right behaviour, and the tests that hold it or the reason why there is none."""
    rows = ["| row | reported in | right behaviour | held by |", "|---|---|---|---|"]
    for row in tomllib.loads(SCENARIOS.read_text(encoding="utf-8"))["row"]:
        held = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in row.get("tests", [])) or f"*No test:* {row['why_not']}"
        rows.append(f"| {row['source']} | {_cell(', '.join(row['issues'])) or '-'} | {_cell(row['behaviour'])} | {_cell(held)} |")
    return "\n".join(rows)


BLOCKS: dict[str, Callable[[], str]] = {"transitions": transitions, "events": events, "metrics": metrics, "scenarios": scenarios}


def renewed(text: str) -> str:
    """``text`` with every block written anew. Raises KeyError for a block nobody generates."""
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match['name']]()}\n{match[3]}", text)


def stale_files(folder: Path = DOCS) -> dict[Path, str]:
    """Files whose blocks differ from the code -> their right text."""
    found = {}
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        right = renewed(text)
        if right != text:
            found[path] = right
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is stale")
    check = parser.parse_args(argv).check
    stale = stale_files()
    for path, text in stale.items():
        name = path.relative_to(DOCS.parent)
        if check:
            print(f"{name} is stale; run: make docs")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and stale else 0


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
