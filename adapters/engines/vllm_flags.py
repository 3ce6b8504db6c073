"""vLLM's flags: those that hotseat sets itself, and those that decide how deep a model may sleep."""

from collections.abc import Iterable, Mapping, Sequence

_BY_DAEMON = ""  # nothing to use instead: hotseat decides it alone

#: Flag -> the configuration key to use instead.
OWNED: Mapping[str, str] = {
    "--model": "model",
    "--served-model-name": "upstream_model",
    "--config": "args",  # a file could set any of the others
    "--host": _BY_DAEMON,
    "--port": _BY_DAEMON,
    "--uds": _BY_DAEMON,
    "--grpc": _BY_DAEMON,
    "--grpc-port": _BY_DAEMON,
    "--headless": _BY_DAEMON,
    "--api-key": _BY_DAEMON,
    "--ssl-keyfile": _BY_DAEMON,
    "--ssl-certfile": _BY_DAEMON,
    "--shutdown-timeout": "drain_timeout",  # by the time it is stopped it is drained; a sleeper with a queue would only waste it
    "--enable-sleep-mode": "levels",
    "--no-enable-sleep-mode": "levels",
    "--sleep-mode-backend": _BY_DAEMON,  # a name that does not exist fails only at the first sleep; what it frees is not known
    "--gpu-memory-utilization": "footprint",
    "--device-memory-utilization": "footprint",
    "--kv-cache-memory-bytes": "footprint.kv_max",
    "--num-gpu-blocks-override": "footprint.kv_max",
    "--device-ids": "devices.ids",
    "--tensor-parallel-size": "devices.count",
    "-tp": "devices.count",
    "--pipeline-parallel-size": "devices.count",
    "-pp": "devices.count",
    "--data-parallel-size": _BY_DAEMON,  # one engine is one process group on one set of devices; register it twice instead
    "--data-parallel-size-local": _BY_DAEMON,
    "--data-parallel-rank": _BY_DAEMON,
    "--data-parallel-start-rank": _BY_DAEMON,
    "--data-parallel-address": _BY_DAEMON,
    "--data-parallel-rpc-port": _BY_DAEMON,
    "--data-parallel-backend": _BY_DAEMON,
    "--data-parallel-hybrid-lb": _BY_DAEMON,
    "--data-parallel-external-lb": _BY_DAEMON,
    "--data-parallel-multi-port-external-lb": _BY_DAEMON,
    "-dp": _BY_DAEMON,
    "-dpn": _BY_DAEMON,
    "-dpr": _BY_DAEMON,
    "-dpl": _BY_DAEMON,
    "-dpa": _BY_DAEMON,
    "-dpp": _BY_DAEMON,
    "-dpb": _BY_DAEMON,
    "-dph": _BY_DAEMON,
    "-dpe": _BY_DAEMON,
    "-dpm": _BY_DAEMON,
    "--nnodes": _BY_DAEMON,
    "-n": _BY_DAEMON,
    "--node-rank": _BY_DAEMON,
    "-r": _BY_DAEMON,
    "--distributed-executor-backend": _BY_DAEMON,  # Ray's workers are no members of the engine's process group
}

#: Variables that must stay as the adapter sets them -> the key to use instead.
FIXED_ENV: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "devices.ids",
    "CUDA_DEVICE_ORDER": "devices.ids",
    "VLLM_SERVER_DEV_MODE": "levels",
    "VLLM_API_KEY": _BY_DAEMON,
    "VLLM_CPU_KVCACHE_SPACE": "footprint.kv_max",
    "VLLM_DP_SIZE": _BY_DAEMON,  # where no flag says it, vLLM takes data parallelism from here
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": _BY_DAEMON,  # an HTTP server without its engine would look alive for ever
}

#: Where PyTorch reads how its allocator works, newest name first; vLLM looks at all of them since 0.32, at the second before.
ALLOCATOR_ENV = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

