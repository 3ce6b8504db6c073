"""What the control API says of devices: seats or not, measured, stale, lost; who sits there and what they are linked with."""

from dataclasses import replace

import pytest

from scheduler.api.schemas import Degraded, Device
from scheduler.cli.render.devices import render_device
from scheduler.cli.render.facts import View
from scheduler.daemon.device_status import degraded_devices, device_detail, device_of, missing_detail, missing_of
from scheduler.domain.claims import Claim
from scheduler.domain.device import DeviceInfo, DeviceSample, Health, Stranger
from scheduler.domain.ids import DeviceId, InstanceId, holder_of
from scheduler.domain.instance import Instance, Phase
from scheduler.domain.units import GIB
from scheduler.orchestrator.state import State

NOW = 1000.0
GPU0, GPU1, GPU2 = DeviceId("gpu0"), DeviceId("gpu1"), DeviceId("gpu2")
CODER = InstanceId("coder#0")


def card(index: int, **update: object) -> DeviceInfo:
    info = DeviceInfo(
        id=DeviceId(f"gpu{index}"),
        kind="nvidia",
        name="NVIDIA H200",
        index=index,
        uuid=f"GPU-{index}",
        capacity_bytes=140 * GIB,
        reserved_bytes=GIB,
        headroom_bytes=3 * GIB,
        islands=("nvlink:a", f"pcie:{index // 2}", "numa:0", "host"),
        pci=f"0000:{index:02x}:00.0",
        numa_node=0,
        facts=(("driver", "570.86.15"),),
    )
    return replace(info, **update)  # type: ignore[arg-type]  # the tests name fields


def sample(device: DeviceId, **update: object) -> DeviceSample:
    found = DeviceSample(
        device=device,
        started_at_s=NOW - 0.5,
        used_bytes=20 * GIB,
        free_bytes=119 * GIB,
        foreign_bytes=2 * GIB,
        own={holder_of(CODER): 18 * GIB},
        temperature_c=61.0,
        source="nvml_v2",
        strangers=(Stranger(pid=77, used_bytes=None, name="Xorg"), Stranger(pid=78, used_bytes=2 * GIB)),
    )
    return replace(found, **update)  # type: ignore[arg-type]


def state(*infos: DeviceInfo, samples: tuple[DeviceSample, ...] = ()) -> State:
    seated = Instance(id=CODER, since_s=0.0, phase=Phase.AWAKE, devices=(GPU0,), claim=Claim(device_bytes={GPU0: 19 * GIB}))
    return State(
        now_s=NOW,
        devices={info.id: info for info in infos},
        samples={s.device: s for s in samples},
        instances={CODER: seated},
    )


def shown(world: State, device: DeviceId) -> Device:
    return device_of(world, world.devices[device], NOW, lambda at: at + 1e9)


def test_a_measured_seat() -> None:
    device = shown(state(card(0), samples=(sample(GPU0),)), GPU0)
    assert (device.total_bytes, device.used_bytes, device.free_bytes, device.foreign_bytes) == (140 * GIB, 20 * GIB, 119 * GIB, 2 * GIB)
    assert (device.claimed_bytes, device.reserved_bytes, device.headroom_bytes) == (19 * GIB, GIB, 3 * GIB)
    assert (device.health, device.trouble, device.fix, device.source) == ("ok", None, None, "nvml_v2")
    assert (device.temperature_c, device.numa_node, device.pci, device.facts) == (61.0, 0, "0000:00:00.0", {"driver": "570.86.15"})
    assert [(s.pid, s.used_bytes, s.name) for s in device.strangers] == [(77, None, "Xorg"), (78, 2 * GIB, None)]
    assert device.sampled_at == 1e9 + NOW - 0.5
    assert device.instances == ["coder#0"]
    assert not device.estimated
    assert shown(state(card(0), samples=(sample(GPU0, estimated=True),)), GPU0).estimated


def test_what_is_not_known_is_null_and_no_key_is_missing() -> None:
    device = shown(state(card(0, capacity_bytes=0, reserved_bytes=0, pci="", numa_node=None, facts=())), GPU0)
    said = device.model_dump()
    assert set(said) == set(Device.model_fields)
    unknown = {"total_bytes", "used_bytes", "free_bytes", "foreign_bytes", "power_w", "temperature_c", "utilization_ratio", "sampled_at"}
    assert {key for key in unknown | {"source", "pci", "numa_node", "why_not", "parent", "max_processes"} if said[key] is not None} == set()
    assert (device.health, device.trouble) == ("stale", "was not measured yet: nothing grows there")


def test_a_stale_device_shows_what_was_seen_last_and_since_when() -> None:
    device = shown(state(card(0), samples=(sample(GPU0, started_at_s=NOW - 42),)), GPU0)
    assert (device.health, device.used_bytes) == ("stale", 20 * GIB)
    assert device.trouble == "was not measured for 42 s: nothing grows there"


