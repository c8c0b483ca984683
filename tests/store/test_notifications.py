"""Notifications: an event is written with what happened, and becomes a task once."""

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest

from duly.domain.errors import DulyError
from duly.domain.notifications import TASK_TYPE
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy
from duly.maintenance.notifications import NotificationBounds, NotificationDelivery
from duly.store import notifications
from duly.store.notifications import (
    NOTIFICATIONS_PER_TENANT_MAX,
    Notification,
    NotificationDefinition,
    Pending,
    delete_notification,
    find_notification,
    put_notification,
    store_messages,
)
from tests.store.recurring import fire_due, schedule
from tests.store.world import OTHER_TENANT, TENANT, World

ONCE = Policy(retry=RetryPolicy(max_attempts=1))
URL = "https://hooks.example.com/duly"
NOTHING = NotificationDefinition(False, False, None, None, URL, None, 10)


async def notify(
    world: World, name: str = "ops", tenant: int = TENANT, **fields: Any
) -> Notification:
    await world.database.fetch(
        "INSERT INTO duly.tenants (id, name, created_at) OVERRIDING SYSTEM VALUE"
        " VALUES ($1, $2, duly.now()) ON CONFLICT DO NOTHING",
        tenant,
        f"tenant-{tenant}",
    )
    found = await put_notification(world.database, tenant, name, NOTHING._replace(**fields), "test")
    assert found is not None
    return found


async def fail(world: World, tenant: int = TENANT, **fields: Any) -> UUID:
    stored = await world.submit(tenant=tenant, **({"policy": ONCE} | fields))
    await world.run(stored.id, Outcome.FAILED, tenant, error="secret words")
    return stored.id


async def deliver(world: World) -> int:
    report = await NotificationDelivery(world.database, world.submitter).run_once()
    return report.changed


async def messages(world: World, tenant: int = TENANT) -> list[dict[str, Any]]:
    """Payloads of the tasks that tell, oldest first; those of one instant in any order."""
    rows = await world.database.fetch(
        "SELECT payload FROM duly.tasks WHERE tenant = $1 AND type = $2 ORDER BY created_at, id",
        tenant,
        TASK_TYPE,
    )
    return [msgspec.json.decode(row["payload"]) for row in rows]


async def test_a_dead_letter_becomes_a_task_that_tells_of_it(world: World) -> None:
    """Without Prometheus, a failed task is found when a customer calls."""
    await notify(world, on_dead_letters=True, headers='{"X-Team":"ops"}')
    failed = await fail(world, type="mail.send")
    assert await deliver(world) == 1
    (message,) = await messages(world)
    assert message["text"] == "1 dead letter of mail.send (exhausted)"
    assert message["groups"][0]["task"] == str(failed)
    assert (message["notification"], message["tenant"]) == ("ops", f"tenant-{TENANT}")
    (row,) = await world.database.fetch("SELECT id FROM duly.tasks WHERE type = $1", TASK_TYPE)
    lease = await world.lease(row["id"])
    assert (lease.url, lease.policy.headers) == (URL, {"X-Team": "ops"})
    assert lease.execution_key.startswith("notification ops ")
    assert await world.count("notification_events") == 0
    assert await deliver(world) == 0


async def test_a_message_has_no_word_of_an_error_or_payload(world: World) -> None:
    """An erasure of the task would not find the copy, and a chat room is public."""
    await notify(world, on_dead_letters=True)
    await fail(world, payload='{"card":"4111"}')
    await deliver(world)
    text = str(await messages(world))
    assert "secret words" not in text
    assert "4111" not in text


async def test_a_task_that_goes_on_is_not_told(world: World) -> None:
    """A retry is no failure, and a cancelled task is none either."""
    await notify(world, on_dead_letters=True)
    stored = await world.submit()
    await world.run(stored.id, Outcome.FAILED, error="once")
    other = await world.submit()
    await world.run(other.id, Outcome.COMPLETED)
    assert await world.count("notification_events") == 0


