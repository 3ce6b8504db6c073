"""Ways through the schema: from a place in a file to the section that describes it, and over all keys."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scheduler.config.fields import key_names
from scheduler.config.schema import ConfigSection
from scheduler.config.yaml_data import Loc

_MAX_NAME = 130  # longer than any name of a model can be


@dataclass(frozen=True, slots=True)
class Key:
    """A key by its generic path: ``models.*.devices.kind``, ``devices.declared[].id``."""

    path: str
    field: FieldInfo


def all_keys() -> Iterator[Key]:
    """Every key of the schema, sections before what stands in them, in the order of the schema."""
    yield from _keys_of(ConfigSection, "")


def generic_path(loc: Loc) -> str:
    """The path of ``loc`` with names and list positions left out, as in :class:`Key`."""
    path, current = "", _Kind(ConfigSection)
    for part in loc:
        path = current.join(path, part)
        current = current.below(part)
    return path


def section_at(loc: Loc) -> type[BaseModel] | None:
    """The section whose keys stand at ``loc``; None when there is none."""
    current = _Kind(ConfigSection)
    for part in loc:
        current = current.below(part)
    return current.section


def dotted(loc: Loc) -> str:
    """``loc`` for people: ``models.qwen.devices``, ``devices.declared[0].id``."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            name = part if len(part) <= _MAX_NAME else part[:_MAX_NAME] + "..."
            path += f".{name}" if path else name
    return path


class _Kind:
    """What the schema expects at a place: a section, a mapping by name, a list, or a value (None)."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = _plain(annotation)

    @property
    def section(self) -> type[BaseModel] | None:
        kind = self.annotation
        return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None

    def below(self, part: str | int) -> "_Kind":
        if self.section is not None:
            field = key_names(self.section).get(str(part))
            return _Kind(field.annotation if field is not None else None)
        if get_origin(self.annotation) in (dict, list):
            return _Kind(get_args(self.annotation)[-1])
        return _Kind(None)

    def join(self, path: str, part: str | int) -> str:
        if isinstance(part, int):
            return f"{path}[]"
        name = "*" if get_origin(self.annotation) is dict else part
        return f"{path}.{name}" if path else name


def _plain(annotation: Any) -> Any:
    """Without Annotated and without ``| None``."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [member for member in get_args(annotation) if member is not type(None)]
        return _plain(rest[0]) if len(rest) == 1 else annotation
    return annotation


def _keys_of(section: type[BaseModel], path: str) -> Iterator[Key]:
    for name, field in key_names(section).items():
        here = f"{path}.{name}" if path else name
        yield Key(here, field)
        yield from _below(_Kind(field.annotation), here)


def _below(kind: _Kind, path: str) -> Iterator[Key]:
    if kind.section is not None:
        yield from _keys_of(kind.section, path)
    elif get_origin(kind.annotation) is dict:
        yield from _below(kind.below("*"), f"{path}.*")
    elif get_origin(kind.annotation) is list:
        yield from _below(kind.below(0), f"{path}[]")
