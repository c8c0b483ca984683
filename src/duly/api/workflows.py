"""Workflows over HTTP: start, read, list, wait, explain, cancel."""

import hashlib
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import msgspec

from duly.api.admission import Admission
from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, later, not_found
from duly.api.rate_limit import Throttle
from duly.api.request import Answer, Call
from duly.api.task_wait import TaskWaits
from duly.api.tasks import (
    REPLAY,
    SUBMIT_REFUSALS,
    first_of,
    gone,
    header_key,
    mismatch,
    tag_of,
    task_id_of,
)
from duly.api.wire import Page, page, raw
from duly.api.workflow_body import WorkflowChecks, decode_workflow
from duly.api.workflow_reading import WorkflowReading
from duly.api.workflow_wire import (
    WAIT_S_MAX,
    ExplainQuery,
    GraphView,
    NamedParent,
    ParentsQuery,
    WorkflowExplanation,
    WorkflowListQuery,
    WorkflowNodesQuery,
    WorkflowNodeView,
    WorkflowPage,
    WorkflowRequest,
    WorkflowView,
    WorkflowWaitQuery,
    node_view,
    workflow_view,
)
from duly.domain.access import PRODUCERS
from duly.domain.ids import is_node, node_id_of, node_number
from duly.domain.states import TERMINAL, State
from duly.domain.workflow import WorkflowStop
from duly.events import TaskEvents, TasksRescheduled
from duly.store.control import publish_released
from duly.store.database import Database, Session
from duly.store.finish import Released
from duly.store.load import hints_of
from duly.store.submit import Mismatch
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_starts import WorkflowStarts, traced
from duly.store.workflows import (
    Started,
    Workflow,
    WorkflowFilter,
    find_started,
    list_workflows,
    read_parents,
    read_workflow,
)
from duly.tracing import OFF, Tracing

BODY_BYTES_MAX = 16 * 1024 * 1024
TAG = "Workflows"


