"""Pauses that are the behaviour under test: a client's pace, the moment at which a blow falls.

Not for waiting until something has happened: that is what events, pipes and lines are for.
"""

import asyncio


async def pause(seconds: float) -> None:
    """Do nothing for a while, as a client does."""
    await asyncio.sleep(seconds)
