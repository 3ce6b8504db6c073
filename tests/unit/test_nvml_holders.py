"""Who holds what on a device whose driver tells little."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from adapters.devices.nvml_holders import Attribution, Shares
from scheduler.domain.ids import Holder
from scheduler.domain.units import GIB

A, B, C = Holder("a#0"), Holder("b#0"), Holder("c#0")
PIDS = {A: 1, B: 2, C: 3}
STRANGER, OTHER = 8, 9


class Device:
    """One device, looked at again and again; sizes in GiB."""

    def __init__(self) -> None:
        self.attribution = Attribution()
        self.now_s = 0.0

    def look(
        self, used: int, listed: Mapping[int, int | None] | None, holders: str = "abc", moving: str = "", ended: str = ""
    ) -> tuple[dict[str, int], int]:
        """(bytes by holder's letter, foreign bytes)."""
        shares = self.shares(used, listed, holders, moving, ended)
        return {holder[0]: held // GIB for holder, held in shares.own.items()}, shares.foreign_bytes // GIB

    def shares(self, used: int, listed: Mapping[int, int | None] | None, holders: str = "abc", moving: str = "", ended: str = "") -> Shares:
        self.now_s += 1
        groups = {holder: frozenset(() if holder[0] in ended else (pid,)) for holder, pid in PIDS.items() if holder[0] in holders}
        told = None if listed is None else {pid: None if held is None else held * GIB for pid, held in listed.items()}
        return self.attribution.divide(used * GIB, told, groups, frozenset(h for h in PIDS if h[0] in moving), self.now_s)


def test_numbers_of_the_driver_are_taken_as_they_are() -> None:
    device = Device()
    shares = device.shares(30, {1: 10, 2: 5, STRANGER: 4}, moving="c")
    assert shares == Shares({A: 10 * GIB, B: 5 * GIB, C: 0}, 15 * GIB, False, {STRANGER: 4 * GIB})
    assert device.look(12, {1: 10, 2: 5}) == ({"a": 10, "b": 5, "c": 0}, 0), "never below zero"


def test_what_moves_belongs_to_who_moves() -> None:
    device = Device()
    assert device.look(2, {1: None, 2: 1}, "ab", moving="a") == ({"a": 1, "b": 1}, 0)
    assert device.look(12, {1: None, 2: 1}, "ab", moving="a") == ({"a": 11, "b": 1}, 0)
    assert device.look(14, {1: None, 2: 3}, "ab", moving="a") == ({"a": 11, "b": 3}, 0), "explained by its own number"
    assert device.look(17, {1: None, 2: 3, STRANGER: 3}, "ab", moving="a") == ({"a": 11, "b": 3}, 3), "so is the stranger's"
    assert device.look(7, {1: None, 2: 3, STRANGER: 3}, "ab", moving="a") == ({"a": 1, "b": 3}, 3)
    assert device.shares(7, {1: None, 2: 3, STRANGER: 3}, "ab").estimated


def test_growth_without_a_mover_is_foreign_and_shrinking_the_largest_ones() -> None:
    device = Device()
    device.look(0, None, "ab", ended="ab")
    device.look(20, None, "ab", moving="a")
    device.look(26, None, "ab", moving="b")
    assert device.look(30, None, "ab") == ({"a": 20, "b": 6}, 4)
    assert device.look(27, None, "ab") == ({"a": 17, "b": 6}, 4)
    assert device.look(7, None, "ab") == ({"a": 0, "b": 3}, 4), "and then the next one's"
    assert device.look(1, None, "ab") == ({"a": 0, "b": 0}, 1)


def test_several_that_shrink_share_it_by_what_they_have() -> None:
    device = Device()
    device.look(0, None, "ab", ended="ab")
    device.look(30, None, "ab", moving="a")
    device.look(40, None, "ab", moving="b")
    assert device.look(20, None, "ab", moving="ab") == ({"a": 15, "b": 5}, 0)
    assert device.look(24, None, "ab", moving="ab") == ({"a": 17, "b": 7}, 0)


def test_who_has_ended_holds_nothing_and_takes_nobodys_bytes_along() -> None:
    device = Device()
    device.look(0, None, "ab", ended="ab")
    device.look(10, None, "ab", moving="a")
    device.look(18, None, "ab", moving="b")
    assert device.look(18, None, "ab", moving="b", ended="a") == ({"a": 0, "b": 8}, 10), "its bytes linger"
    assert device.look(12, None, "ab", moving="b", ended="a") == ({"a": 0, "b": 8}, 4)
    assert device.look(8, None, "b", moving="b") == ({"b": 8}, 0)
    assert device.look(3, None, "b", moving="b") == ({"b": 3}, 0), "now it is the one that shrinks"


def test_bytes_that_never_left_are_not_waited_for_for_ever() -> None:
    device = Device()
    device.look(0, None, "ab", ended="ab")
    device.look(10, None, "ab", moving="a")
    device.look(18, None, "ab", moving="b")
    device.look(18, None, "b")
    device.now_s += 60
    assert device.look(15, None, "b", moving="b") == ({"b": 5}, 10)


def test_first_look_shares_what_nobody_explains() -> None:
    device = Device()
    assert device.look(15, {1: None, 2: 3, STRANGER: None}, "ab") == ({"a": 6, "b": 3}, 6)
    assert device.look(15, {1: None, 2: 3, STRANGER: None}, "ab") == ({"a": 6, "b": 3}, 6)
    assert Device().look(12, None, "abc") == ({"a": 4, "b": 4, "c": 4}, 0)


def test_a_holder_is_estimated_where_one_of_its_processes_has_no_number() -> None:
    device = Attribution()
    shares = device.divide(12 * GIB, {1: 4 * GIB, 5: None}, {A: frozenset({1, 5})}, frozenset(), 0.0)
    assert shares == Shares({A: 12 * GIB}, 0, True, {})


def test_numbers_that_come_and_go() -> None:
    device = Device()
    assert device.look(14, {1: 10, STRANGER: 4}, "a") == ({"a": 10}, 4)
    assert device.look(14, {1: None, STRANGER: None}, "a", moving="a") == ({"a": 10}, 4), "the last ones still stand"
    assert device.look(14, None, "a", moving="a") == ({"a": 10}, 4)
    assert device.look(15, None, "a", moving="a") == ({"a": 11}, 4)
    assert device.look(14, {1: 9, STRANGER: 5}, "a") == ({"a": 9}, 5)


def test_an_empty_list_is_believed_only_on_an_empty_device() -> None:
    device = Device()
    assert not device.shares(1, {}, "a").estimated
    assert device.look(21, {}, "a", moving="a") == ({"a": 20}, 1)
    assert device.shares(21, {}, "a").estimated


LISTED = st.one_of(st.none(), st.dictionaries(st.sampled_from([1, 2, 3, STRANGER, OTHER]), st.one_of(st.none(), st.integers(0, 60))))


@given(st.lists(st.tuples(st.integers(0, 100), LISTED, *(st.text("abc", max_size=3) for _ in range(3))), max_size=12))
def test_nothing_is_negative_and_estimates_never_exceed_the_device(looks: list) -> None:
    device = Device()
    for used, listed, holders, moving, ended in looks:
        shares = device.shares(used, listed, holders, moving, ended)
        assert set(shares.own) == {holder for holder in PIDS if holder[0] in holders}
        assert all(held >= 0 for held in shares.own.values())
        assert all(not shares.own[holder] for holder in shares.own if holder[0] in ended)
        told = sum((listed or {}).get(PIDS[holder]) or 0 for holder in shares.own if holder[0] not in ended) * GIB
        assert shares.foreign_bytes >= 0
        assert sum(shares.own.values()) + shares.foreign_bytes == max(used * GIB, sum(shares.own.values()))
        assert sum(shares.own.values()) <= max(used * GIB, told)
