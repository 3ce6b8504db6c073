"""NVIDIA cards: the kernel module, the library that must match it, the package that speaks to it, and each card."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scheduler.cli.doctor.finding import Finding, fail, ok, warn
from scheduler.cli.render.facts import size
from scheduler.domain.device import DeviceInfo

if TYPE_CHECKING:
    from scheduler.daemon.gpu_facts import NvidiaFacts

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # class of display controllers, 3D ones included
_VERSION = re.compile(r"\s(\d{3,4}(?:\.\d+){1,3})\s")
#: Where distributions and container runtimes put the library.
_LIBRARY_FOLDERS = ("usr/lib", "usr/lib64", "usr/local/nvidia/lib64", "usr/local/lib", "usr/lib/wsl/lib")
_EXCLUSIVE = "exclusive_process"


class NvidiaHost(NamedTuple):
    """What the machine says without the driver's help: ``module`` = version of the loaded kernel module, ``libraries`` =
    versions of the files libnvidia-ml.so.VERSION, ``cards`` = NVIDIA cards on the PCI bus."""

    module: str = ""
    libraries: tuple[str, ...] = ()
    cards: int = 0


def look_at_host(root: Path = Path("/")) -> NvidiaHost:
    """Read /proc, /sys and the folders of libraries below ``root``."""
    try:
        match = _VERSION.search((root / "proc/driver/nvidia/version").read_text("ascii", "replace").partition("\n")[0] + " ")
    except OSError:
        match = None
    folders = [folder for name in _LIBRARY_FOLDERS for folder in (root / name, *(root / name).glob("*-linux-gnu"))]
    files = {file.name.removeprefix("libnvidia-ml.so.") for folder in folders for file in folder.glob("libnvidia-ml.so.*.*")}
    return NvidiaHost(
        match[1] if match else "", tuple(sorted(files)), sum(_is_card(device) for device in (root / "sys/bus/pci/devices").glob("*"))
    )


def _is_card(device: Path) -> bool:
    try:
        return (device / "vendor").read_text().strip() == _NVIDIA and (device / "class").read_text().startswith(_DISPLAY)
    except OSError:
        return False


def check_nvidia(host: NvidiaHost, probe: "Callable[[], NvidiaFacts]", *, discovers: bool = True) -> list[Finding]:
    """Driver, library, Python package, and each card. ``probe`` asks the driver; ``discovers`` = hotseat would use the cards."""
    facts = probe()
    findings = [_binding(facts, needed=bool(host.module or host.cards))]
    if facts.problem is not None and facts.problem.code == "wrong_pynvml":
        return [*_driver_alone(host), *findings]
    if facts.problem is not None:
        return [*findings, fail("driver", _trouble(host, facts.problem.message), facts.problem.fix or "nvidia-smi should show the same")]
    silent = [fail("card", text, "sudo dmesg | grep NVRM shows why; a reboot may bring it back") for text in facts.silent]
    if not facts.devices:
        return [*findings, *(silent or _driver_alone(host))]
    driver = dict(facts.devices[0].facts).get("driver") or host.module or "of an unknown version"
    unused = "" if discovers else "; devices.discover leaves them alone"
    count = sum(device.parent is None for device in facts.devices)
    cards = f"{count} card{'' if count == 1 else 's'}"
    return [*findings, ok("driver", f"NVIDIA {driver}, {cards}{unused}"), *silent, *_cards(facts.devices)]


def _binding(facts: "NvidiaFacts", *, needed: bool) -> Finding:
    problem = facts.problem
    if problem is None or problem.code != "wrong_pynvml":
        return ok("pynvml", facts.binding)
    return (fail if needed else warn)("pynvml", problem.message, problem.fix)


def _driver_alone(host: NvidiaHost) -> Iterator[Finding]:
    """What can be told while nobody speaks to the driver, or it has no cards."""
    on_bus = f"{host.cards} NVIDIA card{'' if host.cards == 1 else 's'} on the PCI bus"
    if host.module and not host.libraries:
        text = f"kernel module {host.module} is loaded, but libnvidia-ml.so.1 is not there"
        yield warn("driver", text, "install the driver's user space of the same version, or start the container with the NVIDIA runtime")
    elif host.module:
        yield warn(
            "driver", f"NVIDIA {host.module} is loaded and names no card ({on_bus})", "look for NVRM messages: sudo dmesg | grep NVRM"
        )
    elif host.cards:
        yield warn("driver", f"{on_bus}, but the driver is not loaded", "install NVIDIA's driver, or: sudo modprobe nvidia")
    else:
        yield ok("driver", "no NVIDIA card here, and no driver needed")


def _trouble(host: NvidiaHost, message: str) -> str:
    """The driver's own sentence, with the versions that lie on this machine."""
    module = f"kernel module {host.module}" if host.module else "no kernel module loaded"
    libraries = f"library {' and '.join(host.libraries)}" if host.libraries else "no library found"
    return f"{message} ({module}, {libraries})"


def _cards(devices: tuple[DeviceInfo, ...]) -> Iterator[Finding]:
    """What is the same with several cards is one finding that names them all."""
    alike: dict[Finding, list[DeviceInfo]] = {}
    for device in devices:
        alike.setdefault(_card(device, devices), []).append(device)
    for finding, those in alike.items():
        yield finding._replace(text=f"{', '.join(d.id for d in those)}: {finding.text}", fix=_addressed(finding.fix, those))


def _addressed(fix: str, devices: Sequence[DeviceInfo]) -> str:
    """The remedy with what nvidia-smi calls the cards in the place of CARD."""
    addresses = [device.pci or device.uuid for device in devices]
    if "CARD" not in fix or len(addresses) == 1:
        return fix.replace("CARD", addresses[0])
    return f"{fix}, with {' and '.join(addresses)} for CARD"


def _card(device: DeviceInfo, every: tuple[DeviceInfo, ...]) -> Finding:
    """What is to be said of a card, without its name and its address."""
    facts = dict(device.facts)
    words = [device.name, size(device.capacity_bytes) if device.capacity_bytes else "memory not told"]
    words += [f"{name} {facts[name]}" for name in ("compute capability", "compute mode", "persistence", "mig") if name in facts]
    text = ", ".join(words)
    if any(other.parent == device.id for other in every):
        return ok("card", f"{text}; its MIG instances are the seats")
    if not device.allocatable:
        return warn("card", f"{text}; no seat: {device.why_not}", _remedy(device.why_not))
    if facts.get("compute mode") == _EXCLUSIVE or device.max_processes == 1:
        tail = "one engine process at a time, and a sleeper counts: models take turns by stop and start"
        return warn("card", f"{text}; {tail}", "sudo nvidia-smi -i CARD -c DEFAULT")
    if facts.get("persistence") == "off":
        tail = "the driver starts anew with each first engine, which costs seconds, and forgets its power limits"
        return warn("card", f"{text}; {tail}", "sudo systemctl enable --now nvidia-persistenced, or: sudo nvidia-smi -pm 1")
    return ok("card", text)


def _remedy(why_not: str) -> str:
    """What makes a seat of a card that is none."""
    if "MIG" in why_not:
        return "make instances: sudo nvidia-smi mig -i CARD -cgi PROFILE -C; or turn MIG off: sudo nvidia-smi -i CARD -mig 0"
    return "sudo nvidia-smi -i CARD -c DEFAULT"
