"""The role that fires schedules, in a whole engine on a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.domain.errors import StatementRefused, TooManyPools
from duly.domain.occurrence_plan import GRACE_S
from duly.environment import Environment
from duly.execution.attempt import DONE
from duly.execution.attempt import AttemptResult as Done
from duly.scheduler.cron import AGAIN_S, LOAD_S, CronRole
from duly.store.audit import list_audit
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.occurrences import RecordedOccurrence, list_occurrences
from duly.store.pools import PoolNumbers
from duly.store.schedules import Schedule, create_schedule, make_schedule_id, read_schedules
from duly.telemetry import Metrics
from duly.testing.clock import ManualClock
from duly.testing.engine import Engine
from tests.store.recurring import FAR, definition, reckoned

pytestmark = pytest.mark.slow

TENANT = 1
PATIENCE_S = 60.0
POLL_S = 0.05


@pytest.fixture
async def pool(engine_url: str) -> AsyncIterator[Database]:
    database = await Database.open(engine_url, 12)
    yield database
    await database.close()


@pytest.fixture
async def owner(owner_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(owner_url)
    yield connection
    await connection.close()


async def accept(_lease: Lease) -> Done:
    return DONE


async def schedule(
    database: Database, *, created_ago_s: float = 0.0, **fields: Any
) -> tuple[UUID, datetime | None]:
    """As if it had been made some time ago, and nobody had been there since."""
    ((now,),) = await database.fetch("SELECT duly.now()")
    created_at = now - timedelta(seconds=created_ago_s)
    wanted = definition(**fields)
    environment = Environment()
    schedule_id = make_schedule_id(environment, TENANT, now)
    rule = reckoned(wanted, created_at)
    assert await create_schedule(database, TENANT, schedule_id, wanted, rule, created_at)
    return schedule_id, (await read(database, schedule_id)).due_at


async def read(database: Database, schedule_id: UUID) -> Schedule:
    (found,) = await read_schedules(database, [schedule_id])
    return found


async def ledger(database: Database, schedule_id: UUID) -> list[RecordedOccurrence]:
    found = await list_occurrences(database, TENANT, schedule_id, before=FAR, limit=10_000)
    return found[::-1]


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 (what is awaited happens in a database)
            await asyncio.sleep(POLL_S)


async def test_a_schedule_fires_by_itself_and_again(pool: Database) -> None:
    """The chain would break after its first link."""
    async with Engine(pool, Environment(), accept) as engine:
        schedule_id, due_at = await schedule(pool, every_s=1, misfire="fire_all")
        ((now,),) = await pool.fetch("SELECT duly.now()")
        engine.scheduler.cron_role.expect(schedule_id, due_at, now)

        async def fired_thrice() -> bool:
            return len(await ledger(pool, schedule_id)) >= 3

        await until(fired_thrice)
        entries = await ledger(pool, schedule_id)
    times = [entry.nominal_at for entry in entries]
    assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))]
    assert all(entry.decided_at >= entry.nominal_at for entry in entries)
    assert len({entry.task for entry in entries}) == len(entries)


async def test_one_that_nobody_told_of_is_found_by_looking(pool: Database) -> None:
    """A lost hint would mean a lost schedule."""
    schedule_id, _ = await schedule(pool, every_s=1)

    async def fired() -> bool:
        return bool(await ledger(pool, schedule_id))

    async with Engine(pool, Environment(), accept):
        await until(fired)


async def test_what_is_due_now_does_not_wait_for_a_backlog(pool: Database) -> None:
    """After an outage, a long list of old schedules would delay those of this minute."""
    for number in range(30):
        await schedule(
            pool,
            name=f"old-{number}",
            every_s=3600,
            created_ago_s=86400.0 + 1800.0,
            misfire="fire_all",
            misfire_window_s=86400.0,
        )
    fresh, _ = await schedule(pool, name="fresh", every_s=1, created_ago_s=2.0)

    async def all_late_done() -> bool:
        (row,) = await pool.fetch(
            "SELECT count(*) AS count FROM duly.occurrences WHERE verdict = 'LATE'"
        )
        return bool(row["count"] == 30 * 24)

    async with Engine(pool, Environment(), accept):
        await until(all_late_done)
    first = (await ledger(pool, fresh))[0]
    (row,) = await pool.fetch(
        "SELECT count(*) AS count FROM duly.occurrences WHERE decided_at < $1", first.decided_at
    )
    assert row["count"] < 30 * 24 / 2


async def test_an_unknown_zone_pauses_the_schedule_with_the_reason(
    pool: Database, owner: asyncpg.Connection
) -> None:
    """A zone that the next tzdata drops would silently stop a schedule."""
    schedule_id, _ = await schedule(pool, every_s=1)
    await owner.execute("UPDATE duly.schedules SET timezone = 'Mars/Olympus'")

    async def paused() -> bool:
        return (await read(pool, schedule_id)).paused_at is not None

    async with Engine(pool, Environment(), accept):
        await until(paused)
    found = await read(pool, schedule_id)
    assert found.paused_by == "duly"
    assert "Mars/Olympus" in (found.pause_reason or "")
    async with pool.tenant(TENANT) as session:
        entries, _ = await list_audit(session, TENANT)
    assert [entry.action for entry in entries] == ["schedule.pause"]


async def test_a_lost_timer_is_made_again_from_the_ledger(
    pool: Database, owner: asyncpg.Connection
) -> None:
    """A chain that is broken by hand, or by a restored table, would stay broken."""
    schedule_id, _ = await schedule(pool, every_s=1)

    async def fired() -> bool:
        return bool(await ledger(pool, schedule_id))

    async with Engine(pool, Environment(), accept):
        await until(fired)
    known = await ledger(pool, schedule_id)
    await owner.execute("DELETE FROM duly.schedule_timers")
    async with Engine(pool, Environment(), accept) as engine:

        async def fired_again() -> bool:
            return (await ledger(pool, schedule_id))[-1].nominal_at > known[-1].nominal_at

        await until(fired_again)
        assert engine.metrics.schedules_rearmed.value >= 1
    entries = await ledger(pool, schedule_id)
    assert entries[: len(known)] == known
    times = [entry.nominal_at for entry in entries]
    assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))]


async def test_new_rules_of_a_zone_move_the_next_instant(
    pool: Database, owner: asyncpg.Connection
) -> None:
    """A next fire that was reckoned by old rules would be an hour off."""
    schedule_id, due_at = await schedule(pool, cron="0 12 * * *", timezone="Europe/Berlin")
    await owner.execute(
        "UPDATE duly.schedule_timers SET nominal_at = nominal_at + interval '1 hour', "
        "due_at = due_at + interval '1 hour'"
    )

    async def moved() -> bool:
        return (await read(pool, schedule_id)).due_at == due_at

    async with Engine(pool, Environment(), accept):
        await until(moved)


async def only_one_fires(pool: Database, good: UUID, bad: UUID) -> None:
    """The other one is paused, and its owner told."""

    async def fired() -> bool:
        return bool(await ledger(pool, good))

    async def told() -> bool:
        return (await read(pool, bad)).paused_by == "duly"

    async with Engine(pool, Environment(), accept):
        await until(fired)
        await until(told)
    assert await ledger(pool, bad) == []


async def test_a_schedule_that_cannot_be_stored_fails_no_neighbour(
    pool: Database, owner: asyncpg.Connection
) -> None:
    """One bad row in a batch would stop every schedule of its shard."""
    bad, _ = await schedule(pool, name="bad", every_s=1, created_ago_s=GRACE_S / 2)
    good, _ = await schedule(pool, name="good", every_s=1, created_ago_s=GRACE_S / 2)
    # A payload that PostgreSQL cannot take as text.
    await owner.execute(
        r"""UPDATE duly.schedules SET template = '{"type": "x", "payload": "\u0000"}'
             WHERE name = 'bad'"""
    )

    await only_one_fires(pool, good, bad)


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014"])
async def test_a_schedule_that_lost_a_conflict_is_looked_at_again_at_once(code: str) -> None:
    """A deadlock would make the schedule miss a minute, and a policy would skip what it missed."""
    nothing: Any = None
    clock = ManualClock()
    cron_role = CronRole(nothing, Environment(clock=clock), nothing, nothing, nothing, Metrics())
    unlucky: Any = SimpleNamespace(schedule=SimpleNamespace(id=UUID(int=7)))
    cron_role.look_ahead_at = clock.monotonic() + LOAD_S
    await cron_role.split_batch([unlucky], StatementRefused(problem="not you", code=code))
    assert (
        cron_role.deferred_until[UUID(int=7)]
        <= cron_role.look_ahead_at
        <= clock.monotonic() + AGAIN_S
    )


async def test_a_pool_too_many_fails_no_neighbour(
    pool: Database, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant at its bound of pools would keep every other tenant's schedules from firing."""

    async def refuse(_numbers: PoolNumbers, pair: tuple[int, str]) -> None:
        raise TooManyPools(tenant=pair[0], most=0)

    monkeypatch.setattr(PoolNumbers, "create", refuse)
    bad, _ = await schedule(pool, name="bad", every_s=1, created_ago_s=GRACE_S / 2)
    good, _ = await schedule(pool, name="good", every_s=1, created_ago_s=GRACE_S / 2)
    await owner.execute(
        """UPDATE duly.schedules SET template = '{"type": "x", "payload": "1", "pool": "p"}'
            WHERE name = 'bad'"""
    )

    await only_one_fires(pool, good, bad)
