"""One running engine per variant for the tests that only ask, and a fresh one for those that end it."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.ports.engine import Answer
from tests.conformance.variants import (
    REAL_VLLM,
    Running,
    Variant,
    command_variant,
    fake_variant,
    fake_vllm_variant,
    llamacpp_variant,
    programs,
    real_vllm_variant,
    wait_until,
)
from tests.support.gguf_files import tiny_model
from tests.support.tiny_hf import tiny_folder

REAL = pytest.mark.real_llamacpp
#: Minutes on a machine without cards; never in continuous integration.
VLLM = (
    pytest.mark.slow,
    pytest.mark.skipif(REAL_VLLM not in os.environ, reason=f"set {REAL_VLLM} to a vllm executable to run this on a real vLLM"),
    pytest.mark.timeout(600),
)
NAMES = ["fake", "fake vllm", "command", *(pytest.param(name, marks=REAL) for name in programs()), pytest.param("real vllm", marks=VLLM)]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of half a MiB for the real engine."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that vLLM can load."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", params=NAMES)
def variant(request: pytest.FixtureRequest, tiny: Path, tiny_hf: Path) -> Variant:
    """Each engine type in turn."""
    if request.param == "fake":
        return fake_variant()
    if request.param == "fake vllm":
        return fake_vllm_variant(tiny_hf)
    if request.param == "real vllm":
        return real_vllm_variant(os.environ[REAL_VLLM], tiny_hf)
    if request.param == "command":
        return command_variant()
    return llamacpp_variant(request.param, programs()[request.param], tiny, tiny=True)


def until_ready(variant: Variant, running: Running) -> set[Answer]:
    """Wait until it is ready; returns what probes saw on the way."""
    seen: set[Answer] = set()

    def ready() -> bool:
        assert running.process.poll() is None, running.tail()[-5:]
        seen.add(asyncio.run(variant.engine.probe(running.endpoint, 5.0)).answer)
        return Answer.READY in seen

    wait_until("ready", ready, variant.start_s)
    return seen


@pytest.fixture(scope="module")
def live(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A ready engine, shared by the tests of one variant that leave it as it is."""
    folder = tmp_path_factory.mktemp(variant.name)
    with variant.start(folder, variant.endless) as running:
        until_ready(variant, running)
        yield running
    shutil.rmtree(folder)
