"""Settling: each lease ends once, on record, with the outcome that the rules give it."""

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from duly.domain.ids import tenant_shard
from duly.domain.retry import RETRY_AFTER_MAX_S, RetryPolicy
from duly.domain.states import SETTLEABLE, FailureReason, Outcome, State
from duly.domain.task import Policy, timer_queue
from duly.store.control import cancel_tasks
from duly.store.dead_letters import read_dead_letter
from duly.store.finish import REPLAY, STALE, SettleAnswer, Settlement, SettleStatus
from duly.store.load import TimerQueue
from tests.store.world import HOLDER, OTHER_HOLDER, START, TENANT, World

STEADY = RetryPolicy(max_attempts=3, jitter=False, initial_s=10.0)
SETTLED = SettleStatus.SETTLED
# Of a task of the usual tenant in its first pool, with the usual priority.
USUAL_PLACE = TimerQueue(TENANT, tenant_shard(TENANT, spread=1, choice=0), timer_queue(1, 5))
NOT_COMPLETED = sorted(SETTLEABLE - {Outcome.COMPLETED})


def answer(
    state: State | None = None, due_in_s: float | None = None, reason: str | None = None
) -> SettleAnswer:
    """What goes on says when and where, what failed why, and all say whose, so that their owners
    can be told."""
    if due_in_s is None:
        return SettleAnswer(SETTLED, state, tenant=TENANT, reason=reason)
    due_at = START + timedelta(seconds=due_in_s)
    return SettleAnswer(SETTLED, state, due_at, USUAL_PLACE, TENANT)


def failed(
    state: State | None = None, due_in_s: float | None = None, reason: str | None = None
) -> SettleAnswer:
    """Of an attempt that failed, breakers want to know the type and the pool."""
    return replace(answer(state, due_in_s, reason), type="mail.send", pool=1)


async def test_completed_ends_the_task_and_keeps_its_result(world: World) -> None:
    """Live and ended at once, or neither, is a task that is lost or runs twice (I1)."""
    lease = await world.lease((await world.submit()).id)
    world.advance(3)
    assert await world.settle(lease, Outcome.COMPLETED, result='{"n": 1}') == answer(
        State.COMPLETED
    )
    task = await world.read(lease.id)
    assert (task.state, task.result, task.error, task.attempt) == (
        State.COMPLETED,
        '{"n": 1}',
        None,
        1,
    )
    assert (task.finished_at, task.next_at) == (START + timedelta(seconds=3), None)
    (attempt,) = await world.attempts(lease.id)
    assert (attempt.fence, attempt.charged, attempt.holder) == (1, 1, HOLDER)
    assert (attempt.started_at, attempt.ended_at) == (START, START + timedelta(seconds=3))
    assert (attempt.outcome, attempt.state, attempt.result) == (
        "completed",
        "COMPLETED",
        '{"n": 1}',
    )
    assert await world.count("timers") == await world.count("dead_letters") == 0


async def test_a_failure_is_tried_again_after_its_backoff(world: World) -> None:
    """Too early hammers the receiver; never is a lost task."""
    stored = await world.submit(policy=Policy(retry=STEADY))
    assert await world.run(stored.id, Outcome.FAILED, error="boom") == failed(None, 10)
    task = await world.read(stored.id)
    assert (task.state, task.attempt, task.fence, task.error) == (State.SCHEDULED, 1, 2, "boom")
    assert (task.holder, task.outcome, task.finished_at) == (None, None, None)
    assert await world.try_lease(await world.ticket(stored.id)) is None
    world.advance(10)
    assert await world.run(stored.id, Outcome.FAILED) == failed(None, 30)
    assert [due.id for due in await world.due(horizon_s=20)] == [stored.id]


