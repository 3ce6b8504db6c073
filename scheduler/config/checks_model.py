"""Checks of single models and engines across their keys."""

import re
from collections.abc import Iterator, Sequence

from scheduler.config.checks import ENGINES_LATER
from scheduler.config.context import Context, nearest
from scheduler.config.envfile import name_problem
from scheduler.config.schema_model import ModelSection
from scheduler.config.yaml_data import Loc
from scheduler.domain.placeholders import env_names, uses

ATTACHED = "attached"  # the engine type of somebody else's processes
_LOCAL_URL = re.compile(r"http://(127\.0\.0\.1|localhost):[1-9]\d{0,4}/?")
COMMAND = "command"  # the engine type whose program the operator writes
#: Engines that cannot do without the key ``model`` -> what it may be.
NEEDS_MODEL = {"llamacpp": "/path/to/weights.gguf", "vllm": "/path/to/folder, or the id of a model"}
#: Engines whose model is always a file, so that every relative path is one.
LOADS_A_FILE = frozenset({"llamacpp"})
#: Engines whose flags may be abbreviated: argparse takes every unambiguous beginning of one for the flag itself.
ABBREVIATES = frozenset({"vllm"})
#: Engine -> (end of a file that it is given by mistake, what it wants, the engine that takes such a file).
MISTAKEN = {
    "vllm": (".gguf", "the folder of a model, with config.json and safetensors", "llamacpp"),
    "llamacpp": (".safetensors", "a GGUF file", "vllm"),
}


def check_engines(context: Context) -> None:
    """That every entry of ``engines`` has a type there is an adapter for, and gives no flag the adapter owns."""
    for name, engine in context.config.engines.items():
        loc = ("engines", name)
        if context.checked.is_bad(*loc, "type"):
            continue
        kind = engine.type or name
        if kind in context.facts.known_engines:
            _check_flags(context, (*loc, "args"), engine.args, kind)
        elif engine.type is None and kind not in ENGINES_LATER:
            fix = f"add type: one of {_available(context)}"
            context.report(loc, "unknown_engine", f"{name!r} is no built-in engine, so it needs a type", fix, key=True)
        else:
            _unknown_type(context, (*loc, "type") if engine.type else loc, kind, key=engine.type is None)
        _check_environ(context, [((*loc, "command"), engine.command), ((*loc, "args"), engine.args)])


def check_model(context: Context, name: str) -> None:
    """One model: engine, program, steps, environment."""
    model = context.config.models[name]
    loc = ("models", name)
    kind = _check_engine(context, loc, model)
    if kind is not None:
        _check_program(context, loc, model, kind)
        _check_flags(context, (*loc, "args"), model.args, kind)
        _check_variables(context, loc, model, kind)
        _check_steps(context, loc, model, kind)
        _check_url(context, loc, model, kind)
    for variable in model.env:
        trouble = name_problem(variable)
        if trouble is not None:
            context.report((*loc, "env", variable), "bad_name", *trouble, key=True)
    _check_environ(context, _texts(loc, model))
    _check_agreement(context, loc, model)


def engine_type(context: Context, engine: str) -> str:
    """The adapter type behind an engine name."""
    entry = context.config.engines.get(engine)
    return entry.type or engine if entry is not None else engine


def _check_engine(context: Context, loc: Loc, model: ModelSection) -> str | None:
    """The model's engine type; None when it is not known, which has been reported here or at the engine's entry."""
    if model.engine is None:
        if not context.given(*loc, "engine"):
            context.report(loc, "missing_key", f"model {loc[-1]!r} has no engine", f"add engine: one of {_available(context)}", key=True)
        return None
    kind = engine_type(context, model.engine)
    if kind in context.facts.known_engines:
        return None if context.checked.is_bad("engines", model.engine) else kind
    if model.engine not in context.config.engines and not context.checked.is_bad("engines", model.engine):
        _unknown_type(context, (*loc, "engine"), model.engine)
    return None


