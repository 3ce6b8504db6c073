"""What a look at a running vLLM finds: who it is, whether it is ready, asleep, or must be fenced. Nothing it does wakes it."""

import json
import math

import pytest

from adapters.engines.vllm import Vllm
from adapters.engines.vllm_golden import VECTOR_LENGTH, is_same, shown, way_of
from scheduler.domain.errors import Permanent, Temporary
from scheduler.domain.reasons import Code
from scheduler.ports.engine import Answer, CanSleep, CountsRequests, Endpoint, Engine, Probe, WarmsUp
from tests.support.vllm_script import MODEL, WEIGHTS_OFFLOADED, Says, Script, asleep, error, metrics, playing, ready, text, vector

NOT_FOUND = Says({"detail": "Not Found"}, 404)


async def found(script: Script, version: str = "", timeout_s: float = 5) -> Probe:
    async with playing(script, version) as endpoint:
        seen = await Vllm().probe(endpoint, timeout_s)
    assert script.posts == []  # a look never wakes
    return seen


def test_it_has_all_abilities() -> None:
    engine: Engine = Vllm()
    assert isinstance(engine, CanSleep)
    assert isinstance(engine, WarmsUp)
    assert isinstance(engine, CountsRequests)
    assert (engine.name, engine.device_kinds) == ("vllm", ("nvidia", "cpu"))


# --- probe ------------------------------------------------------------------------------------------------------------


async def test_ready() -> None:
    assert await found(ready("0.32.0")) == Probe(answer=Answer.READY, version="0.32.0")


async def test_the_version_is_asked_once() -> None:
    script = ready("0.32.0")
    assert (await found(script, "0.31.0")).version == "0.31.0"
    assert "GET /version" not in script.calls


@pytest.mark.parametrize("level", [1, 2])
async def test_asleep(level: int) -> None:
    assert await found(asleep(level)) == Probe(answer=Answer.ASLEEP, level=level, version="0.32.0")


@pytest.mark.parametrize("page", [Says("", 404), "nothing of it", Says("oops", 500)])
async def test_a_sleeper_without_metrics_tells_no_level(page: object) -> None:
    assert await found(asleep().on("GET /metrics", page)) == Probe(answer=Answer.ASLEEP, version="0.32.0")


async def test_a_stranger_does_not_pass() -> None:
    for data in ([{"id": "other"}], [], [7], "x", None):
        seen = await found(ready().on("GET /v1/models", {"data": data}))
        assert seen.answer is Answer.BROKEN, data
        assert seen.detail


async def test_an_alias_among_others_does() -> None:
    assert (await found(ready().on("GET /v1/models", {"data": [{"id": "lora"}, {"id": MODEL}]}))).answer is Answer.READY


async def test_a_key_that_is_not_taken_is_named() -> None:
    seen = await found(ready().on("GET /v1/models", Says({"error": "Unauthorized"}, 401)))
    assert seen.answer is Answer.BROKEN
    assert "key" in seen.detail


@pytest.mark.parametrize(("status", "word"), [(503, "died"), (500, "500"), (404, "404")])
async def test_health_speaks_first(status: int, word: str) -> None:
    seen = await found(ready().on("GET /health", Says("", status)))
    assert seen.answer is Answer.BROKEN
    assert word in seen.detail


async def test_a_ready_path_of_the_operators() -> None:
    script = ready().on("GET /ping", "")
    async with playing(script) as endpoint:
        other = Endpoint(base_url=endpoint.base_url, served_model=MODEL, ready_path="/ping")
        assert (await Vllm().probe(other, 5)).answer is Answer.READY
    assert script.calls[0] == "GET /ping"


async def test_one_that_was_resumed_in_its_sleep_is_fenced() -> None:
    seen = await found(asleep().on("GET /is_paused", {"is_paused": False}))
    assert seen.answer is Answer.BROKEN
    assert "/resume" in seen.detail


async def test_a_wake_that_ends_between_two_questions_is_no_danger() -> None:
    script = asleep().on("GET /is_sleeping", {"is_sleeping": True}, {"is_sleeping": False}).on("GET /is_paused", {"is_paused": False})
    assert (await found(script)).answer is Answer.READY


async def test_a_sleep_that_begins_between_two_questions_is_no_danger() -> None:
    script = asleep().on("GET /is_paused", {"is_paused": False}, {"is_paused": True})
    assert await found(script) == Probe(answer=Answer.ASLEEP, level=1, version="0.32.0")


