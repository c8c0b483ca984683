"""Whose end of a lease is told to whom, and what a hint may free."""

from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.domain.ids import make_task_id, shard_of
from duly.domain.lanes import Ticket
from duly.domain.states import Outcome, State
from duly.environment import Environment, SystemClock
from duly.events import TasksFinished, TasksLeased
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.freed_capacity import FreedCapacity
from duly.scheduler.gatekeeper import Bounds, Gatekeeper
from duly.scheduler.in_flight import InFlight
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.wakeups import SchedulerWakeups
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.load import DueTimer
from duly.store.notify import FREED
from duly.store.tenants import GateInputs, Tenant
from duly.telemetry import Metrics

NOBODY: Any = None
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OUR_SHARD, THEIR_SHARD = 1, 2
CAPPED, PLAIN = 10, 11
DONE = SettleAnswer(SettleStatus.SETTLED, State.COMPLETED)
RANDOM = Random(20260101)


class Shards:
    """Stands for the coordinator: one shard is ours."""

    def owns(self, shard: int) -> object:
        return object() if shard == OUR_SHARD else None


class Owner:
    def __init__(self) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        shards: Any = Shards()
        environment, time = Environment(), DatabaseTime(SystemClock())
        queue = LeaseQueue(MemoryCarrier(environment.clock), NOBODY, environment)
        gatekeeper = Gatekeeper(time, InFlight(), shards)
        self.dispatcher = Dispatcher(
            *(environment, shards, ReadyState(0.0), time, queue, Metrics()),
            *(gatekeeper, SchedulerWakeups(), NOBODY),
        )
        capped = Tenant(CAPPED, "capped", 1.0, 1, None, None, 1)
        self.dispatcher.gatekeeper.bounds = Bounds(GateInputs({CAPPED: capped}, [], []))
        self.freed = FreedCapacity(self.dispatcher, self.send)

    def send(self, channel: str, hints: list[str]) -> None:
        self.sent.append((channel, hints))

    @property
    def is_woken(self) -> bool:
        return self.dispatcher.wakeup.event.is_set()

    def ticket(self, task_id: UUID, fence: int) -> None:
        shard = shard_of(task_id)
        due = DueTimer(CAPPED, shard, 2, task_id, fence, NOW, 5, None, "t", None, None, None)
        self.dispatcher.counts.ticketed(due, NOW.timestamp())

    @property
    def in_flight(self) -> int:
        return self.dispatcher.counts.in_flight(CAPPED)


def task_in(shard: int) -> UUID:
    return make_task_id(1_800_000_000_000, shard, RANDOM)


def end(task_id: UUID, fence: int = 1) -> Settlement:
    return Settlement(task_id, fence, UUID(int=1), Outcome.COMPLETED)


async def test_only_what_others_count_is_told_to_others() -> None:
    """A hint for each settled task would be a second stream as wide as the first."""
    owner = Owner()
    told, keyed = task_in(THEIR_SHARD), task_in(THEIR_SHARD)
    ended = [
        (end(told, 3), replace(DONE, tenant=CAPPED)),
        (end(keyed, 5), replace(DONE, tenant=PLAIN, has_key=True)),
        (end(task_in(THEIR_SHARD)), replace(DONE, tenant=PLAIN)),
        (end(task_in(OUR_SHARD)), replace(DONE, tenant=CAPPED)),
    ]
    owner.freed.on_ended(TasksFinished([item for item, _ in ended], [each for _, each in ended]))
    assert owner.sent == [(FREED, [f"{told.hex} 3", f"{keyed.hex} 5"])]


async def test_a_ticket_that_became_no_lease_counts_until_its_deadline() -> None:
    """The carrier delivers it again after the count was corrected: one more than the cap (I10)."""
    owner = Owner()
    task_id = task_in(OUR_SHARD)
    owner.ticket(task_id, 0)
    counts = owner.dispatcher.counts
    owner.dispatcher.on_leased(TasksLeased([Ticket(task_id, 0)], []))
    counts.correct(dict(counts.leases), {})
    assert owner.in_flight == 1
    counts.pass_deadlines(NOW.timestamp())
    counts.correct(dict(counts.leases), {})
    assert owner.in_flight == 0


async def test_a_hint_frees_the_lease_it_names_and_no_other() -> None:
    """Late or repeated, it must not free what the same task's next lease uses (I10)."""
    owner = Owner()
    task_id = task_in(OUR_SHARD)
    owner.ticket(task_id, 2)
    for stale in (f"{task_id.hex} 1", f"{task_id.hex} 2", f"{task_id.hex} 4"):
        owner.freed.on_notify([stale])
        assert owner.in_flight == 1
    owner.freed.on_notify([f"{task_id.hex} 3"])
    assert owner.in_flight == 0
    owner.ticket(task_id, 4)
    owner.freed.on_notify([f"{task_id.hex} 3"])
    assert owner.in_flight == 1


async def test_hints_for_others_and_nonsense_disturb_nobody() -> None:
    """Every process gets every hint, also those of a release that says more."""
    owner = Owner()
    task_id = task_in(OUR_SHARD)
    owner.ticket(task_id, 0)
    owner.freed.on_notify([f"{task_in(THEIR_SHARD).hex} 1", "", "zz 1", f"{task_id.hex}", "a b c"])
    assert (owner.in_flight, owner.is_woken) == (1, False)
    owner.freed.on_notify(["nonsense", f"{task_id.hex} 1"])
    assert (owner.in_flight, owner.is_woken) == (0, True)


async def test_nobody_is_told_where_nobody_listens() -> None:
    """Alone, or behind a pooler, there is no channel: settling must not need one."""
    owner = Owner()
    alone = FreedCapacity(owner.dispatcher, None)
    alone.on_ended(TasksFinished([end(task_in(THEIR_SHARD))], [replace(DONE, tenant=CAPPED)]))
    assert owner.sent == []
