"""From a model's ``config.json`` to what each of its layers remembers: pure.

Rules: vLLM 0.33 (``model_arch_config_convertor.py``, ``kv_cache_interface.py``, ``mamba_utils.py``, the model files) and the defaults of
transformers' configuration classes. A model or a word that is not known counts as attending to everything: too much rather than too
little.
"""

from collections.abc import Sequence
from typing import Final

from adapters.engines.hf_config import (
    Config,
    hidden_size,
    is_encoder_only,
    layer_count,
    mapping,
    model_type,
    per_layer,
    positive,
    query_heads,
    text_config,
    word,
    words,
)
from adapters.engines.kv_kinds import Kind, Layer
from adapters.engines.kv_states import recurrent_layer, short_convolution_layer

#: ``kv_lora_rank`` is set, but vLLM runs them with keys and values of every head.
_NOT_LATENT: Final = frozenset({"minicpm3"})
_INDEX_BLOCK: Final = 128  # elements that share one 32-bit scale in the index of sparse attention

#: Every n-th layer attends to everything, for model types whose file need not say.
_WINDOW_PERIODS: Final = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n": 5,
    "gemma3n_text": 5,
    "gemma4": 6,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "olmo3": 4,
}
#: Every n-th layer attends to everything, the others are linear.
_LINEAR_TYPES: Final = ("qwen3_next", "qwen3_5")
_LINEAR_INTERVAL: Final = 4
#: ``use_sliding_window`` is off unless the file says otherwise: their files often carry a window that is not used.
_OFF_BY_DEFAULT: Final = ("qwen2", "qwen3")
_MAX_WINDOW_LAYERS: Final = 28  # Qwen2Config's default
_LLAMA4_PERIOD: Final = 4

_FULL: Final = "full_attention"
_LOCAL: Final = "sliding_attention"
_WINDOW_WORDS: Final = frozenset({"sliding_attention", "sliding_window", "chunked_attention", "local", "local_attention"})
_LINEAR_WORDS: Final = frozenset({"linear_attention", "mamba", "mamba2", "M", "recurrent", "kda", "linear"})
_EMPTY_WORDS: Final = frozenset({"mlp", "moe", "none", "-", "E"})
_BOTH_WORDS: Final = frozenset({"hybrid"})
#: Model types in which every layer is a state-space layer.
_PURE_STATE: Final = ("mamba", "falcon_mamba")
#: Model types in which every layer holds attention and a state-space part side by side.
_SIDE_BY_SIDE: Final = ("falcon_h1",)


def read_layers(config: Config) -> tuple[Layer, ...]:
    """The layers of ``config`` that a KV cache is kept for, in order; one layer may appear twice when it keeps two things."""
    text = text_config(config)
    count = layer_count(text)
    if is_encoder_only(config) or not count:
        return ()
    heads = _kv_heads(text, count)
    kinds = _kinds(text, count)
    shared = count - min(count, positive(text, "num_kv_shared_layers"))
    layers: list[Layer] = []
    for index, name in enumerate(kinds):
        if name in _LINEAR_WORDS or name in _BOTH_WORDS:
            layers.append(recurrent_layer(text))
        elif name == "conv":
            layers.append(short_convolution_layer(text))
        if name in _EMPTY_WORDS or name in _LINEAR_WORDS or name == "conv" or index >= shared or not heads[index]:
            continue
        layers.append(_attention(text, index, heads[index], name in _WINDOW_WORDS))
        if text.get("is_encoder_decoder") is True:
            layers.append(_cross(text, heads[index]))
    return tuple(layers)


def _attention(text: Config, index: int, heads: int, local: bool) -> Layer:
    if _is_latent(text):
        return _latent(text)
    dim = head_dim(text)
    window = _window(text, index) if local else 0
    if window:
        return Layer(kind=Kind.SLIDING, kv_heads=heads, key_dim=dim, value_dim=dim, window=window)
    # Gemma 4: layers that attend to everything have heads of their own size, and fewer of them when keys serve as values.
    dim = positive(text, "global_head_dim", default=dim)
    if text.get("attention_k_eq_v") is True:
        heads = positive(text, "num_global_key_value_heads", default=heads)
    return Layer(kind=Kind.FULL, kv_heads=heads, key_dim=dim, value_dim=dim)


def head_dim(text: Config) -> int:
    """Elements of one head. Never the quotient when the file says: Qwen3, Gemma and gpt-oss have larger heads."""
    said = positive(text, "head_dim", "hidden_size_per_head", "attention_head_dim", "kv_channels")
    if said:
        return said
    if model_type(text) in _NOT_LATENT:
        return positive(text, "qk_nope_head_dim") + positive(text, "qk_rope_head_dim")
    return hidden_size(text) // max(1, query_heads(text))


def kv_heads(config: Config) -> int:
    """Key-value heads of the model; the largest number where layers differ."""
    text = text_config(config)
    return max(_kv_heads(text, layer_count(text)), default=0)


def _kv_heads(text: Config, count: int) -> list[int]:
    """One number for each layer. vLLM's order of keys; null or absent = as many as query heads."""
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return [1] * count
    blocks = text.get("block_configs")
    if isinstance(blocks, list) and blocks:
        return _heads_of_blocks(text, blocks, count)
    keys = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
    same = positive(text, *keys) or positive(mapping(text, "attn_config"), "kv_n_heads")
    if same:
        return [same] * count
    found = list(per_layer(text, *keys))
    if found:
        return (found + [max(found)] * count)[:count]
    own = per_layer(text, "num_attention_heads", "num_query_heads")
    return (list(own) + [query_heads(text)] * count)[:count]


