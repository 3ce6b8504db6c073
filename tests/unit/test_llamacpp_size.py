"""What a llama.cpp server will take, against buffer sizes that the real one wrote into its log."""

from typing import Any

import pytest

from adapters.engines.gguf import Header
from adapters.engines.llamacpp_flags import Sizing, read_sizing
from adapters.engines.llamacpp_size import PROCESS_BYTES, SAFETY, measure, read_layers
from scheduler.domain.units import MIB


def header(architecture: str, lengths: dict[str, int] | None = None, **numbers: Any) -> Header:
    arrays = {f"{architecture}.{key}": value for key, value in numbers.items() if isinstance(value, tuple)}
    scalars = {f"{architecture}.{key}": value for key, value in numbers.items() if not isinstance(value, tuple)}
    scalars = {key.replace("__", "."): value for key, value in scalars.items()}
    arrays = {key.replace("__", "."): value for key, value in arrays.items()}
    return Header(version=3, scalars={"general.architecture": architecture, **scalars}, arrays=arrays, lengths=lengths or {})


def sized(flags: str) -> Sizing:
    return read_sizing(flags.split(), {})


GEMMA = header(
    "gemma3",
    {"tokenizer.ggml.tokens": 262144},
    block_count=18,
    context_length=32768,
    embedding_length=640,
    feed_forward_length=2048,
    attention__head_count=4,
    attention__head_count_kv=1,
    attention__key_length=256,
    attention__value_length=256,
    attention__sliding_window=512,
)
SMOL = header(
    "llama",
    {"tokenizer.ggml.tokens": 49152, "tokenizer.ggml.merges": 48900},
    block_count=30,
    context_length=8192,
    embedding_length=576,
    feed_forward_length=1536,
    attention__head_count=9,
    attention__head_count_kv=3,
)


@pytest.mark.parametrize(
    ("model", "args", "kv_mib", "compute_mib"),
    [  # as llama-server reported: "KV buffer size", "compute buffer size"
        (GEMMA, "-c 4096 -np 1 -ub 128", 12.0 + 11.25, 5.76),
        (GEMMA, "-c 4096 -np 1", 12.0 + 15.0, 23.28),
        (GEMMA, "-c 4096 -np 1 -ub 1024", 12.0 + 22.5, 47.55),
        (GEMMA, "-c 4096 -np 1 -ub 2048", 12.0 + 37.5, 99.11),
        (GEMMA, "-c 512 -np 1", 1.5 + 7.5, 19.28),
        (GEMMA, "-c 32768 -np 1", 96.0 + 15.0, 51.28),
        (GEMMA, "-c 8192 -np 4", 24.0 + 60.0, 21.28),
        (GEMMA, "-c 4096", 12.0 + 37.5, 24.78),
        (GEMMA, "-c 8192 -np 1 -fa off", 24.0 + 15.0, 94.27),
        (GEMMA, "-c 32768 -np 1 -fa off", 96.0 + 15.0, 334.27),
        (GEMMA, "-c 8192 -np 1 -ctk q8_0 -ctv q8_0", 12.75 + 7.97, 27.81),
        (GEMMA, "-c 2048 -np 1 --swa-full", 6.0 + 30.0, 22.28),
        (SMOL, "-c 4096 -np 1 -ub 128", 90.0, 4.66),
        (SMOL, "-c 4096 -np 1", 90.0, 18.64),
        (SMOL, "-c 4096 -np 1 -ub 2048", 90.0, 74.57),
        (SMOL, "-c 512 -np 1", 11.25, 15.14),
        (SMOL, "-c 8192 -np 1", 180.0, 22.64),
        (SMOL, "-c 8192 -np 4", 180.0, 16.64),
        (SMOL, "-c 8192 -np 1 -fa off", 180.0, 167.51),
    ],
)
def test_buffers_as_the_engine_reports_them(model: Header, args: str, kv_mib: float, compute_mib: float) -> None:
    parts = measure(model, 0, sized(args))
    assert parts.kv / MIB == pytest.approx(kv_mib, abs=0.05)
    slots = 4 if args == "-c 4096" else int(args.split("-np ")[1].split()[0])
    per_slot = slots * (model.lengths["tokenizer.ggml.tokens"] * 16 / MIB + 0.25)  # not part of the reported buffer
    assert parts.compute / MIB - per_slot == pytest.approx(compute_mib, rel=0.16)


