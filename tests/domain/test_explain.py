"""Why a task has not run yet: the gates of dispatch, then the rest, in words that can be used."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.explain import (
    ERROR_CHARACTERS_MAX,
    LEVEL_FRESH_S,
    Explanation,
    LastAttempt,
    RateLevel,
    Situation,
    WaitReason,
    explain,
    next_token_at,
)
from duly.domain.gates import Gate, GateFacts, first_refusal, refusals
from duly.domain.states import State

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SOON, LATER = NOW + timedelta(seconds=5), NOW + timedelta(seconds=60)
BEFORE = NOW - timedelta(seconds=5)
ID = UUID(int=7)
READY = Situation(
    id=ID,
    state=State.READY,
    facts=GateFacts(now=NOW),
    slot=3,
    has_owner=True,
    max_attempts=5,
    due_at=BEFORE,
    workers=1,
    pool="default",
)
INSTANTS = st.sampled_from([None, BEFORE, NOW, SOON])
COUNTS = st.integers(0, 3)
BOUNDS = st.none() | st.integers(1, 3)
FACTS = st.builds(
    GateFacts,
    now=st.just(NOW),
    paused_by=st.sampled_from([None, "ann"]),
    start_by=INSTANTS,
    breaker_open_until=INSTANTS,
    transfer_until=INSTANTS,
    rate_ready_at=INSTANTS,
    in_flight=COUNTS,
    in_flight_max=BOUNDS,
    concurrency_key=st.sampled_from([None, "key"]),
    key_in_flight=COUNTS,
    key_limit=BOUNDS,
    lane_depth=COUNTS,
    lane_depth_max=BOUNDS,
)


def ready(**facts: Any) -> Situation:
    return replace(READY, facts=replace(READY.facts, **facts))


def closed(explanation: Explanation) -> list[Gate | WaitReason]:
    return [entry.gate for entry in explanation.entries if not entry.is_open]


@given(FACTS)
def test_explain_and_dispatch_agree_on_the_same_facts(facts: GateFacts) -> None:
    """A reason that is not the reason sends a person to the wrong place."""
    explanation = explain(replace(READY, facts=facts))
    refusal = first_refusal(facts)
    assert explanation.binding == (None if refusal is None else refusal.gate)
    told = [(entry.gate, entry.is_open) for entry in explanation.entries]
    assert told[: len(Gate)] == [(gate, answer is None) for gate, answer in refusals(facts)]
    assert [gate for gate, _ in told[len(Gate) :]] == list(WaitReason)
    if refusal is not None:
        assert refusal.reason in explanation.summary


@given(FACTS, st.booleans(), st.integers(0, 1))
def test_a_gate_binds_before_what_nobody_refused(
    facts: GateFacts, has_owner: bool, workers: int
) -> None:
    """The order of the answer is the order in which to act."""
    explanation = explain(replace(READY, facts=facts, has_owner=has_owner, workers=workers))
    expected: list[Gate | WaitReason] = [
        gate for gate, answer in refusals(facts) if answer is not None
    ]
    expected += [] if has_owner else [WaitReason.SLOT_WITHOUT_OWNER]
    expected += [] if workers else [WaitReason.NO_LIVE_WORKER]
    assert closed(explanation) == expected
    assert explanation.binding == (expected[0] if expected else None)


def test_a_task_that_nothing_holds_back_is_on_its_way() -> None:
    """Inventing a reason is worse than saying that there is none."""
    explanation = explain(replace(READY, ahead=1))
    assert (explanation.binding, explanation.estimate_at) == (None, NOW)
    assert explanation.summary == (
        "it is due since 2026-11-15T11:59:55Z, nothing holds it back, and it is on its way; "
        "1 task of its lane is ahead of it"
    )


def test_a_bounded_count_says_that_it_is_one() -> None:
    """A thousand that are a million make a promise of minutes where hours are due."""
    summary = explain(replace(READY, ahead=1000, ahead_max=1000)).summary
    assert "at least 1000 tasks of its lane are ahead of it" in summary


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"paused_by": "ann"}, None),
        ({"start_by": NOW}, None),
        ({"breaker_open_until": SOON}, SOON),
        ({"transfer_until": SOON}, SOON),
        ({"in_flight": 1, "in_flight_max": 1}, None),
        ({"lane_depth": 1, "lane_depth_max": 1}, None),
        ({"breaker_open_until": SOON, "transfer_until": LATER}, LATER),
        ({"breaker_open_until": SOON, "paused_by": "ann"}, None),
    ],
)
def test_the_estimate_is_the_last_known_instant_or_none(
    facts: dict[str, Any], expected: datetime | None
) -> None:
    """A time that rests on what somebody has yet to decide is no estimate."""
    assert explain(ready(**facts)).estimate_at == expected


def test_the_estimate_of_a_rate_counts_those_ahead() -> None:
    """The next token is for the first in line, not for the hundredth."""
    situation = replace(ready(rate_ready_at=SOON), ahead=20, dispatch_rate=4.0)
    assert explain(situation).estimate_at == SOON + timedelta(seconds=5)


def test_the_estimate_of_a_key_is_the_end_of_its_lease() -> None:
    """The holder of the key lets it go at the latest then, unless it still works."""
    facts = {"concurrency_key": "k", "key_in_flight": 1, "key_limit": 1}
    assert explain(replace(ready(**facts), key_free_at=SOON)).estimate_at == SOON
    assert explain(ready(**facts)).estimate_at is None


def test_before_it_is_due_only_what_will_still_stand_matters() -> None:
    """A full cap now says nothing about tomorrow; a pause does."""
    scheduled = replace(READY, state=State.SCHEDULED, due_at=SOON)
    full = replace(scheduled, facts=replace(READY.facts, in_flight=1, in_flight_max=1))
    assert (explain(full).binding, explain(full).estimate_at) == (WaitReason.NOT_DUE, SOON)
    assert "held back" not in explain(full).summary
    paused = replace(scheduled, facts=replace(READY.facts, paused_by="paused by ann"))
    assert (explain(paused).binding, explain(paused).estimate_at) == (WaitReason.NOT_DUE, None)
    assert explain(paused).summary.endswith("it will then be held back: paused by ann")


def test_a_long_error_does_not_drown_the_sentence() -> None:
    """Eight kilobytes of a stack are no summary; its first line often is."""
    last = LastAttempt("failed", 2, BEFORE, error="x" * 5000 + "\nat line 3")
    situation = replace(READY, state=State.SCHEDULED, due_at=SOON, last=last)
    summary = explain(situation).summary
    assert summary.startswith("attempt 2 of 5 failed at 2026-11-15T11:59:55Z (xxx")
    assert len(summary) < ERROR_CHARACTERS_MAX + 200
    assert "line 3" not in summary


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("snoozed", "it was put off by its worker"),
        ("released", "it was handed back by its worker"),
        ("lease_lost", "attempt 1 of 5 was lost at"),
        ("failed", "attempt 1 of 5 failed at"),
    ],
)
def test_what_came_before_is_told(outcome: str, words: str) -> None:
    """A retry looks like a delay to whoever does not know that it failed."""
    last = LastAttempt(outcome, 1, BEFORE)
    assert explain(replace(READY, last=last)).summary.startswith(words)


def test_a_lost_lease_without_an_owner_says_who_is_missing() -> None:
    """It looks as if it runs, and will do so until somebody starts a scheduler."""
    running = replace(
        READY, state=State.RUNNING, holder="w", started_at=BEFORE, lease_until=NOW, attempt=1
    )
    assert explain(running).binding is None
    lost = explain(replace(running, has_owner=False))
    assert lost.binding is WaitReason.SLOT_WITHOUT_OWNER
    assert closed(lost) == [WaitReason.SLOT_WITHOUT_OWNER]
    alive = replace(running, has_owner=False, lease_until=SOON)
    assert explain(alive).binding is None


def level(tokens: float, told_s_ago: float, rate: float = 2.0) -> RateLevel:
    return RateLevel(tokens, rate, 4.0, NOW - timedelta(seconds=told_s_ago))


@pytest.mark.parametrize(
    ("heard", "due_s_ago", "ahead", "waits_s"),
    [
        # Nothing was heard, or not lately, or it was not empty: full enough.
        (None, 9.0, 5, None),
        (level(0.0, LEVEL_FRESH_S + 1), 99.0, 5, None),
        (level(1.0, 1.0), 9.0, 5, None),
        # Empty a moment ago, and nobody else wants a token: it refills.
        (level(0.0, 0.25), 0.0, 0, 0.25),
        (level(0.0, 2.0), 0.0, 0, 0.0),
        # Empty while tasks waited: they took what came, and only the fraction is left.
        (level(0.5, 1.0), 0.0, 5, 0.25),
        (level(0.0, 1.25), 9.0, 0, 0.25),
    ],
)
def test_the_next_token_follows_from_what_was_last_heard(
    heard: RateLevel | None, due_s_ago: float, ahead: int, waits_s: float | None
) -> None:
    """A bucket told empty three seconds ago looks full by now, unless others wait for it."""
    due_at = NOW - timedelta(seconds=due_s_ago)
    expected = None if waits_s is None else NOW + timedelta(seconds=waits_s)
    assert next_token_at(heard, NOW, due_at, ahead) == expected
