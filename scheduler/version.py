"""The version of this installation."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("hotseat")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


VERSION = _installed()
