"""Engines: what there is to run models with, and in which version."""

import importlib.util
import re
import shutil
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from scheduler.cli.doctor.finding import Finding, fail, ok, warn

#: Engine type -> programs that the configuration names for it; an empty text is the adapter's own search.
Wanted = Mapping[str, Collection[str]]

_HEAD_BYTES = 1024
_VERSION = re.compile(r"^Version: (\S+)$", re.MULTILINE)
#: What installers write instead of a first line that would be too long for the kernel.
_EXEC = re.compile(r"^'''exec' \"?([^\"\s]+)\"?", re.MULTILINE)


def check_engines(search_path: str | None = None, wanted: Wanted | None = None) -> list[Finding]:
    """llama.cpp and vLLM: where they are found, and their versions. One that no model needs is no warning, as long as there is another."""
    wanted = wanted or {}
    vllm = shutil.which("vllm", path=search_path)
    findings = [_llamacpp(search_path, needed="" in wanted.get("llamacpp", ()), other=vllm is not None or bool(wanted.get("vllm")))]
    if vllm is not None:
        findings.append(_vllm(vllm))
    elif "" in wanted.get("vllm", ()):
        text = "vllm: not on PATH: models with engine vllm cannot start"
        findings.append(
            warn("engine", text, "install vLLM into an environment of its own and write engines: {vllm: {command: [/PATH/bin/vllm]}}")
        )
    elif not wanted.get("vllm"):  # else the configuration says where it is
        findings.append(ok("engine", "vllm: not on PATH; no model needs it"))
    return findings + [
        _named(kind, program, search_path) for kind in sorted(wanted) for program in sorted(wanted[kind]) if _findable(program)
    ]


def _llamacpp(search_path: str | None, *, needed: bool, other: bool) -> Finding:
    binary = shutil.which("llama-server", path=search_path)
    if binary:
        return ok("engine", f"llamacpp: {binary}")
    if importlib.util.find_spec("xllamacpp") is not None:
        return ok("engine", f"llamacpp: the wheel xllamacpp {installed('xllamacpp') or 'of an unknown version'}")
    text = "llamacpp: neither llama-server on PATH nor the wheel xllamacpp"
    if other and not needed:
        return ok("engine", f"{text}; no model needs it")
    return warn(
        "engine",
        f"{text}: models with engine llamacpp cannot start",
        "install llama.cpp, name it under engines, or: pip install 'hotseat[llamacpp]'",
    )


def _findable(program: str) -> bool:
    """Whether the doctor looks for it where the launcher will: not what a placeholder or the model's folder decides."""
    return bool(program) and "$" not in program and (program.startswith("/") or "/" not in program)


def _named(kind: str, program: str, search_path: str | None) -> Finding:
    """A program that the configuration names."""
    found = shutil.which(program, path=search_path)
    if found is None:
        fix = "correct `command` of the engine or the model, or make the file executable"
        return fail("engine", f"{kind}: {program} cannot be found or executed", fix)
    return _vllm(found) if kind == "vllm" and Path(found).name.startswith("vllm") else ok("engine", f"{kind}: {found}")


def _vllm(program: str) -> Finding:
    return ok("engine", f"vllm: {program}, version {vllm_version(Path(program)) or 'unknown (no metadata beside its Python)'}")


def installed(distribution: str) -> str | None:
    """The version of a distribution in this Python; None when there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def vllm_version(program: Path) -> str | None:
    """Its version, from the metadata beside the Python that its script names; None when that does not tell.

    ``vllm --version`` would tell as well, but it imports PyTorch, which takes many seconds.
    """
    try:
        with program.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    interpreter = _interpreter(head)
    if interpreter is None:
        return None
    # Not resolved: an environment's Python is a link, and what counts is the environment that it stands in.
    found = sorted(interpreter.parent.parent.glob("lib*/python3*/*-packages/vllm-*.dist-info"))
    for folder in found:
        try:
            match = _VERSION.search((folder / "METADATA").read_text("utf-8", "replace"))
        except OSError:
            continue
        if match is not None:
            return match[1]
    return found[0].name.removeprefix("vllm-").removesuffix(".dist-info") if found else None


def _interpreter(head: str) -> Path | None:
    first, _, rest = head.partition("\n")
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if not words:
        return None
    if Path(words[0]).name == "sh":
        match = _EXEC.search(rest)
        return Path(match[1]) if match is not None else None
    if Path(words[0]).name == "env":
        found = shutil.which(words[-1])
        return Path(found) if found is not None else None
    return Path(words[0])
