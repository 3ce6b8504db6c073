"""What every command gets: the terminal, the clock, the environment, the way to the daemon."""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from typing import Any

from scheduler.cli.client import Daemon, targets
from scheduler.cli.render.facts import View
from scheduler.cli.render.text import PLAIN, Style
from scheduler.daemon.clock import SystemClock
from scheduler.ports.clock import Clock


class Context:
    """Made once per run. Output goes through :meth:`say` and :meth:`note`, never past them."""

    def __init__(
        self, args: argparse.Namespace, *, environ: Mapping[str, str] | None = None, clock: Clock | None = None, zone: tzinfo | None = None
    ) -> None:
        self.args = args
        self.environ = os.environ if environ is None else environ
        self.clock: Clock = clock or SystemClock()
        self.zone = zone
        self.out_tty = sys.stdout.isatty()
        self.err_tty = sys.stderr.isatty()
        self._daemon: Daemon | None = None

    @property
    def daemon(self) -> Daemon:
        """The way to the daemon; raises CliError (usage) when the given URL is none."""
        if self._daemon is None:
            home = self.environ.get("HOME") or os.path.expanduser("~")
            self._daemon = Daemon(targets(self.args.url, self.args.state_dir, self.environ, os.geteuid(), home))
        return self._daemon

    def columns(self) -> int | None:
        """Columns of the terminal; None when standard output is not one: then nothing is cut."""
        if not self.out_tty:
            return None
        import shutil  # it brings the compression modules with it, and pipes need none of them

        return shutil.get_terminal_size((80, 24)).columns

    def view(self) -> View:
        """How to draw right now."""
        plain = not self.out_tty or bool(self.environ.get("NO_COLOR")) or self.environ.get("TERM") == "dumb"
        return View(now=self.clock.wall(), columns=self.columns(), style=PLAIN if plain else Style(True), zone=self.zone)

    def say(self, lines: Iterable[str]) -> None:
        """Lines to standard output, at once."""
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

    def say_json(self, value: Any, *, compact: bool = False) -> None:
        """JSON to standard output: indented, or on one line."""
        layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
        self.say([json.dumps(value, ensure_ascii=False, **layout)])

    def note(self, line: str) -> None:
        """A line to standard error."""
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
