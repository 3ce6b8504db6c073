"""Model folders with anything in them: the reader answers or says what is wrong, and an estimate is always a number."""

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.engines.hf_folder import FolderError, HfModel, read_folder
from adapters.engines.safetensors import SafetensorsError, parse
from adapters.engines.vllm_size import check, estimate
from scheduler.domain.errors import Permanent
from scheduler.domain.ids import ModelName
from scheduler.domain.model import DeviceWish, ModelSpec
from tests.support.hf_folders import llama_config

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-10, 1 << 42), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=5,
)
FIELDS = [*llama_config(), "head_dim", "layer_types", "sliding_window", "quantization_config", "rope_scaling", "text_config", "num_experts"]
FIELDS += ["num_experts_per_tok", "num_nextn_predict_layers", "is_encoder_decoder", "kv_lora_rank", "model_max_length"]
CONFIGS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5).map(lambda odd: {**llama_config(), **odd})
ENTRIES = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"dtype": st.sampled_from(["F32", "BF16", "NEW"]), "shape": VALUES, "data_offsets": st.lists(st.integers(0, 99))}
    ),
)
HEADERS = st.one_of(
    st.dictionaries(st.text(max_size=8), ENTRIES, max_size=3).map(lambda found: json.dumps(found).encode()), st.binary(max_size=64)
)
FILES = st.dictionaries(
    st.sampled_from(["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "consolidated.safetensors", "x.gguf"]),
    st.one_of(st.binary(max_size=40), HEADERS.map(lambda header: struct.pack("<Q", len(header)) + header + bytes(100)), HEADERS),
    max_size=3,
)
FLAGS = st.lists(
    st.sampled_from(
        ["--max-model-len", "4k", "-1", "--quantization", "fp8", "--kv-cache-dtype", "nvfp4", "-pp", "3", "--cpu-offload-gb", "1e9"]
    ),
    max_size=6,
)


def read(folder: Path) -> tuple[HfModel | None, FolderError | None]:
    try:
        return read_folder(folder), None
    except FolderError as error:
        return None, error


def refusal(spec: ModelSpec) -> Permanent | None:
    try:
        check(spec)
    except Permanent as error:
        return error
    return None


@settings(max_examples=150, deadline=None)
@given(st.one_of(CONFIGS, VALUES), FILES, FLAGS, st.integers(1, 9))
def test_nothing_but_an_answer_or_a_reason(config: Any, files: dict[str, bytes], flags: list[str], devices: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        for file, content in files.items():
            (folder / file).write_bytes(content)
        model, wrong = read(folder)
        assert model is None or model.weights_bytes >= 0
        assert wrong is None or (str(wrong) and wrong.fix)
        spec = ModelSpec(name=ModelName("m"), engine="vllm", model=name, args=tuple(flags), devices=DeviceWish(count=devices))
        found = estimate(spec)
        sizes = (
            found.awake_bytes,
            found.start_peak_bytes,
            found.weights_bytes,
            found.kv_bytes,
            found.host_bytes[1],
            found.residue_bytes[1],
        )
        assert all(0 <= size <= 1 << 50 for size in sizes)
        assert found.kv_min_bytes <= found.kv_bytes <= found.awake_bytes <= found.start_peak_bytes
        refused = refusal(spec)
        assert refused is None or (refused.message and refused.fix)
        assert (wrong is None) or refused is not None


@given(HEADERS, st.integers(0, 1 << 20))
def test_headers_hold_no_surprise(header: bytes, file_bytes: int) -> None:
    try:
        tensors = parse(header, file_bytes)
    except SafetensorsError:
        return
    assert all(0 <= tensor.size_bytes <= file_bytes for tensor in tensors)
