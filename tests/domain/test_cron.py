"""The grammar: what is refused, with the field named, and what an accepted expression means."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from time import perf_counter

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.cron import CRON_CHARACTERS_MAX, CronProblem, FieldName, parse_cron
from duly.domain.wall_times import CronExpression, closest_s, next_wall
from tests.domain.cron_model import ModelCron
from tests.domain.cron_samples import CRONSIM_DIFFERS, random_expression

REFUSED: list[tuple[str, FieldName, str]] = [
    ("", "expression", "empty"),
    (" \t ", "expression", "empty"),
    ("*", "expression", "5 or 6 fields"),
    ("* * * *", "expression", "not 4"),
    ("* * * * * * *", "expression", "not 7"),
    ("0 0 * * *\n", "expression", "ASCII"),
    ("0 0 * * *\x00", "expression", "ASCII"),
    ("\ufeff0 0 * * *", "expression", "ASCII"),
    ("\u0665 0 * * *", "expression", "ASCII"),
    ("0 \u00b2 * * *", "expression", "ASCII"),
    ("0\u00a00 * * *", "expression", "ASCII"),
    ("0 0 * * \u017fun", "expression", "ASCII"),
    ("@reboot", "expression", "@yearly"),
    ("@every 5m", "expression", "@yearly"),
    ("@daily 0", "expression", "@yearly"),
    ("@", "expression", "@yearly"),
    ("0 " * 400, "expression", "longer than"),
    ("60 * * * *", "minute", "60 is not within 0 to 59"),
    ("-1 * * * *", "minute", "-1 is not a value"),
    ("1.5 * * * *", "minute", "1.5"),
    ("+5 * * * *", "minute", "+5"),
    ("1_0 * * * *", "minute", "1_0"),
    ("0x5 * * * *", "minute", "0X5"),
    ("99999999999999999999999 * * * *", "minute", "99999999999999999999... is not within"),
    ("*/0 * * * *", "minute", "the step 0 is not within 1 to 60"),
    ("*/00 * * * *", "minute", "the step 00"),
    ("*/61 * * * *", "minute", "the step 61"),
    ("*/-5 * * * *", "minute", "*/-5"),
    ("*/ * * * *", "minute", "*/"),
    ("/5 * * * *", "minute", "/5"),
    ("*/5/5 * * * *", "minute", "*/5/5"),
    ("5-1 * * * *", "minute", "5-1 runs backwards"),
    ("1-2-3 * * * *", "minute", "1-2-3"),
    ("1- * * * *", "minute", "1-"),
    ("*-5 * * * *", "minute", "*-5"),
    (", * * * *", "minute", "an empty item"),
    ("1,,2 * * * *", "minute", "an empty item"),
    ("1,2, * * * *", "minute", "an empty item"),
    ("** * * * *", "minute", "**"),
    ("*5 * * * *", "minute", "*5"),
    ("H * * * *", "minute", "H"),
    ("R * * * *", "minute", "R"),
    ("L * * * *", "minute", "L"),
    ("MON * * * *", "minute", "MON"),
    ("? * * * *", "minute", "write *"),
    ("0 24 * * *", "hour", "24 is not within 0 to 23"),
    ("0 23-1 * * *", "hour", "runs backwards"),
    ("0 */25 * * *", "hour", "the step 25"),
    ("0 9am * * *", "hour", "9AM"),
    ("0 0 0 * *", "day_of_month", "0 is not within 1 to 31"),
    ("0 0 32 * *", "day_of_month", "32"),
    ("0 0 ? * *", "day_of_month", "write *"),
    ("0 0 15W * *", "day_of_month", "15W"),
    ("0 0 W * *", "day_of_month", "W"),
    ("0 0 WL * *", "day_of_month", "WL"),
    ("0 0 L-3 * *", "day_of_month", "L"),
    ("0 0 L/2 * *", "day_of_month", "L"),
    ("0 0 5L * *", "day_of_month", "5L"),
    ("0 0 1#2 * *", "day_of_month", "1#2"),
    ("0 0 30 2 *", "day_of_month", "never fires"),
    ("0 0 31 FEB,APR,JUN,SEP,NOV *", "day_of_month", "never fires"),
    ("0 0 30,31 2 */2", "day_of_month", "never fires"),
    ("0 0 */31 * MON#2", "day_of_month", "never fires"),
    ("0 0 * 0 *", "month", "0 is not within 1 to 12"),
    ("0 0 * 13 *", "month", "13"),
    ("0 0 * JANUARY *", "month", "JANUARY"),
    ("0 0 * DEC-JAN *", "month", "runs backwards"),
    ("0 0 * MON *", "month", "MON"),
    ("0 0 * L *", "month", "L"),
    ("0 0 * * 8", "day_of_week", "8 is not within 0 to 7"),
    ("0 0 * * MONDAY", "day_of_week", "MONDAY"),
    ("0 0 * * FRI-SUN", "day_of_week", "FRI-SUN runs backwards"),
    ("0 0 * * MON#0", "day_of_week", "0 is not within 1 to 5"),
    ("0 0 * * MON#6", "day_of_week", "6 is not within 1 to 5"),
    ("0 0 * * MON#", "day_of_week", "MON#"),
    ("0 0 * * #2", "day_of_week", "#2"),
    ("0 0 * * MON-FRI#2", "day_of_week", "MON-FRI#2"),
    ("0 0 * * MON#2/2", "day_of_week", "MON#2/2"),
    ("0 0 * * L", "day_of_week", "L"),
    ("0 0 * * LW", "day_of_week", "LW"),
    ("0 0 * * 8L", "day_of_week", "8"),
    ("0 0 * * FRIL", "day_of_week", "FRIL"),
    ("0 0 * * ?", "day_of_week", "write *"),
    ("0 0 * * */8", "day_of_week", "the step 8"),
    ("60 0 0 * * *", "second", "60 is not within 0 to 59"),
    ("*/0 0 0 * * *", "second", "the step 0"),
    ("JAN 0 0 * * *", "second", "JAN"),
]
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(text: str) -> CronExpression:
    expression = parse_cron(text)
    assert isinstance(expression, CronExpression), expression
    return expression


def walls(text: str, start: datetime, count: int) -> list[datetime]:
    expression = parsed(text)
    found: list[datetime] = []
    wall_s = int(start.timestamp())
    while len(found) < count:
        following = next_wall(expression, wall_s)
        assert following is not None
        found.append(datetime.fromtimestamp(following, UTC))
        wall_s = following + 1
    return found


@pytest.mark.parametrize(("text", "field", "reason"), REFUSED)
def test_a_bad_expression_is_refused_with_its_field(
    text: str, field: FieldName, reason: str
) -> None:
    """What is accepted and means something else fires at the wrong time for years."""
    problem = parse_cron(text)
    assert isinstance(problem, CronProblem)
    assert problem.field == field
    assert reason in problem.reason
    assert len(problem.reason) < 120


@pytest.mark.parametrize(
    "text",
    [
        *("1," * 250 + "1 * * * *", "*/1," * 120 + "* * * * *", "9" * 500, "9" * 500 + " * * * *"),
        *("*" * 512, "-" * 500 + " * * * *", "1-" * 250 + " * * * *", "*/" * 250 + " * * * *"),
        *("0 0 * * " + "MON#5," * 80 + "X", "x" * 1_000_000, "* " * 100_000, "@" * 512),
    ],
)
def test_no_expression_takes_long_to_judge(text: str) -> None:
    """A door that thinks for seconds about one expression can be held shut with it."""
    taken_s = []
    for _ in range(5):
        started = perf_counter()
        parse_cron.__wrapped__(text)
        taken_s.append(perf_counter() - started)
    assert min(taken_s) < 0.005


def test_the_length_is_bounded_exactly() -> None:
    """At the bound it is read, one past it is not."""
    text = "0 0 * * *"
    longest = text + " " * (CRON_CHARACTERS_MAX - len(text))
    assert isinstance(parse_cron(longest), CronExpression)
    assert isinstance(parse_cron(longest + " "), CronProblem)


@given(st.text(alphabet="0123456789*/-,LW#?@ AMONFRIJ", max_size=40))
def test_any_text_gets_an_answer(text: str) -> None:
    """An exception at the door is a 500."""
    assert isinstance(parse_cron(text), CronExpression | CronProblem)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 JAN *"),
        ("@MONTHLY", "0 0 1 * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @hourly ", "0 * * * *"),
        ("0 0 * * 0", "0 0 * * 7"),
        ("0 0 * * sat-7", "0 0 * * 6,sun"),
        ("0 0 * jan-mar *", "0 0 * 1,2,3 *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("10-30/10 00 01 * *", "10,20,30 0 1 * *"),
        ("0\t0  *  * *", "0 0 * * *"),
        ("0 5 4 * * *", "5 4 * * *"),
        ("0 0 * * 5L,FRI#1", "0 0 * * 5#1,5L"),
        ("0 0 * * 7L", "0 0 * * 0L"),
        ("0 0 1,1,1 * *", "0 0 1 * *"),
    ],
)
def test_spellings_that_mean_the_same(text: str, same: str) -> None:
    """Each form of the grammar has one meaning."""
    assert walls(text, NEW_YEAR, 60) == walls(same, NEW_YEAR, 60)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0 0 L * *", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("0 0 LW * *", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("0 0 * * 5L", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("0 0 * * MON#2", ["2026-01-12", "2026-02-09", "2026-03-09"]),
        ("0 0 * * MON#5", ["2026-03-30", "2026-06-29", "2026-08-31"]),
        ("0 0 13 * FRI", ["2026-01-02", "2026-01-09", "2026-01-13"]),
        ("0 0 */2 * FRI", ["2026-01-09", "2026-01-23", "2026-02-13"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("0 0 29 2 */7", ["2032-02-29", "2060-02-29", "2088-02-29"]),
    ],
)
def test_days_are_found_as_documented(text: str, days: list[str]) -> None:
    """The last working day of a month is when people are paid."""
    assert [wall.date().isoformat() for wall in walls(text, NEW_YEAR, 3)] == days


def test_cronsim_and_the_model_agree_on_random_expressions() -> None:
    """Two other readings of the same text; the second is another author's."""
    random = Random(8)
    for _ in range(400):
        text = random_expression(random, with_seconds=random.random() < 0.3)
        if CRONSIM_DIFFERS.search(text):
            continue
        start = NEW_YEAR + timedelta(seconds=random.randrange(10 * 365 * 86400))
        if isinstance(parse_cron(text), CronProblem):
            with pytest.raises((CronSimError, StopIteration)):
                next(CronSim(text, start))
            continue
        simulated = CronSim(text, start - timedelta(seconds=1))
        given = walls(text, start, 5)
        assert given == [next(simulated) for _ in range(5)], text
        assert all(ModelCron(text).matches(wall) for wall in given), text


@given(st.integers(0, 10**6))
def test_the_closest_fires_are_a_lower_bound_that_is_reached(seed: int) -> None:
    """A limit on frequency that trusts a wrong bound lets a flood in."""
    random = Random(seed)
    times = random_expression(random, with_seconds=True).split()[:3]
    text = " ".join(times) + " * * *"
    found = walls(text, NEW_YEAR, 200)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(found)]
    assert min(gaps) >= closest_s(parsed(text))
    if found[-1] - found[0] > timedelta(days=2):
        assert min(gaps) == closest_s(parsed(text))
