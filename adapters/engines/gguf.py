"""Read the header of a GGUF file: metadata and tensor sizes, without the weights.

Layout (little endian): magic ``GGUF``, u32 version (2 or 3), u64 tensor count, u64 pair count, the pairs (string key,
u32 type, value), the tensor infos (name, u32 rank, u64 dimensions, u32 type, u64 offset), then the data, aligned to
``general.alignment``. Files come from strangers: every count and length is checked against what the file can hold
before anything is allocated, and whatever does not fit raises :class:`GgufError`.
"""

import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Scalar = int | float | bool | str

MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_KEY_BYTES = 1 << 16
MAX_RANK = 8
#: Arrays up to this many numbers are kept (per-layer values); of longer ones, and of strings, only the length.
MAX_KEPT_ITEMS = 4096
MAX_SPLITS = 1024
FIRST_READ_BYTES = 16 << 20  # holds the header of most models; a vocabulary of 262,144 tokens takes 6 MiB
MAX_HEADER_BYTES = 256 << 20

_U8, _I8, _U16, _I16, _U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _U64, _I64, _F64 = range(13)
_FORMATS = {
    _U8: "B",
    _I8: "b",
    _U16: "H",
    _I16: "h",
    _U32: "I",
    _I32: "i",
    _F32: "f",
    _BOOL: "?",
    _U64: "Q",
    _I64: "q",
    _F64: "d",
}
_WIDTHS = {kind: struct.calcsize("<" + letter) for kind, letter in _FORMATS.items()}

#: ggml tensor types: (elements of a block, bytes of a block).
BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
}

_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class GgufError(ValueError):
    """The file is no readable GGUF file; the message says why."""


