"""Numbers over HTTP: they add up, they are one tenant's alone, and a look is bounded."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duly.domain.histogram import index_of
from duly.domain.lanes import Ticket
from duly.domain.task import Submission
from duly.store.breakers import open_breaker
from duly.store.cluster import read_tenant_status
from duly.store.lease import lease_tasks
from duly.store.stats import read_points
from duly.store.submit import Stored, Submitter
from tests.api.conftest import Front
from tests.api.letters import HOLDER, fail, fail_many

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADD_MINUTE = """
INSERT INTO duly.stats (minute, tenant, type, submitted, started, completed, failed, retried, lag,
                        run_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""


def histogram(seconds: float, count: int) -> list[int]:
    return [0] * index_of(seconds) + [count]


async def add_minute(
    front: Front,
    minute: datetime,
    numbers: Sequence[int] = (5, 4, 3, 2, 1),
    task_type: str = "a",
    tenant: int | None = None,
    lag_s: float = 1.0,
) -> None:
    await front.database.fetch(
        ADD_MINUTE,
        minute,
        tenant or front.tenant.id,
        task_type,
        *numbers,
        histogram(lag_s, numbers[1]),
        histogram(10.0, numbers[1]),
    )


async def stats(front: Front, query: str) -> Any:
    reply = await front.call("GET", f"/v1/stats?{query}", key=front.producer)
    assert reply.status == 200, reply.body
    return reply.json


async def test_minutes_add_up_to_steps_and_a_total(front: Front) -> None:
    """A sum over types that counts one twice, or a minute that falls between two steps."""
    await add_minute(front, NOON)
    await add_minute(front, NOON, task_type="b", lag_s=100.0)
    await add_minute(front, NOON + timedelta(minutes=4))
    await add_minute(front, NOON + timedelta(minutes=5))
    await add_minute(front, NOON - timedelta(minutes=1))
    await add_minute(front, NOON + timedelta(minutes=10))
    await add_minute(front, NOON, tenant=front.other.id)
    found = await stats(
        front, "from=2026-03-01T12:00:00Z&to=2026-03-01T13:10:00%2B01:00&step_s=300"
    )
    assert (found["from"], found["to"]) == ("2026-03-01T12:00:00Z", "2026-03-01T12:10:00Z")
    counts = [(item["at"], item["submitted"], item["started"]) for item in found["items"]]
    assert counts == [("2026-03-01T12:00:00Z", 15, 12), ("2026-03-01T12:05:00Z", 5, 4)]
    total = found["total"]
    assert (total["submitted"], total["started"], total["completed"]) == (20, 16, 12)
    assert (total["failed"], total["retried"]) == (8, 4)


async def test_quantiles_come_from_all_of_a_step(front: Front) -> None:
    """The mean of two medians is the median of nothing."""
    await add_minute(front, NOON, (0, 90, 0, 0, 0), lag_s=1.0)
    await add_minute(front, NOON + timedelta(minutes=1), (0, 10, 0, 0, 0), lag_s=100.0)
    found = await stats(front, "from=2026-03-01T12:00:00Z&to=2026-03-01T12:10:00Z&step_s=600")
    (item,) = found["items"]
    assert item["lag_p50_s"] == pytest.approx(1.0, rel=0.5)
    assert item["lag_p99_s"] == pytest.approx(100.0, rel=0.5)
    assert item["run_p50_s"] == pytest.approx(10.0, rel=0.5)
    assert found["total"]["lag_p99_s"] == item["lag_p99_s"]


async def test_one_type_alone(front: Front) -> None:
    """The question after every incident: was it this type, or all of them?"""
    for name in ("a", "b", "c"):
        await add_minute(front, NOON, task_type=name)
    span = "from=2026-03-01T12:00:00Z&to=2026-03-01T12:10:00Z"
    assert (await stats(front, f"{span}&type=b"))["total"]["submitted"] == 5
    assert (await stats(front, f"{span}&type=bb"))["items"] == []
    assert (await stats(front, span))["total"]["submitted"] == 15


async def test_without_a_range_it_is_the_last_hour(front: Front) -> None:
    """What a person who looks in a hurry means."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    await add_minute(front, now)
    await add_minute(front, now - timedelta(minutes=62))
    found = await stats(front, "")
    assert found["total"]["submitted"] == 5
    assert found["total"]["lag_p50_s"] is not None
    empty = (await front.call("GET", "/v1/stats", key=front.other_producer)).json
    assert (empty["items"], empty["total"]["lag_p50_s"]) == ([], None)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=2026-03-01T12:00:00Z&to=2026-03-02T12:00:00Z", 200),
        ("from=2026-03-01T12:00:00Z&to=2026-03-02T12:01:00Z", 400),
        ("from=2026-03-01T12:00:00Z&to=2026-03-01T12:00:00Z", 400),
        ("to=0001-01-01T00:00:00%2B14:00", 400),
        ("from=0001-01-01T00:00:00%2B14:00", 400),
        ("to=9999-12-31T23:59:59Z", 400),
        ("from=9999-12-31T23:59:59-14:00", 400),
        ("from=2026-03-01T12:00:00", 400),
        ("step_s=59", 400),
        ("step_s=90", 400),
        ("step_s=86400", 200),
        ("step_s=86460", 400),
        ("type=A", 400),
        ("types=a", 400),
        ("from=null", 400),
    ],
)
async def test_a_range_has_a_bounded_number_of_points(
    front: Front, query: str, status: int
) -> None:
    """A year in minutes would be half a million points, and an instant may be none at all."""
    reply = await front.call("GET", f"/v1/stats?{query}", key=front.producer)
    assert reply.status == status, reply.body
    if status == 400:
        assert reply.code == "invalid_query"


async def test_too_much_to_add_up_is_refused_and_never_answered_in_part(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of some of the minutes looks like a sum, and is wrong."""
    for name in ("a", "b", "c"):
        await add_minute(front, NOON, task_type=name)
    last = NOON + timedelta(minutes=1)
    for most, expected in ((3, 1), (2, None)):
        points = await read_points(front.database, front.tenant.id, NOON, last, 60, rows_max=most)
        assert (points if points is None else len(points)) == expected
    monkeypatch.setattr("duly.store.stats.read_points.__defaults__", (None, 2))
    span = "from=2026-03-01T12:00:00Z&to=2026-03-01T12:10:00Z"
    reply = await front.call("GET", f"/v1/stats?{span}", key=front.producer)
    assert (reply.status, reply.code) == (400, "invalid_query")
    assert (await front.call("GET", f"/v1/stats?{span}&type=a")).status == 200


async def submit(front: Front, count: int, tenant: int | None = None, **fields: Any) -> list[Any]:
    wish = Submission(tenant=tenant or front.tenant.id, type="a", **fields)
    return await Submitter(front.database, front.environment).submit([wish] * count)


async def test_now_says_what_waits_runs_and_failed(front: Front) -> None:
    """The screen that somebody looks at while the phone rings."""
    await submit(front, 3, priority=9)
    await submit(front, 2, priority=0, delay_s=3600)
    (leased, _) = await submit(front, 2, pool="other")
    assert isinstance(leased, Stored)
    await lease_tasks(front.database, front.environment, HOLDER, [Ticket(leased.id, 0)], 60)
    await submit(front, 7, tenant=front.other.id)
    await fail_many(front, 2)
    await fail(front, tenant=front.other.id)
    replayed = await fail(front)
    await front.call("POST", f"/v1/dead-letters/{replayed}/replay", key=front.operator)
    await open_breaker(front.database, front.tenant.id, "example.com", 60, "500 500 500")
    await open_breaker(front.database, front.tenant.id, "closed.example.com", 0, "x")
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    await add_minute(front, minute, (30, 60, 6, 0, 0))
    now = (await front.call("GET", "/v1/stats/now", key=front.producer)).json
    bands = [(band["band"], band["ready"], band["scheduled"]) for band in now["bands"]]
    assert bands == [("high", 3, 0), ("normal", 2, 0), ("low", 0, 2)]
    assert [band["oldest_ready_s"] is None for band in now["bands"]] == [False, False, True]
    assert now["bands"][0]["oldest_ready_s"] >= now["bands"][1]["oldest_ready_s"] >= 0
    assert (now["in_flight"], now["dead_letters"]) == (1, 2)
    assert [breaker["host"] for breaker in now["breakers"]] == ["example.com"]
    # Five minutes and a part of one.
    assert 60 / 360 <= now["started_per_s"] <= 60 / 300
    assert now["drain_s"] == pytest.approx(5 / now["started_per_s"])
    assert now["submitted_per_s"] == pytest.approx(now["started_per_s"] / 2)
    assert now["ended_per_s"] == pytest.approx(now["started_per_s"] / 10)
    assert now["workflow_overdue_s"] == 0.0
    assert now["lag_p50_s"] == pytest.approx(1.0, rel=0.5)


async def test_now_of_an_idle_tenant_is_all_zeros(front: Front) -> None:
    """Nothing to divide by, and nothing to divide."""
    now = (await front.call("GET", "/v1/stats/now", key=front.producer)).json
    assert [(band["ready"], band["oldest_ready_s"]) for band in now["bands"]] == [(0, None)] * 3
    assert (now["drain_s"], now["started_per_s"], now["lag_p50_s"]) == (0.0, 0.0, None)
    await submit(front, 1)
    now = (await front.call("GET", "/v1/stats/now", key=front.producer)).json
    assert now["drain_s"] is None


async def test_a_count_stops_at_its_bound(front: Front) -> None:
    """With a million tasks stored, a look must cost what it costs with a thousand."""
    await submit(front, 5)
    await submit(front, 5, pool="other")
    await submit(front, 5, delay_s=60)
    await fail_many(front, 5)
    for most, expected in ((3, (3, 3, 3)), (9, (9, 5, 5)), (100, (10, 5, 5))):
        async with front.database.tenant(front.tenant.id) as session:
            standing = await read_tenant_status(session, front.tenant.id, most)
        depth = standing.depths[1]
        assert (depth.ready, depth.scheduled, standing.dead_letters) == expected


@pytest.mark.parametrize("path", ["/v1/stats", "/v1/stats/now"])
async def test_numbers_are_not_for_workers_or_strangers(front: Front, path: str) -> None:
    """How much somebody does is their affair."""
    assert (await front.call("GET", path, key=front.worker)).status == 403
    assert (await front.call("GET", path, key=None)).status == 401
    other = await front.call("GET", f"{path}?tenant=other", key=front.producer)
    assert (other.status, other.code) == (404, "not_found")
    assert (await front.call("GET", f"{path}?tenant=other")).status == 200


async def test_the_tenants_that_wait_longest_come_first(front: Front) -> None:
    """An operator asks who is late; a list by name makes them read all of it."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    await add_minute(front, now, lag_s=0.1)
    await add_minute(front, now - timedelta(minutes=1), lag_s=0.1)
    await add_minute(front, now, tenant=front.other.id, lag_s=30.0)
    await add_minute(front, now - timedelta(minutes=20), task_type="old", lag_s=900.0)
    reply = await front.call("GET", "/v1/stats/tenants")
    late, prompt = reply.json["items"]
    assert (late["tenant"], late["started"]) == ("other", 4)
    assert (prompt["tenant"], prompt["started"]) == ("default", 8)
    assert late["lag_p99_s"] > 20 > prompt["lag_p99_s"]
    refused = await front.call("GET", "/v1/stats/tenants", key=front.operator)
    assert refused.status == 403
