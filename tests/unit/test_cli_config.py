"""`hotseat config check FILE`, and the doctor's look at the same file."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scheduler.cli import main as cli

GOOD = """\
listen: 127.0.0.1:11999
devices:
  declared:
    - {id: cpu0, kind: cpu, memory: 2GiB}
models:
  small: {engine: llamacpp, model: small.gguf}
"""


@pytest.fixture(autouse=True)
def _known_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the adapters would say, without the adapters."""
    facts = ModuleType("scheduler.daemon.engine_facts")
    facts.engine_facts = lambda: (("llamacpp", "command"), {"llamacpp": {"--port": "listen"}})  # type: ignore[attr-defined]
    facts.refused_variable = lambda _spec: None  # type: ignore[attr-defined]
    facts.lacking_models = lambda _specs: []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "scheduler.daemon.engine_facts", facts)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOTSEAT_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("HOTSEAT_CONFIG", raising=False)


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hotseat.yaml"
    path.write_text(text)
    return str(path)


def test_a_valid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, GOOD)
    assert cli.main(["config", "check", path]) == 0
    assert capsys.readouterr().out == f"{path}: ok, 1 model, 1 declared device, looks for nvidia, listening on 127.0.0.1:11999\n"
    assert cli.main(["config", "check", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == ["small"]


def test_nothing_is_wider_than_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = f"  {'m' * 30}: {{engine: llamacpp, description: {'words ' * 20}, models: {'x' * 40}, flavour: {'y' * 40}}}\n"
    for text in (GOOD, GOOD + long):
        path = write(tmp_path, text)
        cli.main(["config", "check", path])
        whole = capsys.readouterr().out
        with monkeypatch.context() as terminal:
            terminal.setattr(sys.stdout, "isatty", lambda: True)
            cli.main(["config", "check", path])
        drawn = capsys.readouterr().out
        assert [line for line in drawn.splitlines() if len(line) > 80] == []
        assert max(map(len, whole.splitlines())) > 80, "in a pipe nothing is broken"
        carets = [at for at, line in enumerate(drawn.splitlines()) if line.strip() == "^"]
        assert bool(carets) is (text != GOOD)
        for at in carets:
            shown, caret = drawn.splitlines()[at - 1 : at + 1]
            assert shown[caret.index("^")] in "mf", (shown, caret)


def test_all_errors_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, GOOD.replace("2GiB", "2G") + "  other: {engine: vlm, modle: x}\n")
    assert cli.main(["config", "check", path]) == 1
    out = capsys.readouterr().out
    assert "2GiB" in out
    assert "did you mean 'model'" in out
    assert f"{path}:7:" in out
    assert cli.main(["config", "check", path, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert len(report["problems"]) >= 3


@pytest.mark.parametrize("make", [None, b"", b"\xff\xfe\x00", b"a: [", b"\tx: 1"])
def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: bytes | None) -> None:
    path = tmp_path / "hotseat.yaml"
    if make is not None:
        path.write_bytes(make)
    assert cli.main(["config", "check", str(path)]) == (0 if make == b"" else 1)
    assert str(path) in capsys.readouterr().out


def test_the_doctor_reads_the_budgets_from_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "--json", "--config", write(tmp_path, GOOD)])
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["findings"]}
    assert found["config"]["state"] == "ok"
    assert "2.0 GiB declared for devices of kind cpu" in found["memory"]["text"]


def test_the_doctor_names_the_way_to_the_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "listen: [")
    assert cli.main(["doctor", "--json", "--config", path]) == 1
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["findings"]}
    assert (found["config"]["state"], found["config"]["fix"]) == ("fail", f"hotseat config check {path}")


def test_the_shipped_example_against_the_real_adapters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    example = Path(__file__).resolve().parents[2] / "examples" / "hotseat.yaml"
    assert cli.main(["config", "check", str(example)]) == 0
    assert f"{example}: ok" in capsys.readouterr().out


def test_the_doctor_finds_models_whose_files_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    away, hub = f"{{engine: vllm, model: {tmp_path}/away}}", "{engine: vllm, model: Qwen/Qwen3-8B}"
    engine = f"engines: {{vllm: {{command: [{sys.executable}]}}}}\n"
    path = write(tmp_path, f"{engine}models:\n  away: {away}\n  off: {away[:-1]}, enabled: false}}\n  hub: {hub}\n")
    cli.main(["doctor", "--config", path, "--json"])
    found = [item for item in json.loads(capsys.readouterr().out)["findings"] if item["name"] == "models"]
    assert [(item["state"], item["text"]) for item in found] == [("warn", f"away: there is no folder {tmp_path}/away")]
    assert "correct `model`" in found[0]["fix"]


def test_a_flag_that_the_real_adapter_owns_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    path = write(tmp_path, GOOD.replace("model: small.gguf", 'model: small.gguf, args: [--port, "9"]'))
    assert cli.main(["config", "check", path]) == 1
    assert "--port" in capsys.readouterr().out


VLLM = "models: {m: {engine: vllm, model: /m, env: {PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}%s}}\n%s"
ON_CPU = "devices: {declared: [{id: cpu0, kind: cpu, memory: 2GiB}]}\n"


