"""Dead letters: listed, grouped by cause, replayed once with the same execution key, or purged."""

import asyncio
from datetime import date, timedelta
from uuid import UUID

from duly.domain.ids import placement_time_of, shard_of
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.store.control import TimerChange, reschedule_tasks
from duly.store.dead_letters import (
    DeadLetter,
    LetterFilter,
    ReplayRate,
    find_dead_letters,
    group_dead_letters,
    list_dead_letters,
    match_dead_letters,
    read_dead_letter,
    replay_dead_letters,
)
from duly.store.load import Hint
from duly.store.partitions import create_partitions, drop_month
from duly.store.purge import purge_letters
from duly.store.read import Filter, list_tasks, read_task
from tests.store.world import OTHER_TENANT, START, TENANT, World

ONCE = Policy(retry=RetryPolicy(max_attempts=1))
ALL = LetterFilter()


async def fail(world: World, error: str = "boom", tenant: int = TENANT, **fields: object) -> UUID:
    """One task that is dead; each a second later than the one before."""
    world.advance(1)
    stored = await world.submit(tenant=tenant, **({"policy": ONCE} | fields))
    await world.run(stored.id, Outcome.FAILED, tenant, error=error)
    return stored.id


async def letters(
    world: World, wanted: LetterFilter = ALL, limit: int = 50, tenant: int = TENANT
) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    cursor = None
    for _ in range(50):
        page, cursor = await list_dead_letters(world.database, tenant, wanted, cursor, limit)
        found += page
        if cursor is None:
            return found
    raise AssertionError("the list has no end")


async def replay(world: World, *ids: UUID, tenant: int = TENANT) -> dict[UUID, UUID]:
    return await replay_dead_letters(world.database, world.environment, tenant, ids)


async def test_letters_are_listed_newest_first_page_by_page(world: World) -> None:
    """A letter that no page shows is a failure that nobody mends; a stranger's must not show."""
    ids = [await fail(world) for _ in range(5)]
    await fail(world, tenant=OTHER_TENANT)
    for limit in (1, 2, 5, 50):
        assert [letter.id for letter in await letters(world, limit=limit)] == ids[::-1]


async def test_letters_of_one_instant_are_paged_too(world: World) -> None:
    """A whole batch fails in one statement, with one time."""
    ids = [(await world.submit(policy=ONCE)).id for _ in range(7)]
    for task_id in ids:
        await world.run(task_id, Outcome.FAILED)
    found = [letter.id for letter in await letters(world, limit=2)]
    assert found == sorted(ids, reverse=True)


async def test_letters_are_filtered(world: World) -> None:
    """Replay and purge go by filter: one that lets too much through replays too much."""
    one = await fail(world, type="a", error="boom 1")
    two = await fail(world, type="b", error="boom 2")
    rejected = await world.submit(type="a")
    await world.run(rejected.id, Outcome.REJECTED)
    await replay(world, two)

    async def found(wanted: LetterFilter) -> set[UUID]:
        return {letter.id for letter in await letters(world, wanted, limit=1)}

    mark = next(letter.fingerprint for letter in await letters(world) if letter.id == one)
    assert await found(LetterFilter(type="a")) == {one, rejected.id}
    assert await found(LetterFilter(reason="rejected")) == {rejected.id}
    assert await found(LetterFilter(fingerprint=mark)) == {one}
    assert await found(LetterFilter(is_replayed=True)) == {two}
    assert await found(LetterFilter(is_replayed=False, type="a")) == {one, rejected.id}


async def test_letters_are_grouped_by_cause(world: World) -> None:
    """A thousand letters of one cause must read as one line, and a stranger's not at all."""
    for number in range(3):
        await fail(world, error=f"timeout after {number} s")
    await fail(world, error="refused")
    await fail(world, error="refused", tenant=OTHER_TENANT)
    groups, _ = await group_dead_letters(world.database, TENANT)
    assert [(group.letters, group.type, group.reason) for group in groups] == [
        (3, "mail.send", "exhausted"),
        (1, "mail.send", "exhausted"),
    ]
    assert groups[0].first_at == START + timedelta(seconds=1)
    assert groups[0].last_at == START + timedelta(seconds=3)
    assert (groups[0].example or "").startswith("timeout after")


