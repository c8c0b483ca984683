"""Lanes and request hashes: where a task waits, and when two requests are the same."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.limits import POOLS_PER_TENANT_MAX, PRIORITY_MAX
from duly.domain.retry import RetryPolicy
from duly.domain.task import (
    BANDS,
    HIGH,
    LEASED_QUEUE,
    LOW,
    NORMAL,
    WEBHOOK_POOL,
    Policy,
    Submission,
    band_of,
    request_hash,
    timer_queue,
)

SMALLINT_MAX = 2**15 - 1
pools = st.integers(WEBHOOK_POOL, POOLS_PER_TENANT_MAX)
priorities = st.integers(0, PRIORITY_MAX)
PLAIN = Submission(tenant=1, type="mail.send")
# One other value for each field of a submission that is part of what was asked.
OTHERS: dict[str, Any] = {
    "tenant": 2,
    "type": "mail.delete",
    "payload": "{}",
    "run_at": datetime(2026, 1, 1, tzinfo=UTC),
    "delay_s": 1.0,
    "url": "https://example.com/",
    "pool": "other",
    "priority": 6,
    "policy": Policy(retry=RetryPolicy(max_attempts=6)),
    "tags": {"a": "b"},
    "replay_of": UUID(int=1),
}
# The fields that are not.
UNASKED: dict[str, dict[str, Any]] = {
    "idempotency_key": {"idempotency_key": "k"},
    "key_ttl_s": {"key_ttl_s": 60.0},
    "execution_key": {"execution_key": "k"},
    "traceparent": {"traceparent": f"00-{1:032x}-{1:016x}-01"},
}


@pytest.mark.parametrize(
    ("priority", "band"), [(0, LOW), (2, LOW), (3, NORMAL), (6, NORMAL), (7, HIGH), (9, HIGH)]
)
def test_bands_change_where_they_are_documented_to(priority: int, band: int) -> None:
    """A border off by one lets low work overtake."""
    assert band_of(priority) == band


@given(pools, pools, priorities, priorities)
def test_a_lane_is_one_pool_and_one_band(pool: int, other: int, high: int, low: int) -> None:
    """Two pools in one lane would hand a worker what is not its own."""
    same_place = pool == other and band_of(high) == band_of(low)
    assert (timer_queue(pool, high) == timer_queue(other, low)) is same_place


@given(pools, priorities)
def test_a_lane_fits_its_column_and_is_never_the_leased_one(pool: int, priority: int) -> None:
    """Lane 0 means leased; past two bytes the insert of a whole batch would fail."""
    assert LEASED_QUEUE < timer_queue(pool, priority) <= SMALLINT_MAX


def test_the_highest_lane_is_that_of_the_last_pool() -> None:
    """The bound on pools is what keeps lanes in two bytes."""
    assert timer_queue(POOLS_PER_TENANT_MAX, 0) == POOLS_PER_TENANT_MAX * BANDS + BANDS


@pytest.mark.parametrize("name", OTHERS)
def test_every_asked_field_changes_the_hash(name: str) -> None:
    """A field left out lets another request pass for a repetition of this one (I8)."""
    assert request_hash(PLAIN._replace(**{name: OTHERS[name]})) != request_hash(PLAIN)


@pytest.mark.parametrize("name", UNASKED)
def test_the_names_of_a_request_are_not_the_request(name: str) -> None:
    """The key says which request; it is not part of what was asked."""
    assert request_hash(PLAIN._replace(**UNASKED[name])) == request_hash(PLAIN)


def test_no_field_escapes_the_hash_tests() -> None:
    """A field added later must be put on one of the two lists; `asked` is the hash itself."""
    known = OTHERS.keys() | UNASKED.keys() | {"asked"}
    assert set(Submission._fields) == known


def test_what_was_asked_goes_before_what_it_became() -> None:
    """Defaults of a task type that change between two tries must not make them differ (I8)."""
    first = Submission(tenant=1, type="a", priority=5, asked=b"same")
    second = Submission(tenant=1, type="a", priority=9, asked=b"same")
    assert request_hash(first) == request_hash(second) == b"same"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5))
def test_the_order_of_tags_does_not_matter(tags: dict[str, str]) -> None:
    """JSON objects have no order; a client that reorders them must not get a 409."""
    turned = dict(reversed(list(tags.items())))
    assert request_hash(PLAIN._replace(tags=turned)) == request_hash(PLAIN._replace(tags=tags))