async def test_an_exhausted_task_is_a_dead_letter_with_its_own_copy(world: World) -> None:
    """The letter outlives the partition of its task, and must be replayable from itself."""
    stored = await world.submit(
        payload='{"a": 1}', policy=Policy(retry=STEADY), tags={"a": "b"}, priority=9
    )
    for _ in range(2):
        await world.run(stored.id, Outcome.FAILED, error="boom 1")
        world.advance(3600)
    assert await world.run(stored.id, Outcome.FAILED, error="boom 3") == failed(
        State.FAILED, reason="exhausted"
    )
    task = await world.read(stored.id)
    assert (task.state, task.reason, task.error, task.attempt) == (
        State.FAILED,
        "exhausted",
        "boom 3",
        3,
    )
    letter = await read_dead_letter(world.database, TENANT, stored.id)
    assert letter is not None
    assert (letter.id, letter.payload, letter.attempts, letter.reason) == (
        stored.id,
        '{"a": 1}',
        3,
        "exhausted",
    )
    assert (letter.error, letter.execution_key, letter.failed_at) == (
        "boom 3",
        str(stored.id),
        world.now(),
    )
    assert [attempt.charged for attempt in await world.attempts(stored.id)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("outcome", "words", "reason"),
    [
        (Outcome.REJECTED, {"error": "never"}, FailureReason.REJECTED),
        (Outcome.FAILED, {"error_kind": "BadAddress"}, FailureReason.NON_RETRYABLE),
        (Outcome.FAILED, {"error_kind": "BadAddress", "retry_in_s": 5}, "non_retryable"),
    ],
)
async def test_what_cannot_succeed_is_not_tried_again(
    world: World, outcome: Outcome, words: dict[str, Any], reason: str
) -> None:
    """Four more attempts at a wrong address are four more complaints."""
    retry = RetryPolicy(non_retryable=("BadAddress",))
    stored = await world.submit(policy=Policy(retry=retry))
    assert await world.run(stored.id, outcome, **words) == failed(State.FAILED, reason=reason)
    task = await world.read(stored.id)
    assert (task.state, task.reason, task.attempt) == (State.FAILED, reason, 1)
    assert await world.count("dead_letters") == 1


@pytest.mark.parametrize(
    ("wish_s", "kept_s"), [(7.5, 7.5), (-5.0, 0.0), (1e9, RETRY_AFTER_MAX_S), (0.0, 0.0)]
)
async def test_a_receivers_retry_after_is_kept_within_bounds(
    world: World, wish_s: float, kept_s: float
) -> None:
    """An absurd header must not park a task for a century."""
    stored = await world.submit()
    assert await world.run(stored.id, Outcome.FAILED, retry_in_s=wish_s) == failed(None, kept_s)


async def test_a_retry_waits_at_least_as_long_as_its_host_is_spared(world: World) -> None:
    """The word of the executor must reach the decision, and only ever delay it."""
    retry = RetryPolicy(backoff="fixed", initial_s=30.0, jitter=False)
    stored = await world.submit(policy=Policy(retry=retry))
    assert await world.run(stored.id, Outcome.FAILED, at_least_s=45.0) == failed(None, 45)
    world.advance(45)
    assert await world.run(stored.id, Outcome.FAILED, at_least_s=10.0) == failed(None, 75)


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.SNOOZED])
async def test_handing_back_and_putting_off_are_recorded_and_not_charged(
    world: World, outcome: Outcome
) -> None:
    """A worker that shuts down politely must not use up its tasks' attempts."""
    stored = await world.submit(policy=Policy(retry=RetryPolicy(max_attempts=1)))
    assert await world.run(stored.id, outcome, retry_in_s=4.0) == answer(None, 4)
    world.advance(4)
    assert await world.run(stored.id, outcome) == answer(None, 4)
    task = await world.read(stored.id)
    assert (task.state, task.attempt) == (State.READY, 0)
    records = await world.attempts(stored.id)
    assert [(record.outcome, record.charged) for record in records] == [(outcome, 0)] * 2
    assert (await world.lease(stored.id)).attempt == 1


async def test_a_worker_may_say_that_it_cancelled(world: World) -> None:
    """The handler decides that the work is void: that is an end, and no dead letter."""
    stored = await world.submit()
    assert await world.run(stored.id, Outcome.CANCELLED) == answer(State.CANCELLED)
    assert (await world.read(stored.id)).state is State.CANCELLED
    assert await world.count("dead_letters") == 0


