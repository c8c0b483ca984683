"""Looks of operators under row-level security, which limits what an index may decide."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from duly.store import cluster, dead_letters, forecast, read, stats, workflow_compensations
from duly.store.database import Database
from tests.plans.explain import Node, parse_plan

TENANT = 1
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LETTER = UUID(int=1)
EXPLAIN = "EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) "
LETTERS = dead_letters.SQL
# By its key or by the tenant's own order; each with what the index itself must find.
LOOKS: dict[str, tuple[str, list[Any], str, str, tuple[str, ...]]] = {
    "read_depths": (
        cluster.SQL.read_depths,
        [TENANT, 10, 10],
        "timers",
        "timers_due",
        ("tenant", "shard", "queue", "due_at"),
    ),
    "list_live (not yet due)": (
        read.SQL.list_live,
        [TENANT, NOW, LETTER, False, 10],
        "timers",
        "timers_due",
        ("tenant", "shard", "queue", "due_at"),
    ),
    "list_waiting": (
        read.SQL.list_waiting,
        [TENANT, LETTER, 10],
        "timers",
        "timers_due",
        ("tenant", "shard", "queue", "due_at", "id"),
    ),
    "count_waiting": (
        forecast.SQL.count_waiting,
        [TENANT, NOW, NOW, 10, 10],
        "timers",
        "timers_due",
        ("tenant", "shard", "queue", "due_at"),
    ),
    "count_rules": (
        forecast.SQL.count_rules,
        [TENANT, NOW, NOW, 10, 10],
        "schedules",
        "schedules_of_tenant",
        ("tenant",),
    ),
    "read_points": (
        stats.SQL.read_points,
        [TENANT, NOW, NOW, None, 60, 10],
        "stats",
        "stats_pkey",
        ("tenant", "type"),
    ),
    "count_letters": (
        cluster.SQL.count_letters,
        [TENANT, 10],
        "dead_letters",
        "dead_letters_of_tenant",
        ("tenant",),
    ),
    "list_dead_letters": (
        LETTERS.list_dead_letters,
        [TENANT, NOW, LETTER, None, None, None, None, 10],
        "dead_letters",
        "dead_letters_of_tenant",
        ("tenant", "failed_at"),
    ),
    "read_dead_letter": (
        LETTERS.read_dead_letter,
        [TENANT, 0, LETTER],
        "dead_letters",
        "dead_letters_pkey",
        ("shard", "id"),
    ),
    "find_dead_letters": (
        LETTERS.find_dead_letters,
        [TENANT, [0], [LETTER], None],
        "dead_letters",
        "dead_letters_pkey",
        ("shard", "id"),
    ),
    "replay_dead_letters": (
        LETTERS.replay_dead_letters,
        [TENANT, [0], [LETTER], [LETTER], [0.0], None],
        "dead_letters",
        "dead_letters_pkey",
        ("shard", "id"),
    ),
    "read_undone": (
        workflow_compensations.SQL.read_undone,
        [TENANT, 0, LETTER, 10],
        "workflow_nodes",
        "workflow_nodes_pkey",
        ("shard", "id"),
    ),
    "read_not_undone": (
        workflow_compensations.SQL.read_not_undone,
        [TENANT, 0, LETTER, 10, 10],
        "workflow_nodes",
        "workflow_nodes_pkey",
        ("shard", "id"),
    ),
    "list_ended (what a cancel left)": (
        workflow_compensations.SQL.list_ended,
        [0, LETTER, None, None, 10],
        "workflow_nodes",
        "workflow_nodes_pkey",
        ("shard", "id"),
    ),
}


def is_read(node: Node, table: str) -> bool:
    return node.table == table and "Scan" in node.kind


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_goes_by_the_index_under_row_level_security(
    database: Database, name: str
) -> None:
    """The time function counts as leaky there: compared row by row, a look reads a million."""
    statement, arguments, table, index, found_by = LOOKS[name]
    async with database.tenant(TENANT) as session:
        (row,) = await session.fetch(EXPLAIN + statement, *arguments)
    plan = parse_plan(name, "custom", row[0])
    reads = [node for node in plan.nodes if is_read(node, table)]
    assert reads, plan.text
    for node in reads:
        assert node.said("Index Name") == index, plan.text
        for column in found_by:
            assert column in node.said("Index Cond"), plan.text
        assert "due_at" not in node.said("Filter"), plan.text
