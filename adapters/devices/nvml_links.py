"""How NVIDIA cards are linked: the islands that a gang should not leave."""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapters.devices.nvml_calls import NvmlCalls, NvmlError
from adapters.devices.nvml_roll import Seat, place_of
from adapters.procfs.processes import read_bytes

SYS = "/sys"

_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_HOST_BRIDGE = 30  # NVML_TOPOLOGY_HOSTBRIDGE: the nearest common ancestor is below one root
_AFFINITY_WORDS = 16  # NUMA nodes up to 1024


def read_islands(calls: NvmlCalls, cards: Sequence[Seat], numa: Mapping[str, int | None]) -> dict[str, tuple[str, ...]]:
    """Per card, the names of its islands: NVLink, PCIe root, NUMA node, host. Named after their first card on the bus.

    Cards joined by a chain of links are one island. Behind an NVSwitch the other end of a link is the switch, not a
    card: all cards with such a link reach each other through it.
    """
    ordered = sorted(cards, key=lambda card: card.place)
    ends = {card.uuid: _read_nvlinks(calls, card) for card in ordered}
    places = {card.place for card in ordered}

    def by_nvlink(a: Seat, b: Seat) -> bool:
        return b.place in ends[a.uuid] or a.place in ends[b.uuid] or bool(ends[a.uuid] - places and ends[b.uuid] - places)

    def by_root(a: Seat, b: Seat) -> bool:
        level = _ask(calls, "DeviceGetTopologyCommonAncestor", a.handle, b.handle, uuid=a.uuid)
        return level is not None and level <= _HOST_BRIDGE

    nvlink, root = _join(ordered, by_nvlink), _join(ordered, by_root)
    node = _join(ordered, lambda a, b: root[a.uuid] == root[b.uuid] or (numa[a.uuid] is not None and numa[a.uuid] == numa[b.uuid]))
    return {u: (f"nvlink:{nvlink[u]}", f"pcie:{root[u]}", f"numa:{node[u]}", "host") for u in (card.uuid for card in ordered)}


def read_numa_node(calls: NvmlCalls, card: Seat, sys: str = SYS) -> int | None:
    """The NUMA node a card is plugged into; None when there is only one, or nobody says.

    From sysfs, else from the memory that NVML calls near. (``nvmlDeviceGetNumaNodeId`` is something else: the node
    that the card's own memory forms on coherent platforms.)
    """
    try:
        node = int(read_bytes(os.path.join(sys, "bus/pci/devices", card.pci, "numa_node")))
    except (OSError, ValueError):
        words = _ask(calls, "DeviceGetMemoryAffinity", card.handle, _AFFINITY_WORDS, 0, uuid=card.uuid)
        bits = sum(int(word) << 64 * position for position, word in enumerate(words or ()))
        node = bits.bit_length() - 1 if bits.bit_count() == 1 else -1
    return node if node >= 0 else None


def _read_nvlinks(calls: NvmlCalls, card: Seat) -> set[tuple[int, int, int]]:
    """Where the active links of a card end, as places on the bus. Asking ends at the first link that a card refuses."""
    found = set()
    for number in range(_MAX_LINKS):
        active = _ask(calls, "DeviceGetNvLinkState", card.handle, number, uuid=card.uuid)
        if active is None:
            break
        end = _ask(calls, "DeviceGetNvLinkRemotePciInfo", card.handle, number, uuid=card.uuid) if active else None
        if end is not None:
            found.add(place_of(end))
    return found


def _ask(calls: NvmlCalls, function: str, *arguments: object, uuid: str) -> Any:
    """As ``ask``; what a card in trouble does not say about its links is not worth failing for."""
    try:
        return calls.ask(function, *arguments, uuid=uuid)
    except NvmlError:
        return None


def _join(cards: Sequence[Seat], joined: Callable[[Seat, Seat], bool]) -> dict[str, str]:
    """The first card's address on the bus, for every card of a component; ``cards`` are in order of the bus."""
    root = {card.uuid: card.pci for card in cards}
    for a, b in itertools.combinations(cards, 2):
        if root[a.uuid] != root[b.uuid] and joined(a, b):
            first, second = sorted((root[a.uuid], root[b.uuid]), key=lambda pci: next(i for i, card in enumerate(cards) if card.pci == pci))
            root = {uuid: first if name == second else name for uuid, name in root.items()}
    return root
