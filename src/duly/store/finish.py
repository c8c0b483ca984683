"""The finish move: every way a task ends. In one commit its timer goes, its last attempt is
recorded, and a failure leaves a dead letter.

| way | statement |
|---|---|
| its holder completed it | `finish_completed` |
| its last attempt failed or its lease was lost; a running task was cancelled | `finish_terminal` |
| it was to start by an instant that has passed | `finish_unstarted` |
| it was cancelled before a lease | `finish_cancelled` |

Nodes of workflows end by the same ways in commits of their own (`finish_..._nodes`), which also
release their children (`duly.release_children`), in the one round trip. No node has a `start_by`.
A node that no holder runs (a wait, a map, a workflow), or that its `if` skips, ends by `end_node`.

| event | what happens |
|---|---|
| late, after the lease was taken over | fence or holder differ on the row: nothing |
| a cancel was requested meanwhile | completed stays COMPLETED, every other end is CANCELLED |
| killed before the commit | nothing, and no child is released; the lease runs out |
| two parents of a node end at the same moment | one waits for the lock of their workflow |
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from duly.domain.ids import address_of, is_node, shard_of
from duly.domain.lanes import Ticket
from duly.domain.states import FailureReason, Outcome, State
from duly.domain.task import WEBHOOK_POOL
from duly.store.database import Database, Session
from duly.store.lease import ticket_columns
from duly.store.load import DueTimer, TimerQueue
from duly.store.statements import statements_beside
from duly.store.unnest import runs

SQL = statements_beside(__file__)
# The first lease of a task has fence 1.
NO_LEASE, NO_HOLDER = 0, UUID(int=0)


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How a leased attempt ended, as its holder reports it."""

    id: UUID
    fence: int
    holder: UUID
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    error_kind: str = ""
    retry_in_s: float | None = None
    at_least_s: float | None = None


class SettleStatus(StrEnum):
    SETTLED = "settled"
    REPLAY = "replay"
    STALE = "stale"
    # Nothing changed, and the lease stays.
    REFUSED = "refused"


class SettleAnswer(msgspec.Struct, frozen=True, gc=False):
    status: SettleStatus
    state: State | None = None
    due_at: datetime | None = None
    timer_queue: TimerQueue | None = None
    # Of what was settled just now: the tenant whose caps may have capacity, and its concurrency
    # key.
    tenant: int | None = None
    has_key: bool = False
    # Why it is a dead letter, if it just became one.
    reason: str | None = None
    # Of a failed or lost attempt: what breakers count.
    type: str = ""
    pool: int = WEBHOOK_POOL
    # What the ends of a whole batch of nodes set free, told with the first of its answers.
    released: tuple[DueTimer, ...] = ()
    # Workflows that have something to do at once: stop, or tell of their end.
    workflows_due: tuple[UUID, ...] = ()


@dataclass(slots=True)
class Released:
    """What a transaction set free by ending nodes, to be published once it has committed."""

    timers: list[DueTimer] = field(default_factory=list)
    # Workflows that have something to do at once.
    workflows: list[UUID] = field(default_factory=list)
    # Nodes that a cancel ended.
    cancelled: list[UUID] = field(default_factory=list)
    # Nodes that ended without a lease, and how (`end_node`).
    ended: list[tuple[UUID, "NodeEnd"]] = field(default_factory=list)

    def note(self, rows: Sequence[Any]) -> None:
        self.timers += [due_from(row) for row in rows if row["queue"] is not None]
        self.workflows += [row["id"] for row in rows if row["queue"] is None]


class NodeEnd(NamedTuple):
    """How a node ends that no holder runs. A failure has a reason, for its dead letter."""

    outcome: Outcome
    state: State
    reason: FailureReason | None = None
    error: str | None = None
    # JSON: what children, predicates and callers read as its result.
    result: str | None = None


STALE = SettleAnswer(SettleStatus.STALE)
REPLAY = SettleAnswer(SettleStatus.REPLAY)


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """A decided settlement: `state` is terminal, or None when the task goes on in `delay_s`."""

    settlement: Settlement
    state: State | None
    delay_s: float = 0.0
    losses: int = 0
    reason: FailureReason | None = None
    fingerprint: str = ""
    type: str = ""
    pool: int = WEBHOOK_POOL


