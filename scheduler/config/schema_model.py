"""The schema of one entry under ``models:``."""

from typing import Annotated, Literal

from pydantic import Field

from scheduler.config.fields import Section, key
from scheduler.config.values import (
    Argv,
    Auto,
    Awake,
    MinimumSize,
    Name,
    Never,
    Positive,
    PositiveSize,
    Size,
    Template,
    Text,
    UrlPath,
    UrlTemplate,
)

Level = Literal[1, 2]


class ReadySection(Section):
    """``ready:``"""

    path: UrlPath = key("", "path", "HTTP path that answers 200 once the engine can serve. Default: what the engine's adapter knows.")


class StepSection(Section):
    """One entry of ``sleep_steps`` and ``wake_steps``."""

    post: UrlTemplate = key("", "path", "Path on the engine that gets an empty POST. Placeholders are allowed.")
    timeout: Positive = key(60.0, "duration", "How long the answer may take.", shown="60s")


class WishSection(Section):
    """``devices:`` of a model."""

    kind: str | None = key(
        None, "kind", "Kind of device to sit on. Default: that of `ids`, else the first kind its engine runs on that this host has."
    )
    count: Annotated[int, Field(ge=1, le=64)] = key(
        1,
        "number",
        "How many devices one instance spans, all or none of them; more than 1 for the engines `vllm` and `command`.",
        shown="1",
    )
    memory: MinimumSize = key(0, 'text ">=SIZE"', "Sit only on devices with at least this much memory.")
    ids: list[str] = key(list, "list of ids", "Sit only on these devices, declared or discovered. Default: any of the kind.")


class FootprintSection(Section):
    """``footprint:``"""

    weights: PositiveSize | None = key(None, "size", "Weights on the device.")
    overhead: Size | None = key(None, "size", "Context, activations and buffers beside the weights.")
    kv_min: Size | None = key(None, "size", "KV cache for one request of full length.")
    kv_max: Size | None = key(None, "size", "KV cache it may use at most.")
    residue: Size | None = key(None, "size", "What it keeps on the device while it sleeps.")


class ModelSection(Section):
    """One model."""

    engine: Name | None = key(None, "name", "Required. A key of `engines`, or a built-in engine.")
    model: Name | None = key(
        None,
        "path or id",
        "What the engine loads: a GGUF file (`llamacpp`), a folder or an id (`vllm`). Required by both unless `command` is set.",
    )
    aliases: list[str] = key(list, "list of names", "Further names that requests may use.")
    description: Text = key("", "text", "Shown by `hotseat models show`.")
    enabled: bool = key(True, "true or false", "false: the model is known but answers `model_disabled`.", shown="true")
    unlisted: bool = key(False, "true or false", "true: usable, but not in `/v1/models`.", shown="false")
    command: Argv = key(
        list, "list of words", "The program to start. Required by the engine `command`; elsewhere it replaces the adapter's own."
    )
    args: list[Template] = key(list, "list of words", "Arguments added to the engine's. Flags the adapter sets itself are refused.")
    env: dict[str, Template] = key(dict, "mapping of texts", "Environment of the engine, above both env files.")
    env_file: Name | None = key(None, "path", "File of NAME=VALUE lines, above the engine's `env_file`.")
    cwd: Name | None = key(None, "path", "Working folder of the engine.")
    url: Name | None = key(None, "http://127.0.0.1:PORT", "Engine `attached`, required: where somebody else's engine on this host answers.")
    upstream_model: Name | None = key(None, "text", "The name the engine knows the model by, when it is not ours.")
    ready: ReadySection = key(ReadySection, "section", "How to see that the engine is ready.")
    sleep_steps: list[StepSection] = key(list, "list of steps", "Engines `command` and `attached`: the calls that put it to sleep.")
    wake_steps: list[StepSection] = key(list, "list of steps", "Engines `command` and `attached`: the calls that wake it.")
    devices: WishSection = key(WishSection, "section", "Where the model may sit.")
    footprint: FootprintSection = key(
        FootprintSection, "section", "Bytes per device, as far as you know them. What is missing is estimated, then measured."
    )
    levels: list[Level] | None = key(
        None,
        "list of 1, 2",
        "Sleep levels allowed besides stopped; `[]` = only stop. Default: those of its engine that were seen to free memory.",
    )
    idle_sleep_after: Never = key(None, "duration or never", "Put it away after this long without a request.", shown="never")
    always_awake: Awake = key(
        False,
        "auto or always",
        "always: start it with the daemon, and again whenever there is room; an idle one still leaves for a request that needs its room.",
        shown="auto",
        name="awake",
    )
    model_class: Literal["interactive", "standard", "batch"] = key(
        "interactive", "interactive, standard or batch", "Priority of its requests, most urgent first.", shown="interactive", name="class"
    )
    max_wait: Auto = key(None, "duration or auto", "How long a request may wait for this model.", shown="defaults.max_wait")
    max_concurrent: Annotated[int, Field(ge=1)] | None = key(
        None, "number", "Requests sent to the engine at once; the excess waits. Default: the engine's own limit."
    )
    start_timeout: Positive | None = key(None, "duration", "How long a start may take.", shown="defaults.start_timeout")
