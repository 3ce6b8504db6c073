"""The daemon with as much host memory as the cards of a made-up machine ask for: ``python -m tests.support.roomy_daemon serve``.

Engines that are pretended hold no copies; what the daemon must believe is that there would be room for them.
"""

import sys

from adapters.devices import host
from adapters.procfs.memory import HostMemory
from scheduler.cli.main import main
from scheduler.domain.units import GIB


def roomy(proc: str = "") -> HostMemory:
    """A server's worth."""
    return HostMemory(total_bytes=1024 * GIB, available_bytes=1000 * GIB)


if __name__ == "__main__":
    host.read_host_memory = roomy  # type: ignore[attr-defined]
    sys.exit(main())