@pytest.mark.parametrize(
    ("model", "rest", "refused"),
    [
        ("", "", True),
        (", levels: [1]", "", True),
        (", devices: {kind: nvidia}", ON_CPU, True),
        (", devices: {ids: [gpu0]}", ON_CPU, True),
        (", levels: []", "", False),
        (", devices: {kind: cpu}", ON_CPU, False),
        (", devices: {ids: [cpu0]}", ON_CPU, False),
        ("", "devices: {discover: []}\n", False),
    ],
)
def test_a_variable_that_keeps_vllm_from_starting_is_found_before_it_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, rest: str, refused: bool
) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    path = write(tmp_path, VLLM % (model, rest))
    assert cli.main(["config", "check", path, "--json"]) == int(refused)
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [(found["code"], found["line"], found["column"]) for found in problems] == [("engine_refuses", 1, 45)] * refused
    assert all(found["message"].startswith("PYTORCH_CUDA_ALLOC_CONF turns on expandable_segments") for found in problems)
    assert all("set `levels: []`" in found["fix"] for found in problems)


@pytest.mark.parametrize(("owner", "line"), [("model", 5), ("engine", 2)])
def test_such_a_variable_is_found_in_an_env_file_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, owner: str, line: int
) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    (tmp_path / "torch.env").write_text("PYTORCH_ALLOC_CONF=max_split_size_mb:512,expandable_segments:True\n")
    (tmp_path / "other.env").write_text("A=1\n")
    files = ("other", "torch") if owner == "model" else ("torch", "other")
    text = "engines:\n  vllm: {env_file: %s.env}\nmodels:\n  m: {engine: vllm, model: /m,\n    env_file: %s.env}\n"
    assert cli.main(["config", "check", write(tmp_path, text % files), "--json"]) == 1
    [found] = json.loads(capsys.readouterr().out)["problems"]
    assert (found["code"], found["line"], "PYTORCH_ALLOC_CONF" in found["message"]) == ("engine_refuses", line, True)


ALWAYS = """\
devices: {declared: [{id: cpu0, kind: cpu, memory: 4GiB}, {id: cpu1, kind: cpu, memory: 8GiB}]%s}
models:
  a: {engine: llamacpp, model: a.gguf, awake: always, footprint: {weights: 2GiB, kv_max: 512MiB}, devices: {ids: [cpu0]}}
  b: {engine: llamacpp, model: b.gguf, awake: %s, footprint: {weights: 2GiB, kv_max: 512MiB}, devices: {ids: [cpu0]}}
  c: {engine: llamacpp, model: c.gguf, awake: always, footprint: {weights: 2GiB, kv_max: 512MiB}}
"""


def test_models_that_are_never_awake_together_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ALWAYS % ("", "always"))
    assert cli.main(["config", "check", path]) == 0
    first, warning, fix = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: ok, 3 models")
    assert warning.startswith("warning: a and b are configured awake: always and can never be so together: a takes ")
    assert warning.endswith("; cpu0 has 3.9 GiB")
    assert "(declared)" in warning
    assert fix.startswith("  fix: take awake: always from those")
    assert cli.main(["config", "check", write(tmp_path, ALWAYS % ("", "auto")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["remarks"] == []


def test_what_depends_on_cards_is_said_not_to_be_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    vllm = "{engine: vllm, model: /nowhere, awake: always, footprint: {weights: 30GiB, overhead: 1GiB, kv_min: 1GiB, kv_max: 1GiB}}"
    path = write(tmp_path, ALWAYS % ("", "auto") + f"  d: {vllm}\n")
    assert cli.main(["config", "check", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["remarks"] == [], "one alone has nobody to fit with"
    path = write(tmp_path, ALWAYS % ("", "auto") + f"  d: {vllm}\n  e: {vllm}\n")
    assert cli.main(["config", "check", path, "--json"]) == 0
    [note] = json.loads(capsys.readouterr().out)["remarks"]
    assert (note["level"], note["fix"]) == ("note", None)
    assert "when the daemon starts" in note["message"]
    assert note["message"].endswith("d 32.0 GiB, e 32.0 GiB")
    path = write(tmp_path, ALWAYS % (", discover: []", "auto") + f"  d: {vllm}\n  e: {vllm}\n")
    assert cli.main(["config", "check", path, "--json"]) == 0
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert [remark["level"] for remark in remarks] == ["warning", "warning"], "without cards they sit on the declared devices"
    assert [remark["message"].split(";")[0].split(" takes ")[0] for remark in remarks] == [
        f"{model} is configured awake: always and can never be: {model}" for model in "de"
    ]


LEVELS = """\
devices: {declared: [{id: cpu0, kind: cpu, memory: 4GiB}]}
models:
  %s
"""


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("m: {engine: llamacpp, model: a.gguf, levels: [1]}", "m: levels names 1; with these flags its engine llamacpp has none"),
        (
            "m: {engine: vllm, model: /m, levels: [1, 2], args: [--enable-lora]}",
            "m: levels names 2; with these flags its engine vllm has 1",
        ),
        ("m: {engine: vllm, model: /m, levels: [2], devices: {kind: cpu}}", "m: levels names 2; with these flags its engine vllm has 1"),
        ("m: {engine: vllm, model: /m, levels: [1, 2]}", None),
        ("m: {engine: vllm, model: /m, levels: []}", None),
        ("m: {engine: llamacpp, model: a.gguf, levels: [1], enabled: false}", None),
    ],
)
def test_levels_that_the_engine_does_not_have_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, told: str | None
) -> None:
    monkeypatch.delitem(sys.modules, "scheduler.daemon.engine_facts")
    assert cli.main(["config", "check", write(tmp_path, LEVELS % model), "--json"]) == 0
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    assert [remark["message"] for remark in remarks] == ([] if told is None else [told])
