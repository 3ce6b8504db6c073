"""Bytes of a KV cache, from the layers of a model: pure arithmetic, exact.

All figures are bytes on one device; with tensor parallelism 1 that is the whole model. Checked against a table of public models
(tests/data/kv_bytes.json). Formulas: vLLM 0.33, ``vllm/v1/kv_cache_interface.py`` (the specs' ``page_size_bytes`` and
``max_memory_usage_bytes``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from adapters.engines.hf_config import DTYPE_BYTES
from adapters.engines.kv_kinds import Kind, Layer

#: Bytes of a 32-bit scale that each head of each token carries, for keys and for values.
_SCALE: Final = 4
_LATENT_BLOCK: Final = 128  # elements of a latent that share one scale
DEFAULT_BLOCK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """How an engine keeps its cache.

    ``dtype`` is the value of ``--kv-cache-dtype`` (``auto`` = the model's), ``model_bytes`` the bytes of the model's own data type.
    ``hybrid`` = layers with a window keep only the window; ``prefixes`` = prefix caching is on. ``state_dtype`` replaces what the model
    says about its recurrent states (``auto`` = it does not).
    """

    dtype: str = "auto"
    model_bytes: int = 2
    tensor_parallel: int = 1
    block_tokens: int = DEFAULT_BLOCK
    hybrid: bool = True
    prefixes: bool = True
    state_dtype: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBytes:
    """``all_layers`` a token while all layers remember everything (the upper bound), ``full_layers`` a token beyond the window, and per
    sequence: ``sliding_cap`` of all layers with a window, ``state`` of linear layers."""

    all_layers: int
    full_layers: int
    sliding_cap: int
    state: int


def measure(layers: Sequence[Layer], cache: Cache) -> KvBytes:
    """The four figures that describe a model's cache."""
    rows = [(layer, token_bytes(layer, cache)) for layer in layers]
    return KvBytes(
        all_layers=sum(row for layer, row in rows if layer.kind is not Kind.CROSS),
        full_layers=sum(row for layer, row in rows if layer.kind in (Kind.FULL, Kind.MLA)),
        sliding_cap=sum(row * layer.window for layer, row in rows if layer.kind is Kind.SLIDING),
        state=sum(state_bytes(layer, cache) for layer in layers),
    )


def token_bytes(layer: Layer, cache: Cache) -> int:
    """Bytes of one token in one layer.

    Attention: ``heads x (row of keys + row of values)``, where a device holds ``kv_heads / TP`` heads, at least one: with more devices
    than heads they are replicated. MLA: one latent, replicated on every device.
    """
    if layer.kind is Kind.MLA:
        return _latent_bytes(layer, cache) + layer.index_bytes
    if layer.kind not in (Kind.FULL, Kind.SLIDING, Kind.CROSS) or not layer.kv_heads:
        return 0
    heads = -(-layer.kv_heads // max(1, cache.tensor_parallel))
    return heads * (row_bytes(layer.key_dim, cache) + row_bytes(layer.value_dim, cache))


def row_bytes(elements: int, cache: Cache) -> int:
    """Bytes of ``elements`` of one head, keys or values, with what their data type adds.

    2 bytes an element; fp8: 1; ``*_per_token_head``: 1 (int4: a half) and a 32-bit scale; ``nvfp4``: a half, and one byte for each 16.
    ``turboquant_*`` packs at most a byte an element beside its norms: counted like 8 bits with a scale. A name that is not known counts
    as the model's data type.
    """
    dtype = cache.dtype.lower()
    if dtype == "nvfp4":
        return -(-elements // 2) + -(-elements // 16)
    if dtype == "int4_per_token_head":
        return -(-elements // 2) + _SCALE
    if dtype.endswith("_per_token_head") or dtype.startswith("turboquant"):
        return elements + _SCALE
    if dtype.startswith("fp8") or dtype == "int8":
        return elements
    return elements * DTYPE_BYTES.get(dtype, cache.model_bytes)


def _latent_bytes(layer: Layer, cache: Cache) -> int:
    """``fp8_ds_mla``: 8 bits with a 32-bit scale for each 128, and the positional part in 16 bits: 656 bytes for 512 + 64.

    Models with sparse attention use that layout for every kind of fp8.
    """
    dtype = cache.dtype.lower()
    if dtype == "fp8_ds_mla" or (layer.index_bytes and dtype.startswith("fp8")):
        latent = layer.key_dim - layer.rope_dim
        return latent + -(-latent // _LATENT_BLOCK) * 4 + layer.rope_dim * 2
    return row_bytes(layer.key_dim, cache)


def state_bytes(layer: Layer, cache: Cache) -> int:
    """Bytes of one sequence's state in a linear layer, split over the devices: the convolution in the model's data type, the recurrent
    part in ``cache.state_dtype``, else in the layer's own, else in the model's."""
    if layer.kind is not Kind.LINEAR:
        return 0
    devices = max(1, cache.tensor_parallel)
    own = DTYPE_BYTES.get(layer.state_dtype, cache.model_bytes)
    recurrent = DTYPE_BYTES.get(cache.state_dtype, own)
    return -(-layer.convolution // devices) * cache.model_bytes + -(-layer.recurrent // devices) * recurrent


def request_bytes(layers: Sequence[Layer], cache: Cache, tokens: int, in_flight: int) -> int:
    """Bytes that one request of ``tokens`` needs at most, while up to ``in_flight`` of its tokens are computed at a time.

    Rounded up to blocks. A layer with a window keeps ``min(window - 1 + in flight, tokens)``, and one block more since the window may
    begin inside one; a linear layer keeps one state, with prefix caching two (vLLM's "align" mode). Where there are linear layers, vLLM
    makes the blocks of attention as large as a state, so that one pool serves both: hundreds of tokens each.
    """
    if tokens <= 0:
        return 0
    block = block_tokens(layers, cache)
    states = 2 if cache.prefixes else 1
    total = 0
    for layer in layers:
        row = token_bytes(layer, cache)
        if layer.kind is Kind.LINEAR:
            total += states * state_bytes(layer, cache)
        elif layer.kind is Kind.CROSS:
            total += row * _blocks(layer.window, block) * block
        elif layer.kind is Kind.SLIDING and cache.hybrid:
            kept = min(max(0, layer.window - 1) + max(1, in_flight), tokens)
            total += row * (_blocks(kept, block) + 1) * block
        else:
            total += row * _blocks(tokens, block) * block
    return total


def block_tokens(layers: Sequence[Layer], cache: Cache) -> int:
    """Tokens of a block: as configured, but with linear layers so many that a block is no smaller than a state."""
    block = max(1, cache.block_tokens)
    state = max((state_bytes(layer, cache) for layer in layers), default=0)
    row = max((token_bytes(layer, cache) for layer in layers if layer.kind is not Kind.LINEAR), default=0)
    if not state or not row:
        return block
    return max(block, _blocks(-(-state // row), block) * block)


def usable_tokens(kv_bytes: int, layers: Sequence[Layer], cache: Cache) -> int:
    """Whole blocks of tokens that a cache of ``kv_bytes`` holds when every layer remembers everything; 0 without such layers."""
    block = block_tokens(layers, cache)
    page = block * measure(layers, cache).all_layers
    return max(0, kv_bytes) // page * block if page else 0


def stages(count: int, pipeline_parallel: int) -> list[int]:
    """Layers of each stage of a pipeline: even, and what is left over goes to the stages before the last (vLLM's rule)."""
    parts = max(1, min(pipeline_parallel, max(1, count)))
    result = [count // parts] * parts
    for place in range(2, count % parts + 2):
        result[-place] += 1
    return result


def _blocks(tokens: int, block: int) -> int:
    return -(-tokens // block)
