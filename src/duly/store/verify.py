"""Reading a whole installation for `duly verify`, page by page, without disturbing it.

Each page is one short snapshot of all that is stored under some keys, so rows of one task are of
one instant, and dead rows are kept alive no longer than a page takes. Plain checks run in the
database; the rest is judged by `duly.verify`. Nothing is changed.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from duly.domain.errors import DatabaseUnfit
from duly.domain.ids import EPOCH, SHARDS, partition_bound, shard_of
from duly.domain.states import TERMINAL, State
from duly.domain.workflow import WaitRule
from duly.store.database import SQL as DATABASE_SQL
from duly.store.database import STATEMENT_TIMEOUT_S, address_of, connect, translated_faults
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside
from duly.verify.history import (
    AttemptRow,
    DeadLetterRow,
    KeyRow,
    MapItems,
    OccurrenceRow,
    SlotHolderRow,
    Tables,
    TaskRow,
    TimerRow,
    WorkflowNodeRow,
    WorkflowRow,
)
from duly.verify.report import GRACE_S, Verification

SQL = statements_beside(__file__)
# Tasks in a snapshot; and attempts in memory, but for a task that has more of them alone.
PAGE_TASKS = 5000
ATTEMPTS_MAX = 10_000
PAGE_KEYS = 5000
# Each with up to 10,000 nodes.
PAGE_WORKFLOWS = 20
NO_KEY = UUID(int=0)
BEFORE_ALL = -1
POLICIES_KEPT = 1000
PAGE_TENANTS = 100
READ_PARTS = ("tasks", "timers", "attempts", "dead_letters", "tombstones")

UNMIGRATED = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidSchemaNameError,
)

Key = tuple[int, UUID]


class VerifyReader(NamedTuple):
    """The connection, and where to say how many tasks more are done."""

    connection: asyncpg.Connection
    advance: Callable[[int], None]


async def count_roughly(url: str) -> int:
    """How many tasks there may be; also refuses a login that would see nothing."""
    async with opened(url) as connection, snapshot(connection):
        roles = await connection.fetchrow(DATABASE_SQL.login_is_engine)
        if not roles["is_engine"]:
            problem = "this login sees no rows: it is not a member of duly_engine"
            raise DatabaseUnfit(address=address_of(url), problem=problem)
        return int((await connection.fetchrow(SQL.estimate_tasks))["tasks"])


async def verify(
    url: str,
    verification: Verification,
    since: datetime | None = None,
    advance: Callable[[int], None] = lambda _more: None,
) -> None:
    """Fill `verification`; `since` leaves out tasks placed before."""
    first_id = NO_KEY if since is None else partition_bound(since)
    async with opened(url) as connection:
        reading = VerifyReader(connection, advance)
        await verify_tasks(reading, verification, first_id)
        await verify_keys(reading, verification, first_id)
        await verify_ledger(reading, verification, first_id)
        await verify_workflows(reading, verification, first_id)
        await verify_standing(reading, verification)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[asyncpg.Connection]:
    # As if behind a pooler, which then need not be known of: nothing is kept in the session.
    connection = await connect(url, is_pooled=True)
    try:
        with translated_faults(url):
            try:
                yield connection
            except UNMIGRATED as error:
                problem = f"{error}; run `duly migrate`"
                raise DatabaseUnfit(address=address_of(url), problem=problem) from None
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def snapshot(connection: asyncpg.Connection) -> AsyncIterator[None]:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetch(SQL.keep_to_indexes, timeout=STATEMENT_TIMEOUT_S)
        yield


async def verify_tasks(reading: VerifyReader, verification: Verification, first_id: UUID) -> None:
    shard, after = BEFORE_ALL, NO_KEY
    while shard < SHARDS:
        async with snapshot(reading.connection):
            page = await reading.connection.fetchrow(
                *(SQL.read_page, shard, after, first_id, GRACE_S, PAGE_TASKS),
                timeout=STATEMENT_TIMEOUT_S,
            )
            for keys in portions(page):
                tables = await read_tables(reading.connection, keys, page["kept_from"])
                verification.judge_tasks(tables, (task for _, task in keys), page["now"])
        verification.rows.update({part: page[part] for part in READ_PARTS})
        reading.advance(page["tasks"])
        if page["keys"] < PAGE_TASKS:
            return
        shard, after = page["last_shard"], page["last_id"]


def portions(page: Any) -> Iterator[list[Key]]:
    """The keys to judge, so many at a time that their attempts fit into memory."""
    keys: list[Key] = []
    attempts = 0
    for shard, task, count in zip(
        page["odd_shards"] or (), page["odd_ids"] or (), page["odd_attempts"] or (), strict=True
    ):
        if keys and attempts + count > ATTEMPTS_MAX:
            yield keys
            keys, attempts = [], 0
        keys.append((shard, task))
        attempts += count
    if keys:
        yield keys


async def read_tables(connection: asyncpg.Connection, keys: list[Key], kept_from: UUID) -> Tables:
    """All rows of these tasks, and of those that they replay or are replayed as."""
    tables = await read_rows(connection, keys)
    linked = {row.replay_of for row in tables.tasks if row.replay_of}
    linked |= {row.replayed_as for row in tables.dead_letters if row.replayed_as}
    linked -= {task for _, task in keys}
    others = await read_rows(connection, [(shard_of(task), task) for task in linked])
    whole = Tables(
        tasks=tables.tasks + others.tasks,
        timers=tables.timers + others.timers,
        attempts=tables.attempts + others.attempts,
        dead_letters=tables.dead_letters + others.dead_letters,
        tombstones=tables.tombstones | others.tombstones,
        kept_from=kept_from,
    )
    return await with_purged_letters(connection, whole)


async def read_rows(connection: asyncpg.Connection, keys: list[Key]) -> Tables:
    if not keys:
        return Tables()
    columns = [shard for shard, _ in keys], [task for _, task in keys]

    async def rows(statement: str) -> list[asyncpg.Record]:
        found: list[asyncpg.Record] = await connection.fetch(
            statement, *columns, timeout=STATEMENT_TIMEOUT_S
        )
        return found

    return Tables(
        tasks=tuple(task_row(row) for row in await rows(SQL.read_tasks)),
        timers=tuple(TimerRow(*row) for row in await rows(SQL.read_timers)),
        attempts=tuple(AttemptRow(*row) for row in await rows(SQL.read_attempts)),
        dead_letters=tuple(DeadLetterRow(*row) for row in await rows(SQL.read_letters)),
        tombstones=frozenset(row["id"] for row in await rows(SQL.read_tombstones)),
    )


def task_row(row: Any) -> TaskRow:
    return TaskRow(
        id=row["id"],
        tenant=row["tenant"],
        run_at=row["run_at"],
        max_attempts=attempts_allowed(row["policy"]),
        execution_key=row["execution_key"],
        replay_of=row["replay_of"],
        has_data=row["has_data"],
    )


@lru_cache(POLICIES_KEPT)
def attempts_allowed(policy: str | None) -> int:
    return decode_policy(policy).retry.max_attempts


async def with_purged_letters(connection: asyncpg.Connection, tables: Tables) -> Tables:
    """A failure without its dead letter is a loss, unless the letter was purged."""
    excused = {row.id for row in tables.dead_letters} | tables.tombstones
    suspects = [
        row for row in tables.attempts if row.state == State.FAILED and row.id not in excused
    ]
    if not suspects:
        return replace(tables, letters_purged=frozenset())
    rows = await connection.fetch(
        SQL.find_purged_letters,
        [row.tenant for row in suspects],
        [row.id for row in suspects],
        [row.ended_at for row in suspects],
        timeout=STATEMENT_TIMEOUT_S,
    )
    return replace(tables, letters_purged=frozenset(row["id"] for row in rows))


async def verify_keys(reading: VerifyReader, verification: Verification, first_id: UUID) -> None:
    start = (BEFORE_ALL, 0, "")
    async for rows in pages(reading, SQL.read_keys, "keys", ("shard", "tenant", "key"), start):
        verification.rows["keys"] += rows[0]["keys"]
        judged = [row for row in rows if row["task_id"].int >= first_id.int]
        verification.judge_keys(key_tables(judged, rows[0]["kept_from"]), rows[0]["now"])


async def verify_workflows(
    reading: VerifyReader, verification: Verification, first_id: UUID
) -> None:
    """Each page is read twice in one snapshot: the workflows, and all of their nodes."""
    shard, after = BEFORE_ALL, NO_KEY
    while True:
        async with snapshot(reading.connection):
            rows = await reading.connection.fetch(
                *(SQL.read_workflows, shard, after, first_id, PAGE_WORKFLOWS),
                timeout=STATEMENT_TIMEOUT_S,
            )
            asked = [row["id"] for row in rows]
            nodes = await reading.connection.fetch(
                SQL.read_nodes, [shard_of(i) for i in asked], asked, timeout=STATEMENT_TIMEOUT_S
            )
            items = await reading.connection.fetch(
                SQL.read_items, [shard_of(i) for i in asked], asked, timeout=STATEMENT_TIMEOUT_S
            )
            given = await reading.connection.fetch(
                *(SQL.read_given_signals, [shard_of(i) for i in asked], asked),
                timeout=STATEMENT_TIMEOUT_S,
            )
        verification.rows["workflows"] += len(rows)
        if rows:
            verification.judge_workflows(workflow_tables(rows, nodes, items, given), rows[0]["now"])
        if len(rows) < PAGE_WORKFLOWS:
            return
        shard, after = rows[-1]["shard"], rows[-1]["id"]


def workflow_tables(
    rows: list[Any], nodes: list[Any], items: list[Any], given: list[Any]
) -> Tables:
    found: dict[UUID, list[WorkflowNodeRow]] = {}
    for node in nodes:
        found.setdefault(node["workflow"], []).append(
            WorkflowNodeRow(
                node["id"],
                node["number"],
                WaitRule(node["wait_rule"]),
                tuple(node["parents"]),
                node["is_live"],
                node["parents_pending"],
                None if node["state"] is None else State(node["state"]),
                node["started_at"],
                node["ended_at"],
                node["is_map"],
                node["is_paged"],
                node["items_pending"],
                node["is_step"],
                node["is_stranded"],
                node["may_start"],
                node["is_held"],
                node["ran_again"],
            )
        )
    made: dict[UUID, list[MapItems]] = {}
    for row in items:
        ends = (State.COMPLETED, State.FAILED, State.CANCELLED)
        counts: dict[State, int] = {state: row[state.lower()] for state in ends}
        made.setdefault(row["workflow"], []).append(
            MapItems(
                *(row["map_number"], row["live"], counts, row["is_gapless"]),
                *(row["may_start"], row["held"]),
            )
        )
    signals: dict[UUID, dict[int, int]] = {}
    for row in given:
        signals.setdefault(row["workflow"], {})[row["node"]] = row["signals"]
    names = {state: state.lower() for state in (*TERMINAL,)}
    return Tables(
        workflows=tuple(
            WorkflowRow(
                row["id"],
                row["live"],
                {state: row[name] for state, name in names.items()},
                row["ended_at"] is not None,
                row["is_deferred"],
                tuple(found.get(row["id"], ())),
                tuple(made.get(row["id"], ())),
                row["is_paused"],
                signals.get(row["id"], {}),
            )
            for row in rows
        )
    )


async def pages(
    reading: VerifyReader,
    statement: str,
    counted: str,
    places: tuple[str, ...],
    after: tuple[Any, ...],
) -> AsyncIterator[list[Any]]:
    """Page after page in a snapshot of its own; `counted` names how many rows a page looked at, and
    `places` where its last one lies."""
    while True:
        async with snapshot(reading.connection):
            rows = await reading.connection.fetch(
                statement, *after, PAGE_KEYS, timeout=STATEMENT_TIMEOUT_S
            )
        if not rows:
            return
        yield rows
        (last,) = [row for row in rows if row["is_last"]]
        if last[counted] < PAGE_KEYS:
            return
        after = tuple(last[place] for place in places)


def key_tables(rows: list[Any], kept_from: UUID) -> Tables:
    return Tables(
        tasks=tuple(
            TaskRow(row["task_id"], row["task_tenant"], row["run_at"], max_attempts=0)
            for row in rows
            if row["task_tenant"] is not None
        ),
        keys=tuple(
            KeyRow(row["tenant"], row["key"], row["task_id"], row["is_at_home"]) for row in rows
        ),
        tombstones=frozenset(row["task_id"] for row in rows if row["is_purged"]),
        kept_from=kept_from,
    )


async def verify_ledger(reading: VerifyReader, verification: Verification, first_id: UUID) -> None:
    places, start = ("shard", "schedule", "nominal_at"), (BEFORE_ALL, NO_KEY, EPOCH)
    async for rows in pages(reading, SQL.read_ledger, "occurrences", places, start):
        verification.rows["occurrences"] += rows[0]["occurrences"]
        judged = [row for row in rows if row["task"] and row["task"].int >= first_id.int]
        verification.judge_ledger(ledger_tables(judged, rows[0]["kept_from"]), rows[0]["now"])


def ledger_tables(rows: list[Any], kept_from: UUID) -> Tables:
    return Tables(
        tasks=tuple(
            TaskRow(
                *(row["task"], row["task_tenant"], row["run_at"]),
                max_attempts=0,
                occurrence=(row["schedule"], row["nominal_at"]) if row["is_its"] else None,
            )
            for row in rows
            if row["task_tenant"] is not None
        ),
        occurrences=tuple(
            OccurrenceRow(
                row["schedule"], row["nominal_at"], row["verdict"], row["task"], row["tenant"]
            )
            for row in rows
        ),
        tombstones=frozenset(row["task"] for row in rows if row["is_purged"]),
        kept_from=kept_from,
    )


async def verify_standing(reading: VerifyReader, verification: Verification) -> None:
    """What is true of this instant only: who owns, and how much is held."""
    async with snapshot(reading.connection):
        slots = await reading.connection.fetch(SQL.read_slots, SHARDS, timeout=STATEMENT_TIMEOUT_S)
        if slots:
            verification.judge_slots([SlotHolderRow(*row[:3]) for row in slots], slots[0]["now"])
    tenant = 0
    while True:
        async with snapshot(reading.connection):
            rows = await reading.connection.fetch(
                SQL.read_capped, tenant, PAGE_TENANTS, timeout=STATEMENT_TIMEOUT_S
            )
        verification.rows["capped_tenants"] += len(rows)
        for row in rows:
            verification.judge_cap(row["id"], row["in_flight_max"], row["leases"])
        if len(rows) < PAGE_TENANTS:
            return
        tenant = rows[-1]["id"]
