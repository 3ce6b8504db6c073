"""The schema of the configuration file, outermost first. Meanings and defaults here are what the reference shows."""

from typing import Annotated, Literal

from pydantic import Field

from scheduler.config.fields import Section, key
from scheduler.config.schema_model import ModelSection
from scheduler.config.settings import DEFAULT_PORT, Listen, Share
from scheduler.config.values import Addresses, Argv, Auto, AutoSize, Duration, Name, Part, Positive, PositiveSize, Template, TimeZone
from scheduler.domain.units import GIB, MIB


class GatewaySection(Section):
    """``gateway:``"""

    keepalive: Positive = key(5.0, "duration", "A streaming request that waits gets a comment line each so long.", shown="5s")
    max_body: PositiveSize = key(64 * MIB, "size", "Largest request body; larger ones get 413.", shown="64MiB")
    interrupt: Literal["never", "after_max_wait"] = key(
        "never",
        "never or after_max_wait",
        "Whether a running answer may be cut for a request that has waited its `max_wait`.",
        shown="never",
    )
    turn_factor: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = key(
        4.0, "number", "A turn of a model lasts at least so many times the seconds of the switch, while others wait.", shown="4"
    )
    on_exit: Literal["keep", "stop"] = key("keep", "keep or stop", "What happens to engines when the daemon ends.", shown="keep")


class EngineSection(Section):
    """One entry of ``engines:``"""

    type: Name | None = key(None, "name", "The adapter. Default: the key of this entry.")
    command: Argv = key(list, "list of words", "The program that runs this engine. Default: the adapter's own search.")
    env_file: Name | None = key(None, "path", "File of NAME=VALUE lines for the environment of its engines.")
    args: list[Template] = key(list, "list of words", "Arguments for every model of this engine, before the model's own.")


class DeclaredSection(Section):
    """One entry of ``devices.declared``."""

    id: Name | None = key(None, "id", "Required. Name of the device, for example cpu0.")
    kind: Name | None = key(None, "kind", "Required. Only `cpu` for now.")
    memory: PositiveSize | None = key(None, "size", "Required. Memory that models may use together.")


class OverrideSection(Section):
    """One entry of ``devices.override``."""

    use: bool = key(True, "true or false", "false: watched, never scheduled, and not missed when it is not there any more.", shown="true")
    headroom: Part | None = key(None, "percentage or size", "Headroom of this device.", shown="devices.headroom")


class DevicesSection(Section):
    """``devices:``"""

    discover: list[str] = key(
        lambda: ["nvidia"],
        "list of kinds",
        "Kinds of device that are looked for at start; one that is not there is no error. `[]` = none. Only `nvidia` for now.",
        shown="[nvidia]",
    )
    declared: list[DeclaredSection] = key(list, "list of devices", "Devices that cannot be discovered, above all the CPU.")
    headroom: Part = key(Share(ratio=0.02), "percentage or size", "Part of every device that stays empty.", shown="2%")
    override: dict[str, OverrideSection] = key(
        dict, "mapping by device id", "Settings of single devices, declared or discovered (`gpu0`, `gpu1m0`)."
    )


class HostSection(Section):
    """``host:``"""

    sleep_memory: AutoSize = key(
        None,
        "size or auto",
        "Most host memory that level-1 sleepers keep weights in; the next one goes deeper. auto = half of what is available at start.",
        shown="auto",
    )


class DiskSection(Section):
    """``disk:``"""

    min_free: Part = key(
        Share(ratio=0.05),
        "percentage or size",
        "Free space beside `state_dir`; below it old logs are dropped and the status says `disk_low`.",
        shown="5%",
    )


class LogsSection(Section):
    """``logs:``"""

    size: PositiveSize = key(64 * MIB, "size", "Largest log file of an engine.", shown="64MiB")
    keep: Annotated[int, Field(ge=0, le=1000)] = key(5, "number", "Older log files kept for each model.", shown="5")
    total: PositiveSize = key(4 * GIB, "size", "Most that all logs take together.", shown="4GiB")


class DefaultsSection(Section):
    """``defaults:``"""

    max_wait: Auto = key(None, "duration or auto", "How long a request may wait for its model.", shown="auto")
    max_queued: Annotated[int, Field(ge=1)] = key(512, "number", "Requests that may wait for one model; more get 429.", shown="512")
    min_awake: Duration = key(30.0, "duration", "A model that has work stays awake at least so long after it woke.", shown="30s")
    start_timeout: Positive = key(900.0, "duration", "How long a start may take.", shown="15m")
    drain_timeout: Positive = key(600.0, "duration", "How long running requests of a model may hold up its stop.", shown="10m")


class ConfigSection(Section):
    """The whole file."""

    listen: Addresses = key(
        lambda: [Listen("127.0.0.1", DEFAULT_PORT)], "HOST:PORT or a list", "Where the daemon listens.", shown="127.0.0.1:11500"
    )
    state_dir: Name | None = key(None, "path", "Folder of the daemon's own data.", shown="/var/lib/hotseat (root), ~/.local/state/hotseat")
    timezone: TimeZone | None = key(None, "time zone", "Time zone of windows and displays.", shown="the host's")
    plan_interval: Positive = key(60.0, "duration", "How often the plan is made anew.", shown="60s")
    gateway: GatewaySection = key(GatewaySection, "section", "The data plane.")
    engines: dict[str, EngineSection] = key(dict, "mapping by name", "Engines beside the built-in ones, or settings of those.")
    devices: DevicesSection = key(DevicesSection, "section", "Devices and what is kept free on them.")
    host: HostSection = key(HostSection, "section", "Memory of the machine itself.")
    disk: DiskSection = key(DiskSection, "section", "Disk space.")
    logs: LogsSection = key(LogsSection, "section", "Logs of engines. Bodies of requests are never logged.")
    defaults: DefaultsSection = key(DefaultsSection, "section", "What a model gets that does not say.")
    models: dict[str, ModelSection] = key(dict, "mapping by name", "The models.")
