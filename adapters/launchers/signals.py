"""Sending a signal to exactly the processes of a group."""

import os
import signal
from collections.abc import Sequence

from adapters.procfs.processes import PROC, ProcessTable, Stat, read_stat


def signal_members(members: Sequence[Stat], table: ProcessTable, number: signal.Signals, proc: str = PROC) -> list[int]:
    """Send ``number`` once to each member; returns the ids of those that we may not signal.

    Process groups (job control) that consist of members only get it in one call, which the kernel does not let a
    fork slip through: single signals never catch up with a process that keeps replacing itself by a child. The
    others get it by process descriptor. Both only after a look that the number still means the same as in ``table``,
    which the caller read just before.
    """
    belongs = {stat.pid for stat in members}
    reached = {
        group
        for group in {stat.group for stat in members}
        if _is_wholly_ours(group, table, belongs) and _is_unchanged(group, table, proc) and _send_to_group(group, number)
    }
    return [stat.pid for stat in members if stat.group not in reached and not _send_to_process(stat, number, proc)]


def _is_wholly_ours(group: int, table: ProcessTable, belongs: set[int]) -> bool:
    return group > 1 and group != os.getpgrp() and all(mate.pid in belongs or mate.dead for mate in table.by_group[group])


def _is_unchanged(group: int, table: ProcessTable, proc: str) -> bool:
    """Whether the number still means the group of the table: nobody new has become its leader since."""
    now, before = read_stat(group, proc), table.by_pid.get(group)
    return now is None or (before is not None and before.key == now.key)


def _send_to_group(group: int, number: signal.Signals) -> bool:
    try:
        os.killpg(group, number)
        if number != signal.SIGKILL:
            os.killpg(group, signal.SIGCONT)  # a stopped process would not act on it otherwise
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def _send_to_process(stat: Stat, number: signal.Signals, proc: str) -> bool:
    if stat.pid <= 1 or stat.pid == os.getpid():
        return True
    try:
        pidfd = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return True
    try:
        now = read_stat(stat.pid, proc)
        if now is not None and now.key == stat.key:
            signal.pidfd_send_signal(pidfd, number)
            if number != signal.SIGKILL:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        os.close(pidfd)
    return True
