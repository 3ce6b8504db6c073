"""Why a vLLM ended. tests/data/vllm_logs holds what it said: made with the real vLLM for CPU where the fault can be made
there, else in the shape of a public report, which the first line of each file names."""

from pathlib import Path

import pytest

from adapters.engines.vllm import Vllm
from adapters.engines.vllm_exits import plain, root_cause
from scheduler.domain.reasons import PERMANENT, Code, Reason
from scheduler.ports.launcher import ExitInfo

LOGS = Path(__file__).parents[1] / "data" / "vllm_logs"

#: Name of the log -> code, words of the sentence, words of the decisive line.
WANTED: dict[str, tuple[Code, str, str]] = {
    "architecture": (Code.UNSUPPORTED_ARCHITECTURE, "NonesuchForCausalLM", "are not supported for now"),
    "bad_value": (Code.UNKNOWN_FLAG, "load format nonsense", "Load format `nonsense`"),
    "config_broken": (Code.MODEL_UNREADABLE, ".json files is damaged", "JSONDecodeError"),
    "config_missing": (Code.MODEL_MISSING, "nocfg", "Invalid repository ID or local directory"),
    "core_killed": (Code.CRASHED, "died without a word", "EngineCore_DP0 died unexpectedly"),
    "cuda_library": (Code.EXECUTABLE_MISSING, "libcudart.so.12", "cannot open shared object file"),
    "engine_died": (Code.CRASHED, "head_dim=16", "Unsupported CPU attention configuration"),
    "expandable": (Code.SLEEP_UNSUPPORTED, "expandable_segments", "not compatible with memory pool"),
    "gated": (Code.GATED_MODEL, "token", "gated repo"),
    "gpu_driver_mismatch": (Code.DRIVER_MISMATCH, "different versions", "Error 803"),
    "gpu_driver_old": (Code.DRIVER_MISMATCH, "too old", "found version 12080"),
    "gpu_exclusive": (Code.EXCLUSIVE_MODE, "exclusive mode", "is/are busy or unavailable"),
    "gpu_exclusive_old": (Code.EXCLUSIVE_MODE, "exclusive mode", "all CUDA-capable devices are busy"),
    "gpu_free_memory": (Code.DEVICE_OOM, "13.2 of 23.68 GiB were free", "desired GPU memory utilization (0.9, 21.32 GiB)"),
    "gpu_free_memory_new": (Code.DEVICE_OOM, "9.77 of 22.05 GiB were free", "Free memory on device cuda:1"),
    "gpu_kv_small": (Code.KV_TOO_SMALL, "262144 tokens needs 24.0 GiB", "larger than the available KV cache memory"),
    "gpu_kv_small_old": (Code.KV_TOO_SMALL, "may have 32768 tokens, and its KV cache holds 7344", "max seq len (32768)"),
    "gpu_nccl": (Code.CRASHED, "NCCL", "unhandled cuda error"),
    "gpu_no_kernel": (Code.UNSUPPORTED_ARCHITECTURE, "no kernels for this model of card", "no kernel image is available"),
    "gpu_no_kv": (Code.KV_TOO_SMALL, "no room for a KV cache", "ValueError: No available memory for the cache blocks"),
    "gpu_none": (Code.DEVICE_LOST, "no device", "Failed to infer device type"),
    "gpu_nvml_mismatch": (Code.DRIVER_MISMATCH, "different versions", "NVML/RM version mismatch"),
    "gpu_oom": (Code.DEVICE_OOM, "another 2.50 GiB", "CUDA out of memory"),
    "gpu_oom_cumem": (Code.DEVICE_OOM, "device memory", "CUDA Error: out of memory"),
    "gpu_shm": (Code.SHM_SMALL, "/dev/shm", "No space left on device (28)"),
    "host_oom": (Code.HOST_OOM, "host memory", "DefaultCPUAllocator: can't allocate memory"),
    "hub_offline": (Code.MODEL_MISSING, "not on this host", "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot"),
    "illegal_memory": (Code.CRASHED, "illegal memory access", "an illegal memory access was encountered"),
    "inspected": (Code.UNSUPPORTED_ARCHITECTURE, "Qwen3ForCausalLM", "failed to be inspected"),
    "kv_host": (Code.HOST_OOM, "14.3 of 16.21 GiB of host memory are free, and it wanted 400.0 GiB", "Available memory on node 0"),
    "kv_small": (Code.KV_TOO_SMALL, "8000000 tokens needs 1.91 GiB of KV cache, and there are 1.0 GiB", "To serve at least one request"),
    "len_too_long": (Code.UNKNOWN_FLAG, "--max-model-len 4096 is more than the model can do, 512", "User-specified max_model_len (4096)"),
    "model_missing": (Code.MODEL_MISSING, "/models/nope", "'/models/nope'"),
    "old_vllm": (Code.UNKNOWN_FLAG, "older than 0.10.2", "unrecognized arguments: --kv-cache-memory-bytes"),
    "port_taken": (Code.PORT_TAKEN, "port", "[Errno 98] Address already in use"),
    "remote_code": (Code.UNSUPPORTED_ARCHITECTURE, "code of its own", "contains custom code"),
    "sleep_unsupported": (Code.SLEEP_UNSUPPORTED, "no sleep mode", "Sleep mode is not supported on current platform"),
    "tokenizer": (Code.MODEL_UNREADABLE, "tokenizer", "Couldn't instantiate the backend tokenizer"),
    "tp_heads": (Code.UNKNOWN_FLAG, "attention heads (4) must be divisible by tensor parallel size (3)", "must be divisible"),
    "unknown_flag": (Code.UNKNOWN_FLAG, "--no-such-flag", "unrecognized arguments: --no-such-flag"),
    "weights_cut": (Code.MODEL_UNREADABLE, "file not fully covered", "SafetensorError"),
    "weights_missing": (Code.MODEL_UNREADABLE, "no weights", "Cannot find any model weights"),
}
HARMLESS = "harmless"


