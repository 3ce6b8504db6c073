"""The machine: state directory, disk, memory, swap, shared memory, limits."""

import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from scheduler.cli.doctor.finding import Finding, fail, ok, warn
from scheduler.cli.render.facts import size
from scheduler.daemon.machine_facts import host_memory

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs", "lustre"}
)
LEAST_FREE_BYTES = 1 << 30
NEEDED_FREE_BYTES = 100 << 20
LEAST_FILES = 4096
LEAST_PROCESSES = 1024
LEAST_LOCKED_BYTES = 8 << 20  # what systemd gives
LEAST_SHM_BYTES = 1 << 30
LEAST_GROUP_BYTES = 4 << 30
SWAP_IN_USE_BYTES = 1 << 30
MAX_SOCKET_PATH = 107


def check_state_dir(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> list[Finding]:
    """Writable (or can be made), on a local file system, with room, and short enough for a socket in it."""
    nearest = _nearest_existing(folder)
    findings = [_writable(folder, nearest), _local(nearest, mountinfo), _room(nearest)]
    if len(os.fsencode(folder / "control.sock")) > MAX_SOCKET_PATH:
        findings.append(
            fail(
                "state dir", f"{folder} is too long: the control socket in it would exceed {MAX_SOCKET_PATH} bytes", "choose a shorter one"
            )
        )
    return findings


def _nearest_existing(folder: Path) -> Path:
    return next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))


def _writable(folder: Path, nearest: Path) -> Finding:
    if not nearest.is_dir():
        return fail("state dir", f"{nearest} is not a directory", "move it away, or choose another state_dir")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return fail("state dir", f"{nearest} is not writable for this user", f"run it as the daemon's user, or: chown USER {nearest}")
    return ok("state dir", f"{folder}" if nearest == folder else f"{folder} (will be made)")


def _local(nearest: Path, mountinfo: Path) -> Finding:
    kind = filesystem_of(nearest, mountinfo)
    if kind in NETWORK_FILESYSTEMS:
        text = f"on {kind}: the database and its locks need a local disk"
        return fail("state dir", text, "choose a state_dir on a local disk")
    return ok("state dir", f"on {kind or 'an unknown file system'}")


def filesystem_of(path: Path, mountinfo: Path) -> str | None:
    """The type of the file system that holds ``path``; None when /proc does not tell."""
    try:
        text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    real, best, kind = os.path.realpath(path), "", None
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4].encode("latin-1", "replace").decode("unicode_escape") if left.count(" ") >= 4 else ""
        inside = point and (point == "/" or real == point or real.startswith(point + "/"))
        if inside and len(point) >= len(best):  # of two mounts on one point the later one counts
            best, kind = point, right.split(" ")[0]
    return kind


