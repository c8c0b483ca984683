"""Submitting: what is acknowledged is stored once, due when the database's clock says."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from duly.domain.errors import StatementRefused, TooManyPools
from duly.domain.ids import (
    key_shard,
    make_task_id,
    milliseconds,
    placement_time_of,
    shard_of,
    tenant_shard,
)
from duly.domain.limits import POOLS_PER_TENANT_MAX
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy, Submission, timer_queue
from duly.store.load import TimerQueue, list_placements
from duly.store.pools import PoolNumbers
from duly.store.submit import Mismatch, Stored
from tests.store.world import OTHER_TENANT, START, TENANT, World, wish

HOUR_S = 3600.0
MONTH_S = 31 * 86400.0


async def test_a_submitted_task_is_ready_and_as_it_was_asked(world: World) -> None:
    """What comes back differently was stored differently."""
    policy = Policy(
        retry=RetryPolicy(max_attempts=2, non_retryable=("Bad",)),
        timeout_s=12.5,
        concurrency_key="k",
        concurrency_limit=3,
        headers={"X-A": "b"},
    )
    stored = await world.submit(
        payload='{"a": 1}', pool="mail", priority=8, policy=policy, tags={"a": "b", "c": ""}
    )
    task = await world.read(stored.id)
    assert (task.state, task.payload, task.pool, task.priority) == (
        State.READY,
        '{"a": 1}',
        "mail",
        8,
    )
    assert (task.policy, task.tags, task.url) == (policy, {"a": "b", "c": ""}, None)
    assert (task.created_at, task.run_at, task.attempt, task.fence) == (START, START, 0, 0)
    assert task.execution_key == str(stored.id)
    assert stored == Stored(stored.id, START, START)


async def test_answers_come_in_the_order_of_the_questions(world: World) -> None:
    """Rows are stored in id order; a caller must not be given its neighbour's task."""
    asked = [wish(type=f"t{number}", delay_s=float(number % 7)) for number in range(100)]
    asked[13] = wish(type="t13", idempotency_key="k")
    asked[57] = wish(type="t57", tenant=OTHER_TENANT, idempotency_key="k")
    answers = await world.submitter.submit(asked)
    assert await world.count("tasks") == await world.count("timers") == 100
    for task, answer in zip(asked, answers, strict=True):
        assert (await world.read(answer.id, task.tenant)).type == task.type


async def test_nothing_asked_is_nothing_stored(world: World) -> None:
    """An empty batch must not be an error in the middle of a flight."""
    assert await world.submitter.submit([]) == []


async def test_a_delay_counts_from_the_databases_clock(world: World) -> None:
    """A node whose clock is an hour fast would fire an hour early (I12)."""
    world.node_clock.advance(HOUR_S)
    stored = await world.submit(delay_s=90.0)
    assert stored.run_at == START + timedelta(seconds=90)
    assert (await world.read(stored.id)).state is State.SCHEDULED
    assert await world.due() == []
    world.advance(90.0)
    assert [due.id for due in await world.due()] == [stored.id]
    assert (await world.read(stored.id)).state is State.READY


async def test_the_answer_says_what_was_stored_to_the_microsecond(world: World) -> None:
    """The answer is reckoned in Python and the row in SQL; a caller may compare the two."""
    random = Random(1)
    delays = [round(random.uniform(0, 1e6), digits) for digits in (0, 1, 3, 6) for _ in range(100)]
    answers = await world.submitter.submit([wish(delay_s=delay_s) for delay_s in delays])
    rows = await world.database.fetch("SELECT id, created_at, run_at FROM duly.tasks")
    assert {Stored(*row) for row in rows} == set(answers)


async def test_a_time_in_the_past_is_due_at_once_and_kept_as_asked(world: World) -> None:
    """A timer in the past would jump the queue before tasks that have waited longer."""
    past = START - timedelta(hours=1)
    stored = await world.submit(run_at=past)
    task = await world.read(stored.id)
    assert (task.run_at, task.next_at, task.state) == (past, START, State.READY)


