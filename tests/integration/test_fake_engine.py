"""The fake engine does what its knobs say: what other tests build on has to be true itself."""

import asyncio
import base64
import json
import os
import signal
import socket
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from adapters.engines.http import CallFailed, get, post
from scheduler.domain.errors import Temporary
from scheduler.domain.reasons import Code
from scheduler.domain.units import MIB
from scheduler.ports.engine import Answer
from tests.conformance.conftest import until_ready
from tests.conformance.variants import ENDLESS, FAKE, NAME, Running, Stream, Variant, fake_variant, wait_until
from tests.support.behaviour import NEVER, Behaviour, Child, StartFailure
from tests.support.fake_adapter import FakeEngine, fake_spec, requests_seen, tell
from tests.support.fake_knobs import Knobs, Speech, knobs_from_json

T = TypeVar("T")
QUICK = Behaviour(start_s=0.02, listens_early=True, awake_bytes=8 * MIB, residue_bytes={1: 2 * MIB}, sleep_s=0.01, wake_s=0.01)


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def with_knobs(knobs: Knobs) -> Variant:
    return replace(fake_variant(), spec=fake_spec(NAME, knobs))


def behaving(**changes: Any) -> Variant:
    return with_knobs(Knobs(behaviour=replace(QUICK, **changes)))


def complete(running: Running, **body: object) -> Any:
    return do(post(running.endpoint.base_url, "/v1/completions", {"model": NAME, "prompt": "a", **body}, timeout_s=10))


