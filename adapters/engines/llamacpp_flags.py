"""llama-server's flags: those that hotseat sets itself, and those that decide how much memory it takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_BY_DAEMON = ""  # nothing to use instead: hotseat decides it alone

#: Flag -> the configuration key to use instead.
OWNED: Mapping[str, str] = {
    "--host": _BY_DAEMON,
    "--port": _BY_DAEMON,
    "--reuse-port": _BY_DAEMON,
    "--api-prefix": _BY_DAEMON,
    "-a": "upstream_model",
    "--alias": "upstream_model",
    "-m": "model",
    "--model": "model",
    "-mu": "model",
    "--model-url": "model",
    "-hf": "model",
    "-hfr": "model",
    "--hf-repo": "model",
    "-hff": "model",
    "--hf-file": "model",
    "-dr": "model",
    "--docker-repo": "model",
    "--models-dir": "models",
    "--models-preset": "models",
    "--models-max": "models",
    "--models-autoload": "models",
    "--no-models-autoload": "models",
    "--metrics": _BY_DAEMON,
    "--api-key": _BY_DAEMON,
    "--api-key-file": _BY_DAEMON,
    "--ssl-key-file": _BY_DAEMON,
    "--ssl-cert-file": _BY_DAEMON,
    "--sleep-idle-seconds": "idle_sleep_after",
    "--mmap": _BY_DAEMON,
    "--no-mmap": _BY_DAEMON,
    "--mlock": _BY_DAEMON,
    "-dio": _BY_DAEMON,
    "--direct-io": _BY_DAEMON,
    "-lm": _BY_DAEMON,
    "--load-mode": _BY_DAEMON,
    "-fit": _BY_DAEMON,
    "--fit": _BY_DAEMON,
    "-fitc": _BY_DAEMON,
    "--fit-ctx": _BY_DAEMON,
    "-fitt": _BY_DAEMON,
    "--fit-target": _BY_DAEMON,
    "-dev": "devices",
    "--device": "devices",
    "--list-devices": "devices",
    "--log-file": _BY_DAEMON,
    "--log-disable": _BY_DAEMON,
}

#: What an engine gets unless the model's ``args`` or ``env`` say otherwise. Variables rather than flags, since an
#: older or newer llama-server ignores a variable that it does not know, but refuses such a flag.
DEFAULT_ENV: Mapping[str, str] = {
    "LLAMA_ARG_LOAD_MODE": "none",  # weights in memory of its own: mapped files are no memory that anybody can count
    "LLAMA_ARG_NO_MMAP": "1",  # the same for versions before --load-mode
    "LLAMA_ARG_FIT": "off",  # else it shrinks the context to what is free just now
    "LLAMA_ARG_DEVICE": "none",  # a seat on the CPU must not spill on a graphics card
    "LLAMA_ARG_CACHE_RAM": "0",  # its default is a prompt cache of 8 GiB beside everything else
    "LLAMA_ARG_CTX_CHECKPOINTS": "4",  # its default of 32 a slot grows by hundreds of MiB with sliding-window models
    "OMP_WAIT_POLICY": "passive",  # threads that wait by spinning starve each other and the neighbours: 2 instead of 25 tokens/s
    "GGML_NO_BACKTRACE": "1",  # a crash ends at once instead of waiting for a debugger
}

#: Variables that must stay as above, so that claims mean something.
_FIXED_ENV = {"LLAMA_ARG_LOAD_MODE", "LLAMA_ARG_NO_MMAP", "LLAMA_ARG_MMAP", "LLAMA_ARG_MLOCK", "LLAMA_ARG_FIT", "LLAMA_ARG_DEVICE"}
_FIXED_ENV |= {"LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_ALIAS", "LLAMA_ARG_MODEL", "LLAMA_ARG_MODELS_DIR"}

#: Bytes per element of the types that a KV cache may have.
CACHE_TYPES: Mapping[str, float] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "iq4_nl": 18 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
}

AUTO_SLOTS = 4

# field of Sizing -> names of the flag, its variable
_VALUES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "context": (("-c", "--ctx-size"), "LLAMA_ARG_CTX_SIZE"),
    "slots": (("-np", "--parallel"), "LLAMA_ARG_N_PARALLEL"),
    "batch": (("-b", "--batch-size"), "LLAMA_ARG_BATCH"),
    "ubatch": (("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH"),
    "key_type": (("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K"),
    "value_type": (("-ctv", "--cache-type-v"), "LLAMA_ARG_CACHE_TYPE_V"),
    "flash": (("-fa", "--flash-attn"), "LLAMA_ARG_FLASH_ATTN"),
    "cache_ram_mib": (("-cram", "--cache-ram"), "LLAMA_ARG_CACHE_RAM"),
    "checkpoints": (("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), "LLAMA_ARG_CTX_CHECKPOINTS"),
    "unified_per_slot": (("--kv-unified-per-slot",), "LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
    "draft": (("-md", "--model-draft", "--spec-draft-model"), "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    "projector": (("-mm", "--mmproj"), "LLAMA_ARG_MMPROJ"),
    "adapters": (("--lora",), ""),
}
_SWITCHES: Mapping[str, tuple[str, str, bool]] = {  # flag -> (field, variable, value)
    "-kvu": ("unified", "LLAMA_ARG_KV_UNIFIED", True),
    "--kv-unified": ("unified", "LLAMA_ARG_KV_UNIFIED", True),
    "-no-kvu": ("unified", "LLAMA_ARG_KV_UNIFIED", False),
    "--no-kv-unified": ("unified", "LLAMA_ARG_KV_UNIFIED", False),
    "--swa-full": ("swa_full", "LLAMA_ARG_SWA_FULL", True),
    "--embeddings": ("pooled", "LLAMA_ARG_EMBEDDINGS", True),
    "--embedding": ("pooled", "LLAMA_ARG_EMBEDDINGS", True),
    "--rerank": ("pooled", "LLAMA_ARG_RERANKING", True),
    "--reranking": ("pooled", "LLAMA_ARG_RERANKING", True),
}
_TRUE = {"1", "on", "true", "enabled"}
_FLAG_OF_VALUE = {name: key for key, (names, _) in _VALUES.items() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What flags say about memory. ``context`` 0 = the model's own; counts are tokens, ``cache_ram_mib`` MiB."""

    context: int = 0
    slots: int = AUTO_SLOTS
    unified: bool = True
    batch: int = 2048
    ubatch: int = 512
    key_type: str = "f16"
    value_type: str = "f16"
    flash: bool = True
    swa_full: bool = False
    pooled: bool = False
    cache_ram_mib: int = 0
    checkpoints: int = 0
    draft: str = ""
    projector: str = ""
    adapters: tuple[str, ...] = ()


