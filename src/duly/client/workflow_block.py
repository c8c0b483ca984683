"""`duly.workflow(...)`: the builder on the clients behind typed handles."""

from types import TracebackType
from typing import Unpack

from duly.client.request import WorkflowOptions
from duly.client.shared_clients import shared_async_client, shared_client
from duly.client.workflow_builder import AsyncWorkflowBuilder, WorkflowBuilder


class WorkflowBlock:
    """What `duly.workflow(...)` gives: a block of either kind, on the shared client."""

    def __init__(
        self, name: str, options: WorkflowOptions, url: str | None, api_key: str | None
    ) -> None:
        self.name = name
        self.options = options
        self.server = (url, api_key)
        self.plain: WorkflowBuilder | None = None
        self.awaited: AsyncWorkflowBuilder | None = None

    def __enter__(self) -> WorkflowBuilder:
        self.plain = WorkflowBuilder(shared_client(*self.server), self.name, self.options)
        return self.plain

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.plain is not None
        self.plain.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncWorkflowBuilder:
        client = shared_async_client(*self.server)
        self.awaited = AsyncWorkflowBuilder(client, self.name, self.options)
        return self.awaited

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.awaited is not None
        await self.awaited.__aexit__(kind, error, trace)


def workflow(name: str, **options: Unpack[WorkflowOptions]) -> WorkflowBlock:
    """A block that starts a workflow at its end: `with duly.workflow("order.fulfil") as flow:`, or
    `async with`. To the duly that `Client()` finds."""
    return WorkflowBlock(name, options, None, None)
