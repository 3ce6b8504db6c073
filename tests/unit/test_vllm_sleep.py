"""How vLLM is put to sleep and woken: which calls, in which order, with which query, and what their answers are worth."""

import json

import pytest

from adapters.engines import vllm_sleep
from adapters.engines.vllm import Vllm
from scheduler.domain.errors import HotseatError, Permanent, Temporary
from scheduler.domain.reasons import Code
from tests.support.vllm_script import DISCARD_ALL, MODEL, WEIGHTS_OFFLOADED, Says, Script, asleep, error, metrics, playing, ready, text

WAIT_1 = "POST /sleep?level=1&mode=wait"
WAIT_2 = "POST /sleep?level=2&mode=wait"
ABORT_1 = "POST /sleep?level=1&mode=abort"
SLEEPING = [{"is_sleeping": False}, {"is_sleeping": True}]
GOLDEN = json.dumps({"completion": " 8 9 10"})


def falls_asleep(level: int = 1, version: str = "0.32.0") -> Script:
    script = ready(version).on("GET /is_sleeping", *SLEEPING)
    return script.on(f"POST /sleep?level={level}&mode=wait", {"status": "sleeping", "level": level})


def wakes(level: int = 1) -> Script:
    script = asleep(level)
    if level == 1:
        return script.on("POST /wake_up", {"status": "awake", "tags": None})
    script.on("POST /wake_up?tags=weights", {"status": "sleeping", "tags": ["weights"]})
    script.on("POST /collective_rpc", {"results": [None]})
    script.on("POST /wake_up?tags=kv_cache", {"status": "awake", "tags": ["kv_cache"]})
    return script.on("POST /reset_prefix_cache", {"success": True})


async def fails(
    script: Script, *, wake: bool, level: int = 1, version: str = "0.32.0", golden: str = "", timeout_s: float = 10
) -> HotseatError:
    async with playing(script, version, golden) as endpoint:
        work = Vllm().wake(endpoint, level, timeout_s) if wake else Vllm().sleep(endpoint, level, timeout_s)
        with pytest.raises(HotseatError) as caught:
            await work
    return caught.value


# --- sleep ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
async def test_the_level_goes_into_the_query_and_nothing_into_the_body(level: int) -> None:
    script = falls_asleep(level)
    async with playing(script, key="hs_key") as endpoint:
        assert await Vllm().sleep(endpoint, level, 10) == level
    call = f"POST /sleep?level={level}&mode=wait"
    assert script.calls == ["GET /is_sleeping", call, "GET /is_sleeping"]
    assert script.bodies[call] == b""
    assert script.keys == {"Bearer hs_key"}


async def test_what_the_engine_says_it_reached_counts() -> None:
    script = falls_asleep(2).on(WAIT_2, {"status": "sleeping", "level": 1})
    async with playing(script) as endpoint:
        assert await Vllm().sleep(endpoint, 2, 10) == 1


async def test_requests_that_do_not_finish_are_aborted_after_a_share_of_the_time() -> None:
    script = falls_asleep().on(WAIT_1, Says(silent=True)).on(ABORT_1, {"status": "sleeping", "level": 1})
    async with playing(script) as endpoint:
        assert await Vllm().sleep(endpoint, 1, 0.5) == 1
    assert script.posts == ["/sleep?level=1&mode=wait", "/sleep?level=1&mode=abort"]


async def test_a_sleep_that_never_returns_is_a_failure_in_time() -> None:
    script = falls_asleep().on(WAIT_1, Says(silent=True)).on(ABORT_1, Says(silent=True))
    failed = await fails(script, wake=False, timeout_s=0.3)
    assert (type(failed), failed.code) == (Temporary, Code.SLEEP_FAILED)
    assert "0.3 s" in failed.message


async def test_an_error_is_told_in_the_engines_words_and_nothing_is_resumed() -> None:
    script = falls_asleep().on(WAIT_1, error("Failed to reset the KV connector cache."))
    failed = await fails(script, wake=False)
    assert (type(failed), failed.code) == (Temporary, Code.SLEEP_FAILED)
    assert "500: Failed to reset the KV connector cache." in failed.message
    assert script.posts == ["/sleep?level=1&mode=wait"]


async def test_a_200_is_not_believed_when_it_does_not_sleep() -> None:
    script = falls_asleep().on("GET /is_sleeping", {"is_sleeping": False})
    failed = await fails(script, wake=False)
    assert failed.code == Code.SLEEP_FAILED
    assert "/is_sleeping" in failed.message


