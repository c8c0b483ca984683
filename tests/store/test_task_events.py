"""Task events: one for each commit, after it, and no listener can harm the part that publishes."""

import pytest

from duly.api.task_wait import TaskWaits
from duly.domain.states import Outcome, State
from duly.events import (
    TASK_EVENTS,
    SettlementsReplayed,
    TaskEvent,
    TaskEvents,
    TasksFinished,
    TasksRescheduled,
    TasksStored,
)
from duly.store.control import cancel_tasks, cancelled_tasks, ended_by_cancel
from duly.store.submit import Mismatch
from duly.telemetry import Metrics
from tests.store.world import LEASE_S, TENANT, World, wish


@pytest.fixture
def heard(world: World) -> list[TaskEvent]:
    events: list[TaskEvent] = []
    for kind in TASK_EVENTS:
        world.events.subscribe(kind, events.append)
    return events


async def test_a_commit_that_stores_tasks_is_one_event(
    world: World, heard: list[TaskEvent]
) -> None:
    """An event for each task would cost more than storing it."""
    answers = await world.submitter.submit([wish(), wish(delay_s=1.0), wish(delay_s=3600.0)])
    (event,) = heard
    assert isinstance(event, TasksStored)
    assert {row.id for row in event.rows} == {answer.id for answer in answers}
    assert {due.id for due in event.timers} == {answers[0].id, answers[1].id}
    assert (event.at, event.tenants) == (world.now(), {TENANT})


async def test_what_is_rolled_back_is_no_event(world: World, heard: list[TaskEvent]) -> None:
    """The scheduler would publish tickets for tasks that do not exist."""
    await world.submit(idempotency_key="k", type="a")
    heard.clear()
    answers = await world.submitter.submit_all([wish(), wish(idempotency_key="k", type="b")])
    assert any(isinstance(answer, Mismatch) for answer in answers)
    assert heard == []


async def test_each_end_of_a_lease_is_an_event(world: World, heard: list[TaskEvent]) -> None:
    """A cap would stay full until the next count, and a caller that waits would poll."""
    done, failed, late = [await world.submit() for _ in range(3)]
    leases = {lease.id: lease for lease in await world.lease_all()}
    heard.clear()
    await world.settle(leases[done.id], Outcome.COMPLETED)
    await world.settle(leases[failed.id], Outcome.FAILED)
    await world.settle(leases[done.id], Outcome.COMPLETED)
    world.advance(LEASE_S + 1.0)
    await world.reap()
    finished, retried, replayed, lost = heard
    assert isinstance(finished, TasksFinished)
    assert [(task.id, task.fence) for task in finished.ended] == [(done.id, leases[done.id].fence)]
    assert [answer.state for answer in finished.answers] == [State.COMPLETED]
    assert isinstance(retried, TasksRescheduled)
    assert [task.id for task in retried.ended] == [failed.id]
    assert [due_at > world.now() for _, due_at in retried.hints] == [False]
    assert isinstance(replayed, SettlementsReplayed)
    assert [task.id for task in replayed.ended] == [done.id]
    assert isinstance(lost, TasksRescheduled)
    assert ([task.id for task in lost.ended], lost.is_reaped) == ([late.id], True)


async def test_a_stale_settlement_is_no_event(world: World, heard: list[TaskEvent]) -> None:
    """What changed nothing must free no cap (I3, I10)."""
    stored = await world.submit()
    lease = await world.lease(stored.id)
    world.advance(LEASE_S + 1.0)
    await world.reap()
    heard.clear()
    await world.settle(lease, Outcome.COMPLETED)
    assert heard == []


async def test_a_cancel_ends_the_wait_for_its_task(world: World) -> None:
    """A caller would wait out its whole timeout for a task that has ended."""
    waits = TaskWaits(world.database)
    world.events.subscribe(TasksFinished, waits.on_finished)
    stored = await world.submit(delay_s=60.0)
    with waits.registered(stored.id) as ended:
        answers = await cancel_tasks(world.database, TENANT, [stored.id])
        world.events.publish(cancelled_tasks(TENANT, ended_by_cancel(answers)))
        assert ended.is_set()


async def test_a_listener_that_fails_harms_nobody(world: World, heard: list[TaskEvent]) -> None:
    """A bug in a statistic would fail submits that are durable, and are sent again."""
    world.events.metrics = metrics = Metrics()

    def fail(_event: TasksStored) -> None:
        raise ZeroDivisionError

    world.events.listeners[TasksStored].insert(0, fail)
    await world.submit()
    assert [type(event) for event in heard] == [TasksStored]
    assert b'listener_failures_total{event="TasksStored"} 1.0' in metrics.render()


def test_an_event_without_listeners_is_nothing() -> None:
    """Tools that store or settle have no process around them."""
    TaskEvents().publish(TasksFinished([], []))