def read_sizing(args: Sequence[str], env: Mapping[str, str]) -> Sizing:
    """The sizes that ``args`` and ``LLAMA_ARG_*`` of ``env`` ask for; a flag wins over its variable, the last flag over earlier ones.

    A value that makes no sense counts as not given: the engine itself will refuse it.
    """
    texts, switches = _from_env(env)
    words = iter(args)
    for word in words:
        flag = canonical(word)
        if flag in _FLAG_OF_VALUE:
            texts[_FLAG_OF_VALUE[flag]] = next(words, "")
        elif flag in _SWITCHES:
            key, _, value = _SWITCHES[flag]
            switches[key] = value
    slots = _number(texts, "slots", -1)
    auto = slots < 1
    count = AUTO_SLOTS if auto else slots
    return Sizing(
        context=max(0, _number(texts, "context", count * max(0, _number(texts, "unified_per_slot", 0)))),
        slots=count,
        unified=switches.get("unified", auto),
        batch=max(1, _number(texts, "batch", 2048)),
        ubatch=max(1, _number(texts, "ubatch", 512)),
        key_type=_cache_type(texts, "key_type"),
        value_type=_cache_type(texts, "value_type"),
        flash=texts.get("flash", "auto") not in ("off", "0", "false", "disabled"),
        swa_full=switches.get("swa_full", False),
        pooled=switches.get("pooled", False),
        cache_ram_mib=_number(texts, "cache_ram_mib", 0),
        checkpoints=max(0, _number(texts, "checkpoints", 32)),
        draft=texts.get("draft", ""),
        projector=texts.get("projector", ""),
        adapters=tuple(path for path in texts.get("adapters", "").split(",") if path),
    )


def canonical(word: str) -> str:
    """A flag as llama-server understands it: ``--ctx_size`` is ``--ctx-size``."""
    return word.replace("_", "-") if word.startswith("--") else word


def owned_in(args: Iterable[str], env: Iterable[str]) -> str:
    """The first flag or variable that only hotseat may set, or empty."""
    for word in args:
        if canonical(word.partition("=")[0]) in OWNED:
            return word
    return next((name for name in env if name in _FIXED_ENV), "")


def _from_env(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, bool]]:
    texts = {key: env[variable] for key, (_, variable) in _VALUES.items() if env.get(variable)}
    switches = {}
    for key, variable, value in _SWITCHES.values():
        if value and env.get(variable):
            switches[key] = env[variable].lower() in _TRUE
    return texts, switches


def _number(texts: Mapping[str, str], key: str, default: int) -> int:
    try:
        return int(texts[key])
    except (KeyError, ValueError):
        return default


def _cache_type(texts: Mapping[str, str], key: str) -> str:
    value = texts.get(key, "f16").lower()
    return value if value in CACHE_TYPES else "f16"
