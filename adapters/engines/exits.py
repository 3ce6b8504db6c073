"""Why an engine ended: patterns over its log, then what its exit status says. Patterns are data, one table per engine."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.domain.reasons import Code, Reason
from scheduler.ports.launcher import ExitInfo

MAX_LINE = 300
#: More lines than this are not searched; the decisive one may stand before a long backtrace.
MAX_LINES = 2000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [A-Z] ")  # llama.cpp: 0.00.016.647 E


@dataclass(frozen=True, slots=True)
class Pattern:
    """A log line that decides. ``text`` and ``fix`` may use the groups of ``regex`` as ``{name}``."""

    code: Code
    regex: re.Pattern[str]
    text: str
    fix: str


def pattern(code: Code, regex: str, text: str, fix: str) -> Pattern:
    """A row of a table."""
    return Pattern(code, re.compile(regex, re.IGNORECASE), text, fix)


#: What any program may say; tables of engines come before it.
COMMON: tuple[Pattern, ...] = (
    pattern(
        Code.PORT_TAKEN,
        r"address already in use|EADDRINUSE|errno 98",
        "somebody else listens on the port that was chosen for it",
        "nothing: the next start takes another port",
    ),
    pattern(
        Code.HOST_OOM,
        r"std::bad_alloc|cannot allocate memory|\bMemoryError\b|ENOMEM|out of memory",
        "it could not get the host memory it asked for",
        "give it fewer slots or a smaller context, or let other models sleep",
    ),
    pattern(
        Code.EXECUTABLE_MISSING,
        r"(?P<what>\S+): (?:command )?not found$|No module named '?(?P<module>[\w.]+)|error while loading shared libraries: (?P<lib>\S+)",
        "something that it needs to run is not installed",
        "install what the log line names, or point `command` at another program",
    ),
)

_BY_STATUS = {126: "is not executable", 127: "was not found"}


def explain(exit_info: ExitInfo, log_tail: Sequence[str], table: Sequence[Pattern], program: str) -> Reason:
    """The reason of an exit: the first row of ``table`` (then of COMMON) that a line of the log matches, else the status."""
    lines = [_ANSI.sub("", line).rstrip() for line in log_tail[-MAX_LINES:]]
    if exit_info.oom_killed:
        return Reason(
            Code.HOST_OOM,
            f"the kernel killed {program} because memory ran out",
            "lower the budget of the device or the context of the model, or stop what else uses memory on this host",
            last_line(lines),
        )
    for row in (*table, *COMMON):
        for line in lines:
            match = row.regex.search(line)
            if match is not None:
                return Reason(row.code, _fill(row.text, match), _fill(row.fix, match), decisive(line))
    return _by_status(exit_info, lines, program)


def _by_status(exit_info: ExitInfo, lines: Sequence[str], program: str) -> Reason:
    line = last_line(lines)
    if exit_info.code in _BY_STATUS:
        text = f"the program to run {_BY_STATUS[exit_info.code]} (exit status {exit_info.code})"
        return Reason(Code.EXECUTABLE_MISSING, text, "check `command` and the PATH of the daemon", line)
    if exit_info.signal == signal.SIGKILL:
        text = f"{program} was killed with SIGKILL"
        return Reason(Code.CRASHED, text, "look with `dmesg` whether the kernel did it for memory; if so, lower the budget", line)
    if exit_info.signal is not None:
        return Reason(Code.CRASHED, f"{program} was ended by {_signal_name(exit_info.signal)}", "read its log", line)
    if exit_info.code is not None:
        return Reason(Code.CRASHED, f"{program} ended with exit status {exit_info.code}", "read its log", line)
    return Reason(Code.CRASHED, f"{program} is gone; nobody saw how it ended", "read its log", line)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _fill(text: str, match: re.Match[str]) -> str:
    return text.format_map({name: value or "" for name, value in match.groupdict().items()}) if "{" in text else text


def last_line(lines: Sequence[str]) -> str:
    """The last line that says anything, ready to be shown."""
    return next((decisive(line) for line in reversed(lines) if line.strip()), "")


def decisive(line: str) -> str:
    """A log line as it is shown: without time stamp, colours and control characters, and not too long. (Secrets were taken out before.)"""
    plain = _STAMP.sub("", _ANSI.sub("", line)).strip()
    plain = "".join(char for char in plain if char.isprintable())[: MAX_LINE * 2]
    return plain if len(plain) <= MAX_LINE else plain[: MAX_LINE - 1] + "…"
