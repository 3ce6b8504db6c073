"""A llama.cpp server from the prebuilt wheel ``xllamacpp``, run with llama-server's own flags.

``python -I xllamacpp_server.py -m FILE --host 127.0.0.1 --port 8080 -a NAME -c 4096``: the HTTP server inside is
llama.cpp's, so are its endpoints and its log on stderr. This file only turns flags, and the ``LLAMA_ARG_*`` variables
of llama-server, into parameters, and ends the process as llama-server does: TERM or INT end it with 0 (at once, also
with streams under way), a wrong flag or a model that cannot be loaded with 1 and the cause on stderr. It stands alone:
started by path, it imports nothing of this package, so neither the working directory nor the environment of an engine
decides what it runs.

The flags are a useful subset, see :data:`OPTIONS`; with a ``llama-server`` on PATH, all of its flags are there.
"""

import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Params = Any  # xllamacpp.CommonParams; the wheel ships no types

ALIVE_CHECK_S = 5.0


class UsageError(Exception):
    """A wrong command line; the message is what llama-server would print."""


@dataclass(frozen=True, slots=True)
class Option:
    """One flag with a value, its other names, its variable, and what it sets."""

    names: tuple[str, ...]
    env: str
    apply: Callable[[Params, str], None]


@dataclass(frozen=True, slots=True)
class Switch:
    """One flag without a value; ``off`` are the names that switch it off. As a variable: 1/0, on/off, true/false."""

    names: tuple[str, ...]
    env: str
    apply: Callable[[Params, bool], None]
    off: tuple[str, ...] = ()


def _set(path: str, convert: Callable[[str], Any]) -> Callable[[Params, str], None]:
    *owners, attribute = path.split(".")

    def apply(params: Params, text: str) -> None:
        target = params
        for owner in owners:
            target = getattr(target, owner)
        setattr(target, attribute, convert(text))

    return apply


def _flag(attribute: str) -> Callable[[Params, bool], None]:
    return lambda params, value: setattr(params, attribute, value)


def _choice(enumeration: str, prefix: str) -> Callable[[str], Any]:
    """A member of one of xllamacpp's enumerations by its short name: ``q8_0`` is ``GGML_TYPE_Q8_0``."""

    def convert(text: str) -> Any:
        import xllamacpp

        members = getattr(xllamacpp, enumeration)
        found = getattr(members, prefix + text.upper().replace("+", "_"), None)
        if found is None:
            raise ValueError(f"Unsupported value: {text}")
        return found

    return convert


def _load_mode(text: str) -> Any:
    return _choice("llama_load_mode", "LLAMA_LOAD_MODE_")({"dio": "direct_io"}.get(text, text))


def _threads(params: Params, text: str) -> None:
    params.cpuparams.n_threads = int(text)


