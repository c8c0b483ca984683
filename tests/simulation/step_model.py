"""What the nodes of a workflow do besides running a task, from what was asked for: `if`, waits and
their signals, maps and their items, pauses. Written down once more, without any code of the
engine; `workflow_model.py` says when their parents let them."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

STARTS = """SELECT duly.workflow_of(id) AS workflow, id, started_at FROM duly.attempts
             WHERE tenant = ANY($1::integer[]) AND duly.is_node(id) AND holder IS NOT NULL
             ORDER BY id, fence"""
SIGNALS = """SELECT workflow, number, name, access, idempotency_key, received_at, consumed_by
               FROM duly.workflow_signals
              WHERE tenant = ANY($1::integer[]) ORDER BY workflow, number"""
# Who may send what wants a role.
SENDERS = {
    "producer": ("producer", "operator", "admin"),
    "operator": ("operator", "admin"),
    "admin": ("admin",),
}
# Into what a wait turns at its timeout.
TIMED_OUT = {"skip": "SKIPPED", "fail": "FAILED", "continue": "COMPLETED"}


class Condition(NamedTuple):
    """An `if`: the state of a parent is this one, or the answer in its result is above a number."""

    parent: int
    state: str | None = None
    above: int = 0


class WantedWait(NamedTuple):
    """`time_s` until it ends by itself; without a signal that is what it is for."""

    signal: str | None
    time_s: float
    role: str = "producer"
    on_timeout: str = "fail"


class WantedMap(NamedTuple):
    """Over `numbers`, or over the list (`source`), or the pages, of a parent."""

    numbers: int | None = None
    source: int | None = None
    is_paged: bool = False
    max_items: int = 1000
    max_parallel: int | None = None
    tolerated: int | None = None
    tolerated_percent: int | None = None

    def failed_max(self, total: int) -> int:
        if self.tolerated_percent is None:
            return self.tolerated or 0
        return total * self.tolerated_percent // 100


class Step(NamedTuple):
    """What one node does besides what every node does."""

    condition: Condition | None = None
    wait: WantedWait | None = None
    map: WantedMap | None = None
    # Once it has completed, it can be undone; of a map, each item.
    is_undoable: bool = False

    @property
    def is_task(self) -> bool:
        return self.wait is None and self.map is None


PLAIN = Step()


class Spoken(NamedTuple):
    """What the handler of a node answers when it completes: a number, and a list."""

    answer: int
    items: list[int]


class WantedSignal(NamedTuple):
    """One that was sent; `number`: how it was answered, None if it was not."""

    name: str
    access: str
    key: str | None
    number: int | None


@dataclass
class Pauses:
    """When a workflow is known to have been paused."""

    intervals: list[tuple[datetime, datetime]] = field(default_factory=list)
    since: datetime | None = None
    # Ends of a pause that were asked for and have no answer yet.
    ending: int = 0

    def begun(self, at: datetime) -> None:
        if not self.ending:
            self.since = self.since or at

    def ended(self, at: datetime) -> None:
        if self.since is not None:
            self.intervals.append((self.since, at))
            self.since = None

    def cover(self, at: datetime) -> bool:
        return any(since < at < until for since, until in self.intervals)


@dataclass(frozen=True)
class Item:
    """An item of a map."""

    id: UUID
    place: int
    state: str | None
    created_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    ends: int


class Undoing(NamedTuple):
    """A node that undoes the one with that number."""

    undoes: int
    id: UUID
    number: int
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None


class Sent(NamedTuple):
    """A signal that is stored."""

    number: int
    name: str
    access: str
    key: str | None
    received_at: datetime
    consumed_by: int | None


class Standing(NamedTuple):
    """How one node stands, for those below. `total`: the items that its map should have, None where
    that cannot be known; `is_refused`: that source has no items, or too many."""

    number: int
    state: str | None
    started_at: datetime | None
    ended_at: datetime | None
    result: str | None
    # A client asked to cancel it, or all of its workflow stopped.
    may_be_cancelled: bool
    total: int | None = None
    is_refused: bool = False


def holds(
    condition: Condition | None, states: dict[int, str], answers: dict[int, int | None]
) -> bool | None:
    """None: the result that it asks for was erased."""
    if condition is None:
        return True
    if condition.state is not None:
        return states[condition.parent] == condition.state
    if states[condition.parent] != "COMPLETED":
        return False
    answer = answers[condition.parent]
    return None if answer is None else answer > condition.above


# Waits -------------------------------------------------------------------------------------------


def judge_wait(
    node: Standing, wait: WantedWait, sent: Sequence[Sent], *, is_serial: bool
) -> Iterator[str]:
    """Of a node that began to wait."""
    assert node.started_at is not None
    assert node.ended_at is not None
    given = [each for each in sent if each.consumed_by == node.number]
    for each in given:
        if each.name != wait.signal or each.access not in SENDERS[wait.role]:
            yield f"waits for {wait.signal} of {wait.role}, and got {each.name} of {each.access}"
    if len(given) > 1:
        yield f"got {len(given)} signals"
    if given:
        if node.state != "COMPLETED":
            yield f"is {node.state}, and got its signal"
        return
    if node.state == "CANCELLED":
        return
    expected = TIMED_OUT[wait.on_timeout] if wait.signal else "COMPLETED"
    if node.state != expected:
        yield f"is {node.state} without a signal, and should be {expected}"
    if node.ended_at < node.started_at + timedelta(seconds=wait.time_s):
        yield f"waited from {node.started_at} to {node.ended_at}, and not {wait.time_s} s"
    for each in sent if is_serial else ():
        is_its = each.name == wait.signal and each.access in SENDERS[wait.role]
        if is_its and each.consumed_by is None and each.received_at < node.ended_at:
            yield f"timed out at {node.ended_at}, and signal {each.number} was kept for it"


def judge_signals(
    asked: Sequence[WantedSignal], sent: Sequence[Sent], waits: Collection[int]
) -> Iterator[str]:
    """Each that was answered is stored, each key once, and each is got by one node that waits."""
    stored = {each.number: each for each in sent}
    for wish in asked:
        found = stored.get(wish.number or 0)
        if wish.number is not None and (
            found is None or (found.name, found.access) != (wish.name, wish.access)
        ):
            yield f"signal {wish} is stored as {found}"
    keys = Counter(each.key for each in sent if each.key is not None)
    yield from (f"signals with the key {key}: {times}" for key, times in keys.items() if times > 1)
    if [each.number for each in sent] != list(range(1, len(sent) + 1)):
        yield f"signals are numbered {[each.number for each in sent]}"
    if len(sent) > len(asked):
        yield f"has {len(sent)} signals, and {len(asked)} were sent"
    for each in sent:
        if each.consumed_by is not None and each.consumed_by not in waits:
            yield f"signal {each.number} was given to {each.consumed_by}, which does not wait"
    yield from overtaken(sent)


def overtaken(sent: Sequence[Sent]) -> Iterator[str]:
    """Of two alike, the earlier one is given first."""
    kept: set[tuple[str, str]] = set()
    for each in sent:
        if each.consumed_by is None:
            kept.add((each.name, each.access))
        elif (each.name, each.access) in kept:
            yield f"signal {each.number} was given before an earlier one like it"


# Maps --------------------------------------------------------------------------------------------


def judge_map(
    node: Standing,
    wanted: WantedMap,
    items: Sequence[Item],
    cancelled: Collection[UUID],
    *,
    is_serial: bool,
) -> Iterator[str]:
    """Of a map that has ended, whether it began or not."""
    if node.started_at is None:
        # One that was cancelled does not tell whether it had begun.
        if items and node.state != "CANCELLED":
            yield f"has {len(items)} items, and never began"
        if node.state == "FAILED" and node.total is not None and not node.is_refused:
            yield f"failed before it began, and has {node.total} items"
        return
    yield from judge_items(node, items, cancelled, is_serial=is_serial)
    failed = sum(item.state == "FAILED" for item in items)
    if is_serial and wanted.max_parallel is not None and most_open(items) > wanted.max_parallel:
        yield f"had {most_open(items)} items open, and {wanted.max_parallel} are the most"
    yield from judge_end(node, wanted, len(items), failed)
    if node.result is not None:
        counts = json.loads(node.result)
        completed = sum(item.state == "COMPLETED" for item in items)
        if (counts["completed"], counts["failed"]) != (completed, failed):
            yield f"tells {counts}, and {completed} completed, {failed} failed"


def judge_items(
    node: Standing, items: Sequence[Item], cancelled: Collection[UUID], *, is_serial: bool
) -> Iterator[str]:
    assert node.started_at is not None
    assert node.ended_at is not None
    if sorted(item.place for item in items) != list(range(len(items))):
        yield f"has items in the places {sorted(item.place for item in items)}"
    for item in items:
        if item.ends != 1 or item.ended_at is None:
            yield f"item {item.place} ended {item.ends} times"
            continue
        if is_serial and item.created_at is not None and item.created_at < node.started_at:
            yield f"item {item.place} was made at {item.created_at}, before {node.started_at}"
        may_end = node.may_be_cancelled or node.state == "FAILED" or item.id in cancelled
        if item.state == "SKIPPED" or (item.state == "CANCELLED" and not may_end):
            yield f"item {item.place} is {item.state}"
        has_ended = node.state in ("COMPLETED", "FAILED")
        if is_serial and has_ended and item.ended_at > node.ended_at:
            yield f"ended at {node.ended_at}, before its item {item.place} at {item.ended_at}"


def judge_end(node: Standing, wanted: WantedMap, made: int, failed: int) -> Iterator[str]:
    if node.state == "CANCELLED" or node.total is None:
        return
    if node.is_refused:
        if node.state != "FAILED":
            yield f"is {node.state}, and its source has no items for it"
        return
    most = wanted.failed_max(node.total)
    if (node.state == "FAILED") != (failed > most):
        yield f"is {node.state} with {failed} of {node.total} items failed, tolerated {most}"
    if made > node.total or (node.state == "COMPLETED" and made < node.total):
        yield f"is {node.state} with {made} items, and there are {node.total}"


def most_open(items: Sequence[Item]) -> int:
    """At one instant; what ends at the same instant as another is made has ended before."""
    changes = [(item.created_at, 1) for item in items if item.created_at is not None]
    changes += [(item.ended_at, -1) for item in items if item.ended_at and item.created_at]
    most = now_open = 0
    for _, change in sorted(changes):
        now_open += change
        most = max(most, now_open)
    return most


# Pauses ------------------------------------------------------------------------------------------


def judge_pauses(pauses: Pauses, starts: Sequence[Any]) -> Iterator[str]:
    for row in starts:
        if row["started_at"] is not None and pauses.cover(row["started_at"]):
            yield f"{row['id']} started at {row['started_at']}, in a pause: {pauses.intervals}"


# Undoing ----------------------------------------------------------------------------------------


def judge_undoing(
    undoing: Sequence[Undoing], ends: dict[int, datetime], *, must: bool, may: bool
) -> Iterator[str]:
    """`ends`: when each node or item completed that can be undone, of an item its map. All of them
    are, if they `must`, and none, unless they `may`: each once, the last that completed first."""
    undone = [each.undoes for each in undoing]
    if len(set(undone)) < len(undone):
        yield f"undoes some twice: {undone}"
    if not may and undone:
        yield f"undoes {undone}, and has no reason to"
    if not set(undone) <= ends.keys() or (must and set(undone) != ends.keys()):
        yield f"undoes {undone}, and these completed: {sorted(ends)}"
        return
    order = [ends[each.undoes] for each in sorted(undoing, key=lambda each: each.number)]
    if order != sorted(order, reverse=True):
        yield f"undoes {undone} in another order than the last first: {order}"
    latest: dict[datetime, datetime] = {}
    for each in undoing:
        if each.ended_at is None:
            yield f"has not undone {each.undoes}"
            return
        place = ends[each.undoes]
        latest[place] = max(latest.get(place, each.ended_at), each.ended_at)
    for each in undoing:
        before = [at for place, at in latest.items() if place > ends[each.undoes]]
        if each.started_at is not None and before and each.started_at < max(before):
            yield f"began to undo {each.undoes} at {each.started_at}, before {max(before)}"
