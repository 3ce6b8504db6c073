"""How much memory a vLLM server takes on each of its devices, from the model's folder and the flags.

awake = weights + overhead + KV. The weights and the KV cache are exact; the overhead is not known before it was measured, so each part of
it is a figure seen in public measurements, rounded up; the first start replaces it:

* **context**: 0.5 GiB for the CUDA context, library handles and kernels.
* **activations** of one step of ``max_num_batched_tokens`` tokens, which the profile run makes: the hidden state, its residual and their
  copies, and the widest part of a layer; then the sampler's logits of ``max_num_seqs`` sequences. With images 1 GiB more.
* **graphs**: 0.5 GiB and 16 MiB a layer (1 to 2 GiB for models of 32 to 96 layers); none with ``--enforce-eager``.
* **communication**: 1 GiB of NCCL's buffers and rings with tensor parallelism.
"""

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from adapters.engines.declared import with_declared
from adapters.engines.hf_config import DTYPE_BYTES, hidden_size, intermediate_size, positive, query_heads, text_config
from adapters.engines.hf_folder import Evidence, FolderError, HfModel, read_folder
from adapters.engines.hf_hub import environment, find_folder, find_snapshot, folder_of, hub_cache, is_id, is_offline
from adapters.engines.kv_bytes import Cache, request_bytes, stages
from adapters.engines.kv_kinds import Layer
from adapters.engines.kv_layers import head_dim, read_layers
from adapters.engines.tensor_split import Split, with_next_tokens
from adapters.engines.vllm_sizing import Sizing, parallel, read_sizing
from scheduler.domain.claims import BANDWIDTH_PRIOR_BPS, Footprint
from scheduler.domain.errors import Permanent
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB, MIB

PLAIN_BYTES: Final = 2  # of an element in bfloat16 or float16
#: Padding of tensors and of the allocator's blocks (2 to 5 % were seen).
WEIGHTS_MARGIN: Final = 1.02
CONTEXT_BYTES: Final = GIB // 2
#: On the CPU there is no context, but two Python processes with PyTorch.
CPU_PROCESS_BYTES: Final = 2 * GIB
GRAPHS_BYTES: Final = GIB // 2
GRAPHS_PER_LAYER_BYTES: Final = 16 * MIB
COMMUNICATION_BYTES: Final = GIB
VISION_BYTES: Final = GIB
#: A sampled sequence: logits in 32 bits, a sorted copy, and the 64-bit positions of the sort, for each token of the vocabulary.
SAMPLER_BYTES: Final = 16
#: Times the KV cache of one request of full length: the cache to start with where there is room.
KV_REQUESTS: Final = 4

RESIDUE_BYTES: Final = 3 * GIB // 2
GANG_RESIDUE_BYTES: Final = 5 * GIB // 2
#: Level 1 keeps pinned copies for good, of sizes rounded up: 22 GiB were seen for 16.4 GB of weights.
HOST_FACTOR: Final = 1.35
HOST_EXTRA_BYTES: Final = 2 * GIB
HOST_BUFFERS_BYTES: Final = 256 * MIB  # level 2 keeps a model's buffers, no weights

COPY_BPS: Final = 20_000_000_000  # host to device; 21 GB/s were seen
PINNING_BPS: Final = 1_600_000_000  # the first sleep at level 1 allocates its copies: 10.6 s for 16.4 GB
WAKE_FIXED_S: Final = 0.3
RELOAD_FIXED_S: Final = 1.0
SLEEP_FIXED_S: Final = 0.5
START_FIXED_S: Final = 30.0

#: Of a model that is nowhere to be read and whose name tells nothing.
GUESS_BYTES: Final = 2 * GIB
#: No device has more; a larger figure comes from a file that lies.
MOST_BYTES: Final = 1 << 50

