"""Devices as the control API shows them."""

from collections.abc import Callable, Iterable, Iterator

from scheduler.api.schemas import Claim, Degraded, Device, DeviceDetail, Link, Stranger
from scheduler.domain.device import GONE, DeviceInfo, DeviceSample, Health
from scheduler.domain.ids import DeviceId, InstanceId, holder_of
from scheduler.domain.instance import Instance
from scheduler.domain.units import human_seconds
from scheduler.orchestrator.state import State

MISSING = "device_missing:"  # what the state says is degraded, before the id

_SEE_LOG = "see `hotseat logs`"
#: Health that a sample reported stays true when no further ones come.
_LASTING = GONE | {Health.DRIVER_MISMATCH}


def health_of(state: State, info: DeviceInfo) -> Health:
    """What is known of a device now: what its last sample said, or stale when that is too old to be evidence."""
    sample = state.samples.get(info.id)
    if sample is not None and (state.fresh_sample(info.id) is not None or sample.health in _LASTING):
        return sample.health
    return Health.STALE


def device_of(state: State, info: DeviceInfo, now_s: float, wall_at: Callable[[float], float]) -> Device:
    """One entry of the status. ``wall_at`` turns monotonic seconds into POSIX ones."""
    sample = state.samples.get(info.id)
    health = health_of(state, info)
    # Of a device that is not there the counts are 0 and mean nothing; a stale one shows what was seen last, and when.
    bytes_known = sample if sample is not None and sample.health in (Health.OK, Health.DRAINING) and health not in _LASTING else None
    trouble, fix = _trouble(sample, health, now_s)
    return Device(
        id=info.id,
        index=info.index,
        uuid=info.uuid or None,
        kind=info.kind,
        name=info.name,
        total_bytes=info.capacity_bytes or None,
        used_bytes=bytes_known.used_bytes if bytes_known else None,
        free_bytes=bytes_known.free_bytes if bytes_known else None,
        foreign_bytes=bytes_known.foreign_bytes if bytes_known else None,
        claimed_bytes=state.claimed_on(info.id),
        reserved_bytes=info.reserved_bytes,
        headroom_bytes=info.headroom_bytes,
        utilization_ratio=sample.utilization_ratio if sample else None,
        power_w=sample.power_w if sample else None,
        temperature_c=sample.temperature_c if sample else None,
        throttle=list(sample.throttle) if sample else [],
        health=health.value,
        trouble=trouble or None,
        fix=fix or None,
        sampled_at=wall_at(sample.started_at_s) if sample else None,
        estimated=sample.estimated if sample else False,
        source=(sample.source or None) if sample else None,
        parent=info.parent,
        islands=list(info.islands),
        numa_node=info.numa_node,
        pci=info.pci or None,
        allocatable=info.allocatable,
        why_not=info.why_not or None,
        max_processes=info.max_processes,
        facts=dict(info.facts),
        strangers=[Stranger(pid=s.pid, used_bytes=s.used_bytes, name=s.name or None) for s in (sample.strangers if sample else ())],
        instances=[i.id for i in state.instances.values() if info.id in i.devices],
    )


def missing_of(state: State) -> Iterator[Device]:
    """Devices that were there before and are not now, of which nothing but what is said of them is left."""
    for key, (message, fix, _) in state.degraded.items():
        device = DeviceId(key.removeprefix(MISSING))
        if key.startswith(MISSING) and device not in state.devices:
            yield Device(
                id=device,
                index=None,
                kind=None,
                name=None,
                total_bytes=None,
                claimed_bytes=state.claimed_on(device),
                health=Health.MISSING.value,
                trouble=message,
                fix=fix or None,
                allocatable=False,
                why_not="it is not there",
                instances=[i.id for i in state.instances.values() if device in i.devices],
            )


def missing_detail(state: State, device: Device) -> DeviceDetail:
    """Of one that is missing: who still has a claim there."""
    facts = {name: getattr(device, name) for name in Device.model_fields}
    return DeviceDetail(**facts, margin_bytes=0, claims=list(_claims(state, DeviceId(device.id), measured=False)))


def device_detail(state: State, info: DeviceInfo, now_s: float, wall_at: Callable[[float], float]) -> DeviceDetail:
    """One device with who holds what there and what it is linked with."""
    base = device_of(state, info, now_s, wall_at)
    facts = {name: getattr(base, name) for name in Device.model_fields}
    claims = list(_claims(state, info.id, measured=base.used_bytes is not None))
    return DeviceDetail(**facts, margin_bytes=info.margin_bytes, claims=claims, links=list(links_of(state, info)))


def _claims(state: State, device: DeviceId, *, measured: bool) -> Iterator[Claim]:
    sample = state.samples.get(device)
    own = sample.own if sample else {}
    # An attached engine is found before it is taken in: it holds something, and claims nothing.
    found = [Instance(id=InstanceId(holder)) for holder in own if InstanceId(holder) not in state.instances]
    for instance in [*state.instances.values(), *found]:
        claimed, used = instance.claim.on(device), own.get(holder_of(instance.id))
        if claimed == 0 and device not in instance.devices and not used:
            continue
        yield Claim(
            instance=instance.id,
            model=instance.model,
            phase=instance.phase.value,
            level=instance.level,
            claimed_bytes=claimed,
            used_bytes=used if measured else None,
        )


def links_of(state: State, info: DeviceInfo) -> Iterator[Link]:
    """The other devices of each island, each named once: where it is linked most tightly."""
    named: set[str] = {info.id}
    for level, island in enumerate(info.islands):
        others = [str(d.id) for d in state.devices.values() if d.islands[level : level + 1] == (island,) and d.id not in named]
        if others:
            named.update(others)
            yield Link(kind=island.partition(":")[0], island=island, devices=others)


def degraded_devices(state: State, now_s: float, said: Iterable[Degraded]) -> Iterator[Degraded]:
    """Devices that do not work as they should, unless that was ``said`` already.

    That a device which is no seat is not measured harms nobody.
    """
    told = {item.subject for item in said if item.code.startswith("device_") or item.code == Health.DRIVER_MISMATCH}
    for info in state.devices.values():
        health = health_of(state, info)
        if health is Health.OK or info.id in told or (health is Health.STALE and not info.allocatable):
            continue
        trouble, fix = _trouble(state.samples.get(info.id), health, now_s)
        code = health.value if health is Health.DRIVER_MISMATCH else f"device_{health.value}"
        yield Degraded(code=code, subject=info.id, message=trouble, fix=fix)


def _trouble(sample: DeviceSample | None, health: Health, now_s: float) -> tuple[str, str]:
    """(what is wrong, what to do), both empty when nothing is."""
    if health is Health.OK:
        return "", ""
    if health is Health.STALE:
        if sample is None:
            return "was not measured yet: nothing grows there", _SEE_LOG
        return f"was not measured for {human_seconds(max(0.0, now_s - sample.started_at_s))}: nothing grows there", _SEE_LOG
    said = sample.trouble if sample is not None else ""
    return said or f"the driver calls it {health.value.replace('_', ' ')}", (sample.fix if sample is not None else "") or _SEE_LOG
