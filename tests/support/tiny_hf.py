"""A Hugging Face model that a real vLLM loads: two small layers with real weights, a tokenizer of bytes, a chat template."""

import json
from pathlib import Path

from tests.support.hf_folders import llama_config, llama_tensors, write_folder

CONTEXT = 4096
SPECIAL = ("<s>", "</s>", "<pad>")


def tiny_folder(path: Path) -> Path:
    """About half a MiB at ``path``; the same weights each time."""
    config = llama_config(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 64: attention on the CPU takes no smaller ones than 32
        num_key_value_heads=1,
        vocab_size=320,
        max_position_embeddings=CONTEXT,
        bos_token_id=256,
        eos_token_id=257,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        rope_theta=10000.0,
    )
    write_folder(path, config, llama_tensors(config), real_bytes=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": CONTEXT,
        "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (path / "tokenizer.json").write_text(json.dumps(_tokenizer()), encoding="utf-8")
    return path


def _tokenizer() -> dict[str, object]:
    """One token per byte, no merges, in the format of the library ``tokenizers``."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": 256 + n, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for n, word in enumerate(SPECIAL)
    ]
    vocabulary = {letter: number for number, letter in enumerate(_letters())} | {word: 256 + n for n, word in enumerate(SPECIAL)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it can be seen, else the next one above 255."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]
