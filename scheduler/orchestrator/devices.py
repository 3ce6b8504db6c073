"""What happens to devices: they come, go, report faults, fall off the bus; and what others use of them over time."""

from collections.abc import Collection, Mapping, Sequence

from scheduler.domain.device import GONE, DeviceInfo, DeviceSample, Health
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import CauseId, DeviceId
from scheduler.domain.instance import GroupLost, Instance, may
from scheduler.domain.model import DeviceWish
from scheduler.domain.reasons import Code, Reason
from scheduler.orchestrator import lifecycle
from scheduler.orchestrator.context import Context
from scheduler.orchestrator.effects import CutLeases
from scheduler.orchestrator.events import DevicesChanged
from scheduler.orchestrator.state import State
from scheduler.orchestrator.view import restless

#: How long the most that others used counts when it is planned ahead, seconds (scheduling.md section 1).
FOREIGN_WINDOW_S = 600.0

#: Code of a family whose devices cannot be listed.
BLIND = "devices_unreadable"

#: What a device that is not well is called in the list of what is degraded, and in the event feed.
HEALTH_CODES = {
    Health.DRAINING: "device_draining",
    Health.LOST: "device_lost",
    Health.MISSING: "device_missing",
    Health.DRIVER_MISMATCH: "driver_mismatch",
}


def on_devices_changed(ctx: Context, event: DevicesChanged) -> None:
    """The set of a family's devices is another one: ids stay with their uuids, who vanished is called missing."""
    state = ctx.state
    now = {info.id: info for info in event.devices}
    for device, info in [(d, i) for d, i in state.devices.items() if i.kind == event.kind]:
        if device not in now:
            del state.devices[device]
            state.vanished[device] = (info, state.now_s)
            last = state.samples.pop(device, None)
            state.foreign.pop(device, None)
            for code in HEALTH_CODES.values():  # whatever it complained about, it is gone
                state.degraded.pop(f"{code}:{device}", None)
            miss(state, device, info)
            text = f"{device} ({info.name}) is not there any more"
            if last is None or last.health is not Health.MISSING:  # else a measurement was first to miss it, and that was told
                ctx.tell("device_missing", device, text)
            _lose_all(ctx, device, Reason(Code.DEVICE_LOST, text, "look at the kernel log (dmesg)"))
    for device, info in now.items():
        if device not in state.devices:
            ctx.tell("device_found", device, f"{device} ({info.name}) is there")
        state.degraded.pop(f"device_missing:{device}", None)
        state.vanished.pop(device, None)
    others = {d: i for d, i in state.devices.items() if i.kind != event.kind}
    state.devices = {**others, **now}


def blind(state: State, kind: str, known: Mapping[str, DeviceId], error: HotseatError) -> list[DeviceInfo]:
    """A family that cannot be listed now: the daemon stays, what runs there goes on, and nothing new starts until it can be.

    Its known devices stand in, without a size.
    """
    key = f"{BLIND}:{kind}"
    state.degraded[key] = (error.message, error.fix, state.degraded[key][2] if key in state.degraded else state.wall)
    health = Health.DRIVER_MISMATCH if error.code == Health.DRIVER_MISMATCH.value else Health.STALE
    infos = [
        DeviceInfo(id=device, kind=kind, name="", index=index, uuid=uuid, capacity_bytes=0)
        for index, (uuid, device) in enumerate(sorted(known.items(), key=lambda item: item[1]))
    ]
    for info in infos:
        state.samples[info.id] = DeviceSample(
            device=info.id,
            started_at_s=state.now_s,
            used_bytes=0,
            free_bytes=0,
            health=health,
            trouble=error.message,
            fix=error.fix,
        )
    return infos


def seat_kinds(wish: DeviceWish, able: Sequence[str], here: Collection[str], kind_of: Mapping[DeviceId, str]) -> tuple[str, ...]:
    """The kinds of device a model may sit on: those of the devices it names, else the first that its engine runs on and this host has.

    ``able`` are the engine's kinds, preferred first. One of them is chosen for good, since sizes and sleep levels are those of a
    kind: a full card is no reason to start on the CPU what was sized for a card.
    """
    if wish.kind:
        return (wish.kind,)
    named = {kind_of[device] for device in wish.ids if device in kind_of}
    wanted = [kind for kind in able if kind in (named or here)]
    return tuple(wanted if named else wanted[:1]) or tuple(able)


