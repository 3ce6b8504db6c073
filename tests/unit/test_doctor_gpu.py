"""`hotseat doctor` about NVIDIA cards: what the machine says by itself, and what the driver says, on made-up machines."""

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.cli.doctor.finding import Finding
from scheduler.cli.doctor.gpu import NvidiaHost, check_nvidia, look_at_host
from scheduler.daemon.gpu_facts import NvidiaFacts
from scheduler.domain.device import DeviceInfo
from scheduler.domain.errors import HotseatError, Permanent
from scheduler.domain.ids import DeviceId
from scheduler.domain.units import GIB

BINDING = "nvidia-ml-py 13.615.71"
NOTHING = NvidiaHost()
LOADED = NvidiaHost("570.86.15", ("570.86.15",), 1)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (root@build)  Tue Jan  2 03:04:05 UTC 2026\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.2.0\n"


def card(**update: object) -> DeviceInfo:
    info = DeviceInfo(
        id=DeviceId("gpu0"),
        kind="nvidia",
        name="NVIDIA H200",
        index=0,
        uuid="GPU-0",
        capacity_bytes=140 * GIB,
        pci="0000:17:00.0",
        facts=(("driver", "570.86.15"), ("compute mode", "default"), ("persistence", "on")),
    )
    return replace(info, **update)  # type: ignore[arg-type]  # the tests name fields


def checked(
    host: NvidiaHost = LOADED, *devices: DeviceInfo, problem: HotseatError | None = None, discovers: bool = True
) -> dict[str, list[Finding]]:
    facts = NvidiaFacts(binding="" if problem else BINDING, devices=devices, problem=problem)
    found: dict[str, list[Finding]] = {}
    for finding in check_nvidia(host, lambda: facts, discovers=discovers):
        found.setdefault(finding.name, []).append(finding)
        assert bool(finding.fix) is (finding.state != "ok"), finding
    return found


def make(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("text", "version"), [(OPEN, "570.86.15"), (CLOSED, "535.183.01"), ("nonsense\n", ""), ("", "")])
def test_the_version_of_the_kernel_module(tmp_path: Path, text: str, version: str) -> None:
    make(tmp_path, "proc/driver/nvidia/version", text)
    assert look_at_host(tmp_path).module == version