#: Formats whose loader can load once more into an engine that runs; others answer 500 to reload_weights (vllm#58124, #57381).
RELOADABLE = frozenset({"auto", "hf", "safetensors", "pt", "npcache", "mistral", "fastsafetensors", "instanttensor"})
#: Weights live in another process, and vLLM refuses or corrupts them with sleep mode.
NEVER_SLEEPS = frozenset({"ipc_cache"})
#: Quantisations whose checkpoints are quantised already. All others are done while loading, and reloading those fails with
#: shapes that do not match (vllm#28606), or corrupts.
ON_DISK = frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "mxfp4", "modelopt", "modelopt_fp4", "auto-round"})

_FORMAT = "--load-format"
_QUANTIZATION = ("--quantization", "-q")
#: What level 2 does not bring back: adapters (vllm#39934, #48337), draft models (vllm#52479, #49774, #55013), and weights that
#: are quantised while loading.
_SHALLOW = (
    *("--enable-lora", "--lora-modules", "--default-mm-loras", "--quantization-config"),
    *("--speculative-config", "-sc", "--speculative-model", "--spec-model", "--spec-method"),
)
_KNOWN = (_FORMAT, *_QUANTIZATION, *_SHALLOW)


def canonical(word: str) -> str:
    """The flag of a word as vLLM understands it: ``--load_format=x`` and ``--load-format.y`` are ``--load-format``."""
    name = word.partition("=")[0]
    return name.partition(".")[0].replace("_", "-") if name.startswith("--") else name


def is_flag(word: str) -> bool:
    """Whether argparse takes it for an option: not a lone dash, not a negative number."""
    return len(word) > 1 and word[0] == "-" and not word[1].isdigit() and word != "--"


def owned_in(args: Iterable[str], env: Iterable[str] = ()) -> tuple[str, str]:
    """The first word or variable that only hotseat may set, and the owned flag it means; two empty strings = none.

    argparse takes every unambiguous beginning of a flag for the flag, so a beginning counts as the flag itself.
    """
    for word in args:
        flag = canonical(word)
        if not is_flag(word):
            continue
        if flag in OWNED:
            return word, flag
        meant = next((owned for owned in OWNED if owned.startswith(flag)), None)
        if meant is not None:
            return word, meant
    return next(((name, name) for name in env if name in FIXED_ENV), ("", ""))


def levels_of(args: Sequence[str], model: str = "") -> tuple[int, ...]:
    """Sleep levels that can be tried with these flags and this model, shallowest first."""
    given = _given(args)
    form = "gguf" if model.lower().endswith(".gguf") else given.get(_FORMAT, "auto").lower()
    if form in NEVER_SLEEPS:
        return ()
    quantization = next((given[name] for name in _QUANTIZATION if name in given), "")
    shallow = any(name in given for name in _SHALLOW)
    if shallow or form not in RELOADABLE or (quantization and quantization.lower() not in ON_DISK):
        return (1,)
    return (1, 2)


def expandable_segments(env: Mapping[str, str]) -> str:
    """The variable that asks PyTorch for expandable segments, or empty.

    Sleep mode's pool and expandable segments exclude each other (pytorch#147851): up to 0.20 vLLM does not start with both, and
    what it allocated in them a sleeper does not give back (vllm#14189).
    """
    for name in ALLOCATOR_ENV:
        for part in env.get(name, "").split(","):
            key, _, value = part.partition(":")
            if key.strip() == "expandable_segments" and value.strip().lower() in ("true", "1"):
                return name
    return ""


def _given(args: Sequence[str]) -> dict[str, str]:
    """Flags of :data:`_KNOWN` that are given, with their value; the last one wins."""
    found: dict[str, str] = {}
    for place, word in enumerate(args):
        if not is_flag(word):
            continue
        flag = _complete(canonical(word))
        if flag in _KNOWN:
            _, equals, value = word.partition("=")
            found[flag] = value if equals else next(iter(args[place + 1 : place + 2]), "")
    return found


def _complete(flag: str) -> str:
    """An abbreviation's flag, when it is the beginning of exactly one that is looked for."""
    if flag in _KNOWN or not flag.startswith("--"):
        return flag
    meant = [name for name in _KNOWN if name.startswith(flag)]
    return meant[0] if len(meant) == 1 else flag
