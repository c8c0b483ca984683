"""Nodes of a workflow: calls that are none yet, chains and groups of them, and what they become.

A `NodeCall` belongs to no workflow; `flow.add(call)` makes a `FlowNode` of it, which others can
come after. Another kind of node has a `FlowNode` of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, Unpack, cast

from duly.client.errors import InvalidWorkflow
from duly.client.request import NodeFields, NodeOptions, TypedTask, When, task_fields
from duly.client.workflow_results import Condition, NodeResult, NodeState

R_co = TypeVar("R_co", covariant=True)


class NodeCall(Generic[R_co]):
    """One node to be added: type, payload and options; and how to read its result."""

    __slots__ = ("decode_result", "node_options", "payload", "type")

    def __init__(
        self,
        type: str,  # noqa: A002 (what the API calls it)
        payload: object,
        options: NodeOptions,
        decode_result: Callable[[bytes], R_co] | None = None,
    ) -> None:
        self.type = type
        self.payload = payload
        self.node_options = options
        self.decode_result = decode_result

    def options(self, **options: Unpack[NodeOptions]) -> "NodeCall[R_co]":
        """The call with other options: `send.node(to="x").options(when="any_failed")`."""
        merged: NodeOptions = {**self.node_options, **options}
        return NodeCall(self.type, self.payload, merged, self.decode_result)

    def fields(self) -> dict[str, Any]:
        """As the API names them."""
        return {"type": self.type, "payload": self.payload, **node_fields(self.node_options)}


def map_call(
    task: str | TypedTask, payload: Mapping[str, Any] | None, options: NodeOptions
) -> NodeCall[Any]:
    """Of each item; the options of a handle count where none are given here."""
    if isinstance(task, str):
        return NodeCall(task, payload, options)
    if extra := task.defaults.keys() - NodeOptions.__annotations__.keys():
        raise InvalidWorkflow(problem=f"a node has no {', '.join(sorted(extra))}")
    return NodeCall(task.type, payload, cast("NodeOptions", {**task.defaults, **options}))


class Group:
    """Nodes beside each other; what comes after the group comes after all of them."""

    def __init__(self, members: "Iterable[Step]") -> None:
        self.members = list(members)


class Chain:
    """Nodes one after another."""

    def __init__(self, steps: "Iterable[Step]") -> None:
        self.steps = list(steps)


Step = NodeCall[Any] | Group | Chain


def group(*members: "Step | Iterable[Step]") -> Group:
    """Nodes that run beside each other: `group(send.node(to=each) for each in people)`."""
    return Group(flat(members))


def chain(*steps: "Step | Iterable[Step]") -> Chain:
    """Each comes after the one before: `chain(fetch.node(), group(...), report.node())`."""
    return Chain(flat(steps))


def chord(members: "Iterable[Step]", join: "Step") -> Chain:
    """A group, and what comes after all of it."""
    return Chain([Group(members), join])


def flat(steps: Iterable[Any]) -> "Iterator[Step]":
    for step in steps:
        if isinstance(step, NodeCall | Group | Chain):
            yield step
        elif isinstance(step, Iterable) and not isinstance(step, str):
            yield from flat(step)
        else:
            check_step(step)


def check_step(step: object) -> None:
    if not isinstance(step, NodeCall | Group | Chain):
        problem = f"{step!r} is no node; a handle makes one: handle.node(...)"
        raise InvalidWorkflow(problem=problem)


class FlowNode(Generic[R_co]):
    """A node of a workflow. Others come after it: `flow.task("b", after=node)`."""

    def __init__(
        self,
        flow: object,
        name: str,
        number: int,
        decode_result: Callable[[bytes], R_co] | None = None,
    ) -> None:
        # The builder that it belongs to.
        self.flow = flow
        self.name = name
        # Its place in the workflow, from 1: the id of its task says it.
        self.number = number
        self.decode_result = decode_result

    @property
    def result(self) -> NodeResult:
        """Its result, to be compared in an `if_`; `node["x"]` is a member of it."""
        return NodeResult(self.name)

    @property
    def state(self) -> NodeState:
        """How it ends, to be compared in an `if_`."""
        return NodeState(self.name)

    def __getitem__(self, member: str | int) -> NodeResult:
        return NodeResult(self.name)[member]

    # Members are places in a result that is not there yet: there is nothing to walk through.
    __iter__: Any = None
    __contains__: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Stage:
    """What a chain or a group became. What comes after it comes after its last nodes."""

    def __init__(self, nodes: list[FlowNode[Any]], last: list[FlowNode[Any]]) -> None:
        self.nodes = nodes
        self.last = last


Parent = FlowNode[Any] | Stage | str
Parents = Parent | Iterable[Parent]


def flat_parents(after: Parents) -> Iterator[FlowNode[Any] | str]:
    if isinstance(after, Stage):
        yield from after.last
    elif isinstance(after, Iterable) and not isinstance(after, str):
        for each in after:
            yield from flat_parents(each)
    else:
        yield after


def node_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    named = ("name", "if_", "compensate")
    fields = task_fields({name: value for name, value in options.items() if name not in named})
    if (undo := options.get("compensate")) is not None:
        fields["compensate"] = compensation_fields(undo)
    return fields | rule_fields(None, options.get("if_"))


def compensation_fields(undo: str | TypedTask | NodeFields | Mapping[str, Any]) -> Any:
    """What undoes a node, as the API has it."""
    if isinstance(undo, str):
        return {"type": undo}
    if isinstance(undo, NodeCall):
        return undo.fields()
    if isinstance(undo, Mapping):
        return undo
    handle = cast("TypedTask", undo)
    return {"type": handle.type, **task_fields(handle.defaults)}


def rule_fields(
    when: When | None, condition: Condition | Mapping[str, Any] | None
) -> dict[str, Any]:
    """When a node runs, as the API has it."""
    fields: dict[str, Any] = {} if when in (None, "all_completed") else {"when": when}
    if condition is not None:
        fields["if"] = condition.fields if isinstance(condition, Condition) else condition
    return fields