def _unknown_type(context: Context, loc: Loc, kind: str, *, key: bool = False) -> None:
    if kind in ENGINES_LATER:
        message = f"engine {kind} is not supported yet"
        context.report(loc, "not_supported_yet", message, f"available now: {_available(context)}", key=key)
    else:
        known = sorted({*context.facts.known_engines, *context.config.engines})
        context.report(loc, "unknown_engine", f"no engine {kind!r}", nearest(kind, known), key=key)


def _available(context: Context) -> str:
    return ", ".join(sorted(context.facts.known_engines))


def _check_program(context: Context, loc: Loc, model: ModelSection, kind: str) -> None:
    entry = context.config.engines.get(model.engine or "")
    command = model.command or (entry.command if entry is not None and kind == COMMAND else [])
    unsure = context.checked.is_bad(*loc, "command") or context.checked.is_bad("engines", model.engine or "")
    if kind == COMMAND and not command and not unsure:
        fix = 'add command: [PROGRAM, ..., "${port}"]'
        context.report(loc, "missing_key", f"model {loc[-1]!r}: the engine {COMMAND} needs a command", fix, key=True)
    if kind in NEEDS_MODEL and model.model is None and not command and not unsure and not context.given(*loc, "model"):
        fix = f"add model: {NEEDS_MODEL[kind]}"
        context.report(loc, "missing_key", f"model {loc[-1]!r}: the engine {kind} needs the key model", fix, key=True)
    if model.model is not None and not command and not unsure:
        _check_format(context, (*loc, "model"), model.model, kind)
    if command and not command[0].strip():
        context.report((*loc, "command"), "bad_value", "the first word of a command is the program; it is empty", "name the program")
    texts = [*command, *model.args, *(entry.args if entry is not None else ()), *model.env.values()]
    if command and not unsure and not context.checked.is_bad(*loc) and not any(uses(text, "port") for text in texts):
        message = f"model {loc[-1]!r}: nothing tells the program its port"
        context.report((*loc, "command"), "missing_port", message, "put ${port} into command, args or env")


def _check_format(context: Context, loc: Loc, path: str, kind: str) -> None:
    """That an engine is not given the files of another one; a command of the operator's own may take what it likes."""
    end, wanted, other = MISTAKEN.get(kind, ("", "", ""))
    if end and path.lower().endswith(end):
        fix = f"write engine: {other}" if other in context.facts.known_engines else f"give it {wanted}"
        context.report(loc, "bad_value", f"the engine {kind} takes {wanted}, not a file that ends in {end}", fix)


def _check_flags(context: Context, loc: Loc, args: Sequence[str], kind: str) -> None:
    owned = context.facts.owned_flags.get(kind, {})
    for index, word in enumerate(args):
        written = word.partition("=")[0]
        # Both llama.cpp and vLLM take --like_this for --like-this.
        flag = f"--{written[2:].replace('_', '-')}" if written.startswith("--") else written
        begun = kind in ABBREVIATES and len(flag) > len("--") and flag.startswith("--")
        meant = flag if flag in owned else next((name for name in owned if begun and name.startswith(flag)), None)
        if meant is not None:
            message = f"{written} is set by hotseat itself" if meant == flag else f"{written} means {meant}, which is set by hotseat itself"
            context.report((*loc, index), "owned_flag", message, f"remove it and use: {owned[meant]}" if owned[meant] else "remove it")


def _check_variables(context: Context, loc: Loc, model: ModelSection, kind: str) -> None:
    owned = context.facts.owned_flags.get(kind, {})
    for name in model.env:
        if name in owned:
            fix = f"remove it and use: {owned[name]}" if owned[name] else "remove it"
            context.report((*loc, "env", name), "owned_flag", f"{name} is set by hotseat itself", fix, key=True)