@pytest.mark.parametrize("body", [{"status": "sleeping"}, {"status": "sleeping", "level": True}, "", "<html>", [1]])
async def test_an_answer_without_a_level_is_none(body: object) -> None:
    failed = await fails(falls_asleep().on(WAIT_1, body), wake=False)
    assert failed.code == Code.SLEEP_FAILED
    assert "level" in failed.message


async def test_without_dev_mode_it_cannot_sleep() -> None:
    script = ready()
    del script.answers["GET /is_sleeping"]
    failed = await fails(script, wake=False)
    assert (type(failed), failed.code) == (Permanent, Code.SLEEP_UNSUPPORTED)
    assert "VLLM_SERVER_DEV_MODE" in failed.message
    assert failed.fix
    assert script.posts == []


async def test_to_sleep_once_more_does_no_harm_and_asks_nothing_of_the_engine() -> None:
    script = asleep(1)
    async with playing(script) as endpoint:
        assert await Vllm().sleep(endpoint, 1, 10) == 1
    assert script.posts == []


@pytest.mark.parametrize(("there", "asked"), [(1, 2), (2, 1)])
async def test_a_sleeper_gets_to_no_other_level(there: int, asked: int) -> None:
    """A second /sleep answers 200 with the level asked for, and does nothing."""
    script = asleep(there).on(f"POST /sleep?level={asked}&mode=wait", {"status": "sleeping", "level": asked})
    failed = await fails(script, wake=False, level=asked)
    assert failed.code == Code.SLEEP_FAILED
    assert f"at level {there} already" in failed.message
    assert script.posts == []


async def test_one_that_is_only_paused_by_an_earlier_try_is_put_to_sleep() -> None:
    script = falls_asleep().on("GET /is_sleeping", {"is_sleeping": True}).on("GET /is_paused", {"is_paused": True})
    async with playing(script) as endpoint:
        assert await Vllm().sleep(endpoint, 1, 10) == 1
    assert script.posts == ["/sleep?level=1&mode=wait"]


async def test_a_sleeper_that_tells_no_level_is_not_taken_for_the_right_one() -> None:
    failed = await fails(asleep(1).on("GET /metrics", Says("", 404)), wake=False)
    assert failed.code == Code.SLEEP_FAILED
    assert "does not tell" in failed.message


async def test_nobody_there() -> None:
    async with playing(ready()) as endpoint:
        pass
    for work in (Vllm().sleep(endpoint, 1, 5), Vllm().wake(endpoint, 1, 5)):
        with pytest.raises(Temporary) as caught:
            await work
        assert caught.value.code in (Code.SLEEP_FAILED, Code.WAKE_FAILED)
        assert "nobody listens" in caught.value.message


# --- sleep of older versions ------------------------------------------------------------------------------------------


async def test_up_to_0_31_the_answer_is_empty_and_counts() -> None:
    script = falls_asleep(version="0.31.0").on(WAIT_1, "")
    async with playing(script, "0.31.0") as endpoint:
        assert await Vllm().sleep(endpoint, 1, 10) == 1


async def test_before_modes_it_is_put_to_sleep_only_when_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_sleep, "POLL_S", 0.001)
    script = ready("0.16.0").on("GET /is_sleeping", *[{"is_sleeping": False}] * 3, {"is_sleeping": True})
    script.on("GET /metrics", metrics("", running=2.0), metrics("", running=0.0)).on("POST /sleep?level=1", "")
    async with playing(script, "0.16.0") as endpoint:
        assert await Vllm().sleep(endpoint, 1, 10) == 1
    assert script.posts == ["/sleep?level=1"]
    assert script.calls.count("GET /metrics") == 2


async def test_before_modes_a_request_that_goes_on_forbids_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_sleep, "POLL_S", 0.001)
    script = ready("0.16.0").on("GET /metrics", metrics("", running=3.0)).on("POST /sleep?level=1", "")
    failed = await fails(script, wake=False, version="0.16.0", timeout_s=0.3)
    assert failed.code == Code.SLEEP_FAILED
    assert "3 requests still run" in failed.message
    assert script.posts == []