def test_checkpoints_are_counted_per_slot_and_only_with_a_window() -> None:
    sizing = sized("-c 8192 -np 4 -ctxcp 4")
    assert measure(GEMMA, 0, sizing).checkpoints == pytest.approx(4 * 4 * 7.5 * MIB)
    assert measure(SMOL, 0, sizing).checkpoints == 0
    assert measure(GEMMA, 0, sized("-c 8192 -np 4 -ctxcp 4 --swa-full")).checkpoints == 0
    assert measure(GEMMA, 0, sized("-c 8192 -np 1")).checkpoints == pytest.approx(32 * 7.5 * MIB)  # its own default


def test_the_prompt_cache_counts() -> None:
    assert measure(SMOL, 0, read_sizing(["-cram", "512"], {})).extra == 512 * MIB
    assert measure(SMOL, 0, read_sizing(["-cram", "-1"], {})).extra == 8192 * MIB
    assert measure(SMOL, 0, read_sizing([], {}), extra_bytes=7).extra == 7


def test_context_comes_from_the_model_when_nobody_says() -> None:
    assert measure(SMOL, 0, Sizing()).kv == 180 * MIB


def test_sums() -> None:
    parts = measure(SMOL, 100 * MIB, sized("-c 512 -np 1"))
    assert parts.awake == int(
        SAFETY * (PROCESS_BYTES + 100 * MIB + parts.vocabulary + parts.kv + parts.checkpoints + parts.compute + parts.extra)
    )
    assert parts.start_peak < parts.awake + 1


def rows(model: Header) -> list[tuple[int, int, bool, int]]:
    return [(layer.key_elements, layer.value_elements, layer.windowed, layer.state_bytes) for layer in read_layers(model)]


FULL = (64, 64, False, 0)
WINDOWED = (64, 64, True, 0)
BASE = {"block_count": 4, "embedding_length": 64, "attention__head_count": 4}


@pytest.mark.parametrize(
    ("architecture", "numbers", "wanted"),
    [
        ("llama", {}, [FULL] * 4),  # no head_count_kv: as many as heads
        ("llama", {"attention__head_count_kv": 2}, [(32, 32, False, 0)] * 4),
        (
            "deci",
            {"attention__head_count_kv": (4, 0, 2, 1)},
            [FULL, (0, 0, False, 0), (32, 32, False, 0), (16, 16, False, 0)],
        ),
        ("openelm", {"attention__head_count": (4, 4, 8, 8), "attention__head_count_kv": (1, 1, 2, 2), "attention__key_length": 8}, None),
        ("gemma2", {"attention__sliding_window": 16}, [WINDOWED, FULL] * 2),
        ("unheard", {"attention__sliding_window": 16}, [FULL] * 4),  # rather too much
        (
            "unheard",
            {"attention__sliding_window": 16, "attention__sliding_window_pattern": 4},
            [WINDOWED] * 3 + [FULL],
        ),
        (
            "gemma3n",
            {"attention__sliding_window": 16, "attention__sliding_window_pattern": (True, False), "attention__shared_kv_layers": 2},
            [WINDOWED, FULL],
        ),
        (
            "x",
            {"attention__sliding_window": 16, "attention__sliding_window_pattern": 2, "attention__key_length_swa": 8},
            [(32, 64, True, 0), FULL] * 2,
        ),
        ("glm4moe", {"nextn_predict_layers": 1}, [FULL] * 3),
        (
            "deepseek2",
            {"attention__head_count_kv": 1, "attention__key_length": 9, "attention__value_length": 8},
            [(9, 8, False, 0)] * 4,
        ),
        (
            "qwen3next",
            {"full_attention_interval": 4, "ssm__inner_size": 32, "ssm__state_size": 8, "ssm__conv_kernel": 4, "ssm__group_count": 2},
            [(0, 0, False, 4 * (3 * (32 + 2 * 2 * 8) + 32 * 8))] * 3 + [FULL],
        ),
        (
            "jamba",
            {"attention__head_count_kv": (0, 4, 0, 4), "ssm__inner_size": 32, "ssm__state_size": 8, "ssm__conv_kernel": 4},
            [(0, 0, False, 4 * (3 * 32 + 256)), FULL] * 2,
        ),
        ("rwkv7", {"attention__head_count_kv": 0, "wkv__head_size": 16}, [(0, 0, False, 4 * 64 * 18)] * 4),
    ],
)
def test_layers_of_many_kinds(architecture: str, numbers: dict[str, Any], wanted: list[tuple[int, int, bool, int]] | None) -> None:
    found = rows(header(architecture, **{**BASE, **numbers}))
    if wanted is None:
        wanted = [(8, 8, False, 0)] * 2 + [(16, 16, False, 0)] * 2
    assert found == wanted


