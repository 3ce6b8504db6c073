"""Bad configurations, one line each: where the error is, its code, and what it tells people to do."""

import pytest

from scheduler.config.problems import CODES, ConfigInvalid, mask_secrets
from tests.support.config import load_text, problems_of

MODEL = "models: {m: {engine: command, command: [x, '${port}'], "  # a valid model, up to the key under test
CPU = "devices: {declared: [{id: cpu0, kind: cpu, memory: 4GiB}], "

# (text with § before the place of its one error (none = valid), code, part of the message, part of the fix)
Case = tuple[str, str, str, str]

TOP: list[Case] = [
    ("§just text", "wrong_type", "expected a mapping at the top", "KEY: VALUE"),
    ("§- a\n- b", "wrong_type", "found a list", "KEY: VALUE"),
    ("§listen:127.0.0.1:1", "wrong_type", "found the text", 'a space follows the ":"'),
    ("§listne: 127.0.0.1:1", "unknown_key", "unknown key 'listne'", "did you mean 'listen'?"),
    ("§plan-interval: 60s", "unknown_key", "plan-interval", "did you mean 'plan_interval'?"),
    ("§LISTEN: 127.0.0.1:1", "unknown_key", "LISTEN", "did you mean 'listen'?"),
    ("§xyzzy:", "unknown_key", "xyzzy", "known here: listen, state_dir"),
    ("gateway: {§keepalive:5s}", "unknown_key", "keepalive:5s", "put a space after the colon: keepalive: 5s"),
    ("gateway: {keepalive: 5s, §colour: red}", "unknown_key", "'colour' in gateway", "known here: keepalive"),
    ("gateway: §5", "wrong_type", "gateway: expected a mapping, found the number 5", "KEY: VALUE"),
    ("models: §[a]", "wrong_type", "models: expected a mapping, found a list", ""),
    ("devices: {declared: §{}}", "wrong_type", "expected a list, found a mapping", "[a, b]"),
    ("devices: {declared: [§cpu0]}", "wrong_type", "devices.declared[0]: expected a mapping, found the text 'cpu0'", ""),
    ("state_dir: §''", "bad_value", "empty text", "remove the key"),
    ("state_dir: §7", "wrong_type", "expected text, found the number 7", '"7"'),
    ('state_dir: §"a\\0b"', "bad_value", "NUL", ""),
    ("timezone: §Asia/Soul", "bad_value", "unknown time zone 'Asia/Soul'", "Asia/Seoul"),
    ("timezone: §../../etc/passwd", "bad_value", "unknown time zone", ""),
    ("timezone: §9", "wrong_type", "expected text", ""),
    ("plan_interval: §60", "bad_value", "a duration needs a unit, found the number 60", "write 60s, 60m or 60h"),
    ("plan_interval: §1 m", "bad_value", "not a duration: '1 m'", "30s, 5m, 2h"),
    ("plan_interval: §0s", "bad_value", "too short", "100ms"),
    ("plan_interval: §-5s", "bad_value", "not a duration", ""),
    ("plan_interval: §900d", "bad_value", "longer than 366 days", ""),
    (
        "plan_interval: §" + "9" * 30 + "d",
        "bad_value",
        "longer than 366 days",
        "",
    ),
    ("plan_interval: §true", "wrong_type", "found the boolean true", ""),
    ("plan_interval: §[60s]", "wrong_type", "found a list", ""),
    ("gateway: {max_body: §64M}", "bad_value", "ambiguous size '64M'", "write 64MiB (binary) or 64MB (decimal)"),
    ("gateway: {max_body: §16G}", "bad_value", "ambiguous size '16G'", "write 16GiB (binary) or 16GB (decimal)"),
    ("gateway: {max_body: §5 apples}", "bad_value", "unknown unit", "GiB"),
    ("gateway: {max_body: §1.5}", "wrong_type", "expected a size, found the number 1.5", ""),
    ("gateway: {max_body: §0}", "bad_value", "0 bytes", ""),
    ("gateway: {max_body: §-1}", "bad_value", "negative", ""),
    (
        "gateway: {max_body: §" + "9" * 400 + "GiB}",
        "bad_value",
        "more than 1024 TiB",
        "",
    ),
    ("gateway: {turn_factor: §'4'}", "wrong_type", "expected a number", "without quotes"),
    ("gateway: {turn_factor: §0.5}", "bad_value", "out of range", "at least 1"),
    ("gateway: {turn_factor: §.inf}", "wrong_type", "expected a finite number", ""),
    ("gateway: {turn_factor: §.nan}", "wrong_type", "expected a finite number", ""),
    ("gateway: {turn_factor: §true}", "wrong_type", "expected a number", ""),
    ("gateway: {interrupt: §nevr}", "bad_value", "expected 'never' or 'after_max_wait', found the text 'nevr'", "write never"),
    ("gateway: {on_exit: §kill}", "bad_value", "'keep' or 'stop'", "keep or stop"),
    ("defaults: {max_queued: §0}", "bad_value", "out of range", "at least 1"),
    ("defaults: {max_queued: §1.0}", "wrong_type", "whole number", ""),
    ("defaults: {max_queued: §true}", "wrong_type", "whole number", ""),
    ("defaults: {max_wait: §never}", "bad_value", "expected a duration or auto", "auto"),
    ("defaults: {max_wait: §0s}", "bad_value", "too short", ""),
    ("disk: {min_free: §100%}", "bad_value", "leaves nothing", "less than 100%"),
    ("disk: {min_free: §0.05}", "wrong_type", "percentage or a size", ""),
    ("§logs: {size: 1GiB, total: 1MiB}", "bad_value", "logs.total is less than logs.size", "raise total"),
    ("logs: {keep: §-1}", "bad_value", "out of range", "at least 0"),
]

