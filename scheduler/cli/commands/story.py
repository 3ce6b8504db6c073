"""`hotseat story MODEL`."""

import argparse

from scheduler.cli.answers import PAGE
from scheduler.cli.client import model_path
from scheduler.cli.context import Context
from scheduler.cli.failure import OK
from scheduler.cli.render.lists import render_story


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `story`."""
    parser.add_argument("model", metavar="MODEL", help="name or alias")
    parser.add_argument("-n", type=count, default=50, dest="limit", metavar="N", help="how many entries (default 50, at most 1000)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def count(text: str) -> int:
    """1 to 1000; argparse turns the ValueError into a usage error."""
    number = int(text)
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError("between 1 and 1000")
    return number


def run(context: Context) -> int:
    """Print the transitions of a model, oldest first."""
    args = context.args
    page = context.daemon.get(model_path(args.model, f"/story?limit={args.limit}"), PAGE)
    if args.json:
        context.say_json({"items": page["items"], "has_more": page["has_more"]})
    else:
        context.say(render_story(args.model, page["items"], page["has_more"], context.view()))
    return OK
