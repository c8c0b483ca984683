"""Schedules that start workflows: one run for each occurrence, and the policies on live runs."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from duly.domain.ids import is_node
from duly.domain.occurrence_plan import OccurrenceDecision
from duly.domain.states import Outcome, State
from duly.environment import CrashPoint, Environment
from duly.store.fire_schedules import ScheduleFirer
from duly.store.schedules import create_schedule, make_schedule_id, read_schedules
from duly.store.templates import ScheduledWorkflow, workflow_template_of
from duly.store.workflow_pauses import QUEUE
from duly.store.workflow_types import put_workflow_type
from duly.store.workflows import Workflow, WorkflowStart, read_nodes, read_workflow
from tests.store.recurring import (
    definition,
    due_ids,
    fire_due,
    ledger,
    read,
    reckoned,
    verdicts,
)
from tests.store.test_fire_schedules import Crash
from tests.store.test_subworkflows import inner, template_of, with_inner
from tests.store.test_workflows import graph_of, run_timers
from tests.store.world import TENANT, World

GRAPH = WorkflowStart(TENANT, "invoice.month", graph_of({"a": (), "b": ("a",)}))
HOUR_S = 3600.0
INLINE = ScheduledWorkflow("invoice.month", workflow_template_of(GRAPH))


async def schedule(world: World, scheduled: ScheduledWorkflow = INLINE, **fields: Any) -> UUID:
    wanted, now = replace(definition(**fields), template=scheduled), world.now()
    schedule_id = make_schedule_id(world.environment, TENANT, now)
    assert await create_schedule(
        world.database, TENANT, schedule_id, wanted, reckoned(wanted, now), now
    )
    return schedule_id


async def runs(world: World, schedule_id: UUID) -> list[Workflow]:
    found = []
    for entry in await ledger(world, schedule_id):
        if entry.task is not None:
            assert is_node(entry.task)
            workflow = await read_workflow(world.database, TENANT, entry.task)
            assert workflow is not None
            found.append(workflow)
    return found


async def finish(world: World) -> None:
    """Everything that is due, and what becomes due of it."""
    while leases := await world.lease_all():
        for lease in leases:
            await world.settle(lease, Outcome.COMPLETED)


async def test_an_occurrence_starts_a_workflow(world: World) -> None:
    """The ledger says that it fired, and nothing runs; or something runs that it does not know."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60)
    await fire_due(world)
    (entry,) = await ledger(world, schedule_id)
    (run,) = await runs(world, schedule_id)
    assert entry.verdict == OccurrenceDecision.FIRED
    assert (run.name, run.nodes, run.counts["ready"]) == ("invoice.month", 2, 1)
    assert run.tags is not None
    assert run.tags["schedule"] == "report"
    assert run.tags["nominal_at"] == entry.nominal_at.isoformat().replace("+00:00", "Z")
    await finish(world)
    assert (await runs(world, schedule_id))[0].state is State.COMPLETED


async def test_a_type_is_pinned_when_the_occurrence_fires(world: World) -> None:
    """A schedule without a version follows its type; a run never does."""

    async def put(edges: dict[str, tuple[str, ...]], digest: bytes) -> None:
        template = workflow_template_of(replace(GRAPH, nodes=graph_of(edges)))
        assert await put_workflow_type(world.database, TENANT, "{}", digest, template)

    await put({"a": ()}, b"1")
    latest = await schedule(world, ScheduledWorkflow("invoice.month", payload="[7]"), every_s=60)
    fixed = await schedule(world, ScheduledWorkflow("invoice.month", version=1), name="x")
    await put({"a": (), "b": ("a",)}, b"2")
    world.advance(60)
    await fire_due(world)
    assert [(run.type, run.nodes) for run in await runs(world, latest)] == [("invoice.month@2", 2)]
    assert [(run.type, run.nodes) for run in await runs(world, fixed)] == [("invoice.month@1", 1)]
    (run,) = await runs(world, latest)
    (first, _) = await read_nodes(world.database, TENANT, run.id, 0, 10)
    assert (await world.read(first.id)).payload == "[7]"


@pytest.mark.parametrize("point", [CrashPoint.FIRE_BETWEEN, CrashPoint.FIRE_AFTER_COMMIT])
async def test_a_kill_within_a_firing_makes_one_workflow(world: World, point: CrashPoint) -> None:
    """Half a firing: an occurrence without its run, or a second run of it (I6)."""

    async def crash(at: CrashPoint) -> None:
        if at is point:
            raise Crash

    schedule_id = await schedule(world, every_s=60)
    world.advance(60)
    dying = world.node(1)
    environment = Environment(clock=dying.node_clock, crash_point=crash)
    firer = ScheduleFirer(dying.submitter, environment)
    with pytest.raises(Crash):
        await fire_due(world, firer)
    await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED"]
    assert await world.count("workflows") == 1