async def test_before_0_17_a_sleeper_was_never_paused() -> None:
    script = asleep(1, "0.16.0").on("GET /is_paused", {"is_paused": False})
    assert await found(script) == Probe(answer=Answer.ASLEEP, level=1, version="0.16.0")
    assert await found(script.on("GET /metrics", metrics(""))) == Probe(answer=Answer.ASLEEP, version="0.16.0")
    seen = await found(ready("0.16.0").on("GET /is_paused", {"is_paused": True}))
    assert seen.answer is Answer.BROKEN
    assert (await found(ready("0.11.0").on("GET /is_paused", NOT_FOUND))).answer is Answer.READY


@pytest.mark.parametrize("page", [metrics("awake"), metrics("")])
async def test_one_that_is_only_paused_is_neither_asleep_nor_ready(page: str) -> None:
    """Its memory is not freed, so it must not count as a sleeper; and it answers nobody."""
    seen = await found(asleep().on("GET /metrics", page))
    assert seen.answer is Answer.BROKEN
    assert "paused" in seen.detail


async def test_without_dev_mode_it_is_ready_and_says_what_is_missing() -> None:
    script = ready().on("GET /is_sleeping", NOT_FOUND).on("GET /is_paused", NOT_FOUND)
    seen = await found(script)
    assert seen.answer is Answer.READY
    assert "VLLM_SERVER_DEV_MODE" in seen.detail


@pytest.mark.parametrize("answer", [error("Engines returned different is_sleeping results"), {"is_sleeping": "yes"}, "<html>", []])
async def test_an_answer_that_is_neither_yes_nor_no(answer: object) -> None:
    assert (await found(ready().on("GET /is_sleeping", answer))).answer is Answer.BROKEN


@pytest.mark.parametrize("call", ["GET /health", "GET /v1/models", "GET /version", "GET /is_sleeping"])
async def test_silence_anywhere_is_silence(call: str) -> None:
    assert (await found(ready().on(call, Says(silent=True)), timeout_s=0.2)).answer is Answer.SILENT


async def test_nobody_listens_while_it_loads() -> None:
    async with playing(ready()) as endpoint:
        pass
    assert (await Vllm().probe(endpoint, 5)).answer is Answer.REFUSED


async def test_an_address_of_another_host_is_refused_without_a_call() -> None:
    seen = await Vllm().probe(Endpoint(base_url="http://192.0.2.1:80", served_model=MODEL), 5)
    assert seen.answer is Answer.BROKEN


async def test_no_answer_of_a_stranger_makes_it_raise() -> None:
    for body in ("", "{}", "[]", "null", '{"data": [{"id": null}]}', '{"is_sleeping": {}}', "\x00"):
        script = ready()
        for call in list(script.answers):
            script.on(call, body)
        assert (await found(script)).answer is Answer.BROKEN


# --- counting ---------------------------------------------------------------------------------------------------------


async def count(script: Script) -> int | None:
    async with playing(script) as endpoint:
        return await Vllm().running(endpoint, 5)


async def test_running_and_waiting_are_counted_over_all_engines() -> None:
    page = metrics("awake", running=2.0, waiting=1.0)
    assert await count(ready().on("GET /metrics", page)) == 3
    assert await count(ready().on("GET /metrics", page + page.replace('engine="0"', 'engine="1"'))) == 6
    assert await count(ready().on("GET /metrics", metrics("awake", 2.0, 1.0, prefix="vllm_"))) == 3


async def test_a_sleepers_gauges_stand_still() -> None:
    assert await count(asleep().on("GET /metrics", metrics(WEIGHTS_OFFLOADED))) is None


@pytest.mark.parametrize("answer", [Says("", 404), Says("", 500), "", metrics("awake", running="NaN"), "vllm:num_requests_running 1.0"])
async def test_what_is_no_count(answer: object) -> None:
    assert await count(ready().on("GET /metrics", answer)) is None


async def test_an_engine_without_dev_mode_counts_as_well() -> None:
    assert await count(ready().on("GET /is_sleeping", NOT_FOUND)) == 0


# --- warm-up and golden answers ---------------------------------------------------------------------------------------


async def warmed(script: Script, timeout_s: float = 5) -> str:
    async with playing(script) as endpoint:
        return await Vllm().warm_up(endpoint, timeout_s)


async def test_the_second_of_two_equal_answers_is_kept() -> None:
    script = ready().on("POST /v1/completions", text(" 8 9 10"))
    assert json.loads(await warmed(script)) == {"completion": " 8 9 10"}
    assert script.posts == ["/v1/completions", "/v1/completions"]
    asked = json.loads(script.bodies["POST /v1/completions"])
    assert asked == {
        "model": MODEL,
        "prompt": "1 2 3 4 5 6 7",
        "max_tokens": 8,
        "temperature": 0,
        "seed": 0,
        "ignore_eos": True,
        "stream": False,
    }
    assert len(asked["prompt"]) < 16  # bytes, so tokens too: less than a block, which no prefix cache keeps


