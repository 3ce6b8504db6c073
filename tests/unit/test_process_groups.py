"""Who belongs to a launch: recycled numbers, dead leaders, lost tokens. Tables are made up, the rules are real."""

import os

import pytest

from adapters.launchers.groups import GroupMemory, find_members, find_owned
from adapters.procfs.processes import ProcessTable, Stat
from scheduler.ports.launcher import ProcessHandle

LEADER = ProcessHandle(boot_id="b", pid=400_000_100, start_ticks=1000)
OURS = "u:1"


def at(pid: int) -> int:
    """Numbers above every real one, so that the daemon's own session is never hit by chance."""
    return 400_000_000 + pid


def stat(pid: int, *, session: int = 100, parent: int = 1, ticks: int = 2000, state: str = "S") -> Stat:
    up = parent if parent == 1 else at(parent)
    return Stat(pid=at(pid), state=state, parent=up, group=at(session), session=at(session), threads=1, start_ticks=ticks, env_start=1)


def find(table: ProcessTable, memory: GroupMemory, *, origin: bool = False, handle: ProcessHandle = LEADER) -> set[int]:
    return {member.pid - at(0) for member in find_members(handle, table, memory, lambda _: origin)}


def table(*stats: Stat, tokens: dict[int, str] | None = None) -> ProcessTable:
    return ProcessTable.of(stats, {at(pid): token for pid, token in (tokens or {}).items()})


def test_session_of_a_living_leader_is_ours_without_any_token() -> None:
    assert find(table(stat(100, ticks=1000), stat(7), stat(200, session=200)), GroupMemory()) == {100, 7}


def test_unburied_leader_vouches_for_its_session() -> None:
    memory = GroupMemory()
    assert find(table(stat(100, ticks=1000, state="Z"), stat(7)), memory) == {7}
    assert find(table(stat(100, ticks=1000, state="Z")), memory) == set()
    assert not memory.gone, "the number is not free yet"


def test_number_taken_by_another_process_means_the_session_ended() -> None:
    memory = GroupMemory(attested=True)
    assert find(table(stat(100, ticks=5000), stat(7, ticks=5001)), memory, origin=True) == set()
    assert memory.gone


def test_older_process_cannot_be_left_behind_by_a_younger_leader() -> None:
    assert find(table(stat(7, ticks=999), stat(8, ticks=1000)), GroupMemory(), origin=True) == {8}


@pytest.mark.parametrize(("origin", "attested", "found"), [(True, False, {7}), (False, False, set()), (False, True, {7})])
def test_left_behind_without_token_needs_a_witness(origin: bool, attested: bool, found: set[int]) -> None:
    assert find(table(stat(7)), GroupMemory(attested=attested), origin=origin) == found


def test_session_that_was_seen_empty_cannot_come_back() -> None:
    memory = GroupMemory(attested=True)
    assert find(table(stat(100, ticks=1000)), memory) == {100}
    assert find(table(), memory) == set()
    assert find(table(stat(7)), memory, origin=True) == set()


def test_other_launch_in_a_recycled_session_is_not_ours() -> None:
    memory = GroupMemory(token=OURS, attested=True)
    assert find(table(stat(7), tokens={7: "u:2"}), memory, origin=True) == set()


def test_carriers_bring_their_sessions_and_descendants() -> None:
    memory = GroupMemory(token=OURS)
    members = find(
        table(
            stat(100, ticks=1000),
            stat(200, session=200),  # forked twice, carries the token
            stat(201, session=200),  # its child, overwrote its environment
            stat(300, session=300, parent=201),  # left that session as well, without token
            stat(400, session=400),
            tokens={100: OURS, 200: OURS},
        ),
        memory,
    )
    assert members == {100, 200, 201, 300}


def test_member_once_seen_is_known_when_it_loses_everything() -> None:
    memory = GroupMemory()
    assert find(table(stat(100, ticks=1000), stat(7, session=200, parent=100)), memory) == {100, 7}
    assert find(table(stat(7, session=200)), memory) == {7}
    assert find(table(stat(7, session=200, ticks=2001)), memory) == set(), "another process with its number"


def test_token_is_learnt_from_the_leader_or_from_an_agreeing_session() -> None:
    for first in (
        table(stat(100, ticks=1000), tokens={100: OURS}),
        table(stat(100, ticks=1000), stat(7), tokens={7: OURS}),
        table(stat(7), stat(8), tokens={7: OURS, 8: OURS}),
    ):
        memory = GroupMemory()
        find(first, memory)
        assert memory.token == OURS
    memory = GroupMemory()
    find(table(stat(7), stat(8), tokens={7: OURS, 8: "u:2"}), memory)
    assert memory.token is None


def test_processes_without_token_never_match_a_launch_without_token() -> None:
    assert find(table(stat(7, session=200)), GroupMemory()) == set()


def test_own_session_and_init_are_never_members() -> None:
    me = Stat(os.getpid(), "S", os.getppid(), os.getpgrp(), os.getsid(0), 1, 10, 1)
    init = Stat(1, "S", 0, 1, 1, 1, 0, 1)
    everything = ProcessTable.of([me, init], {os.getpid(): OURS, 1: OURS})
    for pid, ticks in ((os.getpid(), 10), (os.getsid(0), 10), (1, 0)):
        handle = ProcessHandle(boot_id="b", pid=pid, start_ticks=ticks)
        assert find_members(handle, everything, GroupMemory(token=OURS), lambda _: True) == []
    assert find_owned("b", "u", everything) == []


def test_an_engine_that_somebody_started_in_our_session_is_a_member_with_its_descendants_only() -> None:
    def mate(pid: int, parent: int, ticks: int = 2000) -> Stat:
        return Stat(pid, "S", parent, pid, os.getsid(0), 1, ticks, 1)

    us = mate(os.getpid(), at(100))  # even a daemon that the engine had started would not be part of it
    seen = ProcessTable.of([mate(at(100), 1, ticks=1000), mate(at(7), at(100)), mate(at(8), 1), us], {})
    memory = GroupMemory()
    assert find(seen, memory) == {100, 7}
    assert find(ProcessTable.of([mate(at(7), 1), mate(at(8), 1), us], {}), memory) == set(), "without it nobody is left to be its own"


def test_owned_names_leaders_and_only_where_they_are_gone_carriers() -> None:
    seen = table(
        stat(100, ticks=1000),
        stat(7),
        stat(8, session=200),
        stat(9, session=200),
        stat(300, session=300, state="Z"),
        stat(11, session=300),
        stat(400, session=400),
        tokens={7: "u:1", 8: "u:2", 9: "u:2", 11: "u:3", 400: "uu:4"},
    )
    found = {(owned.handle.pid - at(0), owned.handle.start_ticks, owned.token) for owned in find_owned("b", "u", seen)}
    assert found == {(100, 1000, "u:1"), (8, 2000, "u:2"), (9, 2000, "u:2"), (11, 2000, "u:3")}
