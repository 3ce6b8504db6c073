"""`hotseat version`."""

import argparse
from importlib.metadata import PackageNotFoundError, version

from scheduler.cli.context import Context
from scheduler.cli.failure import OK, CliError
from scheduler.cli.render.text import clean


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `version`."""
    parser.add_argument("--json", action="store_true", help="as JSON, with the version of the running daemon (null when there is none)")


def own_version() -> str:
    """The version of this installation; ``unknown`` when it is not installed as a distribution."""
    try:
        return version("hotseat")
    except PackageNotFoundError:
        return "unknown"


def run(context: Context) -> int:
    """Print our version, and the daemon's when another one runs."""
    try:
        daemon = str(context.daemon.get("/version")["version"])
    except CliError:
        daemon = None
    if context.args.json:
        context.say_json({"version": own_version(), "daemon": daemon})
        return OK
    context.say([f"hotseat {own_version()}"])
    if daemon is not None and daemon != own_version():
        context.say([f"the running daemon is {clean(daemon)}; restart it to change that (engines keep running)"])
    return OK
