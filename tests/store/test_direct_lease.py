"""Tasks stored in the hands of a consumer that waits: the lease is as real as any other, and nobody
is handed what was not committed."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from duly.domain.errors import DatabaseUnavailable, StatementRefused
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.events import TasksStored
from duly.store.finish import SettleStatus
from duly.store.lease import Lease, read_held
from duly.store.submit import Replayed, Stored
from tests.broker.stage import until
from tests.store.world import HOLDER, LEASE_S, OTHER_HOLDER, START, World, wish


@pytest.fixture(autouse=True)
async def known_place(world: World) -> None:
    """The usual place was used before."""
    await world.run((await world.submit()).id, Outcome.COMPLETED)
    await world.run((await world.submit(url="https://a.example/x")).id, Outcome.COMPLETED)


class Waiting:
    """A consumer that remembers what it was handed, call by call."""

    def __init__(self, world: World, holder: UUID = HOLDER) -> None:
        self.holder = holder
        self.lease_s = LEASE_S
        self.handed: list[list[Lease]] = []
        world.submitter.find_consumer = lambda _entries: self

    def take(self, leases: list[Lease]) -> None:
        self.handed.append(leases)


async def test_a_task_in_somebodys_hands_is_leased_as_by_a_ticket(world: World) -> None:
    """A lease that the row does not know, or knows otherwise, could not be settled or reaped."""
    consumer = Waiting(world)
    policy = Policy(timeout_s=7.0, headers={"X-Team": "billing"})
    facts: dict[str, Any] = {"policy": policy, "url": "https://a.example/x", "execution_key": "k"}
    stored = await world.submit(**facts)
    ((lease,),) = consumer.handed
    assert stored.is_leased
    assert (await world.read(stored.id)).state is State.RUNNING
    # What is read back is what a ticket's lease would have said.
    tickets = [(await world.ticket(stored.id))._replace(fence=0)]
    (held,) = await read_held(world.database, HOLDER, tickets)
    assert held == lease
    timer = await world.timer(stored.id)
    assert timer is not None
    assert (timer["queue"], timer["fence"], timer["attempt"]) == (0, 1, 0)
    assert timer["due_at"] == timer["lease_until"] == lease.lease_until
    assert (lease.lease_until - lease.started_at).total_seconds() == policy.timeout_s


async def test_its_end_is_recorded_once(world: World) -> None:
    """Every lease is one attempt, however it was made (I5)."""
    consumer = Waiting(world)
    stored = await world.submit()
    ((lease,),) = consumer.handed
    assert (await world.settle(lease, Outcome.COMPLETED)).status is SettleStatus.SETTLED
    (attempt,) = await world.attempts(stored.id)
    assert (attempt.charged, attempt.fence, attempt.outcome) == (1, 1, Outcome.COMPLETED)
    assert await world.count("timers") == 0


async def test_one_whose_holder_dies_is_tried_again(world: World) -> None:
    """Killed between the commit and the handler: the lease runs out like any other (I11)."""
    Waiting(world)
    stored = await world.submit()
    world.advance(LEASE_S)
    await world.reap()
    (attempt,) = await world.attempts(stored.id)
    assert attempt.outcome == Outcome.LEASE_LOST
    world.advance(3600.0)
    world.submitter.find_consumer = lambda _entries: None
    assert (await world.lease(stored.id, OTHER_HOLDER)).fence == 3


async def test_what_is_not_due_is_in_nobodys_hands(world: World) -> None:
    """By the database's clock, whatever a node believes (I12)."""
    consumer = Waiting(world)
    later = world.now().replace(hour=13)
    wishes = [wish(), wish(delay_s=60.0), wish(run_at=later), wish(run_at=world.now())]
    answers = await world.submitter.submit(wishes)
    is_leased = [isinstance(answer, Stored) and answer.is_leased for answer in answers]
    assert is_leased == [True, False, False, True]
    (leases,) = consumer.handed
    assert {lease.id for lease in leases} == {answers[0].id, answers[3].id}
    for answer in answers[1:3]:
        assert (await world.read(answer.id)).state is State.SCHEDULED


@pytest.mark.parametrize(
    "facts",
    [
        {"delay_s": 60.0},
        {"run_at": START + timedelta(hours=1)},
        {"policy": Policy(jitter_s=3600.0)},
    ],
)
async def test_one_that_is_alone_and_not_due_is_in_nobodys_hands(
    world: World, facts: dict[str, Any]
) -> None:
    """It has a statement of its own, which knows no later instant (I12)."""
    consumer = Waiting(world)
    stored = await world.submit(**facts)
    assert not stored.is_leased
    assert consumer.handed == [[]]
    timer = await world.timer(stored.id)
    assert timer is not None
    assert (timer["holder"], timer["fence"]) == (None, 0)
    assert timer["due_at"] > world.now()


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"pool": "billing", "priority": 8, "payload": '{"a": 1}', "tags": {"env": "prod"}},
        {"url": "https://A.example:8080/x?y", "execution_key": "k"},
        {"policy": Policy(timeout_s=7.5, headers={"X-Team": "billing"})},
        {"policy": Policy(start_by=START + timedelta(hours=1))},
        {"policy": Policy(concurrency_key="customer:1", concurrency_limit=3)},
    ],
)
async def test_one_that_is_alone_is_stored_as_in_company(
    world: World, facts: dict[str, Any]
) -> None:
    """It has a statement of its own: what is mended in one must be mended in the other."""
    await world.run((await world.submit(**facts)).id, Outcome.COMPLETED)
    consumer = Waiting(world)
    lone = await world.submit(**facts)
    first, second = await world.submitter.submit([wish(**facts), wish(**facts)])
    rows = [await rows_of(world, each.id) for each in (lone, first, second)]
    assert rows[0] == rows[1] == rows[2]
    (alone,), others = consumer.handed
    assert {msgspec.structs.replace(each, id=lone.id) for each in others} == {alone}


