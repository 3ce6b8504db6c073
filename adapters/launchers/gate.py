"""The gate: a process that exists, with its final identity, but runs nothing until it is told to.

The parent keeps the only writing end of a pipe. Whatever ends the parent - kill -9 included - closes it, and the
child ends without having run the engine. ``os.posix_spawn`` instead of a fork in Python, because the daemon has
threads; the small script ``gate_child.py`` waits in the child and executes the engine under the same process id.
"""

import fcntl
import os
import signal
import sys
from dataclasses import dataclass
from io import FileIO

from adapters.launchers.failures import explain_exec, explain_start
from adapters.launchers.waiting import wait_readable
from adapters.procfs.processes import TOKEN_VARIABLE
from scheduler.domain.errors import Permanent
from scheduler.domain.reasons import Code
from scheduler.ports.launcher import SpawnRequest

CHILD_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gate_child.py")

_LOG_MODE = 0o640  # engines print prompts when they fail
_LOADER_VARIABLES = ("LD_LIBRARY_PATH",)  # our own interpreter may need them until it becomes the engine
_LOWEST_FD = 10  # above the numbers that the child's descriptors are moved to


@dataclass(frozen=True, slots=True)
class WaitingChild:
    """A child at its gate. Dropping ``gate`` without writing to it ends the child."""

    pid: int
    gate: FileIO
    errors: FileIO


def check_request(request: SpawnRequest) -> None:
    """Raise Permanent for what no kernel accepts: an empty command, NUL bytes, impossible names of variables."""
    if not request.argv or not request.argv[0]:
        raise Permanent("the command line is empty", code=Code.EXECUTABLE_MISSING, fix="set `command` of the model")
    for what, text in (
        *(("argument", argument) for argument in request.argv),
        *(("environment variable", f"{name}={value}") for name, value in request.env.items()),
        ("working directory", request.cwd),
    ):
        if "\0" in text or not _can_encode(text):
            fix = f"remove the characters from the {what} that cannot be passed to a program"
            raise Permanent(f"{what} {text!r} holds a NUL byte or half a character", code=Code.CRASHED, fix=fix)
    for name in request.env:
        if not name or "=" in name:
            raise Permanent(
                f"{name!r} cannot be the name of an environment variable", code=Code.CRASHED, fix="correct the name under `env`"
            )


def _can_encode(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def start_waiting(request: SpawnRequest, oom_score: int) -> WaitingChild:
    """Start a child in a session of its own that waits at its gate. Blocks for about a millisecond.

    Raises Temporary when the machine lacks something now, Permanent when it cannot work.
    """
    check_request(request)
    opened: list[FileIO] = []

    def own(fd: int, mode: str) -> FileIO:
        opened.append(FileIO(fd, mode))
        return opened[-1]

    def own_lifted(fd: int, mode: str) -> FileIO:
        file = own(fd, mode)
        return own(fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD), mode)

    try:
        log = own_lifted(os.open(request.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _LOG_MODE), "w")
        spec = own_lifted(_write_spec(request, oom_score), "r")
        reading, writing = os.pipe()
        child_gate, gate = own_lifted(reading, "r"), own(writing, "w")
        reading, writing = os.pipe()
        errors, child_errors = own(reading, "r"), own_lifted(writing, "w")
        pid = _spawn(request, [log, log, child_gate, spec, child_errors])
    except OSError as error:
        raise explain_start(error, request) from error
    else:
        opened = [file for file in opened if file not in (gate, errors)]
        return WaitingChild(pid, gate, errors)
    finally:
        for file in opened:
            file.close()


def _write_spec(request: SpawnRequest, oom_score: int) -> int:
    env = {**request.env, TOKEN_VARIABLE: request.token}
    fields = [request.cwd, str(oom_score), str(len(request.argv)), *request.argv, *(f"{name}={value}" for name, value in env.items())]
    fd = os.memfd_create("launch")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.writelines(os.fsencode(field) + b"\0" for field in fields)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _spawn(request: SpawnRequest, streams: list[FileIO]) -> int:
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", CHILD_SCRIPT],
        {TOKEN_VARIABLE: request.token, **{name: os.environ[name] for name in _LOADER_VARIABLES if name in os.environ}},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *((os.POSIX_SPAWN_DUP2, stream.fileno(), number) for number, stream in enumerate(streams, start=1)),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


async def open_gate(child: WaitingChild, request: SpawnRequest) -> None:
    """Let the child run the engine and return when it has become it; raises Permanent when it could not."""
    try:
        child.gate.write(b"1")
    except BrokenPipeError:
        text = f"the process {child.pid} that was to become {request.argv[0]!r} ended before it was started"
        raise Permanent(text, code=Code.CRASHED, fix=f"look for the cause in {request.log_path}") from None
    finally:
        child.gate.close()
    report = await _read_to_end(child.errors)
    if report:
        stage, _, number = report.decode("ascii").partition(" ")
        raise explain_exec(stage, int(number), request)


async def _read_to_end(pipe: FileIO) -> bytes:
    chunks = []
    while chunk := await _read_when_ready(pipe):
        chunks.append(chunk)
    return b"".join(chunks)


async def _read_when_ready(pipe: FileIO) -> bytes:
    await wait_readable(pipe.fileno())
    return pipe.read(256) or b""
