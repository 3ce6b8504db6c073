"""Plain values against the schema: every error at once, each at its place, with what to do."""

import copy
import difflib
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scheduler.config.fields import key_names
from scheduler.config.later import LATER, Later
from scheduler.config.problems import Problem
from scheduler.config.schema import ConfigSection
from scheduler.config.values import found
from scheduler.config.walk import dotted, generic_path, section_at
from scheduler.config.yaml_data import Document, Loc

_ROUNDS = 8  # each removes what was wrong; two are enough for the schema as it is

# pydantic's error type -> (what was expected, what to do)
_EXPECTED: dict[str, tuple[str, str]] = {
    "model_type": ("a mapping", "write KEY: VALUE lines below it"),
    "dict_type": ("a mapping", "write KEY: VALUE lines below it"),
    "list_type": ("a list", "write [a, b], or one entry per line after a dash"),
    "bool_type": ("true or false", "only true and false are booleans in YAML 1.2"),
    "int_type": ("a whole number", "write it without quotes, unit or fraction"),
    "finite_number": ("a finite number", "write it in digits"),
    "float_type": ("a number", "write it without quotes or unit"),
}


class Checked:
    """The outcome: ``config`` holds what is valid; ``bad`` are the places that were left out of it."""

    def __init__(self, config: ConfigSection, bad: set[Loc]) -> None:
        self.config = config
        self.bad = bad
        self._around = {loc[:length] for loc in bad for length in range(len(loc) + 1)}

    def is_bad(self, *loc: str | int) -> bool:
        """Whether the value at ``loc``, something in it or something around it was wrong and is missing in ``config``."""
        return loc in self._around or any(loc[:length] in self.bad for length in range(len(loc)))


def validate(document: Document, problems: list[Problem]) -> Checked:
    """The document against the schema. What is wrong is added to ``problems`` and left out of the result."""
    data: Any = copy.deepcopy(document.data) if document.data is not None else {}
    bad: set[Loc] = set()
    if not isinstance(data, dict):
        message = f"expected a mapping at the top of the file, found {found(data)}"
        problems.append(document.problem((), "wrong_type", message, 'write KEY: VALUE lines; a space follows the ":"'))
        return Checked(ConfigSection(), {()})
    for _ in range(_ROUNDS):
        try:
            return Checked(ConfigSection.model_validate(data), bad)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                loc = detail["loc"]
                if loc not in bad:
                    _translate(document, detail, problems)
                if loc in bad or not _blank(data, loc):
                    loc = _prune(data, loc)
                if detail["type"] != "extra_forbidden":  # without an unknown key nothing is missing
                    bad.add(loc)
    raise AssertionError("validation does not converge")  # every round removes at least one value of a finite file


def _blank(data: Any, loc: Loc) -> bool:
    """Put an empty text in the place of a wrong entry of a list, so that the others keep their numbers; False = no such."""
    owner = data
    for part in loc[:-1]:
        try:
            owner = owner[part]
        except (LookupError, TypeError):
            return False
    index = loc[-1]
    if not (isinstance(owner, list) and isinstance(index, int) and index < len(owner)) or isinstance(owner[index], dict | list):
        return False
    owner[index] = ""
    return True


def _prune(data: Any, loc: Loc) -> Loc:
    """Take the value at ``loc`` out of ``data``: its key, or the whole list when it is a list entry. Returns what went."""
    path: list[str | int] = []
    owner, cut, current = data, loc[:1], data
    for part in loc:
        if isinstance(current, dict):
            if part == "[key]" and part not in current:  # pydantic's mark for "the key itself is wrong"
                break
            owner, cut = current, (*path, part)
        path.append(part)
        try:
            current = current[part]
        except (LookupError, TypeError):  # already taken out, or the value is not a list (listen: HOST:PORT)
            break
    owner.pop(cut[-1], None)
    return cut


def _translate(document: Document, detail: ErrorDetails, problems: list[Problem]) -> None:
    loc = detail["loc"]
    if detail["type"] == "extra_forbidden":
        _unknown_key(document, loc, problems)
        return
    code, message, fix = _wrong_value(document, loc, detail)
    while loc not in document.values and loc:  # the one entry of a list that is written without brackets
        loc = loc[:-1]
    problems.append(document.problem(loc, code, f"{dotted(loc)}: {message}", fix))


def _wrong_value(document: Document, loc: Loc, detail: ErrorDetails) -> tuple[str, str, str]:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    secret = "env" in loc and not isinstance(value, dict | list | None)
    shown = "something else" if secret else found(value)
    if kind == "hotseat":
        return str(context["code"]), str(context["message"]), str(context["fix"])
    if kind == "string_type":
        return "wrong_type", f"expected text, found {shown}", _quote_hint(document, loc, value)
    if kind in _EXPECTED:
        expected, fix = _EXPECTED[kind]
        return "wrong_type", f"expected {expected}, found {shown}", fix
    if kind == "literal_error":
        return "bad_value", f"expected {context['expected']}, found {shown}", _nearest_value(str(context["expected"]), value)
    for limit, words in (("ge", "at least"), ("le", "at most")):
        if limit in context:
            return "bad_value", f"{shown} is out of range", f"write {words} {context[limit]:g}"
    return "bad_value", detail["msg"], ""


def _quote_hint(document: Document, loc: Loc, value: object) -> str:
    if isinstance(value, list | dict):
        return "write one text"
    if value is None:
        return 'write a text; "" is the empty one'
    if "env" in loc:
        return "put quotes around it"
    return f'put quotes around it: "{document.texts.get(loc, value)}"'


def _nearest_value(expected: str, value: object) -> str:
    words = [word for word in expected.replace(" or ", ", ").replace("'", "").split(", ") if word]
    near = difflib.get_close_matches(str(value).lower(), words, n=1)
    return f"write {near[0] if near else ' or '.join(words)}"


def _unknown_key(document: Document, loc: Loc, problems: list[Problem]) -> None:
    later = LATER.get(generic_path(loc))
    if later is not None:
        if not _harmless(document, loc, later):
            message = f"{dotted(loc)} is not supported yet"
            problems.append(document.problem(loc, "not_supported_yet", message, later.advice, key=True))
        return
    where = f" in {dotted(loc[:-1])}" if len(loc) > 1 else ""
    name = str(loc[-1])
    problems.append(document.problem(loc, "unknown_key", f"unknown key {dotted(loc[-1:])!r}{where}", _nearest_key(loc, name), key=True))


def _harmless(document: Document, loc: Loc, later: Later) -> bool:
    value = document.get(loc)
    return any(type(value) is type(known) and value == known for known in later.harmless)


def _nearest_key(loc: Loc, name: str) -> str:
    section = section_at(loc[:-1])
    if section is None:
        return "remove it"
    known = list(key_names(section))
    prefix = name.partition(":")[0]
    if ":" in name and prefix in known:
        return f"put a space after the colon: {prefix}: {name[len(prefix) + 1 :][:60]}"
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
