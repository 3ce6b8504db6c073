"""What the system lets this process have."""

import logging
import resource

log = logging.getLogger(__name__)

#: What kernels allow at most unless told otherwise (fs.nr_open); above it the call is refused.
MOST_OPEN_FILES = 1 << 20


def raise_open_files() -> None:
    """Raise the soft limit on open files to the hard one, which asks for no privilege; engines inherit it.

    Every held or running request needs two, and the usual soft limit of 1024 is there for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of %d open files cannot be raised to %d: %s", soft, wanted, error)
