"""Map scenario: how fast a map runs in one process, how much memory that takes, and how another
tenant fares."""

import asyncio
from pathlib import Path
from uuid import UUID

from duly.bench.drive import Driver, at_pace, make_task
from duly.bench.figures import Figures, percentiles
from duly.bench.latency import QUIET, QUIET_TASKS_PER_S
from duly.bench.stage import TENANT, URL, ScenarioContext
from duly.domain.ids import node_number
from duly.domain.map_plan import ITEMS_MAX
from duly.domain.node_spec import MapSpec, NodeSpec
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy, Submission
from duly.domain.workflow import NODES_MAX
from duly.domain.workflow_resume import ResumePlan, plan_resume
from duly.execution.attempt import DONE, AttemptResult
from duly.store.control import publish_released
from duly.store.lease import Lease
from duly.store.workflow_resumes import Resume, Resumed, read_earlier, resume_workflow
from duly.store.workflows import (
    NodeStart,
    Started,
    WorkflowStart,
    WorkflowStarter,
    read_workflow,
)

WARM_UP_ITEMS = 2_000
FAILING_EVERY = 100
ONCE = Policy(retry=RetryPolicy(max_attempts=1))
FAILED = AttemptResult(Outcome.FAILED, error="one in a hundred", error_kind="bench")
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
    workflow_id = await start_map(driver, MapSpec(count=items, max_items=ITEMS_MAX))
    patience = stage.patience("the map")
    while await watch.look(workflow_id):
        done = driver.started[TENANT]
        stage.show(done, items)
        patience.look(done, items)
        await asyncio.sleep(LOOK_S if items > WARM_UP_ITEMS else LOOK_S / 10)
    found = await read_workflow(stage.database, TENANT, workflow_id)
    assert found is not None
    assert found.ended_at is not None
    return (found.ended_at - found.created_at).total_seconds()


async def run_workflow_resume(stage: ScenarioContext) -> Figures:
    """A map of which one item in a hundred fails, more than it tolerates by one; then its resume,
    which runs only what did not complete."""
    is_mended = False

    def handle(lease: Lease) -> AttemptResult:
        driver.handle(lease)
        number = (node_number(lease.id) - NODES_MAX) % FAILING_EVERY
        return DONE if is_mended or number else FAILED

    driver = Driver(stage, handle)
    failing = stage.tasks // FAILING_EVERY
    spec = MapSpec(count=stage.tasks, max_items=ITEMS_MAX, tolerated=failing - 1)
    async with driver.running():
        first = await start_map(driver, spec)
        await until_ended(driver, first, stage.tasks)
        found = await read_workflow(stage.database, TENANT, first)
        assert found is not None
        assert found.state is State.FAILED, found.counts
        is_mended, ran = True, driver.started[TENANT]
        before_mb, began_s = resident_mb(), stage.now_s
        resumed = await resume(driver, first)
        answered_s = stage.now_s - began_s
        watch = Watch(stage)
        await until_ended(driver, resumed, stage.tasks, watch)
    return {
        "resume_s": stage.now_s - began_s,
        "answered_ms": answered_s * 1000,
        "items": stage.tasks,
        "ran_again": driver.started[TENANT] - ran,
        "resident_mb_before": before_mb,
        "resident_mb_max": max(watch.resident_mb),
    }


async def resume(driver: Driver, workflow_id: UUID) -> UUID:
    stage = driver.stage
    earlier = await read_earlier(stage.database, TENANT, workflow_id)
    assert earlier is not None
    plan = plan_resume(earlier.nodes)
    assert isinstance(plan, ResumePlan)
    async with stage.database.transaction() as session:
        asked = Resume(workflow_id, plan)
        answer = await resume_workflow(session, stage.environment, TENANT, asked, earlier)
    assert isinstance(answer, Resumed)
    publish_released(driver.engine.parts.events, TENANT, answer.released)
    return answer.id


async def start_map(driver: Driver, spec: MapSpec) -> UUID:
    stage = driver.stage
    task = Submission(tenant=TENANT, type="bench", url=URL, policy=ONCE)
    nodes = [
        NodeStart("each", task, [], [2], spec=NodeSpec(map=spec)),
        NodeStart("join", task, [1]),
    ]
    starter = WorkflowStarter(stage.database, driver.engine.submitter)
    (answer,) = await starter.start([WorkflowStart(TENANT, "map", nodes)])
    assert isinstance(answer, Started)
    return answer.id


async def until_ended(
    driver: Driver, workflow_id: UUID, items: int, watch: Watch | None = None
) -> None:
    stage = driver.stage
    watch, patience = watch or Watch(stage), stage.patience("the map")
    while left := await watch.look(workflow_id):
        done = driver.started[TENANT]
        stage.show(done, items)
        patience.look((done, left), items)
        await asyncio.sleep(LOOK_S / 10)


async def keep_pace(driver: Driver, rounds: int | None) -> None:
    async for number in at_pace(driver.stage, QUIET_TASKS_PER_S):
        if number == rounds:
            return
        await driver.engine.submitter.submit([make_task(QUIET)])


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
