"""What every engine adapter has to do, on the fake engine and on real ones.

The real ones run a model of half a MiB with one thread: the wheel xllamacpp, and ``llama-server`` where it is on PATH.
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adapters.engines.demo_model import demo_model_path
from adapters.engines.http import post
from scheduler.domain.claims import Footprint
from scheduler.domain.errors import Permanent
from scheduler.domain.reasons import Code
from scheduler.ports.engine import Answer, CountsRequests, LaunchPlan
from tests.conformance.conftest import REAL, until_ready
from tests.conformance.variants import DEVICE, Running, Stream, Variant, ask, do, free_port, llamacpp_variant, programs, wait_until

# --- a running engine -------------------------------------------------------------------------------------------------


def test_the_command_line_is_complete_and_repeatable(variant: Variant) -> None:
    plan = LaunchPlan(port=9001, devices=(DEVICE,), device_index=(0,))
    line = variant.engine.command(variant.spec, plan)
    assert line == variant.engine.command(variant.spec, plan)
    assert os.path.isabs(line.argv[0])
    assert "9001" in line.argv
    assert not any(name.startswith("HOTSEAT_") for name in line.env)


def test_it_passes_its_own_preflight(variant: Variant) -> None:
    do(variant.engine.preflight(variant.spec))


def test_it_becomes_ready_and_says_who_it_is(variant: Variant, live: Running) -> None:
    found = do(variant.engine.probe(live.endpoint, 5.0))
    assert (found.answer, found.level) == (Answer.READY, None)
    if variant.knows_itself:
        assert found.version
        stranger = do(variant.engine.probe(replace(live.endpoint, served_model="somebody-else"), 5.0))
        assert stranger.answer is Answer.BROKEN
        assert stranger.detail


def test_it_serves_the_openai_api_under_the_name_it_was_given(live: Running) -> None:
    chat = ask(live, "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4, temperature=0).json()
    assert chat["model"] == live.endpoint.served_model
    assert chat["usage"]["completion_tokens"] == 4
    text = ask(live, "/v1/completions", prompt="a", max_tokens=3, temperature=0).json()
    assert text["usage"]["completion_tokens"] == 3


def test_it_streams(live: Running) -> None:
    reply = ask(live, "/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.text().rstrip().endswith("data: [DONE]")
    assert reply.text().count("data: {") >= 2


def test_another_models_name_is_refused_or_ignored(live: Running) -> None:
    body = {"model": "nobody", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    reply = do(post(live.endpoint.base_url, "/v1/chat/completions", body, timeout_s=30))
    assert reply.status in (200, 404)
    assert reply.status == 404 or reply.json()["model"] == live.endpoint.served_model


def test_it_counts_its_requests(variant: Variant, live: Running) -> None:
    engine: object = variant.engine
    if not isinstance(engine, CountsRequests):
        pytest.skip("it does not count")
    assert do(engine.running(live.endpoint, 5.0)) == 0
    with Stream(live), Stream(live):
        wait_until("two requests are counted", lambda: do(engine.running(live.endpoint, 5.0)) == 2)
    wait_until("they are gone when their clients are", lambda: do(engine.running(live.endpoint, 5.0)) == 0)
    assert do(engine.running(replace(live.endpoint, base_url=f"http://127.0.0.1:{free_port()}"), 1.0)) is None


def test_its_estimate_is_a_little_above_the_truth(variant: Variant, live: Running) -> None:
    ask(live, "/v1/completions", prompt="a b c " * 100, max_tokens=64, temperature=0)
    estimate: Footprint = do(variant.engine.estimate(variant.spec))
    assert live.pss_bytes() <= estimate.awake_bytes <= live.pss_bytes() * variant.estimate_factor
    assert estimate.start_peak_bytes >= estimate.awake_bytes


def test_embeddings(variant: Variant, tmp_path: Path) -> None:
    with variant.start(tmp_path, variant.embedder) as running:
        until_ready(variant, running)
        vectors = ask(running, "/v1/embeddings", input=["a", "b"]).json()["data"]
        assert [len(each["embedding"]) > 0 for each in vectors] == [True, True]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_from_refused_over_starting_to_ready(variant: Variant, tmp_path: Path) -> None:
    with variant.start(tmp_path) as running:
        assert until_ready(variant, running) <= {Answer.REFUSED, Answer.STARTING, Answer.SILENT, Answer.READY}


def test_term_ends_it(variant: Variant, tmp_path: Path) -> None:
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        running.process.terminate()
        ended = running.ended()
        # The wheel's launcher cannot take signals in the instant between "ready" and the end of its start: TERM ends it then, too.
        assert ended.code == 0 or ended.signal == signal.SIGTERM
    assert do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.REFUSED


def test_kill_in_the_middle_of_a_stream(variant: Variant, tmp_path: Path) -> None:
    with variant.start(tmp_path, variant.endless) as running:
        until_ready(variant, running)
        with Stream(running) as stream:
            os.kill(running.process.pid, signal.SIGKILL)
            assert b"[DONE]" not in stream.rest()
        reason = variant.engine.explain_exit(running.ended(), running.tail())
    assert reason.code is Code.CRASHED
    assert "9" in reason.text or "SIGKILL" in reason.text


def test_a_missing_model_is_found_before_and_explained_after(variant: Variant, tmp_path: Path) -> None:
    spec = variant.missing_model
    if spec is None:
        pytest.skip("it has no model file")
    with pytest.raises(Permanent) as caught:
        do(variant.engine.preflight(spec))
    assert caught.value.code == Code.MODEL_MISSING
    with variant.start(tmp_path, spec) as running:
        ended = running.ended()
        reason = variant.engine.explain_exit(ended, running.tail())
    assert ended.code
    assert reason.code is Code.MODEL_MISSING
    assert spec.model in reason.text
    assert spec.model in reason.log_line
    assert reason.fix


def test_an_unknown_flag_is_named(variant: Variant, tmp_path: Path) -> None:
    spec = variant.unknown_flag
    if spec is None:
        pytest.skip("its flags are the operator's")
    with variant.start(tmp_path, spec) as running:
        reason = variant.engine.explain_exit(running.ended(), running.tail())
    assert reason.code is Code.UNKNOWN_FLAG
    assert "--no-such-flag" in reason.text
    assert reason.log_line


def test_a_port_that_is_taken(variant: Variant, tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with variant.start(tmp_path, port=sock.getsockname()[1]) as running:
            reason = variant.engine.explain_exit(running.ended(), running.tail())
    assert reason.code is Code.PORT_TAKEN


# --- probes of what is no engine --------------------------------------------------------------------------------------


@contextmanager
def stranger(status: int, body: bytes) -> Iterator[str]:
    """Somebody who answers everything with the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("body", [b"", b'{"status": "ok"}', b"[]", b"<html>", b'{"model_alias": ["x"], "model": 7}', b"\xff\xfe"])