LISTEN: list[Case] = [
    ("listen: §[]", "bad_value", "empty", "127.0.0.1:11500"),
    ("listen: §11500", "wrong_type", "expected HOST:PORT", "127.0.0.1:11500"),
    ("listen: §127.0.0.1", "bad_value", "has no port", "127.0.0.1:11500"),
    ("listen: §:11500", "bad_value", "has no host", "127.0.0.1:11500"),
    ("listen: §127.0.0.1:99999", "bad_value", "'99999' is not a port", ""),
    ("listen: §127.0.0.1:http", "bad_value", "'http' is not a port", ""),
    ("listen: §127.0.0.1:१२", "bad_value", "is not a port", ""),
    ("listen: §127.0.0.256:1", "bad_value", "neither an address nor a host name", ""),
    ('listen: §"::1"', "bad_value", "has no port", "[::1]:11500"),
    ('listen: §"fe80::zz:1"', "bad_value", "needs brackets", ""),
    ('listen: §"[::zz]:1"', "bad_value", "not an IPv6 address", ""),
    ("listen: §http://x:1", "bad_value", "", ""),
    ("listen: [127.0.0.1:1, §127.0.0.1:1]", "bad_value", "listed twice", "remove one"),
    ("listen: §0.0.0.0:80", "not_supported_yet", "reached from other machines", "127.0.0.1:80"),
    ('listen: §"[::]:80"', "not_supported_yet", "reached from other machines", ""),
    ("listen: §gpu7.example.org:80", "not_supported_yet", "reached from other machines", ""),
    ("listen: §{host: x}", "wrong_type", "expected a list, found a mapping", ""),
]

