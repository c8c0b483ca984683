"""A request for a workflow, from bytes to a checked start: decoded, checked and ordered in slices.

| pass over a body of 16 MiB | holds the event loop |
|---|---|
| find its members, and where each node begins and ends | up to 100 ms, as of a batch of tasks |
| decode and check the nodes | in slices |
| follow the edges: unknown parents, cycles, depth | in slices |
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TypeVar, get_type_hints

import msgspec

from duly.api.admission import WorkSlicer
from duly.api.inner_workflows import InnerWorkflows, nesting_problems
from duly.api.json_body import ERRORS_MAX, decode, malformed, problem_from
from duly.api.list_body import (
    REST_BYTES_MAX,
    MemberName,
    MemberRefused,
    TooMany,
    decode_chunks,
    decode_member,
    members_of,
)
from duly.api.problems import ApiProblem, Code, invalid
from duly.api.request import Call
from duly.api.task_rules import TaskRules
from duly.api.tasks import target_problems
from duly.api.wire import NULL, TaskDefaults, TaskRequest
from duly.api.workflow_nodes import (
    NODE_NAME_PATTERN,
    InnerGraph,
    NodeRequest,
    kind_problems,
    predicate_text,
    spec_of,
    spec_problems,
)
from duly.api.workflow_wire import (
    AppendRequest,
    OccurrenceWorkflow,
    WorkflowRequest,
    WorkflowTypeRequest,
)
from duly.domain.limits import (
    PAYLOAD_BYTES_MAX,
    Problem,
    key_reason,
    submission_problems,
    tags_reason,
)
from duly.domain.node_spec import CompensationSpec
from duly.domain.task import Policy, Submission
from duly.domain.workflow import (
    APPENDED_MAX,
    NODES_MAX,
    WAIT_RULES,
    Graph,
    GraphRefused,
    OnFailure,
    build_graph,
    pointer_name,
)
from duly.domain.workflow_types import read_reference
from duly.environment import Environment
from duly.store.policies import encode_callback
from duly.store.templates import ScheduledWorkflow, WorkflowTemplate, workflow_template_of
from duly.store.workflow_appends import Append
from duly.store.workflow_types import WorkflowType, find_workflow_type, read_definition
from duly.store.workflows import NodeStart, WorkflowStart

NODES = "nodes"
NODE_NAME = re.compile(NODE_NAME_PATTERN)
# How a decoder points at a member whose name it was not told.
NAMELESS = "/..."
# A payload that many nodes share is stored with each of them.
SHARED_BYTES_MAX = 16 * 1024 * 1024
# Up to here a body is decoded at once: no more than two or three thousand nodes.
WHOLE_GRAPH_BYTES_MAX = 64 * 1024
# Nodes that are checked together.
NODES_AT_ONCE = 500
# To check a byte of an `if` takes as long as to look at so many of a payload.
IF_COST = 8
# Members of a long body that may be longer than most.
MEMBER_BYTES_MAX = {"payload": PAYLOAD_BYTES_MAX}

Model = TypeVar("Model", WorkflowRequest, WorkflowTypeRequest, AppendRequest)


async def decode_workflow(_call: Call, raw: bytes, pace: WorkSlicer) -> WorkflowRequest:
    return await decode_graph(raw, WorkflowRequest, pace)


async def decode_type(_call: Call, raw: bytes, pace: WorkSlicer) -> WorkflowTypeRequest:
    return await decode_graph(raw, WorkflowTypeRequest, pace)


async def decode_append(_call: Call, raw: bytes, pace: WorkSlicer) -> AppendRequest:
    return await decode_graph(raw, AppendRequest, pace)


async def decode_graph(raw: bytes, model: type[Model], pace: WorkSlicer) -> Model:
    """Of a body whose `nodes` may be many. A node that is wrong is read apart, to be named."""
    if len(raw) <= WHOLE_GRAPH_BYTES_MAX:
        try:
            return decode(raw, model)
        except ApiProblem as refused:
            if not any(NAMELESS in problem.pointer for problem in refused.errors):
                raise
    members = members_of(raw, model)
    await pace.step(len(raw))
    if NODES not in members:
        raise invalid([Problem("/nodes", "is required")])
    named = split_nodes(members.pop(NODES), model)
    await pace.step(len(raw))
    types = get_type_hints(model, include_extras=True)
    fields = {
        name: decode_member(raw, types[name], name, MEMBER_BYTES_MAX.get(name, REST_BYTES_MAX))
        for name, raw in members.items()
    }
    try:
        nodes = await decode_chunks(list(named.values()), NodeRequest, "/nodes", pace)
    except ApiProblem as refused:
        raise renamed(refused, list(named)) from None
    return model(nodes=dict(zip(named, nodes, strict=True)), **fields)


def split_nodes(raw: msgspec.Raw, model: type[msgspec.Struct]) -> dict[str, msgspec.Raw]:
    """Each node unread, by its name. A dict would hide a name that is there twice."""
    names: list[str] = []
    most = APPENDED_MAX if model is AppendRequest else NODES_MAX

    def seen(kind: type[MemberName], name: str) -> MemberName:
        names.append(name)
        if len(names) > most:
            raise TooMany
        if not NODE_NAME.match(name):
            reason = f"has the name {name[:64]!r}, which does not match {NODE_NAME_PATTERN}"
            raise MemberRefused(invalid([Problem("/nodes", reason)]))
        return kind(name)

    try:
        kind = dict[MemberName, msgspec.Raw]
        found = msgspec.json.decode(memoryview(raw), type=kind, dec_hook=seen)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TooMany):
            raise invalid([Problem("/nodes", f"has more than {most} nodes")]) from None
        if isinstance(error.__cause__, MemberRefused):
            raise error.__cause__.problem from None
        problem = problem_from(str(error), model)
        raise invalid([Problem(f"/nodes{problem.pointer}", problem.reason)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        malformed(error)
    if len(found) < len(names):
        once: set[str] = set()
        twice = next(name for name in names if name in once or once.add(name))  # type: ignore[func-returns-value]
        raise ApiProblem(
            Code.MALFORMED_BODY, f"the body has an object with two members {twice[:64]!r}"
        )
    return {str(name): node for name, node in found.items()}


def renamed(refused: ApiProblem, names: Sequence[str]) -> ApiProblem:
    """Nodes are named, and were decoded as a list."""
    errors = []
    for problem in refused.errors:
        _, _, ordinal, *rest = problem.pointer.split("/")
        name = pointer_name(names[int(ordinal)]) if ordinal.isdigit() else ordinal
        errors.append(Problem("/".join(["", NODES, name, *rest]), problem.reason))
    return invalid(errors) if refused.code is Code.INVALID else refused


@dataclass(frozen=True)
class WorkflowChecks:
    """What a start is checked against: task types, limits, and the rules of graphs."""

    environment: Environment
    rules: TaskRules

    async def start_of(
        self, call: Call, request: WorkflowRequest, key: str | None, asked: bytes, pace: WorkSlicer
    ) -> WorkflowStart:
        """Refused with a pointer to everything that is wrong, as far as it was looked."""
        pinned: WorkflowType | None = None
        if request.type is not None:
            pinned, request = await self.defined(call.tenant, request, pace)
        start = await self.checked(call, with_payload(request), key, pace)
        if pinned is not None:
            start = replace(start, type=pinned.name, type_version=pinned.version)
        return replace(start, asked=asked)

    async def template_of(
        self, call: Call, name: str, request: WorkflowTypeRequest, pace: WorkSlicer
    ) -> WorkflowTemplate:
        """Of a type: nodes without a payload are given one when it is started."""
        start = await self.checked(call, request.request(name), None, pace, is_open=True)
        return workflow_template_of(start)

    async def scheduled_of(
        self, call: Call, asked: OccurrenceWorkflow, pace: WorkSlicer
    ) -> ScheduledWorkflow:
        """Of a schedule: a graph of its own is kept; of a type, which one and with what payload."""
        request = WorkflowRequest(**msgspec.structs.asdict(asked))
        try:
            start = await self.start_of(call, request, None, b"", pace)
        except ApiProblem as refused:
            raise within(refused, "/workflow") from None
        if asked.type is None:
            return ScheduledWorkflow(start.name, workflow_template_of(start))
        reference = read_reference(asked.type)
        assert reference is not None
        payload = None if asked.payload == NULL else bytes(asked.payload).decode()
        return ScheduledWorkflow(
            *(reference.name, None, reference.version, payload),
            *(start.deadline_s, start.callback, start.tags),
        )

    async def defined(
        self, tenant: int, request: WorkflowRequest, pace: WorkSlicer
    ) -> tuple[WorkflowType, WorkflowRequest]:
        """The version that a run is pinned to, and the request with its definition."""
        assert request.type is not None
        reference = read_reference(request.type)
        given = request.name, request.nodes, request.defaults, request.on_failure
        if given != (None, {}, TaskDefaults(), OnFailure.FINISH_BRANCHES):
            reason = "goes with no name, nodes, defaults or on_failure: it has its own"
            raise invalid([Problem("/type", reason)])
        found = reference and await find_workflow_type(self.rules.database, tenant, reference)
        if not found:
            raise invalid([Problem("/type", f"no workflow type or version is {request.type}")])
        text = (await read_definition(self.rules.database, found)).encode()
        definition = await decode_graph(text, WorkflowTypeRequest, pace)
        fields = ("deadline_s", "callback", "tags", "payload", "idempotency_key")
        own = {field: getattr(request, field) for field in fields}
        given_fields = {name: value for name, value in own.items() if value is not None}
        return found, msgspec.structs.replace(definition.request(found.name), **given_fields)

    async def checked(
        self,
        call: Call,
        request: WorkflowRequest,
        key: str | None,
        pace: WorkSlicer,
        *,
        is_open: bool = False,
    ) -> WorkflowStart:
        if request.name is None or not request.nodes:
            missing = [name for name in ("name", "nodes") if not getattr(request, name)]
            raise invalid([Problem(f"/{name}", "is required, or a type") for name in missing])
        if problems := nesting_problems(request.nodes):
            raise invalid(problems)
        graph = await self.graph_of(request, pace)
        request, tasks = await self.tasks_of(call, request, pace, is_open=is_open)
        undoing = await self.compensations_of(call, request, pace)
        problems = field_problems(request, key) + key_problems(request, tasks)
        problems += unwanted_compensations(request)
        problems += await self.rules.callback_problems(
            call.credential, call.tenant, request.callback
        )
        if problems:
            raise invalid(problems)
        told, name = request.callback, request.name
        assert name is not None
        return WorkflowStart(
            tenant=call.tenant,
            name=name,
            nodes=await node_starts(request, tasks, graph, undoing, pace),
            on_failure=request.on_failure,
            deadline_s=request.deadline_s,
            callback=None if told is None else encode_callback(told.callback()),
            tags=request.tags,
            idempotency_key=key,
        )

    async def append_of(self, call: Call, asked: AppendRequest, pace: WorkSlicer) -> Append:
        """What the workflow itself must say, its names and parents, is checked under its lock."""
        request = WorkflowRequest(nodes=asked.nodes, defaults=asked.defaults)
        if problems := nesting_problems(request.nodes):
            raise invalid(problems)
        graph = await self.graph_of(request, pace, is_open=True)
        request, tasks = await self.tasks_of(call, request, pace, is_open=False)
        undoing = await self.compensations_of(call, request, pace)
        if problems := key_problems(request, tasks):
            raise invalid(problems)
        nodes = await node_starts(request, tasks, graph, undoing, pace)
        return Append(call.tenant, nodes, [node.after for node in asked.nodes.values()])

    async def graph_of(
        self, request: WorkflowRequest, pace: WorkSlicer, *, is_open: bool = False
    ) -> Graph:
        after = {name: node.after for name, node in request.nodes.items()}
        try:
            for step in build_graph(after, is_open=is_open):
                if step is not None:
                    return step
                await pace.step(pace.SLICE)
        except GraphRefused as refused:
            raise invalid(refused.problems) from None
        raise AssertionError("a graph ends with itself or a refusal")

    async def tasks_of(
        self, call: Call, request: WorkflowRequest, pace: WorkSlicer, *, is_open: bool
    ) -> tuple[WorkflowRequest, list[Submission]]:
        """Of each node its task, or the one that stands for it. In the request, types that nodes
        start have their versions."""
        for part in parts_of(request):
            await pace.step(pace.SLICE)
            if found := kind_problems_of(part):
                # Of nodes that do not say what they run, nothing else can be checked.
                raise invalid(found[:ERRORS_MAX])
        inner = InnerWorkflows(self.rules.database, call, pace)
        pinned = {
            name: await inner.pinned(name, node, is_open=is_open)
            for name, node in request.nodes.items()
            if node.workflow is not None
        }
        if pinned:
            request = msgspec.structs.replace(request, nodes=request.nodes | pinned)
        problems: list[Problem] = []
        tasks: list[Submission] = []
        for part in parts_of(request):
            await pace.step(pace.SLICE)
            problems += await self.check_part(inner, part, tasks, is_open=is_open)
            if len(problems) >= ERRORS_MAX:
                break
        if problems:
            raise invalid(problems[:ERRORS_MAX])
        return request, tasks

    async def check_part(
        self,
        inner: InnerWorkflows,
        part: WorkflowRequest,
        tasks: list[Submission],
        *,
        is_open: bool,
    ) -> list[Problem]:
        """Adds the tasks of a few nodes to the others; what is wrong with these nodes."""
        call, pace = inner.call, inner.pace
        runs = [node for node in part.nodes.values() if node.is_task]
        requests = [node.task_request(part.defaults) for node in runs]
        answers = await self.rules.check_all(call.credential, call.tenant, requests)
        # A payload that is given at the start is checked there; that of an item, by its handler.
        unchecked = [node.map is not None or (is_open and node.payload == NULL) for node in runs]
        answers = await self.without_payloads(call.tenant, requests, answers, unchecked)
        checked = zip(requests, answers, strict=True)
        now = self.environment.clock.now()
        problems: list[Problem] = []
        for name, node in part.nodes.items():
            await pace.step(len(node.payload) + IF_COST * predicate_bytes(node))
            found = list(spec_problems(node, now))
            if node.is_task:
                found += self.task_of(call.tenant, node.envelope, *next(checked), now, tasks)
            elif not found and node.workflow is not None:
                found += await self.inner_task_of(inner, name, node, tasks, is_open=is_open)
            elif not found:
                tasks.append(node.stand_in(call.tenant))
            problems += problems_at(name, found)
            if len(problems) >= ERRORS_MAX:
                break
        return problems

    async def inner_task_of(
        self,
        inner: InnerWorkflows,
        name: str,
        node: NodeRequest,
        tasks: list[Submission],
        *,
        is_open: bool,
    ) -> list[Problem]:
        """Adds the task that stands for a node which starts a workflow; what is wrong with it."""
        template: WorkflowTemplate | None = None
        if isinstance(node.workflow, InnerGraph):
            fields = msgspec.structs.asdict(node.workflow)
            given = WorkflowRequest(payload=node.payload, **fields)
            try:
                start = await self.checked(
                    inner.call, with_payload(given), None, inner.pace, is_open=is_open
                )
            except ApiProblem as refused:
                raise within(refused, f"/nodes/{pointer_name(name)}/workflow") from None
            template = workflow_template_of(start)
        task = await inner.task_of(node, template)
        if isinstance(task, Problem):
            return [task]
        tasks.append(task)
        return []

    async def compensations_of(
        self, call: Call, request: WorkflowRequest, pace: WorkSlicer
    ) -> dict[str, CompensationSpec]:
        """What undoes nodes, by their names."""
        asked = {n: c for n, node in request.nodes.items() if (c := node.compensate) is not None}
        requests = [each.task_request(request.defaults) for each in asked.values()]
        answers = await self.rules.check_all(call.credential, call.tenant, requests)
        # Without a payload of its own it gets one that is not known yet.
        unchecked = [each.payload == NULL for each in asked.values()]
        answers = await self.without_payloads(call.tenant, requests, answers, unchecked)
        now = self.environment.clock.now()
        problems: list[Problem] = []
        specs: dict[str, CompensationSpec] = {}
        for name, wanted, answer in zip(asked, requests, answers, strict=True):
            await pace.step(len(wanted.payload))
            tasks: list[Submission] = []
            is_enveloped = asked[name].envelope
            found = self.task_of(call.tenant, is_enveloped, wanted, answer, now, tasks)
            at = f"/nodes/{pointer_name(name)}/compensate"
            problems += [Problem(at + each.pointer, each.reason) for each in found]
            if tasks:
                specs[name] = asked[name].spec(tasks[0])
            if len(problems) >= ERRORS_MAX:
                break
        if problems:
            raise invalid(problems[:ERRORS_MAX])
        return specs

    def task_of(
        self,
        tenant: int,
        is_enveloped: bool,
        asked: TaskRequest,
        defaults: TaskDefaults | Problem,
        now: datetime,
        tasks: list[Submission],
    ) -> list[Problem]:
        """Adds the task of a node, or what undoes it, to the others; what is wrong with it."""
        if not isinstance(defaults, TaskDefaults):
            return [defaults]
        task = asked.submission(tenant, defaults=defaults)
        found = submission_problems(task, now, self.rules.outbound) + target_problems(asked)
        if is_enveloped and task.url is None:
            found.append(Problem("/envelope", "belongs to a webhook"))
        tasks.append(enveloped(task) if is_enveloped else task)
        return found

    async def without_payloads(
        self,
        tenant: int,
        requests: Sequence[TaskRequest],
        answers: Sequence[TaskDefaults | Problem],
        unchecked: Sequence[bool],
    ) -> list[TaskDefaults | Problem]:
        """Of those whose payload is not known yet, the defaults of their type."""
        return [
            (await self.rules.known.get((tenant, asked.type))).defaults
            if is_unchecked and isinstance(answer, Problem)
            else answer
            for asked, answer, is_unchecked in zip(requests, answers, unchecked, strict=True)
        ]


async def node_starts(
    request: WorkflowRequest,
    tasks: Sequence[Submission],
    graph: Graph,
    undoing: Mapping[str, CompensationSpec],
    pace: WorkSlicer,
) -> list[NodeStart]:
    starts: list[NodeStart] = []
    for (name, node), task, parents, children in zip(
        request.nodes.items(), tasks, graph.parents, graph.children, strict=True
    ):
        await pace.step(predicate_bytes(node))
        rule, spec = WAIT_RULES[node.when], spec_of(node)
        if name in undoing:
            spec = replace(spec, compensate=undoing[name])
        starts.append(NodeStart(name, task, parents, children, rule, spec))
    return starts


def parts_of(request: WorkflowRequest) -> Iterator[WorkflowRequest]:
    """The request with some of its nodes, and with the next of them."""
    nodes = iter(request.nodes.items())
    while some := dict(islice(nodes, NODES_AT_ONCE)):
        yield msgspec.structs.replace(request, nodes=some)


def kind_problems_of(part: WorkflowRequest) -> list[Problem]:
    return [
        problem
        for name, node in part.nodes.items()
        for problem in problems_at(name, kind_problems(node))
    ]


def problems_at(name: str, found: Sequence[Problem]) -> list[Problem]:
    at = f"/nodes/{pointer_name(name)}" if found else ""
    return [Problem(at + each.pointer, each.reason) for each in found]


def predicate_bytes(node: NodeRequest) -> int:
    return 0 if node.if_ is None else len(predicate_text(node.if_))


def with_payload(request: WorkflowRequest) -> WorkflowRequest:
    """Nodes without a payload of their own get that of the workflow."""
    if request.payload == NULL:
        return request
    without = {
        name: node
        for name, node in request.nodes.items()
        if (node.is_task or node.workflow) and node.map is None and node.payload == NULL
    }
    if len(without) * len(request.payload) > SHARED_BYTES_MAX:
        reason = f"is that of {len(without)} nodes: more than {SHARED_BYTES_MAX} bytes in all"
        raise invalid([Problem("/payload", reason)])
    given = {
        name: msgspec.structs.replace(node, payload=request.payload)
        for name, node in without.items()
    }
    return msgspec.structs.replace(request, nodes=request.nodes | given)


def within(refused: ApiProblem, at: str) -> ApiProblem:
    """The problems of a part of a body."""
    if refused.code is not Code.INVALID:
        return refused
    return invalid([Problem(at + each.pointer, each.reason) for each in refused.errors])


def enveloped(task: Submission) -> Submission:
    policy = task.policy
    return task._replace(
        policy=Policy(
            retry=policy.retry,
            timeout_s=policy.timeout_s,
            jitter_s=policy.jitter_s,
            concurrency_key=policy.concurrency_key,
            concurrency_limit=policy.concurrency_limit,
            headers=policy.headers,
            envelope=True,
        )
    )


def field_problems(request: WorkflowRequest, key: str | None) -> list[Problem]:
    checks = [
        ("/idempotency_key", key_reason(key)),
        ("/tags", None if request.tags is None else tags_reason(request.tags)),
    ]
    return [Problem(pointer, reason) for pointer, reason in checks if reason is not None]


def unwanted_compensations(request: WorkflowRequest) -> list[Problem]:
    """What would never be run was asked for by mistake."""
    if request.on_failure is OnFailure.COMPENSATE:
        return []
    return [
        Problem(f"/nodes/{pointer_name(name)}/compensate", "needs on_failure: compensate")
        for name, node in request.nodes.items()
        if node.compensate is not None
    ][:ERRORS_MAX]


def key_problems(request: WorkflowRequest, tasks: Sequence[Submission]) -> list[Problem]:
    """All nodes live on one shard, and so does everything that shares a concurrency key: its limit
    is counted there. The task of a node that starts a workflow has the key of those inside."""
    first: tuple[str, str] | None = None
    for (name, node), task in zip(request.nodes.items(), tasks, strict=True):
        key = task.policy.concurrency_key
        if key is None:
            continue
        if first is None:
            first = name, key
        elif key != first[1]:
            reason = f"differs from that of {first[0]!r}; a workflow has one at most"
            member = "workflow" if node.workflow is not None else "concurrency_key"
            return [Problem(f"/nodes/{pointer_name(name)}/{member}", reason)]
    return []
