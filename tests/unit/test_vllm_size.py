"""What a vLLM server will take, from its model's folder and its flags; and what is said before a launch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.declared import with_declared
from adapters.engines.dense_weights import dense_weights_bytes
from adapters.engines.hf_folder import read_folder
from adapters.engines.hf_hub import find_folder, find_snapshot, hub_cache
from adapters.engines.vllm_size import (
    COMMUNICATION_BYTES,
    CONTEXT_BYTES,
    CPU_PROCESS_BYTES,
    GANG_RESIDUE_BYTES,
    GRAPHS_BYTES,
    GRAPHS_PER_LAYER_BYTES,
    GUESS_BYTES,
    HOST_BUFFERS_BYTES,
    KV_REQUESTS,
    MOST_BYTES,
    RESIDUE_BYTES,
    VISION_BYTES,
    Parts,
    check,
    estimate,
    measure,
    size_of_name,
)
from adapters.engines.vllm_sizing import Sizing, count_of, parallel, read_sizing
from scheduler.domain.claims import Footprint, Source
from scheduler.domain.errors import Permanent
from scheduler.domain.ids import ModelName
from scheduler.domain.model import DeclaredFootprint, DeviceWish, ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB, MIB
from tests.support.hf_folders import llama_config, llama_tensors, sized_folder, write_folder, write_safetensors

PER_TOKEN = 131072  # of Llama-3.1-8B, which sized_folder() imitates
LENGTH = 8192


def spec_of(model: Path | str, *args: str, count: int = 1, **changes: Any) -> ModelSpec:
    wish = DeviceWish(count=count, kind=changes.pop("kind", None))
    return ModelSpec(name=ModelName("m"), engine="vllm", model=str(model), args=args, devices=wish, **changes)


def parts_of(path: Path, *args: str, devices: int = 1, **how: Any) -> Parts:
    return measure(read_folder(path), read_sizing(args), devices, **how)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    return sized_folder(tmp_path / "big", 16 * GIB)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "small", llama_config(), llama_tensors(llama_config()))


# --- the sum ----------------------------------------------------------------------------------------------------------


def test_a_folder_needs_nothing_from_the_user(big: Path) -> None:
    found = estimate(spec_of(big))
    assert found.source is Source.ESTIMATED
    assert found.weights_bytes == int(16 * GIB * 1.02)
    assert found.kv_min_bytes == LENGTH * PER_TOKEN == GIB
    assert found.kv_bytes == KV_REQUESTS * GIB
    overhead = found.awake_bytes - found.weights_bytes - found.kv_bytes
    assert GIB < overhead < 5 * GIB
    assert found.start_peak_bytes == found.awake_bytes
    assert found.residue_bytes == {1: RESIDUE_BYTES, 2: RESIDUE_BYTES}
    assert found.host_bytes == {1: int(16 * GIB * 1.35) + 2 * GIB, 2: HOST_BUFFERS_BYTES}
    assert found.wake_s[1] == pytest.approx(16 * GIB * 1.02 / 20e9 + 0.3)
    assert found.wake_s[2] == pytest.approx(16 * GIB / 1e9 + 1.0, rel=1e-4)
    assert found.start_s == pytest.approx(16 * GIB / 1e9 + 30.0, rel=1e-4)
    assert found.sleep_s[2] < found.sleep_s[1]


def test_a_sleeper_keeps_no_more_than_half(small: Path) -> None:
    found = estimate(spec_of(small))
    assert found.awake_bytes < 2 * RESIDUE_BYTES
    assert found.residue_bytes == {1: found.awake_bytes // 2, 2: found.awake_bytes // 2}


def test_the_overhead_by_its_parts(big: Path) -> None:
    plain, eager, gang = parts_of(big), parts_of(big, "--enforce-eager"), parts_of(big, devices=2)
    assert plain.context == CONTEXT_BYTES
    assert (plain.graphs, eager.graphs) == (GRAPHS_BYTES + 33 * GRAPHS_PER_LAYER_BYTES, 0)
    assert (plain.communication, gang.communication) == (0, COMMUNICATION_BYTES)
    step, sampler = 8192 * 2 * (4 * 4096 + 3 * 14336), 256 * 128256 * 16
    assert plain.activations == step + sampler
    assert parts_of(big, "--max-num-batched-tokens", "2048", "--max-num-seqs=16").activations == (step // 4) + (sampler // 16)
    assert gang.activations == 8192 * 2 * (4 * 4096 + 3 * 14336 // 2) + sampler
    assert plain.awake == plain.weights + plain.overhead + plain.kv_max


def test_experts_take_as_many_activations_as_are_chosen(tmp_path: Path) -> None:
    config = llama_config(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    path = write_folder(tmp_path, config, llama_tensors(config))
    assert parts_of(path).activations == 8192 * 2 * (4 * 64 + 2 * (3 * 32 + 64)) + 256 * 256 * 16


def test_images_take_room_while_profiling(small: Path) -> None:
    before = parts_of(small).activations
    write_safetensors(small / "model-vision.safetensors", {"visual.blocks.0.mlp.weight": ("BF16", [64])})
    assert parts_of(small).activations == before + VISION_BYTES


def test_on_the_cpu(small: Path) -> None:
    found = parts_of(small, on_cpu=True, devices=2)
    assert (found.context, found.graphs, found.communication) == (CPU_PROCESS_BYTES, 0, 0)
    gpu, cpu = estimate(spec_of(small)), estimate(spec_of(small, kind="cpu"))
    assert gpu.awake_bytes - cpu.awake_bytes == CONTEXT_BYTES + GRAPHS_BYTES + 5 * GRAPHS_PER_LAYER_BYTES - CPU_PROCESS_BYTES


@pytest.mark.parametrize(
    ("args", "minimum"),
    [
        ((), GIB),
        (("--max-model-len", "4096"), GIB // 2),
        (("--max-model-len=4096",), GIB // 2),
        (("--max_model_len", "4k"), 4000 * PER_TOKEN),
        (("--max-model-len", "4K"), GIB // 2),
        (("--max-model-len", "auto"), GIB),
        (("--max-model-len", "-1"), GIB),
        (("--max-model-len", "10"), 16 * PER_TOKEN),
        (("--max-model-len", "10", "--block-size", "64"), 64 * PER_TOKEN),
        (("--kv-cache-dtype", "fp8"), GIB // 2),
        (("--dtype", "float32"), 2 * GIB),
        (("--max-model-len", "1", "--max-model-len", "4096"), GIB // 2),
        (("--pipeline-parallel-size", "2"), GIB),  # of one device
    ],
)
def test_kv_for_one_request(big: Path, args: tuple[str, ...], minimum: int) -> None:
    found = estimate(spec_of(big, *args))
    assert (found.kv_min_bytes, found.kv_bytes) == (minimum, KV_REQUESTS * minimum)


def test_flags_of_the_engine_count_and_those_of_the_model_win(big: Path) -> None:
    spec = spec_of(big, engine_args=("--max-model-len", "4096", "--kv-cache-dtype", "fp8"))
    assert estimate(spec).kv_min_bytes == GIB // 4
    assert estimate(replace(spec, args=("--max-model-len", "8192"))).kv_min_bytes == GIB // 2


def test_over_several_devices(big: Path) -> None:
    found = estimate(spec_of(big, count=4))
    assert found.weights_bytes == int(4 * GIB * 1.02)
    assert found.kv_min_bytes == GIB // 4
    assert found.residue_bytes[1] == GANG_RESIDUE_BYTES
    assert found.host_bytes[1] == int(16 * GIB * 1.35) + 2 * GIB  # of all of them
    assert found.wake_s[1] == pytest.approx(4 * GIB * 1.02 / 20e9 + 0.3)
    piped = estimate(spec_of(big, "-pp", "2", count=4))
    assert piped.kv_min_bytes == GIB // 4  # half of the layers, half of the heads
    copies = estimate(spec_of(big, "--data-parallel-size", "4", count=4))
    assert (copies.weights_bytes, copies.kv_min_bytes) == (int(16 * GIB * 1.02), GIB)


def test_more_devices_than_heads(tmp_path: Path) -> None:
    path = sized_folder(tmp_path, 8 * GIB, num_key_value_heads=2)
    assert estimate(spec_of(path, count=4)).kv_min_bytes == estimate(spec_of(path, count=2)).kv_min_bytes == GIB // 8


def test_windows_and_states_bound_a_request(tmp_path: Path) -> None:
    window = sized_folder(tmp_path / "a", GIB, sliding_window=1024, max_position_embeddings=131072)
    tokens = 1023 + 8192
    assert parts_of(window).kv_min == (-(-tokens // 16) + 1) * 16 * PER_TOKEN
    assert parts_of(window, "--disable-hybrid-kv-cache-manager").kv_min == 131072 * PER_TOKEN
    linear = sized_folder(tmp_path / "b", GIB, full_attention_interval=4, linear_num_value_heads=32)
    assert parts_of(linear).kv_min < GIB // 2
    assert parts_of(linear, "--no-enable-prefix-caching").kv_min < parts_of(linear).kv_min
    assert parts_of(linear, "--mamba-ssm-cache-dtype", "float32").kv_min > parts_of(linear).kv_min


def test_an_encoder_has_no_cache(tmp_path: Path) -> None:
    config = llama_config(model_type="bert", architectures=["BertModel"])
    found = estimate(spec_of(write_folder(tmp_path, config, llama_tensors(config))))
    assert (found.kv_bytes, found.kv_min_bytes) == (0, 0)


def test_a_decoder_that_embeds_needs_one_request_and_no_sampler(big: Path) -> None:
    generates, pools = parts_of(big), parts_of(big, "--runner", "pooling")
    assert (pools.kv_min, pools.kv_max) == (generates.kv_min, generates.kv_min)
    assert generates.activations - pools.activations == 256 * 128256 * 16
    (big / "modules.json").write_text("[]")
    assert parts_of(big) == pools
    assert parts_of(big, "--runner", "generate") == generates
    assert parts_of(big, "--task", "embed") == pools


def test_weights_in_32_bits_are_loaded_in_16(tmp_path: Path) -> None:
    config = llama_config(torch_dtype="float32")
    path = write_folder(tmp_path, config, llama_tensors(config, "F32"))
    size = dense_weights_bytes(llama_config())
    assert parts_of(path).weights == int(size * 1.02)
    assert parts_of(path, "--dtype", "float32").weights == int(2 * size * 1.02)
    assert parts_of(path).disk > 2 * size


def test_quantising_while_loading_needs_the_whole_first(big: Path) -> None:
    plain, small = parts_of(big), parts_of(big, "--quantization", "fp8")
    assert small.weights < 0.55 * plain.weights
    assert small.weights + small.loading >= 16 * GIB
    found = estimate(spec_of(big, "-q", "fp8", "--max-model-len", "16"))
    assert found.start_peak_bytes > found.awake_bytes
    norms = {"model.layers.0.input_layernorm.weight": ("BF16", [1000]), "model.layers.0.mlp.up_proj.weight": ("BF16", [1000])}
    mixed = write_folder(big.parent / "mixed", llama_config(), {**norms, "model.embed_tokens.weight": ("BF16", [1000])})
    assert parts_of(mixed, "--quantization", "fp8").weights == int((2000 + 1000 + 2000) * 1.02)
    assert parts_of(big, "--quantization", "awq").weights == plain.weights  # a name for what is on disk


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    path = sized_folder(tmp_path, GIB, quantization_config={"quant_method": "fp8"})
    assert parts_of(path, "--quantization", "fp8") == parts_of(path)


def test_eight_bits_without_a_word_of_quantisation_stay_eight_bits(tmp_path: Path) -> None:
    path = write_folder(tmp_path, llama_config(), {"model.layers.0.mlp.up_proj.weight": ("F8_E4M3", [1 << 20])})
    assert parts_of(path).weights == int(MIB * 1.02)


def test_weights_on_the_host(big: Path) -> None:
    assert parts_of(big, "--cpu-offload-gb", "4").weights == parts_of(big).weights - 4 * GIB
    assert parts_of(big, "--cpu-offload-gb", "99").weights == 0
    assert parts_of(big, "--cpu-offload-gb", "x").weights == parts_of(big).weights


def test_a_draft_model_counts_too(big: Path, small: Path) -> None:
    given = ("--speculative-config", json.dumps({"model": str(small), "num_speculative_tokens": 3}))
    alone, both = estimate(spec_of(big)), estimate(spec_of(big, *given))
    assert both.weights_bytes == int((16 * GIB + dense_weights_bytes(llama_config())) * 1.02)
    assert both.kv_min_bytes == alone.kv_min_bytes + LENGTH * 4 * 2 * 16 * 2 * 2
    assert estimate(spec_of(big, "--speculative-config", '{"model": "/nowhere"}')) == alone


def test_layers_for_further_tokens_count_when_they_are_used(tmp_path: Path) -> None:
    tensors = llama_tensors(llama_config(num_hidden_layers=5))
    path = write_folder(tmp_path, llama_config(num_nextn_predict_layers=1), tensors)
    more = dense_weights_bytes(llama_config(num_hidden_layers=5))
    assert parts_of(path).weights == int(dense_weights_bytes(llama_config()) * 1.02)
    assert parts_of(path, "--speculative-config", '{"method": "deepseek_mtp"}').weights == int(more * 1.02)


# --- declared sizes ---------------------------------------------------------------------------------------------------


def declared(model: Path, *args: str, count: int = 1, **sizes: int) -> Any:
    return estimate(spec_of(model, *args, count=count, footprint=DeclaredFootprint(**sizes)))


def test_declared_sizes_win(big: Path) -> None:
    found = declared(big, weights_bytes=4 * GIB, overhead_bytes=GIB, kv_min_bytes=2 * GIB, kv_max_bytes=9 * GIB, residue_bytes=MIB)
    assert (found.weights_bytes, found.kv_min_bytes, found.kv_bytes) == (4 * GIB, 2 * GIB, 9 * GIB)
    assert (found.awake_bytes, found.start_peak_bytes, found.source) == (14 * GIB, 14 * GIB, Source.DECLARED)
    assert found.residue_bytes == {1: MIB, 2: MIB}


def test_one_declared_size_replaces_one(big: Path) -> None:
    plain = estimate(spec_of(big))
    overhead = plain.awake_bytes - plain.weights_bytes - plain.kv_bytes
    weights = declared(big, weights_bytes=GIB)
    assert weights.awake_bytes == GIB + overhead + plain.kv_bytes
    assert (weights.host_bytes[1], weights.wake_s[1]) == (int(GIB * 1.35) + 2 * GIB, pytest.approx(GIB / 20e9 + 0.3))
    assert declared(big, overhead_bytes=GIB).awake_bytes == plain.awake_bytes - overhead + GIB
    most = declared(big, kv_max_bytes=GIB // 2)
    assert (most.kv_min_bytes, most.kv_bytes, most.awake_bytes) == (GIB // 2, GIB // 2, plain.awake_bytes - plain.kv_bytes + GIB // 2)
    least = declared(big, kv_min_bytes=8 * GIB)
    assert (least.kv_min_bytes, least.kv_bytes) == (8 * GIB, 8 * GIB)
    lower = declared(big, kv_min_bytes=MIB)
    assert (lower.kv_min_bytes, lower.kv_bytes, lower.awake_bytes) == (MIB, plain.kv_bytes, plain.awake_bytes)


def test_what_loading_takes_stays_unless_the_weights_are_declared() -> None:
    plain = Footprint(awake_bytes=10, start_peak_bytes=13, weights_bytes=6, kv_bytes=2, kv_min_bytes=1)
    spec = spec_of("m", footprint=DeclaredFootprint(kv_max_bytes=3))
    found = with_declared(plain, spec)
    assert (found.awake_bytes, found.start_peak_bytes) == (11, 14)
    found = with_declared(plain, replace(spec, footprint=DeclaredFootprint(weights_bytes=8)))
    assert (found.awake_bytes, found.start_peak_bytes) == (12, 12)


def test_declared_weights_are_those_of_one_device(big: Path) -> None:
    assert declared(big, count=2, weights_bytes=GIB).host_bytes[1] == int(2 * GIB * 1.35) + 2 * GIB


def test_declared_sizes_of_what_cannot_be_read(tmp_path: Path) -> None:
    found = declared(tmp_path / "none", weights_bytes=4 * GIB, overhead_bytes=GIB, kv_max_bytes=2 * GIB)
    assert (found.awake_bytes, found.kv_bytes, found.source) == (7 * GIB, 2 * GIB, Source.DECLARED)


# --- guesses ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_guessed_small(tmp_path: Path) -> None:
    """It would be refused, and whoever asks for it shall hear why, not that it does not fit."""
    write_folder(tmp_path / "cut", llama_config())
    write_safetensors(tmp_path / "cut" / "model.safetensors", llama_tensors(llama_config()), cut_bytes=9)
    write_folder(tmp_path / "sizeless", {"model_type": "x"})
    for path in (tmp_path / "none", tmp_path / "cut", tmp_path / "sizeless", "a\0b", ""):
        found = estimate(spec_of(path))
        assert (found.awake_bytes, found.source) == (GUESS_BYTES, Source.ESTIMATED)
        assert 0 < found.kv_min_bytes <= found.kv_bytes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 14.0),
        ("Qwen/Qwen3-0.6B", 1.2),
        ("meta-llama/Llama-3.1-70B-Instruct-FP8", 70.0),
        ("org/Mixtral-8x7B-v0.1", 112.0),
        ("Qwen/Qwen3-30B-A3B", 60.0),
        ("org/Model-32B-AWQ", 19.2),
        ("HuggingFaceTB/SmolLM2-135M", 0.27),
        ("microsoft/phi-2", 0.0),
        ("BAAI/bge-m3", 0.0),
        ("7b-club/nothing", 0.0),
    ],
)
def test_names_that_tell_their_size(name: str, billions: float) -> None:
    assert size_of_name(name) == pytest.approx(billions * 1e9)


def test_an_id_is_guessed_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    one, two = estimate(spec_of("org/Some-8B")), estimate(spec_of("org/Some-8B", count=2))
    assert (one.weights_bytes, two.weights_bytes) == (16_000_000_000, 8_000_000_000)
    assert estimate(spec_of("org/nameless")).awake_bytes == GUESS_BYTES


def test_absurd_numbers_stay_numbers(tmp_path: Path) -> None:
    mad = llama_config(**{key: 1 << 40 for key in ("hidden_size", "intermediate_size", "head_dim", "num_key_value_heads", "vocab_size")})
    found = estimate(spec_of(write_folder(tmp_path, mad), "--max-model-len", "900G"))
    assert found.awake_bytes == found.kv_bytes == found.host_bytes[1] == MOST_BYTES
    assert found.start_s < 1e7


# --- where it is ------------------------------------------------------------------------------------------------------


def hub(cache: Path, commit: str = "abc123", model_id: str = "org/name") -> Path:
    folder = cache / f"models--{model_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return write_folder(folder / "snapshots" / commit, llama_config(), llama_tensors(llama_config()))


def test_a_snapshot_in_the_engines_cache_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "daemon"))
    hub(tmp_path / "engine" / "hub")
    spec = spec_of("org/name", env=(("HF_HOME", str(tmp_path / "engine")),))
    assert estimate(spec).weights_bytes == int(dense_weights_bytes(llama_config()) * 1.02)
    assert estimate(spec_of("org/name")).awake_bytes == GUESS_BYTES
    hub(tmp_path / "daemon" / "hub")
    assert estimate(spec_of("org/name")) == estimate(spec)


def test_which_snapshot(tmp_path: Path) -> None:
    hub(tmp_path, "aaa111")
    folder = hub(tmp_path, "bbb222").parent
    assert find_snapshot(tmp_path, "org/name") == folder / "bbb222"
    assert find_snapshot(tmp_path, "org/name", "aaa111") == folder / "aaa111"
    (folder.parent / "refs" / "main").write_text("../../..")
    assert find_snapshot(tmp_path, "org/name") in (folder / "aaa111", folder / "bbb222")
    assert find_snapshot(tmp_path, "org/other") is None
    assert find_snapshot(tmp_path / "no\0path", "org/name", "v\0") is None
    assert find_snapshot(tmp_path, "org/name", "../..") in (folder / "aaa111", folder / "bbb222")


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, None),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "/f"}, "/f/hub"),
        ({"HF_HOME": "/f", "HF_HUB_CACHE": "/c"}, "/c"),
    ],
)
def test_where_the_cache_is(env: dict[str, str], wanted: str | None) -> None:
    assert hub_cache(env) == (None if wanted is None else Path(wanted))


def test_a_folder_wins_over_an_id(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "org" / "name", llama_config())
    assert find_folder(spec_of("org/name", cwd=str(tmp_path))) == folder


# --- before a launch --------------------------------------------------------------------------------------------------


def refused(spec: ModelSpec) -> Permanent:
    with pytest.raises(Permanent) as caught:
        check(spec)
    assert caught.value.fix
    return caught.value


def test_a_good_folder_and_an_id_pass(big: Path) -> None:
    check(spec_of(big))
    check(spec_of("org/name"))
    check(spec_of("gpt2"))


def test_no_model() -> None:
    assert refused(spec_of("")).code == Code.MODEL_MISSING


@pytest.mark.parametrize("name", ["{}/Qwen3-8b", "./Qwen3-8b", "../x/Qwen3-8b"])
def test_a_path_that_leads_nowhere(tmp_path: Path, name: str) -> None:
    for sibling in ("Qwen3-8B", "Other", "Another"):
        (tmp_path / "x" / sibling).mkdir(parents=True)
    error = refused(spec_of(name.format(tmp_path / "x"), cwd=str(tmp_path / "x")))
    assert (error.code, error.message) == (Code.MODEL_MISSING, f"there is no folder {tmp_path / 'x' / 'Qwen3-8b'}")
    assert error.fix == "correct `model`; that place has Qwen3-8B"
    assert "it names a model folder" in refused(spec_of(tmp_path / "y" / "z")).fix


def test_a_cut_file(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_config())
    write_safetensors(tmp_path / "model.safetensors", llama_tensors(llama_config()), cut_bytes=100)
    size = (tmp_path / "model.safetensors").stat().st_size
    error = refused(spec_of(tmp_path))
    assert error.code == Code.MODEL_UNREADABLE
    assert error.message == f"{tmp_path / 'model.safetensors'}: it is cut: it has {size} bytes, its tensors need {size + 100}"


def test_formats_that_vllm_should_not_load(tmp_path: Path) -> None:
    write_folder(tmp_path, llama_config())
    missing = refused(spec_of(tmp_path))
    assert (missing.code, "no weights" in missing.message) == (Code.MODEL_MISSING, True)
    check(spec_of(tmp_path, "--load-format", "dummy"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    gguf = refused(spec_of(tmp_path))
    assert (gguf.code, gguf.fix) == (Code.MODEL_UNREADABLE, f"use engine llamacpp with `model` set to {tmp_path / 'm.gguf'}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    pickles = refused(spec_of(tmp_path))
    assert (pickles.code, "--load-format, pt" in pickles.fix) == (Code.MODEL_UNREADABLE, True)
    check(spec_of(tmp_path, "--load-format=pt"))
    assert refused(spec_of(tmp_path / "m.gguf")).code == Code.MODEL_UNREADABLE
    check(spec_of(tmp_path / "m.gguf", "--load-format", "gguf"))


def test_an_id_that_may_not_be_fetched(tmp_path: Path) -> None:
    env = (("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(tmp_path)))
    error = refused(spec_of("org/name", env=env))
    assert (error.code, str(tmp_path / "hub") in error.message) == (Code.MODEL_MISSING, True)
    check(spec_of("org/name", env=(("HF_HUB_OFFLINE", "0"), ("HF_HOME", str(tmp_path)))))
    check(spec_of("org/name", env=(("HF_HUB_OFFLINE", "1"), ("HF_HOME", "${env:NO_SUCH_VARIABLE}"))))
    hub(tmp_path / "hub")
    check(spec_of("org/name", env=env))


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("32768", 32768),
        ("32k", 32000),
        ("32K", 32768),
        ("1.5k", 1500),
        ("1m", 10**6),
        ("1M", 1 << 20),
        *((text, None) for text in ("1.5K", "1.5", "", "auto", "-1", "k", "1kk", "999999T", "٣", "9" * 50)),
    ],
)
def test_counts_as_vllm_reads_them(text: str, wanted: int | None) -> None:
    assert count_of(text) == wanted


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ("", Sizing()),
        ("--max-num-seqs 0 --max-num-batched-tokens x --block-size", Sizing()),
        ("--enforce-eager --no-enforce-eager", Sizing()),
        ("--no_enable_prefix_caching --enforce_eager", Sizing(prefixes=False, eager=True)),
        ("--quantization FP8_per_tensor", Sizing(quantization="fp8-per-tensor")),
        ("--task generate", Sizing(pooling=False)),
        ("--runner auto", Sizing()),
        ("--mm-encoder-tp-mode data --load-format DUMMY", Sizing(spread_vision=False, load_format="dummy")),
        ("--cpu-offload-gb -3", Sizing()),
        ("--cpu-offload-gb nan", Sizing()),
        ("--cpu-offload-gb 1.5", Sizing(offload_bytes=3 * GIB // 2)),
        ("--speculative-config {", Sizing()),
        ("--speculative-config []", Sizing()),
        ('--speculative-config {"model":3}', Sizing()),
        ("--revision v1 --served-model-name --max-model-len", Sizing(revision="v1")),
    ],
)
def test_flags(args: str, wanted: Sizing) -> None:
    assert read_sizing(args.split()) == wanted


@pytest.mark.parametrize(
    ("sizing", "devices", "wanted"),
    [
        (Sizing(), 4, (4, 1)),
        (Sizing(pipeline=2), 4, (2, 2)),
        (Sizing(pipeline=2, data=2), 4, (1, 2)),
        (Sizing(pipeline=9), 4, (1, 4)),
        (Sizing(data=9), 4, (1, 1)),
        (Sizing(), 0, (1, 1)),
    ],
)
def test_how_a_gang_is_cut(sizing: Sizing, devices: int, wanted: tuple[int, int]) -> None:
    assert parallel(sizing, devices) == wanted
