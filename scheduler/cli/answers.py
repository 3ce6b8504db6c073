"""What an answer must have for a command to go on with it: another server's JSON must not be taken for a daemon's."""

from collections.abc import Mapping
from typing import Any

#: Key of the answer -> what its value must be. Only what commands rely on: later versions may add, and null is not missing.
Shape = Mapping[str, type | tuple[type, ...]]

_TEXT_OR_NULL = (str, type(None))

ANYTHING: Shape = {}
VERSION: Shape = {"version": str}
STATUS: Shape = {"version": str, "ready": bool, "models": list, "devices": list}
MODEL: Shape = {"name": str, "phase": str, "engine": str}
DEVICE: Shape = {"id": str, "kind": _TEXT_OR_NULL, "health": str}
PAGE: Shape = {"items": list, "has_more": bool, "after": _TEXT_OR_NULL}
LOG: Shape = {"lines": list, "offset": int, "launch": (int, type(None))}
ACTION: Shape = {"id": str, "verb": str, "model": str, "state": str, "created_at": str}

_PROBLEM = "urn:hotseat:problem:"


def has_shape(answer: Any, shape: Shape) -> bool:
    """Whether ``answer`` is an object with all of these keys."""
    return isinstance(answer, dict) and all(key in answer and isinstance(answer[key], kind) for key, kind in shape.items())


def is_problem(answer: Any) -> bool:
    """Whether ``answer`` is an error of a daemon, not one of another server."""
    return isinstance(answer, dict) and str(answer.get("type", "")).startswith(_PROBLEM)
