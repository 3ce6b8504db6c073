"""What runs in the new process before the engine does: wait at the gate, then become the engine.

Started as a script by ``adapters.launchers.gate``, never imported, with isolated mode and no site packages, because
its start is part of every launch. File descriptors, by convention with the parent:

3  the gate: one byte = go; end of file = the parent is gone or gave up, so end without having run anything
4  what to run: NUL-terminated fields - directory, oom score, number of arguments, arguments, environment pairs
5  the error pipe, closed by a successful exec; otherwise "<stage> <errno>" is written to it
"""

import os
import signal
import sys

GATE, SPEC, ERRORS = 3, 4, 5
UMASK = 0o022  # the usual one, whatever the daemon's: engines share model caches with other users


def prepare() -> None:
    """Keep only the standard streams for the engine, and undo what the interpreter did to signals at its start."""
    for fd in (GATE, SPEC, ERRORS):
        os.set_inheritable(fd, False)
    os.closerange(ERRORS + 1, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.umask(UMASK)


def raise_oom_score(score: int) -> None:
    """Make this process a likelier victim than the daemon; never lowers it, and failing is no reason not to run."""
    try:
        with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
            if score > int(file.read()):
                file.write(b"%d" % score)
    except (OSError, ValueError):
        pass


def run() -> None:
    """Read what to run and run it; only returns when that failed, after saying why on the error pipe."""
    stage = b"stub"
    try:
        with open(SPEC, "rb", closefd=False) as file:
            directory, score, count, *fields = file.read().split(b"\0")[:-1]
        arguments, pairs = fields[: int(count)], fields[int(count) :]
        raise_oom_score(int(score))
        stage = b"cwd"
        os.chdir(directory)
        stage = b"exec"
        os.execvpe(arguments[0], arguments, dict(pair.split(b"=", 1) for pair in pairs))
    except OSError as error:
        os.write(ERRORS, b"%s %d" % (stage, error.errno or 0))


if __name__ == "__main__":
    prepare()
    if os.read(GATE, 1):
        run()
        sys.exit(127)