async def test_a_replay_is_a_new_task_that_points_back_and_keeps_its_key(world: World) -> None:
    """The receiver may have acted on the first; only the same key lets it see that."""
    old = await fail(world, payload='{"a": 1}', tags={"a": "b"}, execution_key="order-7", pool="x")
    replayed = await replay(world, old)
    new = await world.read(replayed[old])
    assert (new.state, new.replay_of, new.execution_key) == (State.READY, old, "order-7")
    assert (new.payload, new.tags, new.policy, new.pool) == ('{"a": 1}', {"a": "b"}, ONCE, "x")
    assert (new.attempt, new.run_at, new.created_at) == (0, world.now(), world.now())
    assert shard_of(new.id) == shard_of(old)
    assert (await world.lease(new.id)).execution_key == "order-7"
    assert (await world.read(old)).state is State.FAILED


async def test_the_replay_of_a_replay_keeps_the_first_key(world: World) -> None:
    """A task without a key of its own is known by its first id, for ever."""
    old = await fail(world)
    new = (await replay(world, old))[old]
    await world.run(new, Outcome.FAILED)
    newest = (await replay(world, new))[new]
    task = await world.read(newest)
    assert (task.replay_of, task.execution_key) == (new, str(old))


async def test_a_letter_is_replayed_once(world: World) -> None:
    """Two people press the button; the task must run once more, not twice."""
    old = await fail(world)
    (replayed,) = (await replay(world, old)).values()
    assert await replay(world, old, old) == {}
    assert [letter.replayed_as for letter in await letters(world)] == [replayed]
    assert await world.count("timers") == 1


async def test_a_letter_is_replayed_once_by_many_at_once(world: World) -> None:
    """The letter's own row decides who replays it."""
    ids = [await fail(world) for _ in range(5)]
    nodes = [world.node(seed) for seed in range(6)]
    turns = [ids, ids[::-1]] * 3
    results = await asyncio.gather(
        *(replay(node, *turn) for node, turn in zip(nodes, turns, strict=True))
    )
    assert sum(map(len, results)) == 5
    assert await world.count("timers") == 5


async def purge(world: World, *ids: UUID, tenant: int = TENANT) -> list[UUID]:
    async with world.database.tenant(tenant) as session:
        return await purge_letters(session, tenant, ids, "operator")


async def test_a_strangers_letter_is_neither_replayed_nor_purged(world: World) -> None:
    """Every statement names its tenant (I9)."""
    old = await fail(world)
    assert await replay(world, old, tenant=OTHER_TENANT) == {}
    assert await purge(world, old, tenant=OTHER_TENANT) == []
    assert len(await letters(world)) == 1


async def test_a_replay_keeps_the_priority_it_failed_with_and_is_found(world: World) -> None:
    """Its lane may be one where the tenant never submitted."""
    stored = await world.submit(policy=ONCE)
    await reschedule_tasks(world.database, TENANT, [TimerChange(stored.id, priority=9)])
    await world.run(stored.id, Outcome.FAILED)
    new = (await replay(world, stored.id))[stored.id]
    (due,) = await world.due()
    assert (due.id, due.priority) == (new, 9)


async def test_a_letter_outlives_the_partition_of_its_task(world: World) -> None:
    """Old months are dropped; what failed in them must still be replayable."""
    old = await fail(world, payload='{"a": 1}')
    world.advance(120 * 86400)
    await create_partitions(world.database)
    assert await drop_month(world.database, date(2026, 1, 1)) is None
    assert await read_task(world.database, TENANT, old) is None
    new = (await replay(world, old))[old]
    task = await world.read(new)
    assert (task.payload, task.execution_key, task.replay_of) == ('{"a": 1}', str(old), old)
    assert placement_time_of(new) == world.now()
    assert (await world.run(new, Outcome.COMPLETED)).state is State.COMPLETED


async def test_purged_letters_are_gone_and_their_tasks_stay_failed(world: World) -> None:
    """Emptying the box must not rewrite history (I4)."""
    one, two = await fail(world), await fail(world)
    assert await purge(world, one, one) == [one]
    assert [letter.id for letter in await letters(world)] == [two]
    purged = await world.read(one)
    assert (purged.state, purged.payload, purged.is_purged) == (State.FAILED, None, True)
    assert await replay(world, one) == {}


