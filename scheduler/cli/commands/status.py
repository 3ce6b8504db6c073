"""`hotseat status [-w] [MODEL]`."""

import argparse
from typing import Any

from scheduler.cli.answers import MODEL, STATUS
from scheduler.cli.client import host_name, model_path
from scheduler.cli.context import Context
from scheduler.cli.failure import OK
from scheduler.cli.render.card import render_card
from scheduler.cli.render.status import render_status


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `status`."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="show the card of this model")
    parser.add_argument("-w", "--watch", action="store_true", help="again and again, until Ctrl-C; in a pipe: one block per change")
    parser.add_argument("--interval", type=interval, default=1.0, metavar="SECONDS", help="with -w: seconds between looks (default 1)")
    parser.add_argument("--json", action="store_true", help="as JSON; with -w one line per change")


def interval(text: str) -> float:
    """Seconds between 0.05 and 3600; argparse turns the ValueError into a usage error."""
    seconds = float(text)
    if not 0.05 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("between 0.05 and 3600 seconds")
    return seconds


def run(context: Context) -> int:
    """Show it once, or watch it."""
    args = context.args
    path, shape = (model_path(args.model), MODEL) if args.model else ("/status", STATUS)

    def fetch() -> Any:
        return context.daemon.get(path, shape)

    def draw(answer: Any) -> list[str]:
        if args.model:
            return render_card(answer, context.view())
        return render_status(answer, host_name(context.daemon.answered), context.view())

    if args.watch:
        from scheduler.cli.watch import watch  # threads and signals, only needed here

        return watch(context, fetch, draw, args.interval, as_json=args.json)
    answer = fetch()
    if args.json:
        context.say_json(answer)
    else:
        context.say(draw(answer))
    return OK
