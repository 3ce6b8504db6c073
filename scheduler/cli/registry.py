"""The commands: what they are called, what they do in a line, where they live, examples. Importing this is cheap."""

from typing import NamedTuple


class Command(NamedTuple):
    """``module`` has ``arguments(parser, command)`` and ``run(context)``; it is imported when the command is used.

    ``talks`` = it talks to the daemon, so it takes --url and --state-dir to find it.
    """

    name: str
    summary: str
    module: str
    examples: tuple[str, ...]
    talks: bool = True


_BASE = "scheduler.cli.commands."

COMMANDS: tuple[Command, ...] = (
    Command("serve", "run the daemon", _BASE + "serve", ("hotseat serve", "hotseat serve --config hotseat.yaml"), talks=False),
    Command(
        "status",
        "what is seated where, and what is wrong; with MODEL: its card",
        _BASE + "status",
        ("hotseat status", "hotseat status -w", "hotseat status qwen3-8b", "hotseat status --json | jq '.models[].phase'"),
    ),
    Command("models ls", "list all models", _BASE + "models", ("hotseat models ls", "hotseat models ls --json")),
    Command("models show", "everything known about one model", _BASE + "models", ("hotseat models show qwen3-8b",)),
    Command(
        "devices ls",
        "what there is to sit on, and who uses it",
        _BASE + "devices",
        ("hotseat devices", "hotseat devices --json | jq '.items[].free_bytes'"),
    ),
    Command("devices show", "one device: its memory line by line, links, modes, health", _BASE + "devices", ("hotseat devices show gpu0",)),
    Command("wake", "make a model ready to answer", _BASE + "actions", ("hotseat wake qwen3-8b", "hotseat wake qwen3-8b --no-wait")),
    Command("sleep", "put a model to sleep", _BASE + "actions", ("hotseat sleep qwen3-8b", "hotseat sleep qwen3-8b --level 1")),
    Command("stop", "end a model's process", _BASE + "actions", ("hotseat stop qwen3-8b", "hotseat stop qwen3-8b --now")),
    Command("restart", "stop and start a model; clears its failures", _BASE + "actions", ("hotseat restart qwen3-8b",)),
    Command("story", "what happened to a model, and why", _BASE + "story", ("hotseat story qwen3-8b", "hotseat story qwen3-8b -n 200")),
    Command(
        "logs",
        "a model's engine log; without MODEL the daemon's own",
        _BASE + "logs",
        ("hotseat logs qwen3-8b -f", "hotseat logs qwen3-8b -n 500 --launch 12", "hotseat logs"),
    ),
    Command("events", "what happened lately", _BASE + "events", ("hotseat events -n 50", "hotseat events -f --json")),
    Command("doctor", "check this machine and the daemon", _BASE + "doctor", ("hotseat doctor", "hotseat doctor --json")),
    Command("config check", "check a configuration file", _BASE + "config", ("hotseat config check hotseat.yaml",), talks=False),
    Command("demo", "three real models share one small machine", _BASE + "demo", ("hotseat demo", "hotseat demo --keep"), talks=False),
    Command("version", "print the version", _BASE + "version", ("hotseat version",)),
)

#: Other words for a command or a group.
ALIASES: dict[str, str] = {
    "ps": "status",
    "start": "wake",
    "model": "models",
    "list": "models ls",
    "models list": "models ls",
    "device": "devices",
    "devices list": "devices ls",
}
#: What a group alone means.
DEFAULTS: dict[str, str] = {"models": "models ls", "devices": "devices ls"}

BY_NAME: dict[str, Command] = {command.name: command for command in COMMANDS}
GROUPS: frozenset[str] = frozenset(name.split()[0] for name in BY_NAME if " " in name)
