"""vLLM's command line: sizes in bytes, devices by index, sleep mode only where it is wanted and exists."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.engines.vllm import CONTEXT_BYTES, CONTEXT_BYTES_OF_GANG, Vllm, find_program
from adapters.engines.vllm_flags import FIXED_ENV, OWNED, canonical, expandable_segments, levels_of, owned_in
from adapters.registry import engines
from scheduler.domain.errors import HotseatError, Permanent
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeclaredFootprint, DeviceWish, ModelSpec
from scheduler.domain.reasons import Code
from scheduler.domain.units import GIB
from scheduler.ports.engine import LaunchPlan

PLAN = LaunchPlan(
    port=9001,
    devices=(DeviceId("gpu-2"),),
    device_index=(2,),
    device_uuid=("GPU-aaaa",),
    device_kind="nvidia",
    capacity_bytes=24 * GIB,
    claim_bytes=16 * GIB,
    kv_bytes=4 * GIB,
)
GANG = replace(PLAN, devices=(DeviceId("a"), DeviceId("b")), device_index=(0, 3), device_uuid=("GPU-aaaa", "GPU-bbbb"))
CPU = replace(PLAN, devices=(DeviceId("cpu0"),), device_index=(), device_uuid=(), device_kind="cpu")


def spec_of(**changes: object) -> ModelSpec:
    spec = ModelSpec(name=ModelName("org/tiny"), engine="vllm", engine_command=("/bin/sh",), model="org/tiny-1b")
    return replace(spec, **changes)  # type: ignore[arg-type]


def words(plan: LaunchPlan = PLAN, /, **changes: object) -> tuple[str, ...]:
    return Vllm().command(spec_of(**changes), plan).argv


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def code_of(caught: "pytest.ExceptionInfo[HotseatError]") -> str:
    assert caught.value.fix
    return caught.value.code


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line() -> None:
    line = Vllm().command(
        spec_of(engine_args=("--dtype", "bfloat16"), args=("--max-model-len", "4096", "--chat-template", "${name}.j")), PLAN
    )
    own = ("serve", "org/tiny-1b", "--host", "127.0.0.1", "--port", "9001", "--served-model-name", "org/tiny", "--enable-sleep-mode")
    sized = ("--kv-cache-memory-bytes", "4294967296", "--gpu-memory-utilization", "0.625")
    given = ("--dtype", "bfloat16", "--max-model-len", "4096", "--chat-template", "org/tiny.j")
    assert line.argv == ("/bin/sh", *own, *sized, *given)
    assert line.env == {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2",
    }
    assert line == Vllm().command(spec_of(engine_args=("--dtype", "bfloat16"), args=given[2:]), PLAN)


def test_the_share_says_less_than_the_claim_by_what_is_held_when_it_is_checked() -> None:
    """vLLM compares it with what is free after its context was made; with KV in bytes it means nothing else."""
    assert float(value(words(), "--gpu-memory-utilization")) * 24 * GIB == 16 * GIB - CONTEXT_BYTES
    gang = float(value(words(GANG), "--gpu-memory-utilization")) * 24 * GIB
    assert 16 * GIB - CONTEXT_BYTES_OF_GANG - 24 * GIB / 1000 < gang <= 16 * GIB - CONTEXT_BYTES_OF_GANG


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"kv_bytes": None}, "0.666"),  # it sizes the cache by the share: the whole claim, rounded down
        ({"kv_bytes": None, "claim_bytes": 24 * GIB}, "1"),
        ({"claim_bytes": GIB // 2}, "0.01"),
        ({"claim_bytes": 0}, None),
        ({"capacity_bytes": 0}, None),
    ],
)
def test_the_share_of_the_device(changes: dict[str, object], share: str | None) -> None:
    argv = words(replace(PLAN, **changes))  # type: ignore[arg-type]
    assert ("--kv-cache-memory-bytes" in argv) is ("kv_bytes" not in changes)
    assert (value(argv, "--gpu-memory-utilization") if share else None) == share
    assert ("--gpu-memory-utilization" in argv) is (share is not None)


def test_a_gang_is_tensor_parallel_over_its_devices_in_pci_order() -> None:
    line = Vllm().command(spec_of(), GANG)
    assert value(line.argv, "--tensor-parallel-size") == "2"
    assert line.env["CUDA_VISIBLE_DEVICES"] == "0,3"
    assert "--tensor-parallel-size" not in words()


def test_devices_that_have_no_index_are_named_by_uuid() -> None:
    for plan in (replace(PLAN, by_uuid=True, device_uuid=("MIG-1",)), replace(PLAN, device_index=(), device_uuid=("MIG-1",))):
        assert Vllm().command(spec_of(), plan).env["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert "CUDA_VISIBLE_DEVICES" not in Vllm().command(spec_of(), replace(PLAN, device_index=(), device_uuid=())).env


@pytest.mark.parametrize(
    ("changes", "plan", "sleeps"),
    [
        ({}, PLAN, True),
        ({"levels": (1,)}, PLAN, True),
        ({"levels": ()}, PLAN, False),
        ({"levels": (2,), "args": ("--enable-lora",)}, PLAN, False),  # level 2 is wanted, only level 1 can be tried
        ({"args": ("--load-format", "ipc_cache")}, PLAN, False),
        ({}, CPU, False),
        ({"devices": DeviceWish(kind="cpu")}, replace(PLAN, device_kind=""), False),
        ({}, replace(PLAN, device_kind=""), True),
    ],
)
def test_sleep_mode_only_where_it_is_wanted_and_exists(changes: dict[str, object], plan: LaunchPlan, sleeps: bool) -> None:
    assert ("--enable-sleep-mode" in words(plan, **changes)) is sleeps


@pytest.mark.parametrize(("kv_bytes", "space"), [(None, "1"), (1, "1"), (GIB, "1"), (4 * GIB, "4"), (4 * GIB + 1, "5")])
def test_on_the_cpu_the_kv_cache_is_a_variable_of_whole_gibibytes(kv_bytes: int | None, space: str) -> None:
    line = Vllm().command(spec_of(), replace(CPU, kv_bytes=kv_bytes))
    assert line.env["VLLM_CPU_KVCACHE_SPACE"] == space
    assert line.env["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"--kv-cache-memory-bytes", "--gpu-memory-utilization", "--enable-sleep-mode"} & set(line.argv)


def test_a_key_travels_in_the_environment_not_on_the_command_line() -> None:
    line = Vllm().command(spec_of(), replace(PLAN, api_key="hs_secret"))
    assert line.env["VLLM_API_KEY"] == "hs_secret"
    assert "hs_secret" not in " ".join(line.argv)


def test_the_models_own_command_replaces_the_adapters_and_keeps_the_environment() -> None:
    command = ("/bin/env", "vllm", "serve", "${model}", "--port", "${port}", "--kv-cache-memory-bytes", "${kv_bytes}")
    line = Vllm().command(spec_of(command=command, args=("--seed", "1")), PLAN)
    assert line.argv == (
        "/bin/env",
        "vllm",
        "serve",
        "org/tiny-1b",
        "--port",
        "9001",
        "--kv-cache-memory-bytes",
        "4294967296",
        "--seed",
        "1",
    )
    assert line.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert line.env["CUDA_VISIBLE_DEVICES"] == "2"


def test_a_folder_is_given_as_an_absolute_path_and_anything_else_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    assert words(model=str(tmp_path / "tiny"))[2] == str(tmp_path / "tiny")
    assert words(model="./tiny", cwd=str(tmp_path))[2] == str(tmp_path / "tiny")
    assert words(model="org/tiny", cwd=str(tmp_path))[2] == "org/tiny"
    with pytest.raises(Permanent) as caught:
        words(model="")
    assert code_of(caught) == Code.MODEL_MISSING


def test_the_name_that_the_engine_knows() -> None:
    assert Vllm().served_model(spec_of()) == "org/tiny"
    assert Vllm().served_model(spec_of(upstream_model="other")) == "other"
    assert value(words(upstream_model="other"), "--served-model-name") == "other"


def test_which_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Permanent, match="no vllm on PATH") as caught:
        find_program(spec_of(engine_command=()))
    assert code_of(caught) == Code.EXECUTABLE_MISSING
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    assert find_program(spec_of(engine_command=())) == (str(tmp_path / "vllm"),)
    assert find_program(spec_of(engine_command=("/bin/sh", "-c"))) == ("/bin/sh", "-c")
    monkeypatch.setenv("PATH", "")
    assert find_program(spec_of(engine_command=(), env=(("PATH", str(tmp_path)),))) == (str(tmp_path / "vllm"),)
    with pytest.raises(Permanent) as caught:
        find_program(spec_of(engine_command=("/nowhere/vllm",)))
    assert code_of(caught) == Code.EXECUTABLE_MISSING


async def test_what_is_missing_is_found_before_the_start(tmp_path: Path) -> None:
    for changes, code in (
        ({"engine_command": ("/nowhere/vllm",)}, Code.EXECUTABLE_MISSING),
        ({"command": ("/nowhere/vllm",)}, Code.EXECUTABLE_MISSING),
        ({"model": str(tmp_path / "nope")}, Code.MODEL_MISSING),
        ({"model": ""}, Code.MODEL_MISSING),
    ):
        with pytest.raises(Permanent) as caught:
            await Vllm().preflight(spec_of(**changes))
        assert code_of(caught) == code, changes


async def test_its_estimate_never_raises(tmp_path: Path) -> None:
    for model in ("", "org/tiny-1b", str(tmp_path / "nope"), str(tmp_path)):
        assert (await Vllm().estimate(spec_of(model=model))).awake_bytes > 0


async def test_on_the_cpu_the_estimate_counts_whole_gibibytes_of_kv_cache() -> None:
    def sized(kv_min: int, kv_max: int, kind: str | None = "cpu") -> ModelSpec:
        said = DeclaredFootprint(weights_bytes=GIB, overhead_bytes=GIB, kv_min_bytes=kv_min, kv_max_bytes=kv_max)
        return spec_of(footprint=said, devices=DeviceWish(kind=kind))

    for spec in (sized(GIB // 2, GIB // 2), sized(GIB, GIB)):
        found = await Vllm().estimate(spec)
        assert found.kv_bytes % GIB == 0
        assert found.kv_min_bytes % GIB == 0
        assert found.kv_bytes >= found.kv_min_bytes >= GIB
        assert found.awake_bytes >= 2 * GIB + found.kv_bytes
        assert found.start_peak_bytes >= found.awake_bytes
        line = Vllm().command(spec, replace(CPU, kv_bytes=found.kv_bytes))
        assert int(line.env["VLLM_CPU_KVCACHE_SPACE"]) * GIB == found.kv_bytes  # what is claimed is what it takes
    exact = await Vllm().estimate(sized(GIB // 2, GIB // 2, "nvidia"))
    assert exact.kv_bytes % GIB != 0


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named", "key"),
    [
        ({"args": ("--port", "1")}, "--port", ""),
        ({"args": ("--port=1",)}, "--port=1", ""),
        ({"args": ("--host=0.0.0.0",)}, "--host=0.0.0.0", ""),
        ({"args": ("--uds", "/x")}, "--uds", ""),
        ({"args": ("--served_model_name", "x")}, "--served_model_name", "upstream_model"),
        ({"args": ("--served-model", "x")}, "--served-model-name", "upstream_model"),
        ({"args": ("--api-key", "x")}, "--api-key", ""),
        ({"args": ("--config", "x.yaml")}, "--config", "args"),
        ({"engine_args": ("--enable-sleep-mode",)}, "--enable-sleep-mode", "levels"),
        ({"args": ("--no-enable-sleep-mode",)}, "--no-enable-sleep-mode", "levels"),
        ({"args": ("--enable-sleep",)}, "--enable-sleep-mode", "levels"),
        ({"args": ("--gpu-memory-util=0.5",)}, "--gpu-memory-utilization", "footprint"),
        ({"args": ("--kv_cache_memory_bytes", "1")}, "--kv_cache_memory_bytes", "footprint.kv_max"),
        ({"args": ("--kv-cache-mem", "1")}, "--kv-cache-memory-bytes", "footprint.kv_max"),
        ({"args": ("--tensor-parallel-size", "2")}, "--tensor-parallel-size", "devices.count"),
        ({"args": ("-tp", "2")}, "-tp", "devices.count"),
        ({"args": ("-tp=2",)}, "-tp=2", "devices.count"),
        ({"args": ("-t", "2")}, "-tp", "devices.count"),
        ({"args": ("-pp", "2")}, "-pp", "devices.count"),
        ({"args": ("-dp", "2")}, "-dp", ""),
        ({"args": ("--data-parallel-size", "2")}, "--data-parallel-size", ""),
        ({"args": ("--data-parallel-size-local", "2")}, "--data-parallel-size-local", ""),
        ({"args": ("--data_parallel_rank=1",)}, "--data_parallel_rank=1", ""),
        ({"args": ("--data-parallel-hybrid-lb",)}, "--data-parallel-hybrid-lb", ""),
        ({"engine_args": ("-dpl=2",)}, "-dpl=2", ""),
        ({"engine_args": ("-dpr", "1")}, "-dpr", ""),
        ({"env": (("VLLM_DP_SIZE", "2"),)}, "VLLM_DP_SIZE", ""),
        ({"args": ("--sleep-mode-backend", "x")}, "--sleep-mode-backend", ""),
        ({"args": ("--shutdown-timeout", "60")}, "--shutdown-timeout", "drain_timeout"),
        ({"env": (("CUDA_VISIBLE_DEVICES", "1"),)}, "CUDA_VISIBLE_DEVICES", "devices.ids"),
        ({"env": (("VLLM_SERVER_DEV_MODE", "0"),)}, "VLLM_SERVER_DEV_MODE", "levels"),
        ({"env": (("VLLM_CPU_KVCACHE_SPACE", "40"),)}, "VLLM_CPU_KVCACHE_SPACE", "footprint.kv_max"),
    ],
)
def test_what_hotseat_sets_cannot_be_set_twice(changes: dict[str, object], named: str, key: str) -> None:
    with pytest.raises(Permanent) as caught:
        words(**changes)
    assert code_of(caught) == Code.UNKNOWN_FLAG
    assert named in caught.value.message
    assert f"`{key}`" in caught.value.fix if key else caught.value.fix == "remove it"


@pytest.mark.parametrize(
    "args",
    [
        ("--max-model-len", "4096"),
        ("--dtype=half", "-q", "awq"),
        ("--seed", "-1"),
        ("--hf-overrides", '{"--port": 1}'),
        ("--kv-cache-dtype", "fp8"),
        ("--config-format", "hf"),
        ("--model-loader-extra-config", "{}"),
        ("--enable-prefix-caching", "--enforce-eager"),
        ("--max-num-seqs", "-"),
        ("-O3",),
        ("--chat-template", "--"),
    ],
)
def test_everything_else_may_be_given(args: tuple[str, ...]) -> None:
    assert owned_in(args) == ("", "")
    assert words(args=args)[-len(args) :] == args


def test_owned_flags_say_what_to_use_instead() -> None:
    owned = Vllm().owned_flags()
    assert owned == {**OWNED, **FIXED_ENV}
    assert owned["--served-model-name"] == "upstream_model"
    assert "--max-model-len" not in owned
    assert all(flag == canonical(flag) for flag in owned)
    assert isinstance(engines()["vllm"], Vllm)
    assert set(FIXED_ENV) >= {"CUDA_VISIBLE_DEVICES", "VLLM_API_KEY"}


@pytest.mark.parametrize(
    ("args", "levels"),
    [
        ((), (1, 2)),
        (("--load-format", "auto"), (1, 2)),
        (("--load_format=safetensors",), (1, 2)),
        (("--load-format", "runai_streamer"), (1,)),
        (("--load-format", "dummy"), (1,)),
        (("--load-form", "tensorizer"), (1,)),
        (("--load-format=bitsandbytes",), (1,)),
        (("--load-format", "dummy", "--load-format", "auto"), (1, 2)),
        (("--load-format",), (1,)),
        (("--load-format", "ipc_cache"), ()),
        (("--quantization", "awq"), (1, 2)),
        (("--quantization", "fp8"), (1,)),
        (("-q=fp8",), (1,)),
        (("-q", "bitsandbytes"), (1,)),
        (("--quantization-config", "{}"), (1,)),
        (("--enable-lora",), (1,)),
        (("--lora-modules", "a=b"), (1,)),
        (("--no-enable-lora",), (1, 2)),
        (("--speculative-config", "{}"), (1,)),
        (("--speculative-config.model", "x"), (1,)),
        (("-sc", "{}"), (1,)),
    ],
)
def test_how_deep_it_may_sleep(args: tuple[str, ...], levels: tuple[int, ...]) -> None:
    assert levels_of(args) == levels
    assert Vllm().levels(spec_of(engine_args=args)) == levels
    assert Vllm().levels(spec_of(args=args, devices=DeviceWish(kind="cpu"))) == levels[:1]


def test_a_gguf_file_cannot_be_loaded_again() -> None:
    assert Vllm().levels(spec_of(model="/models/x.Q4_K_M.GGUF")) == (1,)


def test_a_command_of_the_operators_sleeps_only_when_somebody_says_so() -> None:
    plain = ("vllm", "serve", "x", "--port", "${port}")
    assert Vllm().levels(spec_of(command=plain)) == ()
    assert Vllm().levels(spec_of(command=(*plain, "--enable-sleep-mode"))) == (1, 2)
    assert Vllm().levels(spec_of(command=("./start.sh",), levels=(1,))) == (1, 2)
    assert Vllm().levels(spec_of(command=(*plain, "--enable-sleep-mode", "--load-format", "dummy"))) == (1,)


# --- the environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_CUDA_ALLOC_CONF"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512, expandable_segments : true"}, "PYTORCH_CUDA_ALLOC_CONF"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:1"}, "PYTORCH_ALLOC_CONF"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}, ""),
        ({}, ""),
    ],
)
def test_expandable_segments_and_sleep_exclude_each_other(env: dict[str, str], named: str) -> None:
    assert expandable_segments(env) == named
    given = tuple(env.items())
    assert words(CPU, env=given)
    assert words(env=given, levels=())
    if not named:
        assert words(env=given)
        return
    with pytest.raises(Permanent, match=named) as caught:
        words(env=given)
    assert code_of(caught) == Code.UNKNOWN_FLAG
    assert "expandable_segments" in caught.value.fix


def test_the_program_is_absolute_when_it_was_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert os.path.isabs(words(engine_command=())[0])
