"""Model folders: what they hold, what is skipped, and everything that can be wrong with them."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.dense_weights import dense_weights_bytes
from adapters.engines.hf_config import is_encoder_only, is_pooling, is_tied, max_length, quantization
from adapters.engines.hf_folder import MAX_CONFIG_BYTES, MAX_FILES, Evidence, FolderError, read_folder
from adapters.engines.safetensors import MAX_HEADER_BYTES, SafetensorsError, parse, read_tensors
from adapters.engines.tensor_split import split
from scheduler.domain.units import GIB
from tests.support.hf_folders import llama_config, llama_tensors, sized_folder, write_folder, write_index, write_safetensors

TABLE = json.loads((Path(__file__).parents[1] / "data" / "kv_bytes.json").read_text())
DENSE = dense_weights_bytes(llama_config())


def plain(path: Path, **how: Any) -> Path:
    return write_folder(path, llama_config(), llama_tensors(llama_config()), **how)


def refusal(path: Path) -> FolderError:
    with pytest.raises(FolderError) as caught:
        read_folder(path)
    assert caught.value.fix
    return caught.value


# --- sizes ------------------------------------------------------------------------------------------------------------

#: Sizes from the public configurations of the models in the table: (type, layers, heads, KV heads, width, vocabulary, forward, others).
PUBLIC: dict[str, tuple[str, int, int, int, int, int, int, dict[str, int]]] = {
    "Llama-3.1-8B": ("llama", 32, 32, 8, 4096, 128256, 14336, {}),
    "Llama-3-70B": ("llama", 80, 64, 8, 8192, 128256, 28672, {}),
    "Mistral-7B-v0.1": ("mistral", 32, 32, 8, 4096, 32000, 14336, {}),
    "Qwen2.5-7B": ("qwen2", 28, 28, 4, 3584, 152064, 18944, {}),
    "Qwen3-32B": ("qwen3", 64, 64, 8, 5120, 151936, 25600, {"head_dim": 128}),
    "Qwen3-30B-A3B": ("qwen3_moe", 48, 32, 4, 2048, 151936, 6144, {"head_dim": 128, "num_experts": 128, "moe_intermediate_size": 768}),
    # not in the table, but published
    "Mixtral-8x7B": ("mixtral", 32, 32, 8, 4096, 32000, 14336, {"num_local_experts": 8}),
    "Gemma-2-9B": ("gemma2", 42, 16, 8, 3584, 256000, 14336, {"head_dim": 256}),
    "Phi-3-mini": ("phi3", 32, 32, 32, 3072, 32064, 8192, {}),
    "Qwen3-0.6B": ("qwen3", 28, 16, 8, 1024, 151936, 3072, {"head_dim": 128, "tie_word_embeddings": True}),
}
WEIGHTS = {row["model"]: row["weight_bytes"] for row in TABLE["weights_bf16_total_size"]}
WEIGHTS |= {"Mixtral-8x7B": 93405585408, "Gemma-2-9B": 18483411968, "Phi-3-mini": 7642159104, "Qwen3-0.6B": 1192099840}


def public_config(name: str) -> dict[str, Any]:
    kind, layers, heads, kv_heads, width, vocabulary, forward, others = PUBLIC[name]
    config = {"model_type": kind, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return {**config, "hidden_size": width, "vocab_size": vocabulary, "intermediate_size": forward, "torch_dtype": "bfloat16", **others}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_by_the_configuration_alone(name: str, tmp_path: Path) -> None:
    assert dense_weights_bytes(public_config(name)) == WEIGHTS[name]
    found = read_folder(write_folder(tmp_path, public_config(name)))
    assert (found.weights_bytes, found.evidence, found.formats) == (WEIGHTS[name], Evidence.FORMULA, frozenset())


@pytest.mark.parametrize(
    ("changes", "layers_with_experts"),
    [({}, 4), ({"first_k_dense_replace": 1}, 3), ({"decoder_sparse_step": 3}, 1), ({"mlp_only_layers": [0, 3]}, 2)],
)
def test_which_layers_have_experts(changes: dict[str, Any], layers_with_experts: int) -> None:
    config = llama_config(num_experts=4, moe_intermediate_size=32, n_shared_experts=1, **changes)
    experts, plain = (4 + 1) * 3 * 64 * 32 + 64 * 4, 3 * 64 * 128
    assert dense_weights_bytes(config) - DENSE == layers_with_experts * (experts - plain) * 2


def test_latent_attention_by_the_configuration() -> None:
    ranks = {"kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
    common = 64 * (16 + 4) + 16 + 16 * 4 * (8 + 8) + 4 * 8 * 64
    mine = 2 * 64 * 4 * 16 + 2 * 64 * 2 * 16
    direct, compressed = 64 * 4 * 12, 64 * 24 + 24 * 4 * 12 + 24
    assert dense_weights_bytes(llama_config(**ranks)) - DENSE == 4 * 2 * (common + direct - mine)
    assert dense_weights_bytes(llama_config(**ranks, q_lora_rank=24)) - DENSE == 4 * 2 * (common + compressed - mine)


def test_headers_and_formula_agree(tmp_path: Path) -> None:
    found = read_folder(plain(tmp_path))
    assert (found.weights_bytes, found.evidence) == (DENSE, Evidence.HEADERS)
    assert (found.dtype, found.quantization, found.vocabulary, found.layers, found.kv_heads) == ("bfloat16", "", 256, 4, 2)
    assert (found.max_length, found.architectures, found.model_type) == (2048, ("LlamaForCausalLM",), "llama")
    assert (found.pooling, found.encoder_only, found.problems) == (False, False, ())
    assert found.disk_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_a_model_of_16_gib_costs_no_disk(tmp_path: Path) -> None:
    sized_folder(tmp_path, 16 * GIB)
    assert read_folder(tmp_path).weights_bytes == 16 * GIB
    assert sum(file.stat().st_blocks for file in tmp_path.iterdir()) * 512 < 1 << 20


def test_shards_are_added_up(tmp_path: Path) -> None:
    found = read_folder(plain(tmp_path, shards=3))
    assert (found.weights_bytes, found.problems) == (DENSE, ())


def test_links_as_in_a_hub_cache(tmp_path: Path) -> None:
    plain(tmp_path / "blobs", shards=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in (tmp_path / "blobs").iterdir():
        (snapshot / file.name).symlink_to(file)
    assert read_folder(snapshot).weights_bytes == DENSE
    (snapshot / "dangling.txt").symlink_to(tmp_path / "nowhere")
    assert read_folder(snapshot).weights_bytes == DENSE


def test_copies_in_other_formats_do_not_count(tmp_path: Path) -> None:
    plain(tmp_path, shards=2)
    tensors = {"x": ("BF16", [1 << 20])}
    for name in ("consolidated.safetensors", "consolidated-00001-of-00001.safetensors", "adapter_model.safetensors"):
        write_safetensors(tmp_path / name, tensors)
    for folder in ("original", "metal"):
        (tmp_path / folder).mkdir()
        write_safetensors(tmp_path / folder / "model.safetensors", tensors)
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1 << 20))
    assert read_folder(tmp_path).weights_bytes == DENSE


def test_without_an_index_copies_are_told_by_their_names(tmp_path: Path) -> None:
    plain(tmp_path)
    write_safetensors(tmp_path / "consolidated.safetensors", {"x": ("BF16", [1 << 20])})
    assert read_folder(tmp_path).weights_bytes == DENSE


def test_tied_embeddings_count_once(tmp_path: Path) -> None:
    """Some checkpoints store the output matrix too; the engine keeps one of the two."""
    head = 256 * 64 * 2
    tied = llama_config(tie_word_embeddings=True)
    assert read_folder(write_folder(tmp_path / "a", tied, llama_tensors(llama_config()))).weights_bytes == DENSE - head
    assert read_folder(write_folder(tmp_path / "b", tied, llama_tensors(tied))).weights_bytes == DENSE - head
    nested = {"architectures": ["X"], "tie_word_embeddings": True, "text_config": llama_config(tie_word_embeddings=None)}
    assert read_folder(write_folder(tmp_path / "c", nested, llama_tensors(llama_config()))).weights_bytes == DENSE - head


def test_layers_for_further_tokens_count_apart(tmp_path: Path) -> None:
    config = llama_config(num_nextn_predict_layers=1)
    further = llama_tensors(llama_config(num_hidden_layers=5))
    found = read_folder(write_folder(tmp_path, config, further))
    assert found.weights_bytes == DENSE
    assert found.split.next_tokens.total == dense_weights_bytes(llama_config(num_hidden_layers=5)) - DENSE


def test_more_layers_than_the_configuration_says_count_all_the_same(tmp_path: Path) -> None:
    """An encoder beside the decoder, for one; only models with layers for further tokens leave some out."""
    further = llama_tensors(llama_config(num_hidden_layers=5))
    assert read_folder(write_folder(tmp_path, llama_config(), further)).split.next_tokens.total == 0


def test_quantised_weights_count_as_they_are_on_disk(tmp_path: Path) -> None:
    config = llama_config(quantization_config={"quant_method": "awq", "bits": 4})
    tensors = {"model.embed_tokens.weight": ("F16", [256, 64]), "model.layers.0.mlp.down_proj.qweight": ("I32", [128, 8])}
    tensors["model.layers.0.mlp.down_proj.blocks"] = ("F4", [33, 1])
    found = read_folder(write_folder(tmp_path, config, tensors))
    assert (found.weights_bytes, found.quantization, found.dtype) == (256 * 64 * 2 + 128 * 8 * 4 + 17, "awq", "float16")


@pytest.mark.parametrize(("name", "method"), [("hf_quant_config.json", "modelopt"), ("quantize_config.json", "gptq")])
def test_a_method_in_a_file_of_its_own(tmp_path: Path, name: str, method: str) -> None:
    plain(tmp_path)
    (tmp_path / name).write_text("{}")
    assert read_folder(tmp_path).quantization == method


def test_pickles_count_by_their_index_or_by_their_size(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_config())
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(10_000))
    (tmp_path / "training_args.bin").write_bytes(bytes(1000))
    found = read_folder(tmp_path)
    assert (found.weights_bytes, found.evidence, found.formats) == (10_000, Evidence.FILES, frozenset({".bin"}))
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 9_950}, "weight_map": {"x": "pytorch_model.bin"}}))
    assert (read_folder(tmp_path).weights_bytes, read_folder(tmp_path).evidence) == (9_950, Evidence.INDEX)
    index.write_text(json.dumps({"metadata": {"total_size": 9_000}, "weight_map": {"x": "pytorch_model.bin"}}))
    found = read_folder(tmp_path)
    assert (found.weights_bytes, found.evidence) == (10_000, Evidence.FILES)
    assert found.problems == ("the index says 9000 bytes of weights, the files have 10000",)


def test_an_index_that_is_wrong_is_a_problem_but_no_obstacle(tmp_path: Path) -> None:
    plain(tmp_path, shards=2)
    names = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    write_index(tmp_path, names, DENSE * 2)
    found = read_folder(tmp_path)
    assert found.weights_bytes == DENSE
    assert f"the index says {DENSE * 2} bytes" in found.problems[0]
    (tmp_path / "model.safetensors.index.json").write_text("{")
    found = read_folder(tmp_path)
    assert found.weights_bytes == DENSE
    assert "model.safetensors.index.json is not JSON" in found.problems[0]


def test_a_folder_is_read_again_when_a_file_changed(tmp_path: Path) -> None:
    plain(tmp_path)
    assert read_folder(tmp_path) is read_folder(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", {"x": ("BF16", [10])})
    assert read_folder(tmp_path).weights_bytes == 20


def test_mistrals_own_format(tmp_path: Path) -> None:
    params = {"dim": 64, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 128, "vocab_size": 256}
    (tmp_path / "params.json").write_text(json.dumps({**params, "sliding_window": 32}))
    write_safetensors(tmp_path / "consolidated.safetensors", llama_tensors(llama_config()))
    found = read_folder(tmp_path)
    assert (found.weights_bytes, found.layers, found.kv_heads, found.config["sliding_window"]) == (DENSE, 4, 2, 32)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").missing
    assert str(refusal(tmp_path / "none")) == f"there is no folder {tmp_path / 'none'}"
    (tmp_path / "file").write_bytes(b"")
    assert str(refusal(tmp_path / "file")) == f"{tmp_path / 'file'} is a file, not a model folder"
    assert "is no path" in str(refusal(Path("a\0b")))
    assert "File name too long" in str(refusal(tmp_path / ("x" * 300)))


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / str(number)).touch()
    assert f"more than {MAX_FILES} files" in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"3", "is not a JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_a_configuration_that_is_none(tmp_path: Path, content: bytes, cause: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert cause in str(refusal(tmp_path))
    assert str(tmp_path / "config.json") in str(refusal(tmp_path))


def test_a_configuration_that_is_huge(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    assert f"has {MAX_CONFIG_BYTES + 1} bytes" in str(refusal(tmp_path))


def test_a_configuration_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "is not a regular file" in str(refusal(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_configuration_that_may_not_be_read(tmp_path: Path) -> None:
    plain(tmp_path)
    (tmp_path / "config.json").chmod(0)
    assert "Permission denied" in str(refusal(tmp_path))


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    assert "has no config.json" in str(refusal(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    found = refusal(tmp_path)
    assert "only GGUF files" in str(found)
    assert "engine llamacpp" in found.fix
    assert "m.gguf" in found.fix


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base", "r": 8}))
    write_safetensors(tmp_path / "adapter_model.safetensors", {"x": ("F32", [4])})
    found = refusal(tmp_path)
    assert "is an adapter (LoRA), not a model" in str(found)
    assert "set `model` to org/base" in found.fix


def test_a_download_that_was_cut(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_config())
    write_safetensors(tmp_path / "model.safetensors", llama_tensors(llama_config()), cut_bytes=1)
    size = (tmp_path / "model.safetensors").stat().st_size
    message = f"{tmp_path / 'model.safetensors'}: it is cut: it has {size} bytes, its tensors need {size + 1}"
    assert str(refusal(tmp_path)) == message


def test_files_that_are_missing(tmp_path: Path) -> None:
    plain(tmp_path / "listed", shards=3)
    (tmp_path / "listed" / "model-00002-of-00003.safetensors").unlink()
    message = str(refusal(tmp_path / "listed"))
    assert message == f"{tmp_path / 'listed' / 'model-00002-of-00003.safetensors'} is missing, one of 3 weight files"
    plain(tmp_path / "named", shards=3)
    for name in ("model.safetensors.index.json", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"):
        (tmp_path / "named" / name).unlink()
    assert "model-00002-of-00003.safetensors (and 1 more) is missing" in str(refusal(tmp_path / "named"))


def test_a_pointer_says_how_to_fetch_the_file(tmp_path: Path) -> None:
    plain(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert refusal(tmp_path).fix == "run git lfs pull in that folder"


@pytest.mark.parametrize("name", ["x\ny", "\ud800", "z" * 300])
def test_names_that_cannot_be_printed(tmp_path: Path, name: str) -> None:
    """What a file says ends up in logs and answers."""
    write_folder(tmp_path / "a", llama_config())
    write_index(tmp_path / "a", {"w": f"{name}.safetensors"}, 1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name}))
    for error in (refusal(tmp_path / "a"), refusal(tmp_path / "b")):
        text = str(error) + error.fix
        assert text.isprintable()
        assert len(text) < 1000


HEADERS: list[tuple[bytes, str]] = [
    (b"", "not even the length of its header"),
    (b"\x01\x02", "not even the length of its header"),
    (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of git-lfs"),
    (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", "no length of a header"),
    (struct.pack("<Q", 0), "no length of a header"),
    (struct.pack("<Q", 100) + b"{}", "its header alone needs 108"),
    (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
    (struct.pack("<Q", 2) + b"{x", "is not JSON"),
    (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "is not JSON"),
]


@pytest.mark.parametrize(("content", "cause"), HEADERS)
def test_files_that_are_no_safetensors(tmp_path: Path, content: bytes, cause: str) -> None:
    plain(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert cause in str(refusal(tmp_path))


@pytest.mark.parametrize(
    "entry",
    [
        3,
        {},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "NEW", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0.0, 4.0]},
    ],
)
def test_tensors_that_are_none(entry: object) -> None:
    with pytest.raises(SafetensorsError, match="its header"):
        parse(json.dumps({"x": entry}).encode(), 1000)


def test_a_type_that_is_not_known_counts_by_its_bytes() -> None:
    (found,) = parse(json.dumps({"x": {"dtype": "NEW", "shape": [3], "data_offsets": [0, 7]}}).encode(), 1000)
    assert found.size_bytes == 7


def test_a_file_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(SafetensorsError, match="not a regular file"):
        read_tensors(tmp_path / "x")


# --- over the devices of a gang ---------------------------------------------------------------------------------------


def sorted_tensors(names: dict[str, int], **how: Any) -> Any:
    tensors = parse(json.dumps({n: {"dtype": "U8", "shape": [s], "data_offsets": [0, s]} for n, s in names.items()}).encode(), 1 << 40)
    return split(tensors, **{"kv_heads": 2, "query_heads": 4, "tied": False, **how})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.input_layernorm.weight", "replicated"),
        ("model.layers.0.self_attn.q_norm.weight", "replicated"),
        ("model.layers.0.mlp.gate.weight", "replicated"),
        ("model.layers.0.block_sparse_moe.gate.weight", "replicated"),
        ("model.layers.0.mlp.router.weight", "replicated"),
        ("model.layers.0.mlp.gate.e_score_correction_bias", "replicated"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "replicated"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "replicated"),
        ("model.layers.0.self_attn.q_a_proj.weight_scale_inv", "replicated"),
        ("transformer.h.0.ln_1.weight", "replicated"),
        ("model.layers.0.self_attn.k_proj.weight", "heads"),
        ("model.layers.0.self_attn.v_proj.bias", "heads"),
        ("model.layers.0.self_attn.q_proj.weight", "sharded"),
        ("model.layers.0.self_attn.kv_b_proj.weight", "sharded"),
        ("model.layers.0.mlp.gate_proj.weight", "sharded"),
        ("model.layers.0.mlp.experts.3.down_proj.weight", "sharded"),
        ("model.layers.0.mlp.gate_up_proj.weight", "sharded"),
    ],
)
def test_what_is_cut_and_what_is_copied(name: str, kind: str) -> None:
    found = sorted_tensors({name: 800})
    assert getattr(found.layers, kind) == 800
    assert found.total == 800


def test_bytes_on_each_device() -> None:
    names = {"model.layers.0.mlp.up_proj.weight": 8000, "model.layers.0.input_layernorm.weight": 10, "model.norm.weight": 10}
    names |= {"model.layers.0.self_attn.k_proj.weight": 400, "model.embed_tokens.weight": 1600}
    found = sorted_tensors(names)
    assert found.on_device() == found.total == 10020
    assert found.on_device(tensor_parallel=2, kv_heads=2) == 4000 + 10 + 10 + 200 + 800
    assert found.on_device(tensor_parallel=8, kv_heads=2) == 1000 + 10 + 10 + 200 + 200  # a whole head on each


def test_an_output_matrix_alone_is_kept() -> None:
    assert sorted_tensors({"lm_head.weight": 100}, tied=True).total == 100
    assert sorted_tensors({"lm_head.weight": 100, "model.embed_tokens.weight": 100}, tied=True).total == 100


def test_a_fused_matrix_is_cut_by_its_parts() -> None:
    found = sorted_tensors({"model.layers.0.self_attn.qkv_proj.weight": 800})  # 4 heads of queries, 2 of keys, 2 of values
    assert (found.layers.heads, found.layers.sharded) == (400, 400)


def test_a_pipeline_cuts_the_layers() -> None:
    names = {f"model.layers.{index}.mlp.up_proj.weight": 100 for index in range(5)} | {"model.embed_tokens.weight": 50}
    assert sorted_tensors(names).on_device(pipeline_parallel=2, layers=5) == 300 + 50


def test_a_vision_part_is_cut_or_copied() -> None:
    found = sorted_tensors({"visual.blocks.0.mlp.weight": 800, "model.layers.0.mlp.up_proj.weight": 100})
    assert found.on_device(tensor_parallel=2) == 450
    assert found.on_device(tensor_parallel=2, spread_vision=False) == 850


# --- what the configuration says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, 2048),
        ({"max_position_embeddings": 32768}, 32768),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 32768, "seq_length": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"text_config": {"max_position_embeddings": 4096}, "max_position_embeddings": 7}, 4096),
        (
            {"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            131072,
        ),
        (
            {"max_position_embeddings": 131072, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}},
            131072,
        ),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": "2"}}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 1e300}}, 4096),
        ({"max_position_embeddings": "x"}, 2048),
    ],
)
def test_the_longest_request(config: dict[str, Any], wanted: int) -> None:
    assert max_length(config) == wanted


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], False),
        (["LlamaForCausalLM"], False),
        (["Qwen2VLForConditionalGeneration"], False),
        (["ChatGLMModel"], False),
        (["InternVLChatModel"], False),
        (["BertModel"], True),
        (["XLMRobertaForSequenceClassification"], True),
        (["Qwen2ForRewardModel"], True),
        (["JinaEmbeddingModel"], True),
        (["SomethingElse"], False),
    ],
)
def test_whether_it_answers_with_vectors(names: list[str], wanted: bool) -> None:
    assert is_pooling({"architectures": names}) is wanted


@pytest.mark.parametrize("name", ["modules.json", "1_Pooling", "config_sentence_transformers.json"])
def test_files_of_sentence_transformers_make_it_an_embedding_model(tmp_path: Path, name: str) -> None:
    plain(tmp_path)
    (tmp_path / name).mkdir() if name == "1_Pooling" else (tmp_path / name).write_text("[]")
    assert read_folder(tmp_path).pooling


def test_smaller_questions() -> None:
    assert is_encoder_only({"model_type": "xlm-roberta"})
    assert not is_encoder_only({"model_type": "bert", "is_decoder": True})
    assert not is_encoder_only({"model_type": "t5", "is_encoder_decoder": True})
    assert is_tied({"model_type": "gemma2"})
    assert not is_tied({"model_type": "llama"})
    assert quantization({"quantization_config": {"quant_method": "compressed_tensors"}}) == "compressed-tensors"
    assert quantization({"text_config": {"compression_config": {"x": 1}}}) == "unknown"
    assert quantization({"quantization_config": None}) == ""
