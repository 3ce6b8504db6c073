"""Bytes of a model's weights by its configuration alone, for a folder that has no weights yet: pure.

The sum over the matrices of a decoder, exact for Llama, Mistral, Mixtral, Qwen 2 and 3 (dense and mixture of experts) and Gemma; checked
against the ``total_size`` of their published indexes.
"""

from typing import Final

from adapters.engines.hf_config import (
    DTYPE_BYTES,
    Config,
    dtype_of,
    hidden_size,
    intermediate_size,
    is_tied,
    layer_count,
    model_type,
    per_layer,
    positive,
    query_heads,
    text_config,
)
from adapters.engines.kv_layers import head_dim, kv_heads

_PLAIN_BYTES: Final = 2
_FOUR_NORMS: Final = ("gemma2", "gemma3")
#: Qwen 2 has biases on its attention inputs without saying so.
_BIASED: Final = ("qwen2",)
_QK_NORMS: Final = ("qwen3", "gemma3")


def dense_parameters(config: Config) -> int:
    """``V h (1 if tied else 2) + L (attention + feed-forward + norms) + h``; 0 when the configuration has no such sizes."""
    text = text_config(config)
    hidden, layers = hidden_size(text), layer_count(text)
    embedding = positive(text, "vocab_size") * hidden
    inside = layers * (_attention(text) + _norms(text)) + sum(_forward(text, index) for index in range(layers))
    return embedding * (1 if is_tied(config) else 2) + inside + hidden


def dense_weights_bytes(config: Config) -> int:
    """Bytes of the weights in the data type that the configuration names, 16 bits when it names none."""
    return dense_parameters(config) * DTYPE_BYTES.get(dtype_of(config), _PLAIN_BYTES)


def _attention(text: Config) -> int:
    """``h H d + 2 h K d + H d h``, biases and norms of queries and keys; with latent attention its five projections."""
    hidden, heads = hidden_size(text), query_heads(text)
    rank = positive(text, "kv_lora_rank")
    if rank:
        return _latent(text, rank)
    keys, dim = kv_heads(text), head_dim(text)
    total = 2 * hidden * heads * dim + 2 * hidden * keys * dim
    kind = model_type(text)
    if text.get("attention_bias") is True or kind.startswith(_BIASED):
        total += heads * dim + 2 * keys * dim
    if kind.startswith(_QK_NORMS):
        total += 2 * dim
    return total


def _latent(text: Config, rank: int) -> int:
    """DeepSeek: down and up projections of queries (when compressed) and of keys and values, and the output."""
    hidden, heads = hidden_size(text), query_heads(text)
    rope, plain = positive(text, "qk_rope_head_dim"), positive(text, "qk_nope_head_dim", default=128)
    value = positive(text, "v_head_dim", default=128)
    compressed = positive(text, "q_lora_rank")
    queries = heads * (plain + rope)
    asking = hidden * compressed + compressed * queries + compressed if compressed else hidden * queries
    return asking + hidden * (rank + rope) + rank + rank * heads * (plain + value) + heads * value * hidden


def _norms(text: Config) -> int:
    return hidden_size(text) * (4 if model_type(text).startswith(_FOUR_NORMS) else 2)


def _forward(text: Config, index: int) -> int:
    """``3 h I``; in a layer of experts ``E 3 h I_moe + h E``, and shared experts."""
    hidden = hidden_size(text)
    experts = positive(text, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    if not experts or index < positive(text, "first_k_dense_replace") or index in per_layer(text, "mlp_only_layers"):
        return 3 * hidden * intermediate_size(text)
    step = positive(text, "decoder_sparse_step", "moe_layer_freq", default=1)
    if (index + 1) % step:
        return 3 * hidden * intermediate_size(text)
    wide = positive(text, "moe_intermediate_size", default=intermediate_size(text))
    shared = positive(text, "shared_expert_intermediate_size") or positive(text, "n_shared_experts") * wide
    return experts * 3 * hidden * wide + hidden * experts + 3 * hidden * shared
