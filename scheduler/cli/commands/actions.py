"""`hotseat wake|sleep|stop|restart MODEL`: begin, wait with progress, say what was done and how to undo it."""

import argparse
import sys
import threading
from typing import Any

from scheduler.cli.answers import ACTION
from scheduler.cli.client import model_path
from scheduler.cli.context import Context
from scheduler.cli.failure import FAILED, INTERRUPTED, NOT_FOUND, OK, CliError, DaemonUnreachable, exit_of
from scheduler.cli.render.actions import effect, waiting_line
from scheduler.cli.render.text import clean, fit

QUIET_S = 2.0  # what is over sooner needs no progress
LOOK_S = 1.0
PATIENCE_S = 60.0  # how long a daemon may be away (a restart) while we wait for its action


def arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Options of the four verbs."""
    parser.add_argument("model", metavar="MODEL", help="name or alias")
    if command == "sleep":
        help_ = "1 = weights go to host memory, 2 = weights are dropped (default: the scheduler chooses)"
        parser.add_argument("--level", type=int, choices=(1, 2), help=help_)
    if command == "stop":
        parser.add_argument("--now", action="store_true", help="do not wait for running requests: cut them short")
    parser.add_argument("--no-wait", action="store_true", help="print the id of the action and return at once")
    parser.add_argument("--json", action="store_true", help="the finished action as JSON")


def run(context: Context) -> int:
    """Do it; Ctrl-C leaves it running."""
    args = context.args
    body: dict[str, object] = {}
    if args.command == "sleep" and args.level is not None:
        body["level"] = args.level
    if args.command == "stop" and args.now:
        body["now"] = True
    action = context.daemon.post(model_path(args.model, f"/{args.command}"), body, ACTION)
    if not args.no_wait:
        action = _wait(context, action)
    if args.json:
        context.say_json(action)
    if action["state"] == "failed":
        raise _failure(action)
    if not args.json:
        context.say([clean(action["id"])] if args.no_wait else [*effect(action), *_other_level(action, body.get("level"))])
    return OK


def _other_level(action: Any, asked: object) -> list[str]:
    if asked is None or action.get("level") in (None, asked) or action.get("changed") is False:
        return []
    return [f"  not at level {asked}: hotseat status {clean(action['model'])} says why"]


def _failure(action: Any) -> CliError:
    error = action.get("error") or {}
    code = str(error.get("code", "failed"))
    exit_code = exit_of(0, code)
    detail = (f"log: {error['log_line']}",) if error.get("log_line") else ()
    message = f"{action['verb']} {action['model']} failed: {code}: {error.get('message', 'no reason given')}"
    return CliError(exit_code, message, detail=detail, fix=error.get("fix") or f"hotseat status {action['model']}")


def _wait(context: Context, action: Any) -> Any:
    progress, look = _Progress(context), QUIET_S
    away_since: float | None = None  # measured, not counted in tries: a daemon that hangs takes long for each
    pause = threading.Event()  # never set
    try:
        while action["state"] == "running":
            asked_at = context.clock.monotonic()
            try:
                seen = context.daemon.get(f"/actions/{action['id']}?wait={look:g}", ACTION, wait_s=look)
                if seen["created_at"] != action["created_at"]:  # a new daemon gave the number to another action
                    raise CliError(NOT_FOUND, "")
                action, away_since, look = seen, None, LOOK_S
                if action["state"] == "running":
                    progress.show(waiting_line(action))
            except DaemonUnreachable as error:
                away_since = asked_at if away_since is None else away_since
                if context.clock.monotonic() - away_since >= PATIENCE_S:
                    raise
                progress.show(f"{action['verb']} {clean(action['model'])}: daemon unreachable, trying again ({clean(error.message)})")
                pause.wait(LOOK_S)
            except CliError as error:
                raise _forgotten(action, error) from None
    except KeyboardInterrupt:
        progress.clear()
        context.note(f"left running: action {action['id']}; see hotseat status {clean(action['model'])}")
        sys.exit(INTERRUPTED)
    finally:
        progress.clear()
    return action


def _forgotten(action: Any, error: CliError) -> CliError:
    if error.exit_code != NOT_FOUND:
        return error
    message = f"the daemon was restarted and no longer knows action {action['id']}"
    return CliError(FAILED, message, fix=f"see where {action['model']} stands: hotseat status {action['model']}")


class _Progress:
    """One line on standard error: rewritten in place on a terminal, else a line for each new state."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._shown = ""

    def show(self, text: str) -> None:
        if self._context.err_tty:
            columns = (self._context.columns() or 80) - 1
            sys.stderr.write(f"\r{fit(text, columns)}\x1b[K")
            sys.stderr.flush()
            self._shown = text
            return
        state = " ".join(word for word in text.split(" ") if not word[:1].isdigit())
        if state != self._shown:
            self._shown = state
            self._context.note(text)

    def clear(self) -> None:
        if self._context.err_tty and self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = ""
