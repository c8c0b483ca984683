"""The rows of one seed's tenants, read as the checker wants them. Changes nothing."""

import re
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.domain.ids import is_node, key_shard, shard_of
from duly.domain.task import concurrency_limit_of
from duly.store.policies import decode_policy
from duly.store.verify import SQL, workflow_tables
from duly.verify.history import (
    AttemptRow,
    DeadLetterRow,
    KeyRow,
    OccurrenceRow,
    Tables,
    TaskRow,
    TimerRow,
)
from tests.simulation.database import Postgres
from tests.simulation.plan import KEY_NAMES

TASKS = """SELECT id, tenant, run_at, policy, execution_key, replay_of, type
             FROM duly.tasks WHERE tenant = ANY($1::integer[]) ORDER BY id"""
TIMERS = """SELECT id, fence, attempt, coalesce(lease_until, due_at), holder, started_at,
                   cancel_requested, tenant,
                   EXISTS (SELECT FROM duly.placements AS place
                            WHERE place.tenant = timers.tenant AND place.shard = timers.shard
                              AND place.queue = duly.timer_queue(timers.pool, timers.priority)),
                   run_at
              FROM duly.timers WHERE tenant = ANY($1::integer[]) ORDER BY id"""
ATTEMPTS = """SELECT attempts.id, fence, charged, holder, started_at, ended_at, outcome, state,
                     attempts.tenant, attempts.run_at
                FROM duly.tasks JOIN duly.attempts USING (shard, id)
               WHERE tasks.tenant = ANY($1::integer[]) ORDER BY attempts.id, fence"""
LETTERS = """SELECT id, execution_key, replayed_as, tenant
               FROM duly.dead_letters WHERE tenant = ANY($1::integer[]) ORDER BY id"""
CAPS = """SELECT id, in_flight_max FROM duly.tenants
           WHERE id = ANY($1::integer[]) AND in_flight_max IS NOT NULL"""
KEYS = """SELECT tenant, key, task_id
            FROM unnest($1::smallint[], $2::integer[], $3::text[]) AS asked(shard, tenant, key)
            JOIN duly.idempotency_keys USING (shard, tenant, key)"""
TOMBSTONES = """SELECT tombstones.id FROM duly.tasks JOIN duly.tombstones USING (shard, id)
                 WHERE tasks.tenant = ANY($1::integer[])"""
OF_OCCURRENCE = re.compile("([0-9a-f-]{36}):(.+)")
OCCURRENCES = """SELECT schedule, nominal_at, verdict, task, tenant
                   FROM duly.occurrences WHERE tenant = ANY($1::integer[])"""
LIVE = """SELECT (SELECT count(*) FROM duly.timers WHERE tenant = ANY($1::integer[]))
               + (SELECT count(*) FROM duly.schedule_timers
                   WHERE tenant = ANY($1::integer[]) AND due_at IS NOT NULL)
               + (SELECT count(*) FROM duly.workflow_timers WHERE tenant = ANY($1::integer[]))"""
WORKFLOWS = """SELECT id, live, completed, failed, skipped, cancelled, ended_at,
                      paused_at IS NOT NULL AS is_paused,
                      stop_reason IS NOT NULL AND ended_at IS NULL
                          OR EXISTS (SELECT FROM duly.workflow_timers AS timer
                                      WHERE timer.shard = workflows.shard
                                        AND timer.workflow = workflows.id
                                        AND timer.kind = 'cascade') AS is_deferred
                 FROM duly.workflows WHERE tenant = ANY($1::integer[]) ORDER BY id"""
WORKFLOW_TIMERS = """SELECT workflow, kind, due_at FROM duly.workflow_timers
                      WHERE tenant = ANY($1::integer[]) ORDER BY workflow, kind"""
DUE_SCHEDULES = """SELECT id, due_at FROM duly.schedule_timers
                    WHERE tenant = ANY($1::integer[]) AND due_at IS NOT NULL ORDER BY id"""


def read_tables(
    postgres: Postgres, now: datetime, tenants: tuple[int, ...], *, with_limits: bool
) -> Tables:
    """`with_limits`: concurrency keys were minded by a scheduler, and are to be judged."""

    def rows(statement: str) -> list[Any]:
        return postgres.fetch(now, statement, list(tenants))

    workflows = rows(WORKFLOWS)
    asked = [shard_of(row["id"]) for row in workflows], [row["id"] for row in workflows]
    nodes = postgres.fetch(now, SQL.read_nodes, *asked)
    items = postgres.fetch(now, SQL.read_items, *asked)
    given = postgres.fetch(now, SQL.read_given_signals, *asked)
    return Tables(
        tasks=tuple(task_row(row, with_limits=with_limits) for row in rows(TASKS)),
        timers=tuple(TimerRow(*row) for row in rows(TIMERS)),
        attempts=tuple(AttemptRow(*row) for row in rows(ATTEMPTS)),
        dead_letters=tuple(DeadLetterRow(*row) for row in rows(LETTERS)),
        keys=tuple(KeyRow(*row) for row in postgres.fetch(now, KEYS, *key_columns(tenants))),
        tombstones=frozenset(row["id"] for row in rows(TOMBSTONES)),
        caps={row["id"]: row["in_flight_max"] for row in rows(CAPS)},
        occurrences=tuple(OccurrenceRow(*row) for row in rows(OCCURRENCES)),
        workflows=workflow_tables(workflows, nodes, items, given).workflows,
    )


def key_columns(tenants: tuple[int, ...]) -> tuple[list[int], list[int], list[str]]:
    pairs = [(tenant, name) for tenant in tenants for name in KEY_NAMES]
    return (
        [key_shard(*pair) for pair in pairs],
        [tenant for tenant, _ in pairs],
        [name for _, name in pairs],
    )


def task_row(row: Any, *, with_limits: bool = False) -> TaskRow:
    policy = decode_policy(row["policy"])
    return TaskRow(
        id=row["id"],
        tenant=row["tenant"],
        run_at=row["run_at"],
        max_attempts=policy.retry.max_attempts,
        execution_key=row["execution_key"],
        replay_of=row["replay_of"],
        request=None if is_of_workflow(row) else row["type"],
        concurrency_key=policy.concurrency_key if with_limits else None,
        concurrency_limit=concurrency_limit_of(policy),
        occurrence=occurrence_of(row),
    )


def is_of_workflow(row: Any) -> bool:
    """A node, or the task that tells of an end: no client submitted it."""
    return is_node(row["id"]) or str(row["execution_key"]).endswith(":end")


def occurrence_of(row: Any) -> tuple[UUID, datetime] | None:
    """By its execution key, which a replay shares with what it repeats."""
    named = OF_OCCURRENCE.fullmatch(row["execution_key"] or "")
    if named is None or row["replay_of"] is not None or is_of_workflow(row):
        return None
    return UUID(named[1]), datetime.fromisoformat(named[2])


def count_live(postgres: Postgres, now: datetime, tenants: tuple[int, ...]) -> int:
    (row,) = postgres.fetch(now, LIVE, list(tenants))
    return int(row[0])


def due_workflow_timers(
    postgres: Postgres, now: datetime, tenants: tuple[int, ...]
) -> list[tuple[UUID, str, datetime]]:
    found = postgres.fetch(now, WORKFLOW_TIMERS, list(tenants))
    return [(row["workflow"], row["kind"], row["due_at"]) for row in found]


def due_schedules(
    postgres: Postgres, now: datetime, tenants: tuple[int, ...]
) -> list[tuple[UUID, datetime]]:
    return [(row["id"], row["due_at"]) for row in postgres.fetch(now, DUE_SCHEDULES, list(tenants))]