class _NeedMore(Exception):
    """The file goes on, but the bytes read so far do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the header of one file says.

    ``arrays`` maps a key to the values of a short array of numbers, ``lengths`` every array's key to its length.
    ``largest_packed_bytes`` is the size of the largest tensor that an engine may pack anew while loading (any but the
    token embedding, which is only looked up). ``end_bytes`` is where the last tensor ends, None when a tensor has a
    type that this reader does not know.
    """

    version: int
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    arrays: Mapping[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    tensors: int = 0
    largest_packed_bytes: int = 0
    end_bytes: int | None = None
    file_bytes: int = 0

    @property
    def architecture(self) -> str:
        """``general.architecture``, or empty."""
        return str(self.scalars.get("general.architecture", ""))

    def number(self, key: str, default: int = 0) -> int:
        """An integer of the architecture, never negative: ``number("block_count")`` reads ``llama.block_count``."""
        value = self.scalars.get(f"{self.architecture}.{key}", default)
        return max(0, value) if isinstance(value, int) else default

    @property
    def truncated(self) -> bool:
        """Whether tensors reach past the end of the file: a download that was cut."""
        return self.end_bytes is not None and self.end_bytes > self.file_bytes


def read_header(path: Path) -> Header:
    """The header of ``path``. Raises OSError when it cannot be read, GgufError when it is no GGUF file. Blocks.

    Plain reads, not a memory map: a file that is cut while it is mapped kills the process that looks at it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe must not block
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise GgufError("it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not a regular file")
        data, wanted = b"", FIRST_READ_BYTES
        while wanted <= MAX_HEADER_BYTES:
            data += _read(descriptor, min(wanted, status.st_size) - len(data))
            try:
                return parse(data, status.st_size)
            except _NeedMore:
                wanted *= 4
        raise GgufError(f"the header does not end within {len(data)} bytes")
    finally:
        os.close(descriptor)


def _read(descriptor: int, count: int) -> bytes:
    parts = []
    while count > 0 and (part := os.read(descriptor, min(count, FIRST_READ_BYTES))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def parse(data: bytes, file_bytes: int | None = None) -> Header:
    """The header at the beginning of ``data``, of a file of ``file_bytes`` (None = ``data`` is all). Raises GgufError."""
    return _parse(_Cursor(data, len(data) if file_bytes is None else file_bytes))


def split_files(path: Path) -> list[Path]:
    """All files of a split model, ``path`` among them; just ``path`` when it is not split."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    stem, _, total = match.groups()
    count = min(int(total), MAX_SPLITS)
    return [path.with_name(f"{stem}-{number:05d}-of-{total}.gguf") for number in range(1, count + 1)]


class _Cursor:
    """Sequential reads that never leave the file."""

    def __init__(self, data: bytes, file_bytes: int) -> None:
        self.data = data
        self.file_bytes = file_bytes
        self.at = 0

    def take(self, count: int) -> int:
        """Move ``count`` bytes on; returns where they begin."""
        start, end = self.at, self.at + count
        if end > self.file_bytes:
            raise GgufError(f"it is cut: {count} bytes wanted at {start}, but the file has {self.file_bytes}")
        if end > len(self.data):
            raise _NeedMore
        self.at = end
        return start

    def unpack(self, letter: str, width: int) -> int | float | bool:
        (value,) = struct.unpack_from("<" + letter, self.data, self.take(width))
        found: int | float | bool = value
        return found

    def u32(self) -> int:
        return int(self.unpack("I", 4))

    def u64(self) -> int:
        return int(self.unpack("Q", 8))

    def text(self, limit: int) -> str:
        length = self.u64()
        if length > limit:
            raise GgufError(f"a name of {length} bytes")
        start = self.take(length)
        return self.data[start : self.at].decode(errors="replace")


def _parse(cursor: _Cursor) -> Header:
    if cursor.file_bytes == 0:
        raise GgufError("the file is empty")
    magic = cursor.data[:4]
    cursor.take(4)
    if magic != b"GGUF":
        raise GgufError(f"it begins with {magic!r}, not with b'GGUF'")
    version = cursor.u32()
    if version not in (2, 3):
        other = " (big-endian file?)" if version in (2 << 24, 3 << 24) else ""
        raise GgufError(f"version {version} is not supported{other}; known are 2 and 3")
    tensors, pairs = cursor.u64(), cursor.u64()
    if pairs > MAX_PAIRS or tensors > MAX_TENSORS:
        raise GgufError(f"{pairs} metadata pairs and {tensors} tensors are more than any model has")
    scalars: dict[str, Scalar] = {}
    arrays: dict[str, tuple[int | float | bool, ...]] = {}
    lengths: dict[str, int] = {}
    for _ in range(pairs):
        key = cursor.text(MAX_KEY_BYTES)
        kind = cursor.u32()
        if kind == _ARRAY:
            lengths[key], kept = _array(cursor)
            if kept is not None:
                arrays[key] = kept
        else:
            value = _scalar(cursor, kind)
            if value is not None:
                scalars[key] = value
    largest, end = _tensors(cursor, tensors, _alignment(scalars))
    return Header(
        version=version,
        scalars=scalars,
        arrays=arrays,
        lengths=lengths,
        tensors=tensors,
        largest_packed_bytes=largest,
        end_bytes=end,
        file_bytes=cursor.file_bytes,
    )


def _scalar(cursor: _Cursor, kind: int) -> Scalar | None:
    """A value; None for a text too long to be of interest (chat templates)."""
    if kind == _STRING:
        length = cursor.u64()
        start = cursor.take(length)
        return cursor.data[start : cursor.at].decode(errors="replace") if length <= MAX_KEY_BYTES else None
    if kind not in _FORMATS:
        raise GgufError(f"unknown value type {kind}")
    return cursor.unpack(_FORMATS[kind], _WIDTHS[kind])


def _array(cursor: _Cursor) -> tuple[int, tuple[int | float | bool, ...] | None]:
    kind, length = cursor.u32(), cursor.u64()
    if kind == _STRING:
        _skip_texts(cursor, length)
        return length, None
    if kind not in _FORMATS:
        raise GgufError(f"an array of value type {kind}")
    start = cursor.take(length * _WIDTHS[kind])
    if length > MAX_KEPT_ITEMS:
        return length, None
    return length, struct.unpack_from(f"<{length}{_FORMATS[kind]}", cursor.data, start)


def _skip_texts(cursor: _Cursor, count: int) -> None:
    """Walk over ``count`` strings: a vocabulary has hundreds of thousands, so no calls in the loop but one."""
    data, at, last = cursor.data, cursor.at, len(cursor.data) - 8
    if count > (cursor.file_bytes - at) // 8:
        raise GgufError(f"it is cut: an array of {count} texts at {at}, but the file has {cursor.file_bytes} bytes")
    unpack = struct.Struct("<Q").unpack_from
    for _ in range(count):
        if at > last:
            break
        at += 8 + unpack(data, at)[0]
    else:
        cursor.take(at - cursor.at)
        return
    cursor.take(at + 8 - cursor.at)  # cut, or not read yet: it says which
    raise GgufError("an array of texts that ends nowhere")


def _alignment(scalars: Mapping[str, Scalar]) -> int:
    value = scalars.get("general.alignment", 32)
    if not isinstance(value, int) or value <= 0 or value > 1 << 20 or value & (value - 1):
        raise GgufError(f"alignment {value!r} is not a power of two")
    return value


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[int, int | None]:
    """Bytes of the largest tensor but the embedding, and where the data ends in the file (None = a type of unknown size)."""
    largest, end, known = 0, 0, True
    for _ in range(count):
        name = cursor.text(MAX_KEY_BYTES)
        rank = cursor.u32()
        if rank > MAX_RANK:
            raise GgufError(f"a tensor of rank {rank}")
        elements = 1
        for _ in range(rank):
            elements *= cursor.u64()
        kind, offset = cursor.u32(), cursor.u64()
        if kind not in BLOCKS:
            known = False
            continue
        per_block, block_bytes = BLOCKS[kind]
        size = -(-elements // per_block) * block_bytes
        if not name.startswith("token_embd"):
            largest = max(largest, size)
        end = max(end, offset + size)
    data_start = -(-cursor.at // alignment) * alignment
    return largest, data_start + end if known else None
