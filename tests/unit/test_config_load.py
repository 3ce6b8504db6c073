"""From a file to settings, devices and model specifications, and which file counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.config.find import find_config
from scheduler.config.load import check, load
from scheduler.config.problems import ConfigInvalid
from scheduler.config.settings import DeviceOverride, Listen, Loaded, Origin, Settings
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeclaredFootprint, DeviceWish, HttpStep, ModelClass, ModelSpec
from scheduler.domain.placeholders import expand
from scheduler.domain.units import GIB, MIB
from tests.support.config import OWNED, load_text, problems_of

WHOLE = """\
listen: [127.0.0.1:11500, "[::1]:0", localhost:8080]
state_dir: data
timezone: Europe/Berlin
plan_interval: 1h30m
gateway: {keepalive: 2s, max_body: 1MB, interrupt: after_max_wait, turn_factor: 2.5, on_exit: stop}
disk: {min_free: 10GiB}
logs: {size: 1MiB, keep: 0, total: 10MiB}
defaults: {max_wait: 30s, max_queued: 7, min_awake: 0s, start_timeout: 2m, drain_timeout: 3m}
engines:
  llamacpp: {command: [/opt/llama-server], args: [--threads, "4"]}
  next: {type: llamacpp, command: [./bin/llama-server], env_file: engine.env}
  scripts: {type: command, command: [./serve.sh, "${model}", "${port}"], args: [-q]}
devices:
  headroom: 10%
  declared:
    - {id: cpu0, kind: cpu, memory: 4GiB}
    - id: cpu1
      kind: cpu
      memory: 1GiB
  override: {cpu0: {headroom: 1GiB}, cpu1: {use: false}}
models:
  plain: {engine: llamacpp, model: small.gguf}
  Org/Full:7b@v1+x:
    engine: command
    model: Org/Full
    aliases: [full, Org/Full]
    description: All keys
    enabled: false
    unlisted: true
    command: [../run, --port, "${port}"]
    args: ["{\\"a\\": 1}", "${env:EXTRA}", "$$HOME"]
    env: {B: "2", A: "${name}"}
    cwd: work
    upstream_model: inner
    ready: {path: /ready}
    sleep_steps: [{post: "/sleep?level=1", timeout: 90s}]
    wake_steps: [{post: /wake}]
    devices: {kind: cpu, count: 1, memory: ">=2GiB", ids: [cpu0]}
    footprint: {weights: 1GiB, overhead: 2MiB, kv_min: 3MiB, kv_max: 4MiB, residue: 0}
    levels: [2, 1]
    idle_sleep_after: 10m
    awake: auto
    class: batch
    max_wait: auto
    max_concurrent: 3
    start_timeout: 30m
  newer: {engine: next, model: ./w.gguf, awake: always, max_wait: 5s, levels: [], env: {C: model}}
  scripted: {engine: scripts, model: some/id}
"""


@pytest.fixture
def whole(tmp_path: Path) -> Loaded:
    (tmp_path / "engine.env").write_text("# secrets\nexport TOKEN='a$b ${port}'\nC=engine\n\nEMPTY=\n")
    path = tmp_path / "hotseat.yaml"
    path.write_text(WHOLE)
    return load(
        path,
        owned_flags=OWNED,
        known_engines=("llamacpp", "command"),
        environ={"EXTRA": "x"},
        euid=1000,
        home=Path("/home/u"),
    )


def test_settings(whole: Loaded, tmp_path: Path) -> None:
    settings = whole.settings
    assert settings.listen == (Listen("127.0.0.1", 11500), Listen("::1", 0), Listen("localhost", 8080))
    assert [str(address) for address in settings.listen] == ["127.0.0.1:11500", "[::1]:0", "localhost:8080"]
    assert settings.state_dir == tmp_path / "data"
    assert settings.timezone == "Europe/Berlin"
    assert settings.plan_interval_s == 5400
    gateway = settings.gateway
    assert (gateway.keepalive_s, gateway.max_body_bytes, gateway.turn_factor) == (2.0, 1_000_000, 2.5)
    assert (gateway.interrupt, gateway.on_exit) == ("after_max_wait", "stop")
    assert settings.disk_min_free.of(1 << 50) == 10 * GIB
    assert (settings.logs.size_bytes, settings.logs.keep, settings.logs.total_bytes) == (MIB, 0, 10 * MIB)
    limits = settings.limits
    assert (limits.max_wait_s, limits.max_queued, limits.min_awake_s) == (30.0, 7, 0.0)
    assert (limits.start_timeout_s, limits.drain_timeout_s) == (120.0, 180.0)


def test_devices(whole: Loaded, tmp_path: Path) -> None:
    first, second = whole.devices
    assert (first.id, first.kind, first.memory_bytes, first.headroom_bytes, first.use) == ("cpu0", "cpu", 4 * GIB, GIB, True)
    assert (second.id, second.headroom_bytes, second.use) == ("cpu1", GIB // 10, False)
    assert first.source == f"file:{tmp_path}/hotseat.yaml:16"
    assert whole.settings.override_of(DeviceId("cpu1")) == DeviceOverride(use=False)


CARDS = """\
devices:
  headroom: 5%
  override: {gpu1: {use: false}, gpu3: {headroom: 12GiB}, gpu0m1: {headroom: 0}}
