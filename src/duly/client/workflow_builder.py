"""The builder of workflows: `with duly.workflow("order.fulfil") as flow: flow.task(...)`.

Nothing is stored before the end of the block, and nothing at all when it raises. A node comes after
nodes that are there already, so a cycle cannot be written down.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Unpack, get_args, overload

import msgspec

from duly.client.errors import InvalidWorkflow
from duly.client.json_values import encode
from duly.client.request import (
    NodeOptions,
    TypedTask,
    When,
    WorkflowOptions,
    callback_fields,
    task_fields,
)
from duly.client.workflow_nodes import (
    Chain,
    FlowNode,
    Group,
    NodeCall,
    Parents,
    Stage,
    Step,
    check_step,
    flat_parents,
    map_call,
    rule_fields,
)
from duly.client.workflow_results import (
    Condition,
    InnerResult,
    MapResult,
    NodeResult,
    SignalResult,
    decode_inner,
    decode_map,
    decode_signal,
)
from duly.domain.workflow import EDGES_MAX, NODE_NAME_CHARACTERS_MAX, NODES_MAX

if TYPE_CHECKING:
    from duly.client.workflow import AsyncWorkflow, AwaitedClient, BlockingClient, Workflow

R = TypeVar("R")
Started = TypeVar("Started")
PATH = "/v1/workflows"
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NODE_NAME_CHARACTERS_MAX - 1}}}")
RULES = frozenset(get_args(When))


class GraphBuilder:
    """A workflow that is being written down. `started`, after the block, is the workflow itself."""

    def __init__(self, name: str, options: WorkflowOptions) -> None:
        self.name = name
        self.options = options
        # In the order in which they were added, which numbers them.
        self.nodes: dict[str, msgspec.Raw] = {}
        self.edges = 0
        self.counted: dict[str, int] = {}
        self.is_closed = False

    def task(
        self,
        type: str,  # noqa: A002 (what the API calls it)
        payload: object = None,
        *,
        after: Parents = (),
        **options: Unpack[NodeOptions],
    ) -> FlowNode[Any]:
        """Add a node by its type. `after`: nodes, or their names."""
        return self.add(NodeCall(type, payload, options), after=after)

    def map(
        self,
        task: str | TypedTask,
        payload: Mapping[str, Any] | None = None,
        *,
        over: NodeResult | FlowNode[Any] | int | Literal["pages"],
        after: Parents = (),
        max_items: int | None = None,
        max_parallel: int | None = None,
        tolerate: Mapping[str, float] | None = None,
        **options: Unpack[NodeOptions],
    ) -> FlowNode[MapResult]:
        """Add a map: a task for each item, of a type or a handle. `over`: a list in the result of a
        node, `ids["ids"]`, or all of it; so many numbers; or "pages", which the handler of the one
        node before it hands over with `ctx.map_items`. The item is the payload; beside a `payload`,
        it is its member `item`. `max_parallel`: items that have not ended at a time. `tolerate`:
        `{"percent": 1}` or `{"count": 10}` may fail. Its result is a `MapResult`."""
        asked = {"max_items": max_items, "max_parallel": max_parallel, "tolerate": tolerate}
        fields: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        fields["over"] = over
        parents: list[Any] = [after]
        if isinstance(over, FlowNode):
            over = over.result
        if isinstance(over, NodeResult):
            fields["over"] = {"node": over.node, "path": over.pointer}
            parents.append(over.node)
        elif isinstance(over, int):
            fields["over"] = {"count": over}
        elif over != "pages":
            raise InvalidWorkflow(
                problem="a map goes over the result of a node, a number or pages; for items that"
                " are known here, add a node for each, or a node that returns them"
            )
        call = map_call(task, payload, options)
        placed = self.place(
            call.node_options.get("name"), call.type, {**call.fields(), "map": fields}, parents
        )
        return FlowNode(self, placed, len(self.nodes), decode_map)

    def wait(
        self,
        signal: str,
        *,
        after: Parents = (),
        name: str | None = None,
        when: When = "all_completed",
        if_: Condition | Mapping[str, Any] | None = None,
        role: Literal["producer", "operator", "admin"] = "producer",
        timeout_s: float | None = None,
        on_timeout: Literal["fail", "skip", "continue"] = "fail",
    ) -> FlowNode[SignalResult]:
        """Add a node that waits for a signal, such as an approval: `Workflow.signal("approved")`
        sends it, with a credential of this role or a higher one. `on_timeout`: what happens when
        none came within `timeout_s`. Its result is a `SignalResult`."""
        wait: dict[str, Any] = {"signal": signal, "role": role}
        if timeout_s is not None:
            wait |= {"timeout_s": timeout_s, "on_timeout": on_timeout}
        fields = {"wait": wait, **rule_fields(when, if_)}
        placed = self.place(name, signal, fields, after)
        return FlowNode(self, placed, len(self.nodes), decode_signal)

    def sleep(
        self,
        delay_s: float | None = None,
        *,
        until: datetime | None = None,
        after: Parents = (),
        name: str | None = None,
        when: When = "all_completed",
        if_: Condition | Mapping[str, Any] | None = None,
    ) -> FlowNode[None]:
        """Add a node that waits for so many seconds, or until an instant."""
        if (delay_s is None) == (until is None):
            refuse("sleep(delay_s), or sleep(until=...)")
        wait = {"delay_s": delay_s} if until is None else {"until": until}
        placed = self.place(name, "sleep", {"wait": wait, **rule_fields(when, if_)}, after)
        return FlowNode(self, placed, len(self.nodes))

    def workflow(
        self,
        what: "str | WorkflowDefinition",
        payload: object = None,
        *,
        after: Parents = (),
        name: str | None = None,
        when: When = "all_completed",
        if_: Condition | Mapping[str, Any] | None = None,
        delay_s: float | None = None,
    ) -> FlowNode[InnerResult]:
        """Add a node that starts a workflow, and ends with it: of a type, "invoice.close@3",
        without a version the latest when this one starts; or of a `WorkflowDefinition`, with a
        `name`. The payload is that of each node inside without one. Its result is an
        `InnerResult`: `close["results"]["report"]`."""
        fields: dict[str, Any] = {"payload": payload, **rule_fields(when, if_)}
        if isinstance(what, str):
            stem, fields["workflow"] = what.partition("@")[0], what
        elif name is None:
            refuse("a graph of its own that a node starts has a name")
        else:
            stem, fields["workflow"] = name, {"name": name, **what.definition()}
        if delay_s is not None:
            fields["delay_s"] = delay_s
        placed = self.place(name, stem, fields, after)
        return FlowNode(self, placed, len(self.nodes), decode_inner)

    @overload
    def add(
        self, step: NodeCall[R], *, after: Parents = (), **options: Unpack[NodeOptions]
    ) -> FlowNode[R]: ...

    @overload
    def add(self, step: Chain | Group, *, after: Parents = ()) -> Stage: ...

    def add(
        self, step: Step, *, after: Parents = (), **options: Unpack[NodeOptions]
    ) -> FlowNode[Any] | Stage:
        """Add a handle's node, `add(send.node(to="x"), after=...)`, or a chain or group of them."""
        check_step(step)
        if isinstance(step, NodeCall):
            return self.add_node(step.options(**options) if options else step, after)
        if options:
            refuse(f"{', '.join(options)}: for each node of a chain or group by itself")
        return self.add_step(step, after)

    def add_node(self, call: NodeCall[R], after: Parents) -> FlowNode[R]:
        options = call.node_options
        fields = call.fields()
        name = self.place(options.get("name"), call.type, fields, after)
        return FlowNode(self, name, len(self.nodes), call.decode_result)

    def add_chain(self, steps: Chain, after: Parents) -> Stage:
        nodes: list[FlowNode[Any]] = []
        stage = Stage([], self.known(after))
        for step in steps.steps:
            stage = self.add_step(step, stage)
            nodes += stage.nodes
        return Stage(nodes, stage.last)

    def add_group(self, members: Group, after: Parents) -> Stage:
        stages = [self.add_step(each, after) for each in members.members]
        nodes = [node for stage in stages for node in stage.nodes]
        last = [node for stage in stages for node in stage.last]
        # What comes after an empty group comes after what that would have come after.
        return Stage(nodes, last or self.known(after))

    def add_step(self, step: Step, after: Parents) -> Stage:
        if isinstance(step, NodeCall):
            node = self.add_node(step, after)
            return Stage([node], [node])
        return (
            self.add_chain(step, after) if isinstance(step, Chain) else self.add_group(step, after)
        )

    def place(self, name: str | None, stem: str, fields: dict[str, Any], after: Parents) -> str:
        """Put a node of any kind into the graph, under its name or one made of `stem`."""
        self.check_open()
        if len(self.nodes) == NODES_MAX:
            refuse(f"more than {NODES_MAX} nodes")
        found = self.free_name(stem) if name is None else name
        if not NAME.fullmatch(found):
            refuse(f"the name {found!r} is not {NAME.pattern}")
        if found in self.nodes:
            refuse(f"there are two nodes named {found!r}")
        parents = list(dict.fromkeys(self.parent_name(each, found) for each in flat_parents(after)))
        if self.edges + len(parents) > EDGES_MAX:
            refuse(f"more than {EDGES_MAX} edges in all")
        when = fields.get("when", "all_completed")
        if when not in RULES:
            refuse(f"{found!r}: when is {when!r}; it can be {', '.join(get_args(When))}")
        if parents:
            fields["after"] = parents
        try:
            self.nodes[found] = msgspec.Raw(encode(fields))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidWorkflow(problem=f"the node {found!r}: {error}") from error
        self.edges += len(parents)
        return found

    def parent_name(self, parent: object, child: str) -> str:
        if isinstance(parent, FlowNode):
            if parent.flow is not self:
                refuse(f"{child!r} comes after {parent.name!r}, a node of another workflow")
            return parent.name
        if not isinstance(parent, str):
            refuse(f"{child!r} comes after {parent!r}, which is no node")
        if parent not in self.nodes:
            refuse(f"{child!r} comes after {parent!r}, which is no node yet")
        return parent

    def known(self, after: Parents) -> list[FlowNode[Any]]:
        return [
            each if isinstance(each, FlowNode) else FlowNode(self, each, self.number_of(each))
            for each in flat_parents(after)
        ]

    def free_name(self, stem: str) -> str:
        """`email.send`, then `email.send-2`."""
        name = stem[:NODE_NAME_CHARACTERS_MAX]
        while name in self.nodes:
            number = self.counted.get(stem, 1) + 1
            self.counted[stem] = number
            ending = f"-{number}"
            name = stem[: NODE_NAME_CHARACTERS_MAX - len(ending)] + ending
        return name

    @property
    def key(self) -> str | None:
        return self.options.get("idempotency_key")

    def body(self) -> bytes:
        """The request; nothing can be added any more."""
        self.check_open()
        self.is_closed = True
        return encode({"name": self.name, **self.fields()})

    def definition(self) -> dict[str, Any]:
        """What a workflow type is defined with: without a name, and without what one start is."""
        found = self.fields()
        found.pop("idempotency_key", None)
        return found

    def fields(self) -> dict[str, Any]:
        """As the API names them, without the name."""
        if not self.nodes:
            refuse("it has no nodes")
        fields: dict[str, Any] = {**self.options, "nodes": self.nodes}
        if "defaults" in self.options:
            fields["defaults"] = task_fields(self.options["defaults"])
        if "callback" in self.options:
            fields["callback"] = callback_fields(self.options["callback"])
        return fields

    def check_open(self) -> None:
        if self.is_closed:
            refuse(f"the block of the workflow {self.name!r} has ended")

    def number_of(self, name: str) -> int:
        if name not in self.nodes:
            refuse(f"{name!r} is no node yet")
        return list(self.nodes).index(name) + 1


