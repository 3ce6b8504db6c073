"""`hotseat doctor` about engines: found or not, needed or not, and vLLM's version without importing PyTorch."""

import sys
from pathlib import Path

import pytest

from scheduler.cli.doctor.engines import check_engines, vllm_version


def script(folder: Path, name: str, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def environment(root: Path, version: str = "0.33.0", metadata: bool = True) -> Path:
    """A virtual environment with the metadata of vLLM; returns its Python, a link as in a real one."""
    folder = root / f"lib/python3.12/site-packages/vllm-{version}.dist-info"
    folder.mkdir(parents=True)
    if metadata:
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\nLicense: x\n\nVersion: no\n")
    (root / "bin").mkdir()
    (root / "bin/python3").symlink_to(sys.executable)
    return root / "bin/python3"


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.cli.doctor.engines.importlib.util.find_spec", lambda name: None)


def test_llama_server_on_the_path_or_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    assert check_engines(str(tmp_path))[0].text.startswith("llamacpp: the wheel xllamacpp 20")
    binary = script(tmp_path, "llama-server")
    assert check_engines(str(tmp_path))[0].text == f"llamacpp: {binary}"


@pytest.mark.usefixtures("no_wheel")
def test_nothing_to_run_models_with(tmp_path: Path) -> None:
    llama, vllm = check_engines(str(tmp_path))
    assert (llama.state, vllm.state) == ("warn", "ok")
    assert "hotseat[llamacpp]" in llama.fix
    assert vllm.text == "vllm: not on PATH; no model needs it"


@pytest.mark.usefixtures("no_wheel")
def test_an_engine_that_no_model_needs_is_no_warning(tmp_path: Path) -> None:
    script(tmp_path, "vllm")
    llama, _ = check_engines(str(tmp_path), {"vllm": {""}})
    assert (llama.state, llama.text.rpartition("; ")[2]) == ("ok", "no model needs it")
    llama, _ = check_engines(str(tmp_path), {"llamacpp": {""}})
    assert llama.state == "warn"
    named = check_engines(str(tmp_path / "nowhere"), {"vllm": {str(tmp_path / "vllm")}})
    assert [finding.state for finding in named] == ["ok", "ok"]


def test_a_model_that_needs_vllm_where_there_is_none(tmp_path: Path) -> None:
    vllm = check_engines(str(tmp_path), {"vllm": {""}})[1]
    assert vllm.state == "warn"
    assert "command: [/PATH/bin/vllm]" in vllm.fix


def test_programs_of_the_configuration(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", "0.34.1")
    vllm = script(tmp_path / "venv/bin", "vllm", f"#!{python}\nimport vllm\n")
    run = script(tmp_path, "run")
    wanted = {"vllm": {str(vllm), "/nowhere/vllm"}, "command": {"run", "sub/run", "${env:HOME}/run", ""}, "llamacpp": {""}}
    named = check_engines(str(tmp_path), wanted)[1:]  # nothing is said of a vLLM on PATH, which none of them needs
    assert [(finding.state, finding.text) for finding in named] == [
        ("ok", f"command: {run}"),
        ("fail", "vllm: /nowhere/vllm cannot be found or executed"),
        ("ok", f"vllm: {vllm}, version 0.34.1"),
    ]
    assert named[1].fix


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\nimport re\n",
        "#!{python} -I\nimport re\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_the_version_from_the_environment_of_the_script(tmp_path: Path, head: str) -> None:
    python = environment(tmp_path / "venv")
    assert vllm_version(script(tmp_path, "vllm", head.format(python=python))) == "0.33.0"


def test_the_version_by_way_of_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "venv")
    monkeypatch.setenv("PATH", str(python.parent))
    assert vllm_version(script(tmp_path, "vllm", "#!/usr/bin/env python3\n")) == "0.33.0"
    assert vllm_version(script(tmp_path, "vllm", "#!/usr/bin/env python9\n")) is None


def test_the_version_from_the_name_when_the_metadata_cannot_be_read(tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", "0.33.1.dev7+cpu", metadata=False)
    assert vllm_version(script(tmp_path, "vllm", f"#!{python}\n")) == "0.33.1.dev7+cpu"


@pytest.mark.parametrize("head", ["", "\x7fELF\x00\x01", "#!", "#!/bin/sh\nexec docker run vllm\n", "#!/nowhere/python\n"])
def test_a_version_that_cannot_be_told(tmp_path: Path, head: str) -> None:
    program = script(tmp_path, "vllm", head)
    assert vllm_version(program) is None
    assert check_engines(str(tmp_path))[1].text == f"vllm: {program}, version unknown (no metadata beside its Python)"
    assert vllm_version(tmp_path / "none") is None