async def test_two_schedulers_start_one_workflow(world: World) -> None:
    """Two nodes that both believe to own the slot would double every run (I6)."""
    schedule_id = await schedule(world, every_s=60)
    world.advance(60)
    (seen,) = await read_schedules(world.database, [schedule_id])
    firers = [
        ScheduleFirer(node.submitter, node.environment)
        for node in (world.node(seed) for seed in range(3))
    ]
    readable = [(seen, reckoned(seen.definition, seen.anchor_at))]
    plans = [await firer.plan(readable) for firer in firers]
    moved = [
        await firer.fire(world.database, plan) for firer, plan in zip(firers, plans, strict=True)
    ]
    assert [len(ids) for ids in moved] == [1, 0, 0]
    assert await world.count("workflows") == 1


async def test_an_occurrence_is_skipped_while_a_run_lives(world: World) -> None:
    """Two runs of one month beside each other."""
    schedule_id = await schedule(world, every_s=60, overlap="skip")
    for _ in range(2):
        world.advance(60)
        await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED", "SKIPPED_OVERLAP"]
    assert len((await read(world, schedule_id)).live) == 1
    await finish(world)
    world.advance(60)
    await fire_due(world)
    assert (await verdicts(world, schedule_id))[-1] == "FIRED"


async def test_queue_one_starts_the_next_when_the_one_before_ends(world: World) -> None:
    """A queued run that starts beside the other one, or never."""
    schedule_id = await schedule(world, every_s=60, overlap="queue_one")
    for _ in range(3):
        world.advance(60)
        await fire_due(world)
    assert await verdicts(world, schedule_id) == ["FIRED", "FIRED", "SKIPPED_OVERLAP"]
    first, second = await runs(world, schedule_id)
    assert (first.paused_by, second.paused_by) == (None, QUEUE)
    await finish(world)
    assert (await runs(world, schedule_id))[0].state is State.COMPLETED
    assert await run_timers(world) == 1
    await finish(world)
    assert (await runs(world, schedule_id))[1].state is State.COMPLETED
    assert (await read(world, schedule_id)).live == []


async def test_cancel_previous_cancels_the_run_that_lives(world: World) -> None:
    """The old run goes on, and the new one with it."""
    schedule_id = await schedule(world, every_s=60, overlap="cancel_previous")
    for _ in range(2):
        world.advance(60)
        await fire_due(world)
    first, second = await runs(world, schedule_id)
    assert (first.state, second.state) == (State.CANCELLED, State.RUNNING)


async def test_missed_occurrences_are_coalesced_into_one_run(world: World) -> None:
    """After an outage, a hundred runs at once."""
    schedule_id = await schedule(world, every_s=60, misfire="coalesce")
    world.advance(300)
    await fire_due(world)
    assert (await verdicts(world, schedule_id)) == ["COALESCED"] * 4 + ["FIRED"]
    assert await world.count("workflows") == 1
    assert await due_ids(world) == []


async def test_jitter_moves_the_run_and_never_its_name(world: World) -> None:
    """A smeared time in the ledger would let one occurrence exist under two names."""
    schedule_id = await schedule(world, cron="0 * * * *", jitter_s=600.0)
    offset_s = (await read(world, schedule_id)).offset_s
    assert 0 < offset_s < 600.0
    world.advance(HOUR_S + offset_s - 0.5)
    assert await fire_due(world) == 0
    world.advance(1.0)
    await fire_due(world)
    (entry,) = await ledger(world, schedule_id)
    (run,) = await runs(world, schedule_id)
    assert entry.nominal_at.minute == 0
    assert (run.created_at, run.counts["ready"]) == (world.now(), 1)


async def test_a_run_that_is_cancelled_by_its_successor_takes_what_is_inside_along(
    world: World,
) -> None:
    """The workflow inside would go on beside that of the next run."""
    await world.submitter.pools.resolve({(TENANT, "default")})
    nodes = with_inner({"close": ()}, {"close": inner(template_of())})
    around = ScheduledWorkflow("invoice.month", workflow_template_of(replace(GRAPH, nodes=nodes)))
    schedule_id = await schedule(world, around, every_s=60, overlap="cancel_previous")
    world.advance(60)
    await fire_due(world)
    await run_timers(world)
    (first,) = await runs(world, schedule_id)
    assert first.counts["running"] == 1
    world.advance(60)
    await fire_due(world)
    await run_timers(world)
    states = [run.state for run in await runs(world, schedule_id)]
    assert states == [State.CANCELLED, State.RUNNING]
    # Of each, the workflow inside.
    rows = await world.database.fetch(
        "SELECT state FROM duly.workflows WHERE parent_node IS NOT NULL ORDER BY id"
    )
    assert [row["state"] for row in rows] == ["CANCELLED", None]
