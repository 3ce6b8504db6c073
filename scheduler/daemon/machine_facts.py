"""What this machine has, for those that may not import adapters (the doctor)."""

from adapters.procfs.memory import read_host_memory


def host_memory(proc: str = "/proc") -> tuple[int, int] | None:
    """(bytes in all, bytes available) of the machine or, where that is less, of the control groups this process lives in.

    None when /proc/meminfo cannot be read or does not tell.
    """
    try:
        memory = read_host_memory(proc)
    except (OSError, ValueError):
        return None
    return memory.total_bytes, memory.available_bytes
