"""`hotseat status MODEL`: one card that explains a model, above all one that fails."""

from collections.abc import Iterable, Sequence

from scheduler.cli.render.facts import Json, View, age, clock, duration, gib, parse_time, requests, since, size, state, state_paint, where
from scheduler.cli.render.text import Paint, clean, flow, wrap

LABEL = 12
_INDENT = " " * LABEL
MAX_STARTS = 5
_WAITS = frozenset({"waiting_memory", "waiting_turn", "waiting_move", "store_unavailable"})


def render_card(model: Json, view: View) -> list[str]:
    """The card: state and attempts, where it is configured, why, fix, memory, starts, the decisive log line, what to do next."""
    lines = _headline(model, view)
    for label, text in (*_identity(model), *_why(model, view), *_memory(model), *_sleep(model), *_use(model, view)):
        lines += _row(label, text, view)
    lines += _starts(model, view)
    if model.get("log_line"):
        lines += [view.style.bad(line) for line in _row("log", clean(model["log_line"]), view)]
    return lines + _row("next", next_command(model), view)


def _row(label: str, text: str, view: View) -> list[str]:
    return wrap(f"{label:<{LABEL}}{text}", view.columns, _INDENT)


def _headline(model: Json, view: View) -> list[str]:
    error = model.get("error") or {}
    parts: list[tuple[str, Paint | None]] = [(clean(model["name"]), None), (state(model, view.now), state_paint(model, view.style))]
    if where(model) != "-":
        parts.append((f"on {where(model)}", None))
    attempts = error.get("attempts") or 0
    if attempts:
        parts.append((f"after {attempts} attempt{'' if attempts == 1 else 's'}", None))
    retry = parse_time(error.get("retry_at"))
    if retry is not None and retry > view.now:
        asked = "a request may try again at" if model.get("phase") == "failed" else "next try"
        parts.append((f"{asked} {clock(retry, view, seconds=True)}", None))
    return flow(parts, view.columns)


def _identity(model: Json) -> Iterable[tuple[str, str]]:
    yield "configured", source(model)
    engine = clean(model.get("engine", "?"))
    yield "engine", engine + (f"  {clean(model['model'])}" if model.get("model") else "")
    if model.get("aliases"):
        yield "aliases", clean(", ".join(model["aliases"]))
    for item in model.get("overrides") or ():
        until = f" until {item['until']}" if item.get("until") else ""
        yield "override", clean(f"{item.get('kind')} by {item.get('by')}{until}")


def source(model: Json) -> str:
    """Where a model is configured: ``FILE:LINE``, or ``api``."""
    return clean(str(model.get("source") or "unknown").removeprefix("file:"))


def _why(model: Json, view: View) -> Iterable[tuple[str, str]]:
    error, reason = model.get("error"), model.get("reason")
    if error:
        at = f" (at {clock(error['at'], view, seconds=True)})" if error.get("at") else ""
        yield "why", clean(f"{error.get('code')}: {error.get('message')}{at}")
        if error.get("fix"):
            yield "fix", clean(error["fix"])
        if reason and reason.get("code") in _WAITS:  # its time to try again has come, and something else is in the way now
            yield "waits", clean(f"{reason['code']}: {reason.get('text') or ''}")
    elif reason and reason.get("code") not in (None, "none"):
        text = f": {reason['text']}" if reason.get("text") else ""
        yield "why", clean(f"{reason['code']}{text}")
    eta = model.get("eta_s")
    if eta is not None and model.get("phase") != "awake":
        yield "expected", f"answers in about {duration(max(0.0, eta))}"


def _memory(model: Json) -> Iterable[tuple[str, str]]:
    known = model.get("memory") or {}
    measured, estimated, how = known.get("measured_bytes"), known.get("estimated_bytes"), known.get("source")
    parts = []
    if measured is not None:
        parts.append(f"measured {size(measured)}" + (f" (estimated {size(estimated)})" if estimated is not None else ""))
    elif estimated is not None:
        parts.append(f"{'declared' if how == 'declared' else 'estimated'} {size(estimated)}, never measured")
    else:
        parts.append("never tried")
    if known.get("start_peak_bytes"):
        parts.append(f"peak at start {size(known['start_peak_bytes'])}")
    parts += [f"asleep {level}: {size(kept)}" for level, kept in sorted((known.get("residue_bytes") or {}).items())]
    if model.get("claimed_bytes"):
        used = f", uses {size(model['used_bytes'])}" if model.get("used_bytes") is not None else ""
        parts.append(f"claims {size(model['claimed_bytes'])} now{used}")
    count = known.get("devices") or 1
    if count > 1:
        parts[0] = f"on each of {count} devices {parts[0]}"
        if model.get("claimed_bytes"):
            parts[-1] += ", together"
    yield "memory", "; ".join(parts)


