"""A workflow that was started, and what can be done to it."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from duly.client.operations import AwaitedApi, BlockingApi
from duly.client.task import TaskData
from duly.client.views import (
    WorkflowData,
    WorkflowExplanation,
    WorkflowGraph,
    WorkflowNode,
    WorkflowSignal,
)
from duly.client.workflow_nodes import FlowNode
from duly.domain.ids import node_id_of

if TYPE_CHECKING:
    from duly.client.namespaces import AsyncWorkflows, Workflows

R = TypeVar("R")


class BlockingClient(BlockingApi, Protocol):
    """What a workflow needs of a `Client`."""

    workflows: "Workflows"

    def get(self, task_id: str) -> TaskData: ...

    def wait(self, task_id: str, timeout_s: float | None = None) -> TaskData: ...


class AwaitedClient(AwaitedApi, Protocol):
    """What it needs of an `AsyncClient`."""

    workflows: "AsyncWorkflows"

    async def get(self, task_id: str) -> TaskData: ...

    async def wait(self, task_id: str, timeout_s: float | None = None) -> TaskData: ...


class Workflow(WorkflowData):
    """A workflow, and what can be done to it. Each method asks the server and answers anew."""

    client_: Any = msgspec.field(name="_client", default=None)

    def refresh(self) -> "Workflow":
        """As it stands now, with its critical path and when it may end."""
        return self.renewed(self.client().workflows.get(self.id))

    def status(self) -> "Workflow":
        """As it stands now: state and counts alone, however large it is."""
        return self.renewed(self.client().workflows.status(self.id))

    def wait(self, timeout_s: float | None = None) -> "Workflow":
        """Once it has ended; WaitTimedOut if it has not by then."""
        return self.renewed(self.client().workflows.wait(self.id, timeout_s))

    def cancel(self) -> "Workflow":
        """What runs is asked to stop; what waits is cancelled."""
        return self.renewed(self.client().workflows.cancel(self.id))

    def pause(self) -> "Workflow":
        """Nothing of it starts until `unpause`; what runs goes on."""
        return self.renewed(self.client().workflows.pause(self.id))

    def unpause(self) -> "Workflow":
        """Go on where it was paused."""
        return self.renewed(self.client().workflows.unpause(self.id))

    def resume(
        self,
        nodes: Sequence[str] | None = None,
        *,
        payloads: Mapping[str, Any] | None = None,
        rate_per_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> "Workflow":
        """A new workflow that runs again what failed or was cancelled, or the named nodes, and all
        that comes after it. What finished is reused."""
        resumed = self.client().workflows.resume(
            self.id,
            nodes=nodes,
            payloads=payloads,
            rate_per_s=rate_per_s,
            idempotency_key=idempotency_key,
        )
        return self.renewed(resumed)

    def signal(
        self, name: str, payload: object = None, *, idempotency_key: str | None = None
    ) -> WorkflowSignal:
        """Tell it something: for one node that waits for it, now or later."""
        key = idempotency_key
        return self.client().workflows.signal(self.id, name, payload, idempotency_key=key)

    def nodes(self, state: str | None = None) -> Iterator[WorkflowNode]:
        """In the order in which they were added."""
        return self.client().workflows.nodes(self.id, state=state)

    def items(self, node: FlowNode[Any] | str, state: str | None = None) -> Iterator[WorkflowNode]:
        """Of a map, in their order; each with the id of its task."""
        return self.client().workflows.nodes(self.id, map=name_of(node), state=state)

    def graph(self) -> WorkflowGraph:
        """All nodes, each with its state and the names of its parents."""
        return self.client().workflows.graph(self.id)

    def explain(self, node: FlowNode[Any] | str | None = None) -> WorkflowExplanation:
        """What a node waits for, or the first that have not ended."""
        return self.client().workflows.explain(self.id, name_of(node))

    def task(self, node: FlowNode[Any]) -> TaskData:
        """The task of a node that its builder gave, with payload and result."""
        return self.client().get(task_id_of(self.id, node))

    def result(self, node: FlowNode[R], timeout_s: float | None = None) -> R:
        """What the handler of a node returned, once it has; TaskFailed if it did not complete,
        WaitTimedOut if it has not ended by then."""
        ended = self.client().wait(task_id_of(self.id, node), timeout_s)
        return ended.typed_output(node.decode_result)

    def renewed(self, data: WorkflowData) -> "Workflow":
        return Workflow(**msgspec.structs.asdict(data), client_=self.client_)

    def client(self) -> BlockingClient:
        found: BlockingClient = self.client_
        return found


class AsyncWorkflow(WorkflowData):
    """A workflow, and what can be done to it. Each method asks the server and answers anew."""

    client_: Any = msgspec.field(name="_client", default=None)

    async def refresh(self) -> "AsyncWorkflow":
        """As it stands now, with its critical path and when it may end."""
        return self.renewed(await self.client().workflows.get(self.id))

    async def status(self) -> "AsyncWorkflow":
        """As it stands now: state and counts alone, however large it is."""
        return self.renewed(await self.client().workflows.status(self.id))

    async def wait(self, timeout_s: float | None = None) -> "AsyncWorkflow":
        """Once it has ended; WaitTimedOut if it has not by then."""
        return self.renewed(await self.client().workflows.wait(self.id, timeout_s))

    async def cancel(self) -> "AsyncWorkflow":
        """What runs is asked to stop; what waits is cancelled."""
        return self.renewed(await self.client().workflows.cancel(self.id))

    async def pause(self) -> "AsyncWorkflow":
        """Nothing of it starts until `unpause`; what runs goes on."""
        return self.renewed(await self.client().workflows.pause(self.id))

    async def unpause(self) -> "AsyncWorkflow":
        """Go on where it was paused."""
        return self.renewed(await self.client().workflows.unpause(self.id))

    async def resume(
        self,
        nodes: Sequence[str] | None = None,
        *,
        payloads: Mapping[str, Any] | None = None,
        rate_per_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> "AsyncWorkflow":
        """A new workflow that runs again what failed or was cancelled, or the named nodes, and all
        that comes after it. What finished is reused."""
        resumed = await self.client().workflows.resume(
            self.id,
            nodes=nodes,
            payloads=payloads,
            rate_per_s=rate_per_s,
            idempotency_key=idempotency_key,
        )
        return self.renewed(resumed)

    async def signal(
        self, name: str, payload: object = None, *, idempotency_key: str | None = None
    ) -> WorkflowSignal:
        """Tell it something: for one node that waits for it, now or later."""
        key = idempotency_key
        return await self.client().workflows.signal(self.id, name, payload, idempotency_key=key)

    def nodes(self, state: str | None = None) -> AsyncIterator[WorkflowNode]:
        """In the order in which they were added."""
        return self.client().workflows.nodes(self.id, state=state)

    def items(
        self, node: FlowNode[Any] | str, state: str | None = None
    ) -> AsyncIterator[WorkflowNode]:
        """Of a map, in their order; each with the id of its task."""
        return self.client().workflows.nodes(self.id, map=name_of(node), state=state)

    async def graph(self) -> WorkflowGraph:
        """All nodes, each with its state and the names of its parents."""
        return await self.client().workflows.graph(self.id)

    async def explain(self, node: FlowNode[Any] | str | None = None) -> WorkflowExplanation:
        """What a node waits for, or the first that have not ended."""
        return await self.client().workflows.explain(self.id, name_of(node))

    async def task(self, node: FlowNode[Any]) -> TaskData:
        """The task of a node that its builder gave, with payload and result."""
        return await self.client().get(task_id_of(self.id, node))

    async def result(self, node: FlowNode[R], timeout_s: float | None = None) -> R:
        """What the handler of a node returned, once it has; TaskFailed if it did not complete,
        WaitTimedOut if it has not ended by then."""
        ended = await self.client().wait(task_id_of(self.id, node), timeout_s)
        return ended.typed_output(node.decode_result)

    def renewed(self, data: WorkflowData) -> "AsyncWorkflow":
        return AsyncWorkflow(**msgspec.structs.asdict(data), client_=self.client_)

    def client(self) -> AwaitedClient:
        found: AwaitedClient = self.client_
        return found


Started = TypeVar("Started", Workflow, AsyncWorkflow)


def workflow_from(kind: type[Started], answer: bytes, client: object) -> Started:
    found = msgspec.json.decode(answer, type=kind)
    found.client_ = client
    return found


def name_of(node: FlowNode[Any] | str | None) -> str | None:
    return node.name if isinstance(node, FlowNode) else node


def task_id_of(workflow_id: str, node: FlowNode[Any]) -> str:
    return str(node_id_of(UUID(workflow_id), node.number))