async def test_an_engine_that_cannot_reload_is_not_put_to_level_2() -> None:
    script = ready("0.10.1").on("POST /sleep?level=2", "")
    failed = await fails(script, wake=False, level=2, version="0.10.1")
    assert (type(failed), failed.code) == (Permanent, Code.SLEEP_UNSUPPORTED)
    assert "0.10.1" in failed.message
    assert "levels: [1]" in failed.fix
    assert script.posts == []


# --- wake -------------------------------------------------------------------------------------------------------------


async def test_level_1_is_one_call_and_a_real_request() -> None:
    script = wakes(1)
    async with playing(script) as endpoint:
        await Vllm().wake(endpoint, 1, 10)
    assert script.calls == ["POST /wake_up", "POST /v1/completions"]
    assert script.bodies["POST /wake_up"] == b""
    asked = json.loads(script.bodies["POST /v1/completions"])
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == (MODEL, 1, 0)


async def test_level_2_in_order() -> None:
    script = wakes(2)
    async with playing(script) as endpoint:
        await Vllm().wake(endpoint, 2, 10)
    assert script.calls == [
        "POST /wake_up?tags=weights",
        "POST /collective_rpc",
        "POST /wake_up?tags=kv_cache",
        "POST /reset_prefix_cache",
        "POST /v1/completions",
    ]
    assert json.loads(script.bodies["POST /collective_rpc"]) == {"method": "reload_weights"}
    assert not any(script.bodies[call] for call in script.calls if "wake_up" in call or "reset" in call)


async def test_before_0_24_level_2_wakes_everything_at_once_since_weights_alone_let_requests_run() -> None:
    script = asleep(2, "0.23.0").on("POST /wake_up", "").on("POST /collective_rpc", {"results": [None]}).on("POST /reset_prefix_cache", "")
    script.on("GET /is_sleeping", {"is_sleeping": False})
    async with playing(script, "0.23.0") as endpoint:
        await Vllm().wake(endpoint, 2, 10)
    assert script.posts == ["/wake_up", "/collective_rpc", "/reset_prefix_cache", "/v1/completions"]


async def test_an_older_engine_that_says_nothing_is_asked_whether_it_woke() -> None:
    script = asleep(1, "0.30.0").on("POST /wake_up", "")
    failed = await fails(script, wake=True, version="0.30.0")
    assert failed.code == Code.WAKE_FAILED
    assert "still sleeps" in failed.message


@pytest.mark.parametrize(
    ("level", "call", "answer"),
    [
        (1, "POST /wake_up", {"status": "sleeping", "tags": None}),
        (1, "POST /wake_up", "no JSON"),
        (1, "POST /wake_up", error("'list' object has no attribute 'zero_'")),
        (2, "POST /wake_up?tags=weights", {"status": "snoring"}),
        (2, "POST /wake_up?tags=kv_cache", {"status": "sleeping", "tags": ["kv_cache"]}),
        (2, "POST /collective_rpc", error("Call to collective_rpc method failed: KeyError")),
        (2, "POST /reset_prefix_cache", error("no")),
    ],
)
async def test_each_answer_of_a_wake_is_checked(level: int, call: str, answer: object) -> None:
    script = wakes(level).on(call, answer)
    failed = await fails(script, wake=True, level=level)
    assert (type(failed), failed.code) == (Temporary, Code.WAKE_FAILED)
    assert script.posts[-1] == call.removeprefix("POST ")  # nothing after what failed


@pytest.mark.parametrize("call", ["POST /wake_up?tags=weights", "POST /collective_rpc", "POST /wake_up?tags=kv_cache"])
@pytest.mark.parametrize(
    "said", ["Call to wake_up method failed: CUDA Error: out of memory at cumem_allocator.cpp:163", "CUDA_ERROR_OUT_OF_MEMORY"]
)
async def test_no_room_is_told_apart(call: str, said: str) -> None:
    script = wakes(2).on(call, error(said))
    failed = await fails(script, wake=True, level=2)
    assert (type(failed), failed.code) == (Temporary, Code.DEVICE_OOM)
    assert said in failed.message
    assert script.posts[-1] == call.removeprefix("POST ")


async def test_a_loader_that_cannot_reload_names_the_remedy() -> None:
    script = wakes(2).on("POST /collective_rpc", error("Model reloading with `dummy` format"))
    failed = await fails(script, wake=True, level=2)
    assert failed.code == Code.WAKE_FAILED
    assert "levels: [1]" in failed.fix