def _aliases(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _on(text: str) -> bool:
    if text.lower() in ("on", "1", "true", "enabled"):
        return True
    if text.lower() in ("off", "0", "false", "disabled"):
        return False
    raise ValueError(f"unknown value: '{text}'")


def _fit(params: Params, text: str) -> None:
    params.fit_params = _on(text)


def _flash(text: str) -> Any:
    known = {"on": "enabled", "off": "disabled", "1": "enabled", "0": "disabled"}
    return _choice("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_")(known.get(text, text))


def _no_device(_params: Params, text: str) -> None:
    if text != "none":  # the wheel is built for the CPU
        raise ValueError(f"invalid device: {text}")


def _timeout(params: Params, text: str) -> None:
    params.timeout_read = params.timeout_write = int(text)


def _rerank(params: Params, value: bool) -> None:
    params.embedding = value
    if value:
        _set("pooling_type", _choice("llama_pooling_type", "LLAMA_POOLING_TYPE_"))(params, "rank")


def _file(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


_KV_TYPE = _choice("ggml_type", "GGML_TYPE_")

OPTIONS: tuple[Option | Switch, ...] = (
    Option(("-m", "--model"), "LLAMA_ARG_MODEL", _set("model.path", str)),
    Option(("--host",), "LLAMA_ARG_HOST", _set("hostnames", _words)),
    Option(("--port",), "LLAMA_ARG_PORT", _set("port", int)),
    Option(("-a", "--alias"), "LLAMA_ARG_ALIAS", _set("model_alias", _aliases)),
    Option(("-c", "--ctx-size"), "LLAMA_ARG_CTX_SIZE", _set("n_ctx", int)),
    Option(("-np", "--parallel"), "LLAMA_ARG_N_PARALLEL", _set("n_parallel", int)),
    Option(("-t", "--threads"), "LLAMA_ARG_THREADS", _threads),
    Option(("-tb", "--threads-batch"), "", _set("cpuparams_batch.n_threads", int)),
    Option(("--threads-http",), "LLAMA_ARG_THREADS_HTTP", _set("n_threads_http", int)),
    Option(("-b", "--batch-size"), "LLAMA_ARG_BATCH", _set("n_batch", int)),
    Option(("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH", _set("n_ubatch", int)),
    Option(("-n", "--predict", "--n-predict"), "LLAMA_ARG_N_PREDICT", _set("n_predict", int)),
    Option(("--keep",), "", _set("n_keep", int)),
    Option(("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K", _set("cache_type_k", _KV_TYPE)),
    Option(("-ctv", "--cache-type-v"), "LLAMA_ARG_CACHE_TYPE_V", _set("cache_type_v", _KV_TYPE)),
    Option(("-fa", "--flash-attn"), "LLAMA_ARG_FLASH_ATTN", _set("flash_attn_type", _flash)),
    Option(("-lm", "--load-mode"), "LLAMA_ARG_LOAD_MODE", _set("load_mode", _load_mode)),
    Option(("-fit", "--fit"), "LLAMA_ARG_FIT", _fit),
    Option(("-dev", "--device"), "LLAMA_ARG_DEVICE", _no_device),
    Option(("-ngl", "--gpu-layers", "--n-gpu-layers"), "LLAMA_ARG_N_GPU_LAYERS", lambda _params, _text: None),
    Option(("-cram", "--cache-ram"), "LLAMA_ARG_CACHE_RAM", _set("cache_ram_mib", int)),
    Option(("--cache-reuse",), "LLAMA_ARG_CACHE_REUSE", _set("n_cache_reuse", int)),
    Option(("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"), "LLAMA_ARG_CTX_CHECKPOINTS", _set("n_ctx_checkpoints", int)),
    Option(("-cms", "--checkpoint-min-step"), "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", _set("checkpoint_min_step", int)),
    Option(("-sps", "--slot-prompt-similarity"), "", _set("slot_prompt_similarity", float)),
    Option(("--pooling",), "LLAMA_ARG_POOLING", _set("pooling_type", _choice("llama_pooling_type", "LLAMA_POOLING_TYPE_"))),
    Option(("--embd-normalize",), "", _set("embd_normalize", int)),
    Option(("--slot-save-path",), "LLAMA_ARG_SLOT_SAVE_PATH", _set("slot_save_path", lambda text: os.path.join(text, ""))),
    Option(("--chat-template",), "LLAMA_ARG_CHAT_TEMPLATE", _set("chat_template", str)),
    Option(("--chat-template-file",), "LLAMA_ARG_CHAT_TEMPLATE_FILE", _set("chat_template", _file)),
    Option(("-mm", "--mmproj"), "LLAMA_ARG_MMPROJ", _set("mmproj.path", str)),
    Option(("--api-key",), "LLAMA_API_KEY", _set("api_keys", _words)),
    Option(("--sleep-idle-seconds",), "", _set("sleep_idle_seconds", int)),
    Option(("-to", "--timeout"), "LLAMA_ARG_TIMEOUT", _timeout),
    Option(("-s", "--seed"), "", _set("sampling.seed", lambda text: int(text) & 0xFFFFFFFF)),
    Option(("--temp", "--temperature"), "LLAMA_ARG_TEMPERATURE", _set("sampling.temp", float)),
    Option(("--top-k",), "LLAMA_ARG_TOP_K", _set("sampling.top_k", int)),
    Option(("--top-p",), "LLAMA_ARG_TOP_P", _set("sampling.top_p", float)),
    Option(("--min-p",), "LLAMA_ARG_MIN_P", _set("sampling.min_p", float)),
    Option(("-lv", "--verbosity", "--log-verbosity"), "LLAMA_ARG_LOG_VERBOSITY", _set("verbosity", int)),
    Switch(("--embeddings", "--embedding"), "LLAMA_ARG_EMBEDDINGS", _flag("embedding")),
    Switch(("--rerank", "--reranking"), "LLAMA_ARG_RERANKING", _rerank),
    Switch(("--metrics",), "LLAMA_ARG_ENDPOINT_METRICS", _flag("endpoint_metrics")),
    Switch(("--slots",), "LLAMA_ARG_ENDPOINT_SLOTS", _flag("endpoint_slots"), off=("--no-slots",)),
    Switch(("--props",), "LLAMA_ARG_ENDPOINT_PROPS", _flag("endpoint_props")),
    Switch(("--swa-full",), "LLAMA_ARG_SWA_FULL", _flag("swa_full")),
    Switch(("--jinja",), "LLAMA_ARG_JINJA", _flag("use_jinja"), off=("--no-jinja",)),
    Switch(("-kvu", "--kv-unified"), "LLAMA_ARG_KV_UNIFIED", _flag("kv_unified"), off=("-no-kvu", "--no-kv-unified")),
    Switch(("--context-shift",), "LLAMA_ARG_CONTEXT_SHIFT", _flag("ctx_shift"), off=("--no-context-shift",)),
    Switch(("-cb", "--cont-batching"), "LLAMA_ARG_CONT_BATCHING", _flag("cont_batching"), off=("-nocb", "--no-cont-batching")),
    Switch(("--cache-prompt",), "LLAMA_ARG_CACHE_PROMPT", _flag("cache_prompt"), off=("--no-cache-prompt",)),
    Switch(("--warmup",), "", _flag("warmup"), off=("--no-warmup",)),
    Switch(("--ui", "--webui"), "LLAMA_ARG_UI", _flag("ui"), off=("--no-ui", "--no-webui")),
    Switch(("--check-tensors",), "", _flag("check_tensors")),
    Switch(("--offline",), "LLAMA_ARG_OFFLINE", _flag("offline")),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to set, and how it was said."""

    said: str
    apply: Callable[[Params], None]


def read_settings(argv: Sequence[str], environ: Mapping[str, str]) -> list[Setting]:
    """What variables and flags ask for, in the order in which it has to be applied. Raises UsageError."""
    settings = [_bind(option, option.env, environ[option.env]) for option in OPTIONS if option.env and environ.get(option.env)]
    by_name = {name: option for option in OPTIONS for name in option.names}
    off = {name: option for option in OPTIONS if isinstance(option, Switch) for name in option.off}
    words = iter(argv)
    for word in words:
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in off:
            settings.append(_bind(off[name], word, "off"))
        elif name not in by_name:
            raise UsageError(f"error: invalid argument: {word}")
        elif isinstance(by_name[name], Switch):
            settings.append(_bind(by_name[name], word, "on"))
        else:
            value = next(words, None)
            if value is None:
                raise UsageError(f'error while handling argument "{word}": expected value for argument')
            settings.append(_bind(by_name[name], word, value))
    return settings


def _bind(option: Option | Switch, said: str, value: str) -> Setting:
    if isinstance(option, Switch):
        switch = option.apply
        return Setting(said, lambda params: switch(params, _on(value)))
    setter = option.apply
    return Setting(said, lambda params: setter(params, value))


def apply_settings(params: Params, settings: Sequence[Setting]) -> None:
    """Set them all. Raises UsageError for a value that does not fit."""
    params.port, params.n_parallel = 8080, -1  # where llama-server's defaults are others; -1 = four slots, one KV cache
    for setting in settings:
        try:
            setting.apply(params)
        except (ValueError, TypeError, OverflowError, OSError, AttributeError) as error:
            raise UsageError(f'error while handling argument "{setting.said}": {error}') from error
    if not params.model.path:
        raise UsageError("error: --model is required")


def main(argv: Sequence[str]) -> int:
    """Serve until told to end; returns the exit status."""
    if "--version" in argv:
        print_version()
        return 0
    try:
        settings = read_settings(argv, os.environ)
        import xllamacpp  # late: a wrong flag is refused without the 100 MB library

        params = xllamacpp.CommonParams()
        apply_settings(params, settings)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except ImportError as error:
        sys.stderr.write(f"error: cannot load xllamacpp: {error}\n")
        return 127
    return serve(xllamacpp.Server, params)


def serve(server_type: Callable[[Params], Any], params: Params) -> int:
    """Load the model and serve until TERM or INT.

    While loading, the default disposition of signals stands (the constructor holds the interpreter lock, no handler of
    ours could run): TERM ends the process at once. Then llama.cpp installs handlers of its own, which end its loop but
    know nothing of this thread, and wait for streams under way, for ever; ours replace them and leave at once. A signal
    that fell in between ended the loop, hence the look at the port every few seconds.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)  # signals reach any thread; the byte wakes this one
    try:
        server = server_type(params)
    except (RuntimeError, MemoryError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    while not select.select([reading], [], [], ALIVE_CHECK_S)[0]:
        if not _listens(server.listening_address):
            break
    sys.stderr.write("told to end\n")
    sys.stderr.flush()
    os._exit(0)  # no destructors: they join threads that wait for clients


def _listens(url: str) -> bool:
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname, address.port or 0), timeout=ALIVE_CHECK_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # busy, or not a TCP address: no evidence of an end


def print_version() -> None:
    """As ``llama-server --version``: on stderr."""
    import xllamacpp

    sys.stderr.write(f"version: {xllamacpp.BUILD_INFO.get('build_number')} (xllamacpp {xllamacpp.__version__})\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
