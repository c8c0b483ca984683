"""Leases against everything else that may happen to an unleased or a leased task."""

import pytest

from duly.domain.states import Outcome
from tests.interleaving.calls import (
    NOTHING,
    beat,
    cancel,
    expire,
    hasten,
    lease_by,
    postpone,
    promote,
    reap,
    settle_as,
)
from tests.interleaving.orders import Race
from tests.interleaving.pairs import Pair, assert_pair
from tests.interleaving.scenes import Stage

LEASED = "leased 1"
lease = lease_by("second")

LEASING = [
    Pair(
        "lease and lease",
        Stage.ready,
        lease_by("first"),
        lease,
        {(LEASED, NOTHING), (NOTHING, LEASED)},
    ),
    Pair(
        "lease and cancel",
        Stage.ready,
        lease,
        cancel,
        {(LEASED, "cancel_requested"), (NOTHING, "cancelled")},
    ),
    Pair(
        "lease and postpone",
        Stage.ready,
        lease,
        postpone,
        {(LEASED, "running"), (NOTHING, "moved")},
    ),
    Pair(
        "lease and promote",
        Stage.ready,
        lease,
        promote,
        {(LEASED, "running"), (NOTHING, "moved")},
    ),
    Pair(
        "lease and run-now of a due task",
        Stage.ready,
        lease,
        hasten,
        {(LEASED, "running"), (NOTHING, "moved")},
    ),
    Pair(
        "lease and run-now of a later task",
        Stage.scheduled,
        lease,
        hasten,
        {(NOTHING, "moved")},
        must_wait=False,
    ),
    Pair(
        "lease and expire",
        Stage.start_by_over,
        lease,
        expire,
        {(LEASED, NOTHING), (NOTHING, "expired")},
    ),
]

BEATING = [
    Pair(
        "heartbeat and reap",
        Stage.expired,
        reap,
        beat,
        {("settled again", "stale"), (NOTHING, "held")},
        left_may_pass=True,
    ),
    Pair(
        "heartbeat and cancel",
        Stage.running,
        beat,
        cancel,
        {("held", "cancel_requested"), ("cancel", "cancel_requested")},
    ),
    Pair(
        "heartbeat and heartbeat",
        Stage.running,
        beat,
        beat,
        {("held", "held")},
    ),
    *(
        Pair(
            f"heartbeat and settle {outcome}",
            Stage.running,
            beat,
            settle_as(outcome),
            {("held", answer), ("stale", answer)},
        )
        for outcome, answer in {
            Outcome.COMPLETED: "settled COMPLETED",
            Outcome.FAILED: "settled again",
            Outcome.REJECTED: "settled FAILED",
            Outcome.RELEASED: "settled again",
        }.items()
    ),
]


@pytest.mark.parametrize("pair", LEASING, ids=lambda pair: pair.name)
async def test_a_ticket_becomes_one_lease_or_none(pair: Pair, stage: Stage, race: Race) -> None:
    """Two holders, or a lease on a task that was told to be cancelled or moved."""
    await assert_pair(pair, stage, race)


@pytest.mark.parametrize("pair", BEATING, ids=lambda pair: pair.name)
async def test_a_heartbeat_keeps_only_a_lease_that_lives(
    pair: Pair, stage: Stage, race: Race
) -> None:
    """A holder that is told `held` for a lease that was just taken away works in vain."""
    await assert_pair(pair, stage, race)
