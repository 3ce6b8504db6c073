"""Looks at an engine and its processes that may fail, for want of descriptors for example: the next one may not."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from scheduler.domain.errors import HotseatError
from scheduler.domain.ids import InstanceId
from scheduler.ports.launcher import ExitInfo, Launcher, ProcessHandle

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Seconds between looks at a group that is ending.
GROUP_POLL_S = 0.05
#: Seconds until a look that failed is repeated.
LOOK_AGAIN_S = 0.5


class Looks:
    """What one supervisor sees of its engine. Nothing here gives up: whoever asked cancels, or the reducer's deadlines do."""

    def __init__(self, instance: InstanceId, launcher: Launcher) -> None:
        self._instance = instance
        self._launcher = launcher
        self._blind = False  # the last look failed

    async def attempt(self, look: Awaitable[T]) -> T | None:
        """What it saw; None when it failed."""
        try:
            seen = await look
        except Exception as error:  # noqa: BLE001 - logged there
            self._note(error)
            return None
        self._blind = False
        return seen

    async def leader_end(self, handle: ProcessHandle) -> ExitInfo:
        """Return when the leader has ended."""
        while True:
            ended = await self.attempt(self._launcher.wait_leader(handle))
            if ended is not None:
                return ended
            await asyncio.sleep(LOOK_AGAIN_S)

    async def group_end(self, handle: ProcessHandle) -> None:
        """Return when no process of the group is left; nothing wakes us when a stranger's child ends."""
        while True:
            members = await self.attempt(self._launcher.members(handle))
            if members is not None and not members:
                return
            await asyncio.sleep(GROUP_POLL_S if members else LOOK_AGAIN_S)

    async def strays_end(self, state_uuid: str, token: str, *, kill: bool) -> None:
        """Signal each carrier of ``token`` once, and return when none is left."""
        told: set[ProcessHandle] = set()
        while True:
            owned = await self.attempt(self._launcher.owned(state_uuid))
            strays = [each.handle for each in owned or () if each.token == token]
            if owned is not None and not strays:
                return
            for stray in strays:
                if stray not in told:
                    await self.terminate(stray, kill=kill)
                    told.add(stray)
            await asyncio.sleep(GROUP_POLL_S if strays else LOOK_AGAIN_S)

    async def terminate(self, handle: ProcessHandle, *, kill: bool) -> None:
        """Signal a group. What may not be signalled is logged: the reducer asks again after a while."""
        while True:
            try:
                await self._launcher.terminate(handle, kill=kill)
            except HotseatError as error:
                log.error("%s: %s", self._instance, error.message)
                return
            except Exception as error:  # noqa: BLE001 - logged there
                self._note(error)
                await asyncio.sleep(LOOK_AGAIN_S)
            else:
                return

    def _note(self, error: Exception) -> None:
        if not self._blind:
            log.error("%s: a look at it failed and is repeated: %s: %s", self._instance, type(error).__name__, error, exc_info=error)
        self._blind = True
