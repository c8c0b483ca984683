"""Which tickets let their leases stay in place: many of one place that nobody counts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from duly.broker.contract import Delivery
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.domain.lanes import Ticket
from duly.domain.task import WEBHOOK_POOL, timer_queue
from duly.environment import Environment, SystemClock
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.dispatcher import IN_PLACE_MIN, Dispatcher
from duly.scheduler.gatekeeper import Bounds, Gatekeeper
from duly.scheduler.in_flight import InFlight
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.wakeups import SchedulerWakeups
from duly.store.load import DueTimer, TimerQueue
from duly.store.tenants import GateInputs, Tenant
from duly.telemetry import Metrics

NOBODY: Any = None
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CAPPED, PLAIN = 10, 11
WORKERS_POOL = 3


class Listening(LeaseQueue):
    def __init__(self) -> None:
        super().__init__(MemoryCarrier(SystemClock()), NOBODY, Environment())
        self.published: list[Ticket] = []

    async def publish(self, batch: Sequence[Delivery]) -> None:
        self.published += [each.ticket for each in batch]


async def publish(timers: list[DueTimer]) -> list[bool]:
    """What was said of each, in order."""
    broker, now = Listening(), NOW.timestamp()
    ready_state, time = ReadyState(now), DatabaseTime(SystemClock())
    gatekeeper, wakeups = Gatekeeper(time, InFlight(), NOBODY), SchedulerWakeups()
    dispatcher = Dispatcher(
        *(Environment(), NOBODY, ready_state, time, broker, Metrics()),
        *(gatekeeper, wakeups, NOBODY),
    )
    capped = Tenant(CAPPED, "capped", 1.0, 1000, None, None, 1)
    dispatcher.gatekeeper.bounds = Bounds(GateInputs({CAPPED: capped}, [], []))
    for timer in timers:
        ready_state.add([timer], timer.timer_queue, now)
    entries = [ready_state.known[timer.id] for timer in timers]
    await dispatcher.publish(now, [(dispatcher.lane_of(entry), entry) for entry in entries])
    return [ticket.in_place for ticket in broker.published]


def timers(
    count: int, tenant: int = PLAIN, pool: int = WEBHOOK_POOL, **said: Any
) -> list[DueTimer]:
    place = TimerQueue(tenant, 0, timer_queue(pool, 5))
    key = said.get("key")
    first = said.get("first", 0)
    return [
        DueTimer(*place, UUID(int=first + n + 1), 0, NOW, 5, None, "t", key, 1, None)
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("due", "stays"),
    [
        (timers(IN_PLACE_MIN), True),
        (timers(IN_PLACE_MIN - 1), False),
        (timers(IN_PLACE_MIN, tenant=CAPPED), False),
        (timers(IN_PLACE_MIN, pool=WORKERS_POOL), False),
        (timers(IN_PLACE_MIN, key="customer:1"), False),
    ],
    ids=["many", "few", "of a capped tenant", "for users' workers", "with a key"],
)
async def test_leases_stay_where_nobody_counts_them_and_an_expiry_batch_pays(
    due: list[DueTimer], stays: bool
) -> None:
    """What has a cap is counted in lane 0: a lease elsewhere would be one too many (I10)."""
    assert await publish(due) == [stays] * len(due)


async def test_of_one_publish_each_ticket_has_its_own_answer() -> None:
    """A tenant's tasks with a key, and its neighbour's few, go out together with its many."""
    many = timers(IN_PLACE_MIN)
    keyed = timers(2, first=100, key="customer:1")
    few = timers(2, tenant=CAPPED, first=200)
    assert await publish([*keyed, *many, *few]) == [False] * 2 + [True] * IN_PLACE_MIN + [False] * 2
