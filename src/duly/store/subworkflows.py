"""Workflows within workflows: a node starts one, and ends with it.

The node runs as long as the workflow inside, which is a workflow as any other, on the same shard;
its row says for which node it stands. Each has its own lock: they meet in `workflow_timers`.

| event | what happens |
|---|---|
| killed before the commit of the start | no workflow: the step is still there, and starts it |
| the workflow inside ends | in its last commit a `child` timer of the one around becomes due |
| a look at it is under way at that moment | that timer has a new fence: there is another look |
| the one around is cancelled or stopped, or the node is | the one inside gets a `stop` timer |
| it ends at the same moment | the lock of its row decides; the node ends as it ended |
| a cancel comes while the node begins | the lock decides: no workflow, or one that is stopped |
| the one around is paused | what runs inside goes on; the node may end, its children are held |
| the one around is resumed, and the node runs again | what it started is resumed as well |
| the one inside is resumed by itself | that one stands for no node |
| its pool is new | rolled back; the pool is made, and it is started again |
| too many within each other | the node fails, and says so |
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from duly.domain.errors import StatementRefused, TooManyPools
from duly.domain.ids import key_shard, node_id_of, node_number, shard_of
from duly.domain.limits import RESULT_BYTES_MAX
from duly.domain.node_spec import WorkflowSpec
from duly.domain.states import FailureReason, Outcome, State
from duly.domain.workflow import NESTED_MAX
from duly.domain.workflow_resume import ResumePlan, plan_resume
from duly.domain.workflow_types import TypeReference
from duly.store.database import Session
from duly.store.finish import NodeEnd, Released, end_node
from duly.store.statements import statements_beside
from duly.store.submit import Submitter
from duly.store.templates import INNER, start_from
from duly.store.workflow_nodes import LiveNode, read_live_node
from duly.store.workflow_resumes import (
    AlreadyResumed,
    EarlierRun,
    Resume,
    Resumed,
    read_earlier,
    resume_workflow,
)
from duly.store.workflow_timers import WorkflowTimer
from duly.store.workflow_types import read_templates
from duly.store.workflows import WorkflowStart, WorkflowStarter, pools_of_starts

SQL = statements_beside(__file__)
# Last nodes of a graph whose results are handed on, and of how many bytes in all.
RESULTS_MAX = 100
RESULTS_BYTES_MAX = RESULT_BYTES_MAX - 16 * 1024

# What follows the commit.
After = Callable[[], Awaitable[None]]


class InnerResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node answers that stands for a workflow. `results`: of the last nodes of its graph;
    `has_more`: not of all of them."""

    workflow: UUID
    state: State
    counts: dict[str, int]
    results: dict[str, msgspec.Raw]
    has_more: bool = False


class NewPools(Exception):
    """Rolls back a start: pools are made before its transaction. Never leaves the role."""

    def __init__(self, pools: set[tuple[int, str]]) -> None:
        super().__init__(pools)
        self.pools = pools


class Subworkflows:
    """Starts them; `submitter` knows pools and partitions."""

    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.starter = WorkflowStarter(submitter.database, submitter)

    async def make_pools(self, asked: NewPools) -> None:
        await self.submitter.pools.resolve(asked.pools)

    async def begin(
        self, session: Session, node: LiveNode, row: Any, released: Released
    ) -> After | None:
        """From its step: under the lock of the workflow around, whose row this is."""
        key = shard_of(node.id), node.id
        if not await session.fetch(SQL.begin_inner, *key, node.run_at):
            return None
        earlier = await self.find_earlier(session, node, row)
        if earlier is not None and await self.resume(session, node, *earlier, released):
            return None
        return await self.start(session, node, row, released)

    async def start(
        self, session: Session, node: LiveNode, row: Any, released: Released
    ) -> After | None:
        found = await start_of(session, node, row)
        if isinstance(found, str):
            await end_node(session, node.id, failed(found), released)
            return None
        try:
            placed = await self.starter.place([found], session)
        except TooManyPools as refused:
            await end_node(session, node.id, failed(str(refused)), released)
            return None
        except StatementRefused:
            raise NewPools(pools_of_starts([found])) from None
        won, now = await self.starter.store(session, placed)
        return partial(self.starter.publish_stored, won, now)

    async def find_earlier(
        self, session: Session, node: LiveNode, row: Any
    ) -> tuple[UUID, ResumePlan, EarlierRun] | None:
        """What it started in an earlier workflow of a chain of resumes, and what of that runs
        again; None: nothing, or it is kept no more."""
        if row["root"] is None:
            return None
        asked = shard_of(node.id), row["root"], node_number(node.id), node.tenant
        rows = await session.fetch(SQL.find_earlier, *asked)
        if not rows or rows[0]["state"] is None:
            return None
        earlier = await read_earlier(session, node.tenant, rows[0]["id"])
        if earlier is None:
            return None
        plan = plan_resume(earlier.nodes)
        if rows[0]["state"] == State.COMPLETED or not (isinstance(plan, ResumePlan) and plan.again):
            roots = [each.name for each in earlier.nodes.values() if not each.parents]
            plan = plan_resume(earlier.nodes, roots)
        return (rows[0]["id"], plan, earlier) if isinstance(plan, ResumePlan) else None

    async def resume(
        self,
        session: Session,
        node: LiveNode,
        workflow_id: UUID,
        plan: ResumePlan,
        earlier: EarlierRun,
        released: Released,
    ) -> bool:
        """False: it cannot be resumed, and starts anew."""
        environment = self.submitter.environment
        asked = Resume(workflow_id, plan, parent_node=node.id)
        answer = await resume_workflow(session, environment, node.tenant, asked, earlier)
        if isinstance(answer, AlreadyResumed):
            detail = f"workflow {workflow_id} is resumed already: {answer.id} has not ended"
            await end_node(session, node.id, failed(detail), released)
        if isinstance(answer, Resumed):
            released.timers += answer.released.timers
            released.workflows += answer.released.workflows
        return isinstance(answer, Resumed | AlreadyResumed)


