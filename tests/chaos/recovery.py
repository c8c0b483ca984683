"""How long it took until things were well again, from what the witnesses say. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from duly.domain.states import Outcome
from duly.verify.history import Tables
from tests.chaos.evidence import Told
from tests.chaos.injector import Measured
from tests.chaos.plan import Kind


@dataclass(frozen=True)
class Figure:
    """What is promised, and what was seen."""

    name: str
    most_s: float
    seen_s: Sequence[float]

    @property
    def summary(self) -> dict[str, object]:
        ordered = sorted(self.seen_s)
        return {
            "most_allowed_s": self.most_s,
            "times": len(ordered),
            "median_s": round(ordered[len(ordered) // 2], 2) if ordered else None,
            "worst_s": round(ordered[-1], 2) if ordered else None,
            "all_s": [round(seconds, 2) for seconds in self.seen_s],
        }


def figures(
    measured: Iterable[Measured], taken_over_s: Sequence[float], told: list[Told], tables: Tables
) -> list[Figure]:
    measured = list(measured)
    return [
        Figure("postgres_ready_to_first_dispatch", 3.0, first_dispatches(measured, tables)),
        Figure("scheduler_kill_to_slots_owned", 12.0, taken_over_s),
        Figure("worker_kill_to_reclaim", 17.0, reclaims(measured, told, tables)),
    ]


def first_dispatches(measured: Iterable[Measured], tables: Tables) -> list[float]:
    """From PostgreSQL being ready to the first lease after that."""
    starts = sorted(row.started_at for row in tables.attempts if row.started_at is not None)
    found = []
    for fault in measured:
        if fault.kind is not Kind.KILL:
            place = bisect_right(starts, fault.at)
            if place < len(starts):
                found.append(seconds(fault.at, starts[place]))
    return found


def reclaims(measured: Iterable[Measured], told: list[Told], tables: Tables) -> list[float]:
    """From the kill of a worker until the last task it held was taken back."""
    found = []
    for fault in measured:
        holders = {line.holder for line in told if line.pid == fault.pid and line.holder}
        lost_at = [
            row.ended_at
            for row in tables.attempts
            if row.holder in holders
            and row.outcome == Outcome.LEASE_LOST
            and row.ended_at > fault.at
        ]
        if lost_at:
            found.append(seconds(fault.at, max(lost_at)))
    return found


def seconds(since: datetime, until: datetime) -> float:
    return (until - since).total_seconds()