async def rows_of(world: World, task_id: UUID) -> list[dict[str, Any]]:
    """All that is stored of a task, but for its id."""
    found = []
    for table in ("tasks", "timers"):
        (row,) = await world.database.fetch(f"SELECT * FROM duly.{table} WHERE id = $1", task_id)
        found.append({name: value for name, value in row.items() if name != "id"})
    return found


async def test_the_same_task_alone_again_is_refused_and_revives_nothing(world: World) -> None:
    """A statement sent twice must not run its task twice (I4)."""
    consumer = Waiting(world)
    entries = await world.submitter.assign_ids([wish()])
    await world.submitter.store(world.database, entries)
    await world.settle(consumer.handed[0][0], Outcome.COMPLETED)
    with pytest.raises(StatementRefused):
        await world.submitter.store(world.database, entries)
    assert consumer.handed[1:] == [[]]
    assert await world.count("timers") == 0


async def test_who_loses_a_key_hands_nothing_over(world: World) -> None:
    """The same request again is the same task: it has its lease already (I8)."""
    consumer = Waiting(world)
    first = await world.submit(idempotency_key="k")
    again = await world.ask(idempotency_key="k")
    assert again == Replayed(first.id)
    assert [[lease.id for lease in leases] for leases in consumer.handed] == [[first.id], []]
    assert consumer.handed[0][0].execution_key == "k"


async def test_no_doorbell_rings_for_what_is_in_hands(world: World) -> None:
    """Its ticket would be void, and a place would be read again for nothing."""
    announced: list[UUID] = []
    world.submitter.events.subscribe(
        TasksStored, lambda event: announced.extend(due.id for due in event.timers)
    )
    Waiting(world)
    await world.submit()
    soon = await world.submit(delay_s=1.0)
    assert announced == [soon.id]


async def test_in_a_transaction_nobody_is_handed_anything(world: World) -> None:
    """What commits later, or never, is not there yet."""
    consumer = Waiting(world)
    (entry,) = await world.submitter.assign_ids([wish()])
    async with world.database.transaction() as session:
        await world.submitter.store(session, [entry])
    assert consumer.handed == []
    assert (await world.read(entry.id)).state is State.READY


async def test_after_a_lost_answer_it_is_asked_what_came_into_its_hands(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task with one attempt, acknowledged by a repeated submit, must not die of a lease that
    nobody knows of."""
    consumer = Waiting(world)
    await world.submit()
    lose_answers(world, monkeypatch, 1)
    with pytest.raises(DatabaseUnavailable):
        await world.submit(idempotency_key="k")
    (lease,) = consumer.handed[1]
    assert await world.ask(idempotency_key="k") == Replayed(lease.id)
    assert (await world.settle(lease, Outcome.COMPLETED)).status is SettleStatus.SETTLED


async def test_when_that_is_lost_too_the_consumer_goes_on_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must neither hang nor run what perhaps was never stored."""
    consumer = Waiting(world)
    await world.submit()
    lose_answers(world, monkeypatch, 2)
    with pytest.raises(DatabaseUnavailable):
        await world.submit()
    assert consumer.handed[1] == []


async def test_a_key_that_somebody_holds_keeps_no_consumer(world: World) -> None:
    """A lease that is as old as the wait for a key may be over before it is begun, and who is
    reserved meanwhile works for nobody."""
    consumer = Waiting(world)
    await world.submit()
    other = world.node(2)
    (entry,) = await other.submitter.assign_ids([wish(idempotency_key="k")])
    async with world.database.transaction() as session:
        await other.submitter.store_claimed(session, [entry])
        asking = asyncio.create_task(world.ask(idempotency_key="k"))
        await until(lambda: len(consumer.handed) == 2)
        assert not asking.done()
    assert await asking == Replayed(entry.id)
    assert consumer.handed[1] == []


async def test_the_first_task_of_a_place_is_in_nobodys_hands(world: World) -> None:
    """The reaper must know the placement before there is a lease in it."""
    consumer = Waiting(world)
    world.submitter.placements.clear()
    assert not (await world.submit()).is_leased
    assert (await world.submit()).is_leased
    assert len(consumer.handed) == 1


def lose_answers(world: World, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The next statements are carried out, and nobody hears of it."""
    fetch, left = world.database.fetch, count

    async def lose(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        nonlocal left
        rows = await fetch(statement, *arguments)
        if left:
            left -= 1
            raise DatabaseUnavailable(address="here", problem="cut")
        return rows

    monkeypatch.setattr(world.database, "fetch", lose)
