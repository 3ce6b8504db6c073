"""The llama.cpp server of the wheel behind our launcher, as a process: signals, environments, folders, keys."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from adapters.engines.http import get
from adapters.engines.llamacpp import LlamaCpp, xllamacpp_command
from scheduler.domain.reasons import Code
from scheduler.ports.engine import Answer, Endpoint, LaunchPlan, Probe
from scheduler.ports.launcher import ExitInfo
from tests.conformance.conftest import until_ready
from tests.conformance.variants import DEVICE, Stream, Variant, free_port, llamacpp_variant, wait_until
from tests.support.gguf_files import tiny_model

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.real_llamacpp

T = TypeVar("T")


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    return llamacpp_variant("xllamacpp", xllamacpp_command(), tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf"), tiny=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_also_with_a_stream_under_way(variant: Variant, tmp_path: Path, number: signal.Signals) -> None:
    with variant.start(tmp_path, variant.endless) as running:
        until_ready(variant, running)
        with Stream(running) as stream:
            running.process.send_signal(number)
            assert running.ended(5.0).code == 0
            assert b"[DONE]" not in stream.rest()


def test_term_while_loading_ends_it(variant: Variant, tmp_path: Path) -> None:
    spec = replace(variant.spec, args=("-c", "4000000", "-np", "1", "-t", "1"))  # a KV cache of 1 GiB takes its time
    with variant.start(tmp_path, spec) as running:
        wait_until("loading", lambda: do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.STARTING)
        running.process.terminate()
        ended = running.ended(5.0)
    assert ended.signal == signal.SIGTERM or ended.code == 0


def test_nothing_of_the_environment_or_the_folder_decides_what_runs(variant: Variant, tmp_path: Path) -> None:
    for name in ("adapters", "scheduler", "xllamacpp"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    line = variant.engine.command(replace(variant.spec, args=("-c", "256")), LaunchPlan(port=free_port(), devices=(DEVICE,)))
    env = {"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "xllamacpp.py"), "PYTHONHOME": "/no/such"}
    argv = [word if word != str(variant.spec.model) else "/no/such.gguf" for word in line.argv]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "/no/such.gguf" in done.stderr
    assert LlamaCpp().explain_exit(ExitInfo(code=1), done.stderr.splitlines()).code is Code.MODEL_MISSING


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("cut", Code.MODEL_UNREADABLE),
        ("not_gguf", Code.MODEL_UNREADABLE),
        ("architecture", Code.UNSUPPORTED_ARCHITECTURE),
        ("memory", Code.HOST_OOM),
        ("value", Code.UNKNOWN_FLAG),
    ],
)
def test_faults_are_explained_from_what_it_really_says(variant: Variant, tmp_path: Path, fault: str, code: Code) -> None:
    """The logs in tests/data/llamacpp are from the same version; this notices when another one speaks differently."""
    good = Path(variant.spec.model).read_bytes()
    model = tmp_path / "model.gguf"
    args: tuple[str, ...] = ("-c", "256", "-np", "1", "-t", "1", "--threads-http", "2")
    limit = "unlimited"
    model.write_bytes({"cut": good[:-50_000], "not_gguf": b"GGML" + good[4:]}.get(fault, good))
    if fault == "architecture":
        tiny_model(model, architecture="nonesuch")
    elif fault == "memory":
        args, limit = ("-c", "9000000", *args[2:]), "900000"  # KV of 2.2 GiB in 0.9 GiB of address space
    elif fault == "value":
        args = (*args, "-ctk", "q99")
    line = variant.engine.command(replace(variant.spec, model=str(model), args=args), LaunchPlan(port=free_port(), devices=(DEVICE,)))
    shell = ["/bin/sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh", *line.argv]
    done = subprocess.run(shell, env=dict(line.env), capture_output=True, text=True, timeout=50)
    reason = LlamaCpp().explain_exit(ExitInfo(code=done.returncode), done.stderr.splitlines())
    assert reason.code is code
    assert reason.log_line in done.stderr
    assert reason.fix


def test_a_key_is_asked_for_and_given(variant: Variant, tmp_path: Path) -> None:
    port = free_port()
    line = variant.engine.command(variant.spec, LaunchPlan(port=port, devices=(DEVICE,), api_key="k3y"))
    process = subprocess.Popen(line.argv, env={**os.environ, **line.env}, stderr=subprocess.DEVNULL)
    try:
        right = Endpoint(base_url=f"http://127.0.0.1:{port}", served_model=variant.spec.name, api_key="k3y")
        engine = LlamaCpp()

        def probe(endpoint: Endpoint) -> Probe:
            return do(engine.probe(endpoint, 5.0))

        wait_until("ready", lambda: probe(right).answer is Answer.READY)
        assert do(engine.running(right, 5.0)) == 0
        wrong = replace(right, api_key="")
        assert probe(wrong).answer is Answer.BROKEN
        assert do(engine.running(wrong, 5.0)) is None
        assert b"k3y" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    finally:
        process.kill()
        process.wait()


def test_its_own_idle_timer_is_seen_as_sleep_and_probes_do_not_wake_it(variant: Variant, tmp_path: Path) -> None:
    words = (
        *xllamacpp_command(),
        "-m",
        "${model}",
        "--port",
        "${port}",
        "-a",
        "${name}",
        "--metrics",
        "--sleep-idle-seconds",
        "1",
        "-t",
        "1",
    )
    spec = replace(variant.spec, command=words, args=("-c", "262144", "-np", "1"))
    with variant.start(tmp_path, spec) as running:
        until_ready(variant, running)
        awake = running.pss_bytes()
        found = Probe(answer=Answer.READY)

        def asleep() -> bool:
            nonlocal found
            found = do(variant.engine.probe(running.endpoint, 5.0))
            return found.answer is Answer.ASLEEP

        wait_until("asleep", asleep)
        assert found.level == 2
        wait_until("memory is given back", lambda: running.pss_bytes() < awake // 2)
        for _ in range(3):
            assert do(LlamaCpp().running(running.endpoint, 5.0)) == 0
            assert do(variant.engine.probe(running.endpoint, 5.0)).answer is Answer.ASLEEP
            assert do(get(running.endpoint.base_url, "/v1/models", timeout_s=5.0)).status == 200
        assert running.pss_bytes() < awake // 2
