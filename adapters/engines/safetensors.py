"""Read the header of a safetensors file: names, types and sizes of its tensors, without the weights.

Layout: the header's length as a 64-bit little-endian number, the header as JSON (name -> dtype, shape, data_offsets from the header's end),
then the data. Files come from strangers and from downloads that were cut: every number is checked against the file before it is believed.
"""

import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
_LENGTH: Final = struct.Struct("<Q")
_POINTER: Final = b"version "
_CHUNK: Final = 1 << 24
_MAX_RANK: Final = 64

#: Bits of an element; two 4-bit numbers share a byte. A type that is not listed is counted by its bytes alone.
DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}


class SafetensorsError(ValueError):
    """The file is no whole safetensors file; the message says why, as the end of a sentence that names the file. ``pointer`` = it stands
    for a file that git-lfs did not fetch."""

    def __init__(self, message: str, *, pointer: bool = False) -> None:
        super().__init__(message)
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor. ``size_bytes`` is what it takes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def read_tensors(path: Path) -> list[Tensor]:
    """All tensors of ``path``. Raises OSError when it cannot be read, SafetensorsError when it is cut or something else. Blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SafetensorsError("it is not a regular file")
        return parse(_header(descriptor, status.st_size), status.st_size)
    finally:
        os.close(descriptor)


def _header(descriptor: int, file_bytes: int) -> bytes:
    first = _read(descriptor, _LENGTH.size)
    if len(first) < _LENGTH.size:
        raise SafetensorsError(f"it is cut: it has {file_bytes} bytes, not even the length of its header")
    if first == _POINTER:
        raise SafetensorsError("it is a pointer of git-lfs, the file itself was not fetched", pointer=True)
    (length,) = _LENGTH.unpack(first)
    if length > MAX_HEADER_BYTES or length < 2:
        raise SafetensorsError(f"it begins with {first!r}, which is no length of a header")
    if _LENGTH.size + length > file_bytes:
        raise SafetensorsError(f"it is cut: it has {file_bytes} bytes, its header alone needs {_LENGTH.size + length}")
    return _read(descriptor, length)


def _read(descriptor: int, count: int) -> bytes:
    parts = []
    while count > 0 and (part := os.read(descriptor, min(count, _CHUNK))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def parse(header: bytes, file_bytes: int) -> list[Tensor]:
    """The tensors that ``header`` (the JSON alone) lists, of a file of ``file_bytes``. Raises SafetensorsError."""
    try:
        listed = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"its header is not JSON: {str(error)[:100]}") from None
    if not isinstance(listed, dict):
        raise SafetensorsError("its header is not a JSON object")
    found, end = [], 0
    for tensor, stop in _tensors(listed):
        found.append(tensor)
        end = max(end, stop)
    needed = _LENGTH.size + len(header) + end
    if needed > file_bytes:
        raise SafetensorsError(f"it is cut: it has {file_bytes} bytes, its tensors need {needed}")
    return found


def _tensors(listed: Mapping[str, object]) -> Iterator[tuple[Tensor, int]]:
    for name, entry in listed.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, begin, stop = _entry(entry)
        except (TypeError, ValueError, KeyError):
            raise SafetensorsError(f"its header describes {name[:80]!r} in no way that is known") from None
        size = stop - begin
        bits = DTYPE_BITS.get(dtype)
        if size < 0 or (bits is not None and (prod(shape) * bits + 7) // 8 != size):
            raise SafetensorsError(f"its header gives {name[:80]!r} {size} bytes, which is not {dtype} {shape}")
        yield Tensor(name, dtype, tuple(shape), size), stop


def _entry(entry: object) -> tuple[str, list[int], int, int]:
    if not isinstance(entry, dict):
        raise TypeError(entry)
    begin, stop = _counts(entry["data_offsets"])
    return str(entry["dtype"]), _counts(entry["shape"]), begin, stop


def _counts(value: object) -> list[int]:
    """``value`` when it is a list of counts; raises ValueError."""
    if not isinstance(value, list) or len(value) > _MAX_RANK or not all(type(item) is int and item >= 0 for item in value):
        raise ValueError(value)
    return value
