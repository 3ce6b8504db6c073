"""Where every effective value comes from, for ``config show --effective``."""

import json
from typing import Any

from scheduler.config.context import Context
from scheduler.config.fields import Section, shown_default
from scheduler.config.problems import mask_secrets
from scheduler.config.settings import Origin, Provenance, Settings
from scheduler.config.walk import dotted
from scheduler.config.yaml_data import Loc


def build_provenance(context: Context, settings: Settings) -> dict[str, Provenance]:
    """One entry per value that is in force, by dotted path, in the order of the schema."""
    result: dict[str, Provenance] = {}
    _collect(context, context.config, (), result)
    if result["state_dir"].origin is Origin.DEFAULT:
        result["state_dir"] = Provenance(str(settings.state_dir), Origin.DEFAULT)
    return result


def _collect(context: Context, section: Section, loc: Loc, result: dict[str, Provenance]) -> None:
    for attribute, field in type(section).model_fields.items():
        here = (*loc, field.alias or attribute)
        value = getattr(section, attribute)
        below = list(_sections(value, here))
        for inner, place in below:
            _collect(context, inner, place, result)
        if below:
            continue
        path = dotted(here)
        if attribute in section.model_fields_set:
            result[path] = Provenance(_as_written(context, here), Origin.FILE, context.document.line(here))
        else:
            shown = shown_default(field)
            # "defaults.max_wait" as a default means: what that key says.
            result[path] = Provenance(result[shown].text if shown in result else shown, Origin.DEFAULT)


def _sections(value: Any, loc: Loc) -> "list[tuple[Section, Loc]]":
    if isinstance(value, Section):
        return [(value, loc)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(item, (*loc, part)) for part, item in items if isinstance(item, Section)]


def _as_written(context: Context, loc: Loc) -> str:
    if loc in context.document.texts:
        return context.document.texts[loc]
    value = context.document.get(loc)
    if isinstance(value, dict):
        return ", ".join(mask_secrets(f"{name}: {text}") for name, text in value.items())
    return mask_secrets(json.dumps(value, ensure_ascii=False))
