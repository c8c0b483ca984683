"""What bulk operations do with workflows: find those that match, and change a few in one commit.

| event | what happens |
|---|---|
| one ends, is paused or resumed meanwhile | its row decides: it is counted as refused |
| a large one is cancelled | its first nodes here, the rest by its timer |
| new ones are started, or made by a resume | newer than the operation: not matched |
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from duly.domain.ids import address_of
from duly.domain.workflow import WorkflowStop
from duly.domain.workflow_resume import ResumePlan, plan_resume
from duly.environment import Environment
from duly.events import TasksRescheduled, TasksStored
from duly.store.control import released_event
from duly.store.database import Session
from duly.store.finish import Released
from duly.store.load import hints_of
from duly.store.statements import statements_beside
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_resumes import Resume, Resumed, read_earlier, resume_workflow
from duly.store.workflows import LAST_WORKFLOW, WorkflowFilter

SQL = statements_beside(__file__)
# Of one commit: each of them may have 10,000 nodes.
WORKFLOWS_AT_ONCE = 10


class FoundWorkflow(NamedTuple):
    id: UUID
    name: str


class Stretch(NamedTuple):
    """What matches of so many that were looked at; `following` None at the end."""

    items: list[FoundWorkflow]
    following: str | None
    looked_at: int


async def walk_workflows(
    session: Session,
    tenant: int,
    action: str,
    wanted: WorkflowFilter,
    until: datetime,
    position: str | None,
    limit: int,
    looked_at_max: int,
) -> Stretch:
    """Newest first, behind a position."""
    rows = await session.fetch(
        *(SQL.walk, tenant, LAST_WORKFLOW if position is None else UUID(position)),
        *(wanted.state, wanted.name, *(wanted.tag or (None, None))),
        *(wanted.created_after, until, action, looked_at_max),
    )
    looked_at = rows[0]["looked_at"] if rows else 0
    items = [FoundWorkflow(row["id"], row["name"]) for row in rows if row["is_match"]]
    following = None
    if len(items) > limit:
        items = items[:limit]
        following = str(items[-1].id)
    elif looked_at == looked_at_max:
        following = str(rows[-1]["id"])
    return Stretch(items, following, looked_at)


class ChangedWorkflows(NamedTuple):
    done: int
    events: list[Any]


async def cancel_workflows(
    session: Session, _environment: Environment, tenant: int, _actor: str, ids: Sequence[UUID]
) -> ChangedWorkflows:
    released, done = Released(), 0
    for workflow_id in sorted(ids, key=address_of):
        reason = WorkflowStop.CANCELLED
        done += await stop_workflow(session, tenant, workflow_id, reason, released)
    return ChangedWorkflows(done, released_event(tenant, released))


async def pause_workflows(
    session: Session, _environment: Environment, tenant: int, actor: str, ids: Sequence[UUID]
) -> ChangedWorkflows:
    in_order = sorted(ids, key=address_of)
    done = [await pause_workflow(session, tenant, each, actor) for each in in_order]
    return ChangedWorkflows(sum(done), [])


async def unpause_workflows(
    session: Session, _environment: Environment, tenant: int, _actor: str, ids: Sequence[UUID]
) -> ChangedWorkflows:
    released, done = Released(), 0
    for workflow_id in sorted(ids, key=address_of):
        done += await unpause_workflow(session, tenant, workflow_id, released)
    events: list[Any] = [TasksRescheduled(hints_of(released.timers))]
    events += released_event(tenant, Released(workflows=released.workflows))
    return ChangedWorkflows(done, events)


async def resume_workflows(
    session: Session, environment: Environment, tenant: int, _actor: str, ids: Sequence[UUID]
) -> ChangedWorkflows:
    """From what failed or was cancelled. Refused: what has nothing of that, or is kept no more."""
    released, done = Released(), 0
    for workflow_id in sorted(ids, key=address_of):
        earlier = await read_earlier(session, tenant, workflow_id)
        plan = plan_resume(earlier.nodes) if earlier is not None else []
        if earlier is None or not isinstance(plan, ResumePlan) or not plan.again:
            continue
        asked = Resume(workflow_id, plan)
        answer = await resume_workflow(session, environment, tenant, asked, earlier)
        if isinstance(answer, Resumed):
            done += 1
            released.timers += answer.released.timers
            released.workflows += answer.released.workflows
    events: list[Any] = [TasksStored(hints=hints_of(released.timers))]
    events += released_event(tenant, Released(workflows=released.workflows))
    return ChangedWorkflows(done, events)
