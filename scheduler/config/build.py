"""A checked configuration to settings, devices and model specifications."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from scheduler.config.checks_model import COMMAND, LOADS_A_FILE, engine_type
from scheduler.config.context import Context
from scheduler.config.schema import DefaultsSection
from scheduler.config.schema_model import ModelSection
from scheduler.config.settings import DeclaredDevice, DeviceOverride, GatewaySettings, Limits, LogSettings, Settings
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import DeclaredFootprint, DeviceWish, HttpStep, ModelClass, ModelSpec
from scheduler.domain.placeholders import escape


def default_state_dir(euid: int, home: Path) -> Path:
    """Where the daemon keeps its data when the file does not say."""
    return Path("/var/lib/hotseat") if euid == 0 else home / ".local/state/hotseat"


def build_settings(context: Context) -> Settings:
    """Everything but devices and models."""
    config, gateway, defaults, facts = context.config, context.config.gateway, context.config.defaults, context.facts
    return Settings(
        state_dir=context.resolve(config.state_dir) if config.state_dir else default_state_dir(facts.euid, facts.home),
        listen=tuple(config.listen),
        timezone=config.timezone,
        plan_interval_s=config.plan_interval,
        gateway=GatewaySettings(
            keepalive_s=gateway.keepalive,
            max_body_bytes=gateway.max_body,
            interrupt=gateway.interrupt,
            turn_factor=gateway.turn_factor,
            on_exit=gateway.on_exit,
        ),
        limits=Limits(
            max_wait_s=defaults.max_wait,
            max_queued=defaults.max_queued,
            min_awake_s=defaults.min_awake,
            start_timeout_s=defaults.start_timeout,
            drain_timeout_s=defaults.drain_timeout,
        ),
        logs=LogSettings(size_bytes=config.logs.size, keep=config.logs.keep, total_bytes=config.logs.total),
        disk_min_free=config.disk.min_free,
        discover=tuple(config.devices.discover),
        headroom=config.devices.headroom,
        overrides=MappingProxyType(
            {DeviceId(name): DeviceOverride(use=own.use, headroom=own.headroom) for name, own in config.devices.override.items()}
        ),
        host_sleep_bytes=config.host.sleep_memory,
    )


def build_devices(context: Context) -> tuple[DeclaredDevice, ...]:
    """The declared devices, in the order of the file."""
    section = context.config.devices
    result = []
    for index, device in enumerate(section.declared):
        name, memory = device.id or "", device.memory or 0
        override = section.override.get(name)
        headroom = section.headroom if override is None or override.headroom is None else override.headroom
        result.append(
            DeclaredDevice(
                id=DeviceId(name),
                kind=device.kind or "",
                memory_bytes=memory,
                headroom_bytes=headroom.of(memory),
                use=override is None or override.use,
                source=_source(context, ("devices", "declared", index)),
            )
        )
    return tuple(result)


def build_models(context: Context) -> dict[ModelName, ModelSpec]:
    """The models, in the order of the file."""
    return {ModelName(name): _model(context, name, model) for name, model in context.config.models.items()}


def _model(context: Context, name: str, model: ModelSection) -> ModelSpec:
    kind = engine_type(context, model.engine or "")
    entry = context.config.engines.get(model.engine or "")
    program = _program(context, entry.command if entry is not None else ())
    # Of the engine type `command` only models have a program, so one given for the engine is the model's default.
    command = _program(context, model.command) or (program if kind == COMMAND else ())
    spec = ModelSpec(
        name=ModelName(name),
        engine=kind,
        engine_command=() if kind == COMMAND else program,
        engine_args=tuple(entry.args) if entry is not None else (),
        model=_weights(context, model.model or "", kind),
        aliases=tuple(model.aliases),
        description=model.description,
        enabled=model.enabled,
        unlisted=model.unlisted,
        command=command,
        args=tuple(model.args),
        env=_env(context, entry.env_file if entry is not None else None, model),
        cwd=str(context.resolve(model.cwd)) if model.cwd else "",
        url=model.url or "",
        upstream_model=model.upstream_model or "",
        ready_path=model.ready.path,
        sleep_steps=tuple(HttpStep(path=step.post, timeout_s=step.timeout) for step in model.sleep_steps),
        wake_steps=tuple(HttpStep(path=step.post, timeout_s=step.timeout) for step in model.wake_steps),
        devices=_wish(model),
        footprint=_footprint(model),
        levels=None if model.levels is None else tuple(sorted(model.levels)),
        always_awake=model.always_awake,
        model_class=ModelClass(model.model_class),
        source=_source(context, ("models", name)),
    )
    return _with_limits(context.config.defaults, model, spec)


def _with_limits(defaults: DefaultsSection, model: ModelSection, spec: ModelSpec) -> ModelSpec:
    return replace(
        spec,
        # `auto` at the model stands above a number in defaults, and both are None: only the key's presence tells them apart.
        max_wait_s=model.max_wait if "max_wait" in model.model_fields_set else defaults.max_wait,
        max_queued=defaults.max_queued,
        max_concurrent=model.max_concurrent,
        min_awake_s=defaults.min_awake,
        idle_sleep_after_s=model.idle_sleep_after,
        start_timeout_s=model.start_timeout if model.start_timeout is not None else defaults.start_timeout,
        drain_timeout_s=defaults.drain_timeout,
    )


def _wish(model: ModelSection) -> DeviceWish:
    wish = model.devices
    ids = tuple(DeviceId(device) for device in wish.ids)
    return DeviceWish(kind=wish.kind, count=wish.count, ids=ids, min_memory_bytes=wish.memory)


def _footprint(model: ModelSection) -> DeclaredFootprint:
    sizes = model.footprint
    return DeclaredFootprint(
        weights_bytes=sizes.weights,
        overhead_bytes=sizes.overhead,
        kv_min_bytes=sizes.kv_min,
        kv_max_bytes=sizes.kv_max,
        residue_bytes=sizes.residue,
    )


def _env(context: Context, engine_file: str | None, model: ModelSection) -> tuple[tuple[str, str], ...]:
    """Engine file, model file, ``env``: the later one wins. Files hold no placeholders, so their text is escaped."""
    merged: dict[str, str] = {}
    for file in (engine_file, model.env_file):
        if file is not None:
            merged.update({name: escape(value) for name, value in context.env_files[file].items()})
    merged.update(model.env)
    return tuple(sorted(merged.items()))


def _program(context: Context, words: Sequence[str]) -> tuple[str, ...]:
    """A command whose program, when it is written as a path from here (``./run``), starts at the folder of the file."""
    if not words or not words[0].startswith(("./", "../", "~/")):
        return tuple(words)
    return (str(context.resolve(words[0])), *words[1:])


def _weights(context: Context, model: str, kind: str) -> str:
    """The key ``model``: a path from here becomes absolute. Elsewhere ``a/b`` may be an id, but not for GGUF engines."""
    if model.startswith(("./", "../", "~/")) or (model and kind in LOADS_A_FILE):
        return str(context.resolve(model))
    return model


def _source(context: Context, loc: tuple[str | int, ...]) -> str:
    return f"file:{context.document.source.path.absolute()}:{context.document.line(loc)}"
