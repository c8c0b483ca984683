"""How long the pause of a large workflow takes, and its end: 10,000 tasks that are all due, and no
worker takes, so that each of them is held and released."""

from duly.bench.children import duly_up
from duly.bench.figures import Figures, percentiles
from duly.bench.over_http import POOL
from duly.bench.stage import ScenarioContext
from duly.client.asynchronous import AsyncClient
from duly.domain.workflow import NODES_MAX


async def run_workflow_pause(stage: ScenarioContext) -> Figures:
    """Over HTTP, from before the call to its answer; one workflow after another."""
    clock = stage.environment.clock
    nodes = {f"n{number}": {"type": "bench.noop"} for number in range(NODES_MAX)}
    graph = {"name": "bench.pause", "defaults": {"target": {"pool": POOL}}, "nodes": nodes}
    pauses: list[float] = []
    unpauses: list[float] = []
    async with duly_up(stage) as running, AsyncClient(running.url, running.api_key) as client:
        for number in range(stage.tasks):
            started = await client.workflows.start(graph)
            began_s = clock.monotonic()
            paused = await client.workflows.pause(started.id)
            paused_s = clock.monotonic()
            assert paused.counts["waiting"] == NODES_MAX, "what is held is due at no instant"
            await client.workflows.unpause(started.id)
            pauses.append(paused_s - began_s)
            unpauses.append(clock.monotonic() - paused_s)
            await client.workflows.cancel(started.id)
            await client.workflows.wait(started.id)
            stage.show(number, stage.tasks)
    ends = percentiles(unpauses)
    return {
        **percentiles(pauses),
        "unpause_p50_ms": ends["p50_ms"],
        "unpause_p99_ms": ends["p99_ms"],
    }
