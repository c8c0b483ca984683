"""What the schema promises of unlogged tables; how the ready queue behaves is tested in broker."""

import asyncpg
import pytest

from duly.domain.lanes import Lane, Ticket
from duly.store.ready_tickets import count_tickets, publish_tickets, rebuild_tickets
from tests.store.world import TENANT, World

LANE = Lane(TENANT, 1, 1)
UNLOGGED = """
SELECT relname::text FROM pg_class
 WHERE relnamespace = 'duly'::regnamespace AND relpersistence = 'u' ORDER BY relname
"""
# As processes of the version before publish: they let the table choose a place.
PUBLISH_BEFORE = """
INSERT INTO duly.ready_tickets (tenant, pool, band, shard, fence, id, deadline)
SELECT $1, 1, 1, 0, 0, gen_random_uuid(), duly.now() + interval '1 hour' FROM generate_series(1, 50)
"""


async def test_only_the_ready_queue_is_unlogged_and_it_draws_no_sequence(
    owner: asyncpg.Connection,
) -> None:
    """After a promotion an unlogged sequence may be unreadable for ever."""
    names = [row["relname"] for row in await owner.fetch(UNLOGGED)]
    assert names == ["ready_tickets", "ready_tickets_lane"]


async def test_a_process_of_the_version_before_publishes_too(world: World) -> None:
    """During an upgrade both versions share the table."""
    await world.database.fetch(PUBLISH_BEFORE, TENANT)
    stored = await world.submit()
    await publish_tickets(world.database, [(LANE, Ticket(stored.id, 0))])
    assert await count_tickets(world.database, {LANE: 0}) == {LANE: 51}


async def test_the_engine_may_rebuild_the_queue_and_nothing_more(
    world: World, engine_url: str
) -> None:
    """Its login owns no table: only the owner's function may empty one."""
    assert await rebuild_tickets(world.database, 'bad magic number in "ready_tickets"')
    engine = await asyncpg.connect(engine_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await engine.execute("TRUNCATE duly.ready_tickets")
    finally:
        await engine.close()