DEVICES: list[Case] = [
    ("devices: {declared: [§{id: cpu0, kind: cpu}]}", "missing_key", "needs memory", "memory: 4GiB"),
    ("devices: {declared: [§{kind: cpu, memory: 4GiB}]}", "missing_key", "needs id", ""),
    ("devices: {declared: [§{id: a, memory: 4GiB}]}", "missing_key", "needs kind", ""),
    ("devices: {declared: [{id: §a b, kind: cpu, memory: 4GiB}]}", "bad_name", "'a b' is not a device id", ""),
    ("devices: {declared: [{id: §0, kind: cpu, memory: 4GiB}]}", "wrong_type", "expected text", '"0"'),
    ("devices: {declared: [{id: a, kind: §gpu, memory: 4GiB}]}", "bad_value", "unknown kind of device 'gpu'", ""),
    (
        "devices: {declared: [{id: a, kind: §nvidia, memory: 4GiB}]}",
        "bad_value",
        "nvidia are discovered, not declared",
        "discover: [nvidia]",
    ),
    ("devices: {declared: [{id: a, kind: §rngd, memory: 4GiB}]}", "not_supported_yet", "kind rngd", "kind: cpu"),
    ("devices: {declared: [{id: §gpu0, kind: cpu, memory: 4GiB}]}", "name_taken", "gpu0 is what a discovered card", "discover: []"),
    ("devices: {declared: [{id: a, kind: cpu, memory: §4}]}", "bad_value", "4 bytes", "4GiB"),
    ("devices: {declared: [{id: a, kind: cpu, memory: §4G}]}", "bad_value", "ambiguous", "4GiB"),
    (
        "devices: {declared: [{id: a, kind: cpu, memory: 4GiB},\n  {id: §a, kind: cpu, memory: 4GiB}]}",
        "name_taken",
        "device 'a' was already declared on line 1",
        "",
    ),
    (CPU + "headroom: 2}", "", "", ""),
    (CPU + "headroom: §100%}", "bad_value", "leaves nothing", ""),
    (CPU + "headroom: §4GiB}", "bad_value", "the headroom leaves nothing of device cpu0", ""),
    (CPU + "override: {§cpuO: {use: true}}}", "unknown_device", "no device 'cpuO'", "did you mean 'cpu0'?"),
    (CPU + "override: {cpu0: {use: §off}}}", "wrong_type", "expected true or false, found the text 'off'", "YAML 1.2"),
    (CPU + "override: {cpu0: {headroom: §8GiB}}}", "bad_value", "leaves nothing", ""),
    ("devices: {discover: [], override: {§gpu0: {}}}", "unknown_device", "no device 'gpu0'", "there is none"),
    ("devices: {override: {§gpu: {}}}", "unknown_device", "no device 'gpu'", "discovered cards are called gpu0"),
    ("devices: {override: {§GPU0: {}}}", "unknown_device", "no device 'GPU0'", "discovered cards are called gpu0"),
    ("devices: {override: {§gpu1m: {}}}", "unknown_device", "no device 'gpu1m'", "gpu0m0"),
    (CPU + "override: {§cpu1: {}}}", "unknown_device", "no device 'cpu1'", "did you mean 'cpu0'?"),
    (CPU + "override: {§card-A: {}}}", "unknown_device", "no device 'card-A'", "declared: cpu0; discovered cards"),
    ("devices: {override: {gpu0: {§memory: 1GiB}}}", "unknown_key", "unknown key 'memory'", "known here: use, headroom"),
    ("devices: {override: {gpu0: {headroom: §100%}}}", "bad_value", "leaves nothing", ""),
    ("devices: {discover: §nvidia}", "wrong_type", "expected a list, found the text 'nvidia'", "[a, b]"),
    ("devices: {discover: [§nvidea]}", "bad_value", "unknown kind of device 'nvidea'", "did you mean 'nvidia'?"),
    ("devices: {discover: [§cuda]}", "bad_value", "unknown kind of device 'cuda'", "there is: nvidia"),
    ("devices: {discover: [nvidia, §rngd]}", "not_supported_yet", "devices of kind rngd", "discovered now: nvidia"),
    ("devices: {discover: [§cpu]}", "bad_value", "kind cpu are not discovered", "devices.declared"),
    ("devices: {discover: [nvidia, §nvidia]}", "bad_value", "nvidia is listed twice", ""),
    ("devices: {discover: [§7]}", "wrong_type", "expected text", '"7"'),
    (
        "devices: {declared: [{id: a, kind: cpu, memory: 1GiB, §usage_command: [x]}]}",
        "not_supported_yet",
        "devices.declared[0].usage_command",
        "",
    ),
]

