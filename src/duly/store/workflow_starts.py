"""Group commit of workflow starts by many callers. Large workflows go alone, two at a time."""

import asyncio
from dataclasses import replace

from duly.store.batcher import Batcher
from duly.store.workflows import StartAnswer, WorkflowStart, WorkflowStarter

BATCH_SIZE_MAX = 100
WAITING_MAX = 10_000
BATCHES_MAX = 2
PARALLEL_MIN = 20
# Nodes of a workflow that others would wait for.
LARGE_NODES_MIN = 200
LARGE_MAX = 2


class WorkflowStarts:
    def __init__(self, starter: WorkflowStarter) -> None:
        self.starter = starter
        self.batcher: Batcher[WorkflowStart, StartAnswer] = Batcher(
            "workflow starts",
            starter.start,
            batch_size_max=BATCH_SIZE_MAX,
            waiting_max=WAITING_MAX,
            batches_max=BATCHES_MAX,
            parallel_min=PARALLEL_MIN,
            key=key_of,
        )
        self.large = asyncio.Semaphore(LARGE_MAX)

    async def start(self, start: WorkflowStart) -> StartAnswer:
        """Answered after the commit."""
        if len(start.nodes) < LARGE_NODES_MIN:
            return await self.batcher.submit(start)
        async with self.large:
            (answer,) = await self.starter.start([start])
            return answer

    async def close(self) -> None:
        await self.batcher.close()


def key_of(start: WorkflowStart) -> object:
    """Two requests with one key never share a batch; without a key every request is its own."""
    key = start.idempotency_key
    return id(start) if key is None else (start.tenant, start.name, key)


def traced(start: WorkflowStart, traceparent: str | None) -> WorkflowStart:
    """All its nodes go on with one trace."""
    if traceparent is None:
        return start
    nodes = [replace(n, task=n.task._replace(traceparent=traceparent)) for n in start.nodes]
    return replace(start, nodes=nodes)