def test_a_stranger_that_answers_200_does_not_pass(variant: Variant, live: Running, body: bytes) -> None:
    with stranger(200, body) as url:
        found = do(variant.engine.probe(replace(live.endpoint, base_url=url), 5.0))
    assert found.answer is (Answer.BROKEN if variant.knows_itself else Answer.READY)  # then the owner of the port tells


def test_errors_silence_and_nobody(variant: Variant, live: Running) -> None:
    with stranger(500, b"oops") as url:
        assert do(variant.engine.probe(replace(live.endpoint, base_url=url), 5.0)).answer is Answer.BROKEN
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert do(variant.engine.probe(replace(live.endpoint, base_url=url), 0.1)).answer is Answer.SILENT
    assert do(variant.engine.probe(replace(live.endpoint, base_url=url), 5.0)).answer is Answer.REFUSED
    assert do(variant.engine.probe(replace(live.endpoint, base_url="http://192.0.2.1:80"), 5.0)).answer is Answer.BROKEN


# --- the demo's model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> Path:
    """The demo's model, from the packages of the extra."""
    try:
        return demo_model_path()
    except Permanent as error:
        pytest.skip(error.message)


@REAL
@pytest.mark.parametrize("program", programs())
def test_the_demos_model_holds_what_was_estimated_in_memory_of_its_own(program: str, demo: Path, tmp_path: Path) -> None:
    variant = llamacpp_variant(program, programs()[program], demo, tiny=False)
    spec = replace(variant.spec, args=("-c", "512", "-np", "1", "-t", "1"))
    estimate = do(variant.engine.estimate(spec))
    with variant.start(tmp_path, spec) as running:
        until_ready(variant, running)
        assert (
            ask(running, "/v1/completions", prompt=list(range(1000, 1480)), max_tokens=8, temperature=0).json()["usage"]["prompt_tokens"]
            == 480
        )
        held = running.pss_bytes()
        assert str(demo) not in Path(f"/proc/{running.process.pid}/maps").read_text(encoding="utf-8")  # weights are not mapped
    assert held <= estimate.awake_bytes <= held * 1.3  # 30 MiB of it are checkpoints, which come with conversations
    assert held > demo.stat().st_size
