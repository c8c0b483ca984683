"""Resume: a new workflow that reuses what finished in one that has ended, and runs the rest again.

Its nodes are those of the earlier one, with their numbers. A node that is reused has no task: its
`source` says whose run stands for it, and is where its result is read. What runs again has a task
of its own with the execution key of the first run.

| event | what happens |
|---|---|
| the last node ends at the same moment | the row decides: ended and resumed, or `LIVES` |
| two resumes at once | one workflow: the other is told which one lives |
| a workflow that was resumed from it lives | the same |
| retention deletes it at the same moment | GONE, or it is kept: its row says since when |
| payloads or results were erased | GONE: what would run has no input |
| killed before the commit | no workflow |
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from duly.domain.errors import StatementRefused
from duly.domain.ids import make_workflow_id, milliseconds, node_id_of, shard_of
from duly.domain.node_spec import NodeKind
from duly.domain.states import State
from duly.domain.workflow import NODES_MAX, WaitRule
from duly.domain.workflow_resume import EndedNode, ResumePlan
from duly.environment import CrashPoint, Environment
from duly.store.database import SERIALIZATION_FAILURE, Session
from duly.store.finish import Released
from duly.store.partitions import placement_range
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
ENDS = (State.COMPLETED, State.FAILED, State.SKIPPED, State.CANCELLED)


class EarlierRun(NamedTuple):
    """The graph of a workflow, and how its nodes ended, by their numbers."""

    nodes: dict[int, EndedNode]
    # Of those that handlers run.
    types: dict[int, str]
    is_erased: bool

    @property
    def edges(self) -> int:
        return sum(len(node.parents) for node in self.nodes.values())


@dataclass(frozen=True, slots=True)
class Resume:
    """What is asked for. `payloads`: new ones, by number; `rate_per_s`: of what runs first."""

    workflow: UUID
    plan: ResumePlan
    payloads: Mapping[int, str] = field(default_factory=dict)
    rate_per_s: float | None = None
    # The node of another workflow that stands for the new one.
    parent_node: UUID | None = None


class Resumed(NamedTuple):
    id: UUID
    released: Released


class AlreadyResumed(NamedTuple):
    """The workflow of this chain of resumes that lives."""

    id: UUID


class NotResumable(StrEnum):
    # It has not ended.
    LIVES = "lives"
    # What completed of it was undone.
    COMPENSATED = "compensated"
    # Deleted, or erased.
    GONE = "gone"


ResumeAnswer = Resumed | AlreadyResumed | NotResumable


async def read_earlier(session: Session, tenant: int, workflow_id: UUID) -> EarlierRun | None:
    """None: it is gone, with its nodes. Only of one that has ended."""
    last = node_id_of(workflow_id, NODES_MAX)
    rows = await session.fetch(SQL.read_earlier, tenant, shard_of(workflow_id), workflow_id, last)
    if not rows:
        return None
    nodes = {
        row["number"]: EndedNode(
            row["number"],
            row["name"],
            State(row["state"]),
            WaitRule(row["wait_rule"]),
            row["parents"],
            row["children"],
            row["is_paged"],
        )
        for row in rows
    }
    types = {row["number"]: row["type"] for row in rows if row["kind"] == NodeKind.TASK}
    return EarlierRun(nodes, types, any(row["is_erased"] for row in rows))


async def resume_workflow(
    session: Session, environment: Environment, tenant: int, asked: Resume, earlier: EarlierRun
) -> ResumeAnswer:
    """In the caller's transaction; `released` is told once that has committed."""
    assert asked.plan.again, "something runs again"
    if earlier.is_erased:
        return NotResumable.GONE
    shard = shard_of(asked.workflow)
    if not await session.fetch(SQL.lock_earlier, shard, asked.workflow, tenant):
        return await why_not(session, tenant, asked.workflow)
    placement = await placement_range(session)
    placed_ms = milliseconds(placement.clamp(environment.clock.now()))
    new_id = make_workflow_id(placed_ms, shard, environment.random)
    if not await session.fetch(SQL.begin_resumed, *begin_columns(tenant, asked, earlier, new_id)):
        living = await find_living(session, tenant, asked.workflow)
        if living is None:
            raise StatementRefused(problem="a resume ended at once", code=SERIALIZATION_FAILURE)
        return AlreadyResumed(living)
    await environment.crash_point(CrashPoint.RESUME_BETWEEN)
    payloads = [asked.payloads.get(number) for number in asked.plan.again]
    await session.fetch(SQL.arm_resumed, shard, asked.workflow, new_id, asked.plan.again, payloads)
    released = Released()
    told = asked.plan.told(earlier.nodes)
    rows = await session.fetch(
        SQL.tell_resumed,
        [node_id_of(new_id, number) for number in told],
        [earlier.nodes[number].state.value for number in told],
    )
    # Steps that are due, or the end of all of it; the tasks are told with their pace.
    released.workflows += [row["id"] for row in rows if row["queue"] is None]
    last = node_id_of(new_id, NODES_MAX)
    between_s = 0.0 if asked.rate_per_s is None else 1.0 / asked.rate_per_s
    released.note(await session.fetch(SQL.pace_due, shard, new_id, last, tenant, between_s))
    return Resumed(new_id, released)


def begin_columns(tenant: int, asked: Resume, earlier: EarlierRun, new_id: UUID) -> list[object]:
    ends = Counter(earlier.nodes[number].state for number in asked.plan.reused)
    return [
        shard_of(asked.workflow),
        asked.workflow,
        tenant,
        new_id,
        len(earlier.nodes),
        asked.plan.again,
        earlier.edges,
        *(ends[state] for state in ENDS),
        asked.parent_node,
    ]


async def why_not(session: Session, tenant: int, workflow_id: UUID) -> NotResumable:
    rows = await session.fetch(SQL.read_end, shard_of(workflow_id), workflow_id, tenant)
    if not rows:
        return NotResumable.GONE
    return NotResumable.LIVES if rows[0]["ended_at"] is None else NotResumable.COMPENSATED


async def find_living(session: Session, tenant: int, workflow_id: UUID) -> UUID | None:
    """The one that lives of the chain of resumes that this one belongs to."""
    rows = await session.fetch(SQL.find_living, shard_of(workflow_id), workflow_id, tenant)
    return rows[0]["id"] if rows else None