def children_of(running: Running) -> list[int]:
    return list(do(get(running.endpoint.base_url, "/admin/state", timeout_s=5)).json()["children"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_knobs_survive_the_journey() -> None:
    failure = StartFailure(code=Code.DEVICE_OOM, exit_code=3)
    behaviour = replace(QUICK, start_failures=(failure,), fails_always=failure, children=(Child(share=0.5),), term_s=NEVER)
    knobs = Knobs(behaviour=behaviour, speech=Speech(tokens=3), says="hello ${x} $y")
    assert knobs_from_json(knobs.to_json()) == knobs
    assert knobs_from_json("{}") == Knobs()


def test_it_is_ready_soon_and_holds_what_it_says(tmp_path: Path) -> None:
    variant = behaving(awake_bytes=64 * MIB, residue_bytes={1: 8 * MIB})
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        assert 64 * MIB < running.pss_bytes() < 64 * MIB + 24 * MIB


def test_it_fails_its_first_starts_and_then_works(tmp_path: Path) -> None:
    failures = (StartFailure(code=Code.DEVICE_OOM, after_s=0.01, exit_code=3, text="CUDA out of memory"),)
    variant = with_knobs(Knobs(behaviour=replace(QUICK, start_failures=failures), starts_file=str(tmp_path / "starts")))
    with variant.start(tmp_path) as running:
        reason = variant.engine.explain_exit(running.ended(), running.tail())
        assert (reason.code, reason.text, running.process.returncode) == (Code.DEVICE_OOM, "CUDA out of memory", 3)
    with variant.start(tmp_path) as running:
        until_ready(variant, running)


def test_it_can_stay_unready_and_listen_late(tmp_path: Path) -> None:
    variant = behaving(start_s=NEVER)
    with variant.start(tmp_path) as running:
        wait_until("starting", lambda: do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.STARTING)
    variant = behaving(listens_early=False, start_s=0.1)
    with variant.start(tmp_path) as running:
        assert until_ready(variant, running) <= {Answer.REFUSED, Answer.READY}


def test_it_remembers_what_it_was_asked_byte_for_byte(tmp_path: Path) -> None:
    variant = behaving()
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        complete(running, user="naïve")
        (entry,) = do(requests_seen(running.endpoint.base_url))
    sent = json.dumps({"model": NAME, "prompt": "a", "user": "naïve"}).encode()
    assert base64.b64decode(str(entry["body"])) == sent
    assert (entry["method"], entry["path"], entry["outcome"]) == ("POST", "/v1/completions", "done")


def test_it_loses_connections_and_answers_errors(tmp_path: Path) -> None:
    variant = behaving()
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        do(tell(running.endpoint.base_url, cuts_before_first_byte=1))
        with pytest.raises(CallFailed):
            complete(running)
        assert complete(running).status == 200
        do(tell(running.endpoint.base_url, error_status=429, errors=1))
        assert [complete(running).status, complete(running).status] == [429, 200]
        do(tell(running.endpoint.base_url, cut_after_chunks=2))
        with pytest.raises(CallFailed):
            complete(running, stream=True)
        do(tell(running.endpoint.base_url, cut_after_chunks=None, hold=True))
        with pytest.raises(CallFailed) as caught:
            do(post(running.endpoint.base_url, "/v1/completions", {"model": NAME}, timeout_s=0.1))
        assert caught.value.kind is Answer.SILENT
        outcomes = [entry["outcome"] for entry in do(requests_seen(running.endpoint.base_url))]
        assert outcomes == ["cut", "done", "done", "done", "cut", "client_gone"]


@pytest.mark.parametrize("speech", [{"die_before_first_byte": True}, {"die_after_chunks": 2}])
def test_it_dies_while_it_answers(tmp_path: Path, speech: dict[str, object]) -> None:
    variant = behaving()
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        do(tell(running.endpoint.base_url, **speech))
        with pytest.raises(CallFailed):
            complete(running, stream=True)
        assert running.ended().code == 9


def test_it_notices_a_client_that_goes_away(tmp_path: Path) -> None:
    variant = with_knobs(ENDLESS)
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        with Stream(running):
            pass
        wait_until("gone", lambda: do(requests_seen(running.endpoint.base_url))[0]["outcome"] == "client_gone")


def test_told_to_end_it_can_pass_off_a_cut_answer_as_whole(tmp_path: Path) -> None:
    variant = with_knobs(replace(ENDLESS, speech=replace(ENDLESS.speech, abort_on_term=True)))
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        with Stream(running) as stream:
            running.process.terminate()
            seen = stream.rest()
        assert b'"finish_reason": "abort"' in seen
        assert b"data: [DONE]" in seen
        assert running.ended().code == 0


def test_it_can_ignore_term_and_leave_children_behind(tmp_path: Path) -> None:
    variant = behaving(term_s=NEVER, children=(Child(outlives=True, ignores_term=True, share=0.5), Child()))
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        stubborn, obedient = children_of(running)
        assert os.getsid(stubborn) == running.process.pid
        running.process.send_signal(signal.SIGTERM)
        wait_until("TERM is told", lambda: any("TERM" in line for line in running.tail()))
        assert do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.READY
        running.process.kill()
        running.ended()
        wait_until("the other child ends with its parent", lambda: not alive(obedient))
        os.kill(stubborn, signal.SIGTERM)
        assert alive(stubborn)
        os.kill(stubborn, signal.SIGKILL)
        wait_until("killed", lambda: not alive(stubborn))


def test_a_child_can_leave_the_session_and_lose_its_token(tmp_path: Path) -> None:
    knobs = Knobs(
        behaviour=replace(QUICK, children=(Child(outlives=True, keeps_token=False),)), child_session=True, erases_environment=True
    )
    variant = with_knobs(knobs)
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        (child,) = children_of(running)
        try:
            assert os.getsid(child) == child
            assert b"FAKE_ENGINE" not in Path(f"/proc/{child}/environ").read_bytes()
            assert b"FAKE_ENGINE" not in Path(f"/proc/{running.process.pid}/environ").read_bytes()
        finally:
            os.kill(child, signal.SIGKILL)


def test_sleep_can_lie_fail_and_hang(tmp_path: Path) -> None:
    engine = FakeEngine()
    variant = behaving(awake_bytes=32 * MIB, sleep_errors=1, sleep_hangs=1, sleep_frees_nothing=True, sleep_says_level=2, wake_errors=1)
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        before = running.pss_bytes()
        with pytest.raises(Temporary, match="500"):
            do(engine.sleep(running.endpoint, 1, 5.0))
        with pytest.raises(Temporary, match="no reply"):
            do(engine.sleep(running.endpoint, 1, 0.1))
        assert do(engine.sleep(running.endpoint, 1, 5.0)) == 2
        assert running.pss_bytes() > before - MIB
        with pytest.raises(Temporary, match="out of memory"):
            do(engine.wake(running.endpoint, 1, 5.0))
        do(engine.wake(running.endpoint, 1, 5.0))
        assert do(engine.probe(running.endpoint, 5.0)).answer is Answer.READY


def test_requests_to_a_sleeper_are_held_and_not_counted_as_running(tmp_path: Path) -> None:
    engine = FakeEngine()
    variant = with_knobs(Knobs(behaviour=QUICK))
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        do(engine.sleep(running.endpoint, 1, 5.0))
        with pytest.raises(CallFailed):
            do(post(running.endpoint.base_url, "/v1/completions", {"model": NAME}, timeout_s=0.1))

        async def ask_and_wake() -> int:
            asking = asyncio.create_task(post(running.endpoint.base_url, "/v1/completions", {"model": NAME}, timeout_s=10))
            while await engine.running(running.endpoint, 5.0) != 1:
                await asyncio.sleep(0.01)
            await engine.wake(running.endpoint, 1, 5.0)
            return (await asking).status

        assert do(ask_and_wake()) == 200


def test_it_can_be_a_stranger_silent_or_gone_from_its_port(tmp_path: Path) -> None:
    variant = with_knobs(replace(FAKE, stranger=True))
    with variant.start(tmp_path) as running:
        wait_until("it answers", lambda: do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.BROKEN)
        assert do(get(running.endpoint.base_url, "/health", timeout_s=5)).status == 200
    variant = behaving()
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        do(post(running.endpoint.base_url, "/admin/do?what=silent", timeout_s=5))
        assert do(variant.engine.probe(running.endpoint, 0.1)).answer is Answer.SILENT
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        do(post(running.endpoint.base_url, "/admin/do?what=refuse", timeout_s=5))
        wait_until("refused", lambda: do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.REFUSED)
        assert running.process.poll() is None
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        with pytest.raises(CallFailed):
            do(post(running.endpoint.base_url, "/admin/do?what=crash", timeout_s=5))
        assert running.ended().signal == signal.SIGSEGV


def test_keep_alive_and_chunked_bodies(tmp_path: Path) -> None:
    variant = behaving()
    with variant.start(tmp_path) as running:
        until_ready(variant, running)
        port = int(running.endpoint.base_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            body = json.dumps({"model": NAME}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:])) + b"0\r\n\r\n"
            for request in (head + b"Content-Length: %d\r\n\r\n" % len(body) + body, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks):
                sock.sendall(request)
                reply = b""
                while b'"usage"' not in reply:
                    reply += sock.recv(65536)
                assert reply.startswith(b"HTTP/1.1 200")
