"""Write GGUF files: small well-formed ones, odd ones, and a tiny model that the real llama.cpp serves.

The tiny model is a two-layer Llama with random weights and a byte-level vocabulary, well under 1 MB: it talks nonsense,
is ready in a fraction of a second, and its KV cache grows with ``-c`` like anybody's.
"""

import array
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
F32_TENSOR = 0

#: A typed value: (type, value); arrays are (ARRAY, (item type, items)).
Typed = tuple[int, object]


def text(value: str) -> bytes:
    """A GGUF string."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, typed: Typed) -> bytes:
    """A key with its value."""
    kind, value = typed
    return text(key) + struct.pack("<I", kind) + _value(kind, value)


def _value(kind: int, value: object) -> bytes:
    if kind == STRING:
        return text(str(value))
    if kind == ARRAY:
        assert isinstance(value, tuple)
        item, items = value
        head = struct.pack("<IQ", item, len(items))
        if item == STRING:
            return head + b"".join(text(each) for each in items)
        return head + struct.pack(f"<{len(items)}{_FORMATS[item]}", *items)
    return struct.pack("<" + _FORMATS[kind], value)


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """A tensor's description."""
    return text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", kind, offset)


def gguf(pairs: Mapping[str, Typed], tensors: Sequence[tuple[str, Sequence[int], bytes]] = (), *, version: int = 3) -> bytes:
    """A whole file; tensors are 32-bit floats."""
    infos, data = b"", b""
    for name, shape, values in tensors:
        infos += tensor(name, shape, F32_TENSOR, len(data))
        data += values + b"\0" * (-len(values) % 32)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    head += b"".join(pair(key, typed) for key, typed in pairs.items()) + infos
    return head + b"\0" * (-len(head) % 32) + data


def tiny_model(
    path: Path, *, architecture: str = "llama", layers: int = 2, width: int = 64, context: int = 32768, kv_heads: int = 2
) -> Path:
    """Write a model that llama.cpp loads (with ``architecture`` "llama")."""
    heads, forward, head = 4, 2 * width, width // 4
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    kinds = [2, 3, 3, *([6] * 256), 1]
    pairs: dict[str, Typed] = {
        "general.architecture": (STRING, architecture),
        "general.name": (STRING, "tiny"),
        f"{architecture}.block_count": (U32, layers),
        f"{architecture}.context_length": (U32, context),
        f"{architecture}.embedding_length": (U32, width),
        f"{architecture}.feed_forward_length": (U32, forward),
        f"{architecture}.attention.head_count": (U32, heads),
        f"{architecture}.attention.head_count_kv": (U32, kv_heads),
        f"{architecture}.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        f"{architecture}.rope.dimension_count": (U32, head),
        f"{architecture}.vocab_size": (U32, len(tokens)),
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * len(tokens))),
        "tokenizer.ggml.token_type": (ARRAY, (I32, kinds)),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.ggml.unknown_token_id": (U32, 0),
    }
    shapes = {"token_embd.weight": (width, len(tokens)), "output_norm.weight": (width,), "output.weight": (width, len(tokens))}
    for number in range(layers):
        shapes |= {
            f"blk.{number}.attn_norm.weight": (width,),
            f"blk.{number}.attn_q.weight": (width, width),
            f"blk.{number}.attn_k.weight": (width, kv_heads * head),
            f"blk.{number}.attn_v.weight": (width, kv_heads * head),
            f"blk.{number}.attn_output.weight": (width, width),
            f"blk.{number}.ffn_norm.weight": (width,),
            f"blk.{number}.ffn_gate.weight": (width, forward),
            f"blk.{number}.ffn_up.weight": (width, forward),
            f"blk.{number}.ffn_down.weight": (forward, width),
        }
    path.write_bytes(gguf(pairs, [(name, shape, _weights(name, shape)) for name, shape in shapes.items()]))
    return path


def _weights(name: str, shape: Sequence[int]) -> bytes:
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    if "norm" in name:
        return array.array("f", [1.0] * count).tobytes()
    draw = random.Random(name)
    return array.array("f", [draw.uniform(-0.3, 0.3) for _ in range(count)]).tobytes()