@pytest.mark.parametrize("age_s", [0.5, 500.0])
@pytest.mark.parametrize("health", [Health.LOST, Health.MISSING, Health.DRIVER_MISMATCH])
def test_a_device_that_is_gone_has_no_bytes_however_old_the_news(health: Health, age_s: float) -> None:
    gone = sample(
        GPU0, health=health, started_at_s=NOW - age_s, used_bytes=0, free_bytes=0, foreign_bytes=0, trouble="Xid 79", fix="reboot"
    )
    device = shown(state(card(0), samples=(gone,)), GPU0)
    assert (device.health, device.trouble, device.fix) == (health.value, "Xid 79", "reboot")
    assert (device.used_bytes, device.free_bytes, device.foreign_bytes) == (None, None, None)
    assert device.total_bytes == 140 * GIB


def test_a_draining_device_is_still_measured() -> None:
    device = shown(state(card(0), samples=(sample(GPU0, health=Health.DRAINING, trouble="a row waits to be remapped"),)), GPU0)
    assert (device.health, device.used_bytes, device.trouble) == ("draining", 20 * GIB, "a row waits to be remapped")


def test_health_without_words_still_says_something() -> None:
    device = shown(state(card(0), samples=(sample(GPU0, health=Health.DRIVER_MISMATCH),)), GPU0)
    assert device.trouble == "the driver calls it driver mismatch"
    assert device.fix == "see `hotseat logs`"


def test_the_detail_names_claims_and_each_link_once_where_it_is_tightest() -> None:
    far = card(2, islands=("nvlink:b", "pcie:9", "numa:1", "host"))
    world = state(card(0), card(1), far, samples=(sample(GPU0),))
    detail = device_detail(world, world.devices[GPU0], NOW, lambda at: at)
    assert [(s.instance, s.model, s.phase, s.claimed_bytes, s.used_bytes) for s in detail.claims] == [
        ("coder#0", "coder", "awake", 19 * GIB, 18 * GIB)
    ]
    assert [(link.kind, link.devices) for link in detail.links] == [("nvlink", ["gpu1"]), ("host", ["gpu2"])]
    assert detail.margin_bytes == world.devices[GPU0].margin_bytes
    alone = device_detail(state(card(0, islands=())), card(0, islands=()), NOW, lambda at: at)
    assert alone.links == []


def test_nobody_uses_a_known_number_of_bytes_of_a_device_that_does_not_tell() -> None:
    gone = sample(GPU0, health=Health.DRIVER_MISMATCH, used_bytes=0, free_bytes=0, foreign_bytes=0)
    detail = device_detail(state(card(0), samples=(gone,)), card(0), NOW, lambda at: at)
    assert [(s.instance, s.claimed_bytes, s.used_bytes) for s in detail.claims] == [("coder#0", 19 * GIB, None)]
    words = render_device(detail.model_dump(), View(NOW, 80))
    assert any(line.startswith("looked at   ") for line in words)
    assert not any(line.startswith("measured") for line in words)
    assert any("awake, not measured" in line for line in words)


def test_a_claim_of_somebody_who_left_the_device_is_shown() -> None:
    world = state(card(1))
    world.instances[CODER] = replace(world.instances[CODER], claim=Claim(device_bytes={GPU1: GIB}))
    detail = device_detail(world, world.devices[GPU1], NOW, lambda at: at)
    assert [(s.instance, s.claimed_bytes, s.used_bytes) for s in detail.claims] == [("coder#0", GIB, None)]


def test_a_device_that_was_there_before_is_listed_as_missing() -> None:
    world = state(card(1))
    world.degraded["device_missing:gpu0"] = ("gpu0 was there before and is not now", "look at dmesg", 7.0)
    world.degraded["device_missing:gpu1"] = ("told too late: it is there again", "", 7.0)
    world.degraded["store"] = ("the disk is full", "", 7.0)
    [missing] = missing_of(world)
    assert (missing.id, missing.health, missing.kind, missing.index, missing.total_bytes) == ("gpu0", "missing", None, None, None)
    assert (missing.trouble, missing.fix) == ("gpu0 was there before and is not now", "look at dmesg")
    assert (missing.allocatable, missing.claimed_bytes, missing.instances) == (False, 19 * GIB, ["coder#0"])
    assert [claim.model for claim in missing_detail(world, missing).claims] == ["coder"]


def test_what_is_degraded() -> None:
    lost = sample(GPU0, health=Health.LOST, trouble="it fell off the bus (Xid 79)", fix="reset it")
    watched = card(2, allocatable=False, why_not="MIG is on")
    world = state(card(0), card(1), watched, samples=(lost,))
    assert [(d.code, d.subject, d.message, d.fix) for d in degraded_devices(world, NOW, [])] == [
        ("device_lost", "gpu0", "it fell off the bus (Xid 79)", "reset it"),
        ("device_stale", "gpu1", "was not measured yet: nothing grows there", "see `hotseat logs`"),
    ]
    said = [Degraded(code="device_lost", subject="gpu0", message="m"), Degraded(code="over_capacity", subject="gpu1", message="m")]
    assert [d.subject for d in degraded_devices(world, NOW, said)] == ["gpu1"]


def test_a_driver_mismatch_is_called_so() -> None:
    world = state(card(0), samples=(sample(GPU0, health=Health.DRIVER_MISMATCH, trouble="library 570.1, module 565.2"),))
    assert [d.code for d in degraded_devices(world, NOW, [])] == ["driver_mismatch"]
