"""`status -w`: draw again and again, in place on a terminal, one block per change elsewhere; outlives the daemon."""

import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from scheduler.cli.context import Context
from scheduler.cli.failure import OK, DaemonUnreachable
from scheduler.cli.render.facts import clock
from scheduler.cli.render.text import clean, fit, wrap

Fetch = Callable[[], Any]
Draw = Callable[[Any], list[str]]

#: Numbers that move by themselves: a change of these alone is no news.
VOLATILE = frozenset(
    {
        "uptime_s",
        "used_bytes",
        "free_bytes",
        "foreign_bytes",
        "utilization_ratio",
        "power_w",
        "temperature_c",
        "throttle",
        "strangers",
        "estimated",
        "sampled_at",
        "eta_s",
        "last_used_at",
        "state_free_bytes",
        "kv_free_bytes",
        "counters",
        "duration_s",
    }
)


def essence(value: Any) -> Any:
    """``value`` without what changes all the time."""
    if isinstance(value, dict):
        return {key: essence(item) for key, item in value.items() if key not in VOLATILE}
    return [essence(item) for item in value] if isinstance(value, list) else value


def watch(context: Context, fetch: Fetch, draw: Draw, interval_s: float, *, as_json: bool) -> int:
    """Until Ctrl-C. ``fetch`` raises DaemonUnreachable while there is no daemon; other errors end the watch."""
    if as_json or not context.out_tty:
        return _blocks(context, fetch, draw, interval_s, as_json=as_json)
    return _in_place(context, fetch, draw, interval_s)


def _blocks(context: Context, fetch: Fetch, draw: Draw, interval_s: float, *, as_json: bool) -> int:
    told: Any = None
    down = False
    pause = threading.Event()  # never set: a pause that Ctrl-C ends at once
    try:
        while True:
            try:
                value = fetch()
            except DaemonUnreachable as error:
                if not down:
                    context.note(_unreachable(context, context.clock.wall(), error))
                down, told = True, None
            else:
                down = False
                if essence(value) != told:
                    told = essence(value)
                    if as_json:
                        context.say_json(value, compact=True)
                    else:
                        context.say([*draw(value), ""])
            pause.wait(interval_s)
    except KeyboardInterrupt:
        return OK


def _unreachable(context: Context, since: float, error: DaemonUnreachable) -> str:
    tried = "; ".join(error.detail)
    at = clock(since, context.view(), seconds=True)
    return clean(f"daemon unreachable since {at}, trying again ({error.message}{': ' + tried if tried else ''})")


def _in_place(context: Context, fetch: Fetch, draw: Draw, interval_s: float) -> int:
    frame: list[str] = []
    since: float | None = None
    pause = threading.Event()
    with _screen():
        try:
            while True:
                notice: list[str] = []
                try:
                    frame = draw(fetch())
                    since = None
                except DaemonUnreachable as error:
                    since = context.clock.wall() if since is None else since
                    view = context.view()
                    notice = [view.style.bad(line) for line in wrap(_unreachable(context, since, error), view.columns)]
                _paint([*notice, *frame], context)
                pause.wait(interval_s)
        except KeyboardInterrupt:
            pass
    context.say(frame)  # what was seen last stays on the normal screen
    return OK


def _paint(lines: list[str], context: Context) -> None:
    """Lines are no wider than the terminal. Each is erased before it is written: after a full one, that would take its end."""
    rows = shutil.get_terminal_size((80, 24)).lines - 1
    if len(lines) > rows > 1:
        view = context.view()
        rest = f"... {len(lines) - rows + 1} more lines"
        lines = [*lines[: rows - 1], view.style.dim(rest if view.columns is None else fit(rest, view.columns))]
    sys.stdout.write("\x1b[H" + "".join(f"\x1b[K{line}\r\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's second screen without a cursor; always given back, on TERM too."""

    def ended(_signal: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, ended)
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, previous)
