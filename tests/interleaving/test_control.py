"""What people do to one task at the same moment: cancel, move, expire, replay, erase."""

import pytest

from duly.domain.states import Outcome
from tests.interleaving.calls import (
    NOTHING,
    cancel,
    expire,
    hasten,
    lease_by,
    postpone,
    promote,
    purge,
    purge_letter,
    reap,
    replay,
    settle_as,
)
from tests.interleaving.orders import Race
from tests.interleaving.pairs import Pair, assert_pair
from tests.interleaving.scenes import Stage

MOVED, CANCELLED = "moved", "cancelled"
ENDED, REQUESTED = "already_terminal", "cancel_requested"

CONTROLS = [
    Pair(
        "cancel and cancel",
        Stage.ready,
        cancel,
        cancel,
        {(CANCELLED, "already_cancelled"), ("already_cancelled", CANCELLED)},
    ),
    Pair(
        "cancel and cancel of a running task",
        Stage.running,
        cancel,
        cancel,
        {(REQUESTED, REQUESTED)},
    ),
    Pair(
        "cancel and postpone",
        Stage.ready,
        cancel,
        postpone,
        {(CANCELLED, MOVED), (CANCELLED, ENDED)},
    ),
    Pair(
        "cancel and run-now",
        Stage.scheduled,
        cancel,
        hasten,
        {(CANCELLED, MOVED), (CANCELLED, ENDED)},
    ),
    Pair(
        "cancel and expire",
        Stage.start_by_over,
        cancel,
        expire,
        {(CANCELLED, NOTHING), (ENDED, "expired")},
    ),
    Pair("postpone and promote", Stage.ready, postpone, promote, {(MOVED, MOVED)}),
    Pair(
        "promote and expire",
        Stage.start_by_over,
        promote,
        expire,
        {(MOVED, NOTHING), (ENDED, "expired")},
    ),
    Pair(
        "expire and expire",
        Stage.start_by_over,
        expire,
        expire,
        {("expired", NOTHING), (NOTHING, "expired")},
    ),
    Pair(
        "postpone and release",
        Stage.running,
        postpone,
        settle_as(Outcome.RELEASED),
        {("running", "settled again"), (MOVED, "settled again")},
        must_wait=False,
    ),
    Pair(
        "postpone and complete",
        Stage.running,
        postpone,
        settle_as(Outcome.COMPLETED),
        {("running", "settled COMPLETED"), (ENDED, "settled COMPLETED")},
        must_wait=False,
    ),
    Pair(
        "postpone and reap",
        Stage.expired,
        reap,
        postpone,
        {("settled again", "running"), ("settled again", MOVED)},
        must_wait=False,
    ),
]

LETTERS = [
    Pair(
        "replay and replay",
        Stage.dead,
        replay,
        replay,
        {("replayed", NOTHING), (NOTHING, "replayed")},
    ),
    Pair(
        "replay and purge of the letter",
        Stage.dead,
        replay,
        purge_letter,
        {("replayed", "purged"), (NOTHING, "purged")},
    ),
    Pair(
        "replay and erase",
        Stage.dead,
        replay,
        purge,
        {("replayed", "erased"), (NOTHING, "erased")},
    ),
    Pair(
        "purge of the letter and erase",
        Stage.dead,
        purge_letter,
        purge,
        {("purged", NOTHING), (NOTHING, "erased")},
    ),
]

ERASING = [
    Pair(
        "erase and erase",
        Stage.completed,
        purge,
        purge,
        {("erased", NOTHING), (NOTHING, "erased")},
    ),
    Pair(
        "erase and lease",
        Stage.ready,
        purge,
        lease_by("second"),
        {(NOTHING, "leased 1")},
        must_wait=False,
    ),
    Pair(
        "erase and cancel",
        Stage.ready,
        purge,
        cancel,
        {("erased", CANCELLED), (NOTHING, CANCELLED)},
        must_wait=False,
    ),
    *(
        Pair(
            f"erase and settle {outcome}",
            Stage.running,
            purge,
            settle_as(outcome, "personal"),
            answers,
            must_wait=False,
        )
        for outcome, answers in {
            Outcome.COMPLETED: {
                ("erased", "settled COMPLETED"),
                (NOTHING, "settled COMPLETED"),
            },
            Outcome.REJECTED: {("erased", "settled FAILED"), (NOTHING, "settled FAILED")},
            Outcome.RELEASED: {(NOTHING, "settled again")},
        }.items()
    ),
]


@pytest.mark.parametrize("pair", CONTROLS, ids=lambda pair: pair.name)
async def test_two_people_are_told_the_truth(pair: Pair, stage: Stage, race: Race) -> None:
    """A cancel that is answered and then undone by somebody's move."""
    await assert_pair(pair, stage, race)


@pytest.mark.parametrize("pair", LETTERS, ids=lambda pair: pair.name)
async def test_a_dead_letter_lives_again_once(pair: Pair, stage: Stage, race: Race) -> None:
    """Two clicks on replay that make two tasks, or a replay of what was just erased."""
    await assert_pair(pair, stage, race)


@pytest.mark.parametrize("pair", ERASING, ids=lambda pair: pair.name)
async def test_only_what_has_ended_is_erased(pair: Pair, stage: Stage, race: Race) -> None:
    """A live task that loses its payload, or personal data that outlives its tombstone."""
    await assert_pair(pair, stage, race)
