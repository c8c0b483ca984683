"""Figures of workflows: what the leader counts from the tables, whichever process did it."""

from datetime import timedelta

from duly.domain.states import Outcome
from duly.maintenance.workflow_counts import WorkflowFigures
from duly.store.metric_queries import MARGIN_S
from duly.store.workflow_timers import find_due_timers, postpone_timer
from duly.telemetry import Metrics
from tests.store.test_workflows import begin, run_timers
from tests.store.world import World


def shown(metrics: Metrics) -> dict[str, float]:
    """Of workflows, by their line."""
    lines = metrics.render().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("duly_workflow")]
    return {name: float(value) for name, value in pairs}


async def test_workflows_are_counted_once_between_two_looks(world: World, metrics: Metrics) -> None:
    """They start and end in any process, and a transaction that commits late is easily missed."""
    figures = WorkflowFigures(world.database, metrics)
    before = await begin(world, {"a": ()})
    world.advance(MARGIN_S + 1)
    await figures.run_once()
    assert shown(metrics)["duly_workflows_started_total"] == 0, "of the time before it led"
    quick, failing, lasting = [await begin(world, {"a": (), "b": ("a",)}) for _ in range(3)]
    await before.end("a")
    for name in ("a", "b"):
        await quick.end(name)
    await failing.end("a", Outcome.REJECTED)
    for _ in range(3):
        world.advance(MARGIN_S + 1)
        await figures.run_once()
    now = shown(metrics)
    assert now["duly_workflows_started_total"] == 3
    assert now['duly_workflows_ended_total{state="COMPLETED"}'] == 2
    assert now['duly_workflows_ended_total{state="FAILED"}'] == 1
    assert now['duly_workflows_ended_total{state="CANCELLED"}'] == 0
    assert now['duly_workflows{state="running"}'] == 1
    assert now["duly_workflow_nodes_live"] == 2
    await lasting.end("a")
    await figures.run_once()
    assert shown(metrics)["duly_workflow_nodes_live"] == 1


async def test_what_happens_within_the_margin_is_counted_by_the_next_look(
    world: World, metrics: Metrics
) -> None:
    """A workflow that ends while the next look is under way must not be counted twice, or never."""
    figures = WorkflowFigures(world.database, metrics)
    world.advance(60)
    await figures.run_once()
    flow = await begin(world, {"a": ()})
    world.advance(MARGIN_S / 2)
    await figures.run_once()
    await flow.end("a")
    assert shown(metrics)["duly_workflows_started_total"] == 0
    world.advance(MARGIN_S / 2 + 1)
    await figures.run_once()
    now = shown(metrics)
    assert now["duly_workflows_started_total"] == 1, "it lived when its margin began"
    world.advance(MARGIN_S)
    await figures.run_once()
    now = shown(metrics)
    assert now["duly_workflows_started_total"] == 1
    assert now['duly_workflows_ended_total{state="COMPLETED"}'] == 1


async def test_a_timer_that_nobody_does_shows_how_long_it_is_overdue(
    world: World, metrics: Metrics
) -> None:
    """A deadline that no scheduler looks at leaves a workflow hanging, and all figures green."""
    figures = WorkflowFigures(world.database, metrics)
    assert "duly_workflow_overdue_seconds" not in shown(metrics), "not looked yet is not zero"
    await begin(world, {"a": ()}, deadline_s=60.0)
    await figures.run_once()
    assert shown(metrics)["duly_workflow_overdue_seconds"] == 0
    assert shown(metrics)['duly_workflow_timers{kind="deadline"}'] == 1
    world.advance(60 + 90)
    await figures.run_once()
    assert 90 <= shown(metrics)["duly_workflow_overdue_seconds"] < 95
    (timer,) = await find_due_timers(world.database, range(1024))
    await postpone_timer(world.database, timer, 5.0, 600.0)
    await figures.run_once()
    assert shown(metrics)["duly_workflow_timers_failing"] == 1
    world.advance(timedelta(minutes=11).total_seconds())
    assert await run_timers(world) == 1
    await figures.run_once()
    now = shown(metrics)
    assert now["duly_workflow_timers_failing"] == now["duly_workflow_overdue_seconds"] == 0
    metrics.forget_installation()
    assert 'duly_workflows{state="running"}' not in shown(metrics)
