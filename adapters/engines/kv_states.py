"""The state that a linear or state-space layer keeps for one sequence: pure.

Shapes as in vLLM 0.33 (``mamba_utils.py``: ``MambaStateShapeCalculator``), elements of the whole model; keys of the configuration classes
of Qwen3-Next, Kimi Linear, MiniMax, Mamba, Mamba-2, Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H, Zamba2 and LFM2.
"""

from typing import Final

from adapters.engines.hf_config import Config, hidden_size, mapping, model_type, positive, query_heads, word
from adapters.engines.kv_kinds import Kind, Layer

_CONVOLUTION: Final = 4  # kernel, where the file does not say
_SHORT_CONVOLUTION: Final = 3  # LFM2's
_EXPANSION: Final = 2
#: Nemotron-H keeps its state in 32 bits unless its file says otherwise; so do Kimi's delta layers, always.
_WIDE_STATES: Final = ("nemotron_h",)


def recurrent_layer(text: Config) -> Layer:
    """One layer's state, by the family that the keys of ``text`` show."""
    if "linear_attn_config" in text:
        return _kimi(mapping(text, "linear_attn_config"))
    if any(key.startswith("linear_") for key in text) or model_type(text).startswith(("qwen3_next", "qwen3_5")):
        return _gated_delta(text)
    if any(key in text for key in ("mamba_d_state", "ssm_state_size", "state_size")):
        return _state_space(text)
    return _lightning(text)


def short_convolution_layer(text: Config) -> Layer:
    """LFM2: only the last inputs of a short convolution."""
    kernel = positive(text, "conv_L_cache", default=_SHORT_CONVOLUTION)
    return Layer(kind=Kind.LINEAR, convolution=positive(text, "conv_dim", default=hidden_size(text)) * (kernel - 1))


def _gated_delta(text: Config) -> Layer:
    """Qwen3-Next and Qwen3.5: ``(2 Kh dk + Vh dv)(kernel - 1)`` and ``Vh dv dk``; defaults of Qwen3NextConfig."""
    key_dim = positive(text, "linear_key_head_dim", default=128)
    value_dim = positive(text, "linear_value_head_dim", default=128)
    key_heads = positive(text, "linear_num_key_heads", default=16)
    value_heads = positive(text, "linear_num_value_heads", default=32)
    kernel = positive(text, "linear_conv_kernel_dim", default=_CONVOLUTION)
    return Layer(
        kind=Kind.LINEAR,
        convolution=(2 * key_heads * key_dim + value_heads * value_dim) * (kernel - 1),
        recurrent=value_heads * value_dim * key_dim,
        state_dtype=_state_dtype(text),
    )


def _kimi(linear: Config) -> Layer:
    """Kimi's delta attention: heads of one size for keys, values and queries, the state always in 32 bits."""
    heads, dim = positive(linear, "num_heads"), positive(linear, "head_dim")
    kernel = positive(linear, "short_conv_kernel_size", default=_CONVOLUTION)
    convolution = 3 * heads * dim * (kernel - 1)
    return Layer(kind=Kind.LINEAR, convolution=convolution, recurrent=heads * dim * dim, state_dtype="float32")


def _lightning(text: Config) -> Layer:
    """MiniMax: a square for each head, no convolution."""
    heads = query_heads(text)
    dim = positive(text, "head_dim", default=hidden_size(text) // max(1, heads))
    return Layer(kind=Kind.LINEAR, recurrent=heads * dim * dim)


def _state_space(text: Config) -> Layer:
    """Mamba-2: ``(inner + 2 groups state)(kernel - 1)`` and ``heads dim state``; Mamba has no heads: ``inner (kernel - 1)`` and
    ``inner state``."""
    state = positive(text, "mamba_d_state", "ssm_state_size", "state_size")
    kernel = positive(text, "mamba_d_conv", "conv_kernel", default=_CONVOLUTION)
    pure = model_type(text).startswith("mamba")
    heads = positive(text, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads") or (positive(text, "num_heads") if pure else 0)
    dim = positive(text, "mamba_head_dim", "mamba_d_head", "mamba_headdim") or (positive(text, "head_dim") if pure else 0)
    inner = heads * dim or positive(text, "mamba_d_ssm") or (positive(text, "intermediate_size") if _is_plain(text) else 0)
    inner = inner or positive(text, "mamba_expand", "expand", default=_EXPANSION) * hidden_size(text)
    groups = positive(text, "n_groups", "mamba_n_groups", "mamba_ngroups", default=1) if heads else 0
    return Layer(
        kind=Kind.LINEAR,
        convolution=(inner + 2 * groups * state) * (kernel - 1),
        recurrent=inner * state,
        state_dtype=_state_dtype(text),
    )


def _is_plain(text: Config) -> bool:
    """In models without attention ``intermediate_size`` is the state space's width; elsewhere it is the feed-forward part's."""
    return model_type(text) in ("mamba", "falcon_mamba")


def _state_dtype(text: Config) -> str:
    said = word(text, "mamba_ssm_dtype", "mamba_ssm_cache_dtype").removeprefix("torch.")
    return said or ("float32" if model_type(text).startswith(_WIDE_STATES) else "")
