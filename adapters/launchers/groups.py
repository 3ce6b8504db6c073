"""Which processes belong to a launch. Pure reasoning over one process table; see ``find_members`` for the rules."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adapters.procfs.processes import ProcessTable, Stat
from scheduler.ports.launcher import Owned, ProcessHandle


@dataclass(slots=True)
class GroupMemory:
    """What earlier looks taught about a group."""

    token: str | None = None
    known: set[tuple[int, int]] = field(default_factory=set)  # members seen before: (pid, start ticks)
    attested: bool = False  # the leader was seen: since then the session has been watched
    gone: bool = False  # seen empty once: its session cannot come back, only its number can


def find_members(handle: ProcessHandle, table: ProcessTable, memory: GroupMemory, same_origin: Callable[[int], bool]) -> list[Stat]:
    """Live members of the group of ``handle``; updates ``memory``.

    1. Every process whose session is the leader's. While anybody is in that session, or the leader is an unburied
       zombie, the kernel does not hand out its number again. So:
       - leader present with our start ticks: the session is ours;
       - number taken by a process with other start ticks: our session had ended before, nobody in it is ours;
       - number free: the session is what our leader left behind, unless it was recycled by a leader that has ended
         too. Then a member counts that was seen before or carries our token. One that carries no token at all counts
         when it is not older than our leader and the session was never seen empty, and either we have watched it
         since the leader lived (a number comes back only after all others) or it has our own user and control groups.
    2. Every carrier of the launch's token, and every session that such a carrier lives in (daemons that forked
       twice, children that overwrote their environment block afterwards).
    3. Every process seen in the group before, and every descendant of a member.

    The daemon's own session is never part of a group. Only an engine that somebody else started in it, from the same terminal as
    the daemon, is one: with its descendants, and nobody beside them.
    """
    leader = table.by_pid.get(handle.pid)
    if leader is not None and leader.start_ticks != handle.start_ticks:
        leader = None
        session: list[Stat] = []
    elif leader is not None and leader.session == os.getsid(0) != leader.pid:
        return [stat for stat in _with_descendants({leader.pid: leader}, table, spared=leader.session) if not stat.dead]
    else:
        session = list(table.by_session.get(handle.pid, ()))
    if memory.token is None and not memory.gone:
        memory.token = _find_token(handle, leader, session, table)
    if leader is None:
        session = [stat for stat in session if _is_left_behind(stat, handle, table, memory, same_origin)]
    seeds = {stat.pid: stat for stat in session}
    if leader is not None:
        seeds[leader.pid] = leader
        memory.attested = True
    for stat in table.by_token.get(memory.token or "", ()):
        session_mates = table.by_session[stat.session] if stat.session > 1 else []
        seeds.update((mate.pid, mate) for mate in (stat, *session_mates))
    seeds.update((pid, table.by_pid[pid]) for pid, ticks in memory.known if _alive_as(table, pid, ticks))
    members = [stat for stat in _with_descendants(seeds, table) if not stat.dead]
    memory.known = {stat.key for stat in members}
    memory.gone = memory.gone or not (members or leader is not None)
    return members


def _alive_as(table: ProcessTable, pid: int, ticks: int) -> bool:
    stat = table.by_pid.get(pid)
    return stat is not None and stat.start_ticks == ticks


def _find_token(handle: ProcessHandle, leader: Stat | None, session: Sequence[Stat], table: ProcessTable) -> str | None:
    if leader is not None and leader.pid in table.tokens:
        return table.tokens[leader.pid]
    # A leader that is dead or has overwritten its environment: its session tells, if all who speak agree.
    tokens = {table.tokens[stat.pid] for stat in session if stat.pid in table.tokens and stat.start_ticks >= handle.start_ticks}
    return tokens.pop() if len(tokens) == 1 else None


def _is_left_behind(
    stat: Stat, handle: ProcessHandle, table: ProcessTable, memory: GroupMemory, same_origin: Callable[[int], bool]
) -> bool:
    if stat.key in memory.known:
        return True
    token = table.tokens.get(stat.pid)
    if token is not None and memory.token is not None:
        return token == memory.token
    if memory.gone or stat.start_ticks < handle.start_ticks:
        return False
    return memory.attested or same_origin(stat.pid)


def _with_descendants(seeds: dict[int, Stat], table: ProcessTable, spared: int | None = None) -> list[Stat]:
    own_session = os.getsid(0)
    found: dict[int, Stat] = {}
    pending = list(seeds.values())
    while pending:
        stat = pending.pop()
        if stat.pid <= 1 or stat.pid == os.getpid() or stat.session == own_session != spared or stat.pid in found:
            continue
        found[stat.pid] = stat
        pending.extend(table.by_parent.get(stat.pid, ()))
    return list(found.values())


def find_owned(boot_id: str, state_uuid: str, table: ProcessTable) -> list[Owned]:
    """One entry per session that holds a token of ``state_uuid``: its leader, or the carriers when it is gone."""
    own_session = os.getsid(0)
    found: dict[tuple[int, str], Owned] = {}
    for token, carriers in sorted(table.by_token.items()):
        if not token.startswith(f"{state_uuid}:"):
            continue
        for stat in carriers:
            if stat.dead or stat.pid <= 1 or stat.session == own_session:
                continue
            leader = table.by_pid.get(stat.session)
            shown = leader if leader is not None and not leader.dead else stat
            handle = ProcessHandle(boot_id=boot_id, pid=shown.pid, start_ticks=shown.start_ticks)
            found[shown.pid, token] = Owned(handle=handle, token=token)
    return list(found.values())
