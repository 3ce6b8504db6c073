"""One scan of /proc for all who ask at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from adapters.procfs.processes import ProcessTable
from adapters.procfs.threads import outcome_of


class SharedScans:
    """Runs ``scan`` in a thread of its own, so that a pool busy with a stuck disk cannot delay it.

    Every caller gets a table whose reading began after the call; callers that wait for the same beginning share it.
    With thousands of processes and many engines this keeps the cost that of one scan.
    """

    def __init__(self, scan: Callable[[], ProcessTable]) -> None:
        self._scan = scan
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hotseat-proc")
        self._lock = threading.Lock()
        self._queued: Future[ProcessTable] | None = None

    async def table(self) -> ProcessTable:
        """The processes of this machine, read after this call. Cancelling one caller leaves the others alone."""
        with self._lock:
            if self._queued is None:
                self._queued = self._thread.submit(self._begin)
            queued = self._queued
        return await outcome_of(queued)

    def _begin(self) -> ProcessTable:
        with self._lock:
            self._queued = None
        return self._scan()
