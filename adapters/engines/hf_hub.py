"""Where a model's files are: a folder, or a snapshot of an id like ``org/name`` in a Hugging Face hub cache. Blocks."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from scheduler.domain.errors import HotseatError
from scheduler.domain.model import ModelSpec
from scheduler.domain.placeholders import expand

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_TRUE: Final = frozenset({"1", "on", "yes", "true"})


def folder_of(spec: ModelSpec) -> Path:
    """``model`` as a path; a relative one counts from the model's ``cwd``."""
    return Path(os.path.abspath(Path(spec.cwd) / spec.model))


def is_id(spec: ModelSpec) -> bool:
    """Whether ``model`` is the id of a model that the engine fetches itself: it looks like one, and no such path is there."""
    return _ID.fullmatch(spec.model) is not None and not os.path.exists(folder_of(spec))


def environment(spec: ModelSpec) -> dict[str, str]:
    """The model's own ``env`` with its placeholders filled in; a variable with one that has no value is left out."""
    found = {}
    for name, text in spec.env:
        try:
            found[name] = expand(text, {}, os.environ)
        except HotseatError:
            continue  # the launch will say so; here it only names a place to look
    return found


def is_offline(env: Mapping[str, str]) -> bool:
    """Whether an engine with ``env`` may not fetch anything."""
    return any(env.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def hub_cache(env: Mapping[str, str]) -> Path | None:
    """The hub cache that a process with ``env`` uses; None when ``env`` does not say where its home is."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if env.get(name):
            return Path(env[name], below)
    if env.get("XDG_CACHE_HOME"):
        return Path(env["XDG_CACHE_HOME"], "huggingface", "hub")
    return Path(env["HOME"], ".cache", "huggingface", "hub") if env.get("HOME") else None


def find_snapshot(cache: Path, model_id: str, revision: str = "") -> Path | None:
    """The newest complete look of ``model_id`` in ``cache``: the commit that ``revision`` (default ``main``) stands for, else the newest
    snapshot. None when there is none."""
    folder = cache / f"models--{model_id.replace('/', '--')}"
    for candidate in _candidates(folder, revision or "main"):
        if os.path.isdir(candidate):
            return candidate
    return None


def _candidates(folder: Path, revision: str) -> Iterator[Path]:
    snapshots = folder / "snapshots"
    if "/" not in revision and not revision.startswith("."):
        yield snapshots / revision  # a commit
    try:
        commit = (folder / "refs" / revision).read_bytes()[:100].decode(errors="replace").strip()
    except (OSError, ValueError):
        commit = ""
    if re.fullmatch(r"[0-9a-f]{6,64}", commit):
        yield snapshots / commit
    try:
        yield from sorted((path for path in snapshots.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime, reverse=True)
    except (OSError, ValueError):
        return


def find_folder(spec: ModelSpec, revision: str = "") -> Path | None:
    """Where the files of ``spec`` can be looked at: its folder, or a snapshot in the engine's cache, else in the daemon's own (the same id
    has the same sizes). None when they are nowhere yet."""
    if not spec.model:
        return None
    if not is_id(spec):
        return folder_of(spec)
    for env in (environment(spec), os.environ):
        cache = hub_cache(env)
        found = find_snapshot(cache, spec.model, revision) if cache is not None else None
        if found is not None:
            return found
    return None
