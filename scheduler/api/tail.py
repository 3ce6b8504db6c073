"""Reading pieces of log files that another process appends to and the daemon truncates in place."""

import os
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 2 << 20  # per answer
_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``offset`` = where to read on (bytes); ``truncated`` = older or longer text was left out."""

    lines: list[str]
    offset: int
    truncated: bool


def read_tail(path: Path, lines: int, max_bytes: int = MAX_BYTES) -> Piece:
    """The last ``lines`` lines of a file, at most ``max_bytes`` of it. Blocking; a missing file is empty.

    A last line without its newline is shown: a program that dies often ends like that. ``offset`` stays before it, so
    that who follows gets it again as a whole once it is finished, and never its second half alone.
    """
    try:
        with path.open("rb") as file:
            start = end = file.seek(0, os.SEEK_END)
            data, block = b"", _BLOCK
            while start > 0 and data.count(b"\n") <= lines and end - start < max_bytes:
                start, block = max(0, end - max_bytes, start - block), block * 2
                file.seek(start)
                data = file.read(end - start)
    except FileNotFoundError:
        return Piece(lines=[], offset=0, truncated=False)
    whole, rest = _split(data)
    offset = start + len(data) - (len(rest) if whole or start == 0 else 0)
    if rest:
        whole.append(rest)
    if start > 0 and len(whole) > 1:
        del whole[0]  # its beginning was not read
    kept = whole[-lines:] if lines else []
    return Piece(lines=_text(kept), offset=offset, truncated=start > 0 or len(kept) < len(whole))


def read_from(path: Path, offset: int, max_bytes: int = MAX_BYTES) -> Piece:
    """The whole lines from byte ``offset`` on, at most ``max_bytes``; from the start when the file became shorter.

    Blocking; a missing file is empty. Of a line longer than ``max_bytes`` the beginning is shown. An offset inside a
    line skips the rest of it: what stands there cannot be judged without its beginning, and may be half a secret.
    """
    try:
        with path.open("rb") as file:
            if offset > file.seek(0, os.SEEK_END):
                offset = 0
            file.seek(max(0, offset - 1))
            inside = offset > 0 and file.read(1) != b"\n"
            data = file.read(max_bytes)
    except FileNotFoundError:
        return Piece(lines=[], offset=0, truncated=False)
    whole, rest = _split(data)
    if not whole and len(data) == max_bytes:
        whole, rest = [data], b""
    return Piece(lines=_text(whole[1:] if inside else whole), offset=offset + len(data) - len(rest), truncated=inside)


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    *whole, rest = data.split(b"\n")
    return whole, rest


def _text(lines: list[bytes]) -> list[str]:
    return [line.rstrip(b"\r").decode("utf-8", "replace") for line in lines]
