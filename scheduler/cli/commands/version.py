"""`hotseat version`."""

import argparse

from scheduler.cli.answers import VERSION as VERSION_ANSWER
from scheduler.cli.context import Context
from scheduler.cli.failure import OK, CliError
from scheduler.cli.render.text import clean
from scheduler.version import VERSION


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `version`."""
    parser.add_argument("--json", action="store_true", help="as JSON, with the version of the running daemon (null when there is none)")


def run(context: Context) -> int:
    """Print our version, and the daemon's when another one runs."""
    try:
        daemon = str(context.daemon.get("/version", VERSION_ANSWER)["version"])
    except CliError:
        daemon = None
    if context.args.json:
        context.say_json({"version": VERSION, "daemon": daemon})
        return OK
    context.say([f"hotseat {VERSION}"])
    if daemon is not None and daemon != VERSION:
        context.say([f"the running daemon is {clean(daemon)}; restart it to change that (engines keep running)"])
    return OK