async def test_a_message_that_cannot_be_delivered_is_not_told(world: World) -> None:
    """A broken webhook would make messages about messages for ever."""
    await notify(world, on_dead_letters=True)
    await fail(world)
    await deliver(world)
    (row,) = await world.database.fetch("SELECT id FROM duly.tasks WHERE type = $1", TASK_TYPE)
    await world.run(row["id"], Outcome.REJECTED, error="gone")
    assert await world.count("dead_letters") == 2
    assert await world.count("notification_events") == 0
    assert await deliver(world) == 0


async def test_each_tenant_is_told_of_its_own_alone(world: World) -> None:
    """Another tenant's failures are that tenant's business."""
    await notify(world, on_dead_letters=True)
    await notify(world, tenant=OTHER_TENANT, on_missed_schedules=True)
    await fail(world, OTHER_TENANT)
    assert await deliver(world) == 0
    await fail(world)
    assert await deliver(world) == 1
    assert await messages(world, OTHER_TENANT) == []


async def test_every_notification_of_a_tenant_is_told(world: World) -> None:
    """The one for the chat must not take what the one for the pager waits for."""
    await notify(world, "chat", on_dead_letters=True)
    await notify(world, "pager", on_dead_letters=True)
    await fail(world)
    assert await deliver(world) == 2
    assert {each["notification"] for each in await messages(world)} == {"chat", "pager"}


async def test_a_burst_is_a_few_messages_and_one_sum(world: World) -> None:
    """An outage of a receiver fails thousands; its operator needs one message, not thousands."""
    await notify(world, on_dead_letters=True, per_minute=2)
    for _ in range(7):
        await fail(world)
    assert await deliver(world) == 2
    assert await deliver(world) == 0
    await fail(world)
    assert await deliver(world) == 0
    world.advance(60)
    assert await deliver(world) == 1
    counts = [message["count"] for message in await messages(world)]
    assert counts == [1, 1, 6]


async def test_a_burst_larger_than_a_batch_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction over a million events would hold everything up; parts must add up."""
    monkeypatch.setattr(notifications, "EVENTS_AT_ONCE", 3)
    await notify(world, on_dead_letters=True, per_minute=1)
    for _ in range(8):
        await fail(world)
    service = NotificationDelivery(world.database, world.submitter)
    reports = [await service.run_once() for _ in range(3)]
    assert [report.has_more for report in reports] == [True, True, False]
    world.advance(60)
    await service.run_once()
    assert [message["count"] for message in await messages(world)] == [1, 7]


async def test_two_leaders_tell_once(world: World) -> None:
    """For a moment two processes lead; a message twice is a page twice."""
    await notify(world, on_dead_letters=True)
    for _ in range(5):
        await fail(world)
    other = world.node(7)
    pending = Pending(TENANT, "ops")
    told = await asyncio.gather(
        *[
            store_messages(each.database, each.submitter, pending)
            for each in (world, other, world, other)
        ]
    )
    assert sum(each.messages for each in told) == 5
    assert len(await messages(world)) == 5


async def test_events_of_a_deleted_notification_are_forgotten(world: World) -> None:
    """Events without a notification would be looked at for ever."""
    await notify(world, on_dead_letters=True)
    await fail(world)
    assert await delete_notification(world.database, TENANT, "ops")
    assert await world.count("notification_events") == 0
    # Written by a transaction that began before.
    await world.database.fetch(
        "INSERT INTO duly.notification_events (tenant, at, notification, event, facts)"
        " VALUES ($1, duly.now(), 'ops', 'dead_letter', '{}')",
        TENANT,
    )
    assert await deliver(world) == 0
    assert await world.count("notification_events") == 0


async def test_one_that_cannot_be_told_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant's odd row would silence every tenant."""
    await notify(world, "a", on_dead_letters=True)
    await notify(world, "b", on_dead_letters=True)
    await fail(world)
    real = store_messages

    async def failing(database: Any, submitter: Any, pending: Pending) -> Any:
        if pending.name == "a":
            raise DulyError(problem="not now")
        return await real(database, submitter, pending)

    monkeypatch.setattr("duly.maintenance.notifications.store_messages", failing)
    with pytest.raises(DulyError):
        await deliver(world)
    assert [each["notification"] for each in await messages(world)] == ["b"]


