"""What counts against a cap, and until when: too much is a delay, too little breaks a promise."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from duly.scheduler.in_flight import Charge, InFlight
from duly.store.load import DueTimer

TENANT = 7
KEY = (TENANT, "key")
TASK, OTHER = UUID(int=1), UUID(int=2)
DEADLINE = 10.0


def due(task: UUID = TASK, fence: int = 0) -> DueTimer:
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    return DueTimer(TENANT, 0, 1, task, fence, instant, 5, None, "type", "key", 1, None)


@pytest.fixture
def accounts() -> InFlight:
    accounts = InFlight()
    accounts.ticketed(due(), DEADLINE)
    return accounts


def counts(accounts: InFlight) -> tuple[int, int]:
    return accounts.in_flight(TENANT), accounts.key_in_flight(KEY)


def test_a_task_published_again_counts_once(accounts: InFlight) -> None:
    """Two tickets of one task, of which one was forgotten, would fill a cap for ever."""
    accounts.ticketed(due(), DEADLINE + 5)
    accounts.ticketed(due(fence=2), DEADLINE + 6)
    assert counts(accounts) == (1, 1)


def test_a_ticket_past_its_deadline_counts_until_the_database_was_asked(accounts: InFlight) -> None:
    """A consumer elsewhere may hold the lease, and nobody told us."""
    accounts.pass_deadlines(DEADLINE)
    assert counts(accounts) == (1, 1)
    freed = accounts.correct(dict(accounts.leases), {})
    assert [charge.key for charge in freed] == [KEY]
    assert counts(accounts) == (0, 0)


def test_an_older_ticket_of_the_same_fence_does_not_end_the_newer_one(accounts: InFlight) -> None:
    """Its deadline is not the other's: that one can still become a lease."""
    accounts.ticketed(due(), DEADLINE + 5)
    accounts.pass_deadlines(DEADLINE)
    assert accounts.correct(dict(accounts.leases), {}) == []
    assert counts(accounts) == (1, 1)


def test_a_lease_counts_until_the_database_does_not_know_it(accounts: InFlight) -> None:
    """A lease that ended elsewhere would fill the cap for ever."""
    accounts.leased(TASK, 0)
    assert counts(accounts) == (1, 1)
    accounts.correct(dict(accounts.leases), {})
    assert counts(accounts) == (0, 0)


def test_a_settlement_frees_only_its_own_lease(accounts: InFlight) -> None:
    """A zombie settles late: the next ticket of its task is out already."""
    accounts.ticketed(due(fence=2), DEADLINE)
    assert accounts.settled(TASK, 1) is None
    assert counts(accounts) == (1, 1)
    assert accounts.settled(TASK, 3) is not None
    assert counts(accounts) == (0, 0)


def test_what_was_told_while_the_database_answered_stands(accounts: InFlight) -> None:
    """The answer is of an instant before the lease."""
    before = dict(accounts.leases)
    accounts.leased(TASK, 0)
    accounts.correct(before, {OTHER: Charge(4, TENANT, KEY)})
    assert counts(accounts) == (2, 2)


def test_a_lease_seen_in_the_database_takes_the_place_of_its_ticket(accounts: InFlight) -> None:
    """Counted as both, it would fill two places of the cap."""
    accounts.correct({}, {TASK: Charge(0, TENANT, KEY)})
    assert counts(accounts) == (1, 1)
    assert not accounts.tickets


def test_what_is_in_a_lost_slot_counts_for_its_next_owner(accounts: InFlight) -> None:
    """Its end would never be reported."""
    accounts.ticketed(due(OTHER), DEADLINE)
    accounts.forget(lambda task, tenant: task == TASK and tenant == TENANT)
    assert counts(accounts) == (1, 1)
