"""Whether caps and key limits were kept at every instant (I10), by the intervals of the leases.

Pure; `check.py` runs this with the other invariants. A lost lease counts until it was taken back.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from duly.verify.history import Evidence, Finding, TaskRow

# A tenant, or one concurrency key of a tenant; and how many may be in flight.
Bound = tuple[int, str | None]


class Change(NamedTuple):
    """One lease begins or ends. At the same instant, ends come first: they made the room."""

    at: datetime
    is_begin: bool
    task: UUID


def caps_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """At no instant more leases of a tenant than its cap, or of a key than its limit."""
    if evidence.tolerance:
        # Instants written around a clock that was set back have no order to judge by.
        return
    limits: dict[Bound, int] = {(tenant, None): cap for tenant, cap in evidence.caps.items()}
    changes: dict[Bound, list[Change]] = defaultdict(list)
    for task in evidence.tasks.values():
        if task.concurrency_key is not None:
            bound: Bound = (task.tenant, task.concurrency_key)
            limit = task.concurrency_limit or 1
            # Tasks that name different limits for one key: only the widest can be judged.
            limits[bound] = max(limit, limits.get(bound, limit))
        for each in bounds_of(task, evidence):
            changes[each] += changes_of(task.id, evidence)
    for each, most in limits.items():
        yield from excess(each, most, changes[each])


def bounds_of(task: TaskRow, evidence: Evidence) -> list[Bound]:
    bounds: list[Bound] = []
    if task.tenant in evidence.caps:
        bounds.append((task.tenant, None))
    if task.concurrency_key is not None:
        bounds.append((task.tenant, task.concurrency_key))
    return bounds


def changes_of(task: UUID, evidence: Evidence) -> Iterator[Change]:
    for row in evidence.attempts.get(task, []):
        if row.holder is not None and row.started_at is not None:
            yield Change(row.started_at, True, task)
            yield Change(row.ended_at, False, task)
    timer = evidence.timers.get(task)
    if timer is not None and timer.holder is not None and timer.started_at is not None:
        yield Change(timer.started_at, True, task)


def excess(bound: Bound, limit: int, changes: Iterable[Change]) -> Iterator[Finding]:
    """The first lease too many; the others follow from it."""
    tenant, key = bound
    name = f"tenant {tenant}" if key is None else f"key {key!r} of tenant {tenant}"
    in_flight = 0
    for change in sorted(changes, key=lambda change: (change.at, change.is_begin)):
        in_flight += 1 if change.is_begin else -1
        if in_flight > limit:
            yield (
                change.task,
                f"is number {in_flight} in flight of {name} at {change.at}, of {limit}",
            )
            return
