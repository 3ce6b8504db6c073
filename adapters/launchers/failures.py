"""Failed starts in words: the cause with its numbers, and what to do."""

import errno
import os
import sys

from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.reasons import Code
from scheduler.ports.launcher import SpawnRequest

#: Errors of a start that may go away by themselves: no memory, no processes, no descriptors, no space.
_TEMPORARY = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO})
_RETRY_AFTER_S = 5.0
_CANNOT_RUN = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)


def explain_start(error: OSError, request: SpawnRequest) -> HotseatError:
    """Why there is no child at all: Temporary when the machine lacks something now, else Permanent."""
    text = f"cannot start a process for {request.argv[0]!r}: {error.strerror} ({error.filename or 'spawn'})"
    if error.errno in _TEMPORARY:
        return Temporary(text, retry_after_s=_RETRY_AFTER_S, code=Code.CRASHED, fix="free memory, disk space or processes on this machine")
    if error.filename == request.log_path:
        return Permanent(text, code=Code.CRASHED, fix=f"make {request.log_path} writable for the daemon's user")
    return Permanent(text, code=Code.CRASHED, fix=f"reinstall hotseat: its interpreter {sys.executable} cannot be run")


def explain_exec(stage: str, number: int, request: SpawnRequest) -> Permanent:
    """Why the child could not become the engine, from the step it reached and the kernel's error number."""
    name, reason = request.argv[0], os.strerror(number)
    if stage == "cwd":
        return Permanent(
            f"cannot enter the working directory {request.cwd!r}: {reason}",
            code=Code.CRASHED,
            fix=f"create {request.cwd} or make it accessible",
        )
    if number == errno.E2BIG:
        size = sum(len(os.fsencode(text)) for text in (*request.argv, *request.env, *request.env.values()))
        return Permanent(
            f"cannot run {name!r}: its arguments and environment hold {size} bytes, more than the kernel takes",
            code=Code.CRASHED,
            fix="shorten the longest argument or variable; the limit of a single one is 128 KiB",
        )
    if stage != "exec" or number not in _CANNOT_RUN:
        return Permanent(f"cannot run {name!r}: {reason}", code=Code.CRASHED, fix=f"look for the cause in {request.log_path}")
    if number == errno.ENOENT:
        return _explain_missing(name, request)
    return Permanent(
        f"cannot run {name!r}: {reason}",
        code=Code.EXECUTABLE_MISSING,
        fix=f"check that {name} is a program for this machine and that the daemon's user may execute it",
    )


def _explain_missing(name: str, request: SpawnRequest) -> Permanent:
    if "/" not in name:
        where = request.env.get("PATH", os.defpath)
        text, fix = f"no program {name!r} in PATH ({where})", "install it, or give its full path"
    elif os.path.exists(os.path.join(request.cwd, name)):
        text = f"cannot run {name!r}: the interpreter it names in its first line, or its dynamic loader, does not exist"
        fix = f"correct the first line of {name} or reinstall it"
    else:
        text, fix = f"no program {name!r}", "install it, or correct the path"
    return Permanent(text, code=Code.EXECUTABLE_MISSING, fix=fix)
