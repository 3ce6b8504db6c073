"""Checks across keys, for everything but the single model."""

import ipaddress
import re
from collections.abc import Collection
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from scheduler.config.context import Context
from scheduler.config.settings import Listen
from scheduler.config.values import listen
from scheduler.config.walk import dotted
from scheduler.config.yaml_data import Loc

#: Engines of the specification that no adapter exists for yet.
ENGINES_LATER = ("sglang", "ollama", "furiosa", "rebellions")

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


def check_listen(context: Context) -> None:
    """At least one address, none twice, and none that other machines reach: keys do not exist yet."""
    given = context.document.get(("listen",))
    if given == []:
        context.report(("listen",), "bad_value", "listen: the list is empty", "name an address such as 127.0.0.1:11500")
    entries = list(enumerate(given)) if isinstance(given, list) else [(None, given)]
    seen: set[Listen] = set()
    for index, entry in entries:
        loc: Loc = ("listen",) if index is None else ("listen", index)
        try:
            address = listen(entry)
        except PydanticCustomError:  # reported with the types
            continue
        wrong = objection(address, seen)
        seen.add(address)
        if wrong is not None:
            context.report(loc, wrong.code, wrong.message, wrong.fix)


class Objection(NamedTuple):
    """Why an address is not listened on, as a problem of the configuration."""

    code: str
    message: str
    fix: str


def objection(address: Listen, others: Collection[Listen]) -> Objection | None:
    """What speaks against listening on ``address`` beside ``others``; None = nothing."""
    if not _is_loopback(address.host):
        message = f"{address} can be reached from other machines, which needs keys, and keys are not supported yet"
        return Objection("not_supported_yet", message, f"listen on 127.0.0.1:{address.port} and use a proxy or tunnel of your own")
    if address in others and address.port != 0:
        return Objection("bad_value", f"{address} is listed twice", "remove one")
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_sections(context: Context) -> None:
    """Values that must agree with each other."""
    logs = context.config.logs
    if logs.total < logs.size and not context.checked.is_bad("logs"):
        context.report(("logs",), "bad_value", "logs.total is less than logs.size", "raise total or lower size", key=True)


def check_names(context: Context) -> None:
    """Names and aliases of models: their form, and that each means one model."""
    owner: dict[str, Loc] = {}
    entries = context.document.get(("models",))
    for name in entries if isinstance(entries, dict) else ():  # also those that are left out because they are wrong
        owner[name] = ("models", name)
        _check_form(context, ("models", name), name)
    for name, model in context.config.models.items():
        for index, alias in enumerate(model.aliases):
            loc = ("models", name, "aliases", index)
            _check_form(context, loc, alias)
            if alias in owner:
                what = "the name of a model" if len(owner[alias]) == 2 else f"an alias of model {owner[alias][1]!r}"
                message = f"alias {alias!r} is already {what}, on line {context.document.line(owner[alias])}"
                context.report(loc, "name_taken", message, "remove one of them")
            else:
                owner[alias] = loc


def _check_form(context: Context, loc: Loc, name: str) -> None:
    if _MODEL_NAME.fullmatch(name) is None:
        fix = "begin with a letter or digit, then letters, digits and . _ : / @ + - (at most 128)"
        context.report(loc, "bad_name", f"{dotted((name,))!r} is not a model name", fix, key=True)
