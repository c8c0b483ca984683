"""Every row of every system, in turns: the machine's speed changes from minute to minute, and a
ratio should not. Row by row the systems follow each other, who goes first changes from round to
round, and the median of the rounds counts."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from benchmarks.peers.catalogue import FLOW_ROWS, TASK_ROWS
from benchmarks.peers.driver import PeerFailed, Show

ROWS = (*TASK_ROWS, *FLOW_ROWS)
# So often in each round: the slowest hundredth of few tasks is at the mercy of a disk that stalls.
TURNS = {"latency": 2}
# What takes longer than this is measured once: a run should end within an hour.
SLOW_S = 60.0


class System(Protocol):
    name: str

    @property
    def rows(self) -> Collection[str]:
        """What it can be asked for."""
        ...

    async def measure(self, row: str) -> dict[str, float]:
        """Figures by name. Raises PeerFailed or TimeoutError."""
        ...


@dataclass
class Record:
    """What the rounds saw of one system."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)

    async def take(self, system: System, row: str) -> None:
        """A row that fails says why, is not tried again, and does not stop the others."""
        began = time.perf_counter()
        try:
            figures = await system.measure(row)
        except (PeerFailed, TimeoutError) as error:
            self.problems[row] = str(error) or "took too long"
            return
        for name, value in figures.items():
            self.samples.setdefault(name, []).append(value)
        if time.perf_counter() - began > SLOW_S:
            self.slow.add(row)

    def summary(self) -> dict[str, Any]:
        return {
            "figures": {name: median(values) for name, values in self.samples.items()},
            "samples": self.samples,
            "problems": self.problems,
        }


async def measure_in_turns(
    systems: Sequence[System], rounds: int, show: Show, rows: Sequence[str] = ROWS
) -> dict[str, dict[str, Any]]:
    records = {system.name: Record() for system in systems}
    turns = [row for row in rows for _ in range(TURNS.get(row, 1))]
    for number in range(rounds):
        for row in turns:
            for system in turned(systems, number):
                record = records[system.name]
                if row not in system.rows or row in record.slow or row in record.problems:
                    continue
                show(f"round {number + 1} of {rounds}, {row}: {system.name}")
                await record.take(system, row)
    return {name: record.summary() for name, record in records.items()}


def turned(systems: Sequence[System], number: int) -> list[System]:
    first = number % len(systems)
    return [*systems[first:], *systems[:first]]
