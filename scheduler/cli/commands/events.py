"""`hotseat events [-n N] [-f]`."""

import argparse
import threading
from typing import Any, NoReturn

from scheduler.cli.answers import PAGE
from scheduler.cli.commands.story import count
from scheduler.cli.context import Context
from scheduler.cli.failure import OK, DaemonUnreachable
from scheduler.cli.render.lists import render_events
from scheduler.cli.render.text import clean

HOLD_S = 30.0
RETRY_S = 1.0


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `events`."""
    parser.add_argument(
        "-n", type=count, default=20, dest="limit", metavar="N", help="how many of the last ones (default 20, at most 1000)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on as they happen, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="as JSON; with -f one line per event")


def run(context: Context) -> int:
    """Print the last events, and those that follow."""
    args = context.args
    page = context.daemon.get(f"/events?limit={args.limit}", PAGE)
    _show(context, page["items"], title=not args.follow)
    if not args.follow:
        return OK
    try:
        _follow(context, page["after"] or "0")
    except KeyboardInterrupt:
        return OK


def _follow(context: Context, after: str) -> NoReturn:
    pause = threading.Event()  # never set: a pause that Ctrl-C ends at once
    down = False
    while True:
        try:
            page = context.daemon.get(f"/events?limit=1000&after={after}&wait={HOLD_S:g}", PAGE, wait_s=HOLD_S)
        except DaemonUnreachable as error:
            if not down:
                context.note(f"daemon unreachable, trying again ({clean(error.message)})")
            down = True
            pause.wait(RETRY_S)
            continue
        down, after = False, page["after"] or after
        _show(context, page["items"], title=False)


def _show(context: Context, events: list[Any], *, title: bool) -> None:
    if not context.args.json:
        context.say(render_events(events, context.view(), title=title))
    elif title:
        context.say_json({"items": events})
    else:
        for event in events:
            context.say_json(event, compact=True)
