"""Erasing personal data: gone everywhere, with a tombstone, and only by the purging role."""

from datetime import date

import asyncpg
import pytest

from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.store.dead_letters import LetterFilter, list_dead_letters
from duly.store.partitions import drop_month
from duly.store.purge import SQL as PURGE_SQL
from duly.store.purge import purge_tasks
from tests.store.world import HOLDER, OTHER_TENANT, START, TENANT, World

SECRET = "ada@example.com"
TABLES = ("tasks", "timers", "attempts", "dead_letters", "tombstones", "idempotency_keys")


async def traces(world: World, secret: str = SECRET) -> list[str]:
    """The tables in which a word still stands, in whatever column."""
    found = []
    for table in TABLES:
        rows = await world.database.fetch(
            f"SELECT row_to_json(t)::text AS text FROM duly.{table} t"
        )
        found += [table for row in rows if secret in row["text"]]
    return found


async def test_a_completed_tasks_data_is_gone_everywhere(world: World) -> None:
    """A person's right to be forgotten covers copies, results and errors too."""
    stored = await world.submit(payload=f'"{SECRET}"', tags={"to": SECRET}, execution_key=SECRET)
    await world.run(stored.id, Outcome.FAILED, error=SECRET)
    world.advance(3600)
    await world.run(stored.id, Outcome.COMPLETED, result=f'"{SECRET}"')
    assert set(await traces(world)) == {"tasks", "attempts"}
    assert await purge_tasks(world.database, TENANT, [stored.id], "ops") == [stored.id]
    assert await traces(world) == []
    task = await world.read(stored.id)
    assert (task.state, task.is_purged, task.payload, task.result) == (
        State.COMPLETED,
        True,
        None,
        None,
    )
    assert [attempt.charged for attempt in await world.attempts(stored.id)] == [1, 2]


async def test_a_dead_letters_copy_is_gone_too(world: World) -> None:
    """The copy is as personal as the original."""
    stored = await world.submit(payload=f'"{SECRET}"', policy=Policy(retry=RetryPolicy(1)))
    await world.run(stored.id, Outcome.FAILED, error=f"no such user: {SECRET}")
    assert set(await traces(world)) == {"tasks", "attempts", "dead_letters"}
    await purge_tasks(world.database, TENANT, [stored.id], "ops")
    assert await traces(world) == []
    assert (await world.read(stored.id)).state is State.FAILED


async def test_a_dead_letter_whose_month_is_gone_is_purged_all_the_same(world: World) -> None:
    """The letter outlives its task; a purge that looks only for the task leaves the data."""
    stored = await world.submit(payload=f'"{SECRET}"', policy=Policy(retry=RetryPolicy(1)))
    await world.run(stored.id, Outcome.FAILED, error=SECRET)
    world.advance(120 * 86400)
    assert await drop_month(world.database, date(2026, 1, 1)) is None
    assert await traces(world) == ["dead_letters"]
    assert await purge_tasks(world.database, OTHER_TENANT, [stored.id], "stranger") == []
    assert await purge_tasks(world.database, TENANT, [stored.id], "ops") == [stored.id]
    assert await traces(world) == []
    found, _ = await list_dead_letters(world.database, TENANT, LetterFilter())
    assert found == []


async def test_a_tombstone_says_that_it_was_and_who_erased_it(world: World) -> None:
    """Acknowledged tasks never vanish without a trace (I1)."""
    stored = await world.submit()
    await world.run(stored.id, Outcome.COMPLETED)
    await purge_tasks(world.database, TENANT, [stored.id], "ops")
    rows = await world.database.fetch("SELECT id, tenant, purged_at, actor FROM duly.tombstones")
    assert [tuple(row) for row in rows] == [(stored.id, TENANT, START, "ops")]
    assert await purge_tasks(world.database, TENANT, [stored.id], "again") == []
    assert await world.count("tombstones") == 1


async def test_live_tasks_and_strangers_tasks_are_refused(world: World) -> None:
    """A live task still needs its payload; a stranger's is not there (I9)."""
    scheduled = await world.submit(payload="1", delay_s=60.0)
    running = await world.submit(payload="1")
    await world.lease(running.id, HOLDER)
    theirs = await world.submit(payload="1", tenant=OTHER_TENANT)
    await world.run(theirs.id, Outcome.COMPLETED, OTHER_TENANT)
    done = await world.submit(payload="1")
    await world.run(done.id, Outcome.COMPLETED)
    ids = [scheduled.id, running.id, theirs.id, done.id]
    assert await purge_tasks(world.database, TENANT, ids, "ops") == [done.id]
    assert (await world.read(running.id)).payload == "1"
    assert (await world.read(theirs.id, OTHER_TENANT)).payload == "1"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE duly.tasks SET payload = NULL",
        "UPDATE duly.tasks SET tenant = 2",
        "UPDATE duly.attempts SET error = NULL",
        "UPDATE duly.attempts SET outcome = 'completed'",
        "DELETE FROM duly.tasks",
        "DELETE FROM duly.attempts",
        "TRUNCATE duly.attempts",
        "INSERT INTO duly.tombstones VALUES (1, 1, gen_random_uuid(), now(), 'me')",
        "DELETE FROM duly.tombstones",
        "DELETE FROM duly.pools",
        "DROP TABLE duly.timers",
        "CREATE TABLE duly.mine (n integer)",
    ],
)
async def test_the_engines_login_cannot_change_what_is_on_record(
    world: World, statement: str
) -> None:
    """A mistake in a hot statement must not be able to rewrite history (I4, I5)."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await world.database.fetch(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE duly.tasks SET tenant = 2",
        "UPDATE duly.attempts SET outcome = 'completed'",
        "DELETE FROM duly.tasks",
        "DELETE FROM duly.attempts",
        "UPDATE duly.timers SET fence = 0",
        "DELETE FROM duly.timers",
        "UPDATE duly.tombstones SET actor = 'x'",
    ],
)
async def test_the_purging_role_can_blank_and_nothing_else(world: World, statement: str) -> None:
    """The role that may touch the record may not change what it says."""
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await as_purger(world, statement)


async def as_purger(world: World, statement: str) -> None:
    async with world.database.transaction() as session:
        await session.fetch(PURGE_SQL.become_purger)
        await session.fetch(statement)


async def test_a_purge_leaves_no_rights_behind_in_its_session(
    engine_url: str, owner_url: str
) -> None:
    """The role is for one transaction; the session goes back to a pool."""
    async with World.open(engine_url, owner_url, connections_max=1) as world:
        stored = await world.submit()
        await world.run(stored.id, Outcome.COMPLETED)
        await purge_tasks(world.database, TENANT, [stored.id], "ops")
        (row,) = await world.database.fetch("SELECT current_user = session_user AS is_self")
        assert row["is_self"]
