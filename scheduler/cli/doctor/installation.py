"""Python, SQLite, the packages: what this installation consists of."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from scheduler.cli.doctor.finding import Finding, fail, ok, warn

LEAST_PYTHON = (3, 11)
LEAST_SQLITE = (3, 37)  # STRICT tables
SOUND_SQLITE = (3, 51, 3)  # the WAL-reset bug is mended
#: What the database needs -> a statement that fails without it: builds can leave parts out.
SQLITE_NEEDS = {
    "STRICT tables": "CREATE TABLE t (x INTEGER) STRICT",
    "JSON": """SELECT json('{"a": 1}')""",
}


def check_python(version: Sequence[int] = sys.version_info[:3]) -> Finding:
    """Python 3.11 or newer."""
    text = ".".join(map(str, version))
    if tuple(version[:2]) < LEAST_PYTHON:
        return fail("python", f"{text} is too old", "use Python 3.11 or newer")
    return ok("python", text)


def check_sqlite(version: str | None = None, needs: Mapping[str, str] = SQLITE_NEEDS) -> Finding:
    """SQLite new enough, and built with what the database needs; versions with the WAL-reset bug are only reported.

    A ``version`` that is given is judged by its number alone.
    """
    if version is None:
        sqlite = importlib.import_module("sqlite3")  # by name: only the store works with SQLite, and here nothing is stored
        version = str(sqlite.sqlite_version)
        lacking = _lacking(sqlite, needs)
        if lacking:
            return fail(
                "sqlite", f"{version} of this Python cannot do: {', '.join(lacking)}", "use a Python built with a newer, complete SQLite"
            )
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < LEAST_SQLITE:
        return fail("sqlite", f"{version} is older than 3.37 and has no STRICT tables", "use a Python built with a newer SQLite")
    if numbers < SOUND_SQLITE:
        text = f"{version}; before 3.51.3 two connections that write at once can lose data; the daemon writes through one only"
        return warn("sqlite", text, "keep other programs from writing to the state database; a newer Python brings a newer SQLite")
    return ok("sqlite", f"{version} with {' and '.join(SQLITE_NEEDS)}")


def _lacking(sqlite: Any, needs: Mapping[str, str]) -> list[str]:
    connection = sqlite.connect(":memory:")
    lacking = []
    try:
        for name, statement in needs.items():
            try:
                connection.execute(statement).fetchall()
            except sqlite.Error:
                lacking.append(name)
    finally:
        connection.close()
    return lacking


def check_packages() -> list[Finding]:
    """Both import names must be ours: `scheduler` and `adapters` are names that other distributions use as well."""
    try:
        dist = distribution("hotseat")
    except PackageNotFoundError:
        return [
            fail("packages", "the distribution hotseat is not installed in this Python", "install it into a virtual environment of its own")
        ]
    ours = os.path.realpath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    return [ok("packages", f"hotseat {dist.version}"), *(_resolves(name, ours) for name in ("scheduler", "adapters"))]


def _resolves(name: str, home: str) -> Finding:
    spec = importlib.util.find_spec(name)
    fix = "install hotseat into a virtual environment of its own; run it with PYTHONSAFEPATH=1 and without PYTHONPATH"
    if spec is None or spec.origin is None:
        return fail("packages", f"the package {name} cannot be found", fix)
    found = os.path.realpath(os.path.dirname(os.path.dirname(spec.origin)))
    if found != home:
        return fail("packages", f"the package {name} comes from {found}, not from this distribution ({home})", fix)
    return ok("packages", f"{name} is ours")
