"""Log files of engines: kept small, truncated in place (the engine keeps its descriptor), old ones deleted."""

import asyncio
import logging
import os
from pathlib import Path

from scheduler.api.tail import read_tail
from scheduler.config.settings import LogSettings

log = logging.getLogger(__name__)

EVERY_S = 30.0
TAIL_LINES = 400


async def read_lines(path: str) -> list[str]:
    """The last lines of an engine's log, for finding out why it ended."""
    piece = await asyncio.to_thread(read_tail, Path(path), TAIL_LINES)
    return list(piece.lines)


async def tend(folder: Path, settings: LogSettings) -> None:
    """For ever: keep the folder within its limits."""
    while True:
        try:
            await asyncio.to_thread(trim, folder, settings)
        except OSError as error:
            log.warning("engine logs could not be trimmed: %s", error)
        await asyncio.sleep(EVERY_S)


def trim(folder: Path, settings: LogSettings) -> None:
    """Truncate what is too large, keep ``keep`` files per model and ``total_bytes`` in all, newest first."""
    files = sorted(folder.glob("*.log"), key=lambda f: f.stat().st_mtime, reverse=True)
    kept: dict[str, int] = {}
    total = 0
    for file in files:
        model = file.name.rpartition("-")[0]
        kept[model] = kept.get(model, 0) + 1
        size = file.stat().st_size
        if kept[model] > 1 and (kept[model] > settings.keep or total + size > settings.total_bytes):
            file.unlink(missing_ok=True)
            continue
        if size > settings.size_bytes:
            _keep_the_end(file, settings.size_bytes // 2)
            size = settings.size_bytes // 2
        total += size


def _keep_the_end(file: Path, keep_bytes: int) -> None:
    """Copy the end into FILE.1 and truncate FILE in place: its writer appends, so nothing else moves."""
    with file.open("rb") as source:
        source.seek(-keep_bytes, os.SEEK_END)
        tail = source.read()
    old = file.with_suffix(".log.1")
    old.write_bytes(tail)
    os.chmod(old, 0o600)
    os.truncate(file, 0)
