"""What the adapters know about their engines, for those that may not import adapters (configuration checks)."""

import asyncio
from collections.abc import Collection, Iterable, Mapping

from adapters.registry import engines
from scheduler.domain.errors import HotseatError
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code
from scheduler.ports.engine import RefusesVariables


def engine_facts() -> tuple[Collection[str], Mapping[str, Mapping[str, str]]]:
    """(names of the engine types, per type the flags its adapter sets itself -> the key to use instead)."""
    known = engines()
    return tuple(known), {name: dict(engine.owned_flags()) for name, engine in known.items()}


def refused_variable(spec: ModelSpec) -> tuple[str, HotseatError] | None:
    """The variable with which the engine of ``spec`` would not be started on a card, and why; None = all may stay."""
    engine: object = engines()[spec.engine]
    return engine.refused_variable(spec) if isinstance(engine, RefusesVariables) else None


def lacking_models(specs: Iterable[ModelSpec]) -> list[tuple[str, HotseatError]]:
    """(name, why) of those whose files are not there or cannot be read: what their start would say, said before it. Reads files."""
    return asyncio.run(_lacking(specs))


async def _lacking(specs: Iterable[ModelSpec]) -> list[tuple[str, HotseatError]]:
    known, found = engines(), []
    for spec in specs:
        try:
            await known[spec.engine].preflight(spec)
        except HotseatError as error:
            if error.code in (Code.MODEL_MISSING, Code.MODEL_UNREADABLE):
                found.append((str(spec.name), error))
    return found
