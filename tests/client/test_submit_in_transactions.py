"""What a producer's open transaction may and may not do to everybody else, and to its own keys."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

import asyncpg
import pytest

from duly.environment import Environment, SystemClock
from duly.scheduler.loader import RELOAD_S, SWEEP_S
from duly.store.database import Database
from duly.store.submit import Mismatch, Replayed, Stored, Submitter
from duly.store.tenants import Tenant, create_tenant
from duly.testing.engine import Engine
from tests.client.producers import as_producer, call, count
from tests.pressure.watching import Watcher, task, until
from tests.store.test_idempotency import wait_until_blocked

pytestmark = pytest.mark.slow

TENANT = "acme"
WEBHOOK = {"url": "https://a.example"}
# A round of sweeping and a busy machine.
FOUND_MAX_S = 8 * SWEEP_S
HELD_S = 60.0
HELD_LOADS = 3


@pytest.fixture
async def tenant(database: Database) -> Tenant:
    made = await create_tenant(database, TENANT)
    assert made is not None
    return made


@contextlib.asynccontextmanager
async def opened(owner_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(as_producer(owner_url))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def producer(owner_url: str, tenant: Tenant) -> AsyncIterator[asyncpg.Connection]:
    async with opened(owner_url) as connection:
        yield connection


@pytest.fixture
async def other(owner_url: str, tenant: Tenant) -> AsyncIterator[asyncpg.Connection]:
    async with opened(owner_url) as connection:
        yield connection


def system() -> Environment:
    return Environment(SystemClock(), Random(7))


async def test_a_rollback_leaves_nothing_at_all(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """Half of it left behind is a task for an order that does not exist."""
    transaction = producer.transaction()
    await transaction.start()
    await call(producer, TENANT, "e", options={"idempotency_key": "k", "target": {"pool": "new"}})
    await transaction.rollback()
    for table in ("tasks", "timers", "idempotency_keys", "placements", "new_placements", "pools"):
        assert await count(owner, table) == 0


async def test_a_commit_makes_all_of_it_visible(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """A timer whose place is not known is never loaded."""
    async with producer.transaction():
        for priority in (0, 5, 5, 9, 0):
            await call(producer, TENANT, "e", options={"priority": priority})
        assert await count(owner, "tasks") == 0
    assert await count(owner, "tasks") == await count(owner, "timers") == 5
    assert (
        await owner.fetchval(
            "SELECT count(*) FROM duly.timers JOIN duly.placements USING (tenant, shard, queue)"
        )
        == 5
    )
    assert await count(owner, "placements") == 3
    assert await count(owner, "new_placements") == 0


async def test_a_savepoint_takes_back_its_own_part(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """A producer that catches an error and goes on must keep what it did before, and no more."""
    async with producer.transaction():
        kept = await call(producer, TENANT, "e", options={"priority": 5})
        with contextlib.suppress(asyncpg.DivisionByZeroError):
            async with producer.transaction():
                await call(producer, TENANT, "e", options={"priority": 9})
                await producer.execute("SELECT 1 / 0")
    assert [row["id"] for row in await owner.fetch("SELECT id FROM duly.timers")] == [kept]
    assert await count(owner, "placements") == 1


async def test_an_open_transaction_holds_up_nobody_in_its_lane(
    producer: asyncpg.Connection, database: Database, tenant: Tenant, owner: asyncpg.Connection
) -> None:
    """It is the first in a lane and does not commit: every other submit to that lane would wait for
    it, and with it every tenant whose tasks share the batch."""
    async with producer.transaction():
        await call(producer, TENANT, "e", options={"target": WEBHOOK})
        async with asyncio.timeout(5):
            (answer,) = await Submitter(database, system()).submit([task(tenant.id)])
        assert isinstance(answer, Stored)
    assert await count(owner, "timers") == 2


async def test_first_users_of_lanes_take_them_in_one_order(
    producer: asyncpg.Connection, owner: asyncpg.Connection, owner_url: str, tenant: Tenant
) -> None:
    """Two that commit, each holding the place that the other wants next, end in a deadlock."""
    high, low = 1, 3
    place = f"SELECT {tenant.id}, duly.tenant_shard({tenant.id}, 1, 0)"
    hold = f"INSERT INTO duly.placements {place}"
    transaction = producer.transaction()
    await transaction.start()
    for priority in (0, 9):
        await call(producer, TENANT, "e", options={"priority": priority, "target": WEBHOOK})
    probe = await asyncpg.connect(owner_url)
    try:
        async with owner.transaction():
            await owner.execute(f"{hold}, {high}")
            committing = asyncio.create_task(transaction.commit())
            await wait_until_blocked(probe)
            # It waits for the first and so must not have taken the second, which was asked first.
            await probe.execute("SET lock_timeout = '2s'")
            await probe.execute(f"{hold}, {low} ON CONFLICT DO NOTHING")
        async with asyncio.timeout(10):
            await committing
    finally:
        await probe.close()
    assert await count(owner, "placements") == 2
    assert await count(owner, "timers") == 2


async def test_a_key_gives_one_task_within_and_across_transactions(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """The retry of a transaction whose commit was in doubt must not charge twice (I8)."""
    keyed = {"idempotency_key": "k"}
    async with producer.transaction():
        first = await call(producer, TENANT, "e", payload='{"a": 1, "b": 2}', options=keyed)
        assert await call(producer, TENANT, "e", payload='{"b":2,"a":1}', options=keyed) == first
    again = await call(producer, TENANT, "e", payload='{"b":2,"a":1}', options=keyed)
    assert again == first
    assert await count(owner, "tasks") == await count(owner, "timers") == 1
    (key,) = await owner.fetch("SELECT execution_key FROM duly.tasks")
    assert key["execution_key"] == "k"


async def test_another_request_with_a_known_key_is_refused(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """Answering with the first task would hide that the second was never stored."""
    keyed = {"idempotency_key": "k"}
    await call(producer, TENANT, "e", payload="1", options=keyed)
    for change in ({"payload": "2"}, {"payload": "1", "delay_s": 1.0}, {"payload": "null"}):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await call(producer, TENANT, "e", options=keyed, **change)
        assert refused.value.sqlstate == "DU003"
    with pytest.raises(asyncpg.PostgresError):
        await call(producer, TENANT, "e", payload="1", options={**keyed, "priority": 9})
    assert await count(owner, "tasks") == 1


async def test_a_key_of_the_api_is_never_used_twice(
    producer: asyncpg.Connection, database: Database, tenant: Tenant
) -> None:
    """The two ways in digest requests differently: a mixed key is refused, never stored twice."""
    submitter = Submitter(database, system())
    wanted = task(tenant.id, kind="e", idempotency_key="theirs")
    (stored,) = await submitter.submit([wanted])
    assert isinstance(stored, Stored)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await call(producer, TENANT, "e", options={"idempotency_key": "theirs", "target": WEBHOOK})
    assert refused.value.sqlstate == "DU003"
    mine = await call(producer, TENANT, "e", options={"idempotency_key": "mine"})
    (answer,) = await submitter.submit([task(tenant.id, kind="e", idempotency_key="mine")])
    assert answer == Mismatch(mine)
    (again,) = await submitter.submit([wanted])
    assert again == Replayed(stored.id)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_a_key_held_by_an_open_transaction_is_waited_for(
    producer: asyncpg.Connection, other: asyncpg.Connection, owner: asyncpg.Connection, ending: str
) -> None:
    """Whether the first one's task exists is not known before it ends."""
    keyed = {"idempotency_key": "k"}
    transaction = producer.transaction()
    await transaction.start()
    first = await call(producer, TENANT, "e", options=keyed)
    waiting = asyncio.create_task(call(other, TENANT, "e", options=keyed))
    await wait_until_blocked(owner)
    assert not waiting.done()
    await (transaction.commit() if ending == "commit" else transaction.rollback())
    async with asyncio.timeout(10):
        second = await waiting
    assert (second == first) == (ending == "commit")
    assert await count(owner, "tasks") == await count(owner, "timers") == 1