async def test_a_start_by_reaches_the_timer(world: World) -> None:
    """The gate that expires tasks looks only at timers."""
    start_by = START + timedelta(minutes=5)
    await world.submit(policy=Policy(start_by=start_by))
    assert [due.start_by for due in await world.due()] == [start_by]


async def test_the_same_ids_sent_again_store_nothing_twice(world: World) -> None:
    """A batch that arrives twice on its way to the database: two timers would run it twice."""
    entries = await world.submitter.assign_ids([wish(), wish()])
    await world.submitter.store(world.database, list(entries))
    more = await world.submitter.assign_ids([wish()])
    with pytest.raises(StatementRefused):
        await world.submitter.store(world.database, [*entries, *more])
    assert await world.count("tasks") == await world.count("timers") == 2


async def test_the_same_ids_sent_again_revive_nothing_that_ended(world: World) -> None:
    """A terminal state never changes (I4), not even for a repetition of the submit."""
    entries = await world.submitter.assign_ids([wish(), wish(), wish()])
    await world.submitter.store(world.database, list(entries))
    await world.run(entries[0].id, Outcome.COMPLETED)
    await world.run(entries[1].id, Outcome.REJECTED)
    for entry in entries:
        with pytest.raises(StatementRefused):
            await world.submitter.store(world.database, [entry])
    states = [(await world.read(entry.id)).state for entry in entries]
    assert states == [State.COMPLETED, State.FAILED, State.READY]
    assert await world.count("timers") == 1


async def test_one_bad_task_leaves_no_trace_of_its_batch(world: World) -> None:
    """All or none: a half-stored batch would be stored again by the bisection."""
    with pytest.raises(StatementRefused):
        await world.submitter.submit([wish(), wish(priority=10)])
    assert await world.count("tasks") == await world.count("timers") == 0


async def test_a_refused_key_leaves_no_unkeyed_task_behind(
    world: World, owner: asyncpg.Connection
) -> None:
    """The refused batch is split and sent again with new ids: what was stored would run twice."""
    await hold_key(owner, TENANT, "held")
    with pytest.raises(StatementRefused):
        await world.submitter.submit([wish(), wish(idempotency_key="held"), wish()])
    assert await world.count("tasks") == await world.count("timers") == 0


async def hold_key(owner: asyncpg.Connection, tenant: int, key: str) -> None:
    """An open transaction that has claimed a key and does not end."""
    await owner.execute("BEGIN")
    await owner.execute(
        "INSERT INTO duly.idempotency_keys (shard, tenant, key, request_hash, task_id, expires_at)"
        " VALUES ($1, $2, $3, '\\x00', $4, 'infinity')",
        key_shard(tenant, key),
        tenant,
        key,
        UUID(int=1),
    )


async def test_placements_are_remembered_only_after_the_commit(world: World) -> None:
    """A place believed to be on record, and rolled back, would never be loaded again."""
    with pytest.raises(StatementRefused):
        await world.submitter.submit([wish(priority=9), wish(priority=10)])
    assert await list_placements(world.database, 0, 1023) == []
    await world.submit(priority=9)
    shard = tenant_shard(TENANT, 1, 0)
    assert await list_placements(world.database, 0, 1023) == [
        TimerQueue(TENANT, shard, timer_queue(1, 9))
    ]


async def test_a_rolled_back_key_batch_forgets_its_places_too(
    world: World, owner: asyncpg.Connection
) -> None:
    """The winners of a batch are rolled back with the one that waited too long."""
    await hold_key(owner, TENANT, "held")
    with pytest.raises(StatementRefused):
        await world.submitter.submit([wish(idempotency_key="free"), wish(idempotency_key="held")])
    await owner.execute("ROLLBACK")
    await world.submit(idempotency_key="free")
    assert [due.id for due in await world.due()] != []


