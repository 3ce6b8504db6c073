"""Checks across keys, for everything but the single model."""

import ipaddress
import re
from collections.abc import Collection
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from scheduler.config.context import Context, nearest
from scheduler.config.settings import Listen
from scheduler.config.values import listen
from scheduler.config.walk import dotted
from scheduler.config.yaml_data import Loc

KINDS = ("nvidia", "amd", "rngd", "rbln", "cpu", "other")
KINDS_NOW = ("cpu",)
#: Engines of the specification that no adapter exists for yet.
ENGINES_LATER = ("vllm", "sglang", "ollama", "furiosa", "rebellions", "attached")

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MIN_DEVICE_BYTES = 1 << 20  # less is a forgotten unit


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


def check_devices(context: Context) -> None:
    """Ids, kinds and sizes of declared devices, and that overrides name one of them."""
    first: dict[str, int] = {}
    for index, device in enumerate(context.config.devices.declared):
        loc = ("devices", "declared", index)
        for name in ("id", "kind", "memory"):
            if getattr(device, name) is None and not context.given(*loc, name):
                context.report(
                    loc, "missing_key", f"a declared device needs {name}", "write for example {id: cpu0, kind: cpu, memory: 4GiB}"
                )
        if device.kind is not None:
            _check_kind(context, (*loc, "kind"), device.kind)
        if device.memory is not None and device.memory < _MIN_DEVICE_BYTES:
            message = f"a device of {device.memory} bytes holds nothing"
            context.report((*loc, "memory"), "bad_value", message, f"add a unit, for example {device.memory}GiB")
        if device.id is not None:
            _check_device_id(context, index, device.id, first)
        _check_headroom(context, index)
    for name in context.config.devices.override:
        if name not in first and context.knows_devices():
            context.report(("devices", "override", name), "unknown_device", f"no device {name!r}", nearest(name, first), key=True)


def _check_device_id(context: Context, index: int, name: str, first: dict[str, int]) -> None:
    loc = ("devices", "declared", index, "id")
    if _DEVICE_ID.fullmatch(name) is None:
        context.report(loc, "bad_name", f"{name!r} is not a device id", "use letters, digits, '.', '_' and '-', at most 63")
    elif name in first:
        line = context.document.line(("devices", "declared", first[name], "id"))
        context.report(loc, "name_taken", f"device {name!r} was already declared on line {line}", "give it another id")
    else:
        first[name] = index


def _check_kind(context: Context, loc: Loc, kind: str) -> None:
    if kind not in KINDS:
        context.report(loc, "bad_value", f"unknown kind of device {kind!r}", nearest(kind, KINDS))
    elif kind not in KINDS_NOW:
        context.report(loc, "not_supported_yet", f"devices of kind {kind} are not supported yet", "use kind: cpu for now")


def _check_headroom(context: Context, index: int) -> None:
    device = context.config.devices.declared[index]
    override = context.config.devices.override.get(device.id or "")
    own = override is not None and override.headroom is not None
    headroom = override.headroom if override is not None and override.headroom is not None else context.config.devices.headroom
    if device.memory is not None and headroom.of(device.memory) >= device.memory:
        loc = ("devices", "override", device.id or "", "headroom") if own else ("devices", "headroom")
        context.report(loc, "bad_value", f"the headroom leaves nothing of device {device.id} ({device.memory} bytes)", "lower it")


def check_wish(context: Context, name: str) -> None:
    """That a model's wish for devices can be met by what is declared."""
    loc = ("models", name, "devices")
    wish = context.config.models[name].devices
    if wish.kind is not None:
        _check_kind(context, (*loc, "kind"), wish.kind)
    if wish.count > 1:
        fix = "remove count; several devices for one model come with tensor parallel engines"
        context.report((*loc, "count"), "not_supported_yet", f"{wish.count} devices for one model are not supported yet", fix)
    declared = [device.id for device in context.config.devices.declared if device.id is not None]
    for index, device in enumerate(wish.ids):
        if device in wish.ids[:index]:
            context.report((*loc, "ids", index), "bad_value", f"device {device!r} is listed twice", "remove one")
        elif device not in declared and context.knows_devices():
            context.report((*loc, "ids", index), "unknown_device", f"no device {device!r}", nearest(device, declared))


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
