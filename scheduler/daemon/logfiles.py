"""Log files of engines: kept small, truncated in place (the engine keeps its descriptor), old ones deleted."""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scheduler.api.service import LogQuery
from scheduler.api.tail import Piece, read_from, read_tail
from scheduler.config.settings import LogSettings, Share
from scheduler.domain.units import human_bytes
from scheduler.telemetry.redact import redact_text

log = logging.getLogger(__name__)

EVERY_S = 30.0
TAIL_LINES = 400

#: What is left of each model's newest log while the disk is nearly full.
_LEAST_BYTES = 1 << 20
_FIX = "free space there, or lower disk.min_free; hotseat doctor shows the disk"


async def read_lines(path: str) -> list[str]:
    """The last lines of an engine's log, for finding out why it ended: what comes of them is stored and shown, so no secrets."""
    return (await read_piece(Path(path), LogQuery(lines=TAIL_LINES))).lines


async def read_piece(path: Path, query: LogQuery) -> Piece:
    """What ``query`` asks of the log at ``path``, without secrets; a missing file is empty. The loop goes on meanwhile."""
    return await asyncio.to_thread(_read_piece, path, query)


def _read_piece(path: Path, query: LogQuery) -> Piece:
    piece = read_tail(path, query.lines) if query.offset is None else read_from(path, query.offset)
    return replace(piece, lines=[redact_text(line) for line in piece.lines])


class LogKeeper:
    """Keeps the folder of engine logs within its limits, and its disk above ``min_free`` as far as logs can.

    ``complain`` hears once when the disk gets too full (message, fix), and once with an empty message when it is over.
    """

    def __init__(self, folder: Path, settings: LogSettings, min_free: Share, complain: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._settings = settings
        self._min_free = min_free
        self._complain = complain
        self._low = False

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.once()
            await asyncio.sleep(EVERY_S)

    async def once(self) -> None:
        """Look, and trim: to the limits, or to the least when the disk is nearly full."""
        try:
            room = await asyncio.to_thread(self._look_and_trim)
        except OSError as error:
            log.warning("engine logs could not be trimmed: %s", error)
            return
        if room.low != self._low:
            self._low = room.low
            self._complain(room.message if room.low else "", _FIX)

    def _look_and_trim(self) -> "_Room":
        trim(self._folder, self._settings)
        room = self._room()
        if room.low:
            trim(self._folder, replace(self._settings, size_bytes=min(_LEAST_BYTES, self._settings.size_bytes), keep=1), tails=False)
            room = self._room()
        return room

    def _room(self) -> "_Room":
        usage = shutil.disk_usage(self._folder)
        least = self._min_free.of(usage.total)
        text = f"{human_bytes(usage.free)} free on the disk of {self._folder.parent}, less than disk.min_free ({human_bytes(least)})"
        return _Room(usage.free < least, f"{text}: old logs of engines are dropped")


@dataclass(frozen=True, slots=True)
class _Room:
    low: bool
    message: str


def trim(folder: Path, settings: LogSettings, *, tails: bool = True) -> None:
    """Truncate what is too large, keep ``keep`` files per model and ``total_bytes`` in all, newest first.

    The newest of a model stays: an engine may be writing it. ``tails`` false: cut pieces of before go as well.
    """
    files = sorted(folder.glob("*.log"), key=lambda f: f.stat().st_mtime, reverse=True)
    kept: dict[str, int] = {}
    total = 0
    for file in files:
        model = file.name.rpartition("-")[0]
        kept[model] = kept.get(model, 0) + 1
        size = file.stat().st_size + _size(_tail_of(file))
        if kept[model] > 1 and (kept[model] > settings.keep or total + size > settings.total_bytes):
            file.unlink(missing_ok=True)
            _tail_of(file).unlink(missing_ok=True)
            continue
        if file.stat().st_size > settings.size_bytes:
            _keep_the_end(file, settings.size_bytes // 2)
        if not tails:
            _tail_of(file).unlink(missing_ok=True)
        total += file.stat().st_size + _size(_tail_of(file))


def _tail_of(file: Path) -> Path:
    return file.with_suffix(".log.1")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _keep_the_end(file: Path, keep_bytes: int) -> None:
    """Copy the end into FILE.1 and truncate FILE in place: its writer appends, so nothing else moves.

    A disk without room for the copy must not keep the file from being truncated.
    """
    with file.open("rb") as source:
        source.seek(-keep_bytes, os.SEEK_END)
        tail = source.read()
    old = _tail_of(file)
    try:
        old.write_bytes(tail)
        os.chmod(old, 0o600)
    except OSError as error:
        log.warning("the end of %s was not kept: %s", file.name, error)
    os.truncate(file, 0)
