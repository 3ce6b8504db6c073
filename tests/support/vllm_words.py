"""What the fake vLLM writes to its log: the decisive lines of the real one for each way to fail."""

from scheduler.domain.reasons import Code
from tests.support.engine_life import Ended

GIB = 1 << 30


def out_of_memory(wanted: int, total: int, free: int) -> str:
    """PyTorch's words for a card that is full."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted / GIB:.2f} GiB. GPU 0 has a total capacity of "
        f"{total / GIB:.2f} GiB of which {max(0, free) / GIB:.2f} GiB is free."
    )


def too_little_free(free: int, total: int, utilization: float) -> str:
    """vLLM's check at its start."""
    return (
        f"ValueError: Free memory on device cuda:0 ({free / GIB:.2f}/{total / GIB:.2f} GiB) on startup is less than desired GPU memory "
        f"utilization ({utilization}, {total * utilization / GIB:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used by "
        "other processes."
    )


_LINES = {
    Code.DEVICE_OOM: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.50 GiB of "
    "which 1.25 GiB is free.",
    Code.KV_TOO_SMALL: "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
    "the engine.",
    Code.UNSUPPORTED_ARCHITECTURE: "ValueError: Model architectures ['NoSuchForCausalLM'] are not supported for now.",
    Code.SLEEP_UNSUPPORTED: "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, Sleep mode "
    "is not supported on current platform.",
    Code.DRIVER_MISMATCH: "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
    Code.SHM_SMALL: "torch.distributed.DistBackendError: NCCL error: unhandled system error. Error while creating shared memory segment: "
    "No space left on device",
}


def last_words(ended: Ended, leader: int, core: int) -> list[str]:
    """Lines for an end that is worth some; the knob's own text comes first when it says more than the usual."""
    if ended.code is Code.NONE and not ended.text:
        return []
    usual = _LINES.get(ended.code)
    cause = ended.text if usual is None or "Error" in ended.text else usual
    prefix = f"(EngineCore_DP0 pid={core}) ERROR 11-30 12:00:00 [core.py:1108]"
    lines = [f"{prefix} EngineCore failed to start.", f"{prefix} Traceback (most recent call last):"]
    lines += [f"{prefix} {line}" for line in cause.splitlines()]
    lines.append(
        f"(APIServer pid={leader}) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        "{'EngineCore_DP0': 1}"
    )
    return lines
