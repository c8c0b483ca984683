"""Sums that exist twice, in Python and in SQL, are the same sum."""

from datetime import datetime, timedelta
from random import Random

from duly.domain.ids import EPOCH, partition_bound
from duly.domain.limits import POOLS_PER_TENANT_MAX, PRIORITY_MAX
from duly.domain.task import lane_of
from tests.store.world import World


async def test_a_lane_is_the_same_in_sql(world: World) -> None:
    """A task armed in one lane and looked for in another is never found."""
    pools = [0, 1, 2, 3, 4, 999, POOLS_PER_TENANT_MAX]
    pairs = [(pool, priority) for pool in pools for priority in range(PRIORITY_MAX + 1)]
    rows = await world.database.fetch(
        "SELECT duly.lane_of(pool, priority) AS lane"
        "  FROM unnest($1::smallint[], $2::smallint[]) AS pair(pool, priority)",
        [pool for pool, _ in pairs],
        [priority for _, priority in pairs],
    )
    assert [row["lane"] for row in rows] == [lane_of(*pair) for pair in pairs]


async def test_the_bound_of_a_partition_is_the_same_in_sql(world: World) -> None:
    """A bound off by a millisecond puts an id between two months, where no partition is."""
    random = Random(1)
    instants = [EPOCH, EPOCH + timedelta(microseconds=999), EPOCH + timedelta(microseconds=1000)]
    instants += [EPOCH + timedelta(microseconds=random.randrange(10**17)) for _ in range(2000)]
    instants += [datetime(year, 1, 1, tzinfo=EPOCH.tzinfo) for year in range(1970, 9999, 7)]
    rows = await world.database.fetch(
        "SELECT duly.id_bound(instant) AS bound FROM unnest($1::timestamptz[]) AS instant",
        instants,
    )
    assert [row["bound"] for row in rows] == [partition_bound(instant) for instant in instants]
