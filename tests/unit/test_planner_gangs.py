"""Gangs: equal devices within the tightest links that are large enough, and a bounded number of sets."""

from dataclasses import replace

from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import DeviceId
from scheduler.planner.gangs import MOST_GANGS, gangs, is_gang
from tests.support.world import device


def linked(*groups: str, **more: object) -> list[DeviceInfo]:
    """One device per letter; equal letters share an NVLink island."""
    letters = [letter for group in groups for letter in group]
    infos = [device(f"gpu{n}", 24, index=n) for n in range(len(letters))]
    return [replace(info, islands=(f"nvlink:{letter}", "host"), **more) for info, letter in zip(infos, letters, strict=True)]  # type: ignore[arg-type]


def names(*numbers: int) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(f"gpu{n}") for n in numbers)


def test_a_gang_stays_within_the_tightest_island_that_is_large_enough() -> None:
    assert gangs(linked("aabb"), 2) == (names(0, 1), names(2, 3))
    assert gangs(linked("aabb"), 4) == (names(0, 1, 2, 3),)
    assert gangs(linked("abcd"), 2)[0] == names(0, 1)
    assert len(gangs(linked("abcd"), 2)) == 6  # no links at all: any two of the host


def test_gangs_are_of_equal_devices_and_never_of_mig_instances() -> None:
    mixed = linked("aaa")
    mixed[1] = replace(mixed[1], capacity_bytes=mixed[1].capacity_bytes // 2)
    assert gangs(mixed, 2) == (names(0, 2),)
    assert gangs(linked("aaaa", parent=DeviceId("gpu9")), 2) == ()
    assert gangs(linked("aa"), 3) == ()


def test_the_first_devices_come_first_and_the_number_of_sets_is_bounded() -> None:
    many = linked("a" * 16)
    found = gangs(many[::-1], 8)
    assert len(found) == MOST_GANGS
    assert set(found[0]) == set(names(*range(8, 16)))
    assert len(set(found)) == MOST_GANGS


def test_any_set_of_the_island_is_a_gang_also_when_it_is_not_among_the_first() -> None:
    many = linked("a" * 16)
    last = names(0, 1, 2, 3, 4, 5, 6, 7)
    assert last not in gangs(many[::-1], 8)
    assert is_gang(last, many, 8)
    assert not is_gang(last[:-1], many, 8)
    assert not is_gang(names(0, 2), linked("aabb"), 2)
