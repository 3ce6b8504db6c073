"""Is the fake vLLM like the real one? Both are asked the same; only where ``HOTSEAT_VLLM_BIN`` names a real one."""

import os
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.http import Reply, get, post
from tests.conformance.conftest import VLLM, until_ready
from tests.conformance.variants import REAL_VLLM, Running, do, real_vllm_variant
from tests.support.vllm_knobs import VllmKnobs
from tests.support.vllm_process import fake_vllm

pytestmark = [*VLLM]

NAME = "org/small:1"
TEXT = {"model": NAME, "prompt": "a", "max_tokens": 2, "temperature": 0}
CHAT = {"model": NAME, "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "temperature": 0}
CALLS: tuple[tuple[str, str, object], ...] = (
    ("GET", "/health", None),
    ("GET", "/version", None),
    ("GET", "/load", None),
    ("GET", "/v1/models", None),
    ("GET", "/is_sleeping", None),
    ("GET", "/is_paused", None),
    ("POST", "/v1/completions", TEXT),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/completions", {**TEXT, "model": "nobody"}),
    ("POST", "/v1/completions", {**TEXT, "max_tokens": 1_000_000}),
    ("POST", "/v1/embeddings", {"model": NAME, "input": "a"}),
    ("GET", "/nowhere", None),
    ("GET", "/sleep", None),
    ("POST", "/sleep?level=3", None),
    ("POST", "/sleep?level=-1", None),
    ("POST", "/sleep?mode=slowly", None),
    ("POST", "/sleep", {"level": 2}),
    ("GET", "/is_sleeping", None),
    ("GET", "/is_paused", None),
    ("GET", "/health", None),
    ("POST", "/sleep?level=2&mode=wait", None),
    ("POST", "/wake_up?tags=typo", None),
    ("POST", "/wake_up?tags=weights&tags=typo", None),
    ("POST", "/wake_up?tags=weights", None),
    ("POST", "/wake_up?tags=weights", None),
    ("GET", "/is_sleeping", None),
    ("POST", "/collective_rpc", {"method": "reload_weights"}),
    ("POST", "/collective_rpc", {"method": "dance"}),
    ("POST", "/collective_rpc", {}),
    ("POST", "/collective_rpc", []),
    ("POST", "/wake_up?tags=kv_cache", None),
    ("POST", "/wake_up", None),
    ("POST", "/reset_prefix_cache", None),
    ("POST", "/sleep?level=0&mode=keep", None),
    ("GET", "/is_sleeping", None),
    ("POST", "/wake_up?tags=scheduling", None),
    ("GET", "/is_sleeping", None),
    ("POST", "/pause?mode=wait", None),
    ("GET", "/is_sleeping", None),
    ("POST", "/resume", None),
    ("POST", "/pause?mode=never", None),
    ("POST", "/release_kv_cache_memory", None),
    ("POST", "/abort_requests", {"request_ids": ["x"]}),
    ("POST", "/abort_requests", {}),
    ("POST", "/abort_requests", []),
    ("POST", "/v1/completions", TEXT),
)
#: Values that have to be the same; of all others only the kind.
EXACT = {"status", "level", "tags", "is_sleeping", "is_paused", "success", "results", "aborted", "type", "param", "code", "version"}
EXACT |= {"object", "server_load", "finish_reason", "detail", "completion_tokens", "owned_by", "parent", "max_model_len"}


def asked(base_url: str, method: str, path: str, body: object) -> Reply:
    return do(get(base_url, path, timeout_s=60.0) if method == "GET" else post(base_url, path, body, timeout_s=60.0))


def shape(value: Any, key: str = "") -> Any:
    """A reply without what differs from one engine to another."""
    if isinstance(value, dict):
        return {name: shape(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return value if key in EXACT else [shape(each) for each in value[:1]]
    return value if key in EXACT else type(value).__name__


def missing(fake: Any, real: Any, path: str = "") -> list[str]:
    """What the fake says that the real one does not, or says otherwise. The real one may say more."""
    if isinstance(fake, dict) and isinstance(real, dict):
        return [line for name, each in fake.items() for line in missing(each, real.get(name, "nothing"), f"{path}.{name}")]
    if isinstance(fake, list) and isinstance(real, list) and len(fake) == len(real):
        return [line for n, each in enumerate(fake) for line in missing(each, real[n], f"{path}[{n}]")]
    return [] if fake == real else [f"{path}: fake {fake!r}, real {real!r}"]


@pytest.fixture(scope="module")
def real(tiny_hf: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The real one."""
    variant = real_vllm_variant(os.environ[REAL_VLLM], tiny_hf)
    with variant.start(tmp_path_factory.mktemp("real")) as running:
        until_ready(variant, running)
        yield running


def test_the_fake_answers_as_the_real_one(real: Running, tmp_path: Path) -> None:
    said = asked(real.endpoint.base_url, "GET", "/version", None).json()["version"]
    flags = ["--served-model-name", NAME, "--max-model-len", "4096"]
    if Path("/dev/nvidiactl").exists():
        flags.append("--enable-sleep-mode")
    differences = []
    with fake_vllm(tmp_path, *flags, knobs=VllmKnobs(engine_version=said)) as fake:
        for method, path, body in CALLS:
            one, other = (asked(url, method, path, body) for url in (fake.url, real.endpoint.base_url))
            if one.status != other.status:
                differences.append(f"{method} {path} {body}: fake {one.status} {one.text()}, real {other.status} {other.text()}")
            differences += [f"{method} {path} {body} {line}" for line in missing(shape(one.json()), shape(other.json()))]
    assert differences == []


def names_in(text: str) -> set[str]:
    """Names of the metrics in Prometheus text."""
    return {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}


def test_its_metrics_have_the_real_ones_names(real: Running, tmp_path: Path) -> None:
    with fake_vllm(tmp_path) as fake:
        ours = names_in(fake.get("/metrics").text())
    assert ours - names_in(asked(real.endpoint.base_url, "GET", "/metrics", None).text()) == set()