async def finish_completed(
    database: Database, items: list[tuple[int, Settlement]], *, calls_back: bool = False
) -> dict[int, SettleAnswer]:
    """Those of the numbered settlements that ended their task; sorted by address. `calls_back`:
    the ends of some may have to be told."""
    done = [settlement for _, settlement in items]
    shards, ids, fences, holders = key_columns(done)
    results = [item.result for item in done]
    statement = SQL.finish_completed
    if calls_back:
        statement = SQL.finish_completed_with_callbacks
    groups = await database.fetch(statement, ids, *runs(shards, fences, holders, results))
    if len(groups) == 1 and groups[0]["ended"] == len(items):
        # All of one tenant, and all of them ended: the usual case, and one answer.
        return dict.fromkeys([ordinal for ordinal, _ in items], completed_answer(groups[0]))
    ended: dict[tuple[UUID, int], SettleAnswer] = {}
    for group in groups:
        answer = completed_answer(group)
        ended |= dict.fromkeys(zip(group["ids"], group["fences"], strict=True), answer)
    return {
        ordinal: ended[key] for ordinal, item in items if (key := (item.id, item.fence)) in ended
    }


async def finish_terminal(
    database: Database, ends: dict[int, AttemptEnd], *, expired: bool
) -> dict[int, SettleAnswer]:
    """Those of the numbered ends with a state that ended their task. Nodes go apart."""
    final = {ordinal: end for ordinal, end in ends.items() if end.state is not None}
    nodes = {ordinal: end for ordinal, end in final.items() if is_node(end.settlement.id)}
    plain = {ordinal: end for ordinal, end in final.items() if ordinal not in nodes}
    answers: dict[int, SettleAnswer] = {}
    if plain:
        rows = await fetch_terminal(database, SQL.finish_terminal, plain, expired)
        answers |= terminal_answers(rows, plain)
    if nodes:
        rows = await fetch_terminal(database, SQL.finish_terminal_nodes, nodes, expired)
        ended = terminal_answers([row for row in rows if row["is_end"]], nodes)
        answers |= with_released(rows, ended)
    return answers


async def fetch_terminal(
    database: Database, statement: str, final: dict[int, AttemptEnd], expired: bool
) -> list[Any]:
    return await database.fetch(
        statement,
        *key_columns([end.settlement for end in final.values()]),
        [end.settlement.outcome.value for end in final.values()],
        [end.state.value for end in final.values() if end.state],
        [end.reason.value if end.reason else None for end in final.values()],
        [end.settlement.error for end in final.values()],
        [end.fingerprint for end in final.values()],
        expired,
    )


def terminal_answers(rows: Sequence[Any], final: dict[int, AttemptEnd]) -> dict[int, SettleAnswer]:
    ended = {(row["id"], row["fence"]): row for row in rows}
    return {
        ordinal: terminal_answer(ended[key], end)
        for ordinal, end in final.items()
        if (key := (end.settlement.id, end.settlement.fence)) in ended
    }


async def finish_completed_nodes(
    session: Session, items: list[tuple[int, Settlement]]
) -> dict[int, SettleAnswer]:
    """The same for nodes of workflows, and with them what became due."""
    done = [settlement for _, settlement in items]
    shards, ids, fences, holders = key_columns(done)
    results = [item.result for item in done]
    rows = await session.fetch(
        SQL.finish_completed_nodes, ids, *runs(shards, fences, holders, results)
    )
    ended = {(row["id"], row["fence"]): row for row in rows if row["is_end"]}
    return with_released(
        rows,
        {
            ordinal: completed_answer(ended[key])
            for ordinal, item in items
            if (key := (item.id, item.fence)) in ended
        },
    )


def with_released(rows: Sequence[Any], answers: dict[int, SettleAnswer]) -> dict[int, SettleAnswer]:
    """The first answer tells what the whole statement set free."""
    if answers:
        released = Released()
        released.note([row for row in rows if not row["is_end"]])
        first = next(iter(answers))
        answers[first] = told(answers[first], released)
    return answers


def told(answer: SettleAnswer, released: Released) -> SettleAnswer:
    if not released.timers and not released.workflows:
        return answer
    return replace(answer, released=tuple(released.timers), workflows_due=tuple(released.workflows))


