"""What the loader remembers: of a doorbell that it cannot follow at once, of what it has read."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast
from uuid import UUID

from msgspec.structs import astuple

from duly.coordinator.ownership import Coordinator
from duly.domain.ids import SLOTS
from duly.environment import Environment
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.dispatch_scope import DispatchScope
from duly.scheduler.loader import Loader
from duly.scheduler.ready_state import QUEUE_ENTRIES_MAX, ReadyState
from duly.scheduler.wakeups import SchedulerWakeups
from duly.store.database import Database
from duly.store.load import SQL, Cursor, DueTimer, TimerQueue
from duly.store.ownership import SLOT, Assignment, OwnershipClaim

PLACE = TimerQueue(1, 5, 2)
EPOCH = datetime.fromtimestamp(0, UTC)


def make_loader(environment: Environment) -> Loader:
    """It knows what time it is, owns everything, and asks nothing."""
    time = DatabaseTime(environment.clock)
    time.observe(environment.clock.now())
    nobody = cast("Coordinator", Everything())
    scope = DispatchScope(nobody)
    ready_state, wakeups = ReadyState(time.now()), SchedulerWakeups()
    return Loader(cast("Database", None), environment, nobody, ready_state, time, scope, wakeups)


class Everything:
    """Stands for a coordinator: every slot is ours."""

    def __init__(self) -> None:
        self.assignments = dict.fromkeys(
            [Assignment(SLOT, slot) for slot in range(SLOTS)], OwnershipClaim(1, EPOCH)
        )


class Backlog:
    """A database with timers of one place; something happens during every load."""

    def __init__(self, environment: Environment, timers: list[DueTimer]) -> None:
        self.environment = environment
        self.timers = timers
        self.meanwhile: Callable[[], None] = lambda: None

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        if statement == SQL.read_frontier:
            now = self.environment.clock.now()
            return [(now, now)]
        (after_due_at,), (after_id,), limit = arguments[3], arguments[4], arguments[6]
        self.meanwhile()
        found = [t for t in self.timers if (t.due_at, t.id) > (after_due_at, after_id)]
        return [astuple(timer) for timer in found[:limit]]


def due(timer_queue: TimerQueue, number: int, due_at: datetime) -> DueTimer:
    return DueTimer(*timer_queue, UUID(int=number), 0, due_at, 5, None, "t", None, None, None)


def test_a_doorbell_that_finds_no_room_is_read_next(environment: Environment) -> None:
    """The place was read far ahead and is full; a task that fires sooner must not wait for the
    sweep, seconds after its instant."""
    loader = make_loader(environment)
    now = environment.clock.now()
    ahead = now + timedelta(seconds=9)
    loader.state_of(PLACE).cursor = Cursor(ahead)
    loader.loads.put(PLACE, environment.clock.monotonic() + 100.0)
    loader.ready_state.per_queue[PLACE] = QUEUE_ENTRIES_MAX
    due_at = now + timedelta(seconds=1)
    loader.admit([due(PLACE, 1, due_at)])
    state = loader.timer_queues[PLACE]
    assert len(loader.ready_state.known) == 0
    assert state.cursor.due_at < due_at
    assert loader.loads.next_at() <= environment.clock.monotonic()


def test_what_fires_among_what_was_read_needs_no_load(environment: Environment) -> None:
    """All that fires before it is on the board; what fires after the last that was read is not, and
    would jump the queue."""
    loader = make_loader(environment)
    now = environment.clock.now()
    loader.state_of(PLACE).cursor = Cursor(now + timedelta(seconds=5))
    loader.admit([due(PLACE, number, now + timedelta(seconds=number)) for number in (4, 6)])
    assert [entry.due.id.int for entry in loader.ready_state.known.values()] == [4]
    assert loader.timer_queues[PLACE].cursor == Cursor(now + timedelta(seconds=5))


async def test_what_is_brought_during_a_load_is_not_overlooked(environment: Environment) -> None:
    """The load looked before it was there, and went on behind it."""
    loader = make_loader(environment)
    ahead = environment.clock.now() + timedelta(seconds=8)
    database = Backlog(environment, [due(PLACE, number, ahead) for number in range(1, 2001)])
    loader.database = cast("Database", database)
    loader.state_of(PLACE)
    admitted = [due(PLACE, 3000, ahead - timedelta(seconds=1)), due(PLACE, 4000, ahead)]
    database.meanwhile = lambda: loader.admit(admitted)
    await loader.load(environment.clock.monotonic())
    assert not loader.timer_queues[PLACE].is_caught_up
    numbers = {task_id.int for task_id in loader.ready_state.known}
    assert 3000 in numbers
    assert 4000 not in numbers, "it is behind the last that was read, and will be read"


async def test_a_doorbell_during_a_load_of_its_place_is_followed_by_another(
    environment: Environment,
) -> None:
    """The load may have looked before the task was there; without another it would be found by the
    next round, seconds later. One whose transaction was open for long lies behind all that was
    read."""
    loader = make_loader(environment)
    now = environment.clock.now()
    database = Backlog(environment, [due(PLACE, 1, now + timedelta(seconds=5))])
    loader.database = cast("Database", database)
    loader.state_of(PLACE)
    due_at = now - timedelta(minutes=1)
    database.meanwhile = partial(loader.reload_from, PLACE, due_at)
    await loader.load(environment.clock.monotonic())
    assert loader.timer_queues[PLACE].cursor.due_at < due_at
    assert loader.loads.next_at() <= environment.clock.monotonic()
    database.meanwhile = lambda: None
    await loader.load(environment.clock.monotonic())
    assert loader.loads.next_at() > environment.clock.monotonic(), "one more is enough"


async def test_a_place_catches_up_though_something_is_submitted_during_every_load(
    environment: Environment,
) -> None:
    """Led back to the beginning by each of them, the loader would read the first page for ever."""
    loader = make_loader(environment)
    now = environment.clock.now()
    ahead = now + timedelta(seconds=8)
    database = Backlog(environment, [due(PLACE, number, ahead) for number in range(1, 6001)])
    numbers = itertools.count(10_000)
    database.meanwhile = lambda: loader.admit([due(PLACE, next(numbers), now)])
    loader.database = cast("Database", database)
    loader.state_of(PLACE)
    for _ in range(8):
        await loader.load(environment.clock.monotonic())
    assert loader.timer_queues[PLACE].is_caught_up
    assert len(loader.ready_state.known) >= 6000


def test_what_is_known_is_counted_and_read_past(environment: Environment) -> None:
    """A sweep that did not count what it knows would end at the first full page of blocked work,
    and never see what lies behind it."""
    loader = make_loader(environment)
    now = environment.clock.now()
    other = TimerQueue(1, 5, 3)
    timers = [due(PLACE, 1, now), due(PLACE, 2, now), due(other, 3, now), due(PLACE, 4, now)]
    for _ in range(2):
        reads = loader.add_loaded(timers)
        assert {timer_queue: read.count for timer_queue, read in reads.items()} == {
            PLACE: 3,
            other: 1,
        }
        assert reads[PLACE].cursor == Cursor(now, UUID(int=4))
        assert reads[other].cursor == Cursor(now, UUID(int=3))
    assert loader.ready_state.per_queue == {PLACE: 3, other: 1}
    assert all(type(entry.timer_queue) is TimerQueue for entry in loader.ready_state.known.values())
