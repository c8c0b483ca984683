"""Workflow scenarios: how fast workflows run in one process: chains, a fan-out with its join,
diamonds, status.

No HTTP, and a handler that does nothing: what is measured is the way from a node to the next.
"""

from uuid import UUID

from duly.bench.drive import Driver
from duly.bench.figures import Figures
from duly.bench.stage import TENANT, URL, ScenarioContext
from duly.domain.task import Submission
from duly.domain.workflow import NODES_MAX
from duly.store.finish import Released
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflows import (
    NodeStart,
    Started,
    WorkflowStart,
    WorkflowStarter,
    read_workflow,
)

CHAIN = 40
AT_ONCE = 100
PAUSES = 9


def graph_of(parents: list[list[int]]) -> list[NodeStart]:
    """Nodes with the numbers of their parents, which come before them."""
    children: list[list[int]] = [[] for _ in parents]
    for number, above in enumerate(parents, 1):
        for parent in above:
            children[parent - 1].append(number)
    task = Submission(tenant=TENANT, type="bench", url=URL)
    return [
        NodeStart(f"n{number}", task, above, children[number - 1])
        for number, above in enumerate(parents, 1)
    ]


async def start_all(driver: Driver, starts: list[WorkflowStart]) -> list[UUID]:
    starter = WorkflowStarter(driver.stage.database, driver.engine.submitter)
    ids: list[UUID] = []
    for at in range(0, len(starts), AT_ONCE):
        answers = await starter.start(starts[at : at + AT_ONCE])
        ids += [answer.id for answer in answers if isinstance(answer, Started)]
    return ids


async def timed(stage: ScenarioContext, starts: list[WorkflowStart]) -> tuple[float, list[UUID]]:
    """Seconds from the first start to the last settled node."""
    driver = Driver(stage)
    clock = stage.environment.clock
    async with driver.running():
        # Connections, plans and placements are there, as in an installation that is not new.
        driver.restart_meter(2)
        await start_all(driver, [WorkflowStart(TENANT, "warm", graph_of([[], [1]]))])
        await driver.all_settled()
        driver.restart_meter(sum(len(start.nodes) for start in starts))
        began = clock.monotonic()
        ids = await start_all(driver, starts)
        await driver.all_settled()
        return clock.monotonic() - began, ids


async def run_workflow_chain(stage: ScenarioContext) -> Figures:
    """One after another, so that nothing but the way from node to node is in it."""
    parents = [[number] if number else [] for number in range(CHAIN)]
    start = WorkflowStart(TENANT, "chain", graph_of(parents))
    taken = [(await timed(stage, [start]))[0] for _ in range(max(stage.tasks // CHAIN, 1))]
    best = sorted(taken)[len(taken) // 2]
    return {"chain_s": best, "node_to_node_ms": best / CHAIN * 1000}


async def run_workflow_fan(stage: ScenarioContext) -> Figures:
    """One node, so many after it, and one after all of these."""
    width = min(stage.tasks, 9_998)
    parents = [[], *([1] for _ in range(width)), list(range(2, width + 2))]
    seconds, ids = await timed(stage, [WorkflowStart(TENANT, "fan", graph_of(parents))])
    clock = stage.environment.clock
    began = clock.monotonic()
    await read_workflow(stage.database, TENANT, ids[0])
    status_ms = (clock.monotonic() - began) * 1000
    loose_s = await loose(stage, width + 2)
    return {
        "fan_s": seconds,
        "width": width,
        "status_ms": status_ms,
        "loose_s": loose_s,
        "ratio": seconds / loose_s,
    }


async def loose(stage: ScenarioContext, count: int) -> float:
    """As many tasks without a workflow, from before the first is submitted to the last settled."""
    driver = Driver(stage)
    async with driver.running():
        driver.restart_meter(AT_ONCE)
        await driver.submit(AT_ONCE)
        await driver.all_settled()
        driver.restart_meter(count)
        began_s = stage.now_s
        await driver.submit(count)
        await driver.all_settled()
        return stage.now_s - began_s


async def run_workflow_pause(stage: ScenarioContext) -> Figures:
    """A workflow whose nodes are all due in an hour is paused, and goes on; in process."""
    task = Submission(tenant=TENANT, type="bench", url=URL, delay_s=3600.0)
    nodes = [NodeStart(f"n{number}", task) for number in range(min(stage.tasks, NODES_MAX))]
    driver = Driver(stage)
    paused_s: list[float] = []
    unpaused_s: list[float] = []
    async with driver.running():
        (workflow_id,) = await start_all(driver, [WorkflowStart(TENANT, "paused", nodes)])
        for _ in range(PAUSES):
            began_s = stage.now_s
            async with stage.database.tenant(TENANT) as session:
                assert await pause_workflow(session, TENANT, workflow_id, "bench")
            paused_s.append(stage.now_s - began_s)
            began_s = stage.now_s
            async with stage.database.tenant(TENANT) as session:
                assert await unpause_workflow(session, TENANT, workflow_id, Released())
            unpaused_s.append(stage.now_s - began_s)
    return {
        "nodes": len(nodes),
        "pause_ms": sorted(paused_s)[PAUSES // 2] * 1000,
        "unpause_ms": sorted(unpaused_s)[PAUSES // 2] * 1000,
    }


async def run_workflow_diamonds(stage: ScenarioContext) -> Figures:
    """Four nodes each: one, two after it, one after both."""
    count = max(stage.tasks // 4, 1)
    start = WorkflowStart(TENANT, "diamond", graph_of([[], [1], [1], [2, 3]]))
    seconds, _ = await timed(stage, [start] * count)
    return {"workflows_per_s": count / seconds, "tasks_per_s": 4 * count / seconds}
