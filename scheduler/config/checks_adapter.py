"""Checks that only an engine's adapter can make, of models that are in order otherwise."""

from scheduler.config.build import build_models
from scheduler.config.context import Context
from scheduler.config.yaml_data import Loc
from scheduler.domain.model import DeviceWish, ModelSpec


def check_with_adapters(context: Context) -> None:
    """That no model has a variable with which its engine cannot be started on the cards that are looked for."""
    for name, spec in build_models(context).items():
        unsure = spec.engine not in context.facts.known_engines or context.checked.is_bad("models", name)
        if unsure or not _may_sit_on_a_card(context, spec.devices):
            continue
        refused = context.facts.refused_variable(spec)
        if refused is not None:
            variable, error = refused
            context.report(_where(context, spec, variable), "engine_refuses", error.message, error.fix, key=True)


def _may_sit_on_a_card(context: Context, wish: DeviceWish) -> bool:
    """Declared devices are no cards; what is looked for may be one."""
    if wish.kind is not None:
        return wish.kind in context.config.devices.discover
    declared = {device.id for device in context.config.devices.declared}
    return bool(context.config.devices.discover) and not (wish.ids and declared.issuperset(wish.ids))


def _where(context: Context, spec: ModelSpec, variable: str) -> Loc:
    """The place that decides: the model's own variable, else its file, else the file of its engine."""
    model = context.config.models[spec.name]
    if variable in model.env:
        return ("models", spec.name, "env", variable)
    if model.env_file is not None and variable in context.env_files[model.env_file]:
        return ("models", spec.name, "env_file")
    return ("engines", model.engine or "", "env_file")
