"""What one event costs when a hundred models share a few devices and a thousand requests wait: counted, not timed.

Times are in benchmarks/control_loop.py.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.errors import Temporary
from scheduler.domain.ids import HoldId, ModelName
from scheduler.domain.lease import Hold
from scheduler.domain.units import GIB
from scheduler.orchestrator import estimates, reactions
from scheduler.orchestrator.holds import NOBODY, Holds
from scheduler.orchestrator.view import Scene
from scheduler.planner.turns import demand_of
from tests.support.behaviour import Behaviour
from tests.support.plain import Client, Plain

SMALL = Behaviour(awake_bytes=6 * GIB)
WAITING = [f"w{n}" for n in range(30)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the expensive questions were asked."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(reactions, "evict")
    count(Scene, "picture")
    count(Scene, "likeness")
    count(estimates, "awake_seconds")
    return found


def crowded() -> Plain:
    """A device whose three models are in use, and thirty more models that are waited for."""
    long_turns = {name: {"min_awake_s": 3000.0} for name in "abc"}
    world = Plain({"gpu0": 24}, specs=long_turns, behaviours=dict.fromkeys(["a", "b", "c", *WAITING], SMALL))
    for name in "abc":
        world.ask(name, 2, for_s=30_000.0)
        world.run(60.0)
    for name in WAITING:
        world.ask(name, 3, wait_s=200_000.0, limit_s=900_000.0)
    assert not world.state.moves
    return world


def test_an_arrival_thinks_about_no_model_that_it_does_not_concern(calls: Counter[str]) -> None:
    world = crowded()
    calls.clear()
    world.ask(WAITING[7], wait_s=300_000.0, limit_s=900_000.0)
    assert (calls["evict"], calls["picture"]) == (1, 1), "its own model, and that alone"


def test_an_answer_that_ends_thinks_about_nobody_while_its_model_stays_in_use(calls: Counter[str]) -> None:
    world = crowded()
    short = world.ask("a", for_s=0.5)
    world.run(0.25)
    calls.clear()
    world.run_until(lambda: short[0].end == "ok")
    assert calls["evict"] == 0


def test_what_changes_the_room_has_every_waiting_model_thought_about_once(calls: Counter[str]) -> None:
    world = crowded()
    calls.clear()
    world.foreign[world.infos[0].id] = GIB
    world.take_sample()
    assert calls["evict"] == len(WAITING)


def test_a_seat_that_becomes_idle_is_seen_at_once() -> None:
    world = crowded()
    for client in [c for c in world.clients if c.model == "b"]:
        world.cancel(client)
    assert world.count("Sleep", "b") == 1


def test_a_turn_that_ends_by_time_alone_is_seen_when_it_ends() -> None:
    """Answers came to take longer meanwhile: the turn ends sooner than the remembered answer said."""
    world = Plain({"gpu0": 8}, a=SMALL, b=SMALL)
    world.ask("a", 20, for_s=40.0)
    world.run(45.0)
    world.ask("a", 20, for_s=40.0)
    world.ask("b", wait_s=600.0, limit_s=600.0)
    world.run_until(lambda: world.phase("b") == "awake", within_s=600.0)
    assert world.ends("b") == ["granted"]


def test_a_queue_that_times_out_at_once_is_reckoned_once_per_request(calls: Counter[str]) -> None:
    world = Plain({"gpu0": 24}, specs={"a": {"max_concurrent": 1}}, a=SMALL)
    world.ask("a", for_s=10_000.0)
    world.run(20.0)
    late = world.ask("a", 200, wait_s=60.0)
    world.run(59.0)
    calls.clear()
    world.run_until(lambda: late[-1].end != "held")
    assert {client.end for client in late} == {"wait_timeout"}
    assert _waits(late) == sorted(_waits(late), reverse=True), "who leaves shortens the queue for those behind"
    assert calls["awake_seconds"] <= len(late) + 20


def _waits(clients: list[Client]) -> list[float]:
    return [client.error.retry_after_s or 0.0 for client in clients if isinstance(client.error, Temporary)]


# --- the index of holds -----------------------------------------------------------------------------------------


def make_hold(n: int, model: str, deadline_s: float) -> Hold:
    return Hold(id=HoldId(n), model=ModelName(model), arrived_s=float(n), deadline_s=deadline_s, limit_s=deadline_s + 5.0)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "del", "pop", "extend"]), st.integers(1, 6), st.sampled_from("xyz"), st.floats(10.0, 99.0)),
    max_size=30,
)


@given(CHANGES)
def test_holds_are_filed_by_model_however_they_are_written(changes: list[tuple[str, int, str, float]]) -> None:
    holds, plain = Holds(), dict[HoldId, Hold]()
    for how, n, model, deadline_s in changes:
        key, hold = HoldId(n), make_hold(n, model, deadline_s)
        if how == "put":
            holds[key] = plain[key] = hold
        elif how == "pop":
            assert holds.pop(key, None) == plain.pop(key, None)
        elif key in plain and how == "del":
            del holds[key], plain[key]
        elif key in plain:
            holds[key] = plain[key] = replace(plain[key], deadline_s=deadline_s)
        assert list(holds.items()) == list(plain.items())
        assert set(holds.models()) == {h.model for h in plain.values()}
        for name in map(ModelName, "xyz"):
            of_model = [h for h in plain.values() if h.model == name]
            assert sorted(holds.of(name)) == sorted(h.id for h in of_model)
            assert holds.demand(name) == (demand_of(of_model) if of_model else NOBODY)
