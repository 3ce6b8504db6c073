"""Where the fake vLLM's memory is: on the pretended cards of a world folder, held by worker processes, or really in its own.

The leader (vLLM's API server) holds nothing on a card. Its children do: the engine core, or one worker per device; each
rewrites its name and its environment, as the real ones do. They are forked before the loop starts and see on a pipe that
the leader has died: then they end, too, or, as the real ones may, live on with their memory.
"""

import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.gpu_world import GpuWorld

PR_SET_NAME = 15
#: proc(5): arg_start and env_end, as offsets behind the name in /proc/PID/stat.
ARG_START, ENV_END = 45, 48


class NoDevice(Exception):
    """The environment names a device that is not there."""


def _names(world: GpuWorld) -> dict[str, str]:
    """Place -> uuid: "0" is a card, "0.1" a MIG instance of it."""
    found = {}
    for line in world.lines():
        words = line.split()
        if words[0] in ("gpu", "mig"):
            place = ".".join(word for word in words[1:3] if "=" not in word)
            default = f"GPU-fake-{place}" if words[0] == "gpu" else f"MIG-fake-{place.replace('.', '-')}"
            found[place] = dict(word.split("=", 1) for word in words if "=" in word).get("uuid", default)
    return found


def visible_devices(world: GpuWorld, env: Mapping[str, str], count: int) -> list[str]:
    """The uuids that ``count`` workers use. Without PCI_BUS_ID, CUDA numbers the fastest first: here, the other way round.

    Raises NoDevice when there are not so many, or when a name means none.
    """
    names = _names(world)
    uuids = [names[place] for place in sorted((p for p in names if p.isdigit()), key=int)]
    order = uuids if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else uuids[::-1]
    said = env.get("CUDA_VISIBLE_DEVICES")
    seen = order if said is None else []
    for word in (said or "").split(","):
        word = word.strip()
        if word.isdigit() and int(word) < len(order):
            seen.append(order[int(word)])
        elif word and not word.isdigit() and (found := [uuid for uuid in names.values() if uuid.startswith(word)]):
            seen.append(found[0])
        elif word:
            break  # CUDA sees nothing from the first word on that it does not understand
    if len(seen) < count:
        raise NoDevice(
            "No CUDA GPUs are available" if not seen else f"World size ({count}) is larger than the number of GPUs ({len(seen)})"
        )
    return seen[:count]


def fork_workers(titles: Sequence[str], *, outlive: bool) -> list[int]:
    """Children that live as long as this process, or longer; their pids."""
    seen_by_all, held_by_us = os.pipe()
    pids = []
    for title in titles:
        pid = os.fork()
        if pid == 0:
            os.close(held_by_us)
            _be_worker(title, seen_by_all, outlive=outlive)
        pids.append(pid)
    os.close(seen_by_all)
    os.set_inheritable(held_by_us, False)
    return pids


def _be_worker(title: str, pipe: int, *, outlive: bool) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        retitle(title)
        os.read(pipe, 1)
        while outlive:
            signal.pause()
    finally:
        os._exit(0)


def retitle(title: str) -> None:
    """Another name and command line; what was the environment is zeros afterwards."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start, end = int(fields[ARG_START]), int(fields[ENV_END])
    ctypes.memset(start, 0, end - start)
    text = title.encode()[: end - start - 1]
    ctypes.memmove(start, text, len(text))


class Cards:
    """The ground under a fake vLLM: worker ``pids[n]`` holds memory of device ``uuids[n]``."""

    def __init__(self, world: GpuWorld, uuids: Sequence[str], pids: Sequence[int]) -> None:
        self.world, self.uuids, self.pids = world, tuple(uuids), tuple(pids)
        self.held = 0

    def take(self, size: int, lag_s: float = 0.0) -> bool:
        """All of them or none: what some got is given back when one is refused. ``lag_s``: less than before is seen so much later."""
        before = self.held
        for n, (pid, uuid) in enumerate(zip(self.pids, self.uuids, strict=True)):
            if self.world.allocate(pid, {uuid: size}, lag_s=lag_s):
                for earlier in range(n):
                    self.world.allocate(self.pids[earlier], {self.uuids[earlier]: before})
                return False
        self.held = size
        return True

    def room(self) -> int:
        """Bytes that each of them could hold."""
        return min(self.world.capacity(uuid) - self.world.used(uuid) for uuid in self.uuids) + self.held

    def squeeze(self, size: int) -> int:
        """What fits of it."""
        part = max(0, min(size, self.room()))
        return part if self.take(part) else self.held

    def others(self) -> int:
        """The most that others use."""
        return max(self.world.used(uuid) for uuid in self.uuids) - self.held

    def release(self, lag_s: float = 0.0) -> None:
        """Nothing is held any more."""
        for pid in self.pids:
            self.world.release(pid, lag_s=lag_s)
        self.held = 0