ENGINES: list[Case] = [
    ("engines: {§sglang: {}}", "not_supported_yet", "engine sglang is not supported yet", "command, llamacpp"),
    ("engines: {x: {type: §sglang}}", "not_supported_yet", "engine sglang", ""),
    ("engines: {x: {type: §lamacpp}}", "unknown_engine", "no engine 'lamacpp'", "llamacpp"),
    ("engines: {§x: {}}", "unknown_engine", "needs a type", "type: one of attached, command, llamacpp"),
    ("engines: {§x: }", "unknown_engine", "needs a type", ""),
    ("engines: {llamacpp: {command: §llama-server -v}}", "wrong_type", "expected a list of words", "[llama-server, -v]"),
    ("engines: {llamacpp: {args: [§'--port=1']}}", "owned_flag", "--port is set by hotseat", "remove it"),
    ("engines: {llamacpp: {args: [§'${env:NO}']}}", "unknown_placeholder", "NO", "set NO"),
    ("engines: {llamacpp: {§evn: {}}}", "unknown_key", "'evn' in engines.llamacpp", "env_file"),
    ("engines: {llamacpp: {env_file: §none.env}}", "file_unreadable", "env_file none.env: no such file", ""),
]

MODELS: list[Case] = [
    ("models: {§m: {}}", "missing_key", "model 'm' has no engine", "command, llamacpp"),
    ("models: {§m: }", "missing_key", "has no engine", ""),
    ("models: {m: §5}", "wrong_type", "models.m: expected a mapping", ""),
    ("models: {m: {engine: §llamacp, model: /x}}", "unknown_engine", "no engine 'llamacp'", "did you mean 'llamacpp'?"),
    ("models: {m: {engine: §sglang, model: /x}}", "not_supported_yet", "engine sglang", "available now"),
    ("models: {m: {engine: §ollama, model: /x}}", "not_supported_yet", "engine ollama", "available now"),
    ("models: {§m: {engine: vllm}}", "missing_key", "the engine vllm needs the key model", "folder"),
    ("models: {m: {engine: vllm, model: §/srv/q.GGUF}}", "bad_value", "not a file that ends in .gguf", "write engine: llamacpp"),
    ("models: {m: {engine: llamacpp, model: §/srv/q.safetensors}}", "bad_value", "llamacpp takes a GGUF file", "write engine: vllm"),
    ("models: {m: {engine: vllm, model: /x, args: [§--tensor-parallel-size=2]}}", "owned_flag", "is set by hotseat", "devices.count"),
    ("models: {m: {engine: vllm, model: /x, args: [§--gpu_memory_utilization, '1']}}", "owned_flag", "--gpu_memory_utilization is set", ""),
    (
        "models: {m: {engine: llamacpp, model: /x, devices: {count: §2}}}",
        "not_supported_yet",
        "2 devices for one model of llamacpp",
        "vllm",
    ),
    (
        "models: {m: {engine: vllm, model: /x, devices: {count: §4, ids: [gpu0, gpu1]}}}",
        "bad_value",
        "count is 4, but ids names 2",
        "lower count",
    ),
    ("models: {m: {engine: vllm, model: /x, devices: {ids: [gpu0, §gpuX]}}}", "unknown_device", "no device 'gpuX'", "gpu0, gpu1"),
    ("models: {§m: {engine: attached, devices: {ids: [gpu0]}}}", "missing_key", "needs the key url", "http://127.0.0.1:PORT"),
    ("models: {§m: {engine: attached, url: http://127.0.0.1:9}}", "missing_key", "devices it sits on", "ids: [gpu0]"),
    ("models: {m: {engine: attached, url: §http://192.0.2.1:9, devices: {ids: [gpu0]}}}", "bad_value", "of this host", "127.0.0.1"),
    ("models: {m: {engine: attached, url: §https://localhost:9, devices: {ids: [gpu0]}}}", "bad_value", "plain HTTP", "127.0.0.1"),
    ("models: {m: {engine: attached, url: http://localhost:9, devices: {ids: [gpu0]}, §args: [x]}}", "bad_value", "no effect", "remove"),
    ("models: {§m: {engine: llamacpp}}", "missing_key", "the engine llamacpp needs the key model", "weights.gguf"),
    ("models: {§m: {engine: command}}", "missing_key", "the engine command needs a command", "${port}"),
    ("models: {§m: {engine: command, command: []}}", "missing_key", "needs a command", ""),
    ("models: {m: {engine: command, command: §[x]}}", "missing_port", "nothing tells the program its port", "${port}"),
    ("models: {m: {engine: command, command: §['$${port}']}}", "missing_port", "", ""),
    ("models: {m: {engine: command, command: §['', '${port}']}}", "bad_value", "it is empty", "name the program"),
    ("models: {m: {engine: command, command: §'x y'}}", "wrong_type", "a list of words", "[x, y]"),
    ("models: {m: {engine: command, command: [x, §'${prot}', '${port}']}}", "unknown_placeholder", "${prot}", "$$"),
    ("models: {m: {engine: command, command: [x, §'${port']}}", "unknown_placeholder", "never closed", ""),
    ("models: {m: {engine: command, command: [x, '${port}', §'${env:A-B}']}}", "unknown_placeholder", "${env:A-B}", ""),
    ("models: {m: {engine: command, command: [x, '${port}', §8]}}", "wrong_type", "found the number 8", 'quotes around it: "8"'),
    ("models: {m: {engine: command, command: [x, '${port}', §0x1F]}}", "wrong_type", "", '"0x1F"'),
    ("models: {m: {engine: command, command: [x, '${port}', ]}, §n}", "missing_key", "model 'n' has no engine", ""),
    ("models: {§'a b': {engine: llamacpp, model: /x}}", "bad_name", "'a b' is not a model name", "at most 128"),
    ("models: {§-a: {engine: llamacpp, model: /x}}", "bad_name", "'-a'", ""),
    ("models: {§'a#1': {engine: llamacpp, model: /x}}", "bad_name", "'a#1'", ""),
    ("models: {§é: {engine: llamacpp, model: /x}}", "bad_name", "'é'", ""),
    (
        "models: {§" + "a" * 129 + ": {engine: llamacpp, model: /x}}",
        "bad_name",
        "is not a model name",
        "",
    ),
    (MODEL + "aliases: [§m]}}", "name_taken", "alias 'm' is already the name of a model, on line 1", ""),
    (MODEL + "aliases: [a, b, §a]}}", "name_taken", "alias 'a' is already an alias of model 'm'", ""),
    (MODEL + "aliases: [a, §'b c']}}", "bad_name", "'b c'", ""),
    (MODEL + "aliases: §a}}", "wrong_type", "expected a list", "[a, b]"),
    (MODEL + "env: {A: §1}}}", "wrong_type", "models.m.env.A: expected text", "quotes"),
    (MODEL + "env: {A:§ }}}", "wrong_type", "models.m.env.A", ""),
    (MODEL + "env: {A: §true}}}", "wrong_type", "models.m.env.A", ""),
    (MODEL + "env: {§A B: x}}}", "bad_name", "'A B' is not the name of an environment variable", ""),
    (MODEL + "env: {§HOTSEAT_KEY: x}}}", "bad_name", "HOTSEAT_", "another name"),
    (MODEL + "env: {A: §'${env:B}'}}}", "unknown_placeholder", "the environment variable B", "set B"),
    (MODEL + "env: §[A=1]}}", "wrong_type", "expected a mapping", ""),
    (MODEL + "env_file: §5}}", "wrong_type", "expected text", ""),
    (MODEL + "env_file: §/nowhere/x.env}}", "file_unreadable", "no such file", ""),
    (MODEL + "enabled: §yes}}", "wrong_type", "found the text 'yes'", "true and false"),
    (MODEL + "ready: §/health}}", "wrong_type", "expected a mapping", ""),
    (MODEL + "ready: {path: §health}}}", "bad_value", "not a path of an engine", "/health"),
    (MODEL + "ready: {path: §'http://x/health'}}}", "bad_value", "not a path of an engine", ""),
    (MODEL + "§sleep_steps: [{post: /s}]}}", "missing_key", "sleep_steps without wake_steps", "add wake_steps"),
    (MODEL + "§wake_steps: [{post: /s}]}}", "missing_key", "wake_steps without sleep_steps", ""),
    (MODEL + "sleep_steps: [{post: /s}], wake_steps: [§{}]}}", "missing_key", "a step needs post", ""),
    (MODEL + "sleep_steps: [{§get: /s, post: /s}], wake_steps: [{post: /s}]}}", "unknown_key", "'get'", ""),
    (MODEL + "sleep_steps: [{post: /s, timeout: §5}], wake_steps: [{post: /s}]}}", "bad_value", "needs a unit", "5s"),
    (MODEL + "sleep_steps: [{post: §'/${nam}'}], wake_steps: [{post: /s}]}}", "unknown_placeholder", "${name}", ""),
    ("models: {m: {engine: llamacpp, model: /x, sleep_steps: []}}", "", "", ""),
    (
        "models: {m: {engine: llamacpp, model: /x, §sleep_steps: [{post: /s}]}}",
        "bad_value",
        "for the engines command and attached",
        "remove",
    ),
    ("models: {m: {engine: llamacpp, model: /x, args: [§--port, '1']}}", "owned_flag", "--port", "remove it"),
    ("models: {m: {engine: llamacpp, model: /x, args: [§--model=/y]}}", "owned_flag", "--model", "use: model"),
    ("models: {m: {engine: llamacpp, model: /x, args: [a, §--cache-ram]}}", "owned_flag", "--cache-ram", "footprint.kv_max"),
    ("models: {m: {engine: vllm, model: /x, args: [§--tensor_par=2]}}", "owned_flag", "means --tensor-parallel-size", "devices.count"),
    ("models: {m: {engine: vllm, model: /x, args: [--, -t, --generation-config, x]}}", "", "", ""),
    ("models: {m: {engine: llamacpp, model: /x, args: [--cache-r]}}", "", "", ""),
    ("models: {m: {engine: vllm, model: /x, env: {§CUDA_VISIBLE_DEVICES: '0'}}}", "owned_flag", "set by hotseat", "devices.ids"),
    ("models: {m: {engine: llamacpp, model: /x, env: {CUDA_VISIBLE_DEVICES: '0'}}}", "", "", ""),
    (MODEL + "devices: {kind: §gpu}}}", "bad_value", "unknown kind", ""),
    (MODEL + "devices: {kind: §rngd}}}", "not_supported_yet", "rngd", ""),
    (MODEL + "devices: {count: §65}}}", "bad_value", "out of range", "at most 64"),
    (MODEL + "devices: {count: §0}}}", "bad_value", "out of range", ""),
    (MODEL + "devices: {memory: §40GiB}}}", "bad_value", "expected a minimum", 'write ">=40GiB"'),
    (MODEL + "devices: {memory: §'>=40G'}}}", "bad_value", "ambiguous", "40GiB"),
    (MODEL + "devices: {ids: [§cpu0]}}}", "unknown_device", "no device 'cpu0'", "discovered cards are called"),
    ("devices: {discover: []}\n" + MODEL + "devices: {ids: [§cpu0]}}}", "unknown_device", "no device 'cpu0'", "there is none"),
    (CPU + "}\n" + MODEL + "devices: {ids: [§cpu1]}}}", "unknown_device", "no device 'cpu1'", "'cpu0'"),
    (CPU + "}\n" + MODEL + "devices: {ids: [cpu0, §cpu0]}}}", "bad_value", "listed twice", ""),
    (MODEL + "footprint: {weights: §16G}}}", "bad_value", "ambiguous", ""),
    (MODEL + "footprint: {kv_min: §2GiB, kv_max: 1GiB}}}", "bad_value", "kv_min is larger than kv_max", ""),
    (MODEL + "levels: [§3]}}", "bad_value", "expected 1 or 2, found the number 3", "1 or 2"),
    (MODEL + "levels: §1}}", "wrong_type", "expected a list", ""),
    (MODEL + "levels: §[1, 1]}}", "bad_value", "listed twice", ""),
    (MODEL + "idle_sleep_after: §30}}", "bad_value", "needs a unit", "30s"),
    (MODEL + "awake: always, §idle_sleep_after: 5m}}", "bad_value", "contradict", ""),
    (MODEL + "awake: §sometimes}}", "bad_value", "expected auto or always", ""),
    (MODEL + 'awake: §[{days: mon-fri, hours: "08:30-19:00"}]}}', "not_supported_yet", "windows of time", "awake: auto"),
    (MODEL + "class: §urgent}}", "bad_value", "'interactive', 'standard' or 'batch'", ""),
    (MODEL + "max_wait: §forever}}", "bad_value", "expected a duration or auto", ""),
    (MODEL + "max_concurrent: §0}}", "bad_value", "out of range", "at least 1"),
    (MODEL + "start_timeout: §30}}", "bad_value", "needs a unit", ""),
    (MODEL + "§max_queued: 5}}", "unknown_key", "'max_queued' in models.m", ""),
    (MODEL + "§variants: [{engine: x}]}}", "not_supported_yet", "models.m.variants is not supported yet", "model of its own"),
    (MODEL + "§replicas: 2}}", "not_supported_yet", "models.m.replicas", "model of its own"),
    (MODEL + "§replicas: true}}", "not_supported_yet", "models.m.replicas", ""),
    (MODEL + "§kv: {host: 16GiB}}}", "not_supported_yet", "models.m.kv", ""),
    (MODEL + "§slo: {ttft: 2s}}}", "not_supported_yet", "models.m.slo", "max_wait"),
    (MODEL + "§filters: {strip: [x]}}}", "not_supported_yet", "models.m.filters", ""),
    (MODEL + "§apart_from: [x]}}", "not_supported_yet", "models.m.apart_from", ""),
    (MODEL + "§url: http://127.0.0.1:9}}", "bad_value", "url is for the engine attached", "remove"),
]

