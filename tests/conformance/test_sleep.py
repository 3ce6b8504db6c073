"""What an engine adapter that can sleep has to do: levels, memory, proofs after a wake, and troubles on the way."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.http import post
from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.reasons import Code
from scheduler.domain.units import MIB
from scheduler.ports.engine import Answer, CanSleep, CountsRequests, WarmsUp
from tests.conformance.conftest import until_ready
from tests.conformance.variants import Running, Stream, Variant, ask, do, wait_until

#: Seconds that a call of an adapter gets; a model of half a MiB needs a small part of it.
CALL_S = 30.0


@pytest.fixture
def sleeper(variant: Variant) -> CanSleep:
    """The adapter, when it can sleep; else there is nothing to test."""
    engine: object = variant.engine
    if not isinstance(engine, CanSleep) or not variant.engine.levels(variant.spec):
        pytest.skip("it cannot sleep")
    return engine


@pytest.fixture
def awake(variant: Variant, sleeper: CanSleep, live: Running) -> Iterator[Running]:
    """The shared engine, put back on its feet afterwards."""
    yield live
    if do(variant.engine.probe(live.endpoint, 5.0)).answer is not Answer.READY:
        do(sleeper.wake(live.endpoint, variant.engine.levels(variant.spec)[0], CALL_S))


def text_of(running: Running) -> str:
    """What it says to one fixed question."""
    found = ask(running, "/v1/completions", prompt="1 2 3", max_tokens=6, temperature=0, seed=0, ignore_eos=True).json()
    return str(found["choices"][0]["text"])


def seen(variant: Variant, running: Running) -> tuple[Answer, int | None]:
    """What a probe says."""
    found = do(variant.engine.probe(running.endpoint, 5.0))
    return found.answer, found.level


def test_levels_are_in_order_and_mean_that_it_can_sleep(variant: Variant) -> None:
    engine: object = variant.engine
    levels = variant.engine.levels(variant.spec)
    assert levels == tuple(sorted(set(levels)))
    assert not levels or isinstance(engine, CanSleep)


def test_every_level_is_reached_told_and_left(variant: Variant, sleeper: CanSleep, awake: Running) -> None:
    before = text_of(awake)
    for level in variant.engine.levels(variant.spec):
        assert do(sleeper.sleep(awake.endpoint, level, CALL_S)) == level
        answer, told = seen(variant, awake)
        assert answer is Answer.ASLEEP
        assert told in (level, None)
        assert do(sleeper.sleep(awake.endpoint, level, CALL_S)) == level  # once more does no harm
        do(sleeper.wake(awake.endpoint, level, CALL_S))
        assert seen(variant, awake) == (Answer.READY, None)
        assert text_of(awake) == before
        do(sleeper.wake(awake.endpoint, level, CALL_S))  # once more does no harm
        assert seen(variant, awake) == (Answer.READY, None)


def test_a_sleep_gives_memory_back_and_a_wake_takes_it(variant: Variant, sleeper: CanSleep, tmp_path: Path) -> None:
    if not variant.frees:
        pytest.skip("here a sleep frees nothing")
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        awake = running.pss_bytes()
        for level in variant.engine.levels(variant.spec):
            do(sleeper.sleep(running.endpoint, level, CALL_S))
            assert running.pss_bytes() < awake - 20 * MIB
            do(sleeper.wake(running.endpoint, level, CALL_S))
            assert running.pss_bytes() > awake - MIB


def test_calls_to_an_engine_that_is_gone(variant: Variant, sleeper: CanSleep, tmp_path: Path) -> None:
    level = variant.engine.levels(variant.spec)[0]
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
    with pytest.raises(Temporary) as caught:
        do(sleeper.sleep(running.endpoint, level, 1.0))
    assert caught.value.code == Code.SLEEP_FAILED
    with pytest.raises(Temporary) as caught:
        do(sleeper.wake(running.endpoint, level, 1.0))
    assert caught.value.code == Code.WAKE_FAILED


def test_requests_inside_end_one_way_or_another(variant: Variant, sleeper: CanSleep, awake: Running) -> None:
    """The daemon drains first; what is inside nevertheless must not keep it awake for ever."""
    level = variant.engine.levels(variant.spec)[0]
    with Stream(awake):
        assert do(sleeper.sleep(awake.endpoint, level, 5.0)) == level
    assert seen(variant, awake)[0] is Answer.ASLEEP


def test_a_sleeper_does_not_count(variant: Variant, sleeper: CanSleep, awake: Running) -> None:
    engine: object = variant.engine
    if not isinstance(engine, CountsRequests):
        pytest.skip("it does not count")
    level = variant.engine.levels(variant.spec)[0]
    do(sleeper.sleep(awake.endpoint, level, CALL_S))
    assert do(engine.running(awake.endpoint, 5.0)) in (0, None)
    do(sleeper.wake(awake.endpoint, level, CALL_S))
    wait_until("it counts again", lambda: do(engine.running(awake.endpoint, 5.0)) == 0)


def test_paused_is_neither_ready_nor_asleep(variant: Variant, sleeper: CanSleep, awake: Running) -> None:
    """Somebody else may pause an engine: then it takes requests and does not answer them."""
    if do(post(awake.endpoint.base_url, "/pause", timeout_s=5.0)).status == 404:
        pytest.skip("it cannot be paused")
    answer, _ = seen(variant, awake)
    do(post(awake.endpoint.base_url, "/resume", timeout_s=5.0))
    assert answer is Answer.BROKEN
    assert seen(variant, awake) == (Answer.READY, None)


# --- proofs -----------------------------------------------------------------------------------------------------------


def test_a_warm_up_returns_the_same_answer_twice(variant: Variant, live: Running) -> None:
    engine: object = variant.engine
    if not isinstance(engine, WarmsUp):
        pytest.skip("it needs no warm-up")
    golden = do(engine.warm_up(live.endpoint, CALL_S))
    assert golden
    assert do(engine.warm_up(live.endpoint, CALL_S)) == golden


def test_a_healthy_engine_says_the_same_after_each_wake(variant: Variant, sleeper: CanSleep, awake: Running) -> None:
    engine: object = variant.engine
    if not isinstance(engine, WarmsUp):
        pytest.skip("it needs no warm-up")
    endpoint = replace(awake.endpoint, golden=do(engine.warm_up(awake.endpoint, CALL_S)))
    for level in variant.engine.levels(variant.spec):
        do(sleeper.sleep(endpoint, level, CALL_S))
        do(sleeper.wake(endpoint, level, CALL_S))


def test_an_embedder_is_compared_too(variant: Variant, sleeper: CanSleep, tmp_path: Path) -> None:
    engine: object = variant.engine
    if not isinstance(engine, WarmsUp):
        pytest.skip("it needs no warm-up")
    with variant.start(tmp_path, variant.embedder) as running:
        until_ready(variant, running)
        golden = do(engine.warm_up(running.endpoint, CALL_S))
        assert golden
        level = variant.engine.levels(variant.embedder)[-1]
        do(sleeper.sleep(running.endpoint, level, CALL_S))
        do(sleeper.wake(replace(running.endpoint, golden=golden), level, CALL_S))


def test_nonsense_after_a_wake_is_refused(variant: Variant, sleeper: CanSleep, tmp_path: Path) -> None:
    engine: object = variant.engine
    if variant.forgetful is None or not isinstance(engine, WarmsUp):
        pytest.skip("it forgets nothing")
    with variant.start(tmp_path, variant.forgetful) as running:
        until_ready(variant, running)
        endpoint = replace(running.endpoint, golden=do(engine.warm_up(running.endpoint, CALL_S)))
        do(sleeper.sleep(endpoint, 1, CALL_S))
        do(sleeper.wake(endpoint, 1, CALL_S))
        do(sleeper.sleep(endpoint, 2, CALL_S))
        with pytest.raises(Permanent) as caught:
            do(sleeper.wake(endpoint, 2, CALL_S))
    assert caught.value.code == Code.OUTPUT_WRONG
    assert caught.value.fix


def test_a_wake_that_finds_no_room_can_be_tried_again(variant: Variant, sleeper: CanSleep, tmp_path: Path) -> None:
    if variant.no_room is None:
        pytest.skip("there is always room for it")
    level = variant.engine.levels(variant.spec)[0]
    with variant.start(tmp_path, variant.no_room) as running:
        until_ready(variant, running)
        do(sleeper.sleep(running.endpoint, level, CALL_S))
        with pytest.raises(HotseatError) as caught:
            do(sleeper.wake(running.endpoint, level, CALL_S))
        assert isinstance(caught.value, Temporary)
        assert caught.value.code in (Code.DEVICE_OOM, Code.WAKE_FAILED)
        assert "out of memory" in caught.value.message
        assert seen(variant, running)[0] is Answer.ASLEEP
        do(sleeper.wake(running.endpoint, level, CALL_S))
        assert seen(variant, running) == (Answer.READY, None)
        ask(running, "/v1/completions", prompt="a", max_tokens=2)
