"""What an action did and how to undo it, in one line each."""

from scheduler.cli.render.facts import Json, duration, short, size
from scheduler.cli.render.text import clean

_AIMS = {"wake": "awake", "sleep": "asleep", "stop": "stopped", "restart": "awake"}


def effect(action: Json) -> list[str]:
    """``slept coder: 17.1 GiB freed in 2.9 s; undo: hotseat wake coder``, and a line for each other model it touched."""
    name, verb = clean(action["model"]), str(action["verb"])
    if action.get("changed") is False:
        return [f"{name} is already {_state_word(action)}; nothing was done"]
    where = f" on {clean(','.join(action['devices']))}" if action.get("devices") and verb in ("wake", "restart") else ""
    level = f" at level {action['level']}" if action["verb"] == "sleep" and action.get("level") is not None else ""
    line = f"{_done_word(action)} {name}{where}{level}{_bytes(action)} in {duration(action.get('duration_s'))}"
    cut = action.get("interrupted") or 0
    if cut:
        line += f", {cut} request{'' if cut == 1 else 's'} cut short"
    lines = [f"{line}; {_undo(action, name)}"]
    return lines + [f"  also: {clean(item.get('model'))} {clean(item.get('action'))}" for item in action.get("also") or ()]


def _state_word(action: Json) -> str:
    word = clean(action.get("to_phase") or _AIMS.get(str(action["verb"]), "there")).replace("_", " ")
    return f"{word} at level {action['level']}" if word == "asleep" and action.get("level") is not None else word


def _done_word(action: Json) -> str:
    if action["verb"] == "wake":
        return "woke" if action.get("from_phase") in ("asleep", "waking", "falling_asleep", "draining") else "started"
    return {"sleep": "slept", "stop": "stopped", "restart": "restarted"}.get(str(action["verb"]), "did")


def _bytes(action: Json) -> str:
    if action.get("freed_bytes") is not None and action["verb"] in ("sleep", "stop"):
        return f": {size(action['freed_bytes'])} freed"
    if action.get("taken_bytes") is not None and (action["verb"] == "wake" or (action["verb"] == "restart" and _was_empty(action))):
        return f": {size(action['taken_bytes'])}"
    return ""


def _was_empty(action: Json) -> bool:
    """Whether all that it takes now it took by this action; else the difference says nothing to anybody."""
    return action.get("from_phase") in ("stopped", "backoff", "failed", None)


def _undo(action: Json, name: str) -> str:
    if action["verb"] == "wake":
        kept = _done_word(action) == "woke" or action.get("attached")  # somebody else's process is never stopped
        return f"undo: hotseat {'sleep' if kept else 'stop'} {name}"
    if action["verb"] == "restart":
        return "nothing to undo"
    return f"undo: hotseat wake {name}"


def waiting_line(action: Json) -> str:
    """Where a running action stands: ``wake coder: launching 12/40s``."""
    progress = action.get("progress") or {}
    head = f"{action['verb']} {clean(action['model'])}"
    if not progress:
        return f"{head}: begun"
    elapsed, eta = float(progress.get("elapsed_s") or 0.0), progress.get("eta_s")
    times = f"{short(elapsed)}s" if eta is None else f"{short(elapsed)}/{elapsed + max(0.0, eta):.0f}s"
    note = f" ({clean(progress['text'])})" if progress.get("text") else ""
    return f"{head}: {clean(progress.get('phase', '')).replace('_', ' ')} {times}{note}"
