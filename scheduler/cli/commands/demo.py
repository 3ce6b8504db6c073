"""`hotseat demo`: hands over to the demonstration."""

import argparse
import importlib

from scheduler.cli.context import Context


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `demo`."""
    parser.add_argument("--keep", action="store_true", help="leave the daemon running and print the curl lines to try")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")


def run(context: Context) -> int:
    """Run it; 0 only if everything it promises held."""
    code: int = importlib.import_module("scheduler.cli.demo").run(context.args)
    return code