def _heads_of_blocks(text: Config, blocks: Sequence[object], count: int) -> list[int]:
    """Nemotron-NAS: each block says how many query heads share a key-value head, or that it has no attention."""
    result = []
    for block in blocks[:count]:
        attention = mapping(block, "attention") if isinstance(block, dict) else {}
        if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
            result.append(0)
        else:
            result.append(query_heads(text) // positive(attention, "n_heads_in_group", default=1))
    return (result + [query_heads(text)] * count)[:count]


# --- which layer is of which kind -------------------------------------------------------------------------------------


def _kinds(text: Config, count: int) -> list[str]:
    """A word for each layer, in the vocabulary of ``layer_types``; what the file lists wins over every rule."""
    listed = _listed(text)
    if listed:
        return (listed + ["full_attention"] * count)[:count]
    kind = model_type(text)
    if kind.startswith(_SIDE_BY_SIDE):
        return ["hybrid"] * count
    if kind.startswith(_PURE_STATE):
        return ["mamba"] * count
    period = positive(text, "full_attention_interval") or (_LINEAR_INTERVAL if kind.startswith(_LINEAR_TYPES) else 0)
    if period:
        return [_FULL if (index + 1) % period == 0 else "linear_attention" for index in range(count)]
    period = positive(text, "attn_layer_period")
    if period:  # Jamba
        offset = positive(text, "attn_layer_offset")
        return [_FULL if index % period == offset % period else "mamba" for index in range(count)]
    return [_LOCAL if _slides(text, index) else _FULL for index in range(count)]


def _listed(text: Config) -> list[str]:
    names = words(text, "layer_types", "layers_block_type")
    if names:
        return list(names)
    pattern = word(text, "hybrid_override_pattern")
    if pattern:
        return list(pattern)
    flags = per_layer(text, "attn_type_list")  # MiniMax: 1 = attention, 0 = linear
    if flags:
        return [_FULL if flag else "linear_attention" for flag in flags]
    flags = per_layer(text, "hybrid_layer_pattern")  # MiMo: 1 = window
    if flags:
        return [_LOCAL if flag else _FULL for flag in flags]
    linear = mapping(text, "linear_attn_config")
    full = per_layer(linear, "full_attn_layers")  # Kimi Linear counts from 1
    if linear:
        return [_FULL if index + 1 in full else "kda" for index in range(layer_count(text))]
    chosen = per_layer(text, "attn_layer_indices", "full_attn_idxs")
    if chosen:
        other = "conv" if "full_attn_idxs" in text else "mamba"
        return [_FULL if index in chosen else other for index in range(layer_count(text))]
    return []


def _slides(text: Config, index: int) -> bool:
    """Whether a layer has a window, for files without ``layer_types``."""
    chunks = per_layer(text, "no_rope_layers")
    if positive(text, "attention_chunk_size") and model_type(text).startswith("llama4"):
        return bool(chunks[index]) if index < len(chunks) else (index + 1) % _LLAMA4_PERIOD != 0
    if not _window(text, index):
        return False
    kind = model_type(text)
    used = text.get("use_sliding_window")
    if used is False or (used is None and kind.startswith(_OFF_BY_DEFAULT)):
        return False
    if kind.startswith(_OFF_BY_DEFAULT) or (used is True and "max_window_layers" in text):
        from_layer = text.get("max_window_layers")
        return index >= (from_layer if isinstance(from_layer, int) else _MAX_WINDOW_LAYERS)
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        pattern = text.get(key)
        if isinstance(pattern, str) and pattern:
            return pattern[index % len(pattern)].upper() == "L"  # EXAONE: "LLLG"
        if isinstance(pattern, list) and pattern:
            return bool(pattern[index % len(pattern)])
    period = positive(text, "sliding_window_pattern", "_sliding_window_pattern") or _WINDOW_PERIODS.get(kind, 0)
    return not period or (index + 1) % period != 0


def _window(text: Config, index: int) -> int:
    """Tokens of a layer's window; 0 = none."""
    each = text.get("sliding_window")
    if isinstance(each, list) and each:  # a list is repeated; null in it = attends to everything
        return positive({"window": each[index % len(each)]}, "window")
    chunk = positive(text, "attention_chunk_size") if model_type(text).startswith("llama4") else 0  # others carry it unused
    return positive(text, "sliding_window", default=chunk)


# --- latent and cross attention ---------------------------------------------------------------------------------------


def _is_latent(text: Config) -> bool:
    if model_type(text) in _NOT_LATENT:
        return False
    return positive(text, "kv_lora_rank") > 0 or ("compress_ratios" in text and positive(text, "head_dim") > 0)


def _latent(text: Config) -> Layer:
    """DeepSeek's multi-head latent attention: one vector of ``kv_lora_rank + qk_rope_head_dim``, and no values.

    Both are read as the file has them: libraries were seen to overwrite the second with ``qk_nope_head_dim``.
    Sparse attention (``index_head_dim``) keeps a second cache of bytes with a 32-bit scale for each 128 of them.
    """
    rope = positive(text, "qk_rope_head_dim")
    width = positive(text, "kv_lora_rank") + rope if positive(text, "kv_lora_rank") else positive(text, "head_dim")
    index = positive(text, "index_head_dim")
    index_bytes = index + index // _INDEX_BLOCK * 4
    return Layer(kind=Kind.MLA, kv_heads=1, key_dim=width, rope_dim=rope, index_bytes=index_bytes)


def _cross(text: Config, heads: int) -> Layer:
    """A decoder's view of its encoder: as many positions as the encoder gives, for every sequence."""
    positions = positive(text, "max_source_positions", "encoder_seq_length", "max_position_embeddings", default=1500)
    dim = head_dim(text)
    return Layer(kind=Kind.CROSS, kv_heads=heads, key_dim=dim, value_dim=dim, window=positions)
