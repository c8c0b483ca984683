"""Rules of maps: how many items are made, and when a map fails."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.map_plan import (
    ITEMS_MAX,
    MADE_AT_ONCE,
    OPEN_MAX,
    Progress,
    failed_max,
    failure_detail,
    has_room,
    items_mark,
    next_items,
    open_max,
)
from duly.domain.node_spec import MapSpec


def spec(**fields: object) -> MapSpec:
    return MapSpec(**({"count": 1, "max_items": ITEMS_MAX} | fields))  # type: ignore[arg-type]


@given(
    total=st.integers(0, ITEMS_MAX),
    percent=st.integers(0, 10_000).map(lambda hundredths: hundredths / 100),
)
def test_a_percentage_is_tolerated_exactly(total: int, percent: float) -> None:
    """Reckoned with floats, 0.7 % of 1,000 items is six, and the seventh fails the run."""
    most = failed_max(spec(tolerated_percent=percent), total)
    assert most is not None
    exact = Fraction(str(percent))
    assert Fraction(most * 100) <= total * exact < Fraction((most + 1) * 100)


@pytest.mark.parametrize(
    ("fields", "total", "most"),
    [
        ({}, 10, 0),
        ({"tolerated": 3}, None, 3),
        ({"tolerated_percent": 0.7}, 1000, 7),
        ({"tolerated_percent": 100.0}, 3, 3),
        ({"tolerated_percent": 1.0}, None, None),
    ],
)
def test_what_may_fail_is_known_once_the_items_are(
    fields: dict[str, object], total: int | None, most: int | None
) -> None:
    """A percentage of the items that are there so far fails a stream at its first failure."""
    assert failed_max(spec(**fields), total) == most


def test_a_failure_says_how_many_and_of_how_many() -> None:
    """Without the figures, its reader has to count."""
    text = "3 of 200 items failed, and 2 are tolerated"
    assert failure_detail(spec(tolerated_percent=1.0), 200, 3) == text


@given(
    parallel=st.one_of(st.none(), st.integers(1, OPEN_MAX)),
    made=st.integers(0, 5000),
    known=st.integers(0, 5000),
    open_now=st.integers(0, OPEN_MAX),
)
def test_items_are_made_while_there_is_room_and_never_more(
    parallel: int | None, made: int, known: int, open_now: int
) -> None:
    """More than a commit takes, more than may be open, or more than there are."""
    asked = spec(max_parallel=parallel)
    progress = Progress(made, max(made, known), True, open_now, 0)
    count = next_items(asked, progress)
    assert 0 <= count <= MADE_AT_ONCE
    assert made + count <= progress.known
    assert count == 0 or open_now + count <= open_max(asked)
    assert has_room(asked, progress) == (count > 0)


@given(parallel=st.integers(1, OPEN_MAX))
def test_the_mark_is_crossed_from_above(parallel: int) -> None:
    """A mark that a full map does not exceed, or that is zero, is never crossed: it strands."""
    assert 1 <= items_mark(spec(max_parallel=parallel)) <= parallel
