"""Task ids: the address inside them, and how tenants and keys find their shards."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import RFC_4122

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.ids import (
    EPOCH,
    SHARDS,
    SLOTS,
    address_of,
    in_address_order,
    key_shard,
    make_task_id,
    milliseconds,
    partition_bound,
    placement_time_of,
    shard_of,
    shards_of,
    slot_of,
    tenant_shard,
)

LATEST = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
instants = st.datetimes(
    EPOCH.replace(tzinfo=None), LATEST.replace(tzinfo=None), timezones=st.just(UTC)
)
shards = st.integers(0, SHARDS - 1)
seeds = st.integers(0, 2**32)
tenants = st.integers(0, 2**31 - 1)
spreads = st.sampled_from([2**bits for bits in range(11)])
MILLISECOND = timedelta(milliseconds=1)


@given(instants, shards, seeds)
def test_an_id_gives_back_its_time_and_shard(placed_at: datetime, shard: int, seed: int) -> None:
    """A task that cannot be found by its id alone would need a search of every partition."""
    task_id = make_task_id(milliseconds(placed_at), shard, Random(seed))
    assert shard_of(task_id) == shard
    assert timedelta() <= placed_at - placement_time_of(task_id) < MILLISECOND
    assert (task_id.version, task_id.variant) == (7, RFC_4122)


@given(instants, shards, seeds)
def test_an_id_lies_in_the_partition_of_its_time(
    placed_at: datetime, shard: int, seed: int
) -> None:
    """A bound off by one bit sends a task to a month that may be dropped under it."""
    task_id = make_task_id(milliseconds(placed_at), shard, Random(seed))
    placed = placement_time_of(task_id)
    assert partition_bound(placed) <= task_id
    if placed + MILLISECOND <= LATEST:
        assert task_id < partition_bound(placed + MILLISECOND)


@given(instants, instants, shards, shards, seeds)
def test_ids_are_ordered_by_their_time(
    one: datetime, two: datetime, shard: int, other: int, seed: int
) -> None:
    """Lists are paged by id, newest first: a shard must not outweigh the time."""
    first, second = sorted([one, two])
    if milliseconds(first) < milliseconds(second):
        random = Random(seed)
        assert make_task_id(milliseconds(first), shard, random) < make_task_id(
            milliseconds(second), other, random
        )


def test_two_ids_of_one_instant_differ() -> None:
    """Two tasks with one id would be one task."""
    random = Random(1)
    assert len({make_task_id(0, 7, random) for _ in range(10_000)}) == 10_000


def test_every_random_bit_is_used() -> None:
    """A bit that never changes halves the ids there are. Two say what follows an end."""
    random = Random(1)
    ids = [make_task_id(0, 0, random).int for _ in range(200)]
    seen_set = seen_clear = 0
    for value in ids:
        seen_set |= value
        seen_clear |= ~value
    assert (seen_set & seen_clear & (2**128 - 1)).bit_count() == 62


@pytest.mark.parametrize("shard", [-1, SHARDS])
def test_a_shard_past_the_last_is_our_own_mistake(shard: int) -> None:
    """It would spill into the version bits and address another task."""
    with pytest.raises(AssertionError):
        make_task_id(0, shard, Random(1))


def test_time_before_the_epoch_is_our_own_mistake() -> None:
    """A negative time would wrap around to the far end of all partitions."""
    with pytest.raises(AssertionError):
        milliseconds(EPOCH - MILLISECOND)


@given(tenants, spreads)
def test_a_spread_is_as_many_shards_as_it_says(tenant: int, spread: int) -> None:
    """Fewer would concentrate a busy tenant, more would escape its owner's count."""
    places = {tenant_shard(tenant, spread, choice) for choice in range(2 * spread)}
    assert len(places) == spread
    assert all(0 <= place < SHARDS for place in places)


@given(tenants, st.integers(0, 9))
def test_a_wider_spread_keeps_the_narrower_ones_shards(tenant: int, bits: int) -> None:
    """Raising a spread must move nothing that is stored already."""
    narrow = {tenant_shard(tenant, 2**bits, choice) for choice in range(2**bits)}
    wide = {tenant_shard(tenant, 2 ** (bits + 1), choice) for choice in range(2 ** (bits + 1))}
    assert narrow < wide


@pytest.mark.parametrize("spread", [0, 3, -2, 2 * SHARDS])
def test_a_spread_that_is_no_power_of_two_is_our_own_mistake(spread: int) -> None:
    """Its shards would not be those of the next wider one."""
    with pytest.raises(AssertionError):
        tenant_shard(1, spread, 0)


def test_neighbouring_tenants_live_apart() -> None:
    """Tenants are numbered in order; without a hash the first thousand would share few owners."""
    used = Counter(tenant_shard(tenant, 1, 0) for tenant in range(1, 1025))
    assert len(used) > 600
    assert max(used.values()) <= 4


@given(tenants, st.text(max_size=50))
def test_a_key_has_one_shard_whatever_the_spread(tenant: int, key: str) -> None:
    """Two homes for one key would be two keys."""
    assert key_shard(tenant, key) == key_shard(tenant, key)
    assert 0 <= key_shard(tenant, key) < SHARDS


def test_the_home_of_a_key_never_changes_between_releases() -> None:
    """A new hash would forget every key that is stored: each would be submitted twice."""
    assert [key_shard(1, "a"), key_shard(2, "a"), key_shard(1, "b")] == [261, 970, 444]
    assert [tenant_shard(tenant, 1, 0) for tenant in (0, 1, 2, 3)] == [0, 632, 241, 874]


@given(shards)
def test_every_shard_lies_in_one_slot(shard: int) -> None:
    """A shard in no slot is dispatched by nobody; in two slots, by two."""
    assert shard in shards_of(slot_of(shard))
    assert [slot for slot in range(SLOTS) if shard in shards_of(slot)] == [slot_of(shard)]


def test_the_slots_are_equal_and_cover_all_shards() -> None:
    """Unequal slots would make equal shares of them unequal work."""
    assert [shard for slot in range(SLOTS) for shard in shards_of(slot)] == list(range(SHARDS))
    assert {len(shards_of(slot)) for slot in range(SLOTS)} == {SHARDS // SLOTS}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.integers(0, 9))
def test_batches_are_put_into_the_order_of_their_keys(
    addresses: list[tuple[int, int]], seed: int
) -> None:
    """Two batches that lock the same rows in two orders wait for each other."""
    random = Random(seed)
    ids = [make_task_id(1_800_000_000_000 + at_ms, shard, random) for shard, at_ms in addresses]
    for chosen in (ids, [task_id for task_id in ids if shard_of(task_id) == 0]):
        order = in_address_order(chosen)
        assert [chosen[at] for at in order] == sorted(chosen, key=address_of)
