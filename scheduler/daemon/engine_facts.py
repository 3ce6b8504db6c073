"""What the adapters know about their engines, for those that may not import adapters (configuration checks)."""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from adapters.registry import engines
from scheduler.domain.errors import HotseatError
from scheduler.domain.model import ModelSpec


@runtime_checkable
class RefusesVariables(Protocol):
    """Ability of an adapter: there are variables with which it does not start its engine."""

    def refused_variable(self, spec: ModelSpec) -> tuple[str, HotseatError] | None:
        """The first such variable of a model that sits on a card, and why; None = there is none."""
        ...


def engine_facts() -> tuple[Collection[str], Mapping[str, Mapping[str, str]]]:
    """(names of the engine types, per type the flags its adapter sets itself -> the key to use instead)."""
    known = engines()
    return tuple(known), {name: dict(engine.owned_flags()) for name, engine in known.items()}


def refused_variable(spec: ModelSpec) -> tuple[str, HotseatError] | None:
    """The variable with which the engine of ``spec`` would not be started on a card, and why; None = all may stay."""
    engine: object = engines()[spec.engine]
    return engine.refused_variable(spec) if isinstance(engine, RefusesVariables) else None