LATER: list[Case] = [
    ("§include: [models.d/*.yaml]", "not_supported_yet", "include is not supported yet", "one file"),
    ("§auth: required", "not_supported_yet", "auth is not supported yet", "loopback"),
    ("§keys_file: /etc/k", "not_supported_yet", "keys_file", ""),
    ("§policy: lru", "not_supported_yet", "policy", "remove it"),
    ("host: {§kv_memory: 1GiB}", "not_supported_yet", "host.kv_memory", ""),
    ("host: {§kv_disk: {path: /x}}", "not_supported_yet", "host.kv_disk", ""),
    ("host: {sleep_memory: §half}", "bad_value", "expected a size or auto, found the text 'half'", "64GiB, or auto"),
    ("host: {sleep_memory: §64G}", "bad_value", "ambiguous", "64GiB"),
    ("host: {sleep_memory: §true}", "wrong_type", "expected a size, found the boolean true", ""),
    ("host: {§sleep: 64GiB}", "unknown_key", "unknown key 'sleep' in host", "sleep_memory"),
    ("§notify: [{url: x}]", "not_supported_yet", "notify", ""),
    ("§jobs: {trickle: true}", "not_supported_yet", "jobs", ""),
    ("§allow_remote_commands: true", "not_supported_yet", "allow_remote_commands", ""),
]


