"""Our launcher of the wheel xllamacpp: llama-server's flags and variables become parameters, or are refused as it refuses them."""

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.engines.llamacpp import xllamacpp_command
from adapters.engines.llamacpp_flags import DEFAULT_ENV
from adapters.engines.xllamacpp_server import OPTIONS, Switch, UsageError, apply_settings, main, read_settings

xllamacpp = pytest.importorskip("xllamacpp")


def params_of(flags: str, env: Mapping[str, str] | None = None) -> Any:
    params = xllamacpp.CommonParams()
    apply_settings(params, read_settings(["-m", "x.gguf", *flags.split()], env or {}))
    return params


def test_defaults_are_llama_servers() -> None:
    params = params_of("")
    assert (params.port, params.n_parallel, params.n_ctx, params.hostnames) == (8080, -1, 0, ["127.0.0.1"])
    assert params.model.path == "x.gguf"


def test_flags() -> None:
    params = params_of(
        "--host 127.0.0.1 --port 9001 -a one,two -c 4096 -np 3 -t 2 -b 256 -ub 128 -ctk q8_0 -ctv q4_0 --embeddings --pooling mean "
        "--metrics --no-slots --props --slot-save-path /kv --swa-full --cache-ram 64 --chat-template chatml --no-jinja -fa off -lm none "
        "-fit off -dev none -ctxcp 4 --sleep-idle-seconds 7 -kvu --no-warmup -lv 4 --temp 0 -s -1 -to 60 --no-ui --api-key a,b"
    )
    assert (params.hostnames, params.port, params.model_alias) == (["127.0.0.1"], 9001, {"one", "two"})
    assert (params.n_ctx, params.n_parallel, params.cpuparams.n_threads) == (4096, 3, 2)
    assert (params.n_batch, params.n_ubatch) == (256, 128)
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert params.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_Q4_0
    assert (params.embedding, params.pooling_type) == (True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN)
    assert (params.endpoint_metrics, params.endpoint_slots, params.endpoint_props) == (True, False, True)
    assert (params.slot_save_path, params.swa_full, params.cache_ram_mib) == ("/kv/", True, 64)
    assert (params.chat_template, params.use_jinja, params.warmup, params.ui) == ("chatml", False, False, False)
    assert params.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert params.load_mode == xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    assert (params.fit_params, params.n_ctx_checkpoints, params.sleep_idle_seconds, params.kv_unified) == (False, 4, 7, True)
    assert (params.verbosity, params.sampling.temp, params.sampling.seed, params.timeout_read) == (4, 0.0, 0xFFFFFFFF, 60)
    assert params.api_keys == ["a", "b"]


def test_variables_are_weaker_than_flags() -> None:
    assert params_of("", {"LLAMA_ARG_CTX_SIZE": "100"}).n_ctx == 100
    assert params_of("-c 200", {"LLAMA_ARG_CTX_SIZE": "100"}).n_ctx == 200
    assert params_of("", {"LLAMA_ARG_ENDPOINT_SLOTS": "0", "LLAMA_API_KEY": "k"}).endpoint_slots is False
    assert params_of("-c 200 --ctx_size 300").n_ctx == 300


def test_what_hotseat_sets_by_default_arrives() -> None:
    params = params_of("", DEFAULT_ENV)
    assert params.load_mode == xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    assert (params.cache_ram_mib, params.fit_params, params.n_ctx_checkpoints) == (0, False, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--no-such-flag", "error: invalid argument: --no-such-flag"),
        ("--metrics yes", "error: invalid argument: yes"),
        ("-c=5", "error: invalid argument: -c=5"),
        ("-c", 'error while handling argument "-c": expected value'),
        ("-c many", 'error while handling argument "-c"'),
        ("-c 99999999999999", 'error while handling argument "-c"'),
        ("-ctk q99", 'error while handling argument "-ctk": Unsupported value: q99'),
        ("-fit perhaps", 'error while handling argument "-fit"'),
        ("-dev CUDA0", 'error while handling argument "-dev": invalid device'),
        ("--chat-template-file /no/such", 'error while handling argument "--chat-template-file"'),
    ],
)
def test_what_is_refused(flags: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        params_of(flags)
    assert str(caught.value).startswith(message)


def test_a_wrong_variable_is_refused() -> None:
    with pytest.raises(UsageError, match="LLAMA_ARG_CTX_SIZE"):
        params_of("", {"LLAMA_ARG_CTX_SIZE": "many"})


def test_a_model_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-c", "1"]) == 1
    assert capsys.readouterr().err == "error: --model is required\n"


def test_no_name_means_two_things() -> None:
    names = [name for option in OPTIONS for name in (*option.names, *(option.off if isinstance(option, Switch) else ()))]
    assert len(names) == len(set(names))
    variables = [option.env for option in OPTIONS if option.env]
    assert len(variables) == len(set(variables))


def test_the_file_stands_alone() -> None:
    """It is run by path and isolated: an import of our own packages would fail there."""
    script = Path(xllamacpp_command()[-1])
    assert "adapters" not in {
        line.split()[1].split(".")[0] for line in script.read_text().splitlines() if line.startswith(("import ", "from "))
    }
    assert "main" in runpy.run_path(str(script), run_name="not_main")