async def test_answers_that_differ_are_nothing_to_compare_with() -> None:
    assert await warmed(ready().on("POST /v1/completions", text(" 8 9 10"), text(" 8 9 11"))) == ""


async def test_a_pooling_model_is_asked_for_a_vector() -> None:
    numbers = [math.sin(place) for place in range(1000)]
    script = ready().on("POST /v1/completions", NOT_FOUND).on("POST /v1/embeddings", vector(*numbers))
    kept = await warmed(script)
    assert len(json.loads(kept)["embedding"]) == VECTOR_LENGTH
    assert script.posts == ["/v1/completions", "/v1/embeddings", "/v1/embeddings"]
    assert json.loads(script.bodies["POST /v1/embeddings"]) == {"model": MODEL, "input": "1 2 3 4 5 6 7"}


@pytest.mark.parametrize("status", [400, 404, 405, 422, 501])
async def test_a_model_that_can_be_asked_in_no_way(status: int) -> None:
    script = ready().on("POST /v1/completions", error("no", status)).on("POST /v1/embeddings", error("no", status))
    assert await warmed(script) == ""
    assert script.posts == ["/v1/completions", "/v1/embeddings"]


@pytest.mark.parametrize("answer", [error("EngineCore encountered an issue."), Says("", 503), Says(silent=True), text("x", "abort")])
async def test_one_that_does_not_answer_is_not_warm(answer: object) -> None:
    with pytest.raises(Temporary) as caught:
        await warmed(ready().on("POST /v1/completions", answer), timeout_s=0.3)
    assert caught.value.code == Code.ENGINE_LOST


@pytest.mark.parametrize("answer", ["", "[]", {"choices": []}, {"choices": [7]}, {"choices": [{"text": None}]}, {"choices": "x"}])
async def test_a_200_without_text_is_nothing_that_can_be_used(answer: object) -> None:
    with pytest.raises(Permanent) as caught:
        await warmed(ready().on("POST /v1/completions", answer))
    assert caught.value.code == Code.OUTPUT_WRONG


@pytest.mark.parametrize("answer", [{"data": []}, {"data": [{}]}, {"data": [{"embedding": "AAAA"}]}, {"data": [{"embedding": []}]}])
async def test_a_200_without_numbers_neither(answer: object) -> None:
    with pytest.raises(Permanent) as caught:
        await warmed(ready().on("POST /v1/completions", NOT_FOUND).on("POST /v1/embeddings", answer))
    assert caught.value.code == Code.OUTPUT_WRONG


async def test_an_embedding_is_compared_by_its_direction() -> None:
    golden = json.dumps({"embedding": [1.0, 2.0, 3.0]})
    for numbers, same in (((1.001, 2.0, 3.0), True), ((2.0, 4.0, 6.0), True), ((3.0, 2.0, 1.0), False), ((0.0, 0.0, 0.0), False)):
        script = asleep().on("POST /wake_up", {"status": "awake"}).on("POST /reset_prefix_cache", {"success": True})
        script.on("POST /v1/embeddings", vector(*numbers))
        async with playing(script, golden=golden) as endpoint:
            if same:
                await Vllm().wake(endpoint, 1, 5)
            else:
                with pytest.raises(Permanent) as caught:
                    await Vllm().wake(endpoint, 1, 5)
                assert caught.value.code == Code.OUTPUT_WRONG
        assert "/v1/completions" not in script.posts


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"completion": ""}', '{"completion": ""}', True),
        ('{"completion": "a"}', '{"completion": "b"}', False),
        ('{"completion": "a"}', '{"embedding": [1]}', False),
        ('{"embedding": [1]}', '{"completion": "a"}', False),
        ('{"embedding": [1, 2]}', '{"embedding": [1]}', False),
        ('{"embedding": [0]}', '{"embedding": [0]}', False),
        ('{"embedding": [1]}', '{"embedding": [NaN]}', False),
        ("", "", False),
        ("{}", "{}", False),
    ],
)
def test_same_or_not(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) is same


def test_what_is_stored_may_be_anything() -> None:
    assert [way_of(text) for text in ("", "{}", "[1]", "x", '{"other": 1}')] == [None] * 5
    assert len(shown('{"completion": "%s"}' % ("x" * 500))) == 60


async def test_a_golden_answer_that_cannot_be_read_is_none() -> None:
    script = asleep().on("POST /wake_up", {"status": "awake"})
    async with playing(script, golden="from another adapter") as endpoint:
        await Vllm().wake(endpoint, 1, 5)
    assert json.loads(script.bodies["POST /v1/completions"])["max_tokens"] == 1
