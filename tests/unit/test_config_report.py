"""What ``hotseat config check`` says."""

import json
from pathlib import Path

import pytest

from scheduler.config.load import check, load
from scheduler.config.problems import ConfigInvalid, Problem, mask_secrets
from scheduler.config.report import Remark, check_json, check_text, exit_code
from scheduler.config.settings import Loaded
from tests.support.config import OWNED


def result_of(path: Path) -> Loaded | ConfigInvalid:
    return check(path, owned_flags=OWNED, known_engines=("llamacpp", "command"), environ={})


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("hotseat.yaml")
    path.write_text(
        "devices: {declared: [{id: cpu0, kind: cpu, memory: 4GiB}]}\n"
        "models:\n  a: {engine: llamacpp, model: /a}\n  b: {engine: llamacpp, model: /b}\n  c: {engine: llamacpp, model: /c}\n"
    )
    return path


def test_one_line_when_all_is_well(good: Path) -> None:
    result = result_of(good)
    assert check_text(result) == "hotseat.yaml: ok, 3 models, 1 declared device, looks for nvidia, listening on 127.0.0.1:11500"
    assert exit_code(result) == 0
    assert check_json(result) == {
        "file": "hotseat.yaml",
        "ok": True,
        "models": ["a", "b", "c"],
        "devices": ["cpu0"],
        "discover": ["nvidia"],
        "listen": ["127.0.0.1:11500"],
        "problems": [],
        "remarks": [],
    }


def test_remarks_stand_below_what_is_well(good: Path) -> None:
    remarks = [Remark("warning", "they do not fit", "use less"), Remark("note", "cards were not looked for")]
    first, *below = check_text(result_of(good), remarks).splitlines()
    assert first.startswith("hotseat.yaml: ok, 3 models")
    assert below == ["warning: they do not fit", "  fix: use less", "note: cards were not looked for"]
    assert check_json(result_of(good), remarks)["remarks"] == [
        {"level": "warning", "message": "they do not fit", "fix": "use less"},
        {"level": "note", "message": "cards were not looked for", "fix": None},
    ]


def test_several_addresses_and_no_file(good: Path) -> None:
    good.write_text('listen: [127.0.0.1:1, "[::1]:2"]\ndevices: {discover: []}\n')
    assert check_text(result_of(good)) == "hotseat.yaml: ok, 0 models, 0 declared devices, listening on 127.0.0.1:1, [::1]:2"
    nothing = load(None, owned_flags={}, known_engines=(), environ={})
    assert check_text(nothing) == "no configuration file: ok, 0 models, 0 declared devices, looks for nvidia, listening on 127.0.0.1:11500"
    assert check_json(nothing)["file"] is None


def test_every_error_with_its_line_a_caret_and_a_fix(good: Path) -> None:
    good.write_text("polcy: default\nmodels:\n  a:\n    engine: llamacpp\n\n    modle: /srv/x.gguf\n")
    result = result_of(good)
    assert exit_code(result) == 1
    assert check_text(result) == (
        "hotseat.yaml:1:1: unknown key 'polcy'\n"
        "    polcy: default\n"
        "    ^\n"
        "  fix: known here: listen, state_dir, timezone, plan_interval, gateway, engines, devices, host, disk, logs, defaults, models\n"
        "hotseat.yaml:3:3: model 'a': the engine llamacpp needs the key model\n"
        "      a:\n"
        "      ^\n"
        "  fix: add model: /path/to/weights.gguf\n"
        "hotseat.yaml:6:5: unknown key 'modle' in models.a\n"
        "        modle: /srv/x.gguf\n"
        "        ^\n"
        "  fix: did you mean 'model'?\n"
        "hotseat.yaml: 3 errors"
    )


def test_the_same_as_data(good: Path) -> None:
    good.write_text("models: 5\n")
    data = check_json(result_of(good))
    assert json.loads(json.dumps(data)) == data
    assert (data["ok"], data["models"], data["devices"], data["discover"], data["listen"]) == (False, None, None, None, None)
    assert data["problems"] == [
        {
            "file": "hotseat.yaml",
            "line": 1,
            "column": 9,
            "code": "wrong_type",
            "message": "models: expected a mapping, found the number 5",
            "fix": "write KEY: VALUE lines below it",
            "source": "models: 5",
        }
    ]


def test_a_file_that_is_not_there() -> None:
    result = result_of(Path("nowhere.yaml"))
    assert check_text(result) == "nowhere.yaml: no such file\n  fix: check the path\nnowhere.yaml: 1 error"
    assert check_json(result)["problems"][0]["line"] is None


def shown(source: str, column: int) -> list[str]:
    problem = Problem(file="f", line=1, column=column, code="bad_value", message="m", source=source)
    return [row.removeprefix("    ") for row in problem.text().split("\n")[1:]]


def test_the_caret_stands_under_its_character() -> None:
    assert shown("a: b", 4) == ["a: b", "   ^"]
    assert shown("\ta: b", 5) == ["\ta: b", "\t   ^"]
    assert shown("модель: x", 9) == ["модель: x", "        ^"]
    assert shown("模型: x", 5) == ["模型: x", "      ^"]
    assert shown("e\u0301: x", 5) == ["e\u0301: x", "   ^"]
    assert shown("a: ", 9) == ["a: ", "   ^"]
    assert shown("a: \x1b[31m", 4)[0] == "a: ?[31m"


def test_long_lines_are_cut_around_the_caret() -> None:
    line = "x" * 500 + "HERE" + "y" * 500
    text, caret = shown(line, 501)
    assert text[caret.index("^") :].startswith("HERE")
    assert text.startswith("... ")
    assert text.endswith(" ...")
    assert len(text) < 140
    assert shown("z" * 500, 1)[1] == "^"


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("env: {HF_TOKEN: abc, B: c}", "env: {HF_TOKEN: ***, B: c}"),
        ("  API_KEY: 'x y'  # mine", "  API_KEY: '***'".replace("'***'", "*******") + "# mine"),
        ('args: [--api-key, "k1"]', "args: [--api-key, ****]"),
        ("args: [--api-key=k1]", "args: [--api-key=**]"),
        ("client_secret: s", "client_secret: *"),
        ("engine: llamacpp", "engine: llamacpp"),
    ],
)
def test_secrets_are_masked_in_lines_that_are_shown(line: str, masked: str) -> None:
    assert mask_secrets(line) == masked
    assert len(mask_secrets(line)) == len(line)
