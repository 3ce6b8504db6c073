"""Why a llama.cpp server ended, from what it really said: tests/data/llamacpp holds the logs of llama-server (-server)
and of the wheel xllamacpp behind our launcher (-wheel), October 2026, each made with the fault its name tells."""

from pathlib import Path

import pytest

from adapters.engines.command import Command
from adapters.engines.exits import MAX_LINE, decisive
from adapters.engines.llamacpp import LlamaCpp
from scheduler.domain.reasons import PERMANENT, Code
from scheduler.ports.launcher import ExitInfo

LOGS = Path(__file__).parents[1] / "data" / "llamacpp"

WANTED: dict[str, tuple[Code, str, str]] = {
    "architecture": (Code.UNSUPPORTED_ARCHITECTURE, "architecture nonesuch", "unknown model architecture: 'nonesuch'"),
    "bad_env": (Code.UNKNOWN_FLAG, "LLAMA_ARG_DRAFT_MAX", "the argument has been removed"),
    "bad_value": (Code.UNKNOWN_FLAG, "value of -ctk", 'error while handling argument "-ctk"'),
    "empty": (Code.MODEL_UNREADABLE, "not a GGUF file", "failed to read magic"),
    "folder": (Code.MODEL_UNREADABLE, "not a GGUF file", "failed to read magic"),
    "graph_oom": (Code.HOST_OOM, "36.38 MiB", "insufficient memory"),
    "header_cut": (Code.MODEL_UNREADABLE, "not a GGUF file", "failed to read key-value pairs"),
    "kv_oom": (Code.HOST_OOM, "2197.31 MiB", "insufficient memory"),
    "model_cut": (Code.MODEL_UNREADABLE, "is cut", "data is not within the file bounds"),
    "model_missing": (Code.MODEL_MISSING, "/models/nope.gguf", "No such file or directory"),
    "no_value": (Code.UNKNOWN_FLAG, "value of -c", "expected value for argument"),
    "not_gguf": (Code.MODEL_UNREADABLE, "not a GGUF file", "invalid magic characters: 'GGML'"),
    "permission": (Code.MODEL_UNREADABLE, "/models/secret.gguf cannot be opened: Permission denied", "Permission denied"),
    "port_taken": (Code.PORT_TAKEN, "port 9872", "couldn't bind HTTP server socket"),
    "unknown_flag": (Code.UNKNOWN_FLAG, "flag --no-such-flag", "invalid argument: --no-such-flag"),
    "version": (Code.MODEL_UNREADABLE, "version 9", "only supports up to version 3"),
    "weights_oom": (Code.HOST_OOM, "MiB", "insufficient memory"),
}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_each_log_is_explained(path: Path) -> None:
    code, sentence, line = WANTED[path.stem.rpartition("-")[0]]
    reason = LlamaCpp().explain_exit(ExitInfo(code=1), path.read_text(encoding="utf-8").splitlines())
    assert reason.code is code
    assert sentence in reason.text
    assert line in reason.log_line
    assert reason.fix
    assert not reason.log_line.startswith("0.0")  # no time stamp


def test_every_fault_has_a_log() -> None:
    assert {path.stem.rpartition("-")[0] for path in LOGS.glob("*.log")} == set(WANTED)


def test_what_an_operator_has_to_change_is_permanent() -> None:
    lasting = {"architecture", "bad_env", "bad_value", "empty", "folder", "header_cut", "model_cut", "model_missing"}
    lasting |= {"no_value", "not_gguf", "permission", "unknown_flag", "version"}
    assert {name for name, (code, *_) in WANTED.items() if code in PERMANENT} == lasting


@pytest.mark.parametrize(
    ("ended", "code", "text"),
    [
        (ExitInfo(signal=9, oom_killed=True), Code.HOST_OOM, "memory ran out"),
        (ExitInfo(signal=9), Code.CRASHED, "SIGKILL"),
        (ExitInfo(signal=11), Code.CRASHED, "SIGSEGV"),
        (ExitInfo(signal=99), Code.CRASHED, "signal 99"),
        (ExitInfo(code=3), Code.CRASHED, "status 3"),
        (ExitInfo(code=127), Code.EXECUTABLE_MISSING, "127"),
        (ExitInfo(code=126), Code.EXECUTABLE_MISSING, "126"),
        (ExitInfo(), Code.CRASHED, "nobody saw"),
    ],
)
def test_without_a_telling_line_the_status_speaks(ended: ExitInfo, code: Code, text: str) -> None:
    reason = LlamaCpp().explain_exit(ended, ["0.01.000.000 I srv  all is well", "", "   "])
    assert (reason.code, reason.log_line) == (code, "srv  all is well")
    assert text in reason.text
    assert LlamaCpp().explain_exit(ended, []).log_line == ""


def test_an_assertion_is_named() -> None:
    lines = ["0.09.000.000 I slot release", "/src/ggml/src/ggml.c:12: GGML_ASSERT(a == b) failed", "#0 0x00 in wait4 ()"]
    reason = LlamaCpp().explain_exit(ExitInfo(signal=6), lines)
    assert reason.code is Code.CRASHED
    assert "GGML_ASSERT(a == b) failed" in reason.text


def test_a_command_is_judged_by_what_any_program_says() -> None:
    explain = Command().explain_exit
    assert explain(ExitInfo(code=1), ["OSError: [Errno 98] Address already in use"]).code is Code.PORT_TAKEN
    assert explain(ExitInfo(code=1), ["numpy: Cannot allocate memory"]).code is Code.HOST_OOM
    assert explain(ExitInfo(code=127), ["bash: line 1: srever: command not found"]).code is Code.EXECUTABLE_MISSING
    assert explain(ExitInfo(code=1), ["ModuleNotFoundError: No module named 'vllm'"]).code is Code.EXECUTABLE_MISSING
    assert explain(ExitInfo(code=1), ["error: invalid argument: --x"]).code is Code.CRASHED


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("0.00.000.123 E llama: \x1b[31mred\x1b[0m\x07", "llama: red"),
        ("n_tokens: 128, key_length = 64", "n_tokens: 128, key_length = 64"),
    ],
)
def test_lines_are_fit_to_be_shown(line: str, shown: str) -> None:
    assert decisive(line) == shown


def test_long_lines_are_shortened() -> None:
    assert len(decisive("x" * 5000)) == MAX_LINE
