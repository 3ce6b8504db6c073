"""Write Hugging Face model folders: a configuration and safetensors files whose headers are real and whose weights need not be.

Without ``real_bytes`` the files are sparse: a model of 16 GiB costs a few KiB of disk.
"""

import array
import json
import random
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from adapters.engines.safetensors import DTYPE_BITS

#: Name -> (data type as safetensors writes it, shape).
Tensors = Mapping[str, tuple[str, Sequence[int]]]


def llama_config(**changes: Any) -> dict[str, Any]:
    """A small Llama's configuration: 4 layers of width 64, 4 heads, 2 of keys and values, in bfloat16."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **changes,
    }


def llama_tensors(config: Mapping[str, Any], dtype: str = "BF16") -> dict[str, tuple[str, list[int]]]:
    """The tensors of a model like Llama with ``config``, by the names that transformers gives them."""
    width, forward, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": [vocabulary, width], "model.norm.weight": [width]}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = [vocabulary, width]
    for index in range(config["num_hidden_layers"]):
        name = f"model.layers.{index}"
        shapes |= {
            f"{name}.input_layernorm.weight": [width],
            f"{name}.post_attention_layernorm.weight": [width],
            f"{name}.self_attn.q_proj.weight": [queries, width],
            f"{name}.self_attn.k_proj.weight": [keys, width],
            f"{name}.self_attn.v_proj.weight": [keys, width],
            f"{name}.self_attn.o_proj.weight": [width, queries],
            f"{name}.mlp.gate_proj.weight": [forward, width],
            f"{name}.mlp.up_proj.weight": [forward, width],
            f"{name}.mlp.down_proj.weight": [width, forward],
        }
    return {name: (dtype, shape) for name, shape in shapes.items()}


def write_folder(
    path: Path, config: Mapping[str, Any] | None, tensors: Tensors | None = None, *, shards: int = 1, real_bytes: bool = False
) -> Path:
    """A model folder at ``path``: ``config`` (None = no config.json) and ``tensors`` (None = no weights) in ``shards`` files.

    More than one shard also gets an index. With ``real_bytes`` the weights are small random numbers, the same ones each time.
    """
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    if tensors is None:
        return path
    names = list(tensors)
    where: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        total += write_safetensors(path / file, part, real_bytes=real_bytes)
        where |= {name: file for name in part}
    if shards > 1:
        write_index(path, where, total)
    return path


def write_index(path: Path, where: Mapping[str, str], total: int) -> None:
    """The index of a model in several files."""
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": where})
    (path / "model.safetensors.index.json").write_text(text)


def write_safetensors(path: Path, tensors: Tensors, *, real_bytes: bool = False, cut_bytes: int = 0) -> int:
    """One file; returns the bytes of its tensors. ``cut_bytes`` are missing at its end."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = (prod(shape) * DTYPE_BITS[dtype] + 7) // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        if real_bytes:
            for name, (dtype, shape) in tensors.items():
                file.write(_weights(name, dtype, prod(shape)))
        file.truncate(8 + len(header) + end - cut_bytes)
    return end


def _weights(name: str, dtype: str, count: int) -> bytes:
    """Small random numbers, ones for norms."""
    draw = random.Random(name)
    values = array.array("f", (1.0 if "norm" in name else draw.uniform(-0.1, 0.1) for _ in range(count)))
    if dtype == "F32":
        return values.tobytes()
    if dtype == "BF16":  # the upper half of a 32-bit float
        data = values.tobytes()
        return b"".join(data[at + 2 : at + 4] for at in range(0, len(data), 4))
    if dtype == "F16":
        return struct.pack(f"<{count}e", *values)
    raise ValueError(f"no real weights of type {dtype}")


def sized_folder(path: Path, weights_bytes: int, **changes: Any) -> Path:
    """A folder like Llama-3.1-8B's whose weights have ``weights_bytes`` (at least 1 MiB, even) in all; it costs no disk.

    ``changes`` go into the configuration; KV takes 128 KiB a token unless they say otherwise.
    """
    config = llama_config(
        **{
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            **changes,
        }
    )
    assert weights_bytes >= 1 << 20, "too small for the embedding's share"
    assert weights_bytes % 2 == 0, "bfloat16 has two bytes"
    layers = config["num_hidden_layers"]
    each = weights_bytes // 2 // (layers + 1)
    rest = weights_bytes // 2 - each * layers
    tensors = {"model.embed_tokens.weight": ("BF16", [rest])}
    tensors |= {f"model.layers.{index}.mlp.down_proj.weight": ("BF16", [each]) for index in range(layers)}
    return write_folder(path, config, tensors)
