"""`hotseat logs [MODEL] [-f]`."""

import argparse
import sys
import threading
from typing import Any, NoReturn

from scheduler.cli.answers import LOG
from scheduler.cli.client import model_path
from scheduler.cli.context import Context
from scheduler.cli.failure import OK, DaemonUnreachable
from scheduler.cli.render.text import clean

LOOK_S = 0.5
MAX_LINES = 10_000


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of `logs`."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="name or alias; without it: the daemon's own log")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come, through restarts, until Ctrl-C")
    parser.add_argument(
        "-n", type=lines, default=100, dest="lines", metavar="N", help=f"last lines to show (default 100, at most {MAX_LINES})"
    )
    parser.add_argument(
        "--launch", type=launch, default="last", metavar="N|last", help="which launch, as listed by status MODEL (default last)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON; with -f one line per piece")


def lines(text: str) -> int:
    """0 to 10000; argparse turns the ValueError into a usage error."""
    number = int(text)
    if not 0 <= number <= MAX_LINES:
        raise argparse.ArgumentTypeError(f"between 0 and {MAX_LINES}")
    return number


def launch(text: str) -> str:
    """``last`` or the number of a launch."""
    if text == "last" or (text.isascii() and text.isdigit() and int(text) > 0):
        return text
    raise argparse.ArgumentTypeError("a launch number, or last")


def run(context: Context) -> int:
    """Print the end of a log, and what is appended when following."""
    args = context.args
    path = model_path(args.model, "/logs") if args.model else "/logs"
    piece = context.daemon.get(f"{path}?launch={args.launch}&lines={args.lines}", LOG)
    _show(context, piece)
    if not args.follow:
        return OK
    try:
        _follow(context, path, piece)
    except KeyboardInterrupt:
        return OK


def _follow(context: Context, path: str, piece: Any) -> NoReturn:
    pause = threading.Event()  # never set: a pause that Ctrl-C ends at once
    down = False
    while True:
        pause.wait(LOOK_S)
        try:
            new = context.daemon.get(f"{path}?launch={context.args.launch}&offset={piece['offset']}", LOG)
            if new["launch"] != piece["launch"]:  # a new process, a new file: its first lines matter most
                context.note(f"--- launch {new['launch']} ---")
                new = context.daemon.get(f"{path}?launch={new['launch']}&offset=0", LOG)
        except DaemonUnreachable as error:
            if not down:
                context.note(f"daemon unreachable, trying again ({clean(error.message)})")
            down = True
            continue
        down, piece = False, new
        if piece["lines"]:
            _show(context, piece)


def _show(context: Context, piece: Any) -> None:
    if context.args.json:
        context.say_json(piece, compact=context.args.follow)
    elif context.out_tty:
        context.say(clean(line.expandtabs()) for line in piece["lines"])
    else:
        sys.stdout.write("".join(f"{line}\n" for line in piece["lines"]))
        sys.stdout.flush()
