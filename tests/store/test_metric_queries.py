"""Measures for metrics: the oldest ready work, never what is delayed, and slots without owner."""

import pytest

from duly.store import metric_queries
from duly.store.load import BEFORE_ALL
from duly.store.metric_queries import ReadyQueue, count_backlog, scan_ready
from duly.store.tenants import create_tenant
from tests.store.world import World


async def scan(world: World, limit: int) -> list[ReadyQueue]:
    found, after = [], BEFORE_ALL
    while True:
        page = await scan_ready(world.database, after, limit)
        found += page.queues
        if page.last is None:
            return found
        after = page.last


@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_the_oldest_ready_work_of_each_tenant_and_band(world: World, limit: int) -> None:
    """A band hidden behind another is a starved band that no alarm sees."""
    acme = await create_tenant(world.database, "acme")
    assert acme is not None
    await world.submit(tenant=acme.id, priority=9)
    world.advance(5)
    await world.submit(tenant=acme.id, priority=9, pool="other")
    await world.submit(tenant=acme.id, priority=0)
    await world.submit(tenant=77, priority=5)
    world.advance(5)
    ages: dict[tuple[str, int], float] = {}
    for tenant, _, band, age_s, _ in await scan(world, limit):
        ages[tenant, band] = max(age_s, ages.get((tenant, band), 0.0))
    assert ages == {("acme", 0): 10.0, ("acme", 2): 5.0, ("77", 1): 5.0}


async def test_delayed_and_running_tasks_are_not_ready(world: World) -> None:
    """A task for next year is not a year late, and one that runs waits for nobody."""
    await world.submit(delay_s=60.0)
    running = await world.submit()
    await world.lease(running.id)
    world.advance(10)
    assert await scan(world, 1000) == []
    world.advance(50)
    assert [oldest.age_s for oldest in await scan(world, 1000)] == [0.0]


async def test_an_installation_without_places_has_nothing_ready(world: World) -> None:
    """The first scan of a new installation must not fail."""
    assert await scan_ready(world.database) == ([], None)


async def test_the_backlog_of_each_tenant_is_counted_by_state(world: World) -> None:
    """In flight was only what has a cap, and what waits had no number at all."""
    for name in ("acme", "zeta", "idle"):
        await create_tenant(world.database, name)
    for tenant, delays in ((1, (0.0, 0.0, 0.0, 60.0)), (2, (60.0,))):
        for delay_s in delays:
            await world.submit(tenant=tenant, delay_s=delay_s)
    running = await world.submit(priority=9)
    await world.lease(running.id)
    pages = [await count_backlog(world.database, after, limit=2) for after in (0, 2)]
    assert [each[1:] for page in pages for each in page] == [
        ("acme", 3, 1, 1),
        ("zeta", 0, 1, 0),
        ("idle", 0, 0, 0),
    ]


async def test_a_count_of_the_backlog_stops_at_its_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten million that wait must not be counted one by one, every quarter of a minute."""
    monkeypatch.setattr(metric_queries, "COUNT_MAX", 4)
    await create_tenant(world.database, "acme")
    for priority in (0, 5, 9):
        for _ in range(3):
            await world.submit(priority=priority)
            await world.submit(priority=priority, delay_s=60.0)
    (found,) = await count_backlog(world.database)
    assert (found.ready, found.scheduled) == (4, 4)
