"""Names of engine types -> their adapters."""

from adapters.engines.attached import Attached
from adapters.engines.command import Command
from adapters.engines.llamacpp import LlamaCpp
from adapters.engines.vllm import Vllm
from scheduler.ports.engine import Engine


def engines() -> dict[str, Engine]:
    """Every engine type there is, by name. Adapters are stateless and cheap to make."""
    known: tuple[Engine, ...] = (LlamaCpp(), Vllm(), Command(), Attached())
    return {engine.name: engine for engine in known}
