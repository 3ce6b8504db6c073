"""Bytes of KV caches: a table of public models, exact, and the cases that the table does not have."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.gguf import Header
from adapters.engines.kv_bytes import Cache, measure, request_bytes, row_bytes, stages, usable_tokens
from adapters.engines.kv_kinds import Kind, Layer
from adapters.engines.kv_layers import kv_heads, read_layers
from adapters.engines.llamacpp_flags import Sizing as LlamaSizing
from adapters.engines.llamacpp_size import measure as measure_gguf

TABLE = json.loads((Path(__file__).parents[1] / "data" / "kv_bytes.json").read_text())
ROWS = {row["model"]: row for row in TABLE["kv"]}
BASE: dict[str, Any] = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128}


def per_token(config: dict[str, Any], **how: Any) -> int:
    return measure(read_layers(config), Cache(**how)).all_layers


def kinds(config: dict[str, Any]) -> str:
    """One letter for each layer: f, s, m, c, l."""
    return "".join(layer.kind.value[0] for layer in read_layers(config))


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 24
    assert len(TABLE["weights_bf16_total_size"]) == 6


@pytest.mark.parametrize("name", ROWS)
def test_every_figure_of_every_model(name: str) -> None:
    row = ROWS[name]
    layers = read_layers(row["config"])
    found = measure(layers, Cache(dtype=row["kv_dtype"], tensor_parallel=row["tensor_parallel"]))
    assert found.all_layers == row["bytes_per_token_all_layers"]
    assert found.full_layers == row["bytes_per_token_full_layers"]
    assert found.sliding_cap == row["sliding_cap_bytes"]
    assert measure(layers, Cache(dtype="fp8")).all_layers == row["bytes_per_token_all_layers_fp8"]
    if "per_device_bytes_per_token_all_layers_tp8" in row:
        assert measure(layers, Cache(tensor_parallel=8)).all_layers == row["per_device_bytes_per_token_all_layers_tp8"]
    states = row.get("state_bytes_per_sequence", {"ssm_bf16": 0, "ssm_fp32": 0})
    assert found.state == states["ssm_bf16"]
    assert measure(layers, Cache(state_dtype="float32")).state == states["ssm_fp32"]
    known = {"model", "config", "kv_dtype", "tensor_parallel", "bytes_per_token_all_layers", "bytes_per_token_full_layers"}
    known |= {
        "sliding_cap_bytes",
        "bytes_per_token_all_layers_fp8",
        "per_device_bytes_per_token_all_layers_tp8",
        "state_bytes_per_sequence",
    }
    assert row.keys() <= known, "a figure that nobody compares"


ALL_HEADS = 4 * 8 * 16 * 2 * 2
TWO_HEADS = 4 * 2 * 16 * 2 * 2
ONE_HEAD = TWO_HEADS // 2


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, TWO_HEADS),
        ({"num_key_value_heads": None}, ALL_HEADS),
        ({"num_key_value_heads": "2"}, ALL_HEADS),
        ({"num_key_value_heads": True}, ALL_HEADS),
        ({"num_key_value_heads": -1}, ALL_HEADS),
        ({"head_dim": None}, TWO_HEADS),
        ({"head_dim": 0}, TWO_HEADS),
        ({"head_dim": 32}, 2 * TWO_HEADS),
        ({"hidden_size_per_head": 32}, 2 * TWO_HEADS),
        ({"n_head_kv": 1}, ONE_HEAD),  # the first of several keys counts
        ({"num_kv_heads": 8, "multi_query": True}, ONE_HEAD),  # Falcon 7B
        ({"num_kv_heads": 4, "multi_query": True, "new_decoder_architecture": True}, 2 * TWO_HEADS),  # Falcon 40B
        ({"num_key_value_heads": None, "multi_query_group_num": 2}, TWO_HEADS),
        ({"num_key_value_heads": None, "num_attention_groups": 1}, ONE_HEAD),
        ({"num_key_value_heads": None, "attn_config": {"kv_n_heads": 2}}, TWO_HEADS),  # DBRX
        ({"num_key_value_heads": [8, 0, 2, 1]}, (8 + 2 + 1) * 16 * 4),
        ({"num_key_value_heads": [4, 4]}, TWO_HEADS * 2),  # a list that is too short
        ({"num_key_value_heads": None, "num_kv_heads": [3, 3, 4, 5], "head_dim": 64}, 15 * 64 * 4),  # OpenELM
        ({"num_hidden_layers": None, "num_layers": 4}, TWO_HEADS),
        ({"num_hidden_layers": 0}, 0),
        ({"num_hidden_layers": 1 << 70}, 0),  # no number of layers
        ({"sliding_window": 0}, TWO_HEADS),
        ({"num_kv_shared_layers": 3}, TWO_HEADS // 4),  # Gemma 3n
        ({"num_kv_shared_layers": 99}, 0),
        ({"model_type": "bert"}, 0),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, 0),
        ({"model_type": "qwen2", "is_causal": False}, 0),
        ({"model_type": "minicpm3", "kv_lora_rank": 8, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4}, TWO_HEADS),
        ({"kv_lora_rank": 24, "qk_rope_head_dim": 8}, 4 * 32 * 2),
        ({"kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}, 4 * 32 * 2),  # taken as the file has it
        ({"kv_lora_rank": None, "qk_rope_head_dim": 8}, TWO_HEADS),
        ({"kv_lora_rank": 24, "qk_rope_head_dim": 8, "index_head_dim": 128}, 4 * (64 + 132)),
    ],
)
def test_heads_and_their_size(changes: dict[str, Any], wanted: int) -> None:
    assert per_token({**BASE, **changes}) == wanted


def test_blocks_that_say_how_many_heads_share_one() -> None:
    """Nemotron-NAS: layers without attention, and groups of different sizes."""
    attention = [{"n_heads_in_group": 8}, {"no_op": True}, {"replace_with_linear": True}, {"n_heads_in_group": 2}]
    config = {**BASE, "block_configs": [{"attention": each} for each in attention]}
    assert per_token(config) == (1 + 4) * 16 * 4
    assert kv_heads(config) == 4


WINDOW = {"sliding_window": 64}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (WINDOW, "ssss"),
        ({**WINDOW, "use_sliding_window": False}, "ffff"),
        ({**WINDOW, "model_type": "qwen2"}, "ffff"),  # off by default
        ({**WINDOW, "model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 0}, "ffff"),
        ({**WINDOW, "model_type": "qwen2", "max_window_layers": 0}, "ffff"),
        ({**WINDOW, "model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 3}, "fffs"),
        ({**WINDOW, "model_type": "qwen2", "use_sliding_window": True}, "ffff"),  # from layer 28 on
        ({**WINDOW, "model_type": "mistral"}, "ssss"),
        ({"sliding_window": None, "model_type": "mistral"}, "ffff"),
        ({**WINDOW, "model_type": "gemma2"}, "sfsf"),
        ({**WINDOW, "model_type": "gpt_oss"}, "sfsf"),
        ({**WINDOW, "model_type": "gemma3_text", "num_hidden_layers": 7}, "sssssfs"),
        ({**WINDOW, "sliding_window_pattern": 3}, "ssfs"),
        ({**WINDOW, "_sliding_window_pattern": 2}, "sfsf"),
        ({**WINDOW, "sliding_window_pattern": "LLLG"}, "sssf"),
        ({**WINDOW, "sliding_window_pattern": [True, False]}, "sfsf"),
        ({**WINDOW, "sliding_window_pattern": 2, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "fffs"),
        ({**WINDOW, "layer_types": ["full_attention"]}, "ffff"),  # a list that is too short: rather too much
        ({**WINDOW, "layer_types": ["something_new"] * 4}, "ffff"),
        ({"sliding_window": [32, None]}, "sfsf"),
        ({"model_type": "llama4_text", "attention_chunk_size": 64}, "sssf"),
        ({"model_type": "llama4_text", "attention_chunk_size": 64, "no_rope_layers": [1, 0, 1, 0]}, "sfsf"),
        ({"model_type": "mimo_v2", "sliding_window": 64, "attention_chunk_size": 64, "hybrid_layer_pattern": [0, 1, 1, 0]}, "fssf"),
        ({"num_key_value_heads": [2, 0, 2, 1]}, "fff"),
        ({"full_attention_interval": 2}, "lflf"),
        ({"model_type": "qwen3_next"}, "lllf"),
        ({"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"] * 2}, "lflf"),
        ({"linear_attn_config": {"full_attn_layers": [2, 4], "num_heads": 2, "head_dim": 8}, "kv_lora_rank": 24}, "lmlm"),
        ({"attn_type_list": [0, 0, 0, 1]}, "lllf"),
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 16}, "llfl"),
        ({"layers_block_type": ["mamba", "attention", "moe", "mamba"], "mamba_d_state": 16}, "lfl"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*E", "ssm_state_size": 16}, "lf"),
        ({"model_type": "mamba2", "state_size": 16, "num_heads": 4, "head_dim": 32}, "llll"),
        ({"model_type": "falcon_h1", "mamba_d_state": 16}, "lflflflf"),
        ({"model_type": "lfm2", "full_attn_idxs": [1, 3], "conv_L_cache": 3}, "lflf"),
        ({"model_type": "bamba", "attn_layer_indices": [1], "mamba_d_state": 16}, "lfll"),
        ({"is_encoder_decoder": True, "decoder_layers": 2, "max_source_positions": 150}, "fcfc"),
    ],
)
def test_kinds_of_layers(changes: dict[str, Any], wanted: str) -> None:
    assert kinds({**BASE, **changes}) == wanted


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_language_model_is_found_inside_a_multimodal_one(key: str) -> None:
    assert per_token({"model_type": "vision", "num_hidden_layers": 99, "hidden_size": 7, key: BASE}) == TWO_HEADS
    assert per_token({"thinker_config": {"audio_config": {}, key: BASE}}) == TWO_HEADS


def test_nesting_without_end_is_cut() -> None:
    config: dict[str, Any] = {}
    config["text_config"] = config
    assert per_token(config) == 0


def test_gemma_4_has_larger_heads_where_it_attends_to_everything() -> None:
    config = {**BASE, "model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32, "sliding_window": 64}
    config |= {"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    assert per_token(config) == 3 * 2 * 16 * 4 + 2 * 32 * 4
    assert per_token({**config, "attention_k_eq_v": True, "num_global_key_value_heads": 1}) == 3 * 2 * 16 * 4 + 32 * 4


@pytest.mark.parametrize(
    ("config", "elements"),
    [  # convolution and recurrent state of one layer
        ({"model_type": "mamba", "state_size": 16, "conv_kernel": 4, "intermediate_size": 256}, (256 * 3, 256 * 16)),
        ({"model_type": "jamba", "mamba_d_state": 16, "mamba_expand": 2}, (256 * 3, 256 * 16)),
        ({"model_type": "mamba2", "state_size": 16, "num_heads": 4, "head_dim": 32, "n_groups": 2}, ((128 + 64) * 3, 4 * 32 * 16)),
        ({"model_type": "bamba", "mamba_d_state": 16, "mamba_n_heads": 8, "mamba_d_head": "auto"}, ((256 + 32) * 3, 256 * 16)),
        ({"model_type": "minimax", "attn_type_list": [0]}, (0, 8 * 16 * 16)),
        ({"model_type": "lfm2", "conv_L_cache": 3}, (128 * 2, 0)),
        ({"linear_attn_config": {"num_heads": 2, "head_dim": 8}}, (3 * 16 * 3, 2 * 64)),
    ],
)
def test_states_of_layers_without_attention(config: dict[str, Any], elements: tuple[int, int]) -> None:
    kind = "conv" if config.get("model_type") == "lfm2" else "mamba"
    (layer,) = read_layers({**BASE, "num_hidden_layers": 1, "layer_types": [kind], **config})
    assert (layer.kind, layer.convolution, layer.recurrent) == (Kind.LINEAR, *elements)


def test_the_type_of_a_state() -> None:
    """The flag wins over the file, the file over the family's own rule, that over the model's type."""
    config: dict[str, Any] = {"model_type": "nemotron_h", "hybrid_override_pattern": "M", "ssm_state_size": 16, "mamba_num_heads": 2}
    config |= {"mamba_head_dim": 8, "num_hidden_layers": 1, "hidden_size": 128}
    assert measure(read_layers(config), Cache()).state == (16 + 32) * 3 * 2 + 256 * 4
    narrow = read_layers({**config, "mamba_ssm_cache_dtype": "bfloat16"})
    assert measure(narrow, Cache()).state == (16 + 32) * 3 * 2 + 256 * 2
    assert measure(narrow, Cache(state_dtype="float32")).state == (16 + 32) * 3 * 2 + 256 * 4
    kimi = read_layers({**BASE, "num_hidden_layers": 1, "linear_attn_config": {"num_heads": 2, "head_dim": 8}})
    assert measure(kimi, Cache()).state == 3 * 16 * 3 * 2 + 2 * 64 * 4
    assert measure(narrow, Cache(tensor_parallel=2)).state == ((16 + 32) * 3 * 2 + 256 * 2) // 2


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("auto", 256),
        ("bfloat16", 256),
        ("float16", 256),
        ("float32", 512),
        ("fp8", 128),
        ("fp8_e4m3", 128),
        ("fp8_e5m2", 128),
        ("FP8", 128),
        ("int8_per_token_head", 132),
        ("fp8_per_token_head", 132),
        ("int4_per_token_head", 68),
        ("nvfp4", 64 + 8),
        ("turboquant_k8v4", 132),
        ("something_new", 256),
    ],
)
def test_a_row_of_a_head_by_data_type(dtype: str, wanted: int) -> None:
    assert row_bytes(128, Cache(dtype=dtype)) == wanted


def test_the_layout_of_deepseeks_own_kernels() -> None:
    config = {"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert per_token(config, dtype="fp8_ds_mla") == 656
    assert per_token(config, dtype="fp8") == 576
    assert per_token({**config, "index_head_dim": 128}, dtype="fp8") == 656 + 132


def test_a_request_is_rounded_up_to_blocks() -> None:
    layers = read_layers(BASE)
    assert request_bytes(layers, Cache(), 0, 8192) == 0
    assert request_bytes(layers, Cache(), 1, 8192) == 16 * TWO_HEADS
    assert request_bytes(layers, Cache(), 17, 8192) == 32 * TWO_HEADS
    assert request_bytes(layers, Cache(block_tokens=64), 65, 8192) == 128 * TWO_HEADS


def test_a_window_bounds_what_a_request_keeps() -> None:
    """``window - 1 + in flight`` tokens, rounded up, and one block more; everything without the hybrid cache manager."""
    layers = read_layers({**BASE, "sliding_window": 64})
    assert request_bytes(layers, Cache(), 10_000, 100) == TWO_HEADS * (176 + 16)
    assert request_bytes(layers, Cache(), 10_000, 97) == TWO_HEADS * (160 + 16)
    assert request_bytes(layers, Cache(), 100, 8192) == TWO_HEADS * (112 + 16)
    assert request_bytes(layers, Cache(hybrid=False), 10_000, 100) == TWO_HEADS * 10_000


def test_linear_layers_keep_states_and_make_blocks_large() -> None:
    """Qwen3-Next: a state of 2,146,304 bytes (32-bit) a layer, 2,048 bytes a token in a layer of attention."""
    layers = read_layers({**ROWS["Qwen3-Next-80B-A3B"]["config"], "mamba_ssm_dtype": "float32"})
    block = 1056  # as many tokens as a state has bytes, in blocks of 16
    assert request_bytes(layers, Cache(), 1, 8192) == 2 * 77266944 + block * 24576
    assert request_bytes(layers, Cache(prefixes=False), block + 1, 8192) == 77266944 + 2 * block * 24576


def test_a_decoder_sees_all_of_its_encoder() -> None:
    config = {**BASE, "is_encoder_decoder": True, "decoder_layers": 2, "max_source_positions": 1500}
    assert request_bytes(read_layers(config), Cache(), 16, 8192) == 2 * 128 * (16 + 1504)
    assert per_token(config) == 2 * 128


def test_how_many_tokens_a_cache_holds() -> None:
    layers = read_layers(BASE)
    assert usable_tokens(TWO_HEADS * 33, layers, Cache()) == 32
    assert usable_tokens(TWO_HEADS * 15, layers, Cache()) == 0
    assert usable_tokens(-1, layers, Cache()) == 0
    assert usable_tokens(1 << 30, (), Cache()) == 0


@pytest.mark.parametrize(
    ("layers", "parts", "wanted"),
    [(8, 1, [8]), (8, 2, [4, 4]), (9, 2, [5, 4]), (10, 4, [2, 3, 3, 2]), (2, 9, [1, 1]), (0, 3, [0])],
)
def test_stages_of_a_pipeline(layers: int, parts: int, wanted: list[int]) -> None:
    assert stages(layers, parts) == wanted


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-0.6B", "Gemma-3-4B", "Gemma-2-9B", "gpt-oss-20b", "Falcon-7B(MQA)"])
def test_gguf_files_agree(name: str) -> None:
    """The same shapes as a GGUF header: what llama.cpp allocates for a context is what the figures here make of it."""
    config = ROWS[name]["config"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    scalars: dict[str, int | str] = {
        "general.architecture": "x",
        "x.block_count": config["num_hidden_layers"],
        "x.embedding_length": config["hidden_size"],
        "x.attention.head_count": config["num_attention_heads"],
        "x.attention.head_count_kv": config["num_key_value_heads"],
        "x.attention.key_length": head,
        "x.attention.value_length": head,
        "x.attention.sliding_window": config.get("sliding_window", 0),
        "x.attention.sliding_window_pattern": config.get("sliding_window_pattern", 0),
    }
    window, batch, context = config.get("sliding_window", 0), 256, 65536
    found = measure(read_layers(config), Cache())
    sizing = LlamaSizing(context=context, slots=1, batch=batch, ubatch=batch)
    cells = -(-(window + batch) // 256) * 256 if window else 0
    wanted = found.full_layers * context + (found.all_layers - found.full_layers) * cells
    assert measure_gguf(Header(version=3, scalars=scalars), 0, sizing).kv == wanted


def test_layers_that_hold_nothing_cost_nothing() -> None:
    assert measure((), Cache()).all_layers == 0
    assert request_bytes((), Cache(), 1000, 1000) == 0
    assert measure([Layer(kind=Kind.FULL)], Cache()).all_layers == 0
