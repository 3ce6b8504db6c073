"""The fake vLLM process answers as the real one was seen to: what other tests build on has to be true itself."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.http import CallFailed
from tests.conformance.variants import wait_until
from tests.support.behaviour import NEVER
from tests.support.fake_adapter import requests_seen
from tests.support.fake_knobs import Speech
from tests.support.vllm_knobs import HEALTHY, VllmKnobs, knobs_from_env
from tests.support.vllm_process import MODEL, NAME, Call, VllmProcess, fake_vllm, finish_of, run_to_end, stream

SLEEPY = "--enable-sleep-mode"
SLOW = Speech(tokens=1000, token_s=0.02)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcess]:
    """One that is healthy; each test leaves it awake."""
    with fake_vllm(tmp_path_factory.mktemp("vllm"), SLEEPY) as running:
        yield running


def behaving(**changes: Any) -> VllmKnobs:
    return VllmKnobs(behaviour=replace(HEALTHY, **changes))


# --- command line, start, end -----------------------------------------------------------------------------------------


def test_flags_that_it_does_not_know_are_refused_as_argparse_does() -> None:
    unknown = run_to_end("serve", MODEL, "--no-such-flag", "3")
    assert (unknown.returncode, unknown.stderr.splitlines()[-1]) == (2, "vllm: error: unrecognized arguments: --no-such-flag 3")
    wrong = run_to_end("serve", MODEL, "--port", "x")
    assert (wrong.returncode, wrong.stderr.splitlines()[-1]) == (2, "vllm serve: error: argument --port: invalid int value: 'x'")
    assert run_to_end("--version").stdout == "0.33.0\n"


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    ended = run_to_end("serve", str(tmp_path))
    assert ended.returncode == 1
    assert f"Invalid repository ID or local directory specified: '{tmp_path}'" in ended.stderr


def test_knobs_survive_the_journey(tmp_path: Path) -> None:
    knobs = VllmKnobs(behaviour=replace(HEALTHY, garbage_levels=(2,), term_s=NEVER), engine_version="0.20.1", speech=Speech(tokens=3))
    assert knobs_from_env(knobs.env()) == knobs
    file = tmp_path / "knobs.json"
    file.write_text('{"behaviour": {"wake_s": 7}}', encoding="utf-8")
    assert knobs_from_env({"FAKE_VLLM_KNOBS": str(file)}) == VllmKnobs(behaviour=replace(HEALTHY, wake_s=7))
    assert knobs_from_env({}) == VllmKnobs()


def test_the_port_is_refused_until_it_is_ready(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, knobs=behaving(start_s=NEVER), ready=False) as running:
        wait_until("it loads", lambda: "API server version" in running.lines())
        with pytest.raises(CallFailed) as caught:
            running.get("/health")
        assert caught.value.kind.value == "refused"


def test_a_port_that_is_taken(tmp_path: Path, live: VllmProcess) -> None:
    ended = run_to_end("serve", MODEL, "--host", "127.0.0.1", "--port", str(live.port))
    assert ended.returncode == 1
    assert "[Errno 98]" in ended.stderr


@pytest.mark.parametrize(("knobs", "words"), [({"code": "device_oom"}, "CUDA out of memory"), ({"code": "kv_too_small"}, "cache blocks")])
def test_starts_that_fail_say_it_in_its_own_words(tmp_path: Path, knobs: dict[str, str], words: str) -> None:
    env = {"FAKE_VLLM_KNOBS": json.dumps({"behaviour": {"fails_always": {**knobs, "after_s": 0.0}}})}
    ended = run_to_end("serve", MODEL, "--host", "127.0.0.1", "--port", "0", **env)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "See root cause above" in ended.stderr


def test_term_aborts_what_is_under_way_and_ends_with_0(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, knobs=VllmKnobs(speech=SLOW)) as running:
        call = stream(running).until(b"data:")
        running.process.terminate()
        answer = call.rest()
        assert finish_of(answer) == "abort"
        assert b"[DONE]" in answer
        assert running.ended() == 0


def test_term_lets_requests_finish_for_as_long_as_it_was_told(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, "--shutdown-timeout", "30", knobs=VllmKnobs(speech=SLOW)) as running:
        call = stream(running, 20).until(b"data:")
        running.process.terminate()
        assert finish_of(call.rest()) == "length"
        assert running.ended() == 0


def test_term_while_a_request_waits_in_a_sleeper(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, "--shutdown-timeout", "0.2") as running:
        running.said("/sleep")
        call = Call(running, "/v1/completions", {"model": NAME, "prompt": "a"})
        wait_until("it waits", lambda: running.get("/load").json() == {"server_load": 1})
        running.process.terminate()
        assert b"EngineCore encountered an issue" in call.rest()
        assert running.ended() == 0


# --- what it is asked -------------------------------------------------------------------------------------------------


def test_it_says_who_it_is(live: VllmProcess) -> None:
    assert (live.get("/health").status, live.get("/health").body) == (200, b"")
    assert live.get("/version").json() == {"version": "0.33.0"}
    assert live.get("/load").json() == {"server_load": 0}
    (model,) = live.get("/v1/models").json()["data"]
    assert (model["id"], model["root"], model["owned_by"]) == (NAME, MODEL, "vllm")


def test_errors_have_its_shapes(live: VllmProcess) -> None:
    unknown = live.post("/v1/completions", {"model": "x", "prompt": "a"})
    assert (unknown.status, unknown.json()["error"]["type"], unknown.json()["error"]["param"]) == (404, "NotFoundError", "model")
    level = live.post("/sleep?level=3")
    assert (level.status, level.json()["error"]["type"], level.json()["error"]["param"]) == (400, "Bad Request", "query.level")
    assert live.post("/sleep?mode=slowly").json()["error"]["param"] == "query.mode"
    assert (live.get("/sleep").status, live.get("/nowhere").json()) == (405, {"detail": "Not Found"})
    rpc = live.post("/collective_rpc", {"method": "dance"})
    assert (rpc.status, rpc.json()["error"]["type"]) == (500, "InternalServerError")
    assert live.post("/collective_rpc", {}).status == 400
    assert live.post("/release_kv_cache_memory").json()["error"]["message"].endswith("requires a completed pause first")
    assert live.post("/v1/embeddings", {"model": NAME, "input": "a"}).status == 404


def test_its_answers_depend_on_the_prompt_alone(live: VllmProcess) -> None:
    first = live.complete()
    assert first == live.complete()
    assert first["finish_reason"] == "length"
    assert first["text"] != live.complete(prompt="1 2 4")["text"]
    assert live.complete(max_tokens=100)["finish_reason"] == "stop"
    assert live.complete(max_tokens=100, ignore_eos=True)["finish_reason"] == "length"


def test_sleep_and_wake_say_what_vllm_says(live: VllmProcess) -> None:
    for level in (1, 2):
        assert live.said(f"/sleep?level={level}&mode=wait") == {"status": "sleeping", "level": level}
        assert live.get("/is_sleeping").json() == {"is_sleeping": True}
        assert (live.get("/health").status, live.get("/v1/models").status) == (200, 200)
        assert live.said("/sleep?level=1") == {"status": "sleeping", "level": 1}  # nothing happened
        assert live.state()["level"] == level
        assert live.said("/wake_up?tags=weights") == {"status": "sleeping", "tags": ["weights"]}
        assert live.said("/wake_up?tags=kv_cache&tags=typo") == {"status": "sleeping", "tags": ["kv_cache", "typo"]}
        assert live.said("/collective_rpc", {"method": "reload_weights"}) == {"results": [None]}
        assert live.said("/wake_up?tags=kv_cache") == {"status": "awake", "tags": ["kv_cache"]}
        assert live.said("/reset_prefix_cache") == {"success": True}
        assert live.said("/wake_up") == {"status": "awake", "tags": None}


def test_a_level_in_the_body_is_not_read(live: VllmProcess) -> None:
    assert live.said("/sleep", {"level": 2}) == {"status": "sleeping", "level": 1}
    live.said("/wake_up")


def test_level_2_speaks_nonsense_until_its_weights_are_read_again(live: VllmProcess) -> None:
    before = live.complete()["text"]
    live.said("/sleep?level=2")
    assert live.said("/wake_up")["status"] == "awake"
    assert live.complete()["text"] == "!!!!"
    live.said("/collective_rpc", {"method": "reload_weights"})
    assert live.complete()["text"] == before


def test_a_request_waits_in_a_sleeper_and_is_answered_after_its_wake(live: VllmProcess) -> None:
    live.said("/sleep")
    whole = Call(live, "/v1/completions", {"model": NAME, "prompt": "a"})
    streaming = stream(live, 3).until(b"\r\n\r\n")
    gone = Call(live, "/v1/completions", {"model": NAME, "prompt": "a"})
    wait_until("all wait", lambda: live.get("/load").json() == {"server_load": 3})
    gone.close()
    wait_until("one is gone", lambda: live.get("/load").json() == {"server_load": 2})
    assert whole.is_silent()
    assert streaming.seen.startswith(b"HTTP/1.1 200")
    assert b"data:" not in streaming.seen
    assert "num_requests_waiting{" in (metrics := live.get("/metrics").text())
    assert 'num_requests_waiting{engine="0",model_name="tiny"} 0' in metrics  # its gauges stand still
    assert live.said("/wake_up?tags=weights")["status"] == "sleeping"
    assert whole.is_silent()
    live.said("/wake_up")
    assert whole.rest().startswith(b"HTTP/1.1 200")
    assert finish_of(streaming.rest()) == "length"


def test_paused_is_not_asleep_but_says_so(live: VllmProcess) -> None:
    assert live.said("/pause") == {"status": "paused"}
    assert (live.get("/is_paused").json(), live.get("/is_sleeping").json()) == ({"is_paused": True}, {"is_sleeping": True})
    refused = live.post("/v1/completions", {"model": NAME, "prompt": "a"})
    assert (refused.status, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")
    assert refused.json()["error"]["message"] == "Generation is paused. Please retry after it resumes."
    assert live.said("/resume") == {"status": "resumed"}
    assert live.get("/is_sleeping").json() == {"is_sleeping": False}
    live.said("/pause?mode=keep")
    assert live.said("/release_kv_cache_memory") == {"status": "kv_cache_released"}
    assert live.said("/wake_up?tags=kv_cache") == {"status": "awake", "tags": ["kv_cache"]}
    assert live.said("/sleep?level=0") == {"status": "sleeping", "level": 0}
    assert 'sleep_state="awake"} 0.0' in live.get("/metrics").text()
    assert live.said("/wake_up?tags=scheduling") == {"status": "awake", "tags": ["scheduling"]}


def test_the_metric_shows_the_level_that_was_asked_for_last(live: VllmProcess) -> None:
    live.said("/sleep?level=1")
    assert 'sleep_state="weights_offloaded"} 1.0' in live.get("/metrics").text()
    live.said("/sleep?level=2")
    assert 'sleep_state="discard_all"} 1.0' in live.get("/metrics").text()
    live.said("/wake_up")
    assert live.complete()["text"] != "!!!!"
    assert 'sleep_state="awake"} 1.0' in live.get("/metrics").text()


def test_what_it_was_asked_can_be_looked_up(live: VllmProcess) -> None:
    before_s = time.monotonic()
    live.complete(prompt="remember")
    after_s = time.monotonic()
    stream(live, tokens=2).rest()
    *_, whole, streamed = asyncio.run(requests_seen(live.url))
    assert (whole["method"], whole["path"], whole["outcome"]) == ("POST", "/v1/completions", "done")
    assert before_s < whole["arrived_s"] < whole["answered_s"] < after_s < streamed["arrived_s"] < streamed["answered_s"]


# --- modes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[VllmProcess]:
    """One whose streams last."""
    with fake_vllm(tmp_path, SLEEPY, knobs=VllmKnobs(speech=SLOW)) as running:
        yield running


def test_abort_ends_them_with_200(talking: VllmProcess) -> None:
    streaming = stream(talking).until(b"data:")
    whole = Call(talking, "/v1/completions", {"model": NAME, "prompt": "a", "max_tokens": 1000})
    wait_until("both run", lambda: 'requests_running{engine="0",model_name="tiny"} 2' in talking.get("/metrics").text())
    assert talking.said("/sleep?level=1")["status"] == "sleeping"
    for call in (streaming, whole):
        answer = call.rest()
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"finish_reason": "abort"' in answer
    assert b"[DONE]" in streaming.seen


def test_wait_lets_them_end_and_takes_nothing_new(talking: VllmProcess) -> None:
    inside = stream(talking, 25).until(b"data:")
    sleeping = Call(talking, "/sleep?level=1&mode=wait")
    wait_until("it pauses", lambda: talking.get("/is_paused").json() == {"is_paused": True})
    late = stream(talking, 2).until(b"\r\n\r\n")
    assert sleeping.is_silent()
    assert finish_of(inside.rest()) == "length"
    assert b'"status": "sleeping"' in sleeping.rest()
    assert b"data:" not in late.seen
    talking.said("/wake_up")
    assert finish_of(late.rest()) == "length"


def test_wait_and_then_abort(talking: VllmProcess) -> None:
    inside = stream(talking).until(b"data:")
    waiting = Call(talking, "/sleep?level=1&mode=wait")
    wait_until("it pauses", lambda: talking.get("/is_paused").json() == {"is_paused": True})
    waiting.close()  # its caller's patience is over
    assert talking.said("/sleep?level=1&mode=abort") == {"status": "sleeping", "level": 1}
    assert finish_of(inside.rest()) == "abort"


def test_keep_freezes_them_until_the_wake(talking: VllmProcess) -> None:
    inside = stream(talking, 50).until(b"data:")
    talking.said("/sleep?level=1&mode=keep")
    assert 'requests_running{engine="0",model_name="tiny"} 1' in talking.get("/metrics").text()
    assert talking.said("/reset_prefix_cache") == {"success": False}
    talking.said("/wake_up")
    assert finish_of(inside.rest()) == "length"
    assert inside.seen.count(b'"text": " ') == 50


def test_requests_can_be_aborted_without_a_pause(talking: VllmProcess) -> None:
    inside = stream(talking).until(b"data:")
    assert talking.said("/abort_requests", {"request_ids": ["x"]}) == {"status": "aborted", "aborted": 1}
    assert talking.said("/abort_requests", {}) == {"status": "aborted", "aborted": 1}
    assert finish_of(inside.rest()) == "abort"
    assert talking.get("/is_paused").json() == {"is_paused": False}
