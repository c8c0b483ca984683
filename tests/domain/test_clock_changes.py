"""What a preview says about the next clock changes is what then happens."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from duly.domain.clock_changes import TOUCHED_MAX, describe_changes
from duly.domain.recurrence import Recurrence
from duly.domain.recurrence_fields import RecurrenceFields, read_recurrence

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def schedule(cron: str | None, **fields: Any) -> Recurrence:
    written = RecurrenceFields(cron=cron, **{"timezone": "Europe/Berlin", **fields})
    recurrence = read_recurrence(written, JANUARY)
    assert isinstance(recurrence, Recurrence), recurrence
    return recurrence


@pytest.mark.parametrize(
    ("recurrence", "gap", "repeat"),
    [
        (schedule("30 2 * * *"), "fires once, at the end of it", "the first pass fires"),
        (schedule("30 2 * * *", dst_gap="skip", dst_repeat="second"), "skipped", "second pass"),
        (schedule("30 2 * * *", dst_repeat="both"), "fires once", "both passes fire"),
        # 02:00 and 03:00 are one that day: nothing at all would be the wrong thing to say.
        (schedule("0 2,3 * * *"), "fires once", "the first pass fires"),
        (schedule("0 2,3 * * *", dst_gap="skip"), "is skipped", "the first pass fires"),
        (schedule("0 12 * * *"), "none: ", "none: "),
        (schedule("*/10 * * * *"), "real-time spacing", "real-time spacing"),
        (schedule(None, every_s=60), "none: an interval", "none: an interval"),
        (schedule("30 2 * * *", exclude_dates=(date(2026, 3, 29),)), "excluded", "first pass"),
    ],
)
def test_both_changes_of_the_year_are_described(
    recurrence: Recurrence, gap: str, repeat: str
) -> None:
    """A surprise that is announced is a decision."""
    spring, autumn = describe_changes(recurrence, JANUARY)
    assert (spring.kind, autumn.kind) == ("gap", "repeat")
    assert spring.at == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert autumn.at == datetime(2026, 10, 25, 1, tzinfo=UTC)
    assert (spring.wall_before.hour, spring.wall_after.hour) == (2, 3)
    assert (autumn.wall_before.hour, autumn.wall_after.hour) == (3, 2)
    assert gap in spring.effect
    assert repeat in autumn.effect


def test_the_touched_occurrences_are_listed_up_to_a_bound() -> None:
    """A schedule for every second would fill the page with two hours of them."""
    spring, autumn = describe_changes(schedule("30 2 * * *", dst_repeat="both"), JANUARY)
    assert [each.at for each in spring.touched] == [spring.at]
    assert [each.wall.isoformat() for each in autumn.touched] == ["2026-10-25T02:30:00"] * 2
    spring, autumn = describe_changes(schedule("* * * * * *"), JANUARY)
    assert (len(spring.touched), len(autumn.touched)) == (0, TOUCHED_MAX)


def test_changes_are_those_after_the_instant() -> None:
    """At the very second of a change, the next one is another."""
    berlin = schedule("30 2 * * *")
    spring = describe_changes(berlin, JANUARY)[0].at
    assert [each.at.month for each in describe_changes(berlin, spring)] == [10, 3]
    assert describe_changes(schedule("0 0 * * *", timezone="Asia/Tokyo"), JANUARY) == []
    assert len(describe_changes(schedule("0 0 * * *", timezone="Africa/Casablanca"), JANUARY)) == 2