async def test_charged_numbers_are_one_to_n_whatever_comes_between(world: World) -> None:
    """Releases between failures must leave no gap and no repetition (I5)."""
    stored = await world.submit()
    lived = [
        Outcome.FAILED,
        Outcome.RELEASED,
        Outcome.FAILED,
        Outcome.SNOOZED,
        Outcome.FAILED,
        Outcome.COMPLETED,
    ]
    for outcome in lived:
        world.advance(4000)
        await world.run(stored.id, outcome)
    records = await world.attempts(stored.id)
    assert [record.outcome for record in records] == lived
    assert [record.charged for record in records] == [1, 0, 2, 0, 3, 4]
    assert all(one.fence < two.fence for one, two in pairwise(records))
    assert (await world.read(stored.id)).attempt == 4


@pytest.mark.parametrize("outcome", sorted(SETTLEABLE))
async def test_the_same_settlement_again_is_a_replay(world: World, outcome: Outcome) -> None:
    """The answer was lost and the worker repeats it: it must be told that all is well."""
    lease = await world.lease((await world.submit()).id)
    result = '"r"' if outcome is Outcome.COMPLETED else None
    words: dict[str, Any] = {"result": result, "error": None if result else "boom"}
    await world.settle(lease, outcome, **words)
    before = await tables(world)
    assert await world.settle(lease, outcome, **words) == REPLAY
    assert await tables(world) == before


async def tables(world: World) -> list[list[Any]]:
    """Everything that a settlement could change."""
    names = ("timers", "attempts", "dead_letters")
    return [
        [tuple(row) for row in await world.database.fetch(f"SELECT * FROM duly.{name} ORDER BY id")]
        for name in names
    ]


async def test_a_replay_is_known_after_the_next_attempt_began(world: World) -> None:
    """A repetition may be very late; the record of its own fence answers it."""
    lease = await world.lease((await world.submit()).id)
    await world.settle(lease, Outcome.RELEASED)
    await world.lease(lease.id, OTHER_HOLDER)
    assert await world.settle(lease, Outcome.RELEASED) == REPLAY


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.FAILED, {"result": None}),
        (Outcome.COMPLETED, {"result": '"other"'}),
        (Outcome.COMPLETED, {"result": None}),
        (Outcome.RELEASED, {}),
    ],
)
async def test_other_words_about_an_ended_attempt_are_stale(
    world: World, outcome: Outcome, words: dict[str, Any]
) -> None:
    """Telling a worker that its other result was kept would be a lie."""
    lease = await world.lease((await world.submit()).id)
    await world.settle(lease, Outcome.COMPLETED, result='"r"')
    before = await tables(world)
    assert await world.settle(lease, outcome, **words) == STALE
    assert await tables(world) == before


async def test_the_same_words_of_another_holder_are_stale(world: World) -> None:
    """A caller without the lease has not settled it, whatever the record says."""
    lease = await world.lease((await world.submit()).id)
    await world.settle(lease, Outcome.COMPLETED, result='"r"')
    assert await world.settle(lease, Outcome.COMPLETED, OTHER_HOLDER, result='"r"') == STALE


@pytest.mark.parametrize("outcome", sorted(SETTLEABLE))
async def test_a_stale_fence_or_holder_changes_nothing(world: World, outcome: Outcome) -> None:
    """A late worker that was taken over must not end its successor's attempt (I3)."""
    lost = await world.lease((await world.submit()).id)
    world.advance(16)
    await world.reap()
    world.advance(3600)
    current = await world.lease(lost.id, OTHER_HOLDER)
    before = await tables(world)
    assert await world.settle(lost, outcome) == STALE
    assert await world.settle(current, outcome, HOLDER) == STALE
    assert await world.settle(lost, outcome, OTHER_HOLDER) == STALE
    future = replace(current, fence=current.fence + 1)
    assert await world.settle(future, outcome, OTHER_HOLDER) == STALE
    assert await world.settle(replace(current, id=uuid4()), outcome, OTHER_HOLDER) == STALE
    assert await tables(world) == before
    assert (await world.settle(current, Outcome.COMPLETED, OTHER_HOLDER)).state is State.COMPLETED


