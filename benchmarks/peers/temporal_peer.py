"""Temporal's development server with its Python SDK: one worker for workflows and activities, in
the process that starts them, as its samples have it."""

import asyncio
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.peers.contract import read_order, run_flows

QUEUE = "peers"
NODE_S = timedelta(seconds=60)
READY_S, READY_POLL_S = 30.0, 0.1


async def node() -> None:
    """Nothing: what is left is the way from node to node."""


NODE: Any = activity.defn(node)


async def run_node() -> None:
    await workflow.execute_activity(NODE, start_to_close_timeout=NODE_S)


@workflow.defn
class ChainFlow:
    @workflow.run  # type: ignore[untyped-decorator, unused-ignore]
    async def run(self, width: int) -> None:
        for _ in range(width):
            await run_node()


@workflow.defn
class FanFlow:
    @workflow.run  # type: ignore[untyped-decorator, unused-ignore]
    async def run(self, width: int) -> None:
        await run_node()
        await asyncio.gather(*(run_node() for _ in range(width)))
        await run_node()


async def until_ready(client: Client) -> None:
    """Its port is open before it has its namespace."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await client.workflow_service.describe_namespace(request)
            except RPCError:
                await asyncio.sleep(READY_POLL_S)
            else:
                return


class TemporalPeer:
    async def connect(self, _callers: int) -> None:
        self.client = await Client.connect(urlsplit(ORDER.url).netloc)
        await until_ready(self.client)
        # Its sandbox imports every module again for each workflow; the guide on performance says
        # to leave it out where workflows are known to be deterministic.
        worker = Worker(
            self.client,
            task_queue=QUEUE,
            workflows=[ChainFlow, FanFlow],
            activities=[NODE],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=1_000,
        )
        self.serving = asyncio.create_task(worker.run())
        self.count = 0

    async def run_flow(self, shape: str, width: int) -> None:
        self.count += 1
        run = ChainFlow.run if shape == "chain" else FanFlow.run
        await self.client.execute_workflow(run, width, id=f"{shape}-{self.count}", task_queue=QUEUE)

    async def close(self) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)


if __name__ == "__main__":
    ORDER = read_order()
    run_flows(TemporalPeer, ORDER)