async def test_a_wake_repeated_after_a_half_one_is_taken_up_where_it_stands() -> None:
    """Weights are back from the first try: the engine does nothing for that tag, and says that it still sleeps."""
    script = wakes(2).on("POST /wake_up?tags=kv_cache", error("CUDA Error: out of memory"), {"status": "awake", "tags": ["kv_cache"]})
    async with playing(script) as endpoint:
        with pytest.raises(Temporary):
            await Vllm().wake(endpoint, 2, 10)
        await Vllm().wake(endpoint, 2, 10)
    assert script.posts[-1] == "/v1/completions"


async def test_the_prefix_cache_is_reset_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_sleep, "POLL_S", 0.001)
    script = wakes(2).on("POST /reset_prefix_cache", {"success": False}, {"success": False}, {"success": True})
    async with playing(script) as endpoint:
        await Vllm().wake(endpoint, 2, 10)
    assert script.posts.count("/reset_prefix_cache") == 3


async def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_sleep, "POLL_S", 0.0001)
    failed = await fails(wakes(2).on("POST /reset_prefix_cache", {"success": False}), wake=True, level=2)
    assert failed.code == Code.WAKE_FAILED
    assert str(vllm_sleep.RESETS) in failed.message


# --- the proof --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [Says(silent=True), error("EngineCore encountered an issue."), Says("paused", 503), text("x", "abort")])
async def test_an_engine_that_answers_no_request_is_not_awake(answer: object) -> None:
    """Its /health answers 200 all the while."""
    failed = await fails(wakes(1).on("POST /v1/completions", answer), wake=True, timeout_s=0.5)
    assert (type(failed), failed.code) == (Temporary, Code.WAKE_FAILED)


async def test_a_wake_that_hangs_ends_in_time() -> None:
    failed = await fails(wakes(1).on("POST /wake_up", Says(silent=True)), wake=True, timeout_s=0.2)
    assert failed.code == Code.WAKE_FAILED


async def test_a_model_that_can_be_asked_in_no_way_is_believed() -> None:
    script = wakes(1).on("POST /v1/completions", Says({"detail": "Not Found"}, 404))
    async with playing(script) as endpoint:
        await Vllm().wake(endpoint, 1, 10)
    assert script.posts == ["/wake_up", "/v1/completions", "/v1/embeddings"]


async def test_the_golden_answer_is_compared() -> None:
    script = wakes(2).on("POST /v1/completions", text(" 8 9 10"))
    async with playing(script, golden=GOLDEN) as endpoint:
        await Vllm().wake(endpoint, 2, 10)
    assert script.posts.count("/v1/completions") == 1
    assert json.loads(script.bodies["POST /v1/completions"])["max_tokens"] == 8


async def test_another_answer_is_asked_for_once_more_after_the_cache_was_reset() -> None:
    script = wakes(1).on("POST /v1/completions", text("!!!!!!!!"), text(" 8 9 10")).on("POST /reset_prefix_cache", {"success": True})
    async with playing(script, golden=GOLDEN) as endpoint:
        await Vllm().wake(endpoint, 1, 10)
    assert script.posts == ["/wake_up", "/v1/completions", "/reset_prefix_cache", "/v1/completions"]


@pytest.mark.parametrize(("level", "fix"), [(1, "levels: []"), (2, "levels: [1]")])
async def test_an_answer_that_stays_another_one_must_not_serve(level: int, fix: str) -> None:
    script = wakes(level).on("POST /v1/completions", text("!!!!!!!!")).on("POST /reset_prefix_cache", {"success": True})
    failed = await fails(script, wake=True, level=level, golden=GOLDEN)
    assert (type(failed), failed.code) == (Permanent, Code.OUTPUT_WRONG)
    assert "'!!!!!!!!'" in failed.message
    assert "' 8 9 10'" in failed.message
    assert fix in failed.fix
    assert script.posts.count("/v1/completions") == 2


async def test_a_200_that_is_no_answer_must_not_serve_either() -> None:
    failed = await fails(wakes(1).on("POST /v1/completions", {"choices": []}), wake=True)
    assert (type(failed), failed.code) == (Permanent, Code.OUTPUT_WRONG)


async def test_states_are_told_apart_by_the_metric() -> None:
    for state, level in ((WEIGHTS_OFFLOADED, 1), (DISCARD_ALL, 2)):
        script = asleep().on("GET /metrics", metrics(state))
        async with playing(script) as endpoint:
            assert (await Vllm().probe(endpoint, 5)).level == level