async def test_completed_stays_completed_although_a_cancel_was_requested(world: World) -> None:
    """The effect has happened; saying CANCELLED would deny it."""
    lease = await world.lease((await world.submit()).id)
    await cancel_tasks(world.database, TENANT, [lease.id])
    assert await world.settle(lease, Outcome.COMPLETED) == answer(State.COMPLETED)
    assert (await world.read(lease.id)).state is State.COMPLETED


@pytest.mark.parametrize("outcome", NOT_COMPLETED)
async def test_every_other_end_after_a_requested_cancel_is_cancelled(
    world: World, outcome: Outcome
) -> None:
    """No later retry (I13), and no dead letter for what nobody wants any more."""
    lease = await world.lease((await world.submit()).id)
    await cancel_tasks(world.database, TENANT, [lease.id])
    expected = failed if outcome in (Outcome.FAILED, Outcome.REJECTED) else answer
    assert await world.settle(lease, outcome, error="boom") == expected(State.CANCELLED)
    task = await world.read(lease.id)
    assert (task.state, task.outcome, task.reason) == (State.CANCELLED, outcome, None)
    assert await world.count("timers") == await world.count("dead_letters") == 0
    assert await world.settle(lease, outcome, error="boom") == REPLAY


async def test_the_last_attempt_after_a_requested_cancel_is_cancelled(world: World) -> None:
    """Exhausted and cancelled at once: the person's wish outranks the rule."""
    stored = await world.submit(policy=Policy(retry=RetryPolicy(max_attempts=1)))
    lease = await world.lease(stored.id)
    await cancel_tasks(world.database, TENANT, [lease.id])
    assert await world.settle(lease, Outcome.FAILED) == failed(State.CANCELLED)
    assert await world.count("dead_letters") == 0


async def test_one_batch_may_hold_every_outcome(world: World) -> None:
    """Settlements of many tenants and kinds share a call; each must get its own answer."""
    leases = [await world.lease((await world.submit()).id) for _ in range(9)]
    await cancel_tasks(world.database, TENANT, [leases[5].id, leases[6].id])
    outcomes = [
        Outcome.COMPLETED,
        Outcome.FAILED,
        Outcome.REJECTED,
        Outcome.RELEASED,
        Outcome.SNOOZED,
        Outcome.RELEASED,
        Outcome.COMPLETED,
        Outcome.CANCELLED,
        Outcome.COMPLETED,
    ]
    settlements = [
        Settlement(lease.id, lease.fence, HOLDER, outcome, retry_in_s=1.0)
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]
    settlements[8] = replace(settlements[8], holder=OTHER_HOLDER)
    answers = await world.settler.settle(settlements[::-1])
    assert answers[::-1] == [
        answer(State.COMPLETED),
        failed(None, 1),
        failed(State.FAILED, reason="rejected"),
        answer(None, 1),
        answer(None, 1),
        answer(State.CANCELLED),
        answer(State.COMPLETED),
        answer(State.CANCELLED),
        STALE,
    ]


async def test_settling_nothing_is_no_error(world: World) -> None:
    """An empty request of a worker must not reach the database as a broken statement."""
    assert await world.settler.settle([]) == []


async def test_an_attempt_that_ends_before_it_began_is_recorded_all_the_same(
    world: World,
) -> None:
    """The database's clock may step back; the settlement must not be refused for it."""
    lease = await world.lease((await world.submit()).id)
    world.clock.start = START - timedelta(minutes=5)
    assert (await world.settle(lease, Outcome.COMPLETED)).status is SETTLED
    (attempt,) = await world.attempts(lease.id)
    assert attempt.started_at == attempt.ended_at == START
