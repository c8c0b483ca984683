"""How fast workflows run over HTTP, with an SDK worker: a real `duly up` in a process of its own.

What users see: from before the call that starts a workflow to the answer that it has ended.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

from duly.bench.children import duly_up
from duly.bench.figures import Figures, percentiles
from duly.bench.over_http import POOL, make_worker, serving
from duly.bench.stage import STALLED_S, ScenarioContext
from duly.bench.workflows import CHAIN
from duly.client.asynchronous import AsyncClient
from duly.client.workflow_builder import AsyncWorkflowBuilder

CALLERS = 64
WORKER_CONCURRENCY = 500
NODE = "bench.node"

Write = Callable[[AsyncWorkflowBuilder], None]


class Workflows:
    """A client and a worker beside each other, which notes when each node starts."""

    def __init__(self, stage: ScenarioContext, client: AsyncClient) -> None:
        self.stage = stage
        self.client = client
        self.starts_s: list[float] = []

    async def run(self, write: Write) -> float:
        """Seconds from before its start to the answer that it has completed."""
        began_s = self.stage.now_s
        async with self.client.workflow("bench.flow", defaults={"pool": POOL}) as flow:
            write(flow)
        ended = await flow.started.wait(STALLED_S)
        assert ended.state == "COMPLETED", ended.state
        return self.stage.now_s - began_s


@contextlib.asynccontextmanager
async def workflows(stage: ScenarioContext) -> AsyncIterator[Workflows]:
    async with duly_up(stage) as running, AsyncClient(running.url, running.api_key) as client:
        made = Workflows(stage, client)
        worker = make_worker(running, concurrency=WORKER_CONCURRENCY)

        @worker.task(NODE)
        async def node(_ctx: object) -> None:
            made.starts_s.append(stage.now_s)

        async with serving(worker):
            await made.run(write_diamond)
            yield made


def write_chain(flow: AsyncWorkflowBuilder) -> None:
    last = flow.task(NODE)
    for _ in range(CHAIN - 1):
        last = flow.task(NODE, after=last)


def write_diamond(flow: AsyncWorkflowBuilder) -> None:
    first = flow.task(NODE)
    flow.task(NODE, after=[flow.task(NODE, after=first) for _ in range(2)])


def write_fan(width: int) -> Write:
    def write(flow: AsyncWorkflowBuilder) -> None:
        first = flow.task(NODE)
        flow.task(NODE, after=[flow.task(NODE, after=first) for _ in range(width)])

    return write


async def run_workflow_chain_http(stage: ScenarioContext) -> Figures:
    """One after another. From the start of a handler to that of the next, and whole chains."""
    taken_s: list[float] = []
    between_s: list[float] = []
    async with workflows(stage) as made:
        for number in range(max(stage.tasks // CHAIN, 1) + 1):
            made.starts_s.clear()
            passed_s = await made.run(write_chain)
            # The first is warm-up.
            if number:
                taken_s.append(passed_s)
                starts = made.starts_s
                between_s += [after - before for before, after in itertools.pairwise(starts)]
            stage.show(number * CHAIN, stage.tasks)
    return {"chain_s": sorted(taken_s)[len(taken_s) // 2], **percentiles(between_s)}


async def run_workflow_fan_http(stage: ScenarioContext) -> Figures:
    """One node, so many after it, and one after all of these."""
    async with workflows(stage) as made:
        seconds = await made.run(write_fan(stage.tasks))
    return {"fan_s": seconds, "width": stage.tasks}


async def run_workflow_diamonds_http(stage: ScenarioContext) -> Figures:
    """One call for each, from as many callers as keep the server busy."""
    count = max(stage.tasks // 4, 1)
    left = iter(range(count))
    async with workflows(stage) as made:

        async def call() -> None:
            for number in left:
                await made.run(write_diamond)
                stage.show(number * 4, stage.tasks)

        began_s = stage.now_s
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call())
        passed_s = stage.now_s - began_s
    return {"workflows_per_s": count / passed_s, "callers": CALLERS}
