"""Read a Hugging Face model folder: its configuration and the sizes of its weights, never the weights themselves. Blocks.

Weights count by the best evidence there is: the tensors that the safetensors headers list; the index's ``total_size``, when the files
agree within 1 %; the sizes of the files; the configuration alone (:mod:`adapters.engines.dense_weights`). What other formats keep beside
them is skipped: ``original/`` and ``metal/`` (sub-folders are not looked into), ``consolidated*.safetensors``, ``*.bin`` beside
safetensors, adapters.
"""

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final

from adapters.engines.dense_weights import dense_weights_bytes
from adapters.engines.hf_config import (
    Config,
    architectures,
    dtype_of,
    is_encoder_only,
    is_pooling,
    is_tied,
    layer_count,
    mapping,
    max_length,
    model_type,
    number,
    positive,
    quantization,
    query_heads,
    text_config,
    word,
)
from adapters.engines.kv_layers import kv_heads
from adapters.engines.safetensors import SafetensorsError, Tensor, read_tensors
from adapters.engines.tensor_split import Split, split, unsorted

MAX_CONFIG_BYTES: Final = 16 << 20
MAX_FILES: Final = 4096
#: How far the index's total may be from the sizes of the files and still count.
INDEX_TOLERANCE: Final = 0.01
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)")
_MAX_NAME: Final = 255  # bytes of a file's name; what a file says may be anything
_ADAPTER_CONFIG: Final = "adapter_config.json"
#: Older tools write the method into a file of its own.
_QUANTIZATION_FILES: Final = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
_POOLING_FILES: Final = ("modules.json", "config_sentence_transformers.json", "1_Pooling")
_FLOATS: Final = {
    "F64": "float64",
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


class FolderError(Exception):
    """A model folder cannot be used. ``str()`` is a sentence that names the file and the cause, ``fix`` what to do."""

    def __init__(self, message: str, *, fix: str = "", missing: bool = False) -> None:
        super().__init__(message)
        self.fix = fix
        self.missing = missing  # there is nothing, rather than something that cannot be read


class Evidence(StrEnum):
    """Where the size of the weights comes from, best first."""

    HEADERS = "headers"
    INDEX = "index"
    FILES = "files"
    FORMULA = "formula"


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """What a folder says about its model.

    ``weights_bytes`` counts what an engine loads on one device: tied embeddings once, layers that guess further tokens not. ``disk_bytes``
    is what is read from storage. ``dtype`` is that of most of the weights (as torch names it), ``quantization`` the method they are stored
    with, empty = none. ``formats`` are the endings of the weight files that are there, of every kind. ``problems`` are sentences about what
    is odd but no obstacle.
    """

    path: Path
    config: Config
    split: Split
    evidence: Evidence
    disk_bytes: int
    dtype: str
    quantization: str = ""
    vocabulary: int = 0
    layers: int = 0
    kv_heads: int = 0
    max_length: int = 0
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    pooling: bool = False
    encoder_only: bool = False
    formats: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights on one device."""
        return self.split.total


def read_folder(path: Path) -> HfModel:
    """The model in ``path``, read once per version of its files. Raises FolderError."""
    return _read_once(path, _stamp(path))


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    inode: int
    changed_ns: int
    size: int
    folder: bool


def _stamp(path: Path) -> tuple[_File, ...]:
    """The files of a folder, links followed: in a hub cache all of them are links."""
    try:
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:
                    continue  # a link to nothing: whoever needs that file will find it missing
                found.append(_File(entry.name, status.st_ino, status.st_mtime_ns, status.st_size, stat.S_ISDIR(status.st_mode)))
                if len(found) > MAX_FILES:
                    raise FolderError(f"{path} holds more than {MAX_FILES} files; that is no model folder", fix="correct `model`")
    except FileNotFoundError:
        raise FolderError(f"there is no folder {path}", fix="correct `model`", missing=True) from None
    except NotADirectoryError:
        raise FolderError(f"{path} is a file, not a model folder", fix="name the folder that holds config.json") from None
    except OSError as error:
        fix = "let the daemon's user read it (chmod o+rx)"
        raise FolderError(f"{path} cannot be read: {error.strerror}", fix=fix) from error
    except ValueError:
        raise FolderError(f"{str(path)!r} is no path", fix="correct `model`", missing=True) from None
    return tuple(sorted(found, key=lambda file: file.name))


@lru_cache(maxsize=256)
def _read_once(path: Path, files: tuple[_File, ...]) -> HfModel:
    names = {file.name: file.size for file in files if not file.folder}
    config = _config(path, names)
    problems: list[str] = []
    weights = _weights(path, names, config, problems)
    text = text_config(config)
    everything = {file.name for file in files}
    return HfModel(
        path=path,
        config=config,
        split=weights.split,
        evidence=weights.evidence,
        disk_bytes=weights.disk_bytes,
        dtype=weights.dtype or dtype_of(config),
        quantization=quantization(config) or next((method for file, method in _QUANTIZATION_FILES.items() if file in names), ""),
        vocabulary=positive(text, "vocab_size", "padded_vocab_size"),
        layers=layer_count(text),
        kv_heads=kv_heads(config),
        max_length=max_length(config),
        architectures=architectures(config),
        model_type=model_type(config) or model_type(text),
        pooling=is_pooling(config) or not everything.isdisjoint(_POOLING_FILES),
        encoder_only=is_encoder_only(config),
        formats=frozenset(_formats(names)),
        problems=tuple(problems),
    )


def _formats(names: Mapping[str, int]) -> set[str]:
    known = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
    return {Path(name).suffix for name in names if Path(name).suffix in known and not name.startswith(("adapter_", "training_args"))}


# --- config.json ------------------------------------------------------------------------------------------------------


def _config(path: Path, names: Mapping[str, int]) -> Config:
    if "config.json" in names:
        return _json(path / "config.json", names["config.json"])
    if _ADAPTER_CONFIG in names:
        base = word(_json(path / _ADAPTER_CONFIG, names[_ADAPTER_CONFIG]), "base_model_name_or_path")
        base = base if base.isprintable() and 0 < len(base) <= _MAX_NAME else "its base model"
        fix = f"set `model` to {base} and add the adapter with args: [--enable-lora, --lora-modules, NAME={path}]"
        raise FolderError(f"{path} is an adapter (LoRA), not a model", fix=fix)
    if "params.json" in names:
        return from_mistral(_json(path / "params.json", names["params.json"]))
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        fix = f"use engine llamacpp with `model` set to {path / ggufs[0]}, or fetch the model in safetensors format"
        raise FolderError(f"{path} has no config.json, only GGUF files", fix=fix)
    fix = "correct `model`; it names the folder that holds config.json and the weights"
    raise FolderError(f"{path} has no config.json", fix=fix)


def _json(path: Path, size: int) -> Config:
    if size > MAX_CONFIG_BYTES:
        raise FolderError(f"{path} has {size} bytes; a configuration has at most {MAX_CONFIG_BYTES}", fix="fetch it again")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FolderError(f"{path} is not a regular file", fix="fetch it again")
            data = json.loads(file.read(MAX_CONFIG_BYTES))
    except OSError as error:
        fix = "let the daemon's user read it (chmod o+r, and o+x on its folders)"
        raise FolderError(f"{path} cannot be read: {error.strerror}", fix=fix) from error
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or no UTF-8
        raise FolderError(f"{path} is not JSON: {str(error)[:100]}", fix="fetch it again") from None
    if not isinstance(data, dict):
        raise FolderError(f"{path} is not a JSON object", fix="fetch it again")
    return data


def from_mistral(params: Config) -> Config:
    """Mistral's own ``params.json`` in the words of ``config.json``."""
    moe = mapping(params, "moe")
    renamed = {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "hidden_size": number(params, "dim"),
        "num_hidden_layers": number(params, "n_layers"),
        "num_attention_heads": number(params, "n_heads"),
        "num_key_value_heads": positive(params, "n_kv_heads", default=number(params, "n_heads")),
        "head_dim": number(params, "head_dim"),
        "intermediate_size": number(params, "hidden_dim"),
        "vocab_size": number(params, "vocab_size"),
        "num_local_experts": number(moe, "num_experts"),
        "tie_word_embeddings": params.get("tied_embeddings") is True,
        "max_position_embeddings": positive(params, "max_position_embeddings", "max_seq_len", default=128_000),
    }
    return {**{key: params[key] for key in ("sliding_window", "kv_lora_rank", "qk_rope_head_dim") if key in params}, **renamed}


# --- weights ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weights:
    split: Split
    evidence: Evidence
    disk_bytes: int
    dtype: str = ""


def _weights(path: Path, names: Mapping[str, int], config: Config, problems: list[str]) -> _Weights:
    tensors_in = _weight_files(names, ".safetensors")
    index = _index(path, names, "model.safetensors.index.json", problems)
    listed = {file for file in mapping(index, "weight_map").values() if isinstance(file, str)}
    if tensors_in or listed:
        chosen = sorted(listed) or tensors_in
        _refuse_gaps(path, chosen, names)
        tensors = _tensors(path, chosen)
        _note_index(index, sum(tensor.size_bytes for tensor in tensors), "tensors", problems)
        return _Weights(_split(tensors, config), Evidence.HEADERS, sum(names[name] for name in chosen), _most_common(tensors))
    chosen = _weight_files(names, ".bin") or _weight_files(names, ".pt") or _weight_files(names, ".pth")
    index = _index(path, names, "pytorch_model.bin.index.json", problems)
    listed = {file for file in mapping(index, "weight_map").values() if isinstance(file, str)}
    chosen = sorted(listed) or chosen
    if chosen:
        _refuse_gaps(path, chosen, names)
        total = sum(names[name] for name in chosen)
        said = number(mapping(index, "metadata"), "total_size")
        if said and not _differs(said, total):
            return _Weights(unsorted(said), Evidence.INDEX, total)
        _note_index(index, total, "files", problems)
        return _Weights(unsorted(total), Evidence.FILES, total)
    size = dense_weights_bytes(config)
    return _Weights(unsorted(size), Evidence.FORMULA, size, dtype_of(config))


def _weight_files(names: Mapping[str, int], suffix: str) -> list[str]:
    """The weight files of one format. Mistral's own copy counts only where nothing else is there."""
    found = sorted(name for name in names if name.endswith(suffix) and not name.startswith(("adapter_", "training_args", "optimizer")))
    return [name for name in found if not name.startswith("consolidated")] or found


def _index(path: Path, names: Mapping[str, int], name: str, problems: list[str]) -> Config:
    if name not in names:
        return {}
    try:
        return _json(path / name, names[name])
    except FolderError as error:
        problems.append(str(error))
        return {}


def _refuse_gaps(path: Path, chosen: list[str], names: Mapping[str, int]) -> None:
    """Raises FolderError when a file is missing that the index lists, or that the numbers in the names promise."""
    wanted = set(chosen)
    for name in chosen:
        match = _SHARD.fullmatch(name)
        if match and int(match[3]) <= MAX_FILES:
            wanted |= {f"{match[1]}-{number_:05d}-of-{match[3]}.{match[4]}" for number_ in range(1, int(match[3]) + 1)}
    missing = sorted(wanted - set(names))
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        first = missing[0] if missing[0].isprintable() and len(missing[0]) <= _MAX_NAME else ascii(missing[0][:80])
        message = f"{path}/{first}{more} is missing, one of {len(wanted)} weight files"
        raise FolderError(message, fix="the download is not complete; fetch it again")


def _note_index(index: Config, total: int, what: str, problems: list[str]) -> None:
    said = number(mapping(index, "metadata"), "total_size")
    if said and _differs(said, total):
        problems.append(f"the index says {said} bytes of weights, the {what} have {total}")


def _differs(said: int, total: int) -> bool:
    return abs(said - total) > INDEX_TOLERANCE * total


def _tensors(path: Path, chosen: list[str]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for name in chosen:
        file = path / name
        try:
            tensors += read_tensors(file)
        except OSError as error:
            fix = "let the daemon's user read it (chmod o+r, and o+x on its folders)"
            raise FolderError(f"{file} cannot be read: {error.strerror}", fix=fix) from error
        except SafetensorsError as error:
            fix = "run git lfs pull in that folder" if error.pointer else "fetch it again and compare its size and checksum"
            raise FolderError(f"{file}: {error}", fix=fix) from error
    return tensors


def _split(tensors: list[Tensor], config: Config) -> Split:
    text = text_config(config)
    guessing = positive(text, "num_nextn_predict_layers", "mtp_num_hidden_layers")
    return split(
        tensors,
        kv_heads=kv_heads(config),
        query_heads=query_heads(text),
        tied=is_tied(config),
        guessing_from=layer_count(text) if guessing else 0,
    )


def _most_common(tensors: list[Tensor]) -> str:
    """The floating-point type of most bytes; quantised weights are integers and leave it to the rest."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.dtype in _FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size_bytes
    return _FLOATS[max(sizes, key=lambda dtype: sizes[dtype])] if sizes else ""