host: {sleep_memory: 64GiB}
models:
  big: {engine: vllm, model: Org/Big, devices: {kind: nvidia, count: 2, ids: [gpu0, gpu1, gpu2]}}
  here: {engine: vllm, model: ./weights}
  own: {engine: vllm, model: /srv/q.gguf, command: [serve, "${model}", "${port}"]}
  split: {engine: command, command: [serve, "${devices}", "${port}"], devices: {count: 4}}
"""


def test_discovered_devices_are_known_by_their_form_only() -> None:
    settings = load_text(CARDS).settings
    assert settings.discover == ("nvidia",)
    assert not settings.override_of(DeviceId("gpu1")).use
    assert settings.override_of(DeviceId("gpu9")) == DeviceOverride(use=True, headroom=None)
    assert settings.headroom_of(DeviceId("gpu3"), 80 * GIB) == 12 * GIB
    assert settings.headroom_of(DeviceId("gpu3"), 8 * GIB) == 8 * GIB  # never more than there is
    assert settings.headroom_of(DeviceId("gpu0m1"), 20 * GIB) == 0
    assert settings.headroom_of(DeviceId("gpu1"), 100 * GIB) == 5 * GIB
    assert load_text("devices: {discover: []}\n").settings.discover == ()


def test_models_that_span_devices() -> None:
    models = load_text(CARDS).models
    ids = tuple(DeviceId(f"gpu{index}") for index in range(3))
    assert models[ModelName("big")].devices == DeviceWish(kind="nvidia", count=2, ids=ids)
    assert models[ModelName("split")].devices.count == 4


def test_a_model_of_vllm_is_an_id_unless_it_begins_like_a_path() -> None:
    models = load_text(CARDS).models
    assert models[ModelName("big")].model == "Org/Big"
    assert models[ModelName("here")].model == "/etc/hotseat/weights"
    assert models[ModelName("own")].model == "/srv/q.gguf"  # a command of one's own may load what it likes


@pytest.mark.parametrize(("text", "size"), [("auto", None), ("64GiB", 64 * GIB), ("0", 0)])
def test_host_memory_for_sleepers(text: str, size: int | None) -> None:
    assert load_text(f"host: {{sleep_memory: {text}}}\n").settings.host_sleep_bytes == size
    assert load_text("").settings.host_sleep_bytes is None


def test_a_model_that_says_little_gets_the_defaults(whole: Loaded, tmp_path: Path) -> None:
    assert whole.models[ModelName("plain")] == ModelSpec(
        name=ModelName("plain"),
        engine="llamacpp",
        engine_command=("/opt/llama-server",),
        engine_args=("--threads", "4"),
        model=f"{tmp_path}/small.gguf",
        max_wait_s=30.0,
        max_queued=7,
        min_awake_s=0.0,
        start_timeout_s=120.0,
        drain_timeout_s=180.0,
        source=f"file:{tmp_path}/hotseat.yaml:22",
    )


def test_a_model_that_says_everything(whole: Loaded, tmp_path: Path) -> None:
    name = ModelName("Org/Full:7b@v1+x")
    assert whole.models[name] == ModelSpec(
        name=name,
        engine="command",
        model="Org/Full",
        aliases=("full", "Org/Full"),
        description="All keys",
        enabled=False,
        unlisted=True,
        command=(f"{tmp_path}/../run", "--port", "${port}"),
        args=('{"a": 1}', "${env:EXTRA}", "$$HOME"),
        env=(("A", "${name}"), ("B", "2")),
        cwd=f"{tmp_path}/work",
        upstream_model="inner",
        ready_path="/ready",
        sleep_steps=(HttpStep(path="/sleep?level=1", timeout_s=90.0),),
        wake_steps=(HttpStep(path="/wake", timeout_s=60.0),),
        devices=DeviceWish(kind="cpu", count=1, ids=(DeviceId("cpu0"),), min_memory_bytes=2 * GIB),
        footprint=DeclaredFootprint(weights_bytes=GIB, overhead_bytes=2 * MIB, kv_min_bytes=3 * MIB, kv_max_bytes=4 * MIB, residue_bytes=0),
        levels=(1, 2),
        idle_sleep_after_s=600.0,
        model_class=ModelClass.BATCH,
        max_wait_s=None,
        max_queued=7,
        max_concurrent=3,
        min_awake_s=0.0,
        start_timeout_s=1800.0,
        drain_timeout_s=180.0,
        source=f"file:{tmp_path}/hotseat.yaml:23",
    )


def test_an_engine_of_a_second_version_with_an_env_file(whole: Loaded, tmp_path: Path) -> None:
    model = whole.models[ModelName("newer")]
    assert (model.engine, model.engine_command) == ("llamacpp", (f"{tmp_path}/bin/llama-server",))
    assert model.model == f"{tmp_path}/w.gguf"
    assert model.always_awake
    assert (model.max_wait_s, model.levels) == (5.0, ())
    env = dict(model.env)
    assert env["C"] == "model"
    assert env["EMPTY"] == ""
    assert expand(env["TOKEN"], {}, {}) == "a$b ${port}"  # files are taken as they are


def test_the_program_of_a_command_engine_is_its_models_default(whole: Loaded, tmp_path: Path) -> None:
    model = whole.models[ModelName("scripted")]
    assert model.command == (f"{tmp_path}/serve.sh", "${model}", "${port}")
    assert (model.engine, model.engine_command, model.engine_args, model.model) == ("command", (), ("-q",), "some/id")


def test_where_values_come_from(whole: Loaded) -> None:
    origins = whole.provenance
    assert (origins["gateway.keepalive"].text, origins["gateway.keepalive"].origin, origins["gateway.keepalive"].line) == (
        "2s",
        Origin.FILE,
        5,
    )
    assert origins["models.plain.max_wait"].origin is Origin.DEFAULT
    assert origins["models.plain.max_wait"].text == "30s"  # what defaults.max_wait says
    assert origins["models.newer.max_wait"].origin is Origin.FILE
    assert origins["models.Org/Full:7b@v1+x.ready.path"].text == "/ready"
    assert origins["devices.declared[1].memory"].line == 19
    assert origins["devices.override.cpu1.headroom"].text == "10%"
    assert origins["listen"].text == '["127.0.0.1:11500", "[::1]:0", "localhost:8080"]'


def test_secrets_are_masked_where_values_come_from() -> None:
    text = "models: {m: {engine: command, command: [x, '${port}', --api-key, topsecret], env: {HF_TOKEN: hf_secret, B: c}}}"
    origins = load_text(text).provenance
    assert origins["models.m.env"].text == "HF_TOKEN: *********, B: c"
    assert "topsecret" not in origins["models.m.command"].text


def test_no_file_and_an_empty_file_mean_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "hotseat.yaml"
    path.write_text("# nothing yet\nmodels:\nlisten:\ngateway:\n")
    for chosen in (None, path):
        loaded = load(chosen, owned_flags={}, known_engines=(), environ={}, euid=1000, home=Path("/home/u"))
        assert loaded.settings == Settings(state_dir=Path("/home/u/.local/state/hotseat"))
        assert loaded.settings.listen == (Listen("127.0.0.1", 11500),)
        assert dict(loaded.models) == {}
        assert loaded.devices == ()
        assert loaded.path == chosen


def test_schema_defaults_are_the_settings_defaults() -> None:
    assert load_text("gateway: {}\ndefaults: {}\nlogs: {}\ndisk: {}\n").settings == Settings(state_dir=Path("/home/u/.local/state/hotseat"))


def test_the_state_directory_of_root_and_of_a_home() -> None:
    assert load_text("", euid=0).settings.state_dir == Path("/var/lib/hotseat")
    assert load_text("").provenance["state_dir"].text == "/home/u/.local/state/hotseat"
    assert load_text("state_dir: ~/x").settings.state_dir == Path("/home/u/x")
    assert load_text("state_dir: /srv/x").settings.state_dir == Path("/srv/x")


@pytest.mark.parametrize(
    ("written", "engine", "meant"),
    [
        ("/abs/w.gguf", "llamacpp", "/abs/w.gguf"),
        ("w.gguf", "llamacpp", "/etc/hotseat/w.gguf"),
        ("a/w.gguf", "llamacpp", "/etc/hotseat/a/w.gguf"),
        ("~/w.gguf", "llamacpp", "/home/u/w.gguf"),
        ("Org/Model", "command", "Org/Model"),
        ("./Org/Model", "command", "/etc/hotseat/Org/Model"),
    ],
)
def test_what_the_key_model_means(written: str, engine: str, meant: str) -> None:
    text = f"models: {{m: {{engine: {engine}, model: {written}, command: [x, '${{port}}']}}}}"
    assert load_text(text).models[ModelName("m")].model == meant


def test_aliased_sections_work(tmp_path: Path) -> None:
    text = "models:\n  a: {engine: llamacpp, model: /a, devices: &d {kind: cpu}, args: &args [-t, '2']}\n"
    text += "  b: {engine: llamacpp, model: /b, devices: *d, args: *args}\n"
    models = load_text(text).models
    assert models[ModelName("a")].args == models[ModelName("b")].args == ("-t", "2")
    assert models[ModelName("b")].devices.kind == "cpu"


def test_max_wait_auto_of_a_model_stands_above_a_number_in_defaults() -> None:
    text = "defaults: {max_wait: 9s}\nmodels:\n  a: {engine: llamacpp, model: /a, max_wait: auto}\n"
    text += "  b: {engine: llamacpp, model: /b, max_wait: }\n"
    models = load_text(text).models
    assert models[ModelName("a")].max_wait_s is None
    assert models[ModelName("b")].max_wait_s == 9.0


def test_a_set_variable_of_the_environment_passes() -> None:
    text = "models: {m: {engine: command, command: [x, '${port}', '${env:A}']}}"
    assert len(problems_of(text)) == 1
    assert problems_of(text, environ={"A": ""}) == ()


def write(tmp_path: Path, env: bytes) -> Path:
    (tmp_path / "m.env").write_bytes(env)
    path = tmp_path / "hotseat.yaml"
    path.write_text("models: {m: {engine: llamacpp, model: /m, env_file: m.env}, n: {engine: llamacpp, model: /n, env_file: m.env}}")
    return path


def test_bad_lines_of_an_env_file_are_named_once_and_never_shown(tmp_path: Path) -> None:
    path = write(tmp_path, b"A=1\nsecret without name\n1B=secret\nHOTSEAT_X=secret\n=secret\nZ=secret\0\n")
    result = check(path, owned_flags=OWNED, known_engines=("llamacpp",), environ={})
    assert isinstance(result, ConfigInvalid)
    assert [(p.file, p.line, p.code) for p in result.problems] == [
        (str(tmp_path / "m.env"), line, code)
        for line, code in [(2, "env_file"), (3, "env_file"), (4, "env_file"), (5, "env_file"), (6, "env_file")]
    ]
    assert "secret" not in result.report()


def test_an_env_file_that_is_not_text_is_reported_at_the_key(tmp_path: Path) -> None:
    result = check(write(tmp_path, b"A=\xff\n"), owned_flags=OWNED, known_engines=("llamacpp",), environ={})
    assert isinstance(result, ConfigInvalid)
    assert [(p.line, p.column, p.code) for p in result.problems] == [(1, 53, "encoding")]


def test_env_files_count_for_staleness(tmp_path: Path) -> None:
    prints = []
    for content in (b"A=1\n", b"A=1\n# comment\n", b"A=2\n"):
        loaded = load(write(tmp_path, content), owned_flags={}, known_engines=("llamacpp",), environ={})
        prints.append(loaded.models[ModelName("m")].fingerprint())
    assert prints[0] == prints[1] != prints[2]


class TestFind:
    """The first found counts."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        (tmp_path / "home/.config/hotseat").mkdir(parents=True)
        (tmp_path / "home/.config/hotseat/hotseat.yaml").touch()
        (tmp_path / "system.yaml").touch()
        return tmp_path / "home"

    def test_order(self, home: Path, tmp_path: Path) -> None:
        system, own = tmp_path / "system.yaml", home / ".config/hotseat/hotseat.yaml"
        environ = {"HOTSEAT_CONFIG": "/from/environment"}
        assert find_config("/from/argument", environ, 1000, home, system) == Path("/from/argument")
        assert find_config(None, environ, 1000, home, system) == Path("/from/environment")
        assert find_config(None, {}, 1000, home, system) == own
        assert find_config(None, {"HOTSEAT_CONFIG": ""}, 1000, home, system) == own
        own.unlink()
        assert find_config(None, {}, 1000, home, system) == system
        system.unlink()
        assert find_config(None, {}, 1000, home, system) is None

    def test_root_has_no_file_of_its_own(self, home: Path, tmp_path: Path) -> None:
        assert find_config(None, {}, 0, home, tmp_path / "system.yaml") == tmp_path / "system.yaml"
        assert find_config(None, {}, 0, home, tmp_path / "none") is None

    def test_a_dangling_link_is_not_passed_over(self, home: Path, tmp_path: Path) -> None:
        own = home / ".config/hotseat/hotseat.yaml"
        own.unlink()
        own.symlink_to("nowhere")
        assert find_config(None, {}, 1000, home, tmp_path / "system.yaml") == own
        with pytest.raises(ConfigInvalid, match="no such file"):
            load(own, owned_flags={}, known_engines=(), environ={})


def test_finding_the_file_and_the_settings_cost_no_schema() -> None:
    code = (
        "import sys, scheduler.config.find, scheduler.config.settings; print([m for m in ('pydantic', 'ruamel.yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert done.stdout.strip() == "[]"
