"""Workflows and their types as resources of a client: `client.workflows.resume(...)`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from duly.client.clock import monotonic
from duly.client.errors import WaitTimedOut
from duly.client.json_values import encode
from duly.client.operations import Blocking, Operations, given, listing, operation, text
from duly.client.paths import path
from duly.client.request import check_key
from duly.client.views import (
    ResumePreview,
    WorkflowData,
    WorkflowExplanation,
    WorkflowGraph,
    WorkflowNode,
    WorkflowSignal,
    WorkflowType,
)
from duly.client.wire import WAIT_S_MAX

# `list` is a method's name below.
Page = list


class WrittenDown(Protocol):
    """A `duly.WorkflowDefinition`."""

    def definition(self) -> dict[str, Any]: ...


class AsyncWorkflows(Operations):
    """Graphs of tasks, by id. The builder starts them: `client.workflow(...)`."""

    @operation
    async def start(self, workflow: Mapping[str, Any]) -> WorkflowData:
        """One that is written down already, as the API takes it: with `name` and `nodes`."""
        content, key = encode(workflow), workflow.get("idempotency_key")
        answer = await self.api.send("POST", "/v1/workflows", content, None, key)
        return msgspec.json.decode(answer, type=WorkflowData)

    @listing
    async def list(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        created_after: datetime | None = None,
    ) -> AsyncIterator[Page[WorkflowData]]:
        """Newest first."""
        query = {"state": state, "name": name, "tag": tag, "created_after": text(created_after)}
        async for page in self.pages(WorkflowData, "/v1/workflows", query):
            yield page

    @operation
    async def get(self, workflow_id: str) -> WorkflowData:
        """With its critical path, and when it may end."""
        return await self.ask(WorkflowData, "GET", path("workflows", workflow_id))

    @operation
    async def status(self, workflow_id: str) -> WorkflowData:
        """Its state and counts alone, however large it is."""
        return await self.ask(WorkflowData, "GET", path("workflows", workflow_id, "status"))

    @operation
    async def wait(self, workflow_id: str, timeout_s: float | None = None) -> WorkflowData:
        """The workflow once it has ended; WaitTimedOut if it has not by then."""
        at = path("workflows", workflow_id, "wait")
        ends_at = None if timeout_s is None else monotonic() + timeout_s
        while True:
            left_s = WAIT_S_MAX if ends_at is None else max(0.0, ends_at - monotonic())
            wait_s = min(left_s, WAIT_S_MAX)
            query = {"timeout_s": wait_s}
            found = await self.ask(WorkflowData, "GET", at, query=query, wait_s=wait_s)
            if found.is_terminal:
                return found
            if ends_at is not None and monotonic() >= ends_at:
                raise WaitTimedOut(
                    kind="workflow", id=workflow_id, timeout_s=timeout_s, state=found.state
                )

    @listing
    async def nodes(
        self,
        workflow_id: str,
        *,
        map: str | None = None,  # noqa: A002 (what the API calls it)
        state: str | None = None,
    ) -> AsyncIterator[Page[WorkflowNode]]:
        """In the order in which they were given; with `map`, the items of the map of that name."""
        at = path("workflows", workflow_id, "nodes")
        async for page in self.pages(WorkflowNode, at, {"map": map, "state": state}):
            yield page

    @operation
    async def graph(self, workflow_id: str) -> WorkflowGraph:
        """All nodes, each with its state and the names of its parents."""
        return await self.ask(WorkflowGraph, "GET", path("workflows", workflow_id, "graph"))

    @operation
    async def explain(self, workflow_id: str, node: str | None = None) -> WorkflowExplanation:
        """What a node waits for, or the first that have not ended."""
        at = path("workflows", workflow_id, "explain")
        return await self.ask(WorkflowExplanation, "GET", at, query={"node": node})

    @operation
    async def cancel(self, workflow_id: str) -> WorkflowData:
        """What runs is asked to stop; what waits is cancelled."""
        return await self.ask(WorkflowData, "POST", path("workflows", workflow_id, "cancel"))

    @operation
    async def signal(
        self,
        workflow_id: str,
        name: str,
        payload: object = None,
        *,
        idempotency_key: str | None = None,
    ) -> WorkflowSignal:
        """Tell a workflow something: for one node that waits for it, now or later."""
        check_key(idempotency_key)
        body = {"name": name, "payload": payload, "idempotency_key": idempotency_key}
        return await self.ask(
            WorkflowSignal, "POST", path("workflows", workflow_id, "signals"), body
        )

    @listing
    async def signals(self, workflow_id: str) -> AsyncIterator[Page[WorkflowSignal]]:
        """What was sent to it, oldest first, with the node that got it."""
        async for page in self.pages(WorkflowSignal, path("workflows", workflow_id, "signals"), {}):
            yield page

    @operation
    async def pause(self, workflow_id: str) -> WorkflowData:
        """Nothing of it starts until `unpause`; what runs goes on."""
        return await self.ask(WorkflowData, "POST", path("workflows", workflow_id, "pause"))

    @operation
    async def unpause(self, workflow_id: str) -> WorkflowData:
        """Go on where it was paused."""
        return await self.ask(WorkflowData, "POST", path("workflows", workflow_id, "unpause"))

    @operation
    async def resume(
        self,
        workflow_id: str,
        *,
        nodes: Sequence[str] | None = None,
        payloads: Mapping[str, Any] | None = None,
        rate_per_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WorkflowData:
        """A new workflow that runs again what failed or was cancelled, or the named nodes, and all
        that comes after it; the rest is reused."""
        content = encode(resume_fields(nodes, payloads, rate_per_s))
        at = path("workflows", workflow_id, "resume")
        answer = await self.api.send("POST", at, content, None, idempotency_key)
        return msgspec.json.decode(answer, type=WorkflowData)

    @operation
    async def preview_resume(
        self, workflow_id: str, *, nodes: Sequence[str] | None = None
    ) -> ResumePreview:
        """What `resume` would run again, and how much it would reuse."""
        body = {**resume_fields(nodes), "dry_run": True}
        return await self.ask(ResumePreview, "POST", path("workflows", workflow_id, "resume"), body)


class AsyncWorkflowTypes(Operations):
    """Definitions of workflows, in versions that never change."""

    @listing
    async def list(self) -> AsyncIterator[Page[WorkflowType]]:
        """By name, each with its latest version."""
        async for page in self.pages(WorkflowType, "/v1/workflow-types", {}):
            yield page

    @listing
    async def versions(self, name: str) -> AsyncIterator[Page[WorkflowType]]:
        """Newest first."""
        at = path("workflow-types", name, "versions")
        async for page in self.pages(WorkflowType, at, {}):
            yield page

    @operation
    async def get(self, name: str) -> WorkflowType:
        """With its definition: `name`, or `name@version`."""
        return await self.ask(WorkflowType, "GET", path("workflow-types", name))

    @operation
    async def put(self, name: str, definition: Mapping[str, Any] | WrittenDown) -> WorkflowType:
        """The next version of the type, unless the latest says the same. `definition`: what the API
        takes, with `nodes`; or a `duly.WorkflowDefinition`."""
        found = definition if isinstance(definition, Mapping) else definition.definition()
        at = path("workflow-types", name)
        return await self.ask(WorkflowType, "PUT", at, found)


class Workflows(Blocking, AsyncWorkflows):
    awaited = AsyncWorkflows


class WorkflowTypes(Blocking, AsyncWorkflowTypes):
    awaited = AsyncWorkflowTypes


def resume_fields(
    nodes: Sequence[str] | None,
    payloads: Mapping[str, Any] | None = None,
    rate_per_s: float | None = None,
) -> dict[str, Any]:
    named = None if nodes is None else list(nodes)
    return given(**{"from": named}, payloads=payloads, rate_per_s=rate_per_s)
