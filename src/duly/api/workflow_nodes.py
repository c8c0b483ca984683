"""Nodes of workflows on the wire, by kind: what each may have, and the typed spec that is stored.

A kind to come: its member in `NodeRequest` and in `RUNS` (or beside `type`, as a map of tasks is),
what of the other members belongs to it in `FOREIGN`, and its part of `spec_of` and `spec_problems`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from duly.api.wire import (
    NULL,
    CallbackRequest,
    Instant,
    KeyText,
    Priority,
    RetryOptions,
    Seconds,
    Tags,
    Target,
    TaskDefaults,
    TaskRequest,
    TypeName,
)
from duly.domain import limits
from duly.domain.access import Access
from duly.domain.limits import Problem, run_at_reason
from duly.domain.map_plan import ITEMS_MAX, MAX_ITEMS_DEFAULT, OPEN_MAX
from duly.domain.node_spec import (
    PLAIN,
    STAND_IN_TYPES,
    CompensationSpec,
    MapSpec,
    NodeKind,
    NodeSpec,
    OnTimeout,
    WaitSpec,
    WorkflowSpec,
)
from duly.domain.predicate import PredicateRefused, parse_predicate, path_reason
from duly.domain.task import Submission
from duly.domain.workflow import NODE_NAME_CHARACTERS_MAX, NODES_MAX, OnFailure
from duly.domain.workflow_types import VERSION_PATTERN
from duly.store.policies import encode_policy

NODE_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NodeName = Annotated[str, Meta(pattern=NODE_NAME_PATTERN, max_length=NODE_NAME_CHARACTERS_MAX)]
SignalName = Annotated[str, Meta(pattern=NODE_NAME_PATTERN, max_length=NODE_NAME_CHARACTERS_MAX)]
When = Literal["all_completed", "none_failed", "all_done", "any_completed", "any_failed"]


TypeReferenceText = Annotated[
    str, Meta(pattern=f"^{limits.TYPE_PATTERN.pattern}(@{VERSION_PATTERN.pattern})?$")
]


class WorkflowFields(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What every workflow of one definition has. `on_failure`: branches that do not depend on a
    failed node go on, or everything stops; with `compensate`, what completed is then undone, the
    last that completed first, by the `compensate` of its nodes."""

    deadline_s: Annotated[float, Meta(ge=1, le=limits.DELAY_S_MAX)] | None = None
    on_failure: OnFailure = OnFailure.FINISH_BRANCHES
    defaults: TaskDefaults = TaskDefaults()
    callback: CallbackRequest | None = None
    tags: Tags | None = None


class WaitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a node waits for. With `signal`: until one of that name is sent by a credential with the
    role or a higher one; after `timeout_s` it is skipped, fails, or completes (`continue`). Without
    a signal: for `delay_s` from when its parents let it begin, or until an instant."""

    signal: SignalName | None = None
    role: Literal["producer", "operator", "admin"] = "producer"
    timeout_s: Annotated[float, Meta(ge=0, le=limits.DELAY_S_MAX)] | None = None
    on_timeout: OnTimeout = OnTimeout.FAIL
    delay_s: Seconds | None = None
    until: Instant | None = None

    def spec(self) -> WaitSpec:
        given = msgspec.structs.asdict(self) | {"role": Access(self.role)}
        return WaitSpec(**given)


class MapSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The list at `path`, a JSON pointer, in the result of a node in `after`; or so many numbers,
    from 0 on."""

    node: NodeName | None = None
    path: str | None = None
    count: Annotated[int, Meta(ge=0, le=ITEMS_MAX)] | None = None


class MapTolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many items may fail: of a hundred, or in all."""

    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    count: Annotated[int, Meta(ge=0, le=ITEMS_MAX)] | None = None


class MapRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A task for each item, of the node's `type` and with what tasks have. The item is the payload;
    beside a payload of the node, an object, it is its member `item`. `over`: a list, a number, or
    `pages`, which the one node in `after` hands over while it runs. `max_items`: 10,000 if not
    given, 1,000,000 over a number; with more it fails. `max_parallel`: items that have not ended at
    a time. `tolerate`: with more failed items than that it fails; with none, if not given."""

    over: MapSource | Literal["pages"]
    max_items: Annotated[int, Meta(ge=1, le=ITEMS_MAX)] | None = None
    max_parallel: Annotated[int, Meta(ge=1, le=OPEN_MAX)] | None = None
    tolerate: MapTolerance = MapTolerance()

    @property
    def most(self) -> int:
        if self.max_items is not None:
            return self.max_items
        is_counted = isinstance(self.over, MapSource) and self.over.count is not None
        return ITEMS_MAX if is_counted else MAX_ITEMS_DEFAULT

    def spec(self, after: Sequence[str]) -> MapSpec:
        source = MapSource(after[0]) if isinstance(self.over, str) else self.over
        path = None if isinstance(self.over, str) or source.node is None else source.path or ""
        return MapSpec(
            parent=source.node,
            path=path,
            count=source.count,
            max_items=self.most,
            max_parallel=self.max_parallel,
            tolerated=self.tolerate.count,
            tolerated_percent=self.tolerate.percent,
        )


class CompensateRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The task that undoes a node once its workflow has failed and the node had completed; of a
    map, each item that completed. It is handed what it undoes as its parent, with the result.
    `payload`: if not given, that of what it undoes; not with a map."""

    type: TypeName
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    target: Target | None = None
    priority: Priority | None = None
    retry: RetryOptions | None = None
    timeout_s: Annotated[float, Meta(ge=limits.TIMEOUT_S_MIN, le=limits.TIMEOUT_S_MAX)] | None = (
        None
    )
    tags: Tags | None = None
    envelope: bool = False

    def task_request(self, defaults: TaskDefaults) -> TaskRequest:
        """With what the workflow says for all of its nodes."""
        return TaskRequest(
            type=self.type,
            payload=self.payload,
            target=self.target or defaults.target,
            priority=defaults.priority if self.priority is None else self.priority,
            retry=self.retry or defaults.retry,
            timeout_s=defaults.timeout_s if self.timeout_s is None else self.timeout_s,
            tags=self.tags,
        )

    def spec(self, task: Submission) -> CompensationSpec:
        """Of the task that it is, with the defaults of its type."""
        return CompensationSpec(
            type=task.type,
            payload=None if self.payload == NULL else task.payload,
            url=task.url,
            pool=task.pool,
            priority=task.priority,
            timeout_ms=round(task.policy.timeout_s * 1000),
            policy=encode_policy(task.policy),
            tags=task.tags,
        )


class InnerGraph(WorkflowFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A graph of its own that a node starts."""

    name: TypeName
    nodes: Annotated[dict[NodeName, "NodeRequest"], Meta(min_length=1, max_length=NODES_MAX)]


class NodeRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """One node: what it runs, the nodes it comes after, and the rule by which these let it run. It
    is a task (`type` and what tasks have), with `map` a task for each item, a wait, or a workflow:
    a run of a type (`name@version`, without a version the latest of now) or of a graph, with which
    it ends. Its `payload` is that of each node inside without one. `if`: a predicate on the results
    of its parents, without which it is skipped. `delay_s` counts from their end. `envelope`: its
    webhook's body is `{"payload", "parents"}`. `compensate`: what undoes it, in a workflow with
    `on_failure: compensate`."""

    type: TypeName | None = None
    map: MapRequest | None = None
    wait: WaitRequest | None = None
    workflow: TypeReferenceText | InnerGraph | None = None
    after: list[NodeName] = []
    when: When = "all_completed"
    if_: dict[str, Any] | None = msgspec.field(name="if", default=None)
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    delay_s: Seconds | None = None
    target: Target | None = None
    priority: Priority | None = None
    retry: RetryOptions | None = None
    timeout_s: Annotated[float, Meta(ge=limits.TIMEOUT_S_MIN, le=limits.TIMEOUT_S_MAX)] | None = (
        None
    )
    jitter_s: Annotated[float, Meta(ge=0, le=limits.JITTER_S_MAX)] | None = None
    concurrency_key: KeyText | None = None
    concurrency_limit: Annotated[int, Meta(ge=1, le=limits.CONCURRENCY_LIMIT_MAX)] | None = None
    tags: Tags | None = None
    envelope: bool = False
    compensate: CompensateRequest | None = None

    @property
    def is_task(self) -> bool:
        """Whether a handler runs it, and the rules of its task type hold for it."""
        return self.type is not None

    def task_request(self, defaults: TaskDefaults) -> TaskRequest:
        """The task it is, with what the workflow says for all of its nodes."""
        assert self.type is not None
        return TaskRequest(
            type=self.type,
            payload=self.payload,
            delay_s=self.delay_s,
            target=self.target or defaults.target,
            priority=defaults.priority if self.priority is None else self.priority,
            retry=self.retry or defaults.retry,
            timeout_s=defaults.timeout_s if self.timeout_s is None else self.timeout_s,
            jitter_s=defaults.jitter_s if self.jitter_s is None else self.jitter_s,
            concurrency_key=self.concurrency_key,
            concurrency_limit=self.concurrency_limit,
            tags=self.tags,
        )

    def stand_in(self, tenant: int) -> Submission:
        """The task that stands for a node which no handler runs."""
        kind = STAND_IN_TYPES[NodeKind.WAIT if self.workflow is None else NodeKind.WORKFLOW]
        return Submission(tenant=tenant, type=kind, delay_s=self.delay_s or 0.0)


# Members that say what a node runs: exactly one of them.
RUNS = ("type", "wait", "workflow")
OF_TASKS = (
    *("map", "payload", "target", "priority", "retry", "timeout_s", "jitter_s", "concurrency_key"),
    *("concurrency_limit", "tags", "envelope"),
)
# Members that have no meaning for a node which runs something else.
FOREIGN = {
    "type": (),
    "wait": (*OF_TASKS, "compensate"),
    "workflow": (*(name for name in OF_TASKS if name != "payload"), "compensate"),
}
OF_SIGNALS = ("timeout_s", "on_timeout", "role")
NOTHING = NodeRequest()
NO_WAIT = WaitRequest()