async def test_a_request_that_lost_its_key_hides_no_place(world: World) -> None:
    """A place believed to be on record for a task that was never stored hides the next one."""
    await world.submit(idempotency_key="k", priority=5)
    assert isinstance(await world.ask(idempotency_key="k", priority=9), Mismatch)
    stored = await world.submit(priority=9)
    assert stored.id in [due.id for due in await world.due()]


async def test_every_pool_band_and_tenant_is_a_place(world: World) -> None:
    """Loads probe exactly the recorded places."""
    await world.submitter.submit(
        [
            wish(),
            wish(priority=9),
            wish(pool="other"),
            wish(url="https://example.com/"),
            wish(tenant=OTHER_TENANT),
            wish(policy=Policy(concurrency_key="k")),
        ]
    )
    assert await world.count("placements") == 6
    assert len(await world.due()) == 6


async def test_placements_are_paged_by_range_of_shards(world: World) -> None:
    """An owner of some slots must see its own places, all of them, once."""
    keys = [f"k{number}" for number in range(40)]
    await world.submitter.submit([wish(policy=Policy(concurrency_key=key)) for key in keys])
    expected = sorted({key_shard(TENANT, key) for key in keys})
    low = [place.shard for place in await list_placements(world.database, 0, 511)]
    high = [place.shard for place in await list_placements(world.database, 512, 1023)]
    assert low + high == expected
    after = TimerQueue(TENANT, expected[10], timer_queue(1, 5))
    rest = await list_placements(world.database, 0, 1023, after)
    assert [place.shard for place in rest] == expected[11:]


async def test_tasks_with_one_concurrency_key_share_a_shard(world: World) -> None:
    """A cap is counted within a shard; two homes would double it."""
    policy = Policy(concurrency_key="user-7")
    ids = [(await world.submit(policy=policy)).id for _ in range(3)]
    assert {shard_of(task_id) for task_id in ids} == {key_shard(TENANT, "user-7")}


