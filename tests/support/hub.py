"""The test's end of ``actor.py``: where actors report, are told what to do, and are seen to end."""

import asyncio
import sys
from pathlib import Path

ACTOR = Path(__file__).with_name("actor.py")


class Hub:
    """Accepts actors on a loopback port. Every wait ends by an event from the actor, never by time."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._arrived = asyncio.Condition()
        self._actors: dict[str, tuple[int, asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._accepted: list[asyncio.StreamWriter] = []  # also of actors that have not reported yet: a test may end before they do

    async def __aenter__(self) -> "Hub":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._accepted:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._accepted), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted.append(writer)
        report = (await reader.readline()).decode().split()
        if not report:
            return  # it ended, or the test did, before it said who it is
        name, pid = report
        async with self._arrived:
            self._actors[name] = (int(pid), reader, writer)
            self._arrived.notify_all()

    def argv(self, *words: str) -> tuple[str, ...]:
        """The command line of an actor that does ``words``."""
        assert self._server is not None
        return (sys.executable, "-I", "-S", str(ACTOR), str(self._server.sockets[0].getsockname()[1]), *words)

    async def pid(self, name: str) -> int:
        """The process id of an actor, once it has reported."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: name in self._actors)
        return self._actors[name][0]

    async def tell(self, name: str, sentence: str) -> str:
        """Have an actor do something; returns what it found. Raises ConnectionError when it ends over it."""
        await self.pid(name)
        _, reader, writer = self._actors[name]
        writer.write(f"{sentence}\n".encode())
        await writer.drain()
        answer = (await reader.readline()).decode().rstrip("\n")
        if not answer.startswith("ok "):
            raise ConnectionError(f"{name} ended over {sentence!r}")
        return answer.removeprefix("ok ")

    async def ended(self, name: str) -> None:
        """Return when the actor's end of the connection is closed."""
        await self.pid(name)
        _, reader, _ = self._actors[name]
        try:
            while await reader.readline():
                pass
        except ConnectionResetError:
            pass