def spec_of(node: NodeRequest) -> NodeSpec:
    """Of a node without problems."""
    if node.is_task and node.if_ is None and node.map is None:
        return PLAIN
    return NodeSpec(
        predicate=None if node.if_ is None else predicate_text(node.if_),
        wait=None if node.wait is None else node.wait.spec(),
        map=None if node.map is None else node.map.spec(node.after),
        workflow=None if node.workflow is None else workflow_spec(node.workflow),
    )


def workflow_spec(asked: str | InnerGraph) -> WorkflowSpec:
    """A type is named with its version."""
    if isinstance(asked, InnerGraph):
        return WorkflowSpec(name=asked.name)
    name, _, version = asked.partition("@")
    return WorkflowSpec(name=name, version=int(version) if version else None)


def kind_problems(node: NodeRequest) -> list[Problem]:
    """What it runs, and whether the rest fits to that."""
    runs = [name for name in RUNS if getattr(node, name) is not None]
    if len(runs) != 1:
        return [
            Problem(
                "", f"has {' and '.join(runs) or 'nothing to run'}: give one of {', '.join(RUNS)}"
            )
        ]
    return [
        Problem(f"/{name}", f"does not belong to a node with {runs[0]}")
        for name in FOREIGN[runs[0]]
        if getattr(node, name) != getattr(NOTHING, name)
    ]


def spec_problems(node: NodeRequest, now: datetime) -> Iterator[Problem]:
    if node.if_ is not None:
        yield from predicate_problems(node.if_, node.after)
    if node.wait is not None:
        yield from (
            Problem(f"/wait{each.pointer}", each.reason) for each in wait_problems(node.wait, now)
        )
    if node.map is not None:
        yield from map_problems(node, node.map)
        if node.compensate is not None and node.compensate.payload != NULL:
            reason = "does not go with a map: each item is undone with its own"
            yield Problem("/compensate/payload", reason)


def predicate_problems(predicate: dict[str, Any], parents: Sequence[str]) -> Iterator[Problem]:
    try:
        parse_predicate(predicate_text(predicate), parents)
    except PredicateRefused as refused:
        yield from (Problem(f"/if{each.pointer}", each.reason) for each in refused.problems)


def predicate_text(predicate: dict[str, Any]) -> str:
    return msgspec.json.encode(predicate).decode()


def wait_problems(wait: WaitRequest, now: datetime) -> Iterator[Problem]:
    ends = [name for name in ("signal", "delay_s", "until") if getattr(wait, name) is not None]
    if len(ends) != 1:
        yield Problem("", "needs exactly one of signal, delay_s, until")
    elif wait.signal is None:
        for name in OF_SIGNALS:
            if getattr(wait, name) != getattr(NO_WAIT, name):
                yield Problem(f"/{name}", "belongs to a wait for a signal")
    if wait.signal is not None and wait.timeout_s is None and wait.on_timeout != NO_WAIT.on_timeout:
        yield Problem("/on_timeout", "needs timeout_s")
    if reason := run_at_reason(wait.until, now):
        yield Problem("/until", reason)


def map_problems(node: NodeRequest, asked: MapRequest) -> Iterator[Problem]:
    if isinstance(asked.over, str):
        yield from paged_problems(node)
    else:
        yield from source_problems(asked.over, node.after)
        count = asked.over.count
        if count is not None and count > asked.most:
            yield Problem("/map/over/count", f"is {count}, and max_items is {asked.most}")
    if asked.tolerate.percent is not None and asked.tolerate.count is not None:
        yield Problem("/map/tolerate", "is a percent or a count")
    if node.payload != NULL:
        yield from shared_problems(bytes(node.payload))


def source_problems(source: MapSource, parents: Sequence[str]) -> Iterator[Problem]:
    if (source.node is None) == (source.count is None):
        yield Problem("/map/over", "needs exactly one of node, count")
    if source.path is not None and source.node is None:
        yield Problem("/map/over/path", "belongs to a node")
    if source.node is not None and source.node not in parents:
        yield Problem("/map/over/node", f"is {source.node!r}, which is not in after")
    if source.path is not None and (reason := path_reason(source.path)):
        yield Problem("/map/over/path", reason)


def paged_problems(node: NodeRequest) -> Iterator[Problem]:
    """Its items start while the node that hands them over still runs."""
    if len(node.after) != 1:
        yield Problem("/map/over", "needs exactly one node in after, which hands over the items")
    for name in ("when", "if_", "delay_s"):
        if getattr(node, name) != getattr(NOTHING, name):
            yield Problem(f"/{name.rstrip('_')}", "does not go with a map over pages")


def shared_problems(payload: bytes) -> Iterator[Problem]:
    try:
        shared = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        yield Problem("/payload", "is not an object; with a map, the item is a member of it")
        return
    if "item" in shared:
        yield Problem("/payload/item", "is where each item of the map goes")
