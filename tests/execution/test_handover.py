"""Tasks that a receiver takes over: settled later by their fence, or ended by their time limit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest

from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.execution.webhooks.sender import WebhookSender
from duly.store.async_webhooks import accept_async
from duly.store.database import Database
from duly.store.finish import Settlement, SettleStatus
from duly.store.lease import ACCEPTED_ASYNC
from duly.store.read import Task, read_attempts, read_task
from duly.store.reap import LATE_ERROR
from duly.store.submit import Stored
from duly.testing.engine import Engine
from tests.execution.conftest import ANYWHERE
from tests.execution.receiver import Receiver, Request, answer

pytestmark = pytest.mark.slow

TENANT = 1
PATIENCE_S = 30.0
ACCEPTED = answer(202, b"", Duly_Async="1")


@contextlib.asynccontextmanager
async def delivering(database: Database) -> AsyncIterator[Engine]:
    sender = WebhookSender(database, Environment(), ANYWHERE)
    try:
        async with Engine(database, Environment(), sender) as engine:
            yield engine
    finally:
        await sender.close()


async def submitted(engine: Engine, receiver: Receiver, policy: Policy) -> UUID:
    task = Submission(tenant=TENANT, type="t", url=receiver.url, policy=policy)
    (stored,) = await engine.submitter.submit([task])
    assert isinstance(stored, Stored)
    return stored.id


async def seen(database: Database, task_id: UUID) -> Task:
    task = await read_task(database, TENANT, task_id)
    assert task is not None
    return task


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_true():  # noqa: ASYNC110 (a table has no signal)
            await asyncio.sleep(0.02)


async def until_held_by(database: Database, task_id: UUID, holder: UUID) -> Task:
    async def is_held() -> bool:
        return (await seen(database, task_id)).holder == holder

    await until(is_held)
    return await seen(database, task_id)


async def until_ended(database: Database, task_id: UUID) -> Task:
    async def is_ended() -> bool:
        return (await seen(database, task_id)).finished_at is not None

    await until(is_ended)
    return await seen(database, task_id)


async def until_reaper_looked(engine: Engine, times: int) -> None:
    ticks = engine.metrics.role_ticks.labels("reaper")
    enough = ticks._value.get() + times

    async def has_looked() -> bool:
        return bool(ticks._value.get() >= enough)

    await until(has_looked)


def settlement(task_id: UUID, fence: int, outcome: Outcome = Outcome.COMPLETED) -> Settlement:
    return Settlement(task_id, fence, ACCEPTED_ASYNC, outcome, '"done"')


async def test_a_task_that_was_taken_over_is_settled_by_its_fence(
    database: Database, receiver: Receiver
) -> None:
    """The receiver works for longer than a lease: nobody heartbeats, nobody else may start."""
    receiver.behave = ACCEPTED
    async with delivering(database) as engine:
        engine.executor.leases.lease_s = 0.5
        task_id = await submitted(engine, receiver, Policy(timeout_s=3600))
        task = await until_held_by(database, task_id, ACCEPTED_ASYNC)
        assert task.state is State.RUNNING

        async def is_forgotten() -> bool:
            return not engine.executor.leases.held

        await until(is_forgotten)
        # The lease that the request had runs out, and the reaper looks for such leases.
        await until_reaper_looked(engine, 3)
        assert len(receiver.requests) == 1
        fence = int(receiver.requests[0].headers["duly-fence"])
        assert (await seen(database, task_id)).fence == fence
        for wrong in (fence - 1, fence + 1):
            (told,) = await engine.settle_queue.settle([settlement(task_id, wrong)])
            assert told.status is SettleStatus.STALE
        (told,) = await engine.settle_queue.settle([settlement(task_id, fence)])
        assert (told.status, told.state) == (SettleStatus.SETTLED, State.COMPLETED)
        (told,) = await engine.settle_queue.settle([settlement(task_id, fence)])
        assert told.status is SettleStatus.REPLAY
    (attempt,) = await read_attempts(database, TENANT, task_id, -1, 10)
    assert (attempt.outcome, attempt.charged, attempt.holder) == ("completed", 1, ACCEPTED_ASYNC)


async def test_silence_is_a_timeout_and_is_tried_again(
    database: Database, receiver: Receiver
) -> None:
    """A receiver that lost the task would otherwise keep it for ever; and silence is no poison."""
    receiver.behave = ACCEPTED
    retry = RetryPolicy(max_attempts=4, initial_s=0.0)
    async with delivering(database) as engine:
        task_id = await submitted(engine, receiver, Policy(timeout_s=0.5, retry=retry))
        task = await until_ended(database, task_id)
    assert (task.state, task.reason) == (State.FAILED, "exhausted")
    attempts = await read_attempts(database, TENANT, task_id, -1, 10)
    assert [attempt.outcome for attempt in attempts] == ["failed"] * 4
    assert {attempt.error for attempt in attempts} == {LATE_ERROR}
    assert [attempt.charged for attempt in attempts] == [1, 2, 3, 4]
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    fences = [int(request.headers["duly-fence"]) for request in receiver.requests]
    assert fences == sorted(set(fences))


async def test_a_late_settlement_changes_nothing(database: Database, receiver: Receiver) -> None:
    """The next attempt runs already; what the first one says must not end it."""
    receiver.behave = ACCEPTED
    retry = RetryPolicy(initial_s=0.0)
    async with delivering(database) as engine:
        task_id = await submitted(engine, receiver, Policy(timeout_s=0.5, retry=retry))
        async with asyncio.timeout(PATIENCE_S):
            while len(receiver.requests) < 2:
                receiver.arrived.clear()
                await receiver.arrived.wait()
        first = int(receiver.requests[0].headers["duly-fence"])
        (told,) = await engine.settle_queue.settle([settlement(task_id, first)])
        assert told.status is SettleStatus.STALE


async def test_a_receiver_may_settle_before_it_has_answered(
    database: Database, receiver: Receiver
) -> None:
    """Its worker is done before its web server has said 202: that must not be refused."""
    told: list[SettleStatus] = []

    async with delivering(database) as engine:

        async def settle_first(request: Request, writer: asyncio.StreamWriter) -> None:
            task_id = UUID(request.headers["duly-task-id"])
            fence = int(request.headers["duly-fence"])
            (early,) = await engine.settle_queue.settle([settlement(task_id, fence)])
            assert await accept_async(database, [(task_id, fence)]) == {task_id}
            (done,) = await engine.settle_queue.settle([settlement(task_id, fence)])
            told.extend((early.status, done.status))
            await ACCEPTED(request, writer)

        receiver.behave = settle_first
        task_id = await submitted(engine, receiver, Policy(timeout_s=60))
        task = await until_ended(database, task_id)
    assert told == [SettleStatus.STALE, SettleStatus.SETTLED]
    assert (task.state, task.result) == (State.COMPLETED, '"done"')
    assert len(await read_attempts(database, TENANT, task_id, -1, 10)) == 1


async def test_only_a_live_lease_of_a_webhook_can_be_handed_over(
    database: Database, receiver: Receiver
) -> None:
    """With any fence, or on a worker's task, it would take leases away from those who hold them."""
    started = asyncio.Event()

    async def wait(request: Request, writer: asyncio.StreamWriter) -> None:
        started.set()
        await request.reader.read()

    receiver.behave = wait
    async with delivering(database) as engine:
        task_id = await submitted(engine, receiver, Policy(timeout_s=60))
        async with asyncio.timeout(PATIENCE_S):
            await started.wait()
        fence = int(receiver.requests[0].headers["duly-fence"])
        for wrong in (fence - 1, fence + 1):
            assert await accept_async(database, [(task_id, wrong)]) == set()
        (pooled,) = await engine.submitter.submit([Submission(tenant=TENANT, type="t")])
        assert isinstance(pooled, Stored)
        assert await accept_async(database, [(pooled.id, 0)]) == set()
    # Stopped: what ran was released, uncharged, and is nobody's.
    task = await seen(database, task_id)
    assert (task.state in (State.READY, State.SCHEDULED), task.holder) == (True, None)
    assert await accept_async(database, [(task_id, task.fence or 0)]) == set()
    (attempt,) = await read_attempts(database, TENANT, task_id, -1, 10)
    assert (attempt.outcome, attempt.charged) == ("released", 0)


async def test_a_stop_lets_deliveries_finish(database: Database, receiver: Receiver) -> None:
    """Cut off in the middle, every deployment of ours would be a duplicate at somebody's."""
    finish = asyncio.Event()

    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await finish.wait()
        await answer(200, b'"finished"')(request, writer)

    receiver.behave = slow
    sender = WebhookSender(database, Environment(), ANYWHERE)
    engine = Engine(database, Environment(), sender)
    engine.executor.drain_s = 4.0
    async with engine:
        task_id = await submitted(engine, receiver, Policy(timeout_s=60))
        await receiver.until_present(1)
        asyncio.get_running_loop().call_later(2.0, finish.set)
    await sender.close()
    task = await seen(database, task_id)
    assert (task.state, task.result) == (State.COMPLETED, '"finished"')