def due_from(row: Any) -> DueTimer:
    return DueTimer(
        row["tenant"],
        row["shard"],
        row["queue"],
        row["id"],
        row["fence"],
        row["due_at"],
        row["priority"],
        None,
        row["type"],
        row["concurrency_key"],
        row["concurrency_limit"],
        row["host"],
    )


async def finish_unstarted(database: Database, tickets: Sequence[Ticket]) -> list[UUID]:
    """Those whose `start_by` has passed; the row decides, not the caller."""
    ordered = sorted(tickets, key=lambda ticket: address_of(ticket.id))
    rows = await database.fetch(SQL.finish_unstarted, *ticket_columns(ordered))
    return [row["id"] for row in rows]


async def finish_cancelled(
    session: Session, tenant: int, ids: list[UUID], released: Released
) -> dict[UUID, str]:
    """`cancelled` for those that ended, `cancel_requested` for those that a holder runs. Sorted by
    address; nodes of workflows go first, whose locks come before those of any task."""
    nodes = [task_id for task_id in ids if is_node(task_id)]
    plain = [task_id for task_id in ids if not is_node(task_id)]
    answers: dict[UUID, str] = {}
    if nodes:
        shards = [shard_of(task_id) for task_id in nodes]
        rows = await session.fetch(SQL.finish_cancelled_nodes, tenant, shards, nodes)
        answers |= {row["id"]: row["answer"] for row in rows if row["is_end"]}
        released.note([row for row in rows if not row["is_end"]])
    if plain:
        shards = [shard_of(task_id) for task_id in plain]
        rows = await session.fetch(SQL.finish_cancelled, tenant, shards, plain)
        answers |= {row["id"]: row["answer"] for row in rows}
    return answers


async def end_node(session: Session, node_id: UUID, end: NodeEnd, released: Released) -> bool:
    """The one end of a node without a lease: a wait that got its signal or timed out, a map that
    closed, a workflow within a workflow that ended, a task that its `if` skips.

    The caller's transaction holds the lock of the workflow (`workflow_control.run_timer` does, and
    others begin with `workflow_nodes.lock_workflow`) and deletes what `workflow_timers` has for the
    node. This deletes the node's timer, writes its record, counts it and releases, arms or skips
    its children; `released` learns of all that, and `control.publish_released` tells it after the
    commit. False: it has ended (was cancelled), or its parents have not decided; then nothing was
    changed. A failure leaves a dead letter, which a tenant's own session may not write.
    """
    assert (end.state is State.FAILED) == (end.reason is not None)
    reason = None if end.reason is None else end.reason.value
    told = end.outcome.value, end.state.value, reason, end.error, end.result
    statement = SQL.finish_failed_node if end.state is State.FAILED else SQL.finish_node
    rows = await session.fetch(statement, shard_of(node_id), node_id, *told)
    released.note([row for row in rows if not row["is_end"]])
    if not any(row["is_end"] for row in rows):
        return False
    released.ended.append((node_id, end))
    return True


def completed_answer(group: Any) -> SettleAnswer:
    tenant, has_key = group["tenant"], group["has_key"]
    return SettleAnswer(SettleStatus.SETTLED, State.COMPLETED, tenant=tenant, has_key=has_key)


def unleased_end(task_id: UUID, outcome: Outcome) -> Settlement:
    """Of a task that ended without a lease: its fence and holder are those of no lease."""
    return Settlement(task_id, NO_LEASE, NO_HOLDER, outcome)


def expired_answer(tenant: int) -> SettleAnswer:
    """Of a task that `finish_unstarted` ended."""
    reason = FailureReason.EXPIRED.value
    return SettleAnswer(SettleStatus.SETTLED, State.FAILED, tenant=tenant, reason=reason)


def terminal_answer(row: Any, end: AttemptEnd) -> SettleAnswer:
    return SettleAnswer(
        SettleStatus.SETTLED,
        State(row["state"]),
        tenant=row["tenant"],
        has_key=row["has_key"],
        reason=row["reason"],
        type=end.type,
        pool=end.pool,
    )


def key_columns(
    items: Sequence[Settlement],
) -> tuple[list[int], list[UUID], list[int], list[UUID]]:
    ids = [item.id for item in items]
    return (
        [shard_of(task_id) for task_id in ids],
        ids,
        [item.fence for item in items],
        [item.holder for item in items],
    )