def _sleep(model: Json) -> Iterable[tuple[str, str]]:
    known = model.get("sleep") or {}
    levels, denied = known.get("levels") or [], known.get("denied_levels") or []
    parts = [_level(known, level) for level in sorted(levels)]
    if denied:
        version = f" of version {clean(known['version'])}" if known.get("version") else ""
        which = f"level{'' if len(denied) == 1 else 's'} {' and '.join(map(str, sorted(denied)))}"
        parts.append(f"{which} not used: did not work with the engine{version} and these flags (hotseat story {clean(model['name'])})")
    if parts:
        yield "sleep", "; ".join(parts)


def _level(known: Json, level: int) -> str:
    """A sleep level, with what was measured of it. The keys of a map are texts in JSON."""
    host, enter, leave = ((known.get(key) or {}).get(str(level)) for key in ("host_bytes", "sleep_s", "wake_s"))
    told = [f"asleep in {duration(enter)}"] if enter is not None else []
    told += [f"awake in {duration(leave)}"] if leave is not None else []
    told += [f"{size(host)} of host memory"] if host else []
    return f"level {level}" + (f" ({', '.join(told)})" if told else "")


def _use(model: Json, view: View) -> Iterable[tuple[str, str]]:
    last = since(model.get("last_used_at"), view.now)
    ago = "never used" if last is None else f"last used {age(last)} ago"
    counters = model.get("counters") or {}
    counted = [(counters.get(key) or 0, key) for key in ("requests", "starts", "wakes", "sleeps")]
    totals = ", ".join(f"{count} {key.removesuffix('s') if count == 1 else key}" for count, key in counted if count)
    yield "requests", f"{requests(model)} running/waiting, {ago}" + (f"; {totals}" if totals else "")


def _starts(model: Json, view: View) -> list[str]:
    starts: Sequence[Json] = (model.get("starts") or ())[:MAX_STARTS]
    if not starts:
        return _row("starts", "none yet", view)
    lines: list[str] = []
    for index, start in enumerate(starts):
        text = f"#{start.get('launch')}  {clock(start.get('at'), view, seconds=True)}  {_took(start, view)}  {start.get('result')}"
        if start.get("exit"):
            text += f"  {start['exit']}"
        if (start.get("reason") or {}).get("code"):
            text += f"  {start['reason']['code']}"
        lines += _row("starts" if index == 0 else "", clean(text), view)
    return lines


def _took(start: Json, view: View) -> str:
    if start.get("duration_s") is not None:
        return duration(start["duration_s"])
    begun = parse_time(start.get("at"))
    running = start.get("result") == "running" and begun is not None
    return f"{duration(max(0.0, view.now - (begun or 0.0)))} so far" if running else "?"


def next_command(model: Json) -> str:
    """The command that helps most in this state."""
    name, phase = clean(model["name"]), model.get("phase")
    if not model.get("enabled", True):
        return "set enabled: true in the configuration"
    if (model.get("reason") or {}).get("code") == "does_not_fit":
        return "change the configuration as said above, then restart the daemon"
    if phase in ("failed", "backoff") and model.get("attached"):
        return f"mend the cause, then hotseat wake {name} (a request to it does the same)"
    if phase in ("failed", "backoff"):
        return f"hotseat logs {name}, mend the cause, then hotseat restart {name}"
    if phase in ("launching", "unknown"):
        return f"hotseat logs {name} -f"
    if phase in ("awake", "draining") and model.get("attached"):
        return f"hotseat sleep {name} makes room; its process is not hotseat's to end"
    if phase in ("awake", "draining"):
        return f"hotseat stop {name} gives back {size(model.get('used_bytes') or model.get('claimed_bytes'))}"
    if phase in ("stopped", "asleep") and (model.get("reason") or {}).get("code") in _WAITS:
        return "it comes as soon as nothing is in its way; hotseat devices shows who holds what"
    if phase in ("stopped", "asleep"):
        return f"hotseat wake {name} (a request to it does the same)"
    return f"hotseat story {name}"


def render_model(model: Json, view: View) -> list[str]:
    """`hotseat models show`: the card and what else the registry knows."""
    lines = render_card(model, view)
    extra = [
        ("description", clean(model.get("description") or "")),
        ("class", clean(model.get("class", ""))),
        ("goal", clean(model.get("goal", "")).replace(":", " ")),
        ("listed", "no: clients do not see it in /v1/models" if model.get("unlisted") else "yes"),
    ]
    for instance in model.get("instances") or ():
        text = f"{instance.get('id')}  {instance.get('phase')}  pid {instance.get('pid') or '-'}  {gib(instance.get('used_bytes'))} GiB"
        extra.append(("instance", clean(text + f"  since {clock(instance.get('since'), view, seconds=True)}")))
    for label, text in extra:
        if text:
            lines += _row(label, text, view)
    return lines
