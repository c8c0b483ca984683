"""The scheduler's memory: one entry a task, parked work aside, nothing hidden behind it."""

from collections import Counter
from datetime import UTC, datetime
from uuid import UUID

from duly.domain.lanes import Ticket
from duly.scheduler.ready_state import (
    PARKED_MAX,
    QUEUE_ENTRIES_MAX,
    TICK_S,
    ReadyState,
    just_before,
)
from duly.store.load import DueTimer, TimerQueue

START = 1_800_000_000.0
PLACE = TimerQueue(1, 5, 2)


def due(
    number: int, fence: int = 0, at: float = START, key: str | None = None, priority: int = 5
) -> DueTimer:
    due_at = datetime.fromtimestamp(at, UTC)
    return DueTimer(*PLACE, UUID(int=number), fence, due_at, priority, None, "t", key, 1, None)


def test_a_task_that_is_brought_twice_is_one_entry() -> None:
    """A sweep, a doorbell and a load bring the same timer; two entries would be two tickets."""
    ready_state = ReadyState(START)
    assert ready_state.add([due(1)], PLACE, 0.0)
    assert not ready_state.add([due(1)], PLACE, 0.0)
    assert ready_state.add([due(2)], PLACE, 0.0)
    ready_state.advance(START)
    assert {ready_state.next_ready(START), ready_state.next_ready(START)} != {None}
    assert ready_state.next_ready(START) is None


def test_a_higher_fence_is_a_new_entry() -> None:
    """A retry must not be mistaken for the attempt that was loaded before it."""
    ready_state = ReadyState(START)
    assert ready_state.add([due(1, fence=0)], PLACE, 0.0)
    assert ready_state.add([due(1, fence=2)], PLACE, 0.0)


def test_of_many_only_what_is_new_is_taken_in() -> None:
    """A retry that is taken for the attempt before it is not started until its ticket is void."""
    ready_state = ReadyState(START)
    for number in (1, 2):
        ready_state.add([due(number)], PLACE, 0.0)
    admitted = [due(1), due(2, fence=2), due(3)]
    assert [ready_state.add([each], PLACE, 0.0) for each in admitted] == [False, True, True]
    assert not any(ready_state.add([each], PLACE, 0.0) for each in admitted)


def test_nothing_is_ready_before_its_instant() -> None:
    """An early ticket is refused by the lease and lost until a sweep."""
    ready_state = ReadyState(START)
    ready_state.add([due(1, at=START + 1.0)], PLACE, 0.0)
    assert ready_state.advance(START + 1.0 - TICK_S) == 0
    assert ready_state.advance(START + 1.0 + TICK_S) == 1


def test_a_ticket_is_known_until_it_is_taken_or_void() -> None:
    """Loading it again while its ticket is out would put a second ticket beside it."""
    ready_state = ReadyState(START)
    ready_state.add([due(1)], PLACE, 0.0)
    ready_state.add([due(2)], PLACE, 0.0)
    ready_state.advance(START)
    entries = [entry for _ in range(2) if (entry := ready_state.next_ready(START))]
    counts = Counter(entry.timer_queue for entry in entries)
    ready_state.ticketed(START + 10.0, counts, [Ticket(entry.due.id, 0) for entry in entries])
    assert not ready_state.add([due(1)], PLACE, 0.0)
    assert len(ready_state.taken([Ticket(UUID(int=1), 0)])) == 1
    assert ready_state.add([due(1, fence=1)], PLACE, 0.0)
    assert ready_state.void_tickets(START + 9.9) == []
    assert [entry.due.id for entry in ready_state.void_tickets(START + 10.0)] == [UUID(int=2)]
    assert ready_state.add([due(2)], PLACE, 0.0)


def test_parked_work_is_bounded_and_leaves_room_for_the_rest() -> None:
    """A hundred thousand tasks on one blocked key must not hide another key's work."""
    ready_state = ReadyState(START)
    reason = ("concurrency_key", 1, "full")
    for number in range(PARKED_MAX + 10):
        ready_state.add([due(number, key="full")], PLACE, 0.0)
    ready_state.advance(START)
    while (entry := ready_state.next_ready(START)) is not None:
        ready_state.park(reason, entry)
    assert len(ready_state.parked[reason]) == PARKED_MAX
    assert ready_state.room(PLACE) == QUEUE_ENTRIES_MAX
    assert ready_state.queues_to_reload() == {}
    assert ready_state.unpark(reason, PARKED_MAX) == PARKED_MAX
    # From the first that was let go.
    assert ready_state.queues_to_reload() == {PLACE: just_before(due(PARKED_MAX, key="full"))}
    ready_state.note_reloaded(PLACE, None)
    assert ready_state.queues_to_reload() == {}


def test_what_is_unparked_comes_out_oldest_first() -> None:
    """Fairness within a key: first come, first served."""
    ready_state = ReadyState(START)
    reason = ("concurrency_key", 1, "k")
    for number in range(5):
        ready_state.add([due(number, at=START - 5 + number, key="k")], PLACE, 0.0)
    ready_state.advance(START)
    while (entry := ready_state.next_ready(START)) is not None:
        ready_state.park(reason, entry)
    ready_state.unpark(reason, 2)
    first, second = ready_state.next_ready(START), ready_state.next_ready(START)
    assert first is not None
    assert second is not None
    assert [first.due.id.int, second.due.id.int] == [0, 1]
    assert ready_state.next_ready(START) is None


def test_higher_priorities_of_a_band_come_out_first() -> None:
    """Loaded at once, become due one by one, put back or unparked: the order is the same."""
    ready_state = ReadyState(START)
    ready_state.add(
        [due(1, at=START - 4, priority=3), due(2, at=START - 3, priority=6)], PLACE, START
    )
    ready_state.add(
        [due(3, at=START + 1, priority=5), due(4, at=START + 1, priority=6)], PLACE, START
    )
    ready_state.advance(START + 2)
    first = ready_state.next_ready(START + 2)
    assert first is not None
    ready_state.put_back(first)
    order = [entry.due.id.int for _ in range(2) if (entry := ready_state.next_ready(START + 2))]
    parked = ready_state.next_ready(START + 2)
    assert parked is not None
    ready_state.park(("concurrency_key", 1, "k"), parked)
    ready_state.unpark(("concurrency_key", 1, "k"), 1)
    order += [entry.due.id.int for _ in range(2) if (entry := ready_state.next_ready(START + 2))]
    assert order == [2, 4, 3, 1]


def test_how_long_waiting_counts_is_the_boards_to_say() -> None:
    """A setting that never reaches the queues would be read and not obeyed."""
    ready_state = ReadyState(START, aging_s=1.0)
    ready_state.add([due(1, at=START - 2, priority=3), due(2, at=START, priority=6)], PLACE, START)
    entry = ready_state.next_ready(START)
    assert entry is not None
    assert entry.due.id.int == 1


def test_a_blocked_member_sits_out_and_comes_back() -> None:
    """One tenant's full lane must not stop the others, nor be forgotten."""
    ready_state = ReadyState(START)
    ready_state.add([due(1)], PLACE, 0.0)
    ready_state.advance(START)
    entry = ready_state.next_ready(START)
    assert entry is not None
    ready_state.put_back(entry)
    ready_state.block(entry.tenant_pool)
    assert ready_state.next_ready(START) is None
    ready_state.add([due(2)], PLACE, 0.0)
    ready_state.advance(START)
    assert ready_state.next_ready(START) is None
    ready_state.unblock_tenant(1)
    assert ready_state.next_ready(START) == entry
