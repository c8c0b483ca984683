"""Fair dispatch order: between tenants by weight, within a tenant by band and priority.

Between tenants, deficit round robin: each turn a tenant may spend its weight, and what it could not
spend for lack of work is lost, not saved. Within a tenant, higher bands go first, but a band that
waits gets a minimum share, and waiting promotes a task by one band each `aging_s`. Within a band,
higher priorities go first, but nothing that has waited for `aging_s` is overtaken there.
"""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from duly.domain.task import BANDS, HIGH, LOW, NORMAL

Entry = TypeVar("Entry")
Member = TypeVar("Member", bound=Hashable)

AGING_S = 300.0
# Out of every hundred picks, how many a band gets at least while it has work.
MINIMUM_SHARES = {HIGH: 0, NORMAL: 20, LOW: 10}
SHARE_BASE = 100
NONE_CLOSED: frozenset[int] = frozenset()
ALL_BANDS = tuple(range(BANDS))


# A consumer's order of bands over ten turns: each comes first often enough to keep its share.
HIGH_FIRST, NORMAL_FIRST, LOW_FIRST = (HIGH, NORMAL, LOW), (NORMAL, HIGH, LOW), (LOW, HIGH, NORMAL)
BAND_TURNS = {4: NORMAL_FIRST, 7: NORMAL_FIRST, 9: LOW_FIRST}


def band_order(turn: int) -> tuple[int, ...]:
    """In which order a consumer looks at the lanes, at its `turn`-th look."""
    return BAND_TURNS.get(turn % 10, HIGH_FIRST)


class RoundRobin(Generic[Member]):
    """Deficit round robin over the members that have work. One pick costs one."""

    def __init__(self, weight_of: Callable[[Member], float]) -> None:
        self.weight_of = weight_of
        self.turns: deque[Member] = deque()
        self.deficits: dict[Member, float] = {}
        self.turn_is_open = False

    def __contains__(self, member: Member) -> bool:
        return member in self.deficits

    def __len__(self) -> int:
        return len(self.turns)

    def join(self, member: Member, savings: float = 0.0) -> None:
        """The member has work; joining twice changes nothing."""
        if member not in self.deficits:
            self.deficits[member] = savings
            self.turns.append(member)

    def leave(self, member: Member) -> None:
        """The member has no work, or may not be served now: its deficit is void."""
        if self.deficits.pop(member, None) is None:
            return
        if self.turns[0] == member:
            self.turns.popleft()
            self.turn_is_open = False
        else:
            self.turns.remove(member)

    def pick(self) -> Member | None:
        """The member whose turn it is; the caller serves one of its tasks, or removes it."""
        while self.turns:
            member = self.turns[0]
            if not self.turn_is_open:
                self.deficits[member] += self.weight_of(member)
                self.turn_is_open = True
            if self.deficits[member] >= 1.0:
                self.deficits[member] -= 1.0
                return member
            self.turns.rotate(-1)
            self.turn_is_open = False
        return None

    def take_back(self, member: Member) -> None:
        """A pick of this member came to nothing: it is its turn as before."""
        self.deficits[member] += 1.0


# Of one priority, the oldest first: when each was due, and what it is.
Level = deque[tuple[float, Entry]]


@dataclass(slots=True)
class BandQueue(Generic[Entry]):
    """One tenant's ready tasks: by band, by priority within a band, and the oldest first among
    equals. Within its band too, a task that has waited for `aging_s` goes before younger ones."""

    # Of each band, its priorities that have tasks.
    bands: list[dict[int, Level[Entry]]] = field(default_factory=lambda: [{} for _ in range(BANDS)])
    credits: list[int] = field(default_factory=lambda: [0] * BANDS)
    aging_s: float = AGING_S

    def __len__(self) -> int:
        return sum(len(level) for band in self.bands for level in band.values())

    def push(self, band: int, priority: int, due_at: float, entry: Entry) -> None:
        self.level_of(band, priority).append((due_at, entry))

    def extend(self, band: int, priority: int, entries: Iterable[tuple[float, Entry]]) -> None:
        """Several at once, each with when it was due."""
        self.level_of(band, priority).extend(entries)

    def push_front(self, band: int, priority: int, due_at: float, entry: Entry) -> None:
        """Put back what could not be dispatched, without losing its place."""
        self.level_of(band, priority).appendleft((due_at, entry))

    def level_of(self, band: int, priority: int) -> Level[Entry]:
        level = self.bands[band].get(priority)
        if level is None:
            level = self.bands[band][priority] = deque()
        return level

    def waiting(self) -> list[int]:
        """The bands that have tasks, the highest first."""
        return [band for band in ALL_BANDS if self.bands[band]]

    def pop(
        self, now: float, closed: Collection[int] = NONE_CLOSED
    ) -> tuple[int, float, Entry] | None:
        """The next task of a band that is not closed, and the band it waited in."""
        band = self.choose(now, closed)
        if band is None:
            return None
        levels = self.bands[band]
        priority = next(iter(levels)) if len(levels) == 1 else self.choose_level(levels, now)
        level = levels[priority]
        due_at, entry = level.popleft()
        if not level:
            del levels[priority]
        return band, due_at, entry

    def choose(self, now: float, closed: Collection[int] = NONE_CLOSED) -> int | None:
        bands = self.bands
        waiting = [band for band in ALL_BANDS if bands[band] and band not in closed]
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        # Every pick earns a waiting lower band its share; a full share is owed a pick.
        owed = None
        for band in waiting[1:]:
            self.credits[band] += MINIMUM_SHARES[band]
            if self.credits[band] >= SHARE_BASE:
                owed = band
        if owed is not None:
            self.credits[owed] -= SHARE_BASE
            return owed
        return min(waiting, key=lambda band: (self.aged(band, now), oldest(bands[band])))

    def choose_level(self, levels: dict[int, Level[Entry]], now: float) -> int:
        """The highest priority, unless another's oldest task has waited for too long."""
        first = min(levels, key=lambda priority: levels[priority][0][0])
        return first if now - levels[first][0][0] >= self.aging_s else max(levels)

    def aged(self, band: int, now: float) -> int:
        """The band its oldest task has risen to by waiting."""
        waited_s = now - oldest(self.bands[band])
        return max(HIGH, band - max(0, int(waited_s // self.aging_s)))


def oldest(levels: dict[int, Level[Entry]]) -> float:
    """When the oldest task of a band was due."""
    return min(level[0][0] for level in levels.values())
