"""What the adapters know about their engines, for those that may not import adapters (configuration checks)."""

from collections.abc import Collection, Mapping

from adapters.registry import engines


def engine_facts() -> tuple[Collection[str], Mapping[str, Mapping[str, str]]]:
    """(names of the engine types, per type the flags its adapter sets itself -> the key to use instead)."""
    known = engines()
    return tuple(known), {name: dict(engine.owned_flags()) for name, engine in known.items()}