@dataclass(frozen=True)
class WorkflowRoutes:
    database: Database
    starts: WorkflowStarts
    checks: WorkflowChecks
    admission: Admission
    throttle: Throttle
    waiting: TaskWaits
    events: TaskEvents
    tracing: Tracing = OFF

    def endpoints(self) -> list[Endpoint]:
        return [*self.changing(), *self.looking(), *self.looking_inside()]

    def changing(self) -> list[Endpoint]:
        route = partial(Endpoint, access=PRODUCERS, tag=TAG)
        return [
            route(
                "POST",
                "/v1/workflows",
                "Start a workflow: up to 10,000 tasks, joined by `after`",
                self.start,
                Kind.HOT,
                body=WorkflowRequest,
                checks_types=True,
                answers={201: WorkflowView, 200: WorkflowView},
                refusals=SUBMIT_REFUSALS,
                body_bytes_max=BODY_BYTES_MAX,
                decode=decode_workflow,
                is_batch=True,
            ),
            route(
                "POST",
                "/v1/workflows/{id}/cancel",
                "Cancel a workflow; what runs is asked to stop",
                self.cancel,
                Kind.CONTROL,
                answers={200: WorkflowView, 202: WorkflowView},
                refusals=(Code.NOT_FOUND, Code.ALREADY_TERMINAL),
            ),
            route(
                "POST",
                "/v1/workflows/{id}/pause",
                "Pause a workflow: nothing of it starts; what runs goes on",
                self.pause,
                Kind.CONTROL,
                answers={200: WorkflowView},
                refusals=(Code.NOT_FOUND, Code.ALREADY_TERMINAL),
            ),
            route(
                "POST",
                "/v1/workflows/{id}/unpause",
                "Go on with a workflow that is paused",
                self.unpause,
                Kind.CONTROL,
                answers={200: WorkflowView},
                refusals=(Code.NOT_FOUND, Code.ALREADY_TERMINAL),
            ),
        ]

    def looking(self) -> list[Endpoint]:
        route = partial(Endpoint, access=PRODUCERS, tag=TAG, refusals=(Code.NOT_FOUND,))
        at = "/v1/workflows/{id}"
        return [
            Endpoint(
                "GET",
                "/v1/workflows",
                "List workflows, newest first",
                self.list_page,
                Kind.READ,
                access=PRODUCERS,
                query=WorkflowListQuery,
                answers={200: WorkflowPage},
                refusals=(Code.INVALID_QUERY,),
                tag=TAG,
            ),
            route(
                "GET",
                at,
                "Read a workflow, with its critical path and when it may end",
                self.get,
                Kind.READ,
                answers={200: WorkflowView},
            ),
        ]

    def looking_inside(self) -> list[Endpoint]:
        route = partial(Endpoint, access=PRODUCERS, tag=TAG, refusals=(Code.NOT_FOUND,))
        at = "/v1/workflows/{id}"
        return [
            route(
                "GET",
                f"{at}/status",
                "Read a workflow's state and counts",
                self.status,
                Kind.READ,
                answers={200: WorkflowView},
            ),
            route(
                "GET",
                f"{at}/nodes",
                "List the nodes of a workflow, or the items of one of its maps, in their order",
                self.nodes,
                Kind.READ,
                query=WorkflowNodesQuery,
                answers={200: Page[WorkflowNodeView]},
            ),
            route(
                "GET",
                f"{at}/nodes/{{node}}/parents",
                "List the parents of a node with their results",
                self.parents,
                Kind.READ,
                query=ParentsQuery,
                answers={200: Page[NamedParent]},
            ),
            route(
                "GET",
                f"{at}/graph",
                "Read the whole graph of a workflow",
                self.graph,
                Kind.READ,
                answers={200: GraphView},
            ),
            route(
                "GET",
                f"{at}/explain",
                "Say what the nodes of a workflow wait for",
                self.explain,
                Kind.READ,
                query=ExplainQuery,
                answers={200: WorkflowExplanation},
            ),
            route(
                "GET",
                f"{at}/wait",
                "Wait for a workflow to end, for a while",
                self.wait,
                Kind.HOT,
                query=WorkflowWaitQuery,
                answers={200: WorkflowView},
                timeout_s=WAIT_S_MAX + 30.0,
            ),
        ]

    async def start(self, call: Call, request: WorkflowRequest) -> Answer:
        key = header_key(call, request.idempotency_key) or request.idempotency_key
        name = request.name or (request.type or "").partition("@")[0]
        asked = hashlib.sha256(call.raw_body).digest()
        try:
            async with self.admission.pace() as pace:
                start = await self.checks.start_of(call, request, key, asked, pace)
            headers = await self.throttle.admit(call.tenant, len(start.nodes))
        except ApiProblem:
            # What was taken once is never refused: its time may have passed, its rules changed.
            replayed = await self.replayed(call.tenant, name, key, asked)
            if replayed is None:
                raise
            return replayed
        traceparent = self.tracing.begin_submit(call.header(b"traceparent"))
        answer = await self.starts.start(traced(start, traceparent))
        if isinstance(answer, Mismatch):
            raise mismatch([])
        found = await read_workflow(self.database, call.tenant, answer.id)
        if found is None:
            raise gone([])
        if isinstance(answer, Started):
            return Answer(201, workflow_view(found), headers)
        return Answer(200, workflow_view(found), headers | REPLAY)

    async def replayed(
        self, tenant: int, name: str, key: str | None, asked: bytes
    ) -> Answer | None:
        if key is None:
            return None
        workflow_id = await find_started(self.database, tenant, name, key, asked)
        if workflow_id is None:
            return None
        found = await read_workflow(self.database, tenant, workflow_id)
        return None if found is None else Answer(200, workflow_view(found), REPLAY)

    async def cancel(self, call: Call) -> Answer:
        workflow = await self.found(call.session, call)
        if workflow.state in TERMINAL:
            if workflow.state is State.CANCELLED:
                return Answer(200, workflow_view(workflow))
            raise ended()
        released = Released()
        reason = WorkflowStop.CANCELLED
        if not await stop_workflow(call.session, call.tenant, workflow.id, reason, released):
            raise ended()
        call.note("workflow.cancel", str(workflow.id), name=workflow.name)
        workflow = await self.found(call.session, call)
        call.after.append(partial(self.after_cancel, workflow, released))
        return kept_without_tags(workflow, 202 if workflow.ended_at is None else 200)

    def after_cancel(self, workflow: Workflow, released: Released) -> None:
        publish_released(self.events, workflow.tenant, released)
        if workflow.ended_at is not None:
            self.waiting.wake(workflow.id)

    async def pause(self, call: Call) -> Answer:
        """Who paused it first stands; a deadline passes all the same. It is read once, after that:
        its nodes may be many."""
        workflow_id, actor = workflow_id_of(call), call.credential.actor
        is_paused = await pause_workflow(call.session, call.tenant, workflow_id, actor)
        workflow = await self.found(call.session, call)
        if workflow.state in TERMINAL:
            raise ended()
        if is_paused:
            call.note("workflow.pause", str(workflow.id), name=workflow.name)
        return kept_without_tags(workflow)

    async def unpause(self, call: Call) -> Answer:
        workflow = await self.found(call.session, call)
        if workflow.state in TERMINAL:
            raise ended()
        released = Released()
        if await unpause_workflow(call.session, call.tenant, workflow.id, released):
            call.note("workflow.unpause", str(workflow.id), name=workflow.name)
            call.after.append(partial(self.after_unpause, call.tenant, released))
        return kept_without_tags(await self.found(call.session, call))

    def after_unpause(self, tenant: int, released: Released) -> None:
        self.events.publish(TasksRescheduled(hints_of(released.timers)))
        publish_released(self.events, tenant, Released(workflows=released.workflows))

    async def found(self, session: Session, call: Call) -> Workflow:
        workflow_id = workflow_id_of(call)
        workflow = await read_workflow(session, call.tenant, workflow_id)
        if workflow is None:
            raise not_found("workflow", workflow_id)
        return workflow

    async def list_page(self, call: Call, query: WorkflowListQuery) -> Answer:
        state = None if query.state is None else State(query.state)
        wanted = WorkflowFilter(state, query.name, tag_of(query.tag), query.created_after)
        found = await list_workflows(call.session, call.tenant, wanted, query.cursor, query.limit)
        return Answer(200, WorkflowPage(list(map(workflow_view, found.items)), found.next_cursor))

    async def status(self, call: Call) -> Answer:
        return Answer(200, workflow_view(await self.found(call.session, call)))

    async def get(self, call: Call) -> Answer:
        workflow = await self.found(call.session, call)
        return Answer(200, await WorkflowReading(call.session, workflow).estimated())

    async def nodes(self, call: Call, query: WorkflowNodesQuery) -> Answer:
        workflow = await self.found(call.session, call)
        reading = WorkflowReading(call.session, workflow)
        if query.map is None:
            after = 0 if query.cursor is None else int(query.cursor)
            nodes, following = await reading.page(after, query.limit, query.state)
        else:
            found = await reading.named(query.map)
            if found is None or found.spec.map is None:
                raise not_found("map", query.map)
            after = 0 if query.cursor is None else int(query.cursor)
            nodes, following = await reading.items(found, after, query.limit, query.state)
        return Answer(200, page(list(map(node_view, nodes)), following))

    async def parents(self, call: Call, query: ParentsQuery) -> Answer:
        workflow = await self.found(call.session, call)
        after = 0 if query.cursor is None else int(query.cursor)
        node_id = await self.node_id(call, workflow)
        found = await read_parents(
            call.session, [node_id], after=after, limit=query.limit, is_paged=True
        )
        views = [
            NamedParent(parent.name, parent.state, raw(parent.result))
            for parent in found.get(node_id, [])
        ]
        is_full = len(views) == query.limit
        following = str(node_number(found[node_id][-1].id)) if is_full else None
        return Answer(200, page(views, following))

    async def node_id(self, call: Call, workflow: Workflow) -> UUID:
        """A node by its number: the id of its task says which that is."""
        text = call.params["node"]
        number = int(text) if text.isdecimal() and text.isascii() and len(text) < 9 else 0
        if not workflow.has_node(number):
            raise not_found("node", text)
        return node_id_of(workflow.id, number)

    async def graph(self, call: Call) -> Answer:
        workflow = await self.found(call.session, call)
        return Answer(200, await WorkflowReading(call.session, workflow).graph())

    async def explain(self, call: Call, query: ExplainQuery) -> Answer:
        workflow = await self.found(call.session, call)
        reading = WorkflowReading(call.session, workflow)
        if query.node is not None and await reading.named(query.node) is None:
            raise not_found("node", query.node)
        return Answer(200, await reading.explanation(query.node))

    async def wait(self, call: Call, query: WorkflowWaitQuery) -> Answer:
        """The workflow as it stands when it has ended, the time is up, or the caller hangs up."""
        workflow = await self.found(self.database, call)
        if self.waiting.is_full:
            raise later(Code.OVERLOADED, "too many calls are waiting; try again")
        if workflow.state not in TERMINAL:
            with self.waiting.registered(workflow.id) as event:
                await first_of(event.wait(), call.gone(), query.timeout_s)
            workflow = await self.found(self.database, call)
        return Answer(200, workflow_view(workflow))


def kept_without_tags(workflow: Workflow, status: int = 200) -> Answer:
    """Tags may be personal: what is kept for repeated calls leaves them out."""
    view = workflow_view(workflow)
    return Answer(status, view, kept=msgspec.structs.replace(view, tags=None))


def ended() -> ApiProblem:
    detail = "the workflow has ended; an ended workflow never changes"
    return ApiProblem(Code.ALREADY_TERMINAL, detail)


def workflow_id_of(call: Call) -> UUID:
    """What is no id of a workflow was not found either."""
    workflow_id = task_id_of(call, "workflow")
    if not is_node(workflow_id) or node_number(workflow_id) != 0:
        raise not_found("workflow", workflow_id)
    return workflow_id
