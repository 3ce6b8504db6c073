"""The `hotseat` command. Keeps its imports few: it must be there before the user has let go of the key."""

import os
import sys
from collections.abc import Sequence

from scheduler.cli.context import Context
from scheduler.cli.failure import INTERRUPTED, PIPE_CLOSED, CliError
from scheduler.cli.parsing import parse
from scheduler.cli.render.text import clean, wrap


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Nothing but a bug leaves it as an exception."""
    _never_fail_to_print()
    try:
        parsed = parse(sys.argv[1:] if argv is None else argv)
        if parsed.command is None or parsed.args is None:
            sys.stdout.write(parsed.text + "\n")
            sys.stdout.flush()
            return 0
        code: int = parsed.module.run(Context(parsed.args))
        sys.stdout.flush()
        return code
    except CliError as error:
        _explain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def _never_fail_to_print() -> None:
    """A terminal that cannot show a character shows another one instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _explain(error: CliError) -> None:
    columns = None
    if sys.stderr.isatty():
        import shutil  # it brings the compression modules with it, and pipes need none of them

        columns = shutil.get_terminal_size((80, 24)).columns
    lines = wrap(f"hotseat: {clean(error.message)}", columns, " " * 9)
    for line in error.detail:
        lines += wrap(f"  {clean(line)}", columns, "    ")
    if error.fix:
        lines += wrap(f"fix: {clean(error.fix)}", columns, " " * 5)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
