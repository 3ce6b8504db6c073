"""Waiting for a file descriptor on the event loop."""

import asyncio


async def wait_readable(fd: int) -> None:
    """Return when a pipe has bytes or its end, or the process of a descriptor has ended. Cancellable, never polls."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
