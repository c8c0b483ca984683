"""Each housekeeping service: a bounded batch, and the truth about whether more is left."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from uuid import UUID

from duly.domain.states import Outcome
from duly.maintenance.backlog import Backlog
from duly.maintenance.expired_rows import ExpiredRows, make_expired_rows
from duly.maintenance.installation_counts import InstallationCounts
from duly.maintenance.partitions import Partitions
from duly.maintenance.pinned_partitions import PinnedPartitions
from duly.maintenance.ready_queues import ReadyQueues
from duly.maintenance.service import Report
from duly.store.breakers import open_breaker
from duly.store.call_idempotency import CALL_TTL_S, claim_call
from duly.store.insert import KEY_TTL_S
from duly.store.keys import claim_nonce
from duly.store.partitions import RETENTION_S, drop_month
from duly.store.stats import StatsBook
from duly.store.task_logs import LogChunk, append_logs
from duly.store.tenants import create_tenant
from duly.store.workers import see_worker
from duly.store.workflow_control import run_timer
from duly.store.workflow_timers import find_due_timers
from duly.telemetry import Metrics
from tests.store.recurring import fire_due, schedule
from tests.store.test_workflows import Flow, begin
from tests.store.world import HOLDER, START, TENANT, World

DAY_S = 86400.0


def expired_rows(world: World, name: str, batch_size: int) -> ExpiredRows:
    services = {each.name: each for each in make_expired_rows(world.database, RETENTION_S)}
    return replace(services[name], batch_size=batch_size)


async def test_expired_keys_go_in_batches(world: World) -> None:
    """Keys outlive their tasks by design; without an end they are the largest table."""
    for number in range(5):
        await world.submit(idempotency_key=str(number))
    service = expired_rows(world, "keys", 3)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(KEY_TTL_S)
    assert await service.run_once() == Report(3, has_more=True)
    assert await service.run_once() == Report(2, has_more=False)
    assert await world.count("idempotency_keys") == 0


async def test_a_pinned_month_is_emptied_batch_by_batch(world: World) -> None:
    """One live task would otherwise keep a month of millions on disk for a year."""
    for number in range(5):
        stored = await world.submit(tenant=number + 1)
        await world.run(stored.id, Outcome.COMPLETED, number + 1)
    survivor = await world.submit()
    await world.submit(run_at=START + timedelta(days=25))
    partitions = Partitions(world.database)
    service = PinnedPartitions(world.database, lambda: partitions.pinned, examine_max=2)
    assert await service.run_once() == Report()
    world.advance(100 * DAY_S)
    await partitions.run_once()
    assert len(partitions.pinned) == 2
    reports = [await service.run_once()]
    while reports[-1].has_more:
        reports.append(await service.run_once())
    assert sum(report.changed for report in reports) == 5
    assert len(reports) <= 6
    assert (await world.read(survivor.id)).id == survivor.id
    assert await world.count("tasks") == 2
    assert await world.count("attempts") == 0


async def test_old_statistics_go_in_batches(world: World) -> None:
    """A row for each minute, tenant and type is a lot of rows in a year."""
    book = StatsBook(world.environment)
    for name in ("a", "b", "c"):
        book.note_submitted(TENANT, name, 1)
    await book.flush(world.database)
    service = expired_rows(world, "old_stats", 2)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(8 * DAY_S)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)


async def test_old_occurrences_go_in_batches_and_only_past_a_backfills_reach(world: World) -> None:
    """A verdict for each minute of each schedule; yet what a backfill relies on must stand."""
    await schedule(world, every_s=60, max_fires=3, misfire="fire_all")
    world.advance(180.0)
    await fire_due(world)
    service = expired_rows(world, "old_occurrences", 2)
    world.advance(30 * DAY_S)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(DAY_S + 1.0)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)
    assert await world.count("occurrences") == 0


async def test_dead_nodes_are_forgotten_and_living_ones_are_not(world: World) -> None:
    """Every start of a process is a row; a crash loop makes thousands."""
    for number, expires_s in enumerate((-3601, -3599, 10)):
        await world.database.fetch(
            "INSERT INTO duly.nodes VALUES ($1, 'n', '1', '{}', duly.now(), duly.now(),"
            " duly.now() + make_interval(secs => $2))",
            UUID(int=number),
            expires_s,
        )
    assert await expired_rows(world, "dead_nodes", 2).run_once() == Report(1, has_more=False)
    assert await world.count("nodes") == 2


async def test_closed_breakers_are_forgotten(world: World) -> None:
    """Hosts come and go with what tenants submit."""
    acme = await create_tenant(world.database, "acme")
    assert acme is not None
    for host in ("a", "b", "c"):
        await open_breaker(world.database, acme.id, host, 1.0, "x")
    world.advance(2 * 3600)
    service = expired_rows(world, "closed_breakers", 2)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)


async def test_used_nonces_go_when_no_signature_can_use_them(world: World) -> None:
    """Every signed request leaves one; kept for ever, they outgrow the tasks."""
    for number in range(3):
        assert await claim_nonce(world.database, "key", str(number), 600.0)
    service = expired_rows(world, "nonces", 2)
    assert await service.run_once() == Report(0, has_more=False)
    assert not await claim_nonce(world.database, "key", "0", 600.0)
    world.advance(600)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)


async def test_remembered_calls_are_forgotten_after_their_time(world: World) -> None:
    """An answer is as large as a page of tasks; a week of them is enough."""
    for number in range(3):
        async with world.database.transaction() as session:
            assert await claim_call(session, TENANT, str(number), b"hash") is None
    service = expired_rows(world, "remembered_calls", 2)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(CALL_TTL_S)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)
    assert await world.count("remembered_calls") == 0


async def test_silent_workers_are_forgotten_and_living_ones_are_not(world: World) -> None:
    """A fleet that names its processes anew at every start leaves a row for each of them."""
    for number, expires_s in enumerate((-3601, -3601, -3601, -3599, 10)):
        await world.database.fetch(
            "INSERT INTO duly.workers VALUES (1, $1, $2, '{default}', duly.now(), duly.now(),"
            " duly.now() + make_interval(secs => $3))",
            str(number),
            UUID(int=number),
            expires_s,
        )
    service = expired_rows(world, "silent_workers", 2)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)
    assert await world.count("workers") == 2


async def test_the_oldest_ready_age_is_shown_when_all_places_were_seen(
    world: World, metrics: Metrics
) -> None:
    """A half-seen installation would show the starved tenant as gone."""
    await create_tenant(world.database, "acme")
    for priority in (9, 5, 0):
        await world.submit(priority=priority)
        world.advance(1)
    await world.submit(delay_s=60.0)
    service = ReadyQueues(world.database, metrics, page=2)
    assert await service.run_once() == Report(0, has_more=True)
    assert b"duly_oldest_ready_seconds{" not in metrics.render()
    assert await service.run_once() == Report()
    for band, age in (("high", 3.0), ("normal", 2.0), ("low", 1.0)):
        line = f'duly_oldest_ready_seconds{{band="{band}",tenant="acme"}} {age}'
        assert line.encode() in metrics.render()
    await world.lease_all()
    while (await service.run_once()).has_more:
        pass
    assert b"duly_oldest_ready_seconds{" not in metrics.render()


async def test_the_backlog_is_shown_when_all_tenants_were_seen(
    world: World, metrics: Metrics
) -> None:
    """`duly_in_flight` counted only what has a cap: an uncapped tenant ran nothing."""
    for name in ("acme", "zeta"):
        await create_tenant(world.database, name)
    running = await world.submit(tenant=1)
    await world.lease(running.id)
    await world.submit(tenant=2)
    await world.submit(tenant=2, delay_s=60.0)
    service = Backlog(world.database, metrics, page=1)
    while (await service.run_once()).has_more:
        assert b"duly_in_flight{" not in metrics.render()
    shown = metrics.render().decode()
    assert 'duly_in_flight{tenant="acme"} 1.0' in shown
    assert 'duly_backlog{state="ready",tenant="zeta"} 1.0' in shown
    assert 'duly_backlog{state="scheduled",tenant="zeta"} 1.0' in shown


async def test_ready_tasks_are_counted_by_pool(world: World, metrics: Metrics) -> None:
    """Work that waits in a pool without workers looks, added up, like work that flows."""
    await create_tenant(world.database, "acme")
    for pool in ("mail", "mail", "media"):
        await world.submit(pool=pool, priority=9)
    await world.submit(pool="media", delay_s=60.0)
    world.advance(1)
    service = ReadyQueues(world.database, metrics, page=1)
    while (await service.run_once()).has_more:
        assert b"duly_pool_ready{" not in metrics.render()
    shown = metrics.render().decode()
    assert 'duly_pool_ready{pool="mail",tenant="acme"} 2.0' in shown
    assert 'duly_pool_ready{pool="media",tenant="acme"} 1.0' in shown
    assert "mail" not in metrics.render(with_tenants=False).decode()


async def test_workers_breakers_and_schedules_are_counted(world: World, metrics: Metrics) -> None:
    """A pool without workers, a breaker that is open and a schedule that is late had no figure."""
    await create_tenant(world.database, "acme")
    await see_worker(world.database, TENANT, "w1", UUID(int=1), ["mail", "media"], 30.0)
    await see_worker(world.database, TENANT, "w2", UUID(int=2), ["mail"], 30.0)
    await see_worker(world.database, TENANT, "gone", UUID(int=3), ["mail"], -1.0)
    await open_breaker(world.database, TENANT, "example.org", 60.0, "it fails")
    await schedule(world, every_s=60)
    world.advance(65.0 - 60.0)
    service = InstallationCounts(world.database, metrics)
    assert b"duly_schedules{" not in metrics.render(), "not counted yet is not zero"
    await service.run_once()
    shown = metrics.render().decode()
    assert 'duly_workers{pool="mail",tenant="acme"} 2.0' in shown
    assert 'duly_workers{pool="media",tenant="acme"} 1.0' in shown
    assert 'duly_breakers_open{kind="host"} 1.0' in shown
    assert 'duly_breakers_open{kind="pool"} 0.0' in shown
    assert 'duly_schedules{state="active"} 1.0' in shown
    assert "duly_schedule_overdue_seconds 0.0" in shown
    world.advance(70.0)
    await service.run_once()
    (line,) = [
        line
        for line in metrics.render().decode().splitlines()
        if line.startswith("duly_schedule_overdue_seconds ")
    ]
    assert 10.0 <= float(line.split()[1]) <= 75.0
    metrics.forget_installation()
    assert b"duly_schedules{" not in metrics.render()


async def test_old_logs_go_in_batches(world: World) -> None:
    """Lines of handlers are the largest thing that nobody looks at any more."""
    stored = await world.submit()
    lease = await world.lease(stored.id)
    chunks = [LogChunk(stored.id, lease.fence, seq, "[]") for seq in range(3)]
    assert await append_logs(world.database, TENANT, HOLDER, chunks) == 3
    service = expired_rows(world, "old_logs", 2)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(8 * DAY_S)
    assert await service.run_once() == Report(2, has_more=True)
    assert await service.run_once() == Report(1, has_more=False)


async def run_to_its_end(world: World, **fields: object) -> Flow:
    """Two nodes that ran and, as one of them failed, one that was skipped."""
    flow = await begin(world, {"a": (), "b": (), "c": ("a", "b")}, **fields)
    await flow.end("a")
    await flow.end("b", Outcome.FAILED)
    return flow


async def kept_flows(world: World, flows: Sequence[Flow]) -> list[bool]:
    rows = await world.database.fetch("SELECT id FROM duly.workflows")
    return [flow.id in {row["id"] for row in rows} for flow in flows]


async def test_old_workflows_go_in_batches_and_then_their_month(world: World) -> None:
    """The row of one ended workflow keeps its whole month, with all other tasks, for ever."""
    january = date(2026, 1, 1)
    flows = [await run_to_its_end(world) for _ in range(3)]
    live = await begin(world, {"a": (), "b": ("a",)})
    service = expired_rows(world, "old_workflows", 4)
    world.advance(RETENTION_S - 1.0)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(2.0)
    assert await service.run_once() == Report(6, has_more=True)
    assert await service.run_once() == Report(3, has_more=False)
    assert await kept_flows(world, [*flows, live]) == [False, False, False, True]
    assert await world.count("workflow_nodes") == 2
    await live.end("a")
    await live.end("b")
    assert await drop_month(world.database, january) == "workflows"
    world.advance(RETENTION_S + 1.0)
    assert await service.run_once() == Report(2, has_more=False)
    assert await drop_month(world.database, january) is None
    assert await world.count("workflow_nodes") == 0


async def test_the_tasks_of_an_old_workflow_leave_a_pinned_month(world: World) -> None:
    """One live task in the month of many workflows, and none of their nodes would ever go."""
    await run_to_its_end(world)
    await world.submit()
    partitions = Partitions(world.database)
    pinned = PinnedPartitions(world.database, lambda: partitions.pinned)
    world.advance(60 * DAY_S)
    await partitions.run_once()
    assert (await pinned.run_once()).changed == 0
    assert (await expired_rows(world, "old_workflows", 10).run_once()).changed == 3
    reports = [await pinned.run_once(), await pinned.run_once()]
    assert sum(report.changed for report in reports) == 3
    assert await world.count("tasks") == 1


async def test_workflows_follow_the_retention_setting_and_stay_for_their_month(
    world: World,
) -> None:
    """Keys of this month, and tasks, would stand for a workflow that is gone."""
    await run_to_its_end(world)
    services = {each.name: each for each in make_expired_rows(world.database, DAY_S)}
    service = services["old_workflows"]
    world.advance(2 * DAY_S)
    assert await service.run_once() == Report(0, has_more=False)
    world.advance(29 * DAY_S)
    assert await expired_rows(world, "old_workflows", 10).run_once() == Report(3, has_more=False)


async def test_a_workflow_whose_end_is_not_told_yet_stays(world: World) -> None:
    """After a month out of service the callback would be lost, with all that it starts."""
    flow = await run_to_its_end(world, callback='{"type": "told"}')
    world.advance(60 * DAY_S)
    service = expired_rows(world, "old_workflows", 10)
    assert await service.run_once() == Report(0, has_more=False)
    told: list[str] = []

    async def tell(_: object, ended: object) -> object:
        told.append(str(ended.id))  # type: ignore[attr-defined]
        return None

    (timer,) = await find_due_timers(world.database, range(1024))
    await run_timer(world.database, timer, tell)  # type: ignore[arg-type]
    assert told == [str(flow.id)]
    assert await service.run_once() == Report(3, has_more=False)