async def test_pools_are_numbered_per_tenant_and_webhooks_have_none(world: World) -> None:
    """A pool belongs to a tenant: two tenants' pools of one name must not meet."""
    await world.submitter.submit(
        [wish(pool="a"), wish(pool="b"), wish(tenant=OTHER_TENANT, pool="b"), wish(url="https://x")]
    )
    rows = await world.database.fetch("SELECT tenant, number, name FROM duly.pools ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [(1, 1, "a"), (1, 2, "b"), (2, 1, "b")]
    fresh = PoolNumbers(world.database)
    assert (await fresh.resolve([(TENANT, "b")]))[TENANT, "b"] == 2


async def test_a_pool_made_by_many_at_once_gets_one_number(world: World) -> None:
    """Two numbers for one name would be two pools, each with half the workers."""
    names = [f"pool-{number}" for number in range(10)]
    nodes = [PoolNumbers(world.database) for _ in range(8)]
    wanted = {(TENANT, name) for name in names}
    found = await asyncio.gather(*(node.resolve(wanted) for node in nodes))
    assert all(numbers == found[0] for numbers in found)
    assert sorted(found[0].values()) == list(range(1, 11))


async def test_one_pool_past_the_bound_is_refused_by_name(
    world: World, owner: asyncpg.Connection
) -> None:
    """Lanes are two bytes: the ten-thousand-and-first pool would share another's lane."""
    await owner.execute(
        "INSERT INTO duly.pools (tenant, number, name)"
        " SELECT 1, number, 'p' || number FROM generate_series(1, $1::integer - 1) AS number",
        POOLS_PER_TENANT_MAX,
    )
    last = await world.submit(pool="the-last", priority=0)
    assert (await world.read(last.id)).pool == "the-last"
    with pytest.raises(TooManyPools):
        await world.submit(pool="one-more")
    await world.submit(pool="one-more", tenant=OTHER_TENANT)


async def test_a_far_future_lands_in_the_last_partition(world: World) -> None:
    """There is no default partition: an id past the last one could not be stored at all."""
    far = START + timedelta(days=3000)
    stored = await world.submit(run_at=far)
    last = datetime(2026, 5, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    assert placement_time_of(stored.id) == last
    task = await world.read(stored.id)
    assert (task.run_at, task.next_at, task.state) == (far, far, State.SCHEDULED)


async def test_a_future_task_is_placed_where_it_first_fires(world: World) -> None:
    """Placed by submit time, a month could not be dropped while one late task pins it."""
    by_time = await world.submit(run_at=START + timedelta(days=40))
    by_delay = await world.submit(delay_s=40 * 86400.0)
    assert placement_time_of(by_time.id) == START + timedelta(days=40)
    assert placement_time_of(by_delay.id) == START + timedelta(days=40)


@pytest.mark.parametrize("wrong_by_s", [HOUR_S, MONTH_S, 400 * 86400.0])
@pytest.mark.parametrize("is_fast", [True, False])
async def test_a_node_with_a_wrong_clock_still_stores_what_is_due_now(
    world: World, wrong_by_s: float, is_fast: bool
) -> None:
    """The id's time comes from the node; only partitions that exist may be chosen."""
    set_node_clock(world, wrong_by_s if is_fast else -wrong_by_s)
    stored = await world.submit()
    assert (stored.created_at, stored.run_at) == (START, START)
    placed = placement_time_of(stored.id)
    assert datetime(2026, 1, 1, tzinfo=UTC) <= placed < datetime(2026, 5, 1, tzinfo=UTC)
    assert (await world.run(stored.id, Outcome.COMPLETED)).state is State.COMPLETED


def set_node_clock(world: World, wrong_by_s: float) -> None:
    world.node_clock.start = START + timedelta(seconds=wrong_by_s)


async def test_a_new_month_is_seen_by_a_node_that_runs_on(world: World) -> None:
    """What a node knows of the partitions grows old; ids must follow the calendar."""
    await world.submit()
    world.advance(80 * 86400.0)
    stored = await world.submit()
    assert placement_time_of(stored.id) == world.now()


async def test_an_id_outside_every_partition_is_refused_not_lost(world: World) -> None:
    """Without a default partition the insert fails, and its caller is told."""
    (entry,) = await world.submitter.assign_ids([wish()])
    far = milliseconds(START + timedelta(days=900))
    astray = replace(entry, id=make_task_id(far, entry.shard, world.environment.random))
    with pytest.raises(StatementRefused):
        await world.submitter.store(world.database, [astray])


async def test_an_execution_key_may_be_given_or_is_the_idempotency_key(world: World) -> None:
    """A receiver acts once per execution key, so it must be the one its caller knows."""
    asked: list[Submission] = [
        wish(execution_key="mine", idempotency_key="a"),
        wish(idempotency_key="b"),
    ]
    answers = await world.submitter.submit(asked)
    keys = [(await world.lease(answer.id)).execution_key for answer in answers]
    assert keys == ["mine", "b"]


async def test_a_herd_is_smeared_where_its_submitter_allowed_it(world: World) -> None:
    """A thousand tasks on one instant hit one receiver; `jitter_s` allows to spread them."""
    run_at = START + timedelta(hours=1)
    policy = Policy(jitter_s=60.0)
    tasks = [Submission(tenant=TENANT, type="t", run_at=run_at, policy=policy) for _ in range(50)]
    answers = await world.submitter.submit(tasks)
    fire_times = {answer.run_at for answer in answers if isinstance(answer, Stored)}
    assert len(fire_times) > 40
    assert min(fire_times) >= run_at
    assert max(fire_times) <= run_at + timedelta(seconds=60)
    for answer in answers:
        task = await world.read(answer.id)
        assert isinstance(answer, Stored)
        assert task.run_at == task.next_at == answer.run_at
