"""Who holds how much of a device, also where the driver names processes but no bytes. Pure bookkeeping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.domain.ids import Holder
from scheduler.domain.units import GIB

#: More than this on a device that lists no process at all: the list is worth nothing (a container, an old driver).
_UNEXPLAINED_BYTES = GIB
#: Bytes of a holder that has ended are expected to go within this time; later shrinking is somebody else's.
_LINGER_S = 30.0

Groups = Mapping[Holder, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Shares:
    """The outcome: every holder asked for is in ``own``; ``strangers`` are the processes that belong to none."""

    own: dict[Holder, int]
    foreign_bytes: int
    estimated: bool
    strangers: dict[int, int | None]


@dataclass(slots=True)
class Attribution:
    """What is remembered between the samples of one device.

    A holder without numbers of its own keeps what it was last attributed. What moves on the device and is explained by
    nobody's number belongs to the holders that are known to move; other growth is foreign, other shrinking the largest
    such holder's. At the very first look what is unexplained is shared equally among the processes without a number.
    """

    last_used: int | None = None
    last_own: dict[Holder, int] = field(default_factory=dict)
    last_told: dict[int, int] = field(default_factory=dict)  # bytes of strangers by process
    lists: bool = False  # the driver was seen to tell what our processes hold
    ghosts: list[tuple[float, int]] = field(default_factory=list)  # (until, bytes) of holders that have ended

    def divide(self, used: int, listed: Mapping[int, int | None] | None, groups: Groups, moving: frozenset[Holder], now_s: float) -> Shares:
        """Divide ``used`` bytes. ``listed`` = bytes by process as the driver says; None = it lists none."""
        blind = listed is None or (not listed and used > _UNEXPLAINED_BYTES)
        shown = listed or {}
        ours = {pid for pids in groups.values() for pid in pids}
        strangers = {pid: held for pid, held in shown.items() if pid not in ours}
        told = self.last_told if listed is None else self._told(strangers)
        known, unknown = {}, set()
        for holder, pids in groups.items():
            if pids and (blind or any(shown.get(pid, 0) is None for pid in pids)):
                unknown.add(holder)
            else:
                known[holder] = sum(shown.get(pid) or 0 for pid in pids)
        self._bury(groups, now_s)
        self.lists |= any(known.values())
        own = known
        if unknown:
            unexplained = max(0, used - sum(known.values()) - sum(told.values()))
            if self.last_used is None:
                parts = len(unknown) + sum(pid not in told for pid in strangers)
                own = known | {holder: unexplained // parts for holder in unknown}
            else:
                # What an ended holder had is unexplained from now on, until it is seen to go.
                explained = sum(self.last_own.get(holder, 0) for holder in known if groups[holder]) + sum(self.last_told.values())
                own = known | self._guess(unknown, unexplained - (self.last_used - explained), unexplained, moving)
        self.last_used, self.last_told = used, told
        self.last_own = {holder: own[holder] for holder, pids in groups.items() if pids}
        return Shares({holder: own[holder] for holder in groups}, max(0, used - sum(own.values())), bool(unknown), strangers)

    def _told(self, strangers: Mapping[int, int | None]) -> dict[int, int]:
        """Bytes of strangers; one that has no number any more keeps its last one."""
        told = {pid: self.last_told.get(pid) if held is None else held for pid, held in strangers.items()}
        return {pid: held for pid, held in told.items() if held is not None}

    def _bury(self, groups: Groups, now_s: float) -> None:
        ended = [held for holder, held in self.last_own.items() if not groups.get(holder) and held]
        self.ghosts = [ghost for ghost in self.ghosts if ghost[0] > now_s] + [(now_s + _LINGER_S, held) for held in ended]

    def _guess(self, unknown: set[Holder], change: int, unexplained: int, moving: frozenset[Holder]) -> dict[Holder, int]:
        """Bytes of the holders without numbers, after the unexplained bytes changed by ``change``."""
        own = {holder: self.last_own.get(holder, 0) for holder in unknown}
        movers = sorted(unknown & moving)
        if change > 0:
            for position, holder in enumerate(movers):
                own[holder] += change // len(movers) + (1 if position < change % len(movers) else 0)
        elif change < 0:
            _take_largest(own, _take_by_share(own, movers, self._exorcise(-change)))
        _take_largest(own, sum(own.values()) - unexplained)
        return own

    def _exorcise(self, gone: int) -> int:
        """Let ghosts take what is gone; returns what they do not explain."""
        kept = []
        for until_s, held in self.ghosts:
            taken = min(held, gone)
            gone -= taken
            if held > taken:
                kept.append((until_s, held - taken))
        self.ghosts = kept
        return gone


def _take_by_share(own: dict[Holder, int], movers: Sequence[Holder], gone: int) -> int:
    """Take from the movers in proportion to what they have; returns what they had not."""
    total = sum(own[holder] for holder in movers)
    taken = min(total, gone)
    left = taken
    for holder in movers:
        part = min(left, -(-own[holder] * taken // total)) if total else 0
        own[holder] -= part
        left -= part
    return gone - taken


def _take_largest(own: dict[Holder, int], gone: int) -> None:
    for holder in sorted(own, key=lambda holder: (-own[holder], holder)):
        taken = min(own[holder], max(0, gone))
        own[holder] -= taken
        gone -= taken