@pytest.mark.parametrize("case", [*TOP, *LISTEN, *DEVICES, *ENGINES, *MODELS, *LATER], ids=lambda case: case[0].strip()[:70])
def test_one_error_at_its_place(case: Case) -> None:
    marked, code, message, fix = case
    text = marked.replace("§", "")
    problems = problems_of(text + "\n")
    if not code:
        assert problems == ()
        return
    assert len(problems) == 1, "\n".join(problem.text() for problem in problems)
    problem = problems[0]
    line = marked[: marked.index("§")].count("\n") + 1
    column = marked.split("\n")[line - 1].index("§") + 1
    assert (problem.line, problem.column, problem.code) == (line, column, code)
    assert message in problem.message
    assert fix in problem.fix
    assert problem.source == mask_secrets(text.split("\n")[line - 1])


@pytest.mark.parametrize(
    "text",
    [
        "policy: default",
        "auth: auto",
        "include: []",
        "notify: []",
        "jobs: {}",
        "host:",
        "host: {kv_memory: 0, kv_disk: {}}",
        "devices: {discover: }",
        MODEL + "variants: [], replicas: 1, apart_from: [], slo: , kv: {}, filters: {}}}",
    ],
)
def test_values_that_ask_for_nothing_are_accepted(text: str) -> None:
    assert problems_of(text) == ()


