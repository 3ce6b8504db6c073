"""What NVIDIA's driver says of this machine, for those that may not import adapters (the doctor)."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from adapters.devices.nvml import NvmlDevices
from adapters.devices.nvml_calls import load_binding
from scheduler.daemon.clock import SystemClock
from scheduler.domain.device import DeviceInfo
from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import DeviceId

#: The first init sets up every card: one to three seconds each without persistence.
PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaFacts:
    """``binding`` = the Python package that speaks for the driver, with its version; ``problem`` = why one of the two is of no use.

    ``devices`` is empty where there is no driver, or no card; ``silent`` = a sentence for each card that cannot be used.
    """

    binding: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    silent: tuple[str, ...] = ()
    problem: HotseatError | None = None


def nvidia_facts(known: Mapping[str, DeviceId]) -> NvidiaFacts:
    """Ask the driver once. Takes seconds where the driver has to be set up first, :data:`PATIENCE_S` at most.

    ``known`` = the ids that a running daemon has given to UUIDs: without them cards are numbered as they are found.
    """
    logging.getLogger("adapters.devices").addHandler(logging.NullHandler())  # what it would log is told as a finding
    try:
        file = load_binding().__file__
    except HotseatError as error:
        return NvidiaFacts(problem=error)
    binding = f"nvidia-ml-py {_version('nvidia-ml-py') or 'of an unknown version'} ({file})"
    signpost = _version("pynvml")
    if signpost:
        binding += f"; the package pynvml {signpost} beside it only points to it and can be removed"
    try:
        devices, silent = asyncio.run(_inventory(known))
        return NvidiaFacts(binding=binding, devices=devices, silent=silent)
    except HotseatError as error:
        return NvidiaFacts(binding=binding, problem=error)


async def _inventory(known: Mapping[str, DeviceId]) -> tuple[tuple[DeviceInfo, ...], tuple[str, ...]]:
    source = NvmlDevices(SystemClock(), inventory_timeout_s=PATIENCE_S)
    try:
        return tuple(await source.inventory(known)), source.problems
    finally:
        await source.close()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