def _room(nearest: Path) -> Finding:
    usage = shutil.disk_usage(nearest)
    text = f"{size(usage.free)} free of {size(usage.total)}"
    if usage.free < NEEDED_FREE_BYTES:
        return fail("disk", text, "free some space: the database needs 100 MiB at least")
    if usage.free < max(LEAST_FREE_BYTES, usage.total // 20):
        return warn("disk", text, "free some space: below 1 GiB or 5 % logs are cut and batch work pauses")
    return ok("disk", text)


def check_memory(budget_bytes: int | None, own_bytes: int = 0, proc: str = "/proc") -> list[Finding]:
    """Memory that is available now, with what our own engines hold, against the declared budgets of the CPU devices; the
    limit of a control group; swap."""
    found = host_memory(proc)
    if found is None:
        return [warn("memory", f"{proc}/meminfo does not tell MemTotal and MemAvailable")]
    total, available = found
    facts = _meminfo(proc)
    text = f"{size(available)} available of {size(total)}"
    if total < facts.get("MemTotal", total):
        text += f", the limit of its control group; the machine has {size(facts['MemTotal'])}"
    findings = [_budget(text, available, budget_bytes, own_bytes), _swap(facts)]
    if facts.get("MemTotal", 0) > total and total < LEAST_GROUP_BYTES:
        fix = "raise the memory limit of the container or unit: engines and their host copies live in it"
        findings.append(warn("memory", f"the control group allows {size(total)} only", fix))
    return findings


def _budget(text: str, available: int, budget_bytes: int | None, own_bytes: int) -> Finding:
    if not budget_bytes:
        return ok("memory", f"{text}; no device of kind cpu declared")
    text += f"; {size(own_bytes)} in our engines" if own_bytes else ""
    text += f"; {size(budget_bytes)} declared for devices of kind cpu"
    if available + own_bytes < budget_bytes:
        return warn("memory", text, "declare less memory under devices.declared, or end other programs: models would not fit")
    return ok("memory", text)


def check_sleep_memory(said_bytes: int | None, card_bytes: int, proc: str = "/proc") -> list[Finding]:
    """Host memory for the weights of level-1 sleepers against the largest card; nothing without a card.

    ``said_bytes``: what the daemon or the configuration says, None = half of what is available.
    """
    found = host_memory(proc)
    if not card_bytes or found is None:
        return []
    total, available = found
    if said_bytes == 0:
        return [ok("sleep", "host.sleep_memory is 0: nothing sleeps at level 1")]
    limit = available // 2 if said_bytes is None else said_bytes
    text = f"{size(limit)} of host memory for weights of sleepers" + (", half of what is available" if said_bytes is None else "")
    if limit > total:
        fix = f"write host: {{sleep_memory: SIZE}} with less than {size(total)}, or auto"
        return [warn("sleep", f"{text}, but there are only {size(total)} in all", fix)]
    if limit < card_bytes:
        tail = f"less than one card of {size(card_bytes)}: a model that fills it goes to level 2, or is stopped"
        return [warn("sleep", f"{text}, {tail}", "end other programs, raise host.sleep_memory, or add memory")]
    return [ok("sleep", text)]


def _swap(facts: Mapping[str, int]) -> Finding:
    """Swap that is in use may hold the weights of a sleeper: its wake then reads them from disk."""
    total = facts.get("SwapTotal", 0)
    used = total - facts.get("SwapFree", total)
    if total == 0:
        return ok("swap", "none")
    text = f"{size(used)} of {size(total)} in use"
    if used > SWAP_IN_USE_BYTES:
        return warn(
            "swap", f"{text}: weights of sleepers in it wake as slowly as from disk", "end other programs, or set host.sleep_memory lower"
        )
    return ok("swap", text)


def _meminfo(proc: str) -> dict[str, int]:
    """/proc/meminfo in bytes; empty when it cannot be read."""
    try:
        lines = Path(proc, "meminfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.replace(":", " ").split() for line in lines]
    return {pair[0]: int(pair[1]) * 1024 for pair in pairs if len(pair) >= 2 and pair[1].isdigit()}


def check_shm(folder: Path = Path("/dev/shm")) -> Finding:
    """Shared memory: an engine on several cards exchanges data through it; containers get 64 MiB unless told otherwise."""
    try:
        total = shutil.disk_usage(folder).total
    except OSError as error:
        return warn("shm", f"{folder}: {os.strerror(error.errno or 0)}", f"mount a tmpfs on {folder}")
    if total < LEAST_SHM_BYTES:
        text = f"{size(total)} in {folder}: an engine on several cards may fail to start (shm_small)"
        return warn("shm", text, "run the container with --ipc=host or --shm-size=8g, or remount it larger")
    return ok("shm", f"{size(total)} in {folder}")


def check_limits(limits: Mapping[str, int] | None = None) -> list[Finding]:
    """Open files, processes, locked memory, address space. ``limits`` by name, -1 = none; default: this process's soft ones, and the
    hard one on open files, to which the daemon raises its own."""
    found = _limits() if limits is None else limits
    findings = []
    files, processes, space = found["nofile"], found["nproc"], found["as"]
    if 0 <= files < LEAST_FILES:
        text = f"{files} open files allowed; each held or running request needs two"
        findings.append(warn("limits", text, f"ulimit -Hn {LEAST_FILES * 4}, or LimitNOFILE= in the unit"))
    if 0 <= processes < LEAST_PROCESSES:
        findings.append(warn("limits", f"{processes} processes and threads allowed", "ulimit -u 4096, or LimitNPROC= in the unit"))
    locked = found["memlock"]
    if 0 <= locked < LEAST_LOCKED_BYTES:
        text = f"{size(locked)} of locked memory allowed: transfers between cards and over the network may fail"
        findings.append(warn("limits", text, "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit"))
    if space >= 0:
        findings.append(warn("limits", f"address space limited to {size(space)}: engines may fail to load", "ulimit -v unlimited"))
    words = {key: "unlimited" if value < 0 else str(value) for key, value in found.items()}
    lock = "unlimited" if locked < 0 else size(locked)
    return findings or [ok("limits", f"{words['nofile']} open files, {words['nproc']} processes, {lock} locked memory")]


def _limits() -> dict[str, int]:
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK, "as": resource.RLIMIT_AS}
    found = {name: resource.getrlimit(kind)[name == "nofile"] for name, kind in kinds.items()}
    return {name: -1 if limit == resource.RLIM_INFINITY else limit for name, limit in found.items()}
