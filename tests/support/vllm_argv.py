"""The command line of the fake vLLM: the flags of the real one that an adapter or an operator may give, and its refusals."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
LOADERS_THAT_RELOAD = ("auto", "hf", "safetensors", "pt", "npcache", "mistral", "fastsafetensors", "instanttensor")

#: Flags that it takes and whose values make no difference to it.
IGNORED = [
    "--tokenizer",
    "--revision",
    "--dtype",
    "--seed",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--block-size",
    "--quantization",
    "--distributed-executor-backend",
    "--chat-template",
    "--tool-call-parser",
    "--reasoning-parser",
    "--download-dir",
    "--sleep-mode-backend",
    "--swap-space",
    "--cpu-offload-gb",
    "--kv-transfer-config",
    "--speculative-config",
    "--compilation-config",
    "--config-format",
    "--hf-overrides",
    "--override-generation-config",
    "--generation-config",
    "--max-logprobs",
    "--max-num-queued-reqs",
    "--max-num-queued-tokens",
    "--uvicorn-log-level",
    "--log-config-file",
    "--max-loras",
    "--max-lora-rank",
    "--limit-mm-per-prompt",
    "--attention-backend",
    "--tokenizer-mode",
    "--kv-offloading-size",
    "--kv-offloading-backend",
    "--middleware",
    "--root-path",
    "--response-role",
]
SWITCHES = [
    "--enforce-eager",
    "--enable-prefix-caching",
    "--no-enable-prefix-caching",
    "--trust-remote-code",
    "--enable-auto-tool-choice",
    "--disable-log-requests",
    "--enable-log-requests",
    "--no-enable-log-requests",
    "--disable-log-stats",
    "--enable-lora",
    "--enable-chunked-prefill",
    "--no-enable-chunked-prefill",
    "--sleep-mode-offload-cudagraph",
    "--enable-nccl-comm-suspend",
    "--enable-server-load-tracking",
    "--async-scheduling",
    "--no-async-scheduling",
    "--disable-custom-all-reduce",
    "--enable-expert-parallel",
    "--language-model-only",
    "--disable-uvicorn-access-log",
    "--enable-sleep-mode",
    "--no-enable-sleep-mode",
]
LISTS = ["--lora-modules", "--sleep-preserve-parameter-names", "--allowed-origins", "--disable-access-log-for-endpoints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the fake makes something of."""

    model: str
    served: tuple[str, ...]
    host: str
    port: int
    sleep_mode: bool
    utilization: float
    kv_bytes: int | None
    kv_dtype: str
    tensor_parallel: int
    load_format: str
    max_model_len: int | None
    shutdown_s: float
    api_keys: tuple[str, ...]
    embeds: bool


def size(text: str) -> int:
    """Bytes as vLLM reads them: 1000, 1k = 1000, 1K = 1024, 2.5G."""
    unit = UNITS.get(text[-1:], 1)
    return int(float(text[:-1] if unit != 1 else text) * unit)


def parse(argv: Sequence[str]) -> Options:
    """Understand the command line, or say what is wrong with it and exit with status 2, as argparse does."""
    top = argparse.ArgumentParser(prog="vllm", description="vLLM CLI")
    top.add_argument("-v", "--version", action="store_true")
    commands = top.add_subparsers(dest="subparser")
    serve = commands.add_parser("serve", prog="vllm serve", usage="vllm serve [model_tag] [options]")
    serve.add_argument("model_tag", nargs="?")
    serve.add_argument("--model", default="Qwen/Qwen3-0.6B")
    serve.add_argument("--served-model-name", nargs="+", default=[])
    serve.add_argument("--host", default="0.0.0.0")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    serve.add_argument("--kv-cache-memory-bytes", type=size, default=None)
    serve.add_argument("--kv-cache-dtype", default="auto")
    serve.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    serve.add_argument("--load-format", default="auto")
    serve.add_argument("--max-model-len", type=size, default=None)
    serve.add_argument("--shutdown-timeout", type=float, default=0.0)
    serve.add_argument("--api-key", nargs="+", default=[])
    serve.add_argument("--runner", choices=["auto", "generate", "pooling", "draft"], default="auto")
    serve.add_argument("--convert", choices=["auto", "none", "embed", "classify"], default="auto")
    for name in IGNORED:
        serve.add_argument(name)
    for name in SWITCHES:
        serve.add_argument(name, action="store_true")
    for name in LISTS:
        serve.add_argument(name, nargs="+", default=[])
    found = top.parse_args([_dashed(word) for word in argv])
    if found.version or found.subparser is None:
        return _only_version(found.version, top)
    model = found.model_tag or found.model
    return Options(
        model=model,
        served=tuple(found.served_model_name) or (model,),
        host=found.host,
        port=found.port,
        sleep_mode=found.enable_sleep_mode and not found.no_enable_sleep_mode,
        utilization=found.gpu_memory_utilization,
        kv_bytes=found.kv_cache_memory_bytes,
        kv_dtype=found.kv_cache_dtype,
        tensor_parallel=found.tensor_parallel_size,
        load_format=found.load_format,
        max_model_len=found.max_model_len,
        shutdown_s=found.shutdown_timeout,
        api_keys=tuple(found.api_key),
        embeds=found.runner == "pooling" or found.convert == "embed",
    )


class VersionAsked(Exception):
    """Only the version is wanted."""


def _only_version(asked: bool, top: argparse.ArgumentParser) -> Options:
    if asked:
        raise VersionAsked
    top.print_help()
    raise SystemExit(1)


def _dashed(word: str) -> str:
    """Underscores in a flag's name count as dashes, as in vLLM."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def missing_model(model: str) -> str | None:
    """What vLLM says about a folder that is no model; None = it may be one (names of a hub are believed)."""
    if not model.startswith(("/", ".")) or (Path(model) / "config.json").is_file():
        return None
    return (
        f"Invalid repository ID or local directory specified: '{model}'.\nPlease verify the following requirements:\n"
        "1. Provide a valid Hugging Face repository ID.\n2. Specify a local directory that contains a recognized configuration file.\n"
    )
