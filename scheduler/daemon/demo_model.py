"""The demo's model file, for those that may not import adapters."""

from collections.abc import Callable
from pathlib import Path

from adapters.engines.demo_model import demo_model_path
from scheduler.domain.units import MIB

#: Bytes between two lines of progress.
STEP_BYTES = 64 * MIB


def demo_model(say: Callable[[str], None]) -> Path:
    """The file, put together from its packages at the first call. Raises Permanent when they are not installed."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done - told >= STEP_BYTES or done == total:
            told = done
            say(f"{done // MIB} of {total // MIB} MiB put together and checked")

    return demo_model_path(progress=progress)
