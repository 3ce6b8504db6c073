"""Serving in turns: max_wait beats turn_factor, nobody starves, and the order is the one that was promised."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.ids import HoldId, ModelName
from scheduler.domain.lease import Hold
from scheduler.domain.model import ModelClass
from scheduler.planner.turns import SLACK_RESERVE_S, Fairness, latest_gate_s, order_holds, order_models, turn_length

SECONDS = st.floats(0.1, 900)
CONTENDERS = st.integers(1, 12)


def hold(n: int, model: str = "m", arrived: float = 0.0, deadline: float = 100.0, **more: object) -> Hold:
    return Hold(id=HoldId(n), model=ModelName(model), arrived_s=arrived, deadline_s=deadline, limit_s=deadline, **more)  # type: ignore[arg-type]


# --- how long a turn lasts --------------------------------------------------------------------------------------


@given(n=CONTENDERS, switch=SECONDS, max_wait=SECONDS, factor=st.floats(0, 10), min_awake=st.floats(0, 60))
def test_everybody_is_served_within_max_wait_or_turns_are_as_short_as_they_get(
    n: int, switch: float, max_wait: float, factor: float, min_awake: float
) -> None:
    turn = turn_length(n, switch, max_wait, factor, min_awake)
    others = max(1, n - 1)
    assert turn.length_s >= 0
    assert turn.length_s <= max(factor * switch, min_awake)
    in_time = others * (turn.length_s + switch) <= max_wait * (1 + 1e-9)
    assert in_time or turn.length_s == 0


@given(n=CONTENDERS, switch=SECONDS, factor=st.floats(0, 10), min_awake=st.floats(0, 60))
def test_with_time_to_spare_a_turn_is_full(n: int, switch: float, factor: float, min_awake: float) -> None:
    turn = turn_length(n, switch, math.inf, factor, min_awake)
    assert turn.length_s == max(factor * switch, min_awake)
    assert not turn.over_committed


@given(n=st.integers(2, 12), switch=SECONDS, factor=st.floats(1, 10))
def test_full_turns_spend_at_most_their_share_on_switching(n: int, switch: float, factor: float) -> None:
    turn = turn_length(n, switch, math.inf, factor, 0.0)
    assert switch / (switch + turn.length_s) <= 1 / (factor + 1) + 1e-9


@given(n=CONTENDERS, switch=SECONDS, max_wait=SECONDS, factor=st.floats(0, 10))
def test_over_committed_is_said_exactly_when_full_turns_do_not_fit(n: int, switch: float, max_wait: float, factor: float) -> None:
    turn = turn_length(n, switch, max_wait, factor, 0.0)
    assert turn.over_committed == (max(1, n - 1) * (factor * switch + switch) > max_wait)


@given(n=st.integers(1, 11), switch=SECONDS, max_wait=SECONDS, factor=st.floats(0, 10))
def test_more_contenders_never_lengthen_a_turn(n: int, switch: float, max_wait: float, factor: float) -> None:
    assert turn_length(n + 1, switch, max_wait, factor, 0.0).length_s <= turn_length(n, switch, max_wait, factor, 0.0).length_s


@given(deadlines=st.lists(st.floats(0, 1000), min_size=1, max_size=5), switch=SECONDS, drain=st.floats(0, 60))
def test_the_gate_closes_early_enough_for_the_first_deadline(deadlines: list[float], switch: float, drain: float) -> None:
    """No starvation: whatever traffic goes on, the switch begins while the first waiter can still be served."""
    gate = latest_gate_s([hold(n, deadline=d) for n, d in enumerate(deadlines)], switch, drain)
    assert gate + drain + switch <= min(deadlines) - SLACK_RESERVE_S + 1e-6


def test_without_waiters_no_gate() -> None:
    assert latest_gate_s([], 5.0, 1.0) == math.inf


# --- whose turn is next -----------------------------------------------------------------------------------------

HOLDS = st.lists(
    st.builds(
        hold,
        n=st.integers(1, 10**6),
        model=st.sampled_from(["a", "b", "c"]),
        arrived=st.floats(0, 100),
        deadline=st.floats(0, 1000),
        model_class=st.sampled_from(list(ModelClass)),
        second_try=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda h: h.id,
)


@given(holds=HOLDS, enter=st.fixed_dictionaries({m: st.floats(0, 60) for m in "abc"}))
def test_least_slack_first(holds: list[Hold], enter: dict[str, float]) -> None:
    waiting: dict[ModelName, list[Hold]] = {}
    for one in holds:
        waiting.setdefault(one.model, []).append(one)
    order = order_models(waiting, {ModelName(m): s for m, s in enter.items()})
    assert sorted(order) == sorted(waiting)
    slacks = [min(h.deadline_s for h in waiting[m]) - enter[m] for m in order]
    assert slacks == sorted(slacks)


def test_ties_go_by_class_then_arrival() -> None:
    late = hold(1, "late", arrived=5.0)
    early = hold(2, "early", arrived=1.0)
    batch = hold(3, "batch", arrived=0.0, model_class=ModelClass.BATCH)
    waiting = {h.model: [h] for h in (batch, late, early)}
    assert order_models(waiting, dict.fromkeys(waiting, 0.0)) == ["early", "late", "batch"]


def test_a_model_that_needs_longer_to_come_is_begun_earlier() -> None:
    waiting = {ModelName("quick"): [hold(1, "quick", deadline=50.0)], ModelName("slow"): [hold(2, "slow", deadline=60.0)]}
    assert order_models(waiting, {ModelName("quick"): 1.0, ModelName("slow"): 30.0}) == ["slow", "quick"]


@given(holds=HOLDS)
def test_within_a_model_class_then_second_tries_then_arrival(holds: list[Hold]) -> None:
    order = order_holds(holds)
    assert sorted(h.id for h in order) == sorted(h.id for h in holds)
    for one, other in itertools.pairwise(order):
        assert one.model_class.rank <= other.model_class.rank
        if one.model_class is other.model_class:
            assert one.second_try >= other.second_try
            if one.second_try == other.second_try:
                assert (one.arrived_s, one.id) <= (other.arrived_s, other.id)


@given(crowd=st.lists(st.sampled_from(["x", "y", "z"]), max_size=30), before=st.lists(st.sampled_from(["x", "y", "z"]), max_size=10))
def test_nobody_stands_before_another_who_got_less(crowd: list[str], before: list[str]) -> None:
    fairness = Fairness()
    for principal in before:
        fairness.grant(principal)
    holds = [hold(n, arrived=float(n), principal=principal) for n, principal in enumerate(crowd)]
    order = order_holds(holds, fairness)
    got, left = dict.fromkeys("xyz", 0), {name: crowd.count(name) for name in "xyz"}
    head_start = {name: fairness.place_of(name) for name in "xyz"}
    for one in order:
        waiting = [name for name in "xyz" if left[name]]
        assert got[one.principal] + head_start[one.principal] == min(got[name] + head_start[name] for name in waiting)
        got[one.principal] += 1
        left[one.principal] -= 1
        fairness.grant(one.principal)
    mine = [h.id for h in order if h.principal == "x"]
    assert mine == sorted(mine)  # and among one's own, arrival


@given(granted=st.lists(st.sampled_from(["x", "y"]), max_size=50))
def test_who_was_away_is_next_but_gains_no_more_than_that(granted: list[str]) -> None:
    fairness = Fairness()
    for principal in granted:
        fairness.grant(principal)
    assert fairness.place_of("new") <= min(fairness.place_of("x"), fairness.place_of("y"))
    fairness.grant("new")
    assert fairness.place_of("new") > fairness.served
    assert len(fairness.places) <= 3


def test_order_of_holds_by_example() -> None:
    holds = [hold(1, arrived=1), hold(2, arrived=0), hold(3, arrived=9, second_try=True), hold(4, arrived=0, model_class=ModelClass.BATCH)]
    assert [h.id for h in order_holds(holds)] == [3, 2, 1, 4]
    assert order_holds([]) == []