async def test_many_transactions_with_one_key_make_one_task(
    owner_url: str, tenant: Tenant, owner: asyncpg.Connection
) -> None:
    """Impatient producers retry in parallel."""

    async def submit_once() -> object:
        async with opened(owner_url) as connection, connection.transaction():
            return await call(connection, TENANT, "e", options={"idempotency_key": "k"})

    async with asyncio.timeout(30):
        ids = await asyncio.gather(*(submit_once() for _ in range(12)))
    assert len(set(ids)) == 1
    assert await count(owner, "tasks") == 1


async def test_a_replay_locks_nothing(
    producer: asyncpg.Connection, other: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """A long transaction that asked for a known key must not make others wait for it."""
    keyed = {"idempotency_key": "k"}
    first = await call(producer, TENANT, "e", options=keyed)
    async with producer.transaction():
        assert await call(producer, TENANT, "e", options=keyed) == first
        async with asyncio.timeout(5):
            assert await call(other, TENANT, "e", options=keyed) == first


async def test_an_expired_key_is_free_again(
    producer: asyncpg.Connection, owner: asyncpg.Connection
) -> None:
    """Keys live for seven days, swept or not."""
    keyed = {"idempotency_key": "k"}
    first = await call(producer, TENANT, "e", options=keyed)
    life = "SELECT expires_at - duly.now() > interval '6 days 23 hours' FROM duly.idempotency_keys"
    assert await owner.fetchval(life)
    await owner.execute("UPDATE duly.idempotency_keys SET expires_at = duly.now()")
    second = await call(producer, TENANT, "e", payload="2", options=keyed)
    assert second != first
    assert await call(producer, TENANT, "e", payload="2", options=keyed) == second


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
async def test_stricter_isolation_levels_work_too(
    producer: asyncpg.Connection, owner: asyncpg.Connection, level: str
) -> None:
    """A producer's isolation level is its own affair."""
    async with producer.transaction(isolation=level):
        first = await call(producer, TENANT, "e", options={"idempotency_key": "k"})
        assert await call(producer, TENANT, "e", options={"idempotency_key": "k"}) == first
    assert await count(owner, "timers") == await count(owner, "placements") == 1


@pytest.mark.timeout(300)
async def test_a_transaction_open_for_a_minute_is_found_when_it_commits(
    producer: asyncpg.Connection,
    owner: asyncpg.Connection,
    other: asyncpg.Connection,
    database: Database,
) -> None:
    """It stored its tasks a minute ago by the clock; the scheduler has long read past that instant,
    and nobody rang."""
    watcher = Watcher()
    async with Engine(database, system(), watcher) as engine:
        async with producer.transaction():
            # One in a place that has never been used, one in a place that moves on meanwhile.
            new = await call(
                producer, TENANT, "late", notify=False, options={"target": WEBHOOK, "priority": 9}
            )
            old = await call(producer, TENANT, "late", notify=False, options={"target": WEBHOOK})
            for number in range(1, HELD_LOADS + 1):
                await call(other, TENANT, "prompt", options={"target": WEBHOOK})
                await until(lambda number=number: len(watcher.leases) == number)  # type: ignore[misc]
                await asyncio.sleep(max(RELOAD_S, HELD_S / HELD_LOADS))
            assert {lease.type for lease in watcher.leases} == {"prompt"}
        found_s = await until(lambda: {new, old} <= {lease.id for lease in watcher.leases})
        assert found_s < FOUND_MAX_S
        assert engine.scheduler is not None
    assert [lease.id for lease in watcher.leases].count(new) == 1


async def test_a_ring_at_commit_is_heard_by_a_scheduler(
    producer: asyncpg.Connection, database: Database
) -> None:
    """Found by the sweep alone, every task submitted in a transaction would start seconds late."""
    watcher = Watcher()
    async with Engine(database, system(), watcher, is_alone=False):
        # The first makes the place known; the ring of the second is what is measured.
        await call(producer, TENANT, "e", options={"target": WEBHOOK})
        await until(lambda: len(watcher.leases) == 1)
        took = []
        for number in range(2, 7):
            await call(producer, TENANT, "e", options={"target": WEBHOOK})
            took.append(await until(lambda number=number: len(watcher.leases) == number))  # type: ignore[misc]
    assert min(took) < RELOAD_S / 2
