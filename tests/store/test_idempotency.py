"""Idempotency keys (I8): one key and one request give one task, whoever asks and how often."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from duly.domain.errors import StatementRefused
from duly.domain.ids import key_shard
from duly.domain.states import Outcome, State
from duly.domain.task import Submission
from duly.store.batcher import Batcher
from duly.store.database import CONFLICT_CODES, Session
from duly.store.idempotency import delete_expired_keys
from duly.store.insert import KEY_TTL_S, SQL
from duly.store.submit import CLAIM_TRIES_MAX, Mismatch, Replayed, Stored, SubmitAnswer
from tests.store.test_submit import hold_key
from tests.store.world import OTHER_TENANT, START, TENANT, World, wish


async def test_the_same_key_and_request_give_the_same_task(world: World) -> None:
    """The retry after a lost answer must not send the mail twice."""
    stored = await world.submit(idempotency_key="k", payload="1")
    assert await world.ask(idempotency_key="k", payload="1") == Replayed(stored.id)
    assert await world.count("tasks") == await world.count("timers") == 1


async def test_the_same_key_with_another_request_is_a_mismatch(world: World) -> None:
    """Answering with the first task would hide that the second was never stored."""
    stored = await world.submit(idempotency_key="k", payload="1")
    assert await world.ask(idempotency_key="k", payload="2") == Mismatch(stored.id)
    assert await world.count("tasks") == await world.count("timers") == 1


async def test_keys_belong_to_their_tenant(world: World) -> None:
    """Another tenant's key must be neither found nor blocked (I9)."""
    mine = await world.submit(idempotency_key="k")
    theirs = await world.submit(idempotency_key="k", tenant=OTHER_TENANT)
    assert mine.id != theirs.id


async def test_many_sessions_with_one_key_make_one_task(world: World) -> None:
    """Impatient clients retry in parallel, and each node has a cache of its own."""
    nodes = [world.node(seed) for seed in range(8)]
    answers = await asyncio.gather(
        *(node.ask(idempotency_key="k") for node in nodes for _ in range(3))
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Replayed"] * 23 + ["Stored"]
    assert len({answer.id for answer in answers}) == 1
    assert await world.count("tasks") == await world.count("timers") == 1


async def test_many_sessions_with_many_keys_do_not_deadlock(world: World) -> None:
    """Batches that claim the same keys in different orders would lock crosswise."""
    nodes = [world.node(seed) for seed in range(6)]
    keys = [f"k{number}" for number in range(50)]

    async def submit_all(node: World, turned: bool) -> list[SubmitAnswer]:
        asked = [wish(idempotency_key=key, type=key) for key in keys]
        answers = await node.submitter.submit(asked[::-1] if turned else asked)
        return answers[::-1] if turned else answers

    found = await asyncio.gather(
        *(submit_all(node, number % 2 == 0) for number, node in enumerate(nodes))
    )
    ids = [[answer.id for answer in answers] for answers in found]
    assert all(row == ids[0] for row in ids)
    assert await world.count("tasks") == 50


async def test_one_batch_may_hold_new_known_and_mismatched_keys(world: World) -> None:
    """Each caller of a batch gets its own answer, whatever its neighbours did."""
    known = await world.submit(idempotency_key="known", payload="1")
    asked = [
        wish(idempotency_key="new"),
        wish(idempotency_key="known", payload="2"),
        wish(),
        wish(idempotency_key="known", tenant=OTHER_TENANT),
    ]
    answers = await world.submitter.submit(asked)
    assert [type(answer) for answer in answers] == [Stored, Mismatch, Stored, Stored]
    assert answers[1].id == known.id
    again = await world.submitter.submit([wish(idempotency_key="known", payload="1")])
    assert again == [Replayed(known.id)]


async def test_one_key_twice_among_callers_of_a_batch_is_one_task(world: World) -> None:
    """Inside one statement neither of the two would see the other."""
    batcher: Batcher[Submission, SubmitAnswer] = Batcher(
        "submit",
        world.submitter.submit,
        batch_size_max=100,
        waiting_max=100,
        key=lambda task: (task.tenant, task.idempotency_key) if task.idempotency_key else task,
    )
    asked = [wish(idempotency_key="k") for _ in range(10)]
    asked += [wish(idempotency_key="k", payload="2"), wish(idempotency_key="other")]
    answers = await asyncio.gather(*(batcher.submit(task) for task in asked))
    assert len({answer.id for answer in answers[:10]}) == 1
    assert [type(answer) for answer in answers[:10]].count(Stored) == 1
    assert isinstance(answers[10], Mismatch)
    assert isinstance(answers[11], Stored)
    assert await world.count("tasks") == 2


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.REJECTED])
async def test_the_key_of_an_ended_task_still_answers(world: World, outcome: Outcome) -> None:
    """A late retry must not run a finished task again."""
    stored = await world.submit(idempotency_key="k")
    await world.run(stored.id, outcome)
    assert await world.ask(idempotency_key="k") == Replayed(stored.id)
    assert await world.count("timers") == 0


async def test_a_key_is_free_again_when_its_time_is_over(world: World) -> None:
    """At its very last instant it holds; at its expiry it is free, swept or not."""
    stored = await world.submit(idempotency_key="k")
    world.advance(KEY_TTL_S - 1)
    assert await world.ask(idempotency_key="k") == Replayed(stored.id)
    world.advance(1)
    fresh = await world.submit(idempotency_key="k", payload="2")
    assert fresh.id != stored.id
    assert await world.ask(idempotency_key="k", payload="2") == Replayed(fresh.id)


