"""Gangs: sets of equal devices that one engine spans (tensor parallel), all or none of them."""

from collections.abc import Collection, Sequence
from itertools import combinations, islice

from scheduler.domain.device import DeviceInfo
from scheduler.domain.ids import DeviceId

#: Sets that are looked at for one model, in order: every gang of 2 out of 7, the emptiest of larger ones. A reaction has 2 ms.
MOST_GANGS = 24


def islands(devices: Sequence[DeviceInfo], count: int) -> list[list[DeviceInfo]]:
    """The groups of equal devices, within the tightest links that any group of ``count`` has; each in the order given.

    A looser island is no seat while a tighter one is large enough. Beyond the loosest link any equal devices of the host are one
    group. A process uses one MIG instance only, so instances form no gangs.
    """
    whole = [d for d in devices if d.parent is None]
    depth = max((len(d.islands) for d in whole), default=0)
    for level in range(depth + 1):
        groups: dict[tuple[object, ...], list[DeviceInfo]] = {}
        for d in whole:
            island = d.islands[level] if level < len(d.islands) else ""
            groups.setdefault((d.kind, d.name, d.capacity_bytes, island), []).append(d)
        large = [group for group in groups.values() if len(group) >= count]
        if large:
            return large
    return []


def gangs(devices: Sequence[DeviceInfo], count: int) -> tuple[tuple[DeviceId, ...], ...]:
    """Sets of ``count`` devices, those of the devices that come first in ``devices`` first; at most MOST_GANGS."""
    groups = islands(devices, count)
    found = [gang for group in groups for gang in islice(combinations(group, count), MOST_GANGS)]
    order = {d.id: n for n, d in enumerate(devices)}
    found.sort(key=lambda gang: sorted((order[d.id] for d in gang), reverse=True))
    return tuple(tuple(sorted(d.id for d in gang)) for gang in found[:MOST_GANGS])


def is_gang(chosen: Collection[DeviceId], devices: Sequence[DeviceInfo], count: int) -> bool:
    """Whether ``chosen`` is one of all such sets, among the first or not."""
    return len(chosen) == count and any(set(chosen) <= {d.id for d in group} for group in islands(devices, count))