def _check_steps(context: Context, loc: Loc, model: ModelSection, kind: str) -> None:
    for key in ("sleep_steps", "wake_steps"):
        steps = getattr(model, key)
        for index, step in enumerate(steps):
            place = (*loc, key, index)
            if not step.post and not context.given(*place, "post"):
                context.report(place, "missing_key", "a step needs post", "write {post: /path}")
        if steps and kind not in (COMMAND, ATTACHED):
            message = f"{key} is for the engines {COMMAND} and {ATTACHED}; {kind} knows its own calls"
            context.report((*loc, key), "bad_value", message, "remove it", key=True)
    for key, other in (("sleep_steps", "wake_steps"), ("wake_steps", "sleep_steps")):
        if kind in (COMMAND, ATTACHED) and getattr(model, key) and not getattr(model, other) and not context.given(*loc, other):
            context.report((*loc, key), "missing_key", f"{key} without {other}", f"add {other}", key=True)


def _check_url(context: Context, loc: Loc, model: ModelSection, kind: str) -> None:
    if kind != ATTACHED:
        if model.url is not None:
            message = f"url is for the engine {ATTACHED}; an engine of type {kind} is started by hotseat, on a port it chooses"
            context.report((*loc, "url"), "bad_value", message, "remove it", key=True)
        return
    example = "write url: http://127.0.0.1:PORT"
    if model.url is None:
        if not context.given(*loc, "url"):
            context.report(loc, "missing_key", f"model {loc[-1]!r}: the engine {ATTACHED} needs the key url", example, key=True)
    elif _LOCAL_URL.fullmatch(model.url) is None:
        context.report((*loc, "url"), "bad_value", f"{model.url!r} is not a plain HTTP address of this host", example)
    if not model.devices.ids and not context.given(*loc, "devices", "ids"):
        message = f"model {loc[-1]!r}: it is not started by hotseat, which has to be told the devices it sits on"
        context.report(loc, "missing_key", message, "add devices: {ids: [gpu0]}", key=True)
    for key in ("command", "args", "env", "env_file", "cwd", "model"):
        if context.given(*loc, key):
            context.report((*loc, key), "bad_value", f"{key} has no effect on the engine {ATTACHED}", "remove it", key=True)


def _check_environ(context: Context, texts: Sequence[tuple[Loc, Sequence[str] | dict[str, str]]]) -> None:
    """That every ``${env:NAME}`` is set."""
    for loc, group in texts:
        items: Iterator[tuple[str | int, str]] = iter(group.items()) if isinstance(group, dict) else iter(enumerate(group))
        for part, text in items:
            for variable in env_names(text):
                if variable not in context.facts.environ:
                    message = f"the environment variable {variable} of ${{env:{variable}}} is not set"
                    fix = f"set {variable} in the environment of the daemon (and of this check)"
                    context.report((*loc, part), "unknown_placeholder", message, fix)


def _texts(loc: Loc, model: ModelSection) -> list[tuple[Loc, Sequence[str] | dict[str, str]]]:
    return [
        ((*loc, "command"), model.command),
        ((*loc, "args"), model.args),
        ((*loc, "env"), model.env),
        ((*loc, "sleep_steps"), [step.post for step in model.sleep_steps]),
        ((*loc, "wake_steps"), [step.post for step in model.wake_steps]),
    ]


def _check_agreement(context: Context, loc: Loc, model: ModelSection) -> None:
    """Keys of one model that contradict each other."""
    footprint = model.footprint
    if footprint.kv_min is not None and footprint.kv_max is not None and footprint.kv_min > footprint.kv_max:
        context.report((*loc, "footprint", "kv_min"), "bad_value", "kv_min is larger than kv_max", "lower kv_min or raise kv_max")
    if model.always_awake and model.idle_sleep_after is not None:
        message = "awake: always and idle_sleep_after contradict each other"
        context.report((*loc, "idle_sleep_after"), "bad_value", message, "remove one of them", key=True)
    if model.levels is not None and len(set(model.levels)) != len(model.levels):
        context.report((*loc, "levels"), "bad_value", "a level is listed twice", "remove one")
