"""What is the same for a whole batch is sent once, and nobody can tell from what is stored."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given as drawn
from hypothesis import strategies as st

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.domain.task import Policy, host_of
from duly.store.finish import Settlement, SettleStatus
from duly.store.lease import lease_tasks
from duly.store.submit import Stored
from duly.store.unnest import given, once, runs
from tests.store.world import HOLDER, OTHER_HOLDER, OTHER_TENANT, START, TENANT, World, wish

# Each differs from the first in one column of the statement, the last in most of them.
WISHES: list[dict[str, Any]] = [
    {},
    {"tenant": OTHER_TENANT},
    {"pool": "other"},
    {"priority": 9},
    {"policy": Policy(timeout_s=7.0)},
    {"run_at": START + timedelta(hours=1)},
    {"delay_s": 60.0},
    {"policy": Policy(start_by=START + timedelta(days=1))},
    {"type": "another.type"},
    {"payload": '{"n": 1}'},
    {"url": "http://receiver.example/"},
    {"execution_key": "mine"},
    {"tags": {"colour": "red"}},
    {
        "tenant": OTHER_TENANT,
        "pool": "other",
        "priority": 9,
        "policy": Policy(timeout_s=7.0, start_by=START + timedelta(days=1)),
        "delay_s": 60.0,
        "type": "another.type",
        "payload": '{"n": 1}',
        "execution_key": "mine",
        "tags": {"colour": "red"},
    },
]


@drawn(st.lists(st.integers(0, 2)))
def test_only_a_column_of_one_value_is_sent_once(column: list[int]) -> None:
    """A value left out of a mixed column would be taken for the first one."""
    assert once(column) == (column[:1] if len(set(column)) == 1 else column)


@drawn(st.lists(st.none() | st.integers(0, 1)))
def test_only_a_column_of_nothing_is_left_out(column: list[int | None]) -> None:
    """NULL where something was asked, or something where nothing was, is another task."""
    assert given(column) == ([] if set(column) <= {None} else column)


@drawn(st.lists(st.tuples(st.integers(0, 1), st.none() | st.integers(0, 1))))
def test_runs_say_of_every_row_what_its_columns_said(rows: list[tuple[int, int | None]]) -> None:
    """A row in the wrong run would be leased, or settled, in another one's words."""
    ones, others, firsts, lasts = runs([one for one, _ in rows], [other for _, other in rows])
    read: list[tuple[int, int | None]] = []
    for one, other, first, last in zip(ones, others, firsts, lasts, strict=True):
        assert first == len(read) + 1
        read += [(one, other)] * (last - first + 1)
    assert read == rows
    assert all(earlier != later for earlier, later in pairwise(zip(ones, others, strict=True)))


async def test_tasks_that_differ_in_any_column_are_stored_each_as_it_was_asked(
    world: World,
) -> None:
    """A batch whose first task spoke for all of them."""
    wishes = [wish(**fields) for fields in WISHES]
    for chosen in (wishes, wishes[::-1], *([wishes[0], each] for each in wishes)):
        answers = await world.submitter.submit(chosen)
        for asked, answer in zip(chosen, answers, strict=True):
            assert isinstance(answer, Stored)
            task = await world.read(answer.id, asked.tenant)
            for name in ("type", "payload", "priority", "url", "policy", "tags"):
                assert getattr(task, name) == getattr(asked, name)
            assert task.pool == (None if asked.url else asked.pool)
            assert task.execution_key == (asked.execution_key or str(answer.id))
            assert task.run_at == (asked.run_at or START + timedelta(seconds=asked.delay_s))
            for table in ("tasks", "timers"):
                (row,) = await world.database.fetch(
                    f"SELECT timeout_ms, start_by FROM duly.{table} WHERE id = $1", answer.id
                )
                assert row["timeout_ms"] == asked.policy.timeout_s * 1000
                assert row["start_by"] == asked.policy.start_by


async def test_a_target_is_each_tasks_own_whoever_shares_it(world: World) -> None:
    """A breaker that watched another host's tasks, or a call that went there."""
    none, here, there = None, "http://here.example/a", "https://there.example:8443/b?c"
    for urls in ([here, here], [here, there], [here, none], [none, here], [none, none], [there]):
        answers = await world.submitter.submit([wish(url=url) for url in urls])
        ids = [answer.id for answer in answers]
        rows = await world.database.fetch(
            "SELECT id, tasks.url, timers.host FROM duly.tasks JOIN duly.timers USING (id)"
            " WHERE id = ANY ($1)",
            ids,
        )
        stored = {row["id"]: (row["url"], row["host"]) for row in rows}
        assert [stored[task_id] for task_id in ids] == [(url, host_of(url)) for url in urls]


