"""Instants on their way through the driver: the same microsecond comes back, whenever it is."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duly.store.timestamp_codec import EXACT_MAX, KEPT_MAX, MICROSECONDS_BEFORE, Instants, written
from tests.store.world import World

LAST_EXACT = EXACT_MAX - MICROSECONDS_BEFORE - 1
ANY_INSTANT = st.datetimes(timezones=st.just(UTC))


@given(st.integers(LAST_EXACT - 10**13, LAST_EXACT + 10**13))
@example(-MICROSECONDS_BEFORE - 1)
@example(LAST_EXACT)
@example(LAST_EXACT + 1)
def test_no_microsecond_is_lost_where_doubles_grow_coarse(microseconds: int) -> None:
    assert written(Instants()[(microseconds,)]) == (microseconds,)


@given(ANY_INSTANT)
def test_what_is_written_is_read(instant: datetime) -> None:
    assert Instants()[written(instant)] == instant


def test_an_instant_of_another_zone_is_the_same_instant() -> None:
    here = datetime(2026, 3, 29, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    read = Instants()[written(here)]
    assert (read, read.tzinfo) == (here, UTC)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(TypeError):
        written(datetime.max)  # noqa: DTZ901 (that is the point)


def test_few_are_kept() -> None:
    instants = Instants()
    for microseconds in range(KEPT_MAX * 3):
        assert written(instants[(microseconds,)]) == (microseconds,)
        assert len(instants) <= KEPT_MAX


async def test_the_server_means_the_same(world: World) -> None:
    asked = [
        datetime(2026, 11, 16, 12, 30, 0, 999_999, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ]
    (row,) = await world.database.fetch(
        "SELECT $1::timestamptz[] AS back, ($1::timestamptz[])[1]::text AS text,"
        " NULL::timestamptz AS nothing",
        asked,
    )
    assert row["back"] == asked
    assert row["text"].startswith("2026-11-16 12:30:00.999999")
    assert row["nothing"] is None
