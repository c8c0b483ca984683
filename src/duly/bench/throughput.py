"""Throughput scenarios: how much a whole scheduler in one process gets done: no HTTP, a handler
that does nothing."""

from duly.bench.drive import Driver, submit_and_settle, submit_then_drain
from duly.bench.figures import Figures
from duly.bench.stage import BATCH, ScenarioContext
from duly.execution.attempt import DONE, AttemptResult
from duly.store.lease import Lease
from duly.store.submit import Submitter
from duly.store.tenants import TenantLimits, create_tenant


async def run_drain(stage: ScenarioContext) -> Figures:
    submitted, drained = await submit_then_drain(stage, stage.tasks)
    return {
        **drained.figures(),
        "submit_tasks_per_s": submitted.rate,
        "backlog": stage.tasks,
    }


async def run_end_to_end(stage: ScenarioContext) -> Figures:
    meter = await submit_and_settle(stage, stage.tasks)
    return meter.figures()


async def run_weights(stage: ScenarioContext) -> Figures:
    """Both tenants have a backlog; the one with more weight is served more often."""
    big = await create_tenant(stage.database, "bench-big", TenantLimits(weight=3.0))
    small = await create_tenant(stage.database, "bench-small", TenantLimits(weight=1.0))
    assert big is not None
    assert small is not None
    order: list[int] = []

    def note_tenant(lease: Lease) -> AttemptResult:
        order.append(lease.tenant)
        return DONE

    driver = Driver(stage, note_tenant)
    tasks = max(stage.tasks // BATCH, 1) * BATCH
    silent = Submitter(stage.database, stage.environment)
    await driver.submit(tasks, (big.id, small.id), silent)
    driver.restart_meter(tasks)
    async with driver.running(is_settled_down=False):
        await driver.all_settled()
    # From when both are loaded until the bigger one has nothing left.
    window = order[tasks // 10 : tasks * 6 // 10]
    share = window.count(big.id) / len(window)
    return {**driver.meter.figures(), "share": share, "backlog": tasks}
