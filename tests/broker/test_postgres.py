"""The carrier in PostgreSQL: the conformance suite, several processes, plans, and restarts."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.broker import lease_queue
from duly.broker.contract import Delivery
from duly.broker.lease_queue import POLL_LAST_S
from duly.broker.postgres import PostgresCarrier
from duly.domain.errors import DatabaseUnavailable
from duly.domain.ids import shard_of
from duly.domain.lanes import TICKET_S, Lane, Ticket
from duly.store.ready_tickets import SQL, SWEEP_START, rebuild_tickets, sweep_tickets
from tests.broker.conformance import Conformance
from tests.broker.stage import (
    HIGH_LANE,
    LANE,
    CountedStatements,
    Stage,
    deliveries,
    ids,
    other_process,
    staged,
    until,
)
from tests.store.world import LEASE_S, OTHER_HOLDER, World

FULL = 3_000
REBUILD = "SELECT duly.rebuild_ready_tickets($1::oid)"
EXECUTE = {
    "lease_tickets": "('{1,1}', '{1,1}', '{0,1}', '{0,0}', 100, gen_random_uuid(), 15, '{7}')",
    "count_tickets": "('{1,1}', '{1,1}', '{0,1}', '{0,0}', 100)",
}


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    async with staged(world, PostgresCarrier(world.database, world.environment)) as stage:
        yield stage


class TestPostgres(Conformance):
    async def test_a_consumer_finds_what_another_process_published(self, stage: Stage) -> None:
        """Without notifications, polling alone must be enough."""
        tickets = await stage.submit(2)
        consumer = await stage.wait_in_turn(2)
        await other_process(stage).publish(deliveries(tickets))
        assert ids(await consumer) == ids(tickets)

    async def test_a_wake_ends_the_wait_for_the_next_poll(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a signal between processes a lone task must not wait half a second."""
        # Nobody polls for a minute, so only the ring can bring it.
        monkeypatch.setattr(lease_queue, "POLL_FIRST_S", 60.0)
        monkeypatch.setattr(lease_queue, "POLL_LAST_S", 60.0)
        stage.queue.interval_s = 60.0
        (ticket,) = await stage.submit(1)
        consumer = await stage.wait_in_turn(1)
        ringing = other_process(stage)
        ringing.on_published = stage.queue.on_arrivals
        loop = asyncio.get_running_loop()
        before = loop.time()
        await ringing.publish([Delivery(LANE, ticket)])
        assert ids(await consumer) == [ticket.id]
        assert loop.time() - before < 30.0

    async def test_many_waiting_consumers_poll_as_one(self, stage: Stage) -> None:
        """A hundred workers on long polls would otherwise be two hundred statements a second."""
        lanes = [Lane(1, pool, 1) for pool in range(1, 31)]
        consumers = [asyncio.create_task(stage.lease(1, lane, wait_s=60.0)) for lane in lanes]
        await until(lambda: stage.queue.waiting() == len(lanes))
        loop = asyncio.get_running_loop()
        with CountedStatements(stage.world.database) as statements:
            before = loop.time()
            assert await stage.lease(1, wait_s=1.2) == []
            polls_max = (loop.time() - before) / POLL_LAST_S + 1
        # Beside the polls, the one look of the newcomer.
        assert 1 < statements.count <= polls_max + 1
        await stage.queue.close()
        assert await asyncio.gather(*consumers) == [[] for _ in lanes]

    async def test_a_woken_consumer_that_leaves_wakes_the_next(self, stage: Stage) -> None:
        """The wake was spent on it; the others would wait for the next poll, here a minute away."""
        stage.queue.interval_s = 60.0
        tickets = await stage.submit(2)
        leaving = await stage.wait_in_turn(2)
        staying = await stage.wait_in_turn(2)
        await stage.publish(tickets)
        leaving.cancel()
        async with asyncio.timeout(5.0):
            assert ids(await staying) == ids(tickets)

    async def test_two_processes_never_get_the_same_task(self, stage: Stage) -> None:
        """Skipping what another has locked is all that stands between them (I2)."""
        tickets = await stage.submit(400)
        await stage.publish(tickets)
        queues = [stage.queue, other_process(stage), other_process(stage)]
        had = []
        while more := await asyncio.gather(*(stage.lease(11, queue=each) for each in queues)):
            if not any(more):
                break
            had += [lease.id for part in more for lease in part]
        assert sorted(had) == sorted(ids(tickets))

    async def test_tickets_in_another_takers_hands_are_skipped(
        self, stage: Stage, engine_url: str
    ) -> None:
        """A taker that waits for another's lock is as slow as the slowest of all."""
        tickets = await stage.submit(4)
        await stage.publish(tickets)
        other = await asyncpg.connect(engine_url)
        try:
            async with other.transaction():
                await other.execute("SELECT set_config('duly.test_now', $1, true)", now(stage))
                await other.fetch(SQL.lease_tickets, *lease_arguments(2, OTHER_HOLDER))
                async with asyncio.timeout(5.0):
                    assert ids(await stage.lease(4)) == ids(tickets[2:])
        finally:
            await other.close()

    async def test_a_poll_that_fails_is_told_to_who_waits(self, stage: Stage) -> None:
        """A consumer that waits on a dead database believes that there is no work."""
        consumer = await stage.wait_in_turn(1)

        async def broken(statement: str, *arguments: Any) -> list[asyncpg.Record]:
            raise DatabaseUnavailable(address="here", problem="gone")

        stage.world.database.fetch = broken  # type: ignore[method-assign]
        stage.queue.on_arrivals([LANE])
        with pytest.raises(DatabaseUnavailable):
            await consumer
        del stage.world.database.fetch
        assert await stage.lease(1, wait_s=0.01) == []

    async def test_an_emptied_table_on_a_clock_set_back_is_no_error(
        self, stage: Stage, owner: asyncpg.Connection
    ) -> None:
        """A promoted standby has an empty table, and perhaps a clock that is behind: what is
        published by it lies before every bookmark."""
        before, after = await stage.submit(5), await stage.submit(5)
        await stage.publish(before)
        await stage.lease(5)
        for _ in range(3):
            stage.world.node_clock.advance(0.3)
            await stage.lease(1)
        carrier = stage.queue.carrier
        assert isinstance(carrier, PostgresCarrier)
        assert carrier.lane_cursors.trusted[LANE] > 0
        await owner.execute("TRUNCATE duly.ready_tickets")
        await other_process(stage).publish(deliveries(after))
        await owner.execute("UPDATE duly.ready_tickets SET sequence = sequence - 3600000000")
        stage.world.database.sessions_opened += 1
        assert ids(await stage.lease(5)) == ids(after)

    async def test_two_publishers_at_one_instant_lose_no_ticket(self, stage: Stage) -> None:
        """Both draw the same places: a place is no key."""
        one, two = await stage.submit(3), await stage.submit(3)
        for queue, tickets in ((stage.queue, one), (other_process(stage), two)):
            await queue.publish(deliveries(tickets))
        assert len(await stage.lease(2)) == 2
        assert len(await stage.lease(9)) == 4

    @pytest.mark.parametrize("relation", ["ready_tickets", "ready_tickets_lane"])
    @pytest.mark.parametrize("damage", ["torn", "emptied"])
    @pytest.mark.parametrize("met_by", ["publish", "lease", "count", "sweep", "wipe"])
    async def test_an_unreadable_table_is_rebuilt(
        self, stage: Stage, owner: asyncpg.Connection, relation: str, damage: str, met_by: str
    ) -> None:
        """Every publish failed for ever after a promotion: a cache that cannot be read is emptied,
        whichever statement meets it, by a login that does not own it."""
        old, new = await stage.submit(1), await stage.submit(2)
        await stage.publish(old)
        await spoil(owner, relation, damage)
        match met_by:
            case "publish":
                await stage.publish(new)
            case "lease":
                await stage.lease(1)
            case "count":
                await stage.queue.count([LANE])
            case "sweep":
                await sweep_tickets(stage.world.database)
            case _:
                await stage.queue.purge()
        if met_by != "publish":
            await stage.publish(new)
        assert ids(await stage.lease(5)) == ids(new)

    async def test_what_others_rebuilt_meanwhile_is_left_alone(
        self, stage: Stage, owner: asyncpg.Connection
    ) -> None:
        """All processes meet the fault at once; one must not empty what another published."""
        tickets = await stage.submit(1)
        before = await owner.fetchval("SELECT pg_relation_filenode('duly.ready_tickets')")
        assert await owner.fetchval(REBUILD, before) is True
        await stage.publish(tickets)
        assert await owner.fetchval(REBUILD, before) is False
        assert ids(await stage.lease(5)) == ids(tickets)

    async def test_a_fault_of_another_table_empties_nothing(self, stage: Stage) -> None:
        """A damaged page of tasks would wipe the queue at every lease of it."""
        tickets = await stage.submit(1)
        await stage.publish(tickets)
        problem = 'invalid page in block 0 of relation "base/1/1259"'
        assert not await rebuild_tickets(stage.world.database, problem)
        assert ids(await stage.lease(5)) == ids(tickets)

    async def test_a_bookmark_trails_what_was_taken(self, stage: Stage) -> None:
        """A publisher that commits late has lower sequences than what was taken already."""
        late, early = await stage.submit(1), await stage.submit(1)
        async with stage.world.database.transaction() as slow:
            await slow.fetch(SQL.publish_tickets, *publish_arguments(late))
            await stage.publish(early)
            stage.world.node_clock.advance(0.3)
            assert ids(await stage.lease(5)) == ids(early)
            stage.world.node_clock.advance(0.26)
        assert ids(await stage.lease(5)) == ids(late)

    async def test_a_sweep_walks_through_all_lanes_in_bites(self, stage: Stage) -> None:
        """A lane that no scheduler knows any more would keep its tickets for ever."""
        database = stage.world.database
        for number in range(4):
            await stage.publish(await stage.submit(3), Lane(number, 1, 1))
        stage.world.clock.advance(TICKET_S)
        fresh = await stage.submit(2)
        await stage.publish(fresh, HIGH_LANE)
        batches: list[int] = []
        spot = SWEEP_START
        while not batches or spot != SWEEP_START:
            spot, gone = await sweep_tickets(database, spot, batch_size=5)
            batches.append(gone)
        # The two fresh ones lie between the second and the third lane.
        assert batches == [3, 5, 4]
        assert ids(await stage.lease(9, HIGH_LANE)) == ids(fresh)

    @pytest.mark.parametrize("tickets", [0, FULL])
    @pytest.mark.parametrize("is_analyzed", [False, True])
    async def test_leasing_reads_no_table_whole(
        self,
        stage: Stage,
        owner: asyncpg.Connection,
        engine_url: str,
        tickets: int,
        is_analyzed: bool,
    ) -> None:
        """The table is empty at one moment and full at the next; the plan must suit both."""
        if tickets:
            await stage.publish(await stage.submit(tickets))
        if is_analyzed:
            await owner.execute("ANALYZE duly.ready_tickets, duly.timers, duly.tasks")
        engine = await asyncpg.connect(engine_url)
        try:
            await engine.execute("SELECT set_config('duly.test_now', $1, false)", now(stage))
            for mode in ("force_custom_plan", "force_generic_plan"):
                await engine.execute(f"SET plan_cache_mode = {mode}")
                for name in ("lease_tickets", "count_tickets"):
                    plan = await explain(engine, name)
                    assert not re.findall(r"Seq Scan|Hash Join|Merge Join", plan), (mode, name)
        finally:
            await engine.close()


