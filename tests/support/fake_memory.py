"""Memory of a fake engine that is really there."""

import mmap

BLOCK = b"\1" * (1 << 20)


class Memory:
    """Anonymous memory of a given size, every page of it touched."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []
        self.size = 0

    def set(self, size: int) -> None:
        """Grow or shrink to ``size`` bytes, whole MiB."""
        blocks = size >> 20
        while len(self._maps) > blocks:
            self._maps.pop().close()
        while len(self._maps) < blocks:
            block = mmap.mmap(-1, len(BLOCK))
            block[:] = BLOCK
            self._maps.append(block)
        self.size = blocks << 20
