"""Devices for tests of the command line: a machine on which everything that can be said of a device is said once."""

from scheduler.api.schemas import Claim, Degraded, Device, DeviceDetail, Link, Status, Stranger
from tests.support.fake_plane import T0
from tests.support.worlds import cpu, gpu, model, world

GIB = 1 << 30
_MODES = {"driver": "570.86.15", "compute capability": "8.0", "compute mode": "default", "persistence": "on", "node": "/dev/nvidia0"}
_ISLANDS = ["nvlink:0000:17:00.0", "pcie:0000:17:00.0", "numa:0000:17:00.0", "host"]


def machine() -> Status:
    """A seat, a card that is only watched, a MIG card and its instance, one that was lost, a stale one, a CPU, a missing one."""
    awake = model("qwen3-32b", "awake", on="gpu0", used_bytes=63 * GIB)
    sleepers = [model(f"small-{i}", "asleep", on="gpu0", level=1, used_bytes=GIB) for i in range(1, 4)]
    devices = [
        gpu(
            0,
            claimed_bytes=int(67.2 * GIB),
            reserved_bytes=GIB // 2,
            headroom_bytes=int(1.6 * GIB),
            temperature_c=61.0,
            instances=["qwen3-32b#0", *(f"small-{i}#0" for i in range(1, 4))],
        ),
        gpu(
            1,
            used_bytes=40 * GIB,
            free_bytes=40 * GIB,
            foreign_bytes=40 * GIB,
            claimed_bytes=0,
            utilization_ratio=1.0,
            temperature_c=84.0,
            throttle=["software thermal limit"],
            allocatable=False,
            why_not="devices.override says use: false",
        ),
        gpu(
            2,
            claimed_bytes=0,
            used_bytes=0,
            foreign_bytes=0,
            utilization_ratio=None,
            allocatable=False,
            why_not="MIG is on: its instances are the devices",
        ),
        gpu(
            0,
            id="gpu2m0",
            uuid="MIG-0",
            name="NVIDIA A100-SXM4-80GB MIG 3g.40gb",
            parent="gpu2",
            total_bytes=40 * GIB,
            used_bytes=GIB,
            foreign_bytes=0,
            claimed_bytes=0,
            utilization_ratio=None,
            power_w=None,
        ),
        lost(),
        gpu(
            4,
            claimed_bytes=0,
            health="stale",
            trouble="was not measured for 42 s: nothing grows there",
            fix="see `hotseat logs`",
            sampled_at=T0 - 42,
        ),
        cpu(),
        missing(),
    ]
    degraded = [
        Degraded(
            code="device_lost", subject="gpu3", since=T0 - 3600, message="it fell off the bus (Xid 79)", fix="look at dmesg, then reboot"
        ),
        Degraded(
            code="device_missing", subject="gpu9", since=T0 - 60, message="gpu9: was there before and is not now", fix="look at dmesg"
        ),
        Degraded(code="disk_low", subject="disk", since=T0 - 60, message="1 GiB free", fix="free some space"),
    ]
    return world([awake, *sleepers], devices=devices, degraded=degraded)


def lost() -> Device:
    """A card of which nothing is known any more but what it was."""
    nothing = dict.fromkeys(("used_bytes", "free_bytes", "foreign_bytes", "utilization_ratio", "power_w"))
    trouble = {"trouble": "it fell off the bus (Xid 79)", "fix": "look at dmesg, then reboot", "health": "lost"}
    return gpu(3, **nothing, **trouble, claimed_bytes=18 * GIB, instances=["coder#0"])


def missing() -> Device:
    """A card of yesterday, of which only the name is left."""
    return Device(
        id="gpu9",
        index=None,
        kind=None,
        name=None,
        total_bytes=None,
        health="missing",
        trouble="was there before and is not now",
        fix="look at dmesg",
        allocatable=False,
        why_not="it is not there",
    )


def detail(device: Device, **update: object) -> DeviceDetail:
    facts: dict[str, object] = {key: getattr(device, key) for key in Device.model_fields}
    return DeviceDetail.model_validate({"margin_bytes": int(1.6 * GIB), **facts, **update})


def busy_card() -> DeviceDetail:
    """A seat at work: four models, two strangers, links of two kinds, one process at a time."""
    claims = [
        Claim(instance=f"small-{i}#0", model=f"small-{i}", phase="asleep", level=1, claimed_bytes=GIB, used_bytes=GIB) for i in (1, 2)
    ]
    long = "organisation/Some-Model-Name-235B-A22B-Instruct-2507-GGUF:Q4_K_M"
    claims += [
        Claim(instance="qwen3-32b#0", model="qwen3-32b", phase="awake", claimed_bytes=64 * GIB, used_bytes=int(63.2 * GIB)),
        Claim(instance=f"{long}#0", model=long, phase="launching", claimed_bytes=int(1.2 * GIB)),
    ]
    return detail(
        machine().devices[0],
        free_bytes=int(8.3 * GIB),
        pci="0000:17:00.0",
        numa_node=0,
        islands=_ISLANDS,
        source="nvml_v2",
        estimated=True,
        facts=_MODES,
        max_processes=1,
        throttle=["power cap"],
        strangers=[Stranger(pid=4711, name="python"), Stranger(pid=812, used_bytes=int(0.4 * GIB), name="Xorg\x1b[2J"), Stranger(pid=9)],
        claims=claims,
        links=[
            Link(kind="nvlink", island="nvlink:0000:17:00.0", devices=["gpu1", "gpu2", "gpu3"]),
            Link(kind="host", island="host", devices=["gpu4"]),
        ],
    )


def lost_card() -> DeviceDetail:
    """The card of a lost device, where a model's claim is still open."""
    claim = Claim(instance="coder#0", model="coder", phase="stopping", claimed_bytes=18 * GIB)
    return detail(lost(), total_bytes=None, claims=[claim], sampled_at=None, margin_bytes=0, allocatable=False, why_not="it is lost")
