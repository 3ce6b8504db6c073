"""Frozen dataclasses to JSON and back, for columns that hold a whole value.

Reading is tolerant in both directions of time: a key that this version does not know is ignored (a newer version wrote
it), a missing one takes the field's default (an older version wrote it).
"""

import dataclasses
import json
import types
from collections.abc import Hashable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from scheduler.domain.errors import Invalid, Permanent

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def dumps(value: object) -> str:
    """The JSON text of a domain value; raises Invalid (``store_value``) for NaN and infinity, which JSON cannot hold."""
    try:
        return json.dumps(_encode(value), allow_nan=False, separators=(",", ":"), sort_keys=True)
    except ValueError as error:
        raise Invalid(f"a number cannot be stored: {error}", code="store_value") from error


def loads(kind: type[T], text: str) -> T:
    """The value of type ``kind`` in a JSON text; raises Permanent (``store_unreadable``) naming what does not fit."""
    try:
        result: T = _decode(kind, json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise Permanent(
            f"a stored {getattr(kind, '__name__', kind)} cannot be read: {error}",
            code="store_unreadable",
            fix="restore the newest file of the backups folder, or report this with the output of `hotseat version`",
        ) from error
    return result


def member(kind: type[E], word: str | None, fallback: E) -> E:
    """The enum member of a stored word, or ``fallback`` when a newer version wrote a word this one does not know."""
    try:
        return kind(word)
    except ValueError:
        return fallback


def _encode(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(_encode(item) for item in value)  # type: ignore[type-var]  # sets here hold only strings or only integers
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, raw: Any) -> Any:
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_optional(get_args(kind), raw)
    if origin is not None:
        return _decode_container(origin, get_args(kind), raw)
    if kind is Any:
        return raw
    if not isinstance(kind, type):
        raise TypeError(f"no way to read {kind!r}")
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, raw)
    if issubclass(kind, Enum):
        return kind(raw)
    if kind is float and isinstance(raw, int):
        return float(raw)
    if not isinstance(raw, kind):
        raise ValueError(f"{raw!r} is not {kind.__name__}")
    return raw


def _decode_optional(members: tuple[Any, ...], raw: Any) -> Any:
    if raw is None and type(None) in members:
        return None
    (only,) = (item for item in members if item is not type(None))
    return _decode(only, raw)


def _decode_container(origin: Any, inner: tuple[Any, ...], raw: Any) -> Any:
    if issubclass(origin, Mapping):
        if not isinstance(raw, dict):
            raise ValueError(f"{raw!r} is not a mapping")
        key = int if inner[0] is int else str
        return {key(name): _decode(inner[1], item) for name, item in raw.items()}
    if not isinstance(raw, list):
        raise ValueError(f"{raw!r} is not a list")
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_decode(item_kind, item) for item_kind, item in zip(inner, raw, strict=True))
    return origin(_decode(inner[0], item) for item in raw)


def _decode_fields(kind: Any, raw: Any) -> Any:
    if not isinstance(raw, dict):
        raise ValueError(f"{raw!r} is not an object")
    hints = _hints(kind)
    known = {f.name for f in dataclasses.fields(kind) if f.init}
    return kind(**{name: _decode(hints[name], item) for name, item in raw.items() if name in known})
