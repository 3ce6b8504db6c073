"""How a key of the schema is declared: default, type and meaning in one place; documentation and checks read it back."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo


def key(default: Any, kind: str, text: str, *, shown: str = "", name: str | None = None) -> Any:
    """A key: its default (a callable makes one each time), its type in words, its meaning.

    ``shown`` is the default as people write it (empty = ``-``); ``name`` the key in the file when Python reserves it.
    """
    extra: JsonDict = {"kind": kind, "shown": shown}
    factory: Callable[[], Any] | None = default if callable(default) else None
    if factory is not None:
        return Field(default_factory=factory, description=text, json_schema_extra=extra, alias=name)
    return Field(default, description=text, json_schema_extra=extra, alias=name)


def kind_of(field: FieldInfo) -> str:
    """The type of a key in words."""
    return _extra(field, "kind")


def shown_default(field: FieldInfo) -> str:
    """The default of a key as people write it; empty = nothing."""
    return _extra(field, "shown")


def _extra(field: FieldInfo, what: str) -> str:
    extra = field.json_schema_extra
    return str(extra.get(what, "")) if isinstance(extra, dict) else ""


class Section(BaseModel):
    """A mapping of the configuration. A key without a value counts as not given."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        known = key_names(cls)
        return {name: value for name, value in data.items() if value is not None or name not in known}


def key_names(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a section as they are written in the file."""
    return {field.alias or name: field for name, field in section.model_fields.items()}
