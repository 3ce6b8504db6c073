"""Laws of KV arithmetic that hold for every configuration, also for nonsense."""

import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.engines.dense_weights import dense_weights_bytes
from adapters.engines.kv_bytes import Cache, measure, request_bytes, usable_tokens
from adapters.engines.kv_layers import read_layers

KINDS = ["full_attention", "sliding_attention", "linear_attention", "mamba", "moe", "conv", "chunked_attention", "new"]
TYPES = [
    "",
    "llama",
    "qwen2",
    "qwen3_next",
    "gemma2",
    "gemma3_text",
    "mistral",
    "nemotron_h",
    "deepseek_v3",
    "llama4_text",
    "bert",
    "jamba",
]
COUNT = st.integers(1, 64)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration that could be a model's."""
    layers = draw(st.integers(1, 12))
    config: dict[str, Any] = {
        "model_type": draw(st.sampled_from(TYPES)),
        "num_hidden_layers": layers,
        "num_attention_heads": draw(COUNT),
        "hidden_size": draw(st.integers(1, 512)),
    }
    optional: dict[str, st.SearchStrategy[Any]] = {
        "num_key_value_heads": st.one_of(st.none(), COUNT, st.lists(st.integers(0, 8), min_size=1, max_size=layers)),
        "head_dim": st.one_of(st.none(), st.integers(0, 256)),
        "sliding_window": st.one_of(st.none(), st.integers(0, 4096)),
        "sliding_window_pattern": st.integers(0, 6),
        "use_sliding_window": st.booleans(),
        "layer_types": st.lists(st.sampled_from(KINDS), min_size=1, max_size=layers),
        "full_attention_interval": st.integers(0, 5),
        "kv_lora_rank": st.one_of(st.none(), st.integers(4, 512)),
        "qk_rope_head_dim": st.integers(0, 64),
        "index_head_dim": st.integers(0, 128),
        "num_kv_shared_layers": st.integers(0, 12),
        "mamba_d_state": st.integers(1, 128),
        "is_encoder_decoder": st.booleans(),
    }
    for key, values in optional.items():
        if draw(st.booleans()):
            config[key] = draw(values)
    return config


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(string.ascii_letters, max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(string.ascii_letters, max_size=4), inner, max_size=3)),
    max_leaves=6,
)
CACHES = st.builds(
    Cache,
    dtype=st.sampled_from(["auto", "fp8", "fp8_ds_mla", "int8_per_token_head", "int4_per_token_head", "nvfp4", "float32", "x"]),
    model_bytes=st.sampled_from([2, 4]),
    tensor_parallel=st.integers(1, 16),
    block_tokens=st.sampled_from([1, 16, 64]),
    hybrid=st.booleans(),
    prefixes=st.booleans(),
    state_dtype=st.sampled_from(["auto", "float32", "bfloat16"]),
)


@given(configs(), CACHES, st.integers(-1, 1 << 20), st.integers(0, 1 << 16))
def test_nothing_is_negative(config: dict[str, Any], cache: Cache, tokens: int, in_flight: int) -> None:
    layers = read_layers(config)
    found = measure(layers, cache)
    assert min(found.all_layers, found.full_layers, found.sliding_cap, found.state) >= 0
    assert found.full_layers <= found.all_layers
    assert request_bytes(layers, cache, tokens, in_flight) >= 0
    assert usable_tokens(tokens, layers, cache) >= 0


@given(configs(), CACHES, st.integers(2, 16), st.integers(1, 1 << 18))
def test_more_devices_never_need_less_in_all_and_never_more_each(config: dict[str, Any], cache: Cache, devices: int, tokens: int) -> None:
    layers = read_layers(config)
    alone = measure(layers, Cache(dtype=cache.dtype, state_dtype=cache.state_dtype))
    each = measure(layers, Cache(dtype=cache.dtype, state_dtype=cache.state_dtype, tensor_parallel=devices))
    for name in ("all_layers", "full_layers", "sliding_cap", "state"):
        assert getattr(each, name) <= getattr(alone, name) <= devices * getattr(each, name)


@given(configs(), st.integers(1, 16))
def test_eight_bits_never_need_more_than_sixteen(config: dict[str, Any], devices: int) -> None:
    layers = read_layers(config)
    for narrow in ("fp8", "fp8_e5m2", "fp8_ds_mla"):
        small = measure(layers, Cache(dtype=narrow, tensor_parallel=devices))
        large = measure(layers, Cache(dtype="bfloat16", tensor_parallel=devices))
        assert small.all_layers <= large.all_layers
        assert small.sliding_cap <= large.sliding_cap


@given(configs(), CACHES, st.integers(1, 1 << 18), st.integers(1, 1 << 14))
def test_a_longer_request_never_needs_less(config: dict[str, Any], cache: Cache, tokens: int, in_flight: int) -> None:
    layers = read_layers(config)
    assert request_bytes(layers, cache, tokens, in_flight) <= request_bytes(layers, cache, tokens + 1, in_flight)


@given(configs(), CACHES, st.integers(0, 1 << 34))
def test_a_cache_never_holds_more_than_it_has_bytes(config: dict[str, Any], cache: Cache, size: int) -> None:
    layers = read_layers(config)
    assert usable_tokens(size, layers, cache) * measure(layers, cache).all_layers <= size


KEYS = [*(key for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "layer_types"))]
KEYS += ["sliding_window", "sliding_window_pattern", "text_config", "block_configs", "attn_config", "linear_attn_config", "kv_lora_rank"]
KEYS += ["num_experts", "intermediate_size", "vocab_size", "no_rope_layers", "model_type", "max_window_layers", "hybrid_override_pattern"]


@given(st.dictionaries(st.sampled_from(KEYS), JUNK), CACHES)
def test_junk_raises_nothing(config: dict[str, Any], cache: Cache) -> None:
    layers = read_layers({"num_hidden_layers": 3, **config})
    assert measure(layers, cache).all_layers >= 0
    assert request_bytes(layers, cache, 1000, 100) >= 0
    assert dense_weights_bytes(config) >= 0
