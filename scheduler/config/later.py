"""Keys of the specification whose feature does not exist yet: refused by name, never ignored in silence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Later:
    """``advice`` = what to do until then. Values in ``harmless`` ask for nothing and are accepted."""

    advice: str
    harmless: tuple[Any, ...] = (None,)


#: By path; ``*`` = any name, ``[]`` = any entry of a list.
LATER: Mapping[str, Later] = {
    "include": Later("put all models into one file", (None, [])),
    "auth": Later("remove it; only loopback addresses can be listened on", (None, "auto")),
    "keys_file": Later("remove it; only loopback addresses can be listened on"),
    "policy": Later("remove it", (None, "default")),
    "host.kv_memory": Later("remove it; KV caches end with the engine's process", (None, 0)),
    "host.kv_disk": Later("remove it; KV caches end with the engine's process", (None, {})),
    "notify": Later("remove it; watch the metrics or the event feed", (None, [])),
    "jobs": Later("remove it; batch work cannot be submitted yet", (None, {})),
    "allow_remote_commands": Later("remove it; models are defined in the file only", (None, False)),
    "devices.declared[].usage_command": Later("remove it; only the kind cpu can be declared, and it is measured", (None, [])),
    "devices.declared[].env": Later("remove it; put env into the model", (None, {})),
    "models.*.stop_command": Later("remove it; the engine's processes get TERM, then KILL", (None, [])),
    "models.*.filters": Later("remove it; set these parameters in the client", (None, {})),
    "models.*.apart_from": Later("remove it, or name different devices.ids", (None, [])),
    "models.*.variants": Later("keep one way to run it, or make each variant a model of its own", (None, [])),
    "models.*.replicas": Later("make each replica a model of its own", (None, 1)),
    "models.*.slo": Later("remove it; max_wait bounds the wait", (None, {})),
    "models.*.kv": Later("remove it; KV caches end with the engine's process", (None, {})),
}