def lines_of(name: str) -> list[str]:
    source, *lines = (LOGS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert source.startswith("# ")
    return lines


def explained(name: str, ended: ExitInfo | None = None) -> Reason:
    return Vllm().explain_exit(ended or ExitInfo(code=1), lines_of(name))


@pytest.mark.parametrize("name", sorted(WANTED))
def test_each_log_is_explained(name: str) -> None:
    code, sentence, line = WANTED[name]
    reason = explained(name)
    assert reason.code is code
    assert sentence in reason.text
    assert line in reason.log_line
    assert reason.fix
    assert "pid=" not in reason.log_line
    assert not reason.log_line.startswith((" ", "ERROR", "raise"))
    assert "  " not in reason.text


def test_every_log_is_wanted() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == {*WANTED, HARMLESS}


def test_what_an_operator_has_to_change_is_permanent() -> None:
    lasting = {name for name, (code, *_) in WANTED.items() if code in PERMANENT}
    assert lasting == {
        *("architecture", "bad_value", "config_broken", "config_missing", "cuda_library", "gpu_kv_small", "gpu_kv_small_old"),
        *("gpu_no_kernel", "gpu_no_kv", "hub_offline", "inspected", "kv_small", "len_too_long", "model_missing", "old_vllm"),
        *("remote_code", "tokenizer", "tp_heads", "unknown_flag", "weights_cut", "weights_missing"),
    }


def test_what_sounds_like_a_fault_in_a_start_that_went_well_is_none() -> None:
    reason = explained(HARMLESS, ExitInfo(signal=9))
    assert reason.code is Code.CRASHED
    assert "SIGKILL" in reason.text


def test_a_signal_is_told_whatever_was_logged_before() -> None:
    """Exceptions of requests long ago do not end an engine that somebody killed."""
    reason = Vllm().explain_exit(ExitInfo(signal=9), ["ValueError: a request was wrong", "INFO all is well"])
    assert "SIGKILL" in reason.text
    assert explained("illegal_memory", ExitInfo(signal=6)).text.startswith("a kernel touched memory")


def test_the_kernels_verdict_comes_first() -> None:
    assert explained("gpu_oom", ExitInfo(signal=9, oom_killed=True)).code is Code.HOST_OOM


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] ValueError: x", "ValueError: x"),
        ('(EngineCore_DP0 pid=1) (Worker_TP1 pid=2) ERROR 09-28 15:47:24 [a.py:1]   File "x"', '  File "x"'),
        ("(VllmWorker rank=0 pid=85) ERROR 03-20 23:26:06 [multiproc_executor.py:375] NCCL error", "NCCL error"),
        ("ERROR 04-01 01:02:03 engine.py:366] ValueError: x", "ValueError: x"),
        ("[rank0]: ValueError: x", "ValueError: x"),
        ("[2026-02-24T20:21:58Z] (EngineCore pid=69) ValueError: x", "ValueError: x"),
        ("ValueError: x", "ValueError: x"),
        ("", ""),
    ],
)
def test_lines_are_bared(line: str, bare: str) -> None:
    assert plain(line) == bare


def test_the_cause_is_the_first_exception_that_is_no_echo() -> None:
    lines = ["EngineDeadError: x", "RuntimeError: deep", "RuntimeError: Engine core initialization failed. See root cause above."]
    assert root_cause(lines) == "RuntimeError: deep"
    assert root_cause(["all is well", "the ValueError was mended"]) == ""
