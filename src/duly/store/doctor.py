"""Facts for `duly doctor`: one read-only query for each thing that goes wrong in production.

Facts only; what they mean, and what to do, is in `domain/diagnosis.py`.
"""

import asyncpg

from duly.domain.diagnosis import Facts, Snapshot
from duly.environment import Environment
from duly.store.database import connect, translated_faults
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
SNAPSHOTS_MAX = 5
NODES_MAX = 1000
TIMERS_MAX = 10_000
PROOFS = 20
# Of `synchronous_commit`: those that wait for a standby, if any is to be waited for.
WAITING_COMMITS = ("on", "remote_write", "remote_apply")


async def read_facts(url: str, environment: Environment, *, schema_wanted: int) -> Facts:
    """As much as can be read; a database without duly's schema has only the first half."""
    connection = await connect(url, is_pooled=True)
    try:
        with translated_faults(url):
            return await look(connection, environment, schema_wanted)
    finally:
        await connection.close()


async def look(
    connection: asyncpg.Connection, environment: Environment, schema_wanted: int
) -> Facts:
    before = environment.clock.now().timestamp()
    server = await connection.fetchrow(SQL.read_server)
    after = environment.clock.now().timestamp()
    facts = Facts(
        version=server["version"],
        version_text=server["version_text"],
        is_fsync=server["fsync"] == "on",
        is_full_page_writes=server["full_page_writes"] == "on",
        is_synchronous=server["synchronous_commit"] != "off",
        waits_for_standby=server["synchronous_commit"] in WAITING_COMMITS
        and bool(server["standby_names"]),
        standby_states=list(server["standby_states"]),
        connections=server["connections"],
        connections_max=server["connections_max"] - server["connections_reserved"],
        is_clock_overridden=bool(server["test_now"]),
        clock_offset_s=server["now_s"] - (before + after) / 2,
        clock_uncertainty_s=(after - before) / 2,
        sessions=await count_sessions(connection),
        snapshots=[
            Snapshot(*row)
            for row in await connection.fetch(SQL.read_oldest_snapshots, SNAPSHOTS_MAX)
        ],
        schema_wanted=schema_wanted,
    )
    try:
        facts.schema_version = (await connection.fetchrow(SQL.read_schema))["version"]
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return facts
    if facts.schema_version < schema_wanted:
        return facts
    debt = await connection.fetchrow(SQL.read_timers_debt)
    if debt is not None:
        facts.timers_live, facts.timers_dead = debt["live"], debt["dead"]
        facts.vacuumed_ago_s, facts.timers_bytes = debt["vacuumed_ago_s"], debt["bytes"]
        facts.is_autovacuum = debt["autovacuum"] == "on"
    facts.months_ahead = (await connection.fetchrow(SQL.read_partitions_ahead))["months_ahead"]
    slots = await connection.fetchrow(SQL.read_slots)
    facts.slots_ownerless, facts.slots = slots["ownerless"], slots["slots"]
    facts.nodes, facts.slot_owners = slots["nodes"], slots["owners"]
    facts.roles = {
        row["role"]: row["names"] for row in await connection.fetch(SQL.read_roles, NODES_MAX)
    }
    leader = await connection.fetchrow(SQL.read_leader)
    facts.leader = "" if leader is None else leader["name"] or "a node that is gone"
    overdue = await connection.fetchrow(SQL.read_overdue, TIMERS_MAX)
    facts.schedule_overdue_s = overdue["schedule_s"]
    facts.workflow_overdue_s = overdue["workflow_s"]
    facts.workflow_timers_failing = overdue["failing"]
    facts.failing = [tuple(row) for row in await connection.fetch(SQL.read_failing, NODES_MAX)]
    facts.carriers = [tuple(row) for row in await connection.fetch(SQL.read_carriers, NODES_MAX)]
    return facts


async def count_sessions(connection: asyncpg.Connection) -> int:
    """How many server sessions one connection of ours was given: more than one is a pooler."""
    pids = {(await connection.fetchrow(SQL.prove_session))["pid"] for _ in range(PROOFS)}
    return len(pids)
