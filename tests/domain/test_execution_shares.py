"""Fair shares of slots: what one tenant can take, what is left for others, and who goes first."""

from random import Random

import pytest

from duly.domain.execution_shares import ExecutionShares, SlotClaim, UnsharedSlots
from duly.domain.lanes import (
    LANE_DEPTH_MAX,
    SHARED_LANES,
    WEBHOOK_LANES,
    Lane,
    depth_max,
    queue_of,
)

SLOTS = 1000


def fill(shares: ExecutionShares, tenant: int, wanted: int = 10 * SLOTS) -> int:
    """Take for one tenant as long as some round allows it; answers how many."""
    taken = 0
    while taken < wanted:
        rounds = [each for each in shares.rounds(wanted - taken) if tenant not in each.left_out]
        if not rounds:
            break
        shares.add(tenant, rounds[0].most)
        taken += rounds[0].most
    return taken


def test_one_tenant_holds_at_most_nine_tenths() -> None:
    """What it does not hold is what others find at once."""
    shares = ExecutionShares(SLOTS)
    assert fill(shares, 1) == 900
    assert shares.free == 100


def test_ten_slow_tenants_one_after_another_leave_slots_for_an_eleventh() -> None:
    """A bound for each tenant alone would let them use all slots together."""
    shares = ExecutionShares(SLOTS)
    taken = [fill(shares, tenant) for tenant in range(10)]
    assert taken[0] == 900
    assert all(count > 0 for count in taken)
    assert shares.free >= 5
    assert fill(shares, 99, 1) == 1


def test_the_last_slots_are_for_tenants_that_use_none() -> None:
    """Down to the last one."""
    shares = ExecutionShares(SLOTS)
    tenants = 0
    while fill(shares, tenants):
        tenants += 1
    assert shares.free == 0
    assert shares.used[tenants - 1] == 1
    assert shares.rounds(1) == []


def test_while_slots_are_plenty_the_order_of_the_lane_stands() -> None:
    """Skipping is for scarcity: the lane is in fair order already."""
    shares = ExecutionShares(SLOTS)
    shares.add(1, 400)
    shares.add(2, 1)
    (only,) = shares.rounds(400)
    assert only == (400, frozenset())


def test_when_slots_are_scarce_tenants_above_their_share_come_second() -> None:
    """And come all the same, if nobody else has work."""
    shares = ExecutionShares(SLOTS, {1: 1.0, 2: 2.0}.__getitem__)
    shares.add(1, 301)
    shares.add(2, 299)
    first, second = shares.rounds(400)
    assert first == (300, frozenset({1}))
    assert second == (300, frozenset())


@pytest.mark.parametrize("slots", [1, 2, 5, 9])
def test_few_slots_can_all_be_used(slots: int) -> None:
    """A tenth of nine is none: nothing may stand still for ever."""
    assert fill(ExecutionShares(slots), 1) == slots


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_taken_and_released_is_counted(seed: int) -> None:
    """A slot that is counted twice, or for ever, is lost; one too few is a second attempt."""
    random, shares = Random(seed), ExecutionShares(Random(seed).choice([1, 3, 20, SLOTS]))
    running: list[int] = []
    for _ in range(300):
        claim = SlotClaim(shares)
        claim.ask(random.randrange(3))
        rounds = claim.rounds(random.randrange(1, 40))
        for most, left_out in rounds[:1]:
            tenant = random.randrange(4)
            if tenant not in left_out:
                claim.take([Lane(tenant, 0, 1)] * most)
                started = random.randrange(most + 1)
                for _ in range(started):
                    shares.add(tenant, 1)
                    running.append(tenant)
        claim.release()
        while running and random.random() < 0.5:
            shares.add(running.pop(random.randrange(len(running))), -1)
        assert shares.total == len(running) <= shares.slots
        assert {tenant: running.count(tenant) for tenant in running} == shares.used


def test_a_statement_under_way_counts_for_every_tenant() -> None:
    """Three of them at once would give one tenant three times what it may have."""
    shares = ExecutionShares(40)
    shares.add(1, 36)
    shares.ask(1)
    assert shares.rounds(5) == []
    shares.ask(-1)
    assert shares.rounds(5) == [(1, frozenset({1}))]


def test_a_worker_takes_what_it_asks_for() -> None:
    """Its slots are its own, and all of one tenant."""
    slots = UnsharedSlots()
    assert slots.rounds(7) == [(7, frozenset())]
    assert slots.admits(1, 7)


def test_webhooks_of_all_tenants_share_a_queue_and_workers_do_not() -> None:
    assert queue_of(Lane(7, 0, 1)) == WEBHOOK_LANES[1]
    assert queue_of(Lane(7, 3, 1)) == Lane(7, 3, 1)


def test_a_shared_queue_has_room_for_one_more_tenant_however_many_wait_in_it() -> None:
    """A queue full of tickets that nobody takes would stop the dispatch of everybody's."""
    depths: list[int] = []
    for tenant in range(1, 16):
        lane, depth = Lane(tenant, 0, 1), 0
        while depth < depth_max(lane, 1.0, sum(depths) + depth):
            depth += 1
        depths.append(depth)
    assert depths[0] == LANE_DEPTH_MAX
    assert all(depths)
    assert sum(depths) < SHARED_LANES * LANE_DEPTH_MAX
    assert depth_max(Lane(1, 0, 1), 1.0, SHARED_LANES * LANE_DEPTH_MAX) == 0
    assert depth_max(Lane(1, 5, 1), 1.0, SHARED_LANES * LANE_DEPTH_MAX) == LANE_DEPTH_MAX