async def test_an_expired_key_is_won_by_one(world: World) -> None:
    """When it becomes free, those who waited for it must not all get a task."""
    await world.submit(idempotency_key="k")
    world.advance(KEY_TTL_S)
    nodes = [world.node(seed) for seed in range(8)]
    answers = await asyncio.gather(*(node.ask(idempotency_key="k") for node in nodes))
    assert len({answer.id for answer in answers}) == 1
    assert await world.count("tasks") == 2


async def test_only_expired_keys_are_swept_in_bounded_bites(world: World) -> None:
    """A key swept too early forgets a task; an unbounded sweep blocks submits."""
    for number in range(5):
        await world.submit(idempotency_key=f"old{number}")
    world.advance(KEY_TTL_S)
    await world.submit(idempotency_key="young")
    batches = [await delete_expired_keys(world.database, 2) for _ in range(4)]
    assert batches == [2, 2, 1, 0]
    assert await world.count("idempotency_keys") == 1


async def test_a_rolled_back_submit_leaves_its_key_free(world: World) -> None:
    """A key without a task would answer with an id that does not exist."""
    with pytest.raises(StatementRefused):
        await world.ask(idempotency_key="k", priority=10)
    assert await world.count("idempotency_keys") == 0
    await world.submit(idempotency_key="k")


async def test_a_key_held_by_a_strangers_transaction_holds_up_nobody_else(
    world: World, owner: asyncpg.Connection
) -> None:
    """One open transaction must not stop every submit of every tenant."""
    await hold_key(owner, TENANT, "held")
    blocked = asyncio.create_task(world.ask(idempotency_key="held"))
    await wait_until_blocked(owner)
    await world.submit()
    await world.submit(idempotency_key="other")
    await world.submit(idempotency_key="held", tenant=OTHER_TENANT)
    assert not blocked.done()
    with pytest.raises(StatementRefused) as refused:
        async with asyncio.timeout(10):
            await blocked
    assert refused.value.facts["code"] == "55P03"


async def test_a_key_waited_for_is_answered_when_its_holder_commits(
    world: World, owner: asyncpg.Connection
) -> None:
    """The wait must end with the winner's task, seen by a second statement."""
    await hold_key(owner, TENANT, "held")
    waiting = asyncio.create_task(world.ask(idempotency_key="held"))
    await wait_until_blocked(owner)
    await owner.execute("COMMIT")
    assert await waiting == Mismatch(UUID(int=1))
    assert await world.count("tasks") == 0


async def test_a_key_waited_for_is_won_when_its_holder_rolls_back(
    world: World, owner: asyncpg.Connection
) -> None:
    """A holder that gave up left no task, so the one who waited must make it."""
    await hold_key(owner, TENANT, "held")
    waiting = asyncio.create_task(world.ask(idempotency_key="held"))
    await wait_until_blocked(owner)
    await owner.execute("ROLLBACK")
    answer = await waiting
    assert isinstance(answer, Stored)
    assert (await world.read(answer.id)).state is State.READY


async def test_a_key_lives_in_its_own_shard(world: World) -> None:
    """Stored with the task, a key could not be found once the tenant's spread has changed."""
    await world.submit(idempotency_key="k")
    (row,) = await world.database.fetch("SELECT shard FROM duly.idempotency_keys")
    assert row["shard"] == key_shard(TENANT, "k")


async def wait_until_blocked(owner: asyncpg.Connection) -> None:
    """Until some session of this database waits for a lock that another one holds."""
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE cardinality(pg_blocking_pids(pid)) > 0 AND datname = current_database()"
    )
    async with asyncio.timeout(10):
        while not await owner.fetchval(waits):
            await asyncio.sleep(0.005)
            # Inside a transaction the first look would be repeated for ever.
            await owner.execute("SELECT pg_stat_clear_snapshot()")


class FreedMeanwhile:
    """A session in which a key is freed between the claim and the look at who has it."""

    def __init__(self, database: Session, times: int) -> None:
        self.database = database
        self.times = times

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        if statement == SQL.read_keys and self.times:
            self.times -= 1
            await self.database.fetch("DELETE FROM duly.idempotency_keys")
        return await self.database.fetch(statement, *arguments)


async def test_a_key_that_is_freed_while_it_is_asked_about_is_claimed_again(world: World) -> None:
    """It was another's when it was claimed and nobody's when it was read: not a mistake of ours."""
    await world.submit(idempotency_key="k")
    entries = await world.submitter.assign_ids(
        [wish(idempotency_key="k"), wish(idempotency_key="n")]
    )
    answers = await world.submitter.store_claimed(FreedMeanwhile(world.database, 1), entries)
    assert [type(answers[n]) for n in (0, 1)] == [Stored, Stored]
    assert await world.count("tasks") == await world.count("timers") == 3
    assert isinstance(await world.ask(idempotency_key="k"), Replayed)


class NeverFree:
    """A session in which a key is somebody's whenever it is claimed, and nobody's afterwards."""

    def __init__(self, lost: UUID) -> None:
        self.lost = lost
        self.claims = 0

    async def fetch(self, statement: str, *_: object) -> list[Any]:
        if statement == SQL.read_keys:
            return []
        self.claims += 1
        return [{"now": START, "lost": [self.lost]}]


async def test_a_claim_is_not_repeated_for_ever(world: World) -> None:
    """The batcher tries such a conflict again, later and a few times."""
    entries = await world.submitter.assign_ids([wish(idempotency_key="k")])
    session = NeverFree(entries[0].id)
    with pytest.raises(StatementRefused) as refused:
        await world.submitter.store_claimed(session, entries)
    assert refused.value.facts["code"] in CONFLICT_CODES
    assert session.claims == CLAIM_TRIES_MAX
