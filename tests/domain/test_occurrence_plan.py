"""What becomes of due occurrences: each gets one verdict, whatever the policies and the batches."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.occurrence_plan import (
    FIRES_MAX,
    GRACE_S,
    RULINGS_MAX,
    DecidedOccurrence,
    FiringPlan,
    Misfire,
    OccurrenceDecision,
    Overlap,
    Policies,
    ScheduleProgress,
    plan_firing,
)
from duly.domain.recurrence import Recurrence, next_occurrences
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence

START = datetime(2026, 3, 1, tzinfo=UTC)
MISFIRES: list[Misfire] = ["fire_all", "coalesce", "skip"]
OVERLAPS: list[Overlap] = ["allow", "skip", "queue_one", "cancel_previous"]


def recurrence(**fields: object) -> Recurrence:
    found = read_recurrence(RecurrenceFields(**fields), START)  # type: ignore[arg-type]
    assert isinstance(found, Recurrence)
    return found


def catch_up(
    rule: Recurrence,
    policies: Policies,
    now: datetime,
    progress: ScheduleProgress,
    offset_s: float = 0.0,
) -> list[DecidedOccurrence]:
    """Batch by batch, until nothing is due; no task ever ends."""
    found: list[DecidedOccurrence] = []
    while True:
        plan = plan_firing(rule, policies, progress, offset_s, now)
        found += plan.decisions
        fires = progress.fires + sum(ruling.fires for ruling in plan.decisions)
        progress = ScheduleProgress(plan.cursor_at, fires, progress.live, progress.is_paused)
        if plan.next_at is None or plan.next_at + timedelta(seconds=offset_s) > now:
            return found
        assert plan.decisions, "a batch that rules on nothing would go on for ever"


@given(
    every_s=st.sampled_from([1, 7, 60, 3600]),
    away_s=st.integers(0, 4000),
    misfire=st.sampled_from(MISFIRES),
    overlap=st.sampled_from(OVERLAPS),
    live=st.integers(0, 3),
    offset_s=st.sampled_from([0.0, 0.5]),
    is_paused=st.booleans(),
)
def test_every_due_occurrence_gets_exactly_one_verdict(
    every_s: int,
    away_s: int,
    misfire: Misfire,
    overlap: Overlap,
    live: int,
    offset_s: float,
    is_paused: bool,
) -> None:
    """An occurrence without a verdict is a run that was lost silently."""
    rule = recurrence(every_s=every_s)
    now = START + timedelta(seconds=away_s)
    progress = ScheduleProgress(START, 0, live, is_paused)
    decisions = catch_up(rule, Policies(misfire, 600.0, overlap), now, progress, offset_s)
    offset = timedelta(seconds=offset_s)
    due = [each.at for each in next_occurrences(rule, START, 5000) if each.at + offset <= now]
    assert [ruling.nominal_at for ruling in decisions] == due
    if is_paused:
        assert {ruling.verdict for ruling in decisions} <= {OccurrenceDecision.SKIPPED_PAUSED}


def test_a_bite_is_bounded_and_the_next_goes_on_where_it_stopped() -> None:
    """A year of seconds in one statement would be one that never ends."""
    rule = recurrence(every_s=1)
    now = START + timedelta(days=2)
    plan = plan_firing(rule, Policies("skip"), ScheduleProgress(START), 0.0, now)
    assert len(plan.decisions) <= RULINGS_MAX
    assert plan.next_at == plan.cursor_at + timedelta(seconds=1)
    firing = plan_firing(rule, Policies("fire_all", 3 * 86400.0), ScheduleProgress(START), 0.0, now)
    assert sum(ruling.fires for ruling in firing.decisions) == FIRES_MAX


def test_coalesce_fires_the_newest_across_bites() -> None:
    """Each batch for itself would fire once: a herd in small."""
    rule = recurrence(every_s=1)
    now = START + timedelta(seconds=3 * RULINGS_MAX)
    decisions = catch_up(rule, Policies("coalesce"), now, ScheduleProgress(START))
    assert [ruling.fires for ruling in decisions] == [False] * (len(decisions) - 1) + [True]


def test_coalesce_fires_although_the_newest_days_are_excluded() -> None:
    """What was folded into an occurrence that does not fire would be lost."""
    days = tuple((START + timedelta(days=n)).date() for n in (9, 10))
    rule = recurrence(cron="0 12 * * *", exclude_dates=days)
    plan = plan_firing(
        rule,
        Policies("coalesce"),
        ScheduleProgress(START),
        0.0,
        START + timedelta(days=10, hours=13),
    )
    assert verdicts(plan)[-3:] == [
        OccurrenceDecision.LATE,
        OccurrenceDecision.EXCLUDED,
        OccurrenceDecision.EXCLUDED,
    ]
    assert set(verdicts(plan)[:-3]) == {OccurrenceDecision.COALESCED}


def test_coalesce_fires_once_across_an_excluded_day() -> None:
    """A lone occurrence before a day of excluded ones would be taken for the newest."""
    rule = recurrence(cron="* * * * *", exclude_dates=((START + timedelta(days=1)).date(),))
    away = ScheduleProgress(START + timedelta(hours=20))
    now = START + timedelta(days=2, hours=8)
    decisions = catch_up(rule, Policies("coalesce"), now, away)
    assert [ruling.nominal_at for ruling in decisions if ruling.fires] == [now]


@pytest.mark.parametrize(
    ("late_s", "misfire", "expected"),
    [
        (GRACE_S, "skip", OccurrenceDecision.FIRED),
        (GRACE_S + 1, "skip", OccurrenceDecision.SKIPPED_MISFIRE),
        (GRACE_S + 1, "fire_all", OccurrenceDecision.LATE),
        (601.0, "fire_all", OccurrenceDecision.SKIPPED_MISFIRE),
        (86400.0, "coalesce", OccurrenceDecision.LATE),
    ],
)
def test_how_late_is_too_late(
    late_s: float, misfire: Misfire, expected: OccurrenceDecision
) -> None:
    """A bound that is off by one policy runs old work, or drops new."""
    rule = recurrence(cron="0 12 1 3 *")
    now = START + timedelta(hours=12, seconds=late_s)
    plan = plan_firing(rule, Policies(misfire, 600.0), ScheduleProgress(START), 0.0, now)
    assert verdicts(plan) == [expected]


def test_a_spent_schedule_has_no_next_instant() -> None:
    """It would be looked at for ever."""
    plan = plan_firing(
        recurrence(every_s=60),
        Policies(max_fires=1),
        ScheduleProgress(START),
        0.0,
        START + timedelta(seconds=60),
    )
    assert verdicts(plan) == [OccurrenceDecision.FIRED]
    assert plan.next_at is None


def test_a_skipped_gap_is_on_record() -> None:
    """The hour that does not exist must be told from an hour that was forgotten."""
    rule = recurrence(cron="30 2 * * *", timezone="Europe/Berlin", dst_gap="skip")
    now = datetime(2026, 3, 29, 12, tzinfo=UTC)
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert verdicts(plan_firing(rule, Policies(), ScheduleProgress(after), 0.0, now)) == [
        OccurrenceDecision.SKIPPED_DST
    ]


def verdicts(plan: FiringPlan) -> list[OccurrenceDecision]:
    return [ruling.verdict for ruling in plan.decisions]
