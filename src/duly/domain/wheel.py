"""A hierarchical timing wheel: many timers, each put in and taken out at constant cost.

Time is counted in ticks. The lowest level has one slot per tick; each level above has one slot per
whole turn of the level below, and is poured down when its turn comes. A slot becomes due as a
whole. Entries are never removed: the database decides later whether a due entry still stands.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

SLOT_BITS = 8
SLOTS = 1 << SLOT_BITS
LEVELS = 3
SPAN_TICKS = SLOTS**LEVELS


class Wheel(Generic[Entry]):
    def __init__(self, now_tick: int) -> None:
        """Every tick up to and including `now_tick` has passed."""
        self.now_tick = now_tick
        self.size = 0
        self.levels: list[list[list[tuple[int, Entry]]]] = [
            [[] for _ in range(SLOTS)] for _ in range(LEVELS)
        ]
        self.overdue: list[Entry] = []

    def __len__(self) -> int:
        return self.size

    def add(self, tick: int, entry: Entry) -> None:
        """Make `entry` due at `tick`; one that is past comes out at the next advance."""
        assert tick - self.now_tick < SPAN_TICKS, "beyond the wheel: load it later"
        self.size += 1
        self.place(tick, entry)

    def place(self, tick: int, entry: Entry) -> None:
        if tick <= self.now_tick:
            self.overdue.append(entry)
            return
        # The highest group of bits in which the tick differs from now names the level.
        level = ((tick ^ self.now_tick).bit_length() - 1) // SLOT_BITS
        if level >= LEVELS:
            # The span crosses a turn of the top level: its slot is free again by then.
            level = LEVELS - 1
        slot = (tick >> (level * SLOT_BITS)) & (SLOTS - 1)
        self.levels[level][slot].append((tick, entry))

    def advance(self, now_tick: int) -> list[Entry]:
        """Everything due up to and including `now_tick`, in order of its tick."""
        due, self.overdue = self.overdue, []
        for tick in self.ticks_until(now_tick):
            self.now_tick = tick
            if tick & (SLOTS - 1) == 0:
                self.pour_down(tick)
                if self.overdue:
                    due += self.overdue
                    self.overdue = []
            slot = self.levels[0][tick & (SLOTS - 1)]
            if slot:
                due += [entry for _, entry in slot]
                slot.clear()
        self.size -= len(due)
        return due

    def ticks_until(self, now_tick: int) -> Iterator[int]:
        """Tick by tick while anything is stored; an empty wheel jumps."""
        if self.size == len(self.overdue):
            self.now_tick = max(self.now_tick, now_tick)
        while self.now_tick < now_tick:
            yield self.now_tick + 1

    def pour_down(self, tick: int) -> None:
        """A level has turned: spread the slots above it that have now begun."""
        for level in range(1, LEVELS):
            slot = (tick >> (level * SLOT_BITS)) & (SLOTS - 1)
            entries, self.levels[level][slot] = self.levels[level][slot], []
            for due_tick, entry in entries:
                self.place(due_tick, entry)
            if slot != 0:
                return

    def next_tick(self) -> int | None:
        """A tick at which to look again: exact within the lowest level, early above it."""
        if self.overdue:
            return self.now_tick
        if self.size == 0:
            return None
        base = self.now_tick & ~(SLOTS - 1)
        for slot in range((self.now_tick & (SLOTS - 1)) + 1, SLOTS):
            if self.levels[0][slot]:
                return base + slot
        return base + SLOTS
