"""What NVIDIA's driver says of this machine, for those that may not import adapters (the doctor)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from adapters.devices.nvml import NvmlDevices
from adapters.devices.nvml_calls import load_binding
from scheduler.daemon.clock import SystemClock
from scheduler.domain.device import DeviceInfo
from scheduler.domain.errors import HotseatError

#: The first init sets up every card: one to three seconds each without persistence.
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaFacts:
    """``binding`` = the Python package that speaks for the driver, with its version; ``problem`` = why one of the two is of no use.

    ``devices`` is empty where there is no driver, or no card.
    """

    binding: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    problem: HotseatError | None = None


def nvidia_facts() -> NvidiaFacts:
    """Ask the driver once. Takes seconds where the driver has to be set up first, :data:`PATIENCE_S` at most."""
    try:
        file = load_binding().__file__
    except HotseatError as error:
        return NvidiaFacts(problem=error)
    binding = f"nvidia-ml-py {_version('nvidia-ml-py') or 'of an unknown version'} ({file})"
    signpost = _version("pynvml")
    if signpost:
        binding += f"; the package pynvml {signpost} beside it only points to it and can be removed"
    try:
        return NvidiaFacts(binding=binding, devices=tuple(asyncio.run(_inventory())))
    except HotseatError as error:
        return NvidiaFacts(binding=binding, problem=error)


async def _inventory() -> Sequence[DeviceInfo]:
    source = NvmlDevices(SystemClock(), inventory_timeout_s=PATIENCE_S)
    try:
        return await source.inventory({})
    finally:
        await source.close()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