#: What ``--quantization`` leaves of 16-bit matrices when it is applied while loading: (numerator, denominator).
_ONLINE: Final = {
    "fp8": (1, 2),
    "fp8-per-tensor": (1, 2),
    "fp8-per-block": (1, 2),
    "ptpc-fp8": (1, 2),
    "experts-int8": (1, 2),
    "mxfp8": (17, 32),
    "bitsandbytes": (9, 32),
}
_PARAMETERS: Final = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?([bm])(?![a-z0-9])", re.IGNORECASE)
_QUARTER: Final = re.compile(r"awq|gptq|int4|4bit|w4a16|nvfp4|mxfp4|fp4|bnb", re.IGNORECASE)
_HALF: Final = re.compile(r"fp8|int8|8bit|w8a8|w8a16", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Bytes on the fullest device by what they are for; ``host_weights`` are those of all devices together."""

    weights: int
    context: int
    activations: int
    graphs: int
    communication: int
    kv_min: int
    kv_max: int
    loading: int  # what loading needs beyond the weights
    host_weights: int
    disk: int

    @property
    def overhead(self) -> int:
        """All but weights and KV."""
        return self.context + self.activations + self.graphs + self.communication

    @property
    def awake(self) -> int:
        """The most that is held while serving."""
        return self.weights + self.overhead + self.kv_max


def estimate(spec: ModelSpec) -> Footprint:
    """What ``spec`` takes on each device, and how long its transitions take. Never raises: what cannot be read is guessed. Blocks."""
    sizing = read_sizing((*spec.engine_args, *spec.args))
    model = _readable(spec, sizing)
    if model is None:
        parts = _guess(spec, sizing)
    else:
        parts = measure(model, sizing, spec.devices.count, on_cpu=spec.devices.kind == "cpu", draft=_draft(spec, sizing))
    said = spec.footprint.weights_bytes
    if said is not None:  # what follows from the weights follows from the declared ones
        parts = replace(
            parts, weights=said, loading=0, host_weights=said * max(1, spec.devices.count), disk=said * max(1, spec.devices.count)
        )
    return with_declared(_footprint(parts, spec.devices.count), spec)


def _footprint(parts: Parts, devices: int) -> Footprint:
    weights, awake = _capped(parts.weights), _capped(parts.awake)
    residue = min(GANG_RESIDUE_BYTES if devices > 1 else RESIDUE_BYTES, awake // 2)  # more than half of it would be no sleep
    reading_s = _capped(parts.disk) / BANDWIDTH_PRIOR_BPS
    copy = _capped(int(parts.host_weights * HOST_FACTOR) + HOST_EXTRA_BYTES)
    return Footprint(
        awake_bytes=awake,
        start_peak_bytes=max(awake, _capped(parts.weights + parts.loading + parts.overhead)),
        residue_bytes={1: residue, 2: residue},
        host_bytes={1: copy, 2: HOST_BUFFERS_BYTES},
        wake_s={1: weights / COPY_BPS + WAKE_FIXED_S, 2: reading_s + RELOAD_FIXED_S},
        sleep_s={1: weights / PINNING_BPS + SLEEP_FIXED_S, 2: SLEEP_FIXED_S},
        start_s=reading_s + START_FIXED_S,
        weights_bytes=weights,
        kv_bytes=_capped(parts.kv_max),
        kv_min_bytes=_capped(parts.kv_min),
    )


def _capped(value_bytes: int) -> int:
    return min(value_bytes, MOST_BYTES)


# --- the parts --------------------------------------------------------------------------------------------------------


def measure(model: HfModel, sizing: Sizing, devices: int = 1, *, on_cpu: bool = False, draft: HfModel | None = None) -> Parts:
    """The parts of ``model`` on each of ``devices``, with ``draft`` (a model that speculates) beside it."""
    tensor, pipeline = parallel(sizing, devices)
    found = with_next_tokens(model.split) if sizing.next_tokens else model.split
    loaded, peak = _in_memory(model, found, sizing)
    weights, before = (_on_device(each, model, sizing, tensor, pipeline) for each in (loaded, peak))
    layers = 1 + model.layers // max(1, pipeline)
    kv_min, kv_max = _kv(model, sizing, tensor, pipeline)
    if draft is not None:
        weights += _on_device(draft.split, draft, sizing, tensor, 1)
        further = _kv(draft, replace(sizing, max_length=sizing.max_length or model.max_length), tensor, 1)
        kv_min, kv_max = kv_min + further[0], kv_max + further[1]
    here = max(0, int(weights * WEIGHTS_MARGIN) - sizing.offload_bytes)
    return Parts(
        weights=here,
        context=CPU_PROCESS_BYTES if on_cpu else CONTEXT_BYTES,
        activations=_activations(model, sizing, tensor),
        graphs=0 if sizing.eager or on_cpu else GRAPHS_BYTES + GRAPHS_PER_LAYER_BYTES * layers,
        communication=COMMUNICATION_BYTES if devices > 1 and not on_cpu else 0,
        kv_min=kv_min,
        kv_max=kv_max,
        loading=max(0, before - weights),
        host_weights=weights * max(1, devices),
        disk=model.disk_bytes,
    )


def _on_device(found: Split, model: HfModel, sizing: Sizing, tensor: int, pipeline: int) -> int:
    return found.on_device(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        layers=model.layers,
        kv_heads=model.kv_heads,
        spread_vision=sizing.spread_vision,
    )


def _in_memory(model: HfModel, found: Split, sizing: Sizing) -> tuple[Split, Split]:
    """The tensors as the engine holds them, and as it holds them while loading.

    A checkpoint that is not quantised is turned into the model's data type (32-bit files take half of their size). Quantising while
    loading shrinks the matrices of the layers, after they were there in full.
    """
    if model.quantization:
        return found, found
    stored = DTYPE_BYTES.get(model.dtype, 0)
    full = found.scaled(model_bytes(sizing), stored) if stored >= PLAIN_BYTES else found  # less than 16 bits stays as it is
    if sizing.quantization not in _ONLINE:
        return full, full
    share = full.scaled(*_ONLINE[sizing.quantization])
    kept = replace(share.layers, replicated=full.layers.replicated)
    return replace(full, layers=kept), full


def model_bytes(sizing: Sizing) -> int:
    """Bytes of an element of the model's own data type: the flag's; ``auto`` is 16 bits, for files in 32 bits too."""
    return max(PLAIN_BYTES, DTYPE_BYTES.get(sizing.dtype, PLAIN_BYTES))


def _kv(model: HfModel, sizing: Sizing, tensor: int, pipeline: int) -> tuple[int, int]:
    """Bytes for one request of the longest length, and for as many as the engine is started with.

    An encoder caches nothing. A decoder that answers with vectors has a cache while it reads one text, and no use for it afterwards.
    """
    cache = Cache(
        dtype=sizing.kv_dtype,
        model_bytes=model_bytes(sizing),
        tensor_parallel=tensor,
        block_tokens=sizing.block,
        hybrid=sizing.hybrid,
        prefixes=sizing.prefixes,
        state_dtype=sizing.state_dtype,
    )
    tokens = sizing.max_length or model.max_length
    layers = read_layers(model.config)
    one = max((request_bytes(stage, cache, tokens, sizing.batched_tokens) for stage in _staged(layers, pipeline)), default=0)
    pools = model.pooling if sizing.pooling is None else sizing.pooling
    return one, one if pools else one * KV_REQUESTS


def _staged(layers: Sequence[Layer], pipeline: int) -> list[Sequence[Layer]]:
    result, start = [], 0
    for count in stages(len(layers), pipeline):
        result.append(layers[start : start + count])
        start += count
    return result


def _activations(model: HfModel, sizing: Sizing, tensor: int) -> int:
    text = text_config(model.config)
    hidden, heads = hidden_size(text), query_heads(text)
    chosen = positive(text, "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
    wide = positive(text, "moe_intermediate_size", default=intermediate_size(text))
    forward = chosen * (-(-3 * wide // tensor) + hidden) if chosen else -(-3 * intermediate_size(text) // tensor)
    attention = -(-2 * (heads + 2 * model.kv_heads) * head_dim(text) // tensor)
    step = sizing.batched_tokens * model_bytes(sizing) * (4 * hidden + max(forward, attention))
    pools = model.pooling if sizing.pooling is None else sizing.pooling
    sampler = 0 if pools else sizing.sequences * model.vocabulary * SAMPLER_BYTES
    return step + sampler + (VISION_BYTES if model.split.vision.total else 0)


# --- what cannot be read ----------------------------------------------------------------------------------------------


def _readable(spec: ModelSpec, sizing: Sizing) -> HfModel | None:
    folder = find_folder(spec, sizing.revision)
    try:
        model = read_folder(folder) if folder is not None else None
    except FolderError:
        return None
    return model if model is not None and model.weights_bytes > 0 else None


def _draft(spec: ModelSpec, sizing: Sizing) -> HfModel | None:
    """The model that speculates, when it can be read; else it is left to the first measurement."""
    return _readable(replace(spec, model=sizing.draft), replace(sizing, revision="")) if sizing.draft else None


def _guess(spec: ModelSpec, sizing: Sizing) -> Parts:
    """A model that would be refused counts little, so that whoever asks hears why and not that it does not fit. An id that is fetched at
    the first start often names its size."""
    tensor, pipeline = parallel(sizing, spec.devices.count)
    total = size_of_name(spec.model) if is_id(spec) else 0
    weights = total // (tensor * pipeline) if total else GUESS_BYTES // 2
    kv = GUESS_BYTES // 4 if not total else max(GIB, weights // 8)
    return Parts(
        weights=weights,
        context=CONTEXT_BYTES,
        activations=0 if not total else GIB,
        graphs=0 if sizing.eager or not total else GIB,
        communication=COMMUNICATION_BYTES if spec.devices.count > 1 and total else 0,
        kv_min=kv // 2,
        kv_max=kv,
        loading=0,
        host_weights=weights * max(1, spec.devices.count),
        disk=total or weights,
    )


def size_of_name(model_id: str) -> int:
    """Bytes of weights that a name like ``Qwen2.5-7B-Instruct-AWQ`` promises: 16 bits a parameter unless it says less; 0 = it promises
    nothing."""
    name = model_id.rpartition("/")[2]
    match = _PARAMETERS.search(name)
    if match is None:
        return 0
    count, times, unit = match.groups()
    parameters = float(count) * float(times or 1) * (1e9 if unit in "bB" else 1e6)
    factor = 0.6 if _QUARTER.search(name) else 1.0 if _HALF.search(name) else 2.0
    return int(min(parameters, 1e14) * factor)


# --- checks before a launch -------------------------------------------------------------------------------------------


def check(spec: ModelSpec) -> None:
    """Raises Permanent (model_missing, model_unreadable) when the engine could not load ``model``. An id is left to the engine, which
    fetches it, unless it may not. Blocks."""
    sizing = read_sizing((*spec.engine_args, *spec.args))
    if not spec.model:
        raise Permanent(
            f"{spec.name} has no model", code=Code.MODEL_MISSING, fix="set `model` to a model folder, or to an id like org/name"
        )
    if is_id(spec):
        _check_id(spec, sizing)
        return
    path = folder_of(spec)
    if os.path.isfile(path) and path.suffix == ".gguf" and sizing.load_format == "gguf":
        return
    try:
        model = read_folder(path)
    except FolderError as error:
        code = Code.MODEL_MISSING if error.missing else Code.MODEL_UNREADABLE
        fix = _missing_fix(path) if error.missing else error.fix
        raise Permanent(str(error), code=code, fix=fix) from error
    _check_format(model, path, sizing)


def _check_id(spec: ModelSpec, sizing: Sizing) -> None:
    env = environment(spec)
    cache = hub_cache(env)
    if not is_offline(env) or cache is None or find_snapshot(cache, spec.model, sizing.revision) is not None:
        return
    raise Permanent(
        f"{spec.model} is not in {cache}, and HF_HUB_OFFLINE keeps the engine from fetching it",
        code=Code.MODEL_MISSING,
        fix="fetch it into that cache, set `model` to its folder, or remove HF_HUB_OFFLINE from `env`",
    )


def _check_format(model: HfModel, path: Path, sizing: Sizing) -> None:
    if sizing.load_format == "dummy" or ".safetensors" in model.formats:
        return
    if model.formats & {".bin", ".pt", ".pth"}:
        if sizing.load_format in ("pt", "npcache"):
            return
        message = f"{path} has its weights only as PyTorch pickles (.bin), which can run code when they are loaded"
        fix = "fetch the safetensors version, or trust them with args: [--load-format, pt]"
    elif ".gguf" in model.formats:
        name = min((file.name for file in path.glob("*.gguf")), default="")
        message, fix = f"{path} has its weights only as GGUF", f"use engine llamacpp with `model` set to {path / name}"
    else:
        message, fix = f"{path} has a config.json, but no weights", "the download is not complete; fetch it again"
    if model.evidence is Evidence.FORMULA and not model.formats:
        raise Permanent(message, code=Code.MODEL_MISSING, fix=fix)
    raise Permanent(message, code=Code.MODEL_UNREADABLE, fix=fix)


def _missing_fix(path: Path) -> str:
    try:
        near = sorted(child.name for child in path.parent.iterdir() if child.is_dir() and child.name.isprintable())
    except (OSError, ValueError):
        near = []
    near = difflib.get_close_matches(path.name, near, 3, 0.4) or near[:3]
    return (
        f"correct `model`; that place has {', '.join(near)}" if near else "correct `model`; it names a model folder or an id like org/name"
    )
