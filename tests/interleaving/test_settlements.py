"""Settlements and reapers against cancels, each other, and themselves."""

import pytest

from duly.domain.states import Outcome
from tests.interleaving.calls import NOTHING, cancel, reap, settle_as
from tests.interleaving.orders import Race
from tests.interleaving.pairs import Pair, assert_pair
from tests.interleaving.scenes import Stage

COMPLETED, FAILED, CANCELLED = "settled COMPLETED", "settled FAILED", "settled CANCELLED"
AGAIN = "settled again"
complete = settle_as(Outcome.COMPLETED)
fail = settle_as(Outcome.FAILED, "boom")

# For each end: what a cancel that came first makes of it, and what one that came later is told.
ENDS_AND_CANCELS = [
    ("completed", Stage.running, Outcome.COMPLETED, COMPLETED, COMPLETED, "already_terminal"),
    ("failed, tried again", Stage.running, Outcome.FAILED, CANCELLED, AGAIN, "cancelled"),
    ("failed for good", Stage.last_try, Outcome.FAILED, CANCELLED, FAILED, "already_terminal"),
    ("rejected", Stage.running, Outcome.REJECTED, CANCELLED, FAILED, "already_terminal"),
    ("released", Stage.running, Outcome.RELEASED, CANCELLED, AGAIN, "cancelled"),
    ("snoozed", Stage.running, Outcome.SNOOZED, CANCELLED, AGAIN, "cancelled"),
    ("cancelled", Stage.running, Outcome.CANCELLED, CANCELLED, CANCELLED, "already_cancelled"),
]
CANCELLING = [
    Pair(
        f"{name} and cancel",
        setting,
        settle_as(outcome),
        cancel,
        {(after_cancel, "cancel_requested"), (before_cancel, told_later)},
    )
    for name, setting, outcome, after_cancel, before_cancel, told_later in ENDS_AND_CANCELS
]

REAPING = [
    *(
        Pair(
            f"reap and settle {outcome}",
            Stage.expired,
            reap,
            settle_as(outcome),
            {(AGAIN, "stale"), (NOTHING, settled)},
            left_may_pass=True,
        )
        for outcome, settled in {
            Outcome.COMPLETED: COMPLETED,
            Outcome.FAILED: AGAIN,
            Outcome.REJECTED: FAILED,
            Outcome.RELEASED: AGAIN,
            Outcome.SNOOZED: AGAIN,
            Outcome.CANCELLED: CANCELLED,
        }.items()
    ),
    Pair(
        "reap and release of a task to be cancelled",
        Stage.doomed,
        reap,
        settle_as(Outcome.RELEASED),
        {(CANCELLED, "stale"), (NOTHING, CANCELLED)},
        left_may_pass=True,
    ),
    Pair(
        "look at a living lease and release",
        Stage.prolonged,
        reap,
        settle_as(Outcome.RELEASED),
        {(NOTHING, AGAIN)},
        left_may_pass=True,
    ),
    Pair(
        "look at a living lease and complete",
        Stage.prolonged,
        reap,
        complete,
        {(NOTHING, COMPLETED)},
        left_may_pass=True,
    ),
    Pair(
        "reap and reap",
        Stage.expired,
        reap,
        reap,
        {(AGAIN, NOTHING), (NOTHING, AGAIN)},
    ),
    Pair(
        "reap and reap of a task to be cancelled",
        Stage.doomed,
        reap,
        reap,
        {(CANCELLED, NOTHING), (NOTHING, CANCELLED)},
    ),
    Pair(
        "reap and cancel",
        Stage.expired,
        reap,
        cancel,
        {(AGAIN, "cancelled"), (CANCELLED, "cancel_requested"), (NOTHING, "cancel_requested")},
        left_may_pass=True,
    ),
]

REPEATING = [
    Pair(
        "completed twice",
        Stage.running,
        complete,
        complete,
        {(COMPLETED, "replay"), ("replay", COMPLETED)},
    ),
    Pair(
        "failed twice in the same words",
        Stage.running,
        fail,
        fail,
        {(AGAIN, "replay"), ("replay", AGAIN)},
    ),
    Pair(
        "failed twice in other words",
        Stage.running,
        fail,
        settle_as(Outcome.FAILED, "bang"),
        {(AGAIN, "stale"), ("stale", AGAIN)},
    ),
    Pair(
        "failed for good twice",
        Stage.last_try,
        fail,
        fail,
        {(FAILED, "replay"), ("replay", FAILED)},
    ),
    Pair(
        "completed and failed",
        Stage.running,
        complete,
        fail,
        {(COMPLETED, "stale"), ("stale", AGAIN)},
    ),
    Pair(
        "completed and released",
        Stage.running,
        complete,
        settle_as(Outcome.RELEASED),
        {(COMPLETED, "stale"), ("stale", AGAIN)},
    ),
]


@pytest.mark.parametrize("pair", CANCELLING, ids=lambda pair: pair.name)
async def test_an_end_and_a_cancel_agree_on_who_was_first(
    pair: Pair, stage: Stage, race: Race
) -> None:
    """A retry after a promised cancel, or a completed task that is later called cancelled."""
    await assert_pair(pair, stage, race)


@pytest.mark.parametrize("pair", REAPING, ids=lambda pair: pair.name)
async def test_a_lost_lease_ends_once(pair: Pair, stage: Stage, race: Race) -> None:
    """A reaper that undoes a settlement, or counts one lost lease twice."""
    await assert_pair(pair, stage, race)


@pytest.mark.parametrize("pair", REPEATING, ids=lambda pair: pair.name)
async def test_one_lease_is_settled_once(pair: Pair, stage: Stage, race: Race) -> None:
    """A repeated settlement that charges twice, or a contradiction that both sides believe."""
    await assert_pair(pair, stage, race)
