"""Map scenario: how fast a map runs in one process, how much memory that takes, and how another
tenant fares."""

import asyncio
from pathlib import Path
from uuid import UUID

from duly.bench.drive import Driver, at_pace, make_task
from duly.bench.figures import Figures, percentiles
from duly.bench.latency import QUIET, QUIET_TASKS_PER_S
from duly.bench.stage import TENANT, URL, ScenarioContext
from duly.domain.map_plan import ITEMS_MAX
from duly.domain.node_spec import MapSpec, NodeSpec
from duly.domain.task import Submission
from duly.store.workflows import (
    NodeStart,
    Started,
    WorkflowStart,
    WorkflowStarter,
    read_workflow,
)

WARM_UP_ITEMS = 2_000
ALONE_TASKS = 300
LOOK_S = 0.25


async def run_workflow_map(stage: ScenarioContext) -> Figures:
    """A task for each number, and a node after all of them. Another tenant submits at its pace:
    first alone, then beside the map."""
    driver = Driver(stage)
    async with driver.running():
        await mapped(driver, WARM_UP_ITEMS)
        driver.lags.clear()
        await keep_pace(driver, ALONE_TASKS)
        alone = percentiles(driver.lags[QUIET])
        driver.lags.clear()
        before_mb = resident_mb()
        watch = Watch(stage)
        neighbour = asyncio.create_task(keep_pace(driver, None))
        try:
            seconds = await mapped(driver, stage.tasks, watch)
        finally:
            neighbour.cancel()
            await asyncio.gather(neighbour, return_exceptions=True)
        beside = percentiles(driver.lags[QUIET])
    return {
        "map_s": seconds,
        "items": stage.tasks,
        "items_per_s": stage.tasks / seconds,
        "status_ms_max": max(watch.status_s) * 1000,
        "resident_mb_before": before_mb,
        "resident_mb_max": max(watch.resident_mb),
        "other_p99_ms": beside["p99_ms"],
        "other_alone_p99_ms": alone["p99_ms"],
        "other_p99_ratio": beside["p99_ms"] / alone["p99_ms"],
    }


class Watch:
    """What is seen of a map while it runs."""

    def __init__(self, stage: ScenarioContext) -> None:
        self.stage = stage
        self.status_s: list[float] = []
        self.resident_mb: list[float] = []

    async def look(self, workflow_id: UUID) -> int:
        """How many of its nodes have not ended."""
        began_s = self.stage.now_s
        found = await read_workflow(self.stage.database, TENANT, workflow_id)
        assert found is not None
        self.status_s.append(self.stage.now_s - began_s)
        self.resident_mb.append(resident_mb())
        ended = ("completed", "failed", "skipped", "cancelled")
        return 0 if found.ended_at else found.nodes - sum(found.counts[name] for name in ended)


async def mapped(driver: Driver, items: int, watch: Watch | None = None) -> float:
    """Seconds from the start of a map to the end of the node after it."""
    stage = driver.stage
    watch = watch or Watch(stage)
    task = Submission(tenant=TENANT, type="bench", url=URL)
    spec = NodeSpec(map=MapSpec(count=items, max_items=ITEMS_MAX))
    nodes = [NodeStart("each", task, [], [2], spec=spec), NodeStart("join", task, [1])]
    patience = stage.patience("the map")
    began_s = stage.now_s
    starter = WorkflowStarter(stage.database, driver.engine.submitter)
    (answer,) = await starter.start([WorkflowStart(TENANT, "map", nodes)])
    assert isinstance(answer, Started)
    while await watch.look(answer.id):
        done = driver.started[TENANT]
        stage.show(done, items)
        patience.look(done, items)
        await asyncio.sleep(LOOK_S if items > WARM_UP_ITEMS else LOOK_S / 10)
    found = await read_workflow(stage.database, TENANT, answer.id)
    assert found is not None
    assert found.ended_at is not None
    return (found.ended_at - answer.created_at).total_seconds() if items else stage.now_s - began_s


async def keep_pace(driver: Driver, rounds: int | None) -> None:
    async for number in at_pace(driver.stage, QUIET_TASKS_PER_S):
        if number == rounds:
            return
        await driver.engine.submitter.submit([make_task(QUIET)])


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