def test_what_the_machine_says_by_itself(tmp_path: Path) -> None:
    make(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15")
    make(tmp_path, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    make(tmp_path, "usr/lib64/libnvidia-ml.so.565.57.01")
    for slot, vendor, kind in (
        ("a", "0x10de", "0x030200"),
        ("b", "0x10de", "0x040300"),
        ("c", "0x8086", "0x030000"),
        ("d", "0x10de", "0x0300"),
    ):
        make(tmp_path, f"sys/bus/pci/devices/{slot}/vendor", f"{vendor}\n")
        make(tmp_path, f"sys/bus/pci/devices/{slot}/class", f"{kind}00\n")
    make(tmp_path, "sys/bus/pci/devices/e/vendor", "0x10de\n")  # a slot that does not say what it is
    assert look_at_host(tmp_path) == NvidiaHost("", ("565.57.01", "570.86.15"), 2)
    assert look_at_host(tmp_path / "none") == NOTHING


def test_a_machine_without_cards_is_as_it_should_be() -> None:
    found = checked(NOTHING)
    assert found == {
        "pynvml": [Finding("pynvml", "ok", BINDING)],
        "driver": [Finding("driver", "ok", "no NVIDIA card here, and no driver needed")],
    }


def test_a_card_in_order() -> None:
    found = checked(LOADED, card())
    assert found["driver"] == [Finding("driver", "ok", "NVIDIA 570.86.15, 1 card")]
    assert found["card"] == [Finding("card", "ok", "gpu0: NVIDIA H200, 140.0 GiB, compute mode default, persistence on")]


def test_cards_that_are_not_to_be_used_are_still_examined() -> None:
    found = checked(LOADED, card(), card(id=DeviceId("gpu1")), discovers=False)
    assert found["driver"][0].text == "NVIDIA 570.86.15, 2 cards; devices.discover leaves them alone"
    assert [finding.text for finding in found["card"]] == ["gpu0, gpu1: NVIDIA H200, 140.0 GiB, compute mode default, persistence on"]


def test_what_is_the_same_with_several_cards_is_one_line_that_names_them() -> None:
    eight = [card(id=DeviceId(f"gpu{n}"), pci=f"0000:0{n}:00.0", facts=(("persistence", "off"),)) for n in range(6)]
    eight += [
        card(id=DeviceId(f"gpu{n}"), pci=f"0000:0{n}:00.0", facts=(("compute mode", "exclusive_process"),), max_processes=1) for n in (6, 7)
    ]
    first, second = checked(LOADED, *eight)["card"]
    assert first.text.startswith("gpu0, gpu1, gpu2, gpu3, gpu4, gpu5: NVIDIA H200, 140.0 GiB, persistence off; ")
    assert first.fix == "sudo systemctl enable --now nvidia-persistenced, or: sudo nvidia-smi -pm 1"
    assert second.text.startswith("gpu6, gpu7: NVIDIA H200, 140.0 GiB, compute mode exclusive_process; ")
    assert second.fix == "sudo nvidia-smi -i CARD -c DEFAULT, with 0000:06:00.0 and 0000:07:00.0 for CARD"


@pytest.mark.parametrize(
    ("host", "text", "fix"),
    [
        (NvidiaHost("", (), 2), "2 NVIDIA cards on the PCI bus, but the driver is not loaded", "modprobe"),
        (NvidiaHost("570.86.15", (), 1), "kernel module 570.86.15 is loaded, but libnvidia-ml.so.1 is not there", "NVIDIA runtime"),
        (LOADED, "NVIDIA 570.86.15 is loaded and names no card (1 NVIDIA card on the PCI bus)", "dmesg"),
    ],
)
def test_a_driver_that_is_not_whole(host: NvidiaHost, text: str, fix: str) -> None:
    [finding] = checked(host)["driver"]
    assert (finding.state, finding.text) == ("warn", text)
    assert fix in finding.fix


def test_library_and_kernel_module_of_different_versions() -> None:
    problem = Permanent("the library and the kernel module differ", code="driver_mismatch", fix="reboot")
    found = checked(NvidiaHost("565.57.01", ("570.86.15",), 1), problem=problem)
    assert found["driver"] == [
        Finding("driver", "fail", "the library and the kernel module differ (kernel module 565.57.01, library 570.86.15)", "reboot")
    ]
    assert checked(NOTHING, problem=Permanent("x", code="nvml"))["driver"][0].text == "x (no kernel module loaded, no library found)"


@pytest.mark.parametrize(("host", "state", "driver"), [(LOADED, "fail", "warn"), (NOTHING, "warn", "ok")])
def test_another_package_in_the_place_of_the_binding(host: NvidiaHost, state: str, driver: str) -> None:
    problem = Permanent("/x/pynvml.py is not the pynvml of nvidia-ml-py", code="wrong_pynvml", fix="pip uninstall pynvml")
    found = checked(host, problem=problem)
    assert found["pynvml"] == [Finding("pynvml", state, problem.message, problem.fix)]  # type: ignore[arg-type]
    assert [finding.state for finding in found["driver"]] == [driver]


@pytest.mark.parametrize(
    ("update", "text", "fix"),
    [
        (
            {"facts": (("compute mode", "exclusive_process"),), "max_processes": 1},
            "one engine process at a time, and a sleeper counts",
            "sudo nvidia-smi -i 0000:17:00.0 -c DEFAULT",
        ),
        ({"facts": (("persistence", "off"),)}, "costs seconds", "nvidia-persistenced"),
        ({"allocatable": False, "why_not": "its compute mode is PROHIBITED"}, "no seat: its compute mode is PROHIBITED", "-c DEFAULT"),
        ({"allocatable": False, "why_not": "MIG is on: its instances are the devices"}, "no seat: MIG is on", "mig -i 0000:17:00.0 -cgi"),
    ],
)
def test_modes_that_change_what_can_be_done(update: dict[str, object], text: str, fix: str) -> None:
    [finding] = checked(LOADED, card(**update))["card"]
    assert finding.state == "warn"
    assert text in finding.text
    assert fix in finding.fix


def test_a_card_in_parts_is_in_order_when_it_has_parts() -> None:
    whole = card(allocatable=False, why_not="MIG is on: its instances are the devices")
    part = card(id=DeviceId("gpu0m0"), name="NVIDIA H200 MIG 1g.18gb", parent=DeviceId("gpu0"), capacity_bytes=0, facts=())
    found = checked(LOADED, whole, part)
    assert [finding.state for finding in found["card"]] == ["ok", "ok"]
    assert "its MIG instances are the seats" in found["card"][0].text
    assert found["card"][1].text == "gpu0m0: NVIDIA H200 MIG 1g.18gb, memory not told"
    assert found["driver"][0].text.endswith("1 card")
