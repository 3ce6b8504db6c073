"""The flags of ``vllm serve`` that decide how much memory it takes (vLLM 0.33): pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from adapters.engines.vllm_flags import canonical

#: Flag -> field of :class:`Sizing`, for flags with a value.
_VALUES: Final[Mapping[str, str]] = {
    "--max-model-len": "max_length",
    "--kv-cache-dtype": "kv_dtype",
    "--quantization": "quantization",
    "-q": "quantization",
    "--max-num-seqs": "sequences",
    "--max-num-batched-tokens": "batched_tokens",
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
    "--data-parallel-size": "data",
    "-dp": "data",
    "--cpu-offload-gb": "offload",
    "--dtype": "dtype",
    "--block-size": "block",
    "--runner": "runner",
    "--task": "runner",
    "--load-format": "load_format",
    "--mamba-ssm-cache-dtype": "state_dtype",
    "--mm-encoder-tp-mode": "vision",
    "--speculative-config": "speculative",
    "--revision": "revision",
}
_SWITCHES: Final[Mapping[str, tuple[str, bool]]] = {
    "--enforce-eager": ("eager", True),
    "--no-enforce-eager": ("eager", False),
    "--enable-prefix-caching": ("prefixes", True),
    "--no-enable-prefix-caching": ("prefixes", False),
    "--disable-hybrid-kv-cache-manager": ("flat", True),
    "--no-disable-hybrid-kv-cache-manager": ("flat", False),
}
_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", re.ASCII)
_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_COUNT: Final = 1 << 40
_POOLING: Final = frozenset({"pooling", "embed", "embedding", "classify", "score", "reward"})

#: vLLM's own choices on a large device; on smaller ones it takes less.
DEFAULT_BATCHED_TOKENS: Final = 8192
DEFAULT_SEQUENCES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What flags say about memory. ``max_length`` 0 = the model's own; ``offload_bytes`` per device; ``pooling`` None = the model decides.

    ``draft`` is the model that speculates (a folder or an id), ``next_tokens`` = the model's own further layers do.
    """

    max_length: int = 0
    kv_dtype: str = "auto"
    quantization: str = ""
    sequences: int = DEFAULT_SEQUENCES
    batched_tokens: int = DEFAULT_BATCHED_TOKENS
    pipeline: int = 1
    data: int = 1
    offload_bytes: int = 0
    dtype: str = "auto"
    block: int = 16
    pooling: bool | None = None
    load_format: str = "auto"
    state_dtype: str = "auto"
    spread_vision: bool = True
    eager: bool = False
    prefixes: bool = True
    hybrid: bool = True
    draft: str = ""
    next_tokens: bool = False
    revision: str = ""


def read_sizing(args: Sequence[str]) -> Sizing:
    """The sizes that ``args`` ask for; the last of equal flags wins. A value that makes no sense counts as not given: the engine itself
    will refuse it."""
    texts: dict[str, str] = {}
    switches: dict[str, bool] = {}
    pending = iter(args)
    for word in pending:
        _, equals, value = word.partition("=")
        flag = canonical(word)
        if flag in _VALUES:
            texts[_VALUES[flag]] = value if equals else next(pending, "")
        elif flag in _SWITCHES:
            name, on = _SWITCHES[flag]
            switches[name] = on
    draft, next_tokens = _speculative(texts.get("speculative", ""))
    runner = texts.get("runner", "").lower()
    return Sizing(
        max_length=count_of(texts.get("max_length", "")) or 0,
        kv_dtype=texts.get("kv_dtype", "auto").lower(),
        quantization=texts.get("quantization", "").lower().replace("_", "-"),
        sequences=count_of(texts.get("sequences", "")) or DEFAULT_SEQUENCES,
        batched_tokens=count_of(texts.get("batched_tokens", "")) or DEFAULT_BATCHED_TOKENS,
        pipeline=count_of(texts.get("pipeline", "")) or 1,
        data=count_of(texts.get("data", "")) or 1,
        offload_bytes=_gib(texts.get("offload", "")),
        dtype=texts.get("dtype", "auto").lower(),
        block=min(count_of(texts.get("block", "")) or 16, 1 << 16),
        pooling=None if runner in ("", "auto") else runner in _POOLING,
        load_format=texts.get("load_format", "auto").lower(),
        state_dtype=texts.get("state_dtype", "auto").lower(),
        spread_vision=texts.get("vision", "weights") != "data",
        eager=switches.get("eager", False),
        prefixes=switches.get("prefixes", True),
        hybrid=not switches.get("flat", False),
        draft=draft,
        next_tokens=next_tokens,
        revision=texts.get("revision", ""),
    )


def count_of(text: str) -> int | None:
    """A count as vLLM reads it: ``32768``, ``32k`` (decimal), ``32K`` (binary), ``1.5k``; None when it is none, or ``auto`` or ``-1``."""
    match = _COUNT.fullmatch(text.strip())
    if match is None or len(text) > 24:
        return None
    number, unit = match.groups()
    if unit in _BINARY:
        found = int(number) * _BINARY[unit] if "." not in number else None  # vLLM refuses a fraction of a binary unit
    elif not unit:
        found = int(number) if "." not in number else None
    else:
        found = int(float(number) * _DECIMAL[unit])
    return found if found is not None and found <= MAX_COUNT else None


def _gib(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        return 0
    return int(value * (1 << 30)) if 0 < value < 1 << 20 else 0


def _speculative(text: str) -> tuple[str, bool]:
    """The draft model, and whether the model's own layers for further tokens are used."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return "", False
    if not isinstance(found, dict):
        return "", False
    model, method = found.get("model"), str(found.get("method", ""))
    return (model if isinstance(model, str) else "", "mtp" in method)


def parallel(sizing: Sizing, devices: int) -> tuple[int, int]:
    """Tensor and pipeline parallelism over ``devices`` of one instance: what pipeline and data parallelism leave is tensor parallelism."""
    pipeline = min(sizing.pipeline, max(1, devices))
    return max(1, devices // (pipeline * sizing.data)), pipeline
