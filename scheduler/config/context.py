"""What the checks that look across keys share: the file, the valid part of it, and what the caller knows."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.config.problems import Problem
from scheduler.config.schema import ConfigSection
from scheduler.config.validate import Checked
from scheduler.config.yaml_data import Document, Loc
from scheduler.domain.errors import HotseatError
from scheduler.domain.model import ModelSpec

Refusal = tuple[str, HotseatError]  # the name of a variable, and why it cannot stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the composition root knows: ``owned_flags`` by engine type (flag -> key to use instead), engine types,
    the daemon's environment, where its user is at home, and ``refused_variable``: the variable with which an engine would not
    start a model on a card, and why."""

    owned_flags: Mapping[str, Mapping[str, str]]
    known_engines: Collection[str]
    environ: Mapping[str, str]
    home: Path
    euid: int
    refused_variable: Callable[[ModelSpec], Refusal | None] = lambda _spec: None


@dataclass(slots=True)
class Context:
    """One configuration under check."""

    document: Document
    checked: Checked
    facts: Facts
    problems: list[Problem] = field(default_factory=list)
    env_files: dict[str, dict[str, str]] = field(default_factory=dict)  # by path as written

    @property
    def config(self) -> ConfigSection:
        """The valid part of the file."""
        return self.checked.config

    def report(self, loc: Loc, code: str, message: str, fix: str = "", *, key: bool = False) -> None:
        """Add a problem at a value, or at its key; a value that was already found wrong is not reported twice."""
        if loc not in self.checked.bad:
            self.problems.append(self.document.problem(loc, code, message, fix, key=key))

    def given(self, *loc: str | int) -> bool:
        """Whether the file has something at ``loc``, right or wrong."""
        return self.document.get(loc) is not None or self.checked.is_bad(*loc)

    def knows_devices(self) -> bool:
        """Whether the ids of all declared devices could be read, so that another id is surely wrong."""
        lists = (("devices",), ("devices", "declared"))
        return not any(bad in lists or (bad[:2] == lists[1] and (len(bad) == 3 or bad[3:] == ("id",))) for bad in self.checked.bad)

    def folder(self) -> Path:
        """The folder that relative paths start from."""
        return self.document.source.path.absolute().parent

    def resolve(self, path: str) -> Path:
        """A path of the file as an absolute one; ``~/`` is the home of the daemon's user."""
        if path == "~" or path.startswith("~/"):
            return self.facts.home / path[2:]
        return self.folder() / path


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?`` or the list of what there is."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there is: {', '.join(names)}" if names else "there is none"
