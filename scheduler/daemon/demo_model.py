"""The demo's model file, for those that may not import adapters."""

from collections.abc import Callable
from pathlib import Path

from adapters.engines.demo_model import demo_model_path


def demo_model(progress: Callable[[str], None]) -> Path:
    """The file, put together from its packages at the first call. Raises Permanent when they are not installed."""
    return demo_model_path(progress)
