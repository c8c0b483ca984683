"""Preview: the very instants that will fire, reckoned here by hand for two famous zones."""

from typing import Any

import pytest

from tests.api.conftest import Front, Reply
from tests.api.scheduling import HOURLY

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def front(shared_front: Front) -> Front:
    """Shared: nothing is stored."""
    return shared_front


async def preview(front: Front, **asked: Any) -> Reply:
    return await front.call("POST", "/v1/schedules/preview", asked, key=front.producer)


def instants(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.body
    return [fire["at"] for fire in reply.json["fires"]]


async def test_the_hour_that_berlin_leaves_out_is_shifted_or_skipped(front: Front) -> None:
    """At 02:00 on 28 March 2027 the clocks go to 03:00: 02:30 does not exist."""
    asked = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "after": "2027-03-26T12:00:00Z"}
    shifted = await preview(front, **asked, count=3)
    assert instants(shifted) == [
        "2027-03-27T01:30:00Z",
        "2027-03-28T01:00:00Z",
        "2027-03-29T00:30:00Z",
    ]
    assert [fire["wall"] for fire in shifted.json["fires"]] == [
        "2027-03-27T02:30:00",
        "2027-03-28T02:30:00",
        "2027-03-29T02:30:00",
    ]
    gap, repeat = shifted.json["clock_changes"]
    assert (gap["kind"], gap["at"]) == ("gap", "2027-03-28T01:00:00Z")
    assert (gap["wall_before"], gap["wall_after"]) == ("2027-03-28T02:00:00", "2027-03-28T03:00:00")
    assert "fires once, at the end" in gap["effect"]
    assert (repeat["kind"], repeat["at"]) == ("repeat", "2027-10-31T01:00:00Z")
    assert "first pass" in repeat["effect"]
    skipped = await preview(front, **asked, count=3, dst_gap="skip")
    assert [fire["verdict"] for fire in skipped.json["fires"]] == [None, "SKIPPED_DST", None]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("first", ["2027-11-07T05:30:00Z"]),
        ("second", ["2027-11-07T06:30:00Z"]),
        ("both", ["2027-11-07T05:30:00Z", "2027-11-07T06:30:00Z"]),
    ],
)
async def test_the_hour_that_new_york_has_twice(
    front: Front, policy: str, expected: list[str]
) -> None:
    """At 02:00 on 7 November 2027 the clocks go back to 01:00: 01:30 comes twice."""
    reply = await preview(
        front,
        cron="30 1 * * *",
        timezone="America/New_York",
        dst_repeat=policy,
        after="2027-11-06T12:00:00Z",
        count=len(expected) + 1,
    )
    assert instants(reply) == [*expected, "2027-11-08T06:30:00Z"]
    first = reply.json["clock_changes"][0]
    assert (first["kind"], first["at"]) == ("repeat", "2027-11-07T06:00:00Z")
    assert [fire["at"] for fire in first["touched"]] == expected


async def test_a_rhythm_keeps_real_time_through_a_change(front: Front) -> None:
    """Every half hour is every half hour, whatever the clocks say."""
    reply = await preview(
        front,
        cron="*/30 * * * *",
        timezone="Europe/Berlin",
        after="2027-03-28T00:00:00Z",
        count=4,
    )
    assert instants(reply) == [
        "2027-03-28T00:30:00Z",
        "2027-03-28T01:00:00Z",
        "2027-03-28T01:30:00Z",
        "2027-03-28T02:00:00Z",
    ]
    assert reply.json["closest_s"] == 1800


async def test_bounds_exclusions_and_jitter_are_shown(front: Front) -> None:
    """A preview that leaves them out promises what will not happen."""
    reply = await preview(
        front,
        cron="0 8 * * *",
        jitter_s=600,
        exclude_dates=["2027-12-25"],
        after="2027-12-23T12:00:00Z",
        max_fires=3,
        count=10,
    )
    assert instants(reply) == [f"2027-12-{day}T08:00:00Z" for day in (24, 25, 26)]
    assert [fire["verdict"] for fire in reply.json["fires"]] == [None, "EXCLUDED", None]
    assert reply.json["fires"][0]["due_by"] == "2027-12-24T08:10:00Z"
    assert reply.json["clock_changes"] == []
    ended = await preview(front, cron="0 8 * * *", end_at="2400-01-01T00:00:00Z")
    assert len(instants(ended)) == 10


async def test_a_whole_definition_can_be_previewed_and_is_not_stored(front: Front) -> None:
    """A preview sends the very body that will be posted."""
    reply = await preview(front, **HOURLY, count=100)
    assert len(instants(reply)) == 100
    assert (await front.call("GET", "/v1/schedules")).json["items"] == []


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"cron": "@daily", "timezone": "../UTC"}, "/timezone"),
        ({"cron": "@daily", "count": 101}, "/count"),
        ({"cron": "@daily", "count": 0}, "/count"),
        ({"cron": "@daily", "after": "9999-12-31T00:00:00Z"}, "/after"),
        ({"cron": "@daily", "after": "0001-01-01T00:00:00+14:00"}, "/after"),
        ({"every_s": 60, "jitter_s": 61}, "/jitter_s"),
        ({}, "/cron"),
    ],
)
async def test_a_preview_is_refused_as_the_definition_would_be(
    front: Front, wrong: dict[str, Any], pointer: str
) -> None:
    """Shown as fine and refused at once is worse than refused at once."""
    reply = await preview(front, **wrong)
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    assert [error["pointer"] for error in reply.json["errors"]] == [pointer]
