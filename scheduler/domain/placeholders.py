"""Placeholders in commands, arguments, environments and steps: ``${port}``, ``${env:NAME}``, ``$$``."""

import difflib
import re
from collections.abc import Callable, Mapping

from scheduler.domain.errors import Invalid

#: Every name that may stand in ``${...}``, and what the daemon puts there at a launch.
NAMES: Mapping[str, str] = {
    "host": "the address the engine has to listen on",
    "port": "the TCP port the daemon chose for this launch",
    "model": "the key `model` of this entry",
    "name": "the registered name of the model",
    "devices": "ids of the devices it was given, separated by commas",
    "kv_bytes": "bytes of KV cache the daemon planned",
    "index": "index of its first device",
}
ENV_PREFIX = "env:"

# Braces without a dollar sign are data (JSON arguments), so only "${" opens a placeholder.
_TOKEN = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expand(text: str, values: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """``text`` with its placeholders replaced from ``values`` and, for ``${env:NAME}``, from ``environ``.

    A replacement is not expanded again. Raises Invalid (``unknown_placeholder``) for a name that :func:`check` refuses,
    one that has no value here, and an environment variable that is not set.
    """

    def replacement(name: str) -> str:
        if name.startswith(ENV_PREFIX):
            variable = name.removeprefix(ENV_PREFIX)
            if variable not in environ:
                raise Invalid(
                    f"the environment variable {variable} of ${{{name}}} is not set",
                    code="unknown_placeholder",
                    fix=f"set {variable} in the environment of the daemon",
                )
            return environ[variable]
        if name not in values:
            raise Invalid(f"${{{name}}} has no value here", code="unknown_placeholder", fix="leave it out of this text")
        return values[name]

    problems = check(text)
    if problems:
        raise Invalid("; ".join(problems), code="unknown_placeholder", fix="write $$ for a dollar sign that is meant literally")
    return _substitute(text, replacement)


def check(text: str) -> list[str]:
    """What is wrong with the placeholders of ``text``, one sentence each; empty = nothing."""
    problems = []
    for match in _TOKEN.finditer(text):
        name = match.group(1)
        if match.group() == "${":
            problems.append("${ is never closed")
        elif name is not None and not _known(name):
            problems.append(_unknown(name))
    return problems


def env_names(text: str) -> list[str]:
    """Environment variables that ``text`` asks for with ``${env:NAME}``, in order."""
    names = (match.group(1) or "" for match in _TOKEN.finditer(text))
    return [name.removeprefix(ENV_PREFIX) for name in names if name.startswith(ENV_PREFIX)]


def uses(text: str, name: str) -> bool:
    """Whether ``text`` holds the placeholder ``${name}``."""
    return any(match.group(1) == name for match in _TOKEN.finditer(text))


def escape(text: str) -> str:
    """``text`` written so that :func:`expand` gives it back unchanged."""
    return text.replace("$", "$$")


def _known(name: str) -> bool:
    if name.startswith(ENV_PREFIX):
        return _ENV_NAME.fullmatch(name.removeprefix(ENV_PREFIX)) is not None
    return name in NAMES


def _unknown(name: str) -> str:
    if name.startswith(ENV_PREFIX):
        return f"${{{name}}} does not name an environment variable"
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean ${{{near[0]}}}?" if near else "known are " + ", ".join(f"${{{known}}}" for known in NAMES) + ", ${env:NAME}"
    return f"unknown placeholder ${{{name}}}: {hint}"


def _substitute(text: str, replacement: Callable[[str], str]) -> str:
    def one(match: re.Match[str]) -> str:
        return "$" if match.group(1) is None else replacement(match.group(1))

    return _TOKEN.sub(one, text)
