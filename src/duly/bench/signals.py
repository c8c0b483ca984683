"""Signal scenario: how soon a workflow goes on, from a signal to the start of the handler behind
the waiting node, and from the end of a node to the start of one whose `if` reads its result."""

import asyncio
from uuid import UUID

from duly.bench.children import duly_up
from duly.bench.drive import Driver
from duly.bench.figures import Figures, percentiles
from duly.bench.over_http import POOL, make_worker, serving
from duly.bench.stage import STALLED_S, TENANT, URL, ScenarioContext
from duly.client.asynchronous import AsyncClient
from duly.domain.access import Access
from duly.domain.node_spec import STAND_IN_TYPES, NodeKind, NodeSpec, WaitSpec
from duly.domain.task import Submission
from duly.execution.attempt import DONE, AttemptResult
from duly.store.control import publish_released
from duly.store.finish import Released
from duly.store.lease import Lease
from duly.store.workflow_signals import Signal, send_signal
from duly.store.workflows import NodeStart, Started, WorkflowStart, WorkflowStarter, read_nodes

SIGNAL = Signal("go", "1", "bench", Access.OPERATOR)
IF_COMPLETED = '{"node": "first", "of": "state", "eq": "COMPLETED"}'
PACE_S = 0.01
POLL_S = 0.002


class Rounds(Driver):
    """One workflow after another: `first`, then `decided` with an `if`, and a wait with `after`
    behind it."""

    def __init__(self, stage: ScenarioContext) -> None:
        super().__init__(stage, self.note)
        # Since when a node could start, and how long its handler then took to be called.
        self.began: dict[int, float] = {}
        self.waits: dict[int, list[float]] = {2: [], 4: []}
        self.has_started: dict[int, asyncio.Event] = {2: asyncio.Event(), 4: asyncio.Event()}

    def note(self, lease: Lease) -> AttemptResult:
        number, now_s = lease.id.bytes[-1], self.stage.environment.clock.monotonic()
        if number == 1:
            self.began[2] = now_s
        else:
            self.waits[number].append(now_s - self.began[number])
            self.has_started[number].set()
        return DONE

    async def play(self) -> None:
        for event in self.has_started.values():
            event.clear()
        starter = WorkflowStarter(self.stage.database, self.engine.submitter)
        (answer,) = await starter.start([WorkflowStart(TENANT, "bench.signal", graph())])
        assert isinstance(answer, Started)
        async with asyncio.timeout(STALLED_S):
            await self.has_started[2].wait()
            await self.has_begun(answer.id)
            await self.signal(answer.id)
            await self.has_started[4].wait()
        await asyncio.sleep(PACE_S)

    async def has_begun(self, workflow_id: UUID) -> None:
        while not (await read_nodes(self.stage.database, TENANT, workflow_id, 2, 1))[0].has_begun:
            await asyncio.sleep(POLL_S)

    async def signal(self, workflow_id: UUID) -> None:
        released = Released()
        self.began[4] = self.stage.environment.clock.monotonic()
        async with self.stage.database.transaction() as session:
            await send_signal(session, TENANT, workflow_id, SIGNAL, released)
        publish_released(self.engine.parts.events, TENANT, released)


def graph() -> list[NodeStart]:
    task = Submission(tenant=TENANT, type="bench", url=URL)
    stand_in = Submission(tenant=TENANT, type=STAND_IN_TYPES[NodeKind.WAIT])
    wait = NodeSpec(wait=WaitSpec(signal=SIGNAL.name))
    return [
        NodeStart("first", task, children=[2, 3]),
        NodeStart("decided", task, [1], spec=NodeSpec(predicate=IF_COMPLETED)),
        NodeStart("wait", stand_in, [1], [4], spec=wait),
        NodeStart("after", task, [3]),
    ]


async def run_workflow_signal(stage: ScenarioContext) -> Figures:
    """In process. The first tenth is warm-up."""
    rounds, warm = Rounds(stage), max(stage.tasks // 10, 1)
    async with rounds.running():
        for number in range(stage.tasks + warm):
            await rounds.play()
            stage.show(number, stage.tasks + warm)
    decided = percentiles(rounds.waits[2][warm:])
    return {
        **percentiles(rounds.waits[4][warm:]),
        "decided_p50_ms": decided["p50_ms"],
        "decided_p99_ms": decided["p99_ms"],
    }


async def run_workflow_signal_http(stage: ScenarioContext) -> Figures:
    """From before the call to the start of the handler of an SDK worker."""
    clock, waits = stage.environment.clock, list[float]()
    began_s, has_started, warm = 0.0, asyncio.Event(), max(stage.tasks // 10, 1)
    async with duly_up(stage) as running, AsyncClient(running.url, running.api_key) as client:
        worker = make_worker(running)

        @worker.task("bench.after")
        async def after(_ctx: object) -> None:
            waits.append(clock.monotonic() - began_s)
            has_started.set()

        async with serving(worker):
            for number in range(stage.tasks + warm):
                has_started.clear()
                async with client.workflow("bench.signal") as flow:
                    wait = flow.wait(SIGNAL.name)
                    flow.task("bench.after", after=wait, pool=POOL)
                while (await anext(flow.started.nodes())).started_at is None:
                    await asyncio.sleep(POLL_S)
                began_s = clock.monotonic()
                await flow.started.signal(SIGNAL.name)
                async with asyncio.timeout(STALLED_S):
                    await has_started.wait()
                stage.show(number, stage.tasks + warm)
    return percentiles(waits[warm:])