def test_encoders_have_no_cache_and_no_logits() -> None:
    model = header("bert", {"tokenizer.ggml.tokens": 30000}, **BASE, context_length=512, attention__causal=False)
    parts = measure(model, 0, read_sizing(["--embeddings"], {}))
    assert (parts.kv, parts.checkpoints) == (0, 0)
    assert parts.compute < 16 * MIB
    decoder = header("llama", {"tokenizer.ggml.tokens": 30000}, **BASE, context_length=512)
    assert measure(decoder, 0, read_sizing(["--embeddings"], {})).compute > 2 * 512 * 4 * 30000


def test_absurd_numbers_do_not_raise() -> None:
    mad = header("x", block_count=1 << 63, embedding_length=1 << 62, attention__head_count=0, context_length=1 << 60)
    assert measure(mad, 1, Sizing()).awake > 1 << 60
    assert measure(Header(version=3), 0, Sizing()).kv == 0


@pytest.mark.parametrize(
    ("args", "env", "wanted"),
    [
        ("", {}, Sizing(slots=4, unified=True, checkpoints=32)),
        ("-np 3", {}, Sizing(slots=3, unified=False, checkpoints=32)),
        ("-np 3 -kvu", {}, Sizing(slots=3, unified=True, checkpoints=32)),
        ("-no-kvu", {}, Sizing(slots=4, unified=False, checkpoints=32)),
        ("-np -1 -c 0", {}, Sizing(slots=4, unified=True, checkpoints=32)),
        ("-c 100 -c 200", {}, Sizing(context=200, checkpoints=32)),
        ("--ctx_size 300", {"LLAMA_ARG_CTX_SIZE": "100"}, Sizing(context=300, checkpoints=32)),
        ("", {"LLAMA_ARG_CTX_SIZE": "100", "LLAMA_ARG_SWA_FULL": "1"}, Sizing(context=100, swa_full=True, checkpoints=32)),
        ("", {"LLAMA_ARG_CTX_CHECKPOINTS": "4", "LLAMA_ARG_CACHE_RAM": "0"}, Sizing(checkpoints=4)),
        ("--kv-unified-per-slot 50 -np 2", {}, Sizing(context=100, slots=2, unified=False, checkpoints=32)),
        ("-c x -ub y -ctk q99 -fa off", {}, Sizing(flash=False, checkpoints=32)),
        ("-c", {}, Sizing(checkpoints=32)),
        ("-md d.gguf -mm p.gguf --lora a,b", {}, Sizing(draft="d.gguf", projector="p.gguf", adapters=("a", "b"), checkpoints=32)),
        ("--rerank -ctk Q8_0 -b 64", {}, Sizing(pooled=True, key_type="q8_0", batch=64, checkpoints=32)),
    ],
)
def test_flags_and_variables(args: str, env: dict[str, str], wanted: Sizing) -> None:
    assert read_sizing(args.split(), env) == wanted
