"""The fake vLLM with other flags, as other versions, and in trouble."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.http import CallFailed
from scheduler.domain.units import MIB
from tests.conformance.variants import wait_until
from tests.support.behaviour import Behaviour
from tests.support.fake_admin import DEATH_STATUS
from tests.support.fake_knobs import Speech
from tests.support.vllm_knobs import HEALTHY, VllmKnobs
from tests.support.vllm_process import MODEL, NAME, Call, VllmProcess, fake_vllm, run_to_end, stream

SLEEPY = "--enable-sleep-mode"


def behaving(**changes: Any) -> VllmKnobs:
    return VllmKnobs(behaviour=replace(HEALTHY, **changes))


# --- other flags, other versions --------------------------------------------------------------------------------------


def test_without_dev_mode_there_are_no_such_paths(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, VLLM_SERVER_DEV_MODE="0") as running:
        assert [running.post(path).status for path in ("/sleep", "/wake_up", "/pause", "/collective_rpc")] == [404] * 4
        assert running.get("/is_sleeping").status == 404


def test_a_key_guards_what_begins_with_v1(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, VLLM_API_KEY="secret") as running:
        refused = running.get("/v1/models")
        assert (refused.status, refused.json()) == (401, {"error": "Unauthorized"})
        assert running.get("/is_sleeping").status == 200


def test_without_sleep_mode_it_says_that_it_sleeps(tmp_path: Path) -> None:
    with fake_vllm(tmp_path) as running:
        before = running.complete()["text"]
        assert running.said("/sleep?level=2") == {"status": "sleeping", "level": 2}
        running.said("/wake_up")
        assert running.complete()["text"] == before  # the weights were never gone


def test_a_vllm_for_the_cpu_has_no_sleep_mode(tmp_path: Path) -> None:
    ended = run_to_end("serve", MODEL, SLEEPY, CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 1
    assert "Sleep mode is not supported on current platform" in ended.stderr


def test_some_do_not_start_with_sleep_mode(tmp_path: Path) -> None:
    knobs = VllmKnobs(sleep_mode_breaks_start=True)
    with fake_vllm(tmp_path, SLEEPY, knobs=knobs, ready=False) as running:
        assert running.ended() == 1
        assert "illegal instruction" in running.lines()
    with fake_vllm(tmp_path, knobs=knobs) as running:
        assert running.complete()["text"]


def test_an_embedder_answers_vectors_and_nothing_else(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, "--runner", "pooling") as running:

        def vectors() -> list[list[float]]:
            data = running.said("/v1/embeddings", {"model": NAME, "input": ["a", "b"]})["data"]
            return [each["embedding"] for each in data]

        before = vectors()
        assert before[0] != before[1]
        assert vectors() == before
        running.said("/sleep?level=2")
        running.said("/wake_up")
        assert vectors() != before
        assert running.post("/v1/completions", {"model": NAME, "prompt": "a"}).status == 404


def test_more_tokens_than_its_context_are_refused(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, "--max-model-len", "64") as running:
        reply = running.post("/v1/completions", {"model": NAME, "prompt": "a", "max_tokens": 64})
        assert (reply.status, reply.json()["error"]["param"]) == (400, "max_tokens")
        assert running.complete(max_tokens=8)["finish_reason"] == "length"


def test_old_versions_answer_nothing(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=VllmKnobs(engine_version="0.22.0", old_metric_names=True)) as running:
        assert running.get("/version").json() == {"version": "0.22.0"}
        for path in ("/sleep?level=1", "/wake_up", "/reset_prefix_cache"):
            assert (running.post(path).status, running.post(path).body) == (200, b"")
        assert running.post("/release_kv_cache_memory").status == 404
        running.said("/pause")
        call = Call(running, "/v1/completions", {"model": NAME, "prompt": "a"})
        wait_until("it waits", lambda: running.get("/load").json() == {"server_load": 1})  # and is not refused
        running.said("/resume")
        assert call.rest().startswith(b"HTTP/1.1 200")
        metrics = running.get("/metrics").text()
        assert "vllm:gpu_cache_usage_perc" in metrics
        assert "engine_sleep_state" not in metrics


@pytest.mark.parametrize(("version", "path"), [("0.11.0", ""), ("0.22.0", "/wake_up?tags=weights")])
def test_old_versions_die_of_requests_at_the_wrong_time(tmp_path: Path, version: str, path: str) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=VllmKnobs(engine_version=version)) as running:
        running.post("/sleep?level=1")
        if path:
            running.post(path)
        with pytest.raises(CallFailed):
            running.post("/v1/completions", {"model": NAME, "prompt": "a"})
        assert running.ended() == 1
        assert "illegal memory access" in running.lines()


# --- troubles ---------------------------------------------------------------------------------------------------------


def test_a_resumed_sleeper_dies_of_the_next_request(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY) as running:
        running.said("/sleep")
        running.said("/resume")
        assert (running.get("/is_sleeping").json(), running.get("/is_paused").json()) == ({"is_sleeping": True}, {"is_paused": False})
        with pytest.raises(CallFailed):
            running.complete()
        assert running.ended() == 1


def test_the_first_generation_is_answered_500_and_then_it_ends(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=behaving(first_generation_fails=True)) as running:
        running.said("/sleep?level=2")
        running.said("/wake_up")
        assert running.get("/health").status == 200
        reply = running.post("/v1/completions", {"model": NAME, "prompt": "a"})
        assert (reply.status, reply.json()["error"]["type"]) == (500, "InternalServerError")
        assert running.ended() == 1


def test_wedged_after_a_wake(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=behaving(wedged_after_wake=True)) as running:
        assert running.complete()["text"]
        running.said("/sleep")
        running.said("/wake_up")
        assert running.get("/health").status == 200
        with pytest.raises(CallFailed) as caught:
            running.post("/v1/completions", {"model": NAME, "prompt": "a"}, timeout_s=0.2)
        assert caught.value.kind.value == "silent"


@pytest.mark.parametrize(
    ("args", "knobs", "words"),
    [
        (("--load-format", "runai_streamer"), HEALTHY, "Model reloading with `runai_streamer` format"),
        ((), replace(HEALTHY, reload_error="size mismatch"), "size mismatch"),
    ],
)
def test_a_reload_that_fails(tmp_path: Path, args: tuple[str, ...], knobs: Behaviour, words: str) -> None:
    with fake_vllm(tmp_path, SLEEPY, *args, knobs=VllmKnobs(behaviour=knobs)) as running:
        running.said("/sleep?level=2")
        running.said("/wake_up?tags=weights")
        reply = running.post("/collective_rpc", {"method": "reload_weights"})
        assert (reply.status, reply.json()["error"]["message"]) == (500, f"Call to collective_rpc method failed: {words}")


def test_wakes_that_fail_and_knobs_that_are_turned_while_it_runs(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY) as running:
        running.turn(wake_errors=1000)
        running.said("/sleep")
        for _ in range(2):
            reply = running.post("/wake_up")
            assert reply.status == 500
            assert reply.json()["error"]["message"].startswith("Call to wake_up method failed: CUDA Error: out of memory")
            assert running.get("/is_sleeping").json() == {"is_sleeping": True}
        running.turn(wake_errors=0)
        assert running.said("/wake_up")["status"] == "awake"


def test_three_wakes_at_once_are_all_answered(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, SLEEPY, knobs=behaving(wake_s=0.2)) as running:
        running.said("/sleep")
        calls = [Call(running, "/wake_up") for _ in range(3)]
        assert [b'"status": "awake"' in call.rest() for call in calls] == [True] * 3


def test_real_memory_is_given_back_where_there_are_no_cards(tmp_path: Path) -> None:
    def resident(running: VllmProcess) -> int:
        text = Path(f"/proc/{running.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS:"))

    with fake_vllm(tmp_path, SLEEPY, knobs=behaving(awake_bytes=64 * MIB, host_bytes={1: 10 * MIB})) as running:
        awake = resident(running)
        running.said("/sleep")
        assert resident(running) < awake - 40 * MIB
        running.said("/wake_up")
        assert resident(running) > awake + 8 * MIB  # the copy on the host stays


def test_it_dies_of_kill_and_its_workers_see_it(tmp_path: Path) -> None:
    with fake_vllm(tmp_path) as running:
        workers = running.workers()
        running.process.send_signal(signal.SIGKILL)
        assert running.ended() == -signal.SIGKILL
        wait_until("its workers are gone", lambda: not any(alive(pid) for pid in workers))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_fails_cuts_and_dies_as_it_is_told(tmp_path: Path) -> None:
    with fake_vllm(tmp_path, knobs=VllmKnobs(speech=Speech(error_status=503, errors=1, cuts_before_first_byte=1))) as running:
        with pytest.raises(CallFailed):
            running.complete()
        assert running.post("/v1/completions", {"model": NAME, "prompt": "a"}).status == 503
        assert running.complete()["text"]
        running.said("/admin/speech", {"cut_after_chunks": 2})
        cut = stream(running, 5).rest()
        assert (cut.count(b"data: {"), b"[DONE]" in cut) == (2, False)
        running.said("/admin/speech", {"hold": True})
        with pytest.raises(CallFailed) as caught:
            running.post("/v1/completions", {"model": NAME, "prompt": "a"}, timeout_s=0.1)
        assert caught.value.kind.value == "silent"
        running.said("/admin/speech", {"hold": False, "cut_after_chunks": None, "die_after_chunks": 1})
        assert stream(running, 5).rest().count(b"data: {") == 1
        assert running.ended() == DEATH_STATUS


@pytest.mark.parametrize("body", [[], {"model": NAME}, {"model": NAME, "prompt": "a", "max_tokens": "many"}, "text"])
def test_bodies_that_make_no_sense(tmp_path: Path, body: object) -> None:
    with fake_vllm(tmp_path) as running:
        assert running.post("/v1/completions", body).status in (400, 404)
        assert running.complete()["text"]