async def start_of(session: Session, node: LiveNode, row: Any) -> WorkflowStart | str:
    """The workflow that it starts, or why it cannot."""
    spec = node.spec.workflow
    assert spec is not None
    depth = row["depth"] + 1
    if depth >= NESTED_MAX:
        return f"more than {NESTED_MAX} workflows within each other"
    (task,) = await session.fetch(SQL.read_start, shard_of(node.id), node.id, node.tenant)
    inner = INNER.decode(task["payload"])
    template = inner.template
    if template is None:
        (pinned,) = await read_templates(session, [(node.tenant, reference_of(spec))])
        if pinned is None:
            return f"no workflow type or version is {reference_of(spec)}"
        template = pinned.template
    start = start_from(template, node.tenant, inner.payload_text)
    if spec.version is not None:
        start = replace(start, type=spec.name, type_version=spec.version)
    for each in start.nodes:
        key = each.task.policy.concurrency_key
        if key is not None and key_shard(node.tenant, key) != shard_of(node.id):
            return f"the concurrency key of {each.name!r} is counted on another shard"
    return replace(start, parent_node=node.id, depth=depth)


def reference_of(spec: WorkflowSpec) -> TypeReference:
    return TypeReference(spec.name, spec.version)


async def run_child(session: Session, timer: WorkflowTimer, released: Released) -> None:
    """The workflow that a node stands for may have ended: under the lock of the one around. Also
    where that is being stopped: the node waits for this."""
    node = await read_live_node(session, node_id_of(timer.workflow, timer.node), timer.due_at)
    if node is None:
        return
    rows = await session.fetch(SQL.read_inside, shard_of(node.id), node.id)
    if rows:
        assert rows[0]["state"] is not None, "a node ends before the workflow inside it"
        result = await result_of(session, rows[0])
        await end_node(session, node.id, end_of(rows[0], result), released)


def end_of(inside: Any, result: str) -> NodeEnd:
    match State(inside["state"]):
        case State.COMPLETED:
            return NodeEnd(Outcome.COMPLETED, State.COMPLETED, result=result)
        case State.CANCELLED:
            return NodeEnd(Outcome.CANCELLED, State.CANCELLED, result=result)
        case _:
            why = f"{inside['failed']} of its nodes failed"
            if inside["stop_reason"] == "deadline":
                why = "its deadline passed"
            return failed(f"workflow {inside['id']} failed: {why}", result)


def failed(detail: str, result: str | None = None) -> NodeEnd:
    reason = FailureReason.WORKFLOW_FAILED
    return NodeEnd(Outcome.FAILED, State.FAILED, reason, detail, result)


async def result_of(session: Session, inside: Any) -> str:
    asked = RESULTS_MAX + 1, RESULTS_BYTES_MAX
    rows = await session.fetch(SQL.read_results, shard_of(inside["id"]), inside["id"], *asked)
    results: dict[str, msgspec.Raw] = {}
    left = RESULTS_BYTES_MAX
    for row in rows[:RESULTS_MAX]:
        content = row["result"].encode()
        if len(content) > left:
            break
        left -= len(content)
        results[row["name"]] = msgspec.Raw(content)
    names = ("completed", "failed", "skipped", "cancelled")
    counts = {name: inside[name] for name in names}
    told = InnerResult(
        inside["id"], State(inside["state"]), counts, results, len(results) < len(rows)
    )
    return msgspec.json.encode(told).decode()
