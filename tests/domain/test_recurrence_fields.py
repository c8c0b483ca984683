"""Fields of a schedule: every problem at once, with its place, and defaults that are documented."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from time import perf_counter

import pytest

from duly.domain.recurrence import Interval, Recurrence
from duly.domain.recurrence_fields import (
    EVERY_S_MAX,
    EXCLUDE_DATES_MAX,
    RecurrenceFields,
    closest_fires_s,
    read_recurrence,
)

CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
NIGHTLY = RecurrenceFields(cron="0 2 * * *", timezone="Europe/Berlin")
MANY = tuple(date(2026, 1, 1) + timedelta(days=n) for n in range(EXCLUDE_DATES_MAX + 1))
NO_OFFSET = datetime.fromisoformat("2026-01-01T00:00:00")


def read(fields: RecurrenceFields) -> Recurrence:
    recurrence = read_recurrence(fields, CREATED_AT)
    assert isinstance(recurrence, Recurrence), recurrence
    return recurrence


def pointers(fields: RecurrenceFields) -> list[str]:
    problems = read_recurrence(fields, CREATED_AT)
    assert isinstance(problems, list)
    return [problem.pointer for problem in problems]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (RecurrenceFields(), ["/cron"]),
        (replace(NIGHTLY, every_s=60), ["/cron"]),
        (replace(NIGHTLY, cron="0 25 * * *"), ["/cron"]),
        (RecurrenceFields(every_s=0), ["/every_s"]),
        (RecurrenceFields(every_s=-60), ["/every_s"]),
        (RecurrenceFields(every_s=1.5), ["/every_s"]),
        (RecurrenceFields(every_s=float("nan")), ["/every_s"]),
        (RecurrenceFields(every_s=float("inf")), ["/every_s"]),
        (RecurrenceFields(every_s=EVERY_S_MAX + 1), ["/every_s"]),
        (replace(NIGHTLY, timezone="Europe/Atlantis"), ["/timezone"]),
        (replace(NIGHTLY, timezone="../../etc/passwd"), ["/timezone"]),
        (replace(NIGHTLY, dst_gap="jump", dst_repeat="thrice"), ["/dst_gap", "/dst_repeat"]),
        (replace(NIGHTLY, start_at=NO_OFFSET), ["/start_at"]),
        (replace(NIGHTLY, end_at=datetime(2500, 1, 1, tzinfo=UTC)), ["/end_at"]),
        (replace(NIGHTLY, start_at=datetime(1969, 1, 1, tzinfo=UTC)), ["/start_at"]),
        (
            replace(NIGHTLY, start_at=CREATED_AT, end_at=CREATED_AT - timedelta(seconds=1)),
            ["/end_at"],
        ),
        (replace(NIGHTLY, exclude_dates=MANY), ["/exclude_dates"]),
        (replace(NIGHTLY, cron="x", timezone="y", dst_gap="z"), ["/cron", "/timezone", "/dst_gap"]),
    ],
)
def test_every_problem_is_named_with_its_field(fields: RecurrenceFields, wrong: list[str]) -> None:
    """One problem at a time makes somebody try five times."""
    assert pointers(fields) == wrong


def test_the_reason_names_the_field_of_the_expression() -> None:
    """In five terse fields, "invalid" does not say which."""
    problems = read_recurrence(replace(NIGHTLY, cron="0 25 * * *"), CREATED_AT)
    assert isinstance(problems, list)
    assert problems[0].reason == "hour: 25 is not within 0 to 23"


def test_a_refusal_is_quick() -> None:
    """A zone that is looked for in every folder must not make the door slow."""
    taken_s = []
    for number in range(20):
        started = perf_counter()
        assert pointers(replace(NIGHTLY, cron=f"x{number}", timezone=f"Europe/X{number}"))
        taken_s.append(perf_counter() - started)
    assert sorted(taken_s)[5] < 0.005


def test_bounds_at_the_maximum_are_accepted() -> None:
    """A limit that is one too low is found by the customer who needs it."""
    assert read(RecurrenceFields(every_s=EVERY_S_MAX)).rule == Interval(EVERY_S_MAX, CREATED_AT)
    assert len(read(replace(NIGHTLY, exclude_dates=MANY[1:])).exclude_dates) == EXCLUDE_DATES_MAX
    assert read(replace(NIGHTLY, start_at=CREATED_AT, end_at=CREATED_AT)).start_at == CREATED_AT


def test_an_interval_is_anchored_at_its_start_or_its_creation() -> None:
    """An anchor that moves with an edit would fire twice within one interval."""
    start_at = datetime(2026, 5, 5, 12, tzinfo=UTC)
    assert read(RecurrenceFields(every_s=60)).rule == Interval(60, CREATED_AT)
    assert read(RecurrenceFields(every_s=60.0, start_at=start_at)).rule == Interval(60, start_at)


def test_how_close_fires_are_is_known_without_computing_them() -> None:
    """A tenant's limit on frequency is checked at the door."""
    assert closest_fires_s(read(RecurrenceFields(every_s=90))) == 90
    assert closest_fires_s(read(replace(NIGHTLY, cron="*/5 * * * *"))) == 300
    assert closest_fires_s(read(replace(NIGHTLY, cron="* * 2 * * *"))) == 1