async def test_tickets_of_several_shards_and_fences_are_leased_together(world: World) -> None:
    """A ticket read with another one's fence would let an old one in (I2)."""
    first = await world.submit()
    other = await world.submit(tenant=OTHER_TENANT)
    again = await world.submit()
    await world.run(again.id, Outcome.RELEASED)
    tickets = [Ticket(first.id, 0), Ticket(other.id, 0), Ticket(again.id, 0)]
    leases = await lease_tasks(world.database, world.environment, HOLDER, tickets, 15.0)
    assert {lease.id for lease in leases} == {first.id, other.id}
    tickets = [Ticket(first.id, 1), await world.ticket(again.id)]
    leases = await lease_tasks(world.database, world.environment, HOLDER, tickets, 15.0)
    assert {lease.id for lease in leases} == {again.id}


async def test_what_is_void_for_all_of_a_batch_is_void_for_each(world: World) -> None:
    """What was sent once stands for every row, not for the first alone (I2, I3)."""
    tasks = [await world.submit() for _ in range(3)]
    for fence, deadline in ((0, START), (1, None)):
        tickets = [Ticket(task.id, fence, deadline) for task in tasks]
        assert not await lease_tasks(world.database, world.environment, HOLDER, tickets, 15.0)
    leases = [await world.lease(task.id) for task in tasks]
    for fence, holder in ((0, OTHER_HOLDER), (1, HOLDER)):
        answers = await world.settler.settle(
            [Settlement(each.id, each.fence + fence, holder, Outcome.COMPLETED) for each in leases]
        )
        assert {answer.status for answer in answers} == {SettleStatus.STALE}
    assert await world.count("timers") == len(tasks)


async def test_of_tickets_with_several_deadlines_only_those_past_theirs_are_void(
    world: World,
) -> None:
    """One that is void, of a scheduler that was replaced, must not pass with its neighbours."""
    tasks = [await world.submit() for _ in range(3)]
    soon, passed = START + timedelta(seconds=1), START
    tickets = [
        Ticket(task.id, 0, deadline)
        for task, deadline in zip(tasks, (soon, passed, None), strict=True)
    ]
    leases = await lease_tasks(world.database, world.environment, HOLDER, tickets, 15.0)
    assert {lease.id for lease in leases} == {tasks[0].id, tasks[2].id}


async def test_a_batch_of_several_holders_and_results_is_settled_each_by_its_own_words(
    world: World,
) -> None:
    """A late holder must not settle because its neighbour may (I3)."""
    held = [await world.lease((await world.submit()).id) for _ in range(2)]
    others = await world.lease((await world.submit()).id, OTHER_HOLDER)
    keyed = await world.submit(policy=Policy(concurrency_key="k"))
    key = await world.lease(keyed.id)
    settlements = [
        Settlement(held[0].id, held[0].fence, HOLDER, Outcome.COMPLETED, '"first"'),
        Settlement(held[1].id, held[1].fence, OTHER_HOLDER, Outcome.COMPLETED, '"not its own"'),
        Settlement(others.id, others.fence, OTHER_HOLDER, Outcome.COMPLETED),
        Settlement(others.id, others.fence + 1, OTHER_HOLDER, Outcome.COMPLETED),
        Settlement(key.id, key.fence, HOLDER, Outcome.COMPLETED, '"keyed"'),
    ]
    answers = await world.settler.settle(settlements)
    assert [answer.status for answer in answers] == [
        SettleStatus.SETTLED,
        SettleStatus.STALE,
        SettleStatus.SETTLED,
        SettleStatus.STALE,
        SettleStatus.SETTLED,
    ]
    assert [answer.has_key for answer in answers] == [False, False, False, False, True]
    assert [answers[at].tenant for at in (0, 2, 4)] == [TENANT, TENANT, TENANT]
    results = [(await world.read(task)).result for task in (held[0].id, others.id, key.id)]
    assert results == ['"first"', None, '"keyed"']