def test_every_code_that_is_documented_is_reached() -> None:
    reached = {case[1] for case in [*TOP, *LISTEN, *DEVICES, *ENGINES, *MODELS, *LATER]} - {""}
    elsewhere = {"file_too_large", "encoding", "yaml_syntax", "duplicate_key", "env_file"}  # test_config_yaml, test_config_load
    assert reached | elsewhere | {"engine_refuses"} == set(CODES)  # test_cli_config


BAD_EVERYWHERE = """\
listen: [127.0.0.1:1, 0.0.0.0:2, 5]
plan_intervall: 60s
listen: 127.0.0.1:3
gateway: {max_body: 64M, turn_factor: "4"}
devices:
  declared:
    - {id: cpu0, kind: cpu, memory: 4G}
    - {id: cpu0, kind: gpu, memory: 4GiB}
models:
  a:
    engine: llamacpp
    aliases: [b, 7, c]
    args: [--port, "80", 4096, --host=x]
    variants: [x]
  b:
    engine: comand
  c:
    engine: command
    command: [x, "${nope}"]
    devices: {ids: [cpu0, cpu7]}
"""


def test_all_errors_of_a_file_come_at_once_in_its_order() -> None:
    problems = problems_of(BAD_EVERYWHERE)
    assert [(p.line, p.code) for p in problems] == [
        (1, "not_supported_yet"),
        (1, "wrong_type"),
        (2, "unknown_key"),
        (3, "duplicate_key"),
        (4, "bad_value"),
        (4, "wrong_type"),
        (7, "bad_value"),
        (8, "name_taken"),
        (8, "bad_value"),
        (10, "missing_key"),
        (12, "name_taken"),
        (12, "wrong_type"),
        (12, "name_taken"),
        (13, "owned_flag"),
        (13, "wrong_type"),
        (13, "owned_flag"),
        (14, "not_supported_yet"),
        (16, "unknown_engine"),
        (19, "unknown_placeholder"),
        (20, "unknown_device"),
    ]


