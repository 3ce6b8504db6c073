"""Checks of devices: those that are declared, what is said about single ones, and what models wish for."""

import difflib
import re
from collections.abc import Collection

from scheduler.config.checks_model import engine_type
from scheduler.config.context import Context, nearest
from scheduler.config.yaml_data import Loc

KINDS = ("nvidia", "amd", "rngd", "rbln", "cpu", "other")
#: Kinds that a device can be declared as, and those that are looked for.
DECLARED_NOW = ("cpu",)
DISCOVERED = ("nvidia", "amd", "rngd", "rbln")
DISCOVERED_NOW = ("nvidia",)
#: Engines that can put one model on several devices.
ENGINES_THAT_SPAN = frozenset({"vllm", "command"})

_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: What discovered NVIDIA cards and their MIG instances are called.
_CARD_ID = re.compile(r"gpu\d{1,3}(?:m\d{1,2})?")
_MIN_DEVICE_BYTES = 1 << 20  # less is a forgotten unit


def check_devices(context: Context) -> None:
    """What is discovered; ids, kinds and sizes of declared devices; and that overrides name a device there can be."""
    _check_discover(context)
    first: dict[str, int] = {}
    for index, device in enumerate(context.config.devices.declared):
        loc = ("devices", "declared", index)
        for name in ("id", "kind", "memory"):
            if getattr(device, name) is None and not context.given(*loc, name):
                context.report(
                    loc, "missing_key", f"a declared device needs {name}", "write for example {id: cpu0, kind: cpu, memory: 4GiB}"
                )
        if device.kind is not None:
            _check_kind(context, (*loc, "kind"), device.kind, DECLARED_NOW)
        if device.memory is not None and device.memory < _MIN_DEVICE_BYTES:
            message = f"a device of {device.memory} bytes holds nothing"
            context.report((*loc, "memory"), "bad_value", message, f"add a unit, for example {device.memory}GiB")
        if device.id is not None:
            _check_device_id(context, index, device.id, first)
        _check_headroom(context, index)
    for name in context.config.devices.override:
        if not _may_exist(context, name, first):
            context.report(("devices", "override", name), "unknown_device", f"no device {name!r}", _nearest(context, name, first), key=True)


def _check_discover(context: Context) -> None:
    kinds = context.config.devices.discover
    for index, kind in enumerate(kinds):
        loc = ("devices", "discover", index)
        if context.checked.is_bad(*loc):
            continue
        if kind in kinds[:index]:
            context.report(loc, "bad_value", f"{kind} is listed twice", "remove one")
        elif kind in ("cpu", "other"):
            context.report(loc, "bad_value", f"devices of kind {kind} are not discovered", "list them under devices.declared")
        elif kind not in DISCOVERED:
            context.report(loc, "bad_value", f"unknown kind of device {kind!r}", nearest(kind, DISCOVERED_NOW))
        elif kind not in DISCOVERED_NOW:
            message = f"devices of kind {kind} are not supported yet"
            context.report(loc, "not_supported_yet", message, f"remove it; discovered now: {', '.join(DISCOVERED_NOW)}")


def _check_device_id(context: Context, index: int, name: str, first: dict[str, int]) -> None:
    loc = ("devices", "declared", index, "id")
    if _DEVICE_ID.fullmatch(name) is None:
        context.report(loc, "bad_name", f"{name!r} is not a device id", "use letters, digits, '.', '_' and '-', at most 63")
    elif name in first:
        line = context.document.line(("devices", "declared", first[name], "id"))
        context.report(loc, "name_taken", f"device {name!r} was already declared on line {line}", "give it another id")
    elif _discovers(context) and _CARD_ID.fullmatch(name) is not None:
        message = f"{name} is what a discovered card may be called"
        context.report(loc, "name_taken", message, "give it another id, for example cpu0, or write discover: []")
    else:
        first[name] = index


def _discovers(context: Context) -> bool:
    """Whether cards are looked for, whose ids are known at start only."""
    section = ("devices", "discover")
    return "nvidia" in context.config.devices.discover or context.checked.is_bad(*section)


def _may_exist(context: Context, name: str, declared: Collection[str]) -> bool:
    """Whether a device of this id was declared, could be discovered, or was among those that could not be read."""
    return name in declared or not context.knows_devices() or (_discovers(context) and _CARD_ID.fullmatch(name) is not None)


def _nearest(context: Context, name: str, declared: Collection[str]) -> str:
    """The declared device that was probably meant, else what ids there are."""
    near = difflib.get_close_matches(name, list(declared), n=1)
    if near or not _discovers(context):
        return nearest(name, declared)
    among = f"declared: {', '.join(declared)}; " if declared else ""
    return f"{among}discovered cards are called gpu0, gpu1, ... and their MIG instances gpu0m0, ..."


def _check_kind(context: Context, loc: Loc, kind: str, now: Collection[str]) -> None:
    if kind not in KINDS:
        context.report(loc, "bad_value", f"unknown kind of device {kind!r}", nearest(kind, KINDS))
    elif kind not in now:
        found = kind in DISCOVERED_NOW
        message = f"devices of kind {kind} are discovered, not declared" if found else f"devices of kind {kind} are not supported yet"
        fix = f"remove this entry and write discover: [{kind}]" if found else f"use kind: {' or '.join(now)} for now"
        context.report(loc, "bad_value" if found else "not_supported_yet", message, fix)


def _check_headroom(context: Context, index: int) -> None:
    device = context.config.devices.declared[index]
    override = context.config.devices.override.get(device.id or "")
    own = override is not None and override.headroom is not None
    headroom = override.headroom if override is not None and override.headroom is not None else context.config.devices.headroom
    if device.memory is not None and headroom.of(device.memory) >= device.memory:
        loc = ("devices", "override", device.id or "", "headroom") if own else ("devices", "headroom")
        context.report(loc, "bad_value", f"the headroom leaves nothing of device {device.id} ({device.memory} bytes)", "lower it")


def check_wish(context: Context, name: str) -> None:
    """That a model's wish for devices can be met by what is declared or may be discovered."""
    loc = ("models", name, "devices")
    wish = context.config.models[name].devices
    if wish.kind is not None:
        _check_kind(context, (*loc, "kind"), wish.kind, (*DECLARED_NOW, *DISCOVERED_NOW))
    _check_count(context, name)
    declared = [device.id for device in context.config.devices.declared if device.id is not None]
    for index, device in enumerate(wish.ids):
        if device in wish.ids[:index]:
            context.report((*loc, "ids", index), "bad_value", f"device {device!r} is listed twice", "remove one")
        elif not _may_exist(context, device, declared):
            context.report((*loc, "ids", index), "unknown_device", f"no device {device!r}", _nearest(context, device, declared))


def _check_count(context: Context, name: str) -> None:
    model, loc = context.config.models[name], ("models", name, "devices")
    wish, kind = model.devices, engine_type(context, model.engine or "")
    if wish.count == 1:
        return
    if kind in context.facts.known_engines and kind not in ENGINES_THAT_SPAN:
        fix = f"remove count, or use one of: {', '.join(sorted(ENGINES_THAT_SPAN & set(context.facts.known_engines)))}"
        context.report((*loc, "count"), "not_supported_yet", f"{wish.count} devices for one model of {kind} are not supported yet", fix)
    elif wish.ids and wish.count > len(set(wish.ids)):
        message = f"count is {wish.count}, but ids names {len(set(wish.ids))}"
        context.report((*loc, "count"), "bad_value", message, "name more devices, or lower count")
