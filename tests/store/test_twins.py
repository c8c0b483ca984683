"""Sums that exist twice, in Python and in SQL, are the same sum."""

from datetime import datetime, timedelta
from itertools import product
from random import Random
from uuid import RFC_4122, UUID

from duly.domain.ids import (
    EPOCH,
    is_node,
    key_shard,
    partition_bound,
    placement_time_of,
    shard_of,
    tenant_shard,
)
from duly.domain.limits import POOLS_PER_TENANT_MAX, PRIORITY_MAX
from duly.domain.task import host_of, timer_queue
from duly.domain.workflow import ParentCounts, WaitRule, WorkflowStop, fan_in, workflow_end
from tests.store.world import World


async def test_a_lane_is_the_same_in_sql(world: World) -> None:
    """A task armed in one lane and looked for in another is never found."""
    pools = [0, 1, 2, 3, 4, 999, POOLS_PER_TENANT_MAX]
    pairs = [(pool, priority) for pool in pools for priority in range(PRIORITY_MAX + 1)]
    rows = await world.database.fetch(
        "SELECT duly.timer_queue(pool, priority) AS queue"
        "  FROM unnest($1::smallint[], $2::smallint[]) AS pair(pool, priority)",
        [pool for pool, _ in pairs],
        [priority for _, priority in pairs],
    )
    assert [row["queue"] for row in rows] == [timer_queue(*pair) for pair in pairs]


async def test_the_host_of_a_webhook_is_the_same_in_sql(world: World) -> None:
    """A breaker that is open for one name and asked for by another holds nothing back."""
    random = Random(3)
    parts = [
        "http",
        "https",
        "://",
        ":",
        "/",
        "?",
        "#",
        "Example.ORG",
        "a",
        ":8080",
        "@",
        "",
        "[::1]",
    ]
    urls = ["".join(random.choices(parts, k=random.randrange(8))) for _ in range(2000)]
    rows = await world.database.fetch(
        "SELECT duly.host_of(url) AS host FROM unnest($1::text[]) AS url", urls
    )
    assert [row["host"] for row in rows] == [host_of(url) for url in urls]
    assert host_of("https://Example.org:8080/a?b=http://other/#c") == "example.org:8080"
    assert host_of(None) is host_of("no scheme") is host_of("http:///path") is None


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


async def test_the_shard_of_a_tenant_is_the_same_in_sql(world: World) -> None:
    """A task that SQL placed in a shard Python does not count there breaks the tenant's cap."""
    random = Random(2)
    tenants = [0, 1, 2, 2**31 - 1, *(random.randrange(2**31) for _ in range(300))]
    asked = [(t, 2**power, random.randrange(1024)) for t in tenants for power in range(7)]
    rows = await world.database.fetch(
        "SELECT duly.tenant_shard(tenant, spread, choice) AS shard"
        "  FROM unnest($1::integer[], $2::integer[], $3::integer[]) AS a(tenant, spread, choice)",
        *(list(column) for column in zip(*asked, strict=True)),
    )
    assert [row["shard"] for row in rows] == [tenant_shard(*each) for each in asked]


async def test_the_shard_of_a_key_is_the_same_in_sql(world: World) -> None:
    """A key looked for in another shard than it was claimed in stores its task twice."""
    keys = ["", "k", "customer:44921", "ü", "\U0001f600", "a:b", "1", *map(str, range(300))]
    rows = await world.database.fetch(
        "SELECT duly.key_shard($1, key) AS shard FROM unnest($2::text[]) AS key", 7, keys
    )
    assert [row["shard"] for row in rows] == [key_shard(7, key) for key in keys]


async def test_an_id_made_in_sql_is_read_in_python(world: World) -> None:
    """An id is an address: time, version, shard and variant must stand where Python looks."""
    instant = datetime(2026, 1, 15, 12, 0, 0, 123000, tzinfo=EPOCH.tzinfo)
    rows = await world.database.fetch(
        "SELECT duly.make_task_id($1, shard::smallint, gen_random_uuid()) AS id"
        "  FROM generate_series(0, 1023) AS shard ORDER BY shard",
        instant,
    )
    ids = [UUID(str(row["id"])) for row in rows]
    assert [shard_of(task_id) for task_id in ids] == list(range(1024))
    assert {placement_time_of(task_id) for task_id in ids} == {instant}
    assert {(task_id.version, task_id.variant) for task_id in ids} == {(7, RFC_4122)}
    assert {task_id.int >> 64 & 3 for task_id in ids} == {0}, "no node, and no callback"
    assert not any(map(is_node, ids))


async def test_wait_rules_and_ends_of_workflows_are_the_same_in_sql(world: World) -> None:
    """What `explain` says of a node, and what releases it, would be two opinions."""
    counts = [
        (rule, ParentCounts(pending, completed, failed, skipped))
        for rule in WaitRule
        for pending, completed, failed, skipped in product(range(3), repeat=4)
    ]
    rows = await world.database.fetch(
        "SELECT duly.fan_in(rule, pending, completed, failed, skipped) AS decision"
        "  FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])"
        "       AS asked(rule, pending, completed, failed, skipped)",
        [int(rule) for rule, _ in counts],
        *(list(column) for column in zip(*(parents for _, parents in counts), strict=True)),
    )
    assert [row["decision"] for row in rows] == [fan_in(*each) for each in counts]
    ends = list(product([None, *WorkflowStop], *[range(2)] * 3))
    rows = await world.database.fetch(
        "SELECT duly.workflow_end(reason, failed, cancelled, skipped) AS state"
        "  FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])"
        "       AS asked(reason, failed, cancelled, skipped)",
        *(list(column) for column in zip(*ends, strict=True)),
    )
    assert [row["state"] for row in rows] == [workflow_end(*each) for each in ends]
