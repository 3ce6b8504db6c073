"""The command lines of the engines llamacpp and command, and what is checked before anything is started."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.command import GUESS_BYTES, Command
from adapters.engines.llamacpp import LlamaCpp, find_program, xllamacpp_command
from adapters.engines.llamacpp_flags import DEFAULT_ENV, OWNED
from adapters.registry import engines
from scheduler.domain.claims import Source
from scheduler.domain.errors import HotseatError, Permanent
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeclaredFootprint, HttpStep, ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB, MIB
from scheduler.ports.engine import CanSleep, CountsRequests, LaunchPlan
from tests.support.gguf_files import tiny_model

PLAN = LaunchPlan(port=9001, devices=(DeviceId("cpu0"), DeviceId("cpu1")), device_index=(3, 4))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "tiny.gguf")


def spec_of(model: object, **changes: object) -> ModelSpec:
    spec = ModelSpec(name=ModelName("org/tiny:q4"), engine="llamacpp", engine_command=("/bin/sh",), model=str(model))
    return replace(spec, **changes)  # type: ignore[arg-type]


def code_of(caught: "pytest.ExceptionInfo[HotseatError]") -> str:
    assert caught.value.fix
    return caught.value.code


# --- llamacpp ---------------------------------------------------------------------------------------------------------


def test_the_command_line(model: Path) -> None:
    spec = spec_of(model, engine_args=("-t", "2"), args=("-c", "4096", "--slot-save-path", "/kv/${name}"))
    line = LlamaCpp().command(spec, PLAN)
    own = ("-m", str(model), "--host", "127.0.0.1", "--port", "9001", "-a", "org/tiny:q4", "--metrics")
    assert line.argv == ("/bin/sh", *own, "-t", "2", "-c", "4096", "--slot-save-path", "/kv/org/tiny:q4")
    assert line.env == DEFAULT_ENV
    assert line.env["LLAMA_ARG_CACHE_RAM"] == "0"
    assert line.env["LLAMA_ARG_LOAD_MODE"] == "none"


def test_a_key_travels_in_the_environment_not_on_the_command_line(model: Path) -> None:
    line = LlamaCpp().command(spec_of(model), replace(PLAN, api_key="hs_secret"))
    assert line.env["LLAMA_API_KEY"] == "hs_secret"
    assert "hs_secret" not in " ".join(line.argv)


def test_the_models_own_command_replaces_the_adapters(model: Path) -> None:
    command = ("/bin/env", "llama-server", "-m", "${model}", "--port", "${port}", "-a", "${name}", "-dev", "$$x", "${devices}", "${index}")
    line = LlamaCpp().command(spec_of(model, command=command, args=("-c", "1")), PLAN)
    expected = ("-m", str(model), "--port", "9001", "-a", "org/tiny:q4", "-dev", "$x", "cpu0,cpu1", "3", "-c", "1")
    assert line.argv == ("/bin/env", "llama-server", *expected)
    assert line.env == DEFAULT_ENV


def test_the_name_that_the_engine_knows() -> None:
    assert LlamaCpp().served_model(spec_of("x")) == "org/tiny:q4"
    assert LlamaCpp().served_model(spec_of("x", upstream_model="other")) == "other"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"args": ("--port", "1")}, "--port"),
        ({"args": ("--model_url", "x")}, "--model_url"),
        ({"args": ("--host=0.0.0.0",)}, "--host=0.0.0.0"),
        ({"engine_args": ("--sleep-idle-seconds", "5")}, "--sleep-idle-seconds"),
        ({"args": ("--models-dir", "/models")}, "--models-dir"),  # a router of several
        ({"engine_args": ("--models-preset=x.ini",)}, "--models-preset=x.ini"),
        ({"env": (("LLAMA_ARG_LOAD_MODE", "mmap"),)}, "LLAMA_ARG_LOAD_MODE"),
        ({"env": (("LLAMA_ARG_PORT", "1"),)}, "LLAMA_ARG_PORT"),
    ],
)
def test_what_hotseat_sets_cannot_be_set_twice(model: Path, changes: dict[str, object], named: str) -> None:
    with pytest.raises(Permanent, match=named) as caught:
        LlamaCpp().command(spec_of(model, **changes), PLAN)
    assert code_of(caught) == Code.UNKNOWN_FLAG


def test_owned_flags_say_what_to_use_instead() -> None:
    owned = LlamaCpp().owned_flags()
    assert owned["-m"] == "model"
    assert owned["--sleep-idle-seconds"] == "idle_sleep_after"
    assert "-c" not in owned
    assert "--cache-ram" not in owned  # may be given, for the estimate counts it
    assert set(OWNED) == set(owned)


def test_which_program_runs(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(model, engine_command=())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(spec) == xllamacpp_command()
    server = tmp_path / "llama-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    assert find_program(spec) == (str(server),)
    assert find_program(spec_of(model, engine_command=("/bin/sh", "-c"))) == ("/bin/sh", "-c")
    monkeypatch.setenv("PATH", "")
    assert find_program(spec_of(model, engine_command=(), env=(("PATH", str(tmp_path)),))) == (str(server),)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(Permanent, match="no llama-server on PATH") as caught:
        find_program(spec)
    assert code_of(caught) == Code.EXECUTABLE_MISSING


def test_our_launcher_runs_isolated_and_by_path() -> None:
    python, isolated, script = xllamacpp_command()
    assert (python, isolated) == (sys.executable, "-I")
    assert os.path.isabs(script)


@pytest.mark.parametrize("program", ["/no/such/llama-server", "no-such-llama-server", "/etc/passwd", "/"])
def test_a_program_that_cannot_run(model: Path, program: str) -> None:
    with pytest.raises(Permanent) as caught:
        LlamaCpp().command(spec_of(model, engine_command=(program,)), PLAN)
    assert code_of(caught) == Code.EXECUTABLE_MISSING
    assert program in caught.value.message


async def test_a_good_model_passes(model: Path) -> None:
    await LlamaCpp().preflight(spec_of(model))
    await LlamaCpp().preflight(spec_of("tiny.gguf", cwd=str(model.parent)))


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("", Code.MODEL_MISSING, "no model file"),
        ("none.gguf", Code.MODEL_MISSING, "there is no model file"),
        ("none/none.gguf", Code.MODEL_MISSING, "there is no model file"),
        (".", Code.MODEL_UNREADABLE, "is a folder"),
        ("cut.gguf", Code.MODEL_UNREADABLE, "is cut: it has"),
        ("text.gguf", Code.MODEL_UNREADABLE, "is no GGUF file"),
        ("split-00001-of-00002.gguf", Code.MODEL_MISSING, "split-00002-of-00002.gguf"),
    ],
)
async def test_models_that_cannot_be_loaded(model: Path, name: str, code: Code, message: str) -> None:
    folder = model.parent
    (folder / "cut.gguf").write_bytes(model.read_bytes()[:-5000])
    (folder / "text.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "split-00001-of-00002.gguf").write_bytes(model.read_bytes())
    with pytest.raises(Permanent, match=message) as caught:
        await LlamaCpp().preflight(spec_of(folder / name if name else ""))
    assert code_of(caught) == code


async def test_a_folder_or_a_typo_names_the_files_there(model: Path) -> None:
    with pytest.raises(Permanent) as caught:
        await LlamaCpp().preflight(spec_of(model.parent))
    assert "tiny.gguf" in caught.value.fix
    with pytest.raises(Permanent) as caught:
        await LlamaCpp().preflight(spec_of(model.parent / "tinny.gguf"))
    assert "tiny.gguf" in caught.value.fix


async def test_a_file_that_may_not_be_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_more: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("adapters.engines.gguf.os.open", refuse)
    with pytest.raises(Permanent, match="Permission denied") as caught:
        await LlamaCpp().preflight(spec_of(model))
    assert code_of(caught) == Code.MODEL_UNREADABLE


async def test_estimates(model: Path) -> None:
    small = await LlamaCpp().estimate(spec_of(model, args=("-c", "512", "-np", "1")))
    large = await LlamaCpp().estimate(spec_of(model, args=("-c", "1048576", "-np", "1")))
    assert small.source is Source.ESTIMATED
    assert small.weights_bytes == model.stat().st_size
    assert small.start_peak_bytes >= small.awake_bytes > small.weights_bytes
    assert large.awake_bytes - small.awake_bytes > (1048576 - 512) * 2 * 2 * 64  # 2 layers x (K + V) x 32 elements x 2 bytes
    by_env = await LlamaCpp().estimate(spec_of(model, env=(("LLAMA_ARG_CTX_SIZE", "1048576"), ("LLAMA_ARG_N_PARALLEL", "1"))))
    assert by_env.awake_bytes == large.awake_bytes


async def test_estimates_count_what_is_loaded_beside_the_model(model: Path) -> None:
    (model.parent / "projector.gguf").write_bytes(bytes(5 * MIB))
    alone = await LlamaCpp().estimate(spec_of(model, cwd=str(model.parent)))
    both = await LlamaCpp().estimate(spec_of(model, cwd=str(model.parent), args=("-mm", "projector.gguf", "-md", "tiny.gguf")))
    assert both.awake_bytes - alone.awake_bytes > 5 * MIB + model.stat().st_size


async def test_estimates_follow_a_changed_file(model: Path) -> None:
    before = await LlamaCpp().estimate(spec_of(model))
    tiny_model(model, layers=4)
    assert (await LlamaCpp().estimate(spec_of(model))).awake_bytes > before.awake_bytes


@pytest.mark.parametrize("content", [None, b"", b"no gguf" * 1000, "folder"])
async def test_what_would_not_be_started_is_not_called_too_large(tmp_path: Path, content: bytes | str | None) -> None:
    """Its real trouble is told when it is asked for, which a model that fits nowhere never is."""
    path = tmp_path / "x.gguf"
    if isinstance(content, str):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    guess = await LlamaCpp().estimate(spec_of(path))
    assert guess.awake_bytes < 256 * MIB
    assert guess.source is Source.ESTIMATED
    with pytest.raises(Permanent):
        await LlamaCpp().preflight(spec_of(path))


async def test_a_file_beside_the_model_that_cannot_be_read_makes_it_a_guess(model: Path) -> None:
    (model.parent / "draft.gguf").write_bytes(b"no gguf")
    guess = await LlamaCpp().estimate(spec_of(model, cwd=str(model.parent), args=("-md", "draft.gguf")))
    assert guess.awake_bytes >= GIB


async def test_what_is_declared_stands_above_the_estimate(model: Path) -> None:
    declared = DeclaredFootprint(weights_bytes=4 * GIB, overhead_bytes=GIB, kv_min_bytes=2 * GIB, kv_max_bytes=9 * GIB, residue_bytes=MIB)
    footprint = await LlamaCpp().estimate(spec_of(model, footprint=declared))
    assert footprint.source is Source.DECLARED
    assert (footprint.awake_bytes, footprint.start_peak_bytes, footprint.weights_bytes) == (7 * GIB, 7 * GIB, 4 * GIB)
    assert footprint.residue_bytes == {1: MIB, 2: MIB}
    plain = await LlamaCpp().estimate(spec_of(model))
    part = await LlamaCpp().estimate(spec_of(model, footprint=DeclaredFootprint(kv_min_bytes=2 * GIB)))
    assert part.awake_bytes == plain.weights_bytes + 2 * GIB
    assert part.source is Source.DECLARED
    weights = await LlamaCpp().estimate(spec_of(model, footprint=DeclaredFootprint(weights_bytes=GIB)))
    assert weights.awake_bytes == GIB + plain.awake_bytes - plain.weights_bytes


def test_abilities() -> None:
    llamacpp: object = LlamaCpp()
    assert not isinstance(llamacpp, CanSleep)
    assert isinstance(llamacpp, CountsRequests)
    assert LlamaCpp().levels(spec_of("x")) == ()
    assert LlamaCpp().device_kinds == ("cpu",)
    assert set(engines()) == {"llamacpp", "vllm", "command", "attached"}
    assert all(engine.name == name for name, engine in engines().items())


# --- command ----------------------------------------------------------------------------------------------------------


def command_spec(**changes: object) -> ModelSpec:
    return replace(ModelSpec(name=ModelName("c"), engine="command", command=("/bin/sh", "-c", "serve ${port}")), **changes)  # type: ignore[arg-type]


def test_the_command_is_the_operators() -> None:
    spec = command_spec(args=("--kv", "${kv_bytes}", '{"a": 1}'), model="m")
    line = Command().command(spec, replace(PLAN, kv_bytes=7))
    assert line.argv == ("/bin/sh", "-c", "serve 9001", "--kv", "7", '{"a": 1}')
    assert line.env == {}
    engine = command_spec(command=(), engine_command=("/bin/sh",), engine_args=("-e",))
    assert Command().command(engine, PLAN).argv == ("/bin/sh", "-e")


async def test_a_command_has_to_be_there() -> None:
    for spec in (command_spec(command=()), command_spec(command=("/no/such",))):
        with pytest.raises(Permanent) as caught:
            await Command().preflight(spec)
        assert code_of(caught) == Code.EXECUTABLE_MISSING
    await Command().preflight(command_spec())


def test_levels_need_both_kinds_of_steps() -> None:
    steps = (HttpStep(path="/sleep"),)
    assert Command().levels(command_spec()) == ()
    assert Command().levels(command_spec(sleep_steps=steps)) == ()
    assert Command().levels(command_spec(sleep_steps=steps, wake_steps=steps)) == (1,)
    assert Command().levels(command_spec(sleep_steps=steps, wake_steps=steps, levels=(2, 1))) == (1, 2)
    assert Command().levels(command_spec(sleep_steps=steps, wake_steps=steps, levels=())) == ()


async def test_a_command_is_guessed_unless_declared() -> None:
    guess = await Command().estimate(command_spec())
    assert (guess.awake_bytes, guess.source) == (GUESS_BYTES, Source.ESTIMATED)
    declared = DeclaredFootprint(weights_bytes=2 * GIB, overhead_bytes=0, kv_min_bytes=GIB)
    footprint = await Command().estimate(command_spec(footprint=declared))
    assert (footprint.awake_bytes, footprint.source) == (3 * GIB, Source.DECLARED)