def now(stage: Stage) -> str:
    return stage.world.now().isoformat()


async def explain(connection: asyncpg.Connection, name: str) -> str:
    """The plan of a prepared statement, as the plan cache would choose it."""
    await connection.execute(f"PREPARE asked AS {SQL.blocks[name]}")
    rows = await connection.fetch(f"EXPLAIN EXECUTE asked {EXECUTE[name]}")
    await connection.execute("DEALLOCATE asked")
    return "\n".join(row[0] for row in rows)


def lease_arguments(count: int, holder: UUID) -> tuple[Any, ...]:
    return [LANE.tenant], [LANE.pool], [LANE.band], [0], count, holder, LEASE_S, []


def publish_arguments(tickets: list[Ticket]) -> tuple[Any, ...]:
    return (
        *([field] * len(tickets) for field in LANE),
        [shard_of(ticket.id) for ticket in tickets],
        [ticket.fence for ticket in tickets],
        ids(tickets),
        [ticket.deadline for ticket in tickets],
        TICKET_S,
        0,
        [ticket.fires_at for ticket in tickets],
        [LANE.tenant] * len(tickets),
    )


async def spoil(owner: asyncpg.Connection, relation: str, damage: str) -> None:
    """A relation's file as a bad copy leaves it. New files first: of them nothing is in memory."""
    await owner.execute("TRUNCATE duly.ready_tickets")
    path = await owner.fetchval("SELECT pg_relation_filepath($1)", f"duly.{relation}")
    file = Path(await owner.fetchval("SELECT current_setting('data_directory')"), path)
    content = b"not a page of PostgreSQL".ljust(8192, b"!") if damage == "torn" else b""
    await asyncio.to_thread(file.write_bytes, content)
