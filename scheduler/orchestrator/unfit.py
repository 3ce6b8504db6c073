"""Why a model can never be seated: the cause with its numbers, and what would change it."""

from scheduler.domain.claims import Source
from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import DeviceId, ModelName
from scheduler.domain.model import ModelSpec
from scheduler.domain.reasons import Code, Reason
from scheduler.domain.units import human_bytes, human_seconds
from scheduler.orchestrator.devices import BLIND
from scheduler.orchestrator.state import State
from scheduler.orchestrator.view import start_target
from scheduler.planner.feasible import fits_alone, most_bytes

#: A device that vanished may be back after a reset of its driver: for so long nobody is told that there is none, seconds.
RETURN_S = 120.0
#: Devices of this kind have the size that the configuration gives them.
_BUDGETED = "cpu"


def unreadable(state: State, model: ModelName) -> Reason | None:
    """Why nobody can say whether it ever fits: its devices cannot be listed at the moment, or one vanished a moment ago."""
    for kind in _kinds(state, state.models[model]):
        found = state.degraded.get(f"{BLIND}:{kind}")
        if found is not None:
            return Reason(Code.WAITING_MEMORY, f"devices of kind {kind} cannot be listed: {found[0]}", found[1])
    return _vanished(state, state.models[model])


def _vanished(state: State, spec: ModelSpec) -> Reason | None:
    """Whether a device is away on which it would have room, alone or with others."""
    need = start_target(state, spec.name).need_bytes
    for device, (info, since_s) in state.vanished.items():
        wanted = info.kind in _kinds(state, spec) and (not spec.devices.ids or device in spec.devices.ids)
        if wanted and state.now_s < since_s + RETURN_S and info.allocatable and fits_alone(need, (info,)):
            text = f"{device} ({info.name}) is not there any more; it is waited for up to {human_seconds(RETURN_S)}"
            return Reason(Code.WAITING_MEMORY, text, "look at the kernel log (dmesg) and at `nvidia-smi`")
    return None


def never_fits(state: State, model: ModelName) -> Reason | None:
    """Why it fits nowhere, even with everything else of ours put away; None when it may fit, or nobody can say now."""
    if unreadable(state, model) is not None:
        return None
    goal = start_target(state, model)
    if any(fits_alone(goal.need_bytes, (state.devices[d] for d in devices)) for devices in goal.sets):
        return None
    return _too_large(state, model, goal.need_bytes, goal.sets) if goal.sets else _no_device(state, state.models[model])


def _kinds(state: State, spec: ModelSpec) -> tuple[str, ...]:
    return (spec.devices.kind,) if spec.devices.kind else state.facts_of(spec.name).kinds


def _too_large(state: State, model: ModelName, need_bytes: int, sets: tuple[tuple[DeviceId, ...], ...]) -> Reason:
    largest = max((state.devices[d] for devices in sets for d in devices), key=most_bytes)
    footprint = state.facts_of(model).footprint
    weights = footprint.weights_bytes if footprint.weights_bytes + footprint.kv_min_bytes <= need_bytes else 0  # of another guess
    parts = {"weights": weights, "KV cache for one request of full length": footprint.kv_min_bytes}
    told = " and ".join(f"{human_bytes(size)} {what}" for what, size in parts.items() if size)
    text = (
        f"{model} needs {human_bytes(need_bytes)}{f' ({told})' if told else ''}; {largest.id}, the largest device it may use, "
        f"can give {human_bytes(max(0, most_bytes(largest)))} of {human_bytes(largest.capacity_bytes)}"
    )
    if need_bytes <= most_bytes(largest) + largest.headroom_bytes:
        kept = f"{text}, of which {human_bytes(largest.headroom_bytes)} are kept free by configuration"
        return Reason(Code.DOES_NOT_FIT, kept, "lower devices.headroom, or that of the device in devices.override")
    more = "a larger memory budget for the device" if largest.kind == _BUDGETED else "more cards (devices.count)"
    smaller = "a shorter context, a smaller quantisation"
    if footprint.source is Source.DECLARED:
        return Reason(Code.DOES_NOT_FIT, text, f"correct `footprint` of {model} if it says too much; or use {smaller}, or {more}")
    return Reason(Code.DOES_NOT_FIT, text, f"use {smaller}, or {more}")


def _no_device(state: State, spec: ModelSpec) -> Reason:
    cause, fix = _why_none(spec, list(state.devices.values()), _kinds(state, spec))
    return Reason(Code.DOES_NOT_FIT, f"{spec.name} has no device it may run on: {cause}", fix)


def _why_none(spec: ModelSpec, devices: list[DeviceInfo], kinds: tuple[str, ...]) -> tuple[str, str]:
    """(cause, fix): the first condition after which nothing is left."""
    wanted, every = spec.devices, ", ".join(d.id for d in devices) or "none at all"
    missing = sorted(set(wanted.ids) - {d.id for d in devices})
    if not devices and not missing:
        return "this host has none", "hotseat doctor says which cards are seen, and why not; a CPU is declared under devices.declared"
    left = [d for d in devices if not wanted.ids or d.id in wanted.ids]
    if not left:
        return f"there is no {' and no '.join(missing)}; devices are: {every}", "correct devices.ids; hotseat devices lists what there is"
    left = [d for d in left if d.kind in kinds]
    if not left:
        which = f" among {', '.join(wanted.ids)}" if wanted.ids else ""
        fix = "hotseat doctor says which cards are seen, and why not"
        if kinds == (_BUDGETED,):
            fix = "declare it: devices: {declared: [{id: cpu0, kind: cpu, memory: 16GiB}]}"
        return f"it wants the kind {' or '.join(kinds)}{which}; devices are: {every}", fix
    closed = [d for d in left if not d.allocatable]
    left = [d for d in left if d.allocatable]
    if not left:
        return "; ".join(f"{d.id} is no seat: {d.why_not}" for d in closed), "hotseat devices shows each device with its remedy"
    largest = max(left, key=lambda d: d.capacity_bytes)
    left = [d for d in left if d.capacity_bytes >= wanted.min_memory_bytes]
    if not left:
        least, most = human_bytes(wanted.min_memory_bytes), human_bytes(largest.capacity_bytes)
        return f"it wants {least} or more on each; {largest.id}, the largest, has {most}", "lower devices.memory, or remove it"
    gone = f"; not there: {', '.join(missing)}" if missing else ""
    only = f"it wants {wanted.count} equal devices at once; it may use {len(left)}: {', '.join(d.id for d in left)}{gone}"
    return only, "lower devices.count, or let it use more devices"