def miss(state: State, device: DeviceId, info: DeviceInfo | None = None) -> None:
    """Say that a device that was known is not there."""
    name = f" ({info.name})" if info is not None else ""
    text = f"{device}{name} was there before and is not now"
    gone = "if it was taken out for good, say use: false of it in devices.override and restart hotseat"
    fix = f"look at the kernel log (dmesg) and at `nvidia-smi`; {gone}"
    state.degraded[f"device_missing:{device}"] = (text, fix, state.wall)


def note(ctx: Context, sample: DeviceSample) -> None:
    """Take in one sample: what others use, the device's health and what it reported."""
    state, device = ctx.state, sample.device
    before = state.samples.get(device)
    state.samples[device] = sample
    moving = any(device in i.devices and restless(i) for i in state.instances.values())
    moving |= sample.started_at_s < state.vacated_s.get(device, float("-inf")) + state.policy.stop_settle_s
    if sample.health in (Health.OK, Health.DRAINING) and not moving:  # else bytes that nobody holds any more may be ours
        _note_foreign(state, sample)
    for news in sample.news:
        ctx.tell(news.kind, device, news.message)
    old = before.health if before is not None else Health.OK
    if sample.health is not old:
        state.degraded.pop(f"{HEALTH_CODES.get(old, '')}:{device}", None)
        if sample.health in HEALTH_CODES:
            ctx.tell(HEALTH_CODES[sample.health], device, f"{device}: {sample.trouble}")
        else:
            ctx.tell("device_back", device, f"{device} is well again")
    if sample.health in HEALTH_CODES:
        key = f"{HEALTH_CODES[sample.health]}:{device}"
        since = state.degraded[key][2] if key in state.degraded else state.wall
        state.degraded[key] = (f"{device}: {sample.trouble}", sample.fix, since)


def _note_foreign(state: State, sample: DeviceSample) -> None:
    """Keep the falling edge of what others used within the window: the first entry is the most."""
    edge = state.foreign.setdefault(sample.device, [])
    while edge and edge[-1][1] <= sample.foreign_bytes:
        edge.pop()
    edge.append((sample.started_at_s, sample.foreign_bytes))
    while edge[0][0] < sample.started_at_s - FOREIGN_WINDOW_S:
        edge.pop(0)


def leave_dead(ctx: Context) -> None:
    """Who sits on a device that is lost has lost its engine: requests end with an error, the group is killed.

    Its claim ends with it: on the lost device at once, on healthy members of a gang when they were measured.
    """
    for instance in list(ctx.state.instances.values()):
        dead = [d for d in instance.devices if is_gone(ctx.state, d) and d in ctx.state.devices]
        if dead and may(instance, GroupLost):
            sample = ctx.state.samples[dead[0]]
            text = f"{', '.join(dead)} is lost: {sample.trouble}" if sample.trouble else f"{', '.join(dead)} is lost"
            _lose(ctx, instance, Reason(Code.DEVICE_LOST, text, sample.fix or "look at the kernel log (dmesg)"))


def _lose_all(ctx: Context, device: DeviceId, reason: Reason) -> None:
    """A device that went while this daemon looked takes its engines along: no answer will ever come from there."""
    for instance in list(ctx.state.instances.values()):
        if device in instance.devices and may(instance, GroupLost):
            _lose(ctx, instance, reason)


def _lose(ctx: Context, instance: Instance, reason: Reason) -> None:
    live = ctx.state.live_of(instance.id)
    if live.leases:
        ctx.emit(CutLeases(leases=tuple(sorted(live.leases)), cause=CauseId("rule:device_lost")))
    lifecycle.fence(ctx, instance, reason)


def is_gone(state: State, device: DeviceId) -> bool:
    """Whether nothing will ever be measured there again, as far as can be told now."""
    sample = state.samples.get(device)
    return device not in state.devices or (sample is not None and sample.health in GONE)