async def test_failed_tasks_are_listed_from_their_letters(world: World) -> None:
    """The list of failures must not scan every task of the month."""
    ids = [await fail(world) for _ in range(3)]
    page = await list_tasks(world.database, TENANT, Filter(state=State.FAILED), limit=2)
    assert [task.id for task in page.items] == [ids[2], ids[1]]
    assert page.next_cursor is not None


async def test_a_letter_is_read_whole_by_its_tenant_alone(world: World) -> None:
    """An operator who decides about a replay must see what would be done again."""
    old = await fail(world, payload='{"a": 1}', tags={"a": "b"}, pool="x", priority=8)
    letter = await read_dead_letter(world.database, TENANT, old)
    assert letter is not None
    assert (letter.payload, letter.tags, letter.policy) == ('{"a": 1}', {"a": "b"}, ONCE)
    assert (letter.pool, letter.url, letter.priority, letter.attempts) == ("x", None, 8, 1)
    assert await read_dead_letter(world.database, OTHER_TENANT, old) is None


async def test_a_list_carries_no_payloads(world: World) -> None:
    """A page of the largest ones would be thirteen megabytes for nobody."""
    await fail(world, payload='{"a": 1}')
    (letter,) = await letters(world)
    assert letter.payload is None


async def test_groups_come_page_by_page(world: World) -> None:
    """A cause that no page shows is mended by nobody; two may be equally frequent."""
    for name in ("a", "b", "c", "d", "d"):
        await fail(world, type=name)
    seen: list[tuple[int, str]] = []
    cursor = None
    while True:
        page, cursor = await group_dead_letters(world.database, TENANT, ALL, cursor, 2)
        seen += [(group.letters, group.type) for group in page]
        if cursor is None:
            break
    assert seen[0] == (2, "d")
    assert sorted(seen[1:]) == [(1, "a"), (1, "b"), (1, "c")]


async def test_a_match_is_the_oldest_and_no_more_than_a_bite(world: World) -> None:
    """What replay and purge take must be bounded, and go on where it ended."""
    ids = [await fail(world) for _ in range(3)]
    await fail(world, tenant=OTHER_TENANT)
    assert await match_dead_letters(world.database, TENANT, ALL, 2) == ids[:2]
    await replay(world, ids[0])
    unreplayed = LetterFilter(is_replayed=False)
    assert await match_dead_letters(world.database, TENANT, unreplayed, 2) == ids[1:]
    assert await find_dead_letters(world.database, TENANT, ids, False) == ids[1:]
    assert await find_dead_letters(world.database, TENANT, ids) == ids
    assert await find_dead_letters(world.database, OTHER_TENANT, ids) == []


async def test_a_paced_replay_is_spread_over_time_oldest_first(world: World) -> None:
    """Ten thousand at once would be the outage that made them, once more."""
    ids = [await fail(world) for _ in range(4)]
    hints: list[Hint] = []
    made = await replay_dead_letters(
        world.database, world.environment, TENANT, ids[::-1], hints, ReplayRate(rate_per_s=2.0)
    )
    due = [(await world.read(made[old])).run_at for old in ids]
    assert due == [world.now() + timedelta(seconds=seconds) for seconds in (0, 0.5, 1, 1.5)]
    assert sorted(instant for _, instant in hints) == due
    assert [placement_time_of(made[old]) for old in ids] == due
    assert len(await world.due()) == 1


async def test_a_paced_replay_goes_on_where_the_one_before_ended(world: World) -> None:
    """Batch after batch without a start of their own would all begin at once."""
    one, two = await fail(world), await fail(world)
    later = world.now() + timedelta(hours=1)
    made = await replay_dead_letters(
        world.database, world.environment, TENANT, [one], pace=ReplayRate(1.0, later)
    )
    assert (await world.read(made[one])).run_at == later
    past = world.now() - timedelta(hours=1)
    made = await replay_dead_letters(
        world.database, world.environment, TENANT, [two], pace=ReplayRate(1.0, past)
    )
    assert (await world.read(made[two])).run_at == world.now()


async def test_a_replay_due_beyond_the_last_month_finds_a_place(world: World) -> None:
    """An id outside every partition could not be stored."""
    one, two = await fail(world), await fail(world)
    far = ReplayRate(rate_per_s=1 / (400 * 86400))
    made = await replay_dead_letters(
        world.database, world.environment, TENANT, [one, two], pace=far
    )
    assert (await world.read(made[two])).run_at == world.now() + timedelta(days=400)