class WorkflowDefinition(GraphBuilder):
    """A workflow that is written down without being started: `client.workflow_types.put(name, it)`
    makes it a version of a type."""

    def __init__(self, **options: Unpack[WorkflowOptions]) -> None:
        super().__init__("definition", options)


class WorkflowBuilder(GraphBuilder):
    """What `with duly.workflow(...) as flow` gives. The workflow starts at the end of the block."""

    def __init__(self, client: "BlockingClient", name: str, options: WorkflowOptions) -> None:
        super().__init__(name, options)
        self.client = client
        self.made: Workflow | None = None

    @property
    def started(self) -> "Workflow":
        """The workflow, once the block has ended."""
        return started(self.made, self.name)

    def __enter__(self) -> "WorkflowBuilder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.is_closed = True
            return
        from duly.client.workflow import Workflow, workflow_from

        start = self.client.asynchronous.send("POST", PATH, self.body(), None, self.key)
        answer = self.client.run(start)
        self.made = workflow_from(Workflow, answer, self.client)


class AsyncWorkflowBuilder(GraphBuilder):
    """What `async with` gives: the same, and `await flow.started.wait()`."""

    def __init__(self, client: "AwaitedClient", name: str, options: WorkflowOptions) -> None:
        super().__init__(name, options)
        self.client = client
        self.made: AsyncWorkflow | None = None

    @property
    def started(self) -> "AsyncWorkflow":
        """The workflow, once the block has ended."""
        return started(self.made, self.name)

    async def __aenter__(self) -> "AsyncWorkflowBuilder":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.is_closed = True
            return
        from duly.client.workflow import AsyncWorkflow, workflow_from

        answer = await self.client.send("POST", PATH, self.body(), None, self.key)
        self.made = workflow_from(AsyncWorkflow, answer, self.client)


def started(workflow: Started | None, name: str) -> Started:
    if workflow is None:
        raise InvalidWorkflow(problem=f"the workflow {name!r} starts at the end of its block")
    return workflow


def refuse(problem: str) -> NoReturn:
    raise InvalidWorkflow(problem=problem)
