"""A request for a workflow, from bytes to a checked start: decoded, checked and ordered in slices.

| pass over a body of 16 MiB | holds the event loop |
|---|---|
| find its members, and where each node begins and ends | up to 100 ms, as of a batch of tasks |
| decode and check the nodes | in slices |
| follow the edges: unknown parents, cycles, depth | in slices |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_type_hints

import msgspec

from duly.api.admission import WorkSlicer
from duly.api.json_body import ERRORS_MAX, decode, malformed, problem_from
from duly.api.list_body import (
    WHOLE_BYTES_MAX,
    MemberName,
    TooMany,
    decode_chunks,
    decode_member,
    members_of,
)
from duly.api.problems import ApiProblem, Code, invalid
from duly.api.request import Call
from duly.api.task_rules import TaskRules
from duly.api.tasks import target_problems
from duly.api.wire import TaskDefaults
from duly.api.workflow_wire import CallbackRequest, NodeRequest, WorkflowRequest
from duly.domain.limits import Problem, key_reason, submission_problems, tags_reason
from duly.domain.task import DEFAULT_POOL, Policy, Submission
from duly.domain.workflow import (
    NODES_MAX,
    WAIT_RULES,
    Graph,
    GraphRefused,
    build_graph,
    pointer_name,
)
from duly.environment import Environment
from duly.store.workflow_callbacks import Callback, encode_callback
from duly.store.workflows import NodeStart, WorkflowStart

NODES = "nodes"


async def decode_workflow(_call: Call, raw: bytes, pace: WorkSlicer) -> WorkflowRequest:
    if len(raw) <= WHOLE_BYTES_MAX:
        return decode(raw, WorkflowRequest)
    members = members_of(raw, WorkflowRequest)
    await pace.step(len(raw))
    if NODES not in members:
        raise invalid([Problem("/nodes", "is required")])
    named = split_nodes(members.pop(NODES))
    await pace.step(len(raw))
    types = get_type_hints(WorkflowRequest, include_extras=True)
    fields = {name: decode_member(raw, types[name], name) for name, raw in members.items()}
    try:
        nodes = await decode_chunks(list(named.values()), NodeRequest, "/nodes", pace)
    except ApiProblem as refused:
        raise renamed(refused, list(named)) from None
    return WorkflowRequest(nodes=dict(zip(named, nodes, strict=True)), **fields)


def split_nodes(raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Each node unread, by its name. A dict would hide a name that is there twice."""
    names: list[str] = []

    def seen(kind: type[MemberName], name: str) -> MemberName:
        names.append(name)
        if len(names) > NODES_MAX:
            raise TooMany
        return kind(name)

    try:
        kind = dict[MemberName, msgspec.Raw]
        found = msgspec.json.decode(memoryview(raw), type=kind, dec_hook=seen)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TooMany):
            raise invalid([Problem("/nodes", f"has more than {NODES_MAX} nodes")]) from None
        problem = problem_from(str(error), WorkflowRequest)
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
        graph = await self.graph_of(request, pace)
        tasks = await self.tasks_of(call, request, pace)
        problems = field_problems(request, key) + key_problems(request)
        problems += self.callback_problems(request.callback)
        if problems:
            raise invalid(problems)
        nodes = [
            NodeStart(name, task, parents, children, WAIT_RULES[node.when])
            for (name, node), task, parents, children in zip(
                request.nodes.items(), tasks, graph.parents, graph.children, strict=True
            )
        ]
        return WorkflowStart(
            tenant=call.tenant,
            name=request.name,
            nodes=nodes,
            on_failure=request.on_failure,
            deadline_s=request.deadline_s,
            callback=callback_text(request.callback),
            tags=request.tags,
            idempotency_key=key,
            asked=asked,
        )

    async def graph_of(self, request: WorkflowRequest, pace: WorkSlicer) -> Graph:
        try:
            for step in build_graph({name: node.after for name, node in request.nodes.items()}):
                if step is not None:
                    return step
                await pace.step(pace.SLICE)
        except GraphRefused as refused:
            raise invalid(refused.problems) from None
        raise AssertionError("a graph ends with itself or a refusal")

    async def tasks_of(
        self, call: Call, request: WorkflowRequest, pace: WorkSlicer
    ) -> list[Submission]:
        requests = [node.task_request(request.defaults) for node in request.nodes.values()]
        answers = await self.rules.check_all(call.credential, call.tenant, requests)
        now, problems, tasks = self.environment.clock.now(), [], []
        for name, node, asked, defaults in zip(
            request.nodes, request.nodes.values(), requests, answers, strict=True
        ):
            await pace.step(len(asked.payload))
            at = f"/nodes/{pointer_name(name)}"
            if not isinstance(defaults, TaskDefaults):
                problems.append(Problem(at + defaults.pointer, defaults.reason))
                continue
            task = asked.submission(call.tenant, defaults=defaults)
            found = submission_problems(task, now, self.rules.outbound) + target_problems(asked)
            if node.envelope and task.url is None:
                found.append(Problem("/envelope", "belongs to a webhook"))
            problems += [Problem(at + each.pointer, each.reason) for each in found]
            if len(problems) >= ERRORS_MAX:
                break
            tasks.append(enveloped(task) if node.envelope else task)
        if problems:
            raise invalid(problems[:ERRORS_MAX])
        return tasks

    def callback_problems(self, callback: CallbackRequest | None) -> list[Problem]:
        if callback is None:
            return []
        target = callback.target
        probe = Submission(
            tenant=0,
            type=callback.type,
            url=target.url,
            pool=target.pool or DEFAULT_POOL,
            policy=Policy(headers=target.headers),
        )
        found = submission_problems(probe, self.environment.clock.now(), self.rules.outbound)
        if (target.url is None) == (target.pool is None):
            found.append(Problem("/target", "is a url or a pool"))
        if target.url is None and target.headers:
            found.append(Problem("/target/headers", "belong to a url"))
        return [Problem(f"/callback{each.pointer}", each.reason) for each in found]


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


def key_problems(request: WorkflowRequest) -> list[Problem]:
    """All nodes live on one shard, and so does everything that shares a concurrency key: its limit
    is counted there."""
    first: tuple[str, str] | None = None
    for name, node in request.nodes.items():
        key = node.concurrency_key
        if key is None:
            continue
        if first is None:
            first = name, key
        elif key != first[1]:
            reason = f"differs from that of {first[0]!r}; a workflow has one at most"
            return [Problem(f"/nodes/{pointer_name(name)}/concurrency_key", reason)]
    return []


def callback_text(callback: CallbackRequest | None) -> str | None:
    if callback is None:
        return None
    target = callback.target
    return encode_callback(
        Callback(callback.type, target.url, target.pool or DEFAULT_POOL, target.headers)
    )
