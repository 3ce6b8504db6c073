"""One running engine per variant for the tests that only ask, and a fresh one for those that end it."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.ports.engine import Answer
from tests.conformance.variants import (
    Running,
    Variant,
    command_variant,
    fake_variant,
    llamacpp_variant,
    programs,
    wait_until,
)
from tests.support.gguf_files import tiny_model

REAL = pytest.mark.real_llamacpp
NAMES = ["fake", "command", *(pytest.param(name, marks=REAL) for name in programs())]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of half a MiB for the real engine."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module", params=NAMES)
def variant(request: pytest.FixtureRequest, tiny: Path) -> Variant:
    """Each engine type in turn."""
    if request.param == "fake":
        return fake_variant()
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

    wait_until("ready", ready)
    return seen


@pytest.fixture(scope="module")
def live(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A ready engine, shared by the tests of one variant that leave it as it is."""
    folder = tmp_path_factory.mktemp(variant.name)
    with variant.start(folder, variant.endless) as running:
        until_ready(variant, running)
        yield running
    shutil.rmtree(folder)
