"""The way in: a path to a valid configuration, or to everything that is wrong with it."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from scheduler.config.build import build_devices, build_models, build_settings, default_state_dir
from scheduler.config.checks import check_listen, check_names, check_sections
from scheduler.config.checks_adapter import check_with_adapters
from scheduler.config.checks_devices import check_devices, check_wish
from scheduler.config.checks_model import check_engines, check_model
from scheduler.config.context import Context, Facts, Refusal
from scheduler.config.envfile import read_env_file
from scheduler.config.problems import ConfigInvalid, Problem
from scheduler.config.provenance import build_provenance
from scheduler.config.settings import Loaded, Settings
from scheduler.config.source import Source, read_source
from scheduler.config.validate import validate
from scheduler.config.yaml_data import read_document
from scheduler.domain.model import ModelSpec


def load(
    path: Path | None,
    *,
    owned_flags: Mapping[str, Mapping[str, str]],
    known_engines: Collection[str],
    environ: Mapping[str, str],
    refused_variable: Callable[[ModelSpec], Refusal | None] = lambda _spec: None,
    euid: int | None = None,
    home: Path | None = None,
) -> Loaded:
    """The configuration at ``path``; None = no file, all defaults.

    ``owned_flags``: per engine type, the flags its adapter sets itself -> the key to use instead. ``known_engines``: the
    types there are adapters for. ``refused_variable``: see :class:`scheduler.config.context.Facts`.

    Raises ConfigInvalid with all errors of the file; nothing else.
    """
    facts = Facts(
        owned_flags=owned_flags,
        known_engines=known_engines,
        environ=environ,
        home=home if home is not None else Path(environ.get("HOME") or os.path.expanduser("~")),
        euid=euid if euid is not None else os.geteuid(),
        refused_variable=refused_variable,
    )
    if path is None:
        return Loaded(path=None, settings=Settings(state_dir=default_state_dir(facts.euid, facts.home)))
    return load_source(read_source(path), facts)


def load_source(source: Source, facts: Facts) -> Loaded:
    """The configuration in ``source``. Raises ConfigInvalid."""
    problems: list[Problem] = []
    document = read_document(source, problems)
    if problems and document.data is None:
        raise ConfigInvalid(source.path, problems)
    context = Context(document, validate(document, problems), facts, problems)
    _check(context)
    if problems:
        raise ConfigInvalid(source.path, problems)
    settings = build_settings(context)
    return Loaded(
        path=source.path,
        settings=settings,
        models=MappingProxyType(build_models(context)),
        devices=build_devices(context),
        provenance=MappingProxyType(build_provenance(context, settings)),
    )


def check(
    path: Path,
    *,
    owned_flags: Mapping[str, Mapping[str, str]],
    known_engines: Collection[str],
    environ: Mapping[str, str],
    refused_variable: Callable[[ModelSpec], Refusal | None] = lambda _spec: None,
) -> Loaded | ConfigInvalid:
    """As :func:`load`, with the error as a value: what ``hotseat config check`` prints."""
    try:
        return load(path, owned_flags=owned_flags, known_engines=known_engines, environ=environ, refused_variable=refused_variable)
    except ConfigInvalid as error:
        return error


def _check(context: Context) -> None:
    check_listen(context)
    check_sections(context)
    check_devices(context)
    check_engines(context)
    check_names(context)
    for name in context.config.models:
        check_model(context, name)
        check_wish(context, name)
    _read_env_files(context)
    check_with_adapters(context)


def _read_env_files(context: Context) -> None:
    """Every env file once, however many models name it."""
    named = [(("engines", name, "env_file"), engine.env_file) for name, engine in context.config.engines.items()]
    named += [(("models", name, "env_file"), model.env_file) for name, model in context.config.models.items()]
    for loc, file in named:
        if file is None or file in context.env_files:
            continue
        context.env_files[file] = {}
        try:
            context.env_files[file] = read_env_file(context.resolve(file), context.problems)
        except ConfigInvalid as error:
            problem = error.problems[0]
            context.report(loc, problem.code, f"env_file {file}: {problem.message}", problem.fix)