async def test_a_missed_occurrence_is_told_with_its_verdict(world: World) -> None:
    """A nightly report that did not run is noticed by its readers, days later."""
    await notify(world, on_missed_schedules=True)
    await schedule(world, name="nightly", every_s=3600, misfire="skip")
    world.advance(3600 + 600)
    await fire_due(world)
    assert await deliver(world) == 1
    (message,) = await messages(world)
    assert message["text"] == "1 missed occurrence of nightly (SKIPPED_MISFIRE)"
    assert message["groups"][0]["late_s"] == 600
    world.advance(3000)
    await fire_due(world)
    assert await deliver(world) == 0, "the next one is on time"


async def test_occurrences_that_are_caught_up_are_told_as_well(world: World) -> None:
    """Late is not as planned, and what was folded into it never runs."""
    await notify(world, on_missed_schedules=True)
    await schedule(world, name="hourly", every_s=3600, misfire="coalesce")
    world.advance(3 * 3600 + 600)
    await fire_due(world)
    await deliver(world)
    verdicts = [each["groups"][0]["verdict"] for each in await messages(world)]
    assert sorted(verdicts) == ["COALESCED", "COALESCED", "LATE"]


async def test_lag_over_the_bound_is_told_once_and_again_when_it_is_over(world: World) -> None:
    """Told at every look, a bound that stays broken fills the minute of everything else."""
    await notify(world, lag_s=30.0)
    bounds = NotificationBounds(world.database)
    stored = await world.submit()
    world.advance(30)
    assert (await bounds.run_once()).changed == 0, "at the bound it still holds"
    world.advance(1)
    assert (await bounds.run_once()).changed == 1
    assert (await bounds.run_once()).changed == 0
    found = await find_notification(world.database, TENANT, "ops")
    assert found is not None
    assert found.lag_since == world.now()
    await world.run(stored.id, Outcome.COMPLETED)
    assert (await bounds.run_once()).changed == 1
    await deliver(world)
    texts = [message["text"] for message in await messages(world)]
    assert sorted(texts) == [
        "a task waits since 31 s (bound: 30 s)",
        "no task waits longer than 30 s any more",
    ]


async def test_tasks_for_later_and_running_ones_are_no_lag(world: World) -> None:
    """A task for next week is old, and not late."""
    await notify(world, lag_s=30.0)
    await world.submit(delay_s=3600)
    running = await world.submit()
    await world.lease(running.id)
    world.advance(100)
    assert (await NotificationBounds(world.database).run_once()).changed == 0


async def test_the_rate_of_dead_letters_is_told_at_its_bound(world: World) -> None:
    """Ten failures an hour are a usual day; ten in a minute are an outage."""
    await notify(world, failures_per_minute=1.0)
    bounds = NotificationBounds(world.database)
    for _ in range(5):
        await fail(world)
    assert (await bounds.run_once()).changed == 0, "five in five minutes are at the bound"
    await fail(world)
    assert (await bounds.run_once()).changed == 1
    world.advance(301)
    assert (await bounds.run_once()).changed == 1
    await deliver(world)
    states = [message["groups"][0]["state"] for message in await messages(world)]
    assert sorted(states) == ["above", "below"]


async def test_bounds_are_looked_at_page_by_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand tenants with bounds in one statement would be a statement of minutes."""
    monkeypatch.setattr("duly.maintenance.notifications.BOUNDS_PAGE", 2)
    monkeypatch.setattr(notifications, "BOUNDS_PAGE", 2)
    for tenant in range(1, 6):
        await notify(world, tenant=tenant, lag_s=10.0)
        await world.submit(tenant=tenant)
    world.advance(60)
    bounds = NotificationBounds(world.database)
    reports = [await bounds.run_once() for _ in range(3)]
    assert [report.changed for report in reports] == [2, 2, 1]
    assert [report.has_more for report in reports] == [True, True, False]
    assert (await bounds.run_once()).changed == 0


async def test_a_tenant_has_only_so_many(world: World) -> None:
    """Each costs every dead letter of the tenant a row."""
    for number in range(NOTIFICATIONS_PER_TENANT_MAX):
        await notify(world, f"n{number}")
    again = await put_notification(world.database, TENANT, "n0", NOTHING, "test")
    assert again is not None
    assert await put_notification(world.database, TENANT, "one-more", NOTHING, "test") is None
    await notify(world, "one-more", tenant=OTHER_TENANT)