def test_a_wrong_value_is_not_also_called_missing() -> None:
    text = "models: {m: {engine: [x]}, n: {engine: llamacpp, model: [y]}, o: {engine: command, command: 5}}\n"
    assert {problem.code for problem in problems_of(text)} == {"wrong_type"}


def test_a_wrong_list_of_devices_does_not_make_its_users_wrong() -> None:
    text = "devices: {declared: 5, override: {cpu0: {}}}\n" + MODEL + "devices: {ids: [cpu0]}}}\n"
    assert [(problem.line, problem.code) for problem in problems_of(text)] == [(1, "wrong_type")]


def test_a_wrong_engine_does_not_make_its_models_wrong() -> None:
    text = "engines: {sglang: {}, x: {type: 5}}\nmodels: {a: {engine: sglang}, b: {engine: x}}\n"
    assert [(problem.line, problem.code) for problem in problems_of(text)] == [(1, "not_supported_yet"), (1, "wrong_type")]


def test_the_error_itself_is_one_sentence_with_a_remedy() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_text("polcy: x\nmodels: 5\n")
    error = caught.value
    assert error.code == "config_invalid"
    assert error.message == "2 errors, first /etc/hotseat/hotseat.yaml:1: unknown key 'polcy'"
    assert error.fix == "run: hotseat config check /etc/hotseat/hotseat.yaml"


def test_values_of_the_environment_never_reach_a_message() -> None:
    text = MODEL + "env: {API_TOKEN: 918273, B: 645372, A: '${env:HIDDEN}'}}}\n"
    for problem in problems_of(text):
        assert "918273" not in problem.message + problem.fix + problem.source
        assert "645372" not in problem.message + problem.fix


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a: " + "9" * 100_000,
        f"plan_interval: '{'9' * 300_000}'",
        f"gateway: {{max_body: '{'9' * 300_000}'}}",
        "a" * 300_000 + ": 1",
        "env_key" * 40_000 + ": 1",
        "gateway: {" + "key" * 100_000 + ": 1}",
        "models: {" + ", ".join(f"k{n}: 1" for n in range(2000)) + "}",
        "models: {" + ", ".join(f"k{n}: {{engine: 5}}" for n in range(2000)) + "}",
        f"models: {{m: {{engine: command, command: ['{'${' * 100_000}']}}}}",
        f'state_dir: "{"x" * 300_000}\\0"',
        f"listen: '{':' * 300_000}'",
        f"timezone: '{'x/' * 100_000}'",
        f"devices: {{headroom: '{'1' * 300_000}%'}}",
    ],
    ids=lambda text: text[:30],
)
def test_huge_values_cost_no_more_than_their_length(text: str) -> None:
    problems = problems_of(text)
    assert problems
    assert all(len(problem.text()) < 3000 for problem in problems)
